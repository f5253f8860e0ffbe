//! Digests that show whether a route is the same in two processes.
//!
//! What a reload decides by comparing two routes in memory (see `plan::lease`) is decided here by digests. The digest covers JSON
//! of everything that a route says, by the names of its fields, so that the order in which a compiler or a later version has them
//! in memory makes no difference. A version in which routes say more may see a route as changed that is not, so a process with the
//! very same file does not compare. Rejected: the text of `Debug`, which leaves out what must not be printed, such as a secret.

use crate::plan::Plan;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use stillgate_config::{Route, StreamRoute, Target, Upstream};
use stillgate_plugin::ChainEntry;
use stillgate_route::{RouteMatch, RouteSpec, Unread, UriRoute};

/// A route that may have tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteDigest {
    /// `routes/` or `stream_routes/`, and its id.
    pub key: String,
    /// Digest of everything that the route says.
    pub digest: u64,
}

/// Key prefix of HTTP routes between processes, and that of stream routes.
pub(crate) const ROUTES: &str = "routes/";
pub(crate) const STREAM_ROUTES: &str = "stream_routes/";

/// Hexadecimal digits of a SHA-256 that form the number.
const DIGITS: usize = 16;

/// The digest of a value.
pub fn digest(thing: &impl Serialize) -> u64 {
    let mut json = serde_json::to_value(thing).expect("a configuration is text and numbers, whose keys are text");
    json.sort_all_objects();
    let hex = stillgate_config::digest(json.to_string().as_bytes());
    u64::from_str_radix(&hex[..DIGITS], 16).expect("a digest has 64 hexadecimal digits")
}

impl Plan {
    /// The routes that may have tunnels, or devices.
    pub fn tunnel_routes(&self) -> Vec<RouteDigest> {
        let routes = self.routes.iter().filter(|route| route.route.upgrades || route.route.devices().is_some());
        let routes = routes.map(|route| {
            let Route { spec, target, service_id, timeout, upgrades, on_change, .. } = &*route.route;
            let key = format!("{ROUTES}{}", spec.id);
            let upstream = named(target);
            // As text: JSON numbers have 64 bits here.
            let identity = |entry: &ChainEntry| format!("{:032x}", entry.identity.0);
            let plugins: Vec<String> = route.route.own_plugins().map(identity).collect();
            let said = (Spec::of(spec), service_id, timeout, upgrades, on_change, upstream);
            // For a route without plugins, the digest is what versions before plugins made of it.
            let digest = if plugins.is_empty() { digest(&said) } else { digest(&(said, plugins)) };
            RouteDigest { key, digest }
        });
        let streams = self.stream_routes.iter().map(|route| {
            let StreamRoute {
                id,
                sni,
                // A refusal has no connections that it could keep.
                is_sni_unread: _,
                remote_addr,
                server_addr,
                server_port,
                target,
                service_id,
                timeout,
                on_change,
            } = &*route.route;
            let key = format!("{STREAM_ROUTES}{id}");
            let upstream = named(target);
            let (sni, addresses) = (texts(sni), (texts(remote_addr), texts(server_addr)));
            let digest = digest(&(sni, addresses, server_port, service_id, timeout, on_change, upstream));
            RouteDigest { key, digest }
        });
        routes.chain(streams).collect()
    }
}

/// Which requests a route takes, as it is serialised.
#[derive(Serialize)]
struct Spec<'a> {
    id: &'a str,
    priority: i64,
    takes: RouteIdentity,
}

#[derive(Serialize)]
enum RouteIdentity {
    Uri {
        hosts: Vec<String>,
        paths: Vec<String>,
        methods: String,
        remote_addrs: Vec<String>,
        vars: Vec<String>,
        /// Left out if there is none, as in earlier versions.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        function: Vec<String>,
        /// Likewise.
        #[serde(skip_serializing_if = "Option::is_none")]
        unread: Option<(bool, bool)>,
    },
    Expression(String),
}

impl Spec<'_> {
    fn of(spec: &RouteSpec) -> Spec<'_> {
        let RouteSpec { id, priority, takes } = spec;
        let takes = match takes {
            RouteMatch::Uri(UriRoute { hosts, paths, methods, remote_addrs, vars, function, unread }) => {
                RouteIdentity::Uri {
                    hosts: texts(hosts),
                    paths: texts(paths),
                    methods: methods.to_string(),
                    remote_addrs: texts(remote_addrs),
                    vars: texts(vars),
                    function: texts(function),
                    unread: (*unread != Unread::default()).then_some((unread.host, unread.path)),
                }
            }
            RouteMatch::Expression(expression) => RouteIdentity::Expression(expression.text().to_owned()),
        };
        Spec { id, priority: *priority, takes }
    }
}

/// The key of its upstream, or the upstream itself if it is defined within the route.
fn named(target: &Target) -> (Option<&str>, Option<&Upstream>) {
    match target {
        Target::Own(upstream) => (target.key(), Some(upstream)),
        Target::Shared(_) | Target::Nowhere | Target::Unavailable(_) => (target.key(), None),
    }
}

fn texts<'a, T: Display + 'a>(all: impl IntoIterator<Item = &'a T>) -> Vec<String> {
    all.into_iter().map(T::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::collections::HashMap;
    use std::fmt::Write;

    fn digests(text: &str) -> Vec<RouteDigest> {
        let config = stillgate_config::load(text.as_bytes(), &|_| None).unwrap().config;
        Plan::build(1, &config, &HashMap::new(), None, None, None).unwrap().tunnel_routes()
    }

    /// A route and a stream route, with upstreams of their own, of which `keys` are further keys.
    fn text(route: &str, keys: &str, stream: &str) -> String {
        format!(
            "routes:\n- {{id: r, uri: /a, enable_websocket: true, {route} upstream: {{nodes: {{\"10.0.0.1:81\": 1}}, {keys}}}}}\n\
             stream_routes:\n- {{id: s, {stream} upstream: {{scheme: tcp, nodes: {{\"10.0.0.1:82\": 1}}}}}}\n"
        )
    }

    #[test]
    fn every_change_of_what_a_route_says_makes_another_digest() {
        let client = |cert: &str, key: &str| {
            let pem =
                |label: &str, body: &str| format!("\"-----BEGIN {label}-----\\n{body}\\n-----END {label}-----\\n\"");
            let (cert, key) = (pem("CERTIFICATE", cert), pem("PRIVATE KEY", key));
            format!("scheme: https, tls: {{client_cert: {cert}, client_key: {key}}}")
        };
        // The client certificates and keys have equal lengths but different contents.
        let routes = [
            ("", ""),
            ("priority: 7,", ""),
            ("hosts: [a.example],", ""),
            ("hosts: [b.example],", ""),
            ("methods: [GET],", ""),
            ("remote_addrs: [10.0.0.0/8],", ""),
            ("vars: [[arg_a, \"==\", b]],", ""),
            ("vars: [[arg_a, \"==\", c]],", ""),
            ("on_change: drain,", ""),
            ("timeout: {connect: 1, send: 2, read: 3},", ""),
            ("", "type: chash, key: uri"),
            ("", "type: chash, key: host"),
            ("", "checks: {active: {http_path: /a}}"),
            ("", "checks: {active: {http_path: /b}}"),
            ("", "pass_host: rewrite, upstream_host: a"),
            ("", "keepalive_pool: {size: 7}"),
            ("", "retries: 7"),
            ("", "scheme: https"),
            ("", &client("MDEy", "MDEy")),
            ("", &client("MDEz", "MDEy")),
            ("", &client("MDEy", "MDEz")),
        ];
        let found: Vec<u64> = routes.iter().map(|(route, keys)| digests(&text(route, keys, ""))[0].digest).collect();
        for (at, one) in found.iter().enumerate() {
            assert_eq!(*one, digests(&text(routes[at].0, routes[at].1, ""))[0].digest, "{:?}", routes[at]);
            let same = found[..at].iter().position(|other| other == one);
            assert_eq!(same, None, "{:?}", routes[at]);
        }
        let streams =
            ["", "sni: a.example,", "server_port: 9,", "remote_addr: 10.0.0.0/8,", "server_addr: 10.0.0.0/8,"];
        let found: Vec<u64> = streams.iter().map(|stream| digests(&text("", "", stream))[1].digest).collect();
        assert!((1..found.len()).all(|at| !found[..at].contains(&found[at])), "{found:?}");
    }

    /// Another version should compute the same: if this fails, tunnels of all routes are treated as those of changed ones at the
    /// next upgrade.
    #[test]
    fn digests_are_the_same_in_every_build() {
        let shared = "upstreams: [{id: u, nodes: {\"a.example:80\": 2}}]\n";
        let expression = "- {id: e, expression: 'http.path == \"/x\"', enable_websocket: true, upstream_id: u}\n";
        let text = text("vars: [[arg_a, \"==\", b]],", "checks: {active: {}, passive: {}}", "sni: a.example,");
        let text = text.replace("stream_routes:", &format!("{expression}stream_routes:"));
        let lines = digests(&format!("{shared}{text}")).into_iter().fold(String::new(), |mut lines, route| {
            writeln!(lines, "{} {:016x}", route.key, route.digest).unwrap();
            lines
        });
        expect![[r#"
            routes/r eb0e844d7a626705
            routes/e f0512729011ba934
            stream_routes/s 05a984f5964c5b9b
        "#]]
        .assert_eq(&lines);
    }
}
