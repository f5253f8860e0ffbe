//! What is recorded of a session of `stream_proxy` at its end, and its variables.

use crate::connection::client::TlsFacts;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::{NodeProtocol, StreamRoute};
use stillgate_plugin_api::record::{NodeTries, Record, RequestId, ServingProcess};
use stillgate_route::{Lookup, Variable};
use stillgate_upstream::Endpoint;

/// Status of a session that a node accepted, whatever came of it.
pub(crate) const STATUS_SERVED: u16 = 200;

/// One client's connection, or what it sends from one port over UDP.
pub(crate) struct ClientSession {
    pub(crate) protocol: NodeProtocol,
    pub(crate) started: Instant,
    /// What the access log shows; see the statuses in `stream_proxy`.
    pub(crate) status: u16,
    pub(crate) route: Option<Arc<StreamRoute>>,
    /// Server name that the client requested in a TLS handshake with the node.
    pub(crate) server_name: Option<Box<str>>,
    /// The node that was tried last.
    pub(crate) node: Option<Endpoint>,
    /// The nodes that were tried.
    pub(crate) tries: NodeTries,
    /// How long connecting to the node took, over all tries.
    pub(crate) connect_us: Option<u64>,
}

/// The client's end of a session.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Facts of TLS that we terminate.
    pub(crate) tls: Option<&'a TlsFacts>,
}

/// A session's variables.
pub(crate) struct StreamVars<'a> {
    pub(crate) session: &'a ClientSession,
    pub(crate) ends: Ends<'a>,
}

impl ClientSession {
    pub(crate) fn new(protocol: NodeProtocol) -> ClientSession {
        ClientSession {
            protocol,
            started: Instant::now(),
            status: STATUS_SERVED,
            route: None,
            server_name: None,
            node: None,
            tries: NodeTries::default(),
            connect_us: None,
        }
    }
}

impl StreamVars<'_> {
    /// The client's address, with IPv4-mapped addresses as IPv4.
    pub(crate) fn client(&self) -> IpAddr {
        self.ends.peer.ip().to_canonical()
    }

    /// `TCP` or `UDP`.
    pub(crate) fn protocol(&self) -> &'static str {
        if self.session.protocol == NodeProtocol::Udp { "UDP" } else { "TCP" }
    }

    /// The access log record of a session that has ended.
    pub(crate) fn record<'a>(
        &'a self,
        end_unix_ms: u64,
        received: u64,
        sent: u64,
        (id, process): (&'a RequestId, &'a ServingProcess),
    ) -> Record<'a> {
        Record {
            end_unix_ms,
            status: self.session.status,
            bytes_sent: sent,
            body_bytes_sent: sent,
            bytes_received: received,
            request_time_us: self.session.started.elapsed().as_micros() as u64,
            upstream_time_us: self.session.connect_us,
            asked_us: None,
            node_time_us: None,
            tries: &self.session.tries,
            route_id: self.session.route.as_ref().map(|route| route.id.as_str()),
            service_id: None,
            // A session has no request: `-`.
            method: b"",
            target: b"",
            version: self.protocol(),
            client: self.client(),
            vars: self,
            trace: None,
            id,
            given_id: b"",
            process,
        }
    }

    /// The server name that the client requested.
    pub(crate) fn server_name(&self) -> Option<&str> {
        let of_tls = self.ends.tls.and_then(|tls| tls.server_name.as_deref());
        of_tls.or(self.session.server_name.as_deref())
    }
}

impl Lookup for StreamVars<'_> {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::ServerProtocol => Some(self.protocol().as_bytes()),
            Variable::RemoteAddr | Variable::PeerAddr => Some(written(buffer, self.client())),
            Variable::RemotePort => Some(written(buffer, self.ends.peer.port())),
            Variable::ServerAddr => Some(written(buffer, self.ends.local.ip().to_canonical())),
            Variable::ServerPort => Some(written(buffer, self.ends.local.port())),
            Variable::SslServerName => self.server_name().map(str::as_bytes),
            Variable::Ssl(variable) => self.ends.tls?.value(*variable).map(str::as_bytes),
            // The other variables are about requests.
            _ => None,
        }
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

// Values as text.

/// Writes a value whose text is not stored anywhere.
pub(crate) fn written(buffer: &mut Vec<u8>, value: impl std::fmt::Display) -> &[u8] {
    buffer.clear();
    write!(buffer, "{value}").expect("writing to a vector does not fail");
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_those_of_a_connection() {
        let check =
            |protocol: NodeProtocol, peer: &str, local: &str, name: Option<&str>, expected: [Option<&str>; 6]| {
                let session = ClientSession { server_name: name.map(Into::into), ..ClientSession::new(protocol) };
                let ends = Ends { peer: peer.parse().unwrap(), local: local.parse().unwrap(), tls: None };
                let vars = StreamVars { session: &session, ends };
                let value = |name: &str| {
                    let (variable, mut buffer) = (Variable::parse(name).unwrap(), Vec::new());
                    vars.value(&variable, &mut buffer).map(|value| String::from_utf8(value.to_vec()).unwrap())
                };
                let names = ["remote_addr", "remote_port", "server_addr", "server_port", "protocol", "ssl_server_name"];
                assert_eq!(names.map(value), expected.map(|value| value.map(str::to_owned)));
                for of_requests in
                    ["uri", "request_method", "host", "http_host", "arg_a", "cookie_a", "scheme", "ssl_cipher"]
                {
                    assert_eq!(value(of_requests), None, "{of_requests}");
                }
                let (id, process) = (RequestId::new(), ServingProcess::default());
                let line = vars.record(7, 1, 2, (&id, &process));
                assert_eq!((line.bytes_received, line.bytes_sent, line.status), (1, 2, 200));
                assert!(line.method.is_empty() && line.route_id.is_none() && line.tries.count() == 0);
            };
        let some =
            |values: [&'static str; 5], name| [values.map(Some).as_slice(), &[name]].concat().try_into().unwrap();
        let ip4 = some(["192.0.2.1", "40000", "192.0.2.2", "443", "TCP"], Some("a.test"));
        check(NodeProtocol::Tcp, "192.0.2.1:40000", "192.0.2.2:443", Some("a.test"), ip4);
        // Addresses of a dual-stack socket.
        check(NodeProtocol::Tcp, "[::ffff:192.0.2.1]:40000", "[::ffff:192.0.2.2]:443", Some("a.test"), ip4);
        let ip6 = some(["2001:db8::1", "1", "2001:db8::2", "53", "UDP"], None);
        check(NodeProtocol::Udp, "[2001:db8::1]:1", "[2001:db8::2]:53", None, ip6);
    }
}
