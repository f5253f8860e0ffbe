//! The state of a request for plugins that see its response: nodes, times and sizes so far, and what the node got.
//!
//! It is computed only where a plugin reads one of these variables; until then it is a few references.

use super::node_host::host_of;
use super::record::{ExchangeParts, Moment};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::telemetry::metrics::upstream;
use crate::worker::Worker;
use stillgate_plugin::Facts;
use stillgate_plugin::record::push_recorded;
use stillgate_route::{Lookup, Variable};
use stillgate_wire::RequestEdits;

/// Provides [`Variable::Recorded`] from the head of the response on.
pub(super) struct PendingRecord<'a> {
    pub(super) told: &'a ExchangeParts<'a>,
    pub(super) facts: &'a Facts<'a>,
    pub(super) edits: &'a RequestEdits,
    pub(super) snapshot: &'a Snapshot,
    pub(super) worker: &'a Worker,
    /// `None`: the response has not been sent yet, and times end now.
    pub(super) ended: Option<Moment>,
}

impl PendingRecord<'_> {
    fn upstream(&self) -> Option<&WorkerUpstream> {
        let outcome = self.told.outcome;
        upstream(outcome.route, outcome.upstream, outcome.kept.as_deref(), self.snapshot)
    }

    /// Calls `then` with the host of the node that was tried last, as it is configured.
    fn with_node<R>(&self, then: impl FnOnce(&str) -> R) -> Option<R> {
        let (slot, address) = self.told.outcome.asked?;
        let state = self.upstream()?.state.borrow();
        let node = state.endpoint(slot);
        // The slot may belong to another node by now.
        (node.address == address).then(|| then(&node.host))
    }

    fn push(&self, name: &str, out: &mut Vec<u8>) -> Option<()> {
        match name {
            "upstream_unresolved_host" => self.with_node(|host| out.extend_from_slice(without_port(host).as_bytes())),
            "upstream_host" => {
                let pass_host = &self.upstream()?.planned.definition.pass_host;
                let authority = self.facts.request.authority.of(self.facts.head);
                let host_for = |node: &str| host_of(self.edits.host(), authority, pass_host, node).to_vec();
                out.extend_from_slice(&self.with_node(host_for)?);
                Some(())
            }
            "upstream_scheme" => {
                let definition = &self.upstream()?.planned.definition;
                out.extend_from_slice(if definition.grpc { b"grpc" } else { b"http" });
                out.extend_from_slice(if definition.tls.is_some() { b"s" } else { b"" });
                Some(())
            }
            "upstream_uri" => {
                self.told.outcome.asked?;
                out.extend_from_slice(self.edits.target().unwrap_or_else(|| self.facts.path_and_query()));
                Some(())
            }
            _ => {
                let worker = self.worker;
                let ended = self.ended.unwrap_or_else(|| Moment::now(self.told.outcome));
                let record = self.told.record(ended, self.facts, &self.snapshot.plan, worker);
                let seed = [worker.plugins.own.random(), worker.plugins.own.random()];
                push_recorded(name, &record, seed, out).then_some(())
            }
        }
    }
}

impl Lookup for PendingRecord<'_> {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let Variable::Recorded(name) = variable else { return None };
        buffer.clear();
        self.push(name, buffer)?;
        Some(buffer)
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

/// A host as a `Host` field has it, without the port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // What follows the last colon of an IPv6 address is not a port.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_their_ports() {
        let check = |host: &str, expected: &str| assert_eq!(without_port(host), expected);
        check("shop.internal:81", "shop.internal");
        check("shop.internal", "shop.internal");
        check("[::1]:81", "[::1]");
        check("[::1]", "[::1]");
    }
}
