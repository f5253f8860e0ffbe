//! What `GET /v1/status` and `GET /v1/health` answer; the only owner of these JSON shapes.
//!
//! The control loop fills them in on request. Counting is the workers' work, serving the admin server's.

use crate::configuration::reading::Candidate;
use crate::configuration::status::IgnoredPlugins;
use crate::configuration::status::{ConfigStatus, RejectedStatus};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use stillgate_acme::OrderState;
use stillgate_config::{Ssl, SslUse};
use stillgate_proxy::Counters;
use stillgate_proxy::access_log::rfc3339;

/// `GET /v1/status`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StatusPage {
    /// Version of this program.
    pub(crate) version: &'static str,
    /// Where resources come from: `file`, `store` or `etcd`.
    pub(crate) source: &'static str,
    /// The file, the store or the endpoints of etcd; null where the configuration is built in.
    pub(crate) source_path: Option<String>,
    /// The revision of the datastore that is served; null where resources come from the file.
    pub(crate) revision: Option<u64>,
    /// Writes that one `POST /v1/batch` can make; absent where resources come from the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch_writes_max: Option<usize>,
    /// Why the datastore cannot be followed; absent where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_error: Option<String>,
    /// When the datastore last answered, RFC 3339; absent if it never did, and where resources come from the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_heard_at: Option<String>,
    /// Resources that are not served as they were put.
    pub(crate) rejected: Vec<RejectedStatus>,
    /// Plugins that are ignored, each with the number of resources that have it; absent if there are none.
    #[serde(skip_serializing_if = "IgnoredPlugins::is_empty")]
    pub(crate) ignored_plugins: IgnoredPlugins,
    /// The configuration that is served.
    pub(crate) config: ConfigStatus,
    /// Keys of the served configuration whose values take effect at the next start only, as paths.
    pub(crate) pending_restart: Vec<&'static str>,
    /// Worker threads.
    pub(crate) workers: usize,
    /// Since the start of the process.
    pub(crate) uptime_seconds: u64,
    /// Client connections.
    pub(crate) connections: ConnectionCounts,
    /// Requests.
    pub(crate) requests: RequestCounts,
    /// Connections whose client and node speak another protocol.
    pub(crate) tunnels: Tunnels,
    /// Connections and sessions of `stream_proxy`.
    pub(crate) streams: Streams,
    /// Whether connections of devices end here (`gateway.devices`).
    pub(crate) devices: bool,
    /// Why the directory that nodes of devices share cannot be used; absent where it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) devices_error: Option<Box<str>>,
    /// Absent where no access log is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) access_log: Option<AccessLogStatus>,
    /// Certificates of the entries of `ssls`; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) certificates: Vec<CertificateStatus>,
    /// Whether everything is answered 503, because the datastore has not been read yet.
    #[serde(skip)]
    pub(crate) is_waiting: bool,
    /// Whether the gateway is about to end.
    pub(crate) draining: bool,
}

/// The certificates of one entry of `ssls`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CertificateStatus {
    /// The entry's id.
    pub(crate) id: String,
    /// The earliest end of validity, RFC 3339; null where an ordered certificate has not arrived yet.
    pub(crate) not_after: Option<String>,
    /// The state of ordering it; absent where it is not ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) acme: Option<OrderState>,
}

/// Client connections.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ConnectionCounts {
    /// Now.
    pub(crate) open: u64,
    /// Since the start.
    pub(crate) total: u64,
    /// Turned away because of `connections_per_worker`.
    pub(crate) refused: u64,
    /// Streams of HTTP/2 refused for the same reason.
    pub(crate) streams_refused: u64,
    /// Failed calls of accept, e.g. for want of file descriptors.
    pub(crate) accept_errors: u64,
    /// Closed because their PROXY protocol header was malformed or did not come.
    pub(crate) proxy_protocol_errors: u64,
    /// TLS handshakes done with clients.
    pub(crate) tls_handshakes: u64,
    /// Closed before their TLS handshake was done.
    pub(crate) tls_handshake_errors: u64,
}

/// Requests.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RequestCounts {
    /// Since the start.
    pub(crate) total: u64,
    /// Now.
    pub(crate) in_flight: u64,
    /// HTTP/2 streams that were refused before they became requests; not in `total`.
    pub(crate) http2_refused: u64,
    /// Lines of their headers that were dropped because of `underscores_in_headers`.
    pub(crate) header_lines_dropped: u64,
}

/// Connections whose client and node speak another protocol.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Tunnels {
    /// Now.
    pub(crate) open: u64,
    /// Since the start.
    pub(crate) total: u64,
}

/// Connections and sessions of `stream_proxy`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Streams {
    /// Open connections to nodes, now.
    pub(crate) open: u64,
    /// Ended since the start, those that were not served included.
    pub(crate) total: u64,
    /// Open sessions of UDP; counted in `open`.
    pub(crate) udp_open: u64,
    /// Datagrams that could not be passed on.
    pub(crate) datagrams_dropped: u64,
}

/// The access log.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AccessLogStatus {
    /// Lines lost to a full disk or a slow reader since the start.
    pub(crate) dropped_lines: u64,
}

/// `GET /v1/health`.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Health {
    /// `ok`, `stale` (the datastore is away, and what was read last is served), `waiting` (for the datastore) or `draining`.
    pub(crate) status: &'static str,
}

impl StatusPage {
    /// Whether a balancer in front should send requests here: it has something to serve, and does not end.
    pub(crate) fn is_ready(&self) -> bool {
        !self.draining && !self.is_waiting
    }

    /// The short form.
    pub(crate) fn health(&self) -> Health {
        let status = match (self.draining, self.is_waiting) {
            (true, _) => "draining",
            (false, true) => "waiting",
            (false, false) if self.source_error.is_some() => "stale",
            (false, false) => "ok",
        };
        Health { status }
    }
}

/// The counters under the names of the API.
pub(crate) fn counted(counters: &Counters) -> (ConnectionCounts, RequestCounts, Tunnels, Streams) {
    (
        ConnectionCounts {
            open: counters.connections_open,
            total: counters.connections_total,
            refused: counters.connections_refused,
            streams_refused: counters.streams_refused,
            accept_errors: counters.accept_errors,
            proxy_protocol_errors: counters.proxy_protocol_errors,
            tls_handshakes: counters.tls_handshakes,
            tls_handshake_errors: counters.tls_handshakes_failed.iter().sum(),
        },
        RequestCounts {
            total: counters.requests_total,
            in_flight: counters.requests_in_flight,
            http2_refused: counters.http2_requests_refused,
            header_lines_dropped: counters.header_lines_dropped,
        },
        Tunnels { open: counters.tunnels_open, total: counters.tunnels_total },
        Streams {
            open: counters.stream_sessions_open,
            total: counters.stream_sessions_total,
            udp_open: counters.udp_sessions_open,
            datagrams_dropped: counters.udp_datagrams_dropped,
        },
    )
}

/// The state of the certificates that are served; `states`: of those that are ordered.
pub(crate) fn certificates(served: &Candidate, states: &BTreeMap<String, OrderState>) -> Vec<CertificateStatus> {
    let ends: HashMap<_, _> = served.tls.expiries().collect();
    let end = |seconds: i64| rfc3339(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    let status = |ssl: &Arc<Ssl>| CertificateStatus {
        id: ssl.id.clone(),
        not_after: ends.get(ssl.id.as_str()).copied().map(end),
        acme: ssl.acme.then(|| states.get(&ssl.id).cloned().unwrap_or_default()),
    };
    let is_used = |ssl: &&Arc<Ssl>| !matches!(ssl.usage, SslUse::Refused(_));
    served.loaded.config.ssls.iter().filter(is_used).map(status).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::status::LastError;
    use expect_test::expect;
    use stillgate_config::{Origin, RejectedResource, Replacement, ResourceKind};

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn the_shape_is_a_contract() {
        let (connections, requests, tunnels, streams) = counted(&Counters::default());
        let status = StatusPage {
            version: "1.2.3",
            source: "etcd",
            source_path: Some("http://127.0.0.1:2379".into()),
            batch_writes_max: Some(128),
            revision: Some(42),
            source_error: None,
            source_heard_at: Some("2026-11-21T00:27:15.000Z".into()),
            rejected: vec![RejectedStatus::from(&RejectedResource {
                kind: ResourceKind::Routes,
                id: "r".into(),
                reason: "timeout.read: expected a duration".into(),
                origin: Origin::named("/apisix/routes/r @ 3"),
                serving: Replacement::Unavailable,
            })],
            is_waiting: false,
            ignored_plugins: IgnoredPlugins::from([("kafka-logger", 2)]),
            config: ConfigStatus {
                generation: 7,
                digest: "ab".into(),
                loaded_at: "2026-11-21T00:27:13.042Z".into(),
                last_error: Some(LastError {
                    at: "2026-11-21T00:27:14.000Z".into(),
                    errors: vec!["stillgate.yaml:3:1: routes: expected a list".into()],
                }),
            },
            pending_restart: vec!["gateway.workers"],
            workers: 2,
            uptime_seconds: 9,
            connections,
            requests,
            tunnels,
            streams,
            devices: false,
            devices_error: None,
            access_log: Some(AccessLogStatus { dropped_lines: 0 }),
            certificates: Vec::new(),
            draining: false,
        };
        expect![[r#"
            {
              "version": "1.2.3",
              "source": "etcd",
              "source_path": "http://127.0.0.1:2379",
              "revision": 42,
              "batch_writes_max": 128,
              "source_heard_at": "2026-11-21T00:27:15.000Z",
              "rejected": [
                {
                  "kind": "routes",
                  "id": "r",
                  "reason": "timeout.read: expected a duration",
                  "origin": "/apisix/routes/r @ 3",
                  "serving": "503"
                }
              ],
              "ignored_plugins": {
                "kafka-logger": 2
              },
              "config": {
                "generation": 7,
                "digest": "ab",
                "loaded_at": "2026-11-21T00:27:13.042Z",
                "last_error": {
                  "at": "2026-11-21T00:27:14.000Z",
                  "errors": [
                    "stillgate.yaml:3:1: routes: expected a list"
                  ]
                }
              },
              "pending_restart": [
                "gateway.workers"
              ],
              "workers": 2,
              "uptime_seconds": 9,
              "connections": {
                "open": 0,
                "total": 0,
                "refused": 0,
                "streams_refused": 0,
                "accept_errors": 0,
                "proxy_protocol_errors": 0,
                "tls_handshakes": 0,
                "tls_handshake_errors": 0
              },
              "requests": {
                "total": 0,
                "in_flight": 0,
                "http2_refused": 0,
                "header_lines_dropped": 0
              },
              "tunnels": {
                "open": 0,
                "total": 0
              },
              "streams": {
                "open": 0,
                "total": 0,
                "udp_open": 0,
                "datagrams_dropped": 0
              },
              "devices": false,
              "access_log": {
                "dropped_lines": 0
              },
              "draining": false
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&status).expect("JSON"));
    }
}
