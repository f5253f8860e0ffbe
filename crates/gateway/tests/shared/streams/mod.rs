//! A gateway with listeners of streams, as the tests of streams begin.

use crate::shared::STILLGATE;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stillgate_testkit::{ACCEPT_TEXT, BufferedSocket, Gateway, PATIENCE, ReservedPort, Setup, eventually, scrape};

const ACCESS_LOG: &str = "access_log: {path: \"{dir}/access.log\", format: json, fields: [status, bytes_sent, bytes_received, \
    request_time, upstream_response_time, upstream_addr, route_id, remote_addr, server_port, protocol, ssl_server_name, request_method]}";

/// Ports of a gateway's streams, and its configuration.
pub(crate) struct Streams {
    port: ReservedPort,
    metrics: ReservedPort,
    /// Keys of the one TCP listener, and of `gateway:`.
    pub(crate) listener: String,
    pub(crate) stream_proxy: String,
    pub(crate) gateway: String,
    pub(crate) resources: String,
}

impl Streams {
    /// Streams with these resources, as YAML.
    pub(crate) fn new(resources: impl Into<String>) -> Streams {
        Streams {
            port: ReservedPort::for_udp_too(),
            metrics: ReservedPort::new(),
            listener: String::new(),
            stream_proxy: String::new(),
            gateway: String::new(),
            resources: resources.into(),
        }
    }

    /// One stream route to these nodes, tried in this order.
    pub(crate) fn to(nodes: &[SocketAddr]) -> Streams {
        Streams::new(format!("stream_routes: [{{id: all, upstream: {{{}}}}}]\n", nodes_of(nodes)))
    }

    /// Adds keys to the TCP listener.
    pub(crate) fn listener(mut self, keys: &str) -> Streams {
        self.listener += &format!(", {keys}");
        self
    }

    /// Adds keys to `stream_proxy`.
    pub(crate) fn stream_proxy(mut self, keys: &str) -> Streams {
        self.stream_proxy += &format!(", {keys}");
        self
    }

    /// Adds lines to the `gateway:` section.
    pub(crate) fn gateway(mut self, lines: &str) -> Streams {
        self.gateway += &format!("{lines}\n");
        self
    }

    pub(crate) fn setup(&self) -> Setup {
        let (address, Streams { listener, stream_proxy, gateway, resources, .. }) = (self.addr(), self);
        Setup::resources(resources.clone()).gateway(&format!(
            "stream_proxy: {{tcp: [{{address: \"{address}\"{listener}}}], udp: [{{address: \"{address}\"}}]{stream_proxy}}}\n\
             metrics: {{address: \"{}\"}}\n{ACCESS_LOG}\n{gateway}",
            self.metrics.addr()
        ))
    }

    pub(crate) fn start(&self) -> Gateway {
        Gateway::start(STILLGATE, &self.setup())
    }

    /// The address of streams, for TCP and for UDP.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub(crate) fn client(&self) -> BufferedSocket {
        BufferedSocket::new(std::net::TcpStream::connect(self.addr()).expect("connect to the gateway"))
    }

    pub(crate) fn metrics(&self) -> String {
        let exposition = scrape(self.metrics.addr(), "/metrics", ACCEPT_TEXT, false);
        String::from_utf8(exposition.body.clone()).expect("text")
    }

    /// Waits for a line of the metrics.
    #[track_caller]
    pub(crate) fn await_metric(&self, line: &str) {
        let since = Instant::now();
        loop {
            let metrics = self.metrics();
            if metrics.lines().any(|have| have == line) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{line}\nis not in\n{}", only_streams(&metrics));
        }
    }
}

fn only_streams(metrics: &str) -> String {
    metrics.lines().filter(|line| line.starts_with("stillgate_stream")).collect::<Vec<_>>().join("\n")
}

/// `nodes:` of an upstream, the first with the highest priority.
pub(crate) fn nodes_of(nodes: &[SocketAddr]) -> String {
    let node = |(tier, node): (usize, &SocketAddr)| {
        format!("{{host: {}, port: {}, weight: 1, priority: -{tier}}}", node.ip(), node.port())
    };
    format!("nodes: [{}]", nodes.iter().enumerate().map(node).collect::<Vec<_>>().join(", "))
}

/// The lines that the access log has now.
pub(crate) fn lines_so_far(gateway: &Gateway) -> Vec<Value> {
    let text = std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The lines of the access log, once there are as many.
#[track_caller]
pub(crate) fn lines(gateway: &Gateway, count: usize) -> Vec<Value> {
    let mut lines = Vec::new();
    eventually("the lines of the access log", || {
        lines = lines_so_far(gateway);
        lines.len() >= count
    });
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

pub(crate) fn wait(time: Duration) {
    let since = Instant::now();
    eventually("some time to pass", || since.elapsed() >= time);
}
