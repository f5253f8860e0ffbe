//! `stillgate demo`: a gateway and two small upstreams in one process, so that a first look needs nothing else.
//!
//! The configuration is text that goes through the loader like any file, so what is shown is what works.

use super::cli::EXIT_ERRORS;
use super::demo_upstream;
use super::run::exit_code;
use super::stdout::show;
use crate::configuration::source::ConfigSource;
use crate::control::start::{Up, serve};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Where the demo listens if nobody else does.
const PORT: u16 = 9080;

/// Where its admin API listens if nobody else does.
const ADMIN_PORT: u16 = 9180;

/// Where its metrics are if nobody else is there.
const METRICS_PORT: u16 = 9091;

/// Runs the command; returns the exit code.
pub(crate) fn run() -> u8 {
    let upstreams = demo_upstream::start("apple").and_then(|apple| Ok((apple, demo_upstream::start("pear")?)));
    let (apple, pear) = match upstreams {
        Ok(upstreams) => upstreams,
        Err(error) => {
            eprintln!("stillgate: cannot start the demo's upstreams: {error}");
            return EXIT_ERRORS;
        }
    };
    let own = [PORT, ADMIN_PORT, METRICS_PORT].map(free_or_any);
    let text = config(own, apple, pear);
    exit_code(serve(ConfigSource::Text(text), |up| show(invitation(up))))
}

/// A loopback address with this port, or with one of the system's choice where it is taken.
fn free_or_any(port: u16) -> SocketAddr {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

fn config([listen, admin, metrics]: [SocketAddr; 3], apple: SocketAddr, pear: SocketAddr) -> String {
    format!(
        r#"gateway:
  listeners:
    - address: "{listen}"
  admin:
    address: "{admin}"
  metrics:
    address: "{metrics}"
  timeouts:
    drain: 5s
  log:
    level: warn
upstreams:
  - id: both
    type: roundrobin
    nodes: {{"{apple}": 1, "{pear}": 1}}
  - id: apple
    type: roundrobin
    nodes: {{"{apple}": 1}}
  - id: pear
    type: roundrobin
    nodes: {{"{pear}": 1}}
routes:
  - id: everything
    uri: /*
    upstream_id: both
  - id: hello
    uri: /hello/:name
    upstream_id: apple
  - id: echo
    uri: /echo
    methods: [POST]
    upstream_id: apple
  - id: pear-only
    host: pear.example.com
    uri: /*
    upstream_id: pear
"#
    )
}

fn invitation(up: &Up<'_>) -> String {
    let mut text =
        String::from("A gateway with four routes and two upstreams (apple, pear) is up. In another terminal:\n\n");
    let mut offer = |line: String, what: &str| text.push_str(&format!("  {line:<58} # {what}\n"));
    if let Some(gateway) = up.listeners.first() {
        offer(format!("curl http://{gateway}/"), "apple and pear in turn");
        offer(format!("curl http://{gateway}/hello/world"), "apple, by a path with a parameter");
        offer(format!("curl -H 'Host: pear.example.com' http://{gateway}/"), "pear, by its host");
        offer(format!("curl -d 'some text' http://{gateway}/echo"), "apple, for POST only");
        offer(format!("curl http://{gateway}/slow"), "takes two seconds");
        offer(format!("curl -N http://{gateway}/stream"), "five lines, one after the other");
    }
    if let Some(admin) = up.admin {
        offer(format!("curl http://{admin}/v1/status"), "how the gateway is");
    }
    if let Some(metrics) = up.metrics {
        offer(format!("curl http://{metrics}/metrics"), "what it has measured");
    }
    text.push_str("\nCtrl-C ends it.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid_without_a_warning() {
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let text = config([local(0), local(9180), local(9091)], local(1), local(2));
        let loaded =
            ConfigSource::Text(text.clone()).parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(loaded.warnings, []);
        assert_eq!(loaded.config.routes.len(), 4);
    }
}
