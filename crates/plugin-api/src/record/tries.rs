//! The attempts of a request at nodes and their outcomes, for the access log and warnings.
//!
//! Retries are not decided here, but in `stillgate-upstream`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// Most attempts that are shown one by one. Further ones replace the oldest, which are only counted: a UDP session may
/// change its node for days.
const SHOWN_MAX: usize = 16;

/// One attempt at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTry {
    /// The node.
    pub node: SocketAddr,
    /// The status of the node's response, or of its failure (502, 504); zero: it was aborted before either.
    pub status: u16,
    /// Duration of connecting, zero on a kept connection; `None`: it did not connect.
    pub connect_us: Option<u64>,
}

/// The attempts of one request, in their order. Its memory is reused.
#[derive(Debug, Clone, Default)]
pub struct NodeTries {
    shown: Vec<NodeTry>,
    count: u64,
}

impl NodeTries {
    /// Removes all attempts.
    pub fn clear(&mut self) {
        self.shown.clear();
        self.count = 0;
    }

    /// Begins an attempt at this node.
    #[inline]
    pub fn begin(&mut self, node: SocketAddr) {
        self.push(NodeTry { node, status: 0, connect_us: None });
    }

    /// Adds an attempt that another process has made.
    pub fn push(&mut self, tried: NodeTry) {
        if self.shown.len() == SHOWN_MAX {
            self.shown.remove(0);
        }
        // Most requests have one, and sessions of streams keep theirs for as long as they last.
        if self.shown.capacity() == 0 {
            self.shown.reserve_exact(1);
        }
        self.shown.push(tried);
        self.count += 1;
    }

    /// The current node is connected.
    #[inline]
    pub fn on_connected(&mut self, connect_us: u64) {
        if let Some(last) = self.shown.last_mut() {
            last.connect_us = Some(connect_us);
        }
    }

    /// The current node has answered, or failed with an error of this status.
    #[inline]
    pub fn on_answered(&mut self, status: u16) {
        if let Some(last) = self.shown.last_mut() {
            last.status = status;
        }
    }

    /// Number of attempts, shown or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shown attempts.
    pub fn shown(&self) -> &[NodeTry] {
        &self.shown
    }

    /// The last attempt.
    pub fn last(&self) -> Option<&NodeTry> {
        self.shown.last()
    }
}

/// Lists the nodes, separated by `, `, or `none`.
impl fmt::Display for NodeTries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shown.is_empty() {
            return f.write_str("none");
        }
        for (index, tried) in self.shown.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, tried.node)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_tries_are_shown_and_all_are_counted() {
        let mut tries = NodeTries::default();
        assert_eq!((tries.to_string().as_str(), tries.count()), ("none", 0));
        for port in 1..=20 {
            tries.begin(SocketAddr::from(([10, 0, 0, 1], port)));
        }
        let ports: Vec<u16> = tries.shown().iter().map(|tried| tried.node.port()).collect();
        assert_eq!(ports, (5..=20).collect::<Vec<_>>());
        assert_eq!(tries.count(), 20);
        tries.clear();
        tries.begin("10.0.0.1:80".parse().unwrap());
        tries.on_answered(504);
        tries.begin("[::1]:81".parse().unwrap());
        tries.on_connected(7);
        assert_eq!(tries.to_string(), "10.0.0.1:80, [::1]:81");
        let seen: Vec<_> = tries.shown().iter().map(|tried| (tried.status, tried.connect_us)).collect();
        assert_eq!(seen, [(504, None), (0, Some(7))]);
    }
}
