//! A slow request, and where its time went: what a worker reports to the collector of the slowest requests.

use std::net::SocketAddr;
use std::time::Duration;

/// Most bytes of a path that are reported.
pub(crate) const PATH_BYTES_MAX: usize = 256;

/// Slow requests that may wait for the collector.
pub const SLOW_QUEUE_MAX: usize = 256;

/// Where the time of a request went.
///
/// ```text
///  first byte read        node chosen     node's last byte read   last byte written
///        ├── before (queued) ──┼───── node ──────────┼────── after ───────┤   took: all of it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// The whole time.
    pub took: Duration,
    /// Time until a node was chosen: reading the head, routing, plugins, and waiting for a place at the upstream. The whole time if
    /// no node was tried.
    pub before: Duration,
    /// The part of `before` spent waiting for a place at the upstream.
    pub queued: Duration,
    /// From the first try's choice of a node to the last try's end.
    pub node: Duration,
    /// From then until the client had the whole response.
    pub after: Duration,
    /// Longest turn of the worker's event loop in the same time.
    pub longest_turn: Duration,
    /// How long the worker waited for a CPU in the same time and up to a second before.
    pub cpu_wait: Duration,
}

/// The part that took at least half of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The worker waited for a CPU: the machine had too few.
    Cpu,
    /// One turn of the worker's event loop, in which all its requests waited.
    Turn,
    /// Waiting for a place at the upstream.
    Queue,
    /// The node, or a client that sent its body slowly to it.
    Node,
    /// The client, which took the response slowly.
    Client,
    /// Plugins, or a client whose body had to be read first.
    Before,
    /// No single part.
    Several,
}

impl Times {
    /// Why it took so long.
    pub fn cause(&self) -> Cause {
        let is_most = |part: Duration| part * 2 >= self.took;
        if is_most(self.longest_turn) {
            // A turn is also long if its thread had no CPU.
            let had_none = self.cpu_wait * 2 >= self.longest_turn;
            return if had_none { Cause::Cpu } else { Cause::Turn };
        }
        let causes = [
            (self.cpu_wait, Cause::Cpu),
            (self.queued, Cause::Queue),
            (self.node, Cause::Node),
            (self.after, Cause::Client),
            (self.before, Cause::Before),
        ];
        causes.into_iter().find(|(part, _)| is_most(*part)).map_or(Cause::Several, |(_, cause)| cause)
    }
}

/// A slow request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowRequest {
    /// The worker's number.
    pub worker: usize,
    /// Milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Where its time went.
    pub times: Times,
    /// Status that the client got.
    pub status: u16,
    /// The route's id; `None`: there was none.
    pub route: Option<String>,
    /// Its method.
    pub method: String,
    /// Path without the query, truncated if it is long.
    pub path: String,
    /// The node that was tried last.
    pub node: Option<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_cause_is_what_took_half_of_the_time() {
        let took = MS * 100;
        let times = Times { took, ..Times::default() };
        assert_eq!(times.cause(), Cause::Several);
        assert_eq!(Times { node: MS * 50, before: MS * 50, ..times }.cause(), Cause::Node);
        assert_eq!(Times { queued: MS * 60, before: MS * 70, node: MS * 30, ..times }.cause(), Cause::Queue);
        assert_eq!(Times { after: MS * 90, ..times }.cause(), Cause::Client);
        assert_eq!(Times { before: MS * 90, ..times }.cause(), Cause::Before);
        assert_eq!(Times { node: MS * 90, cpu_wait: MS * 70, ..times }.cause(), Cause::Cpu);
        let long_turn = Times { node: MS * 90, longest_turn: MS * 80, ..times };
        assert_eq!(long_turn.cause(), Cause::Turn);
        assert_eq!(Times { cpu_wait: MS * 60, ..long_turn }.cause(), Cause::Cpu);
    }
}
