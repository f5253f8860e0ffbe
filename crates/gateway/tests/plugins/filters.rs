//! `_meta.filter` can use every variable, and `explain` knows the result.
//!
//! The list of variables comes from the crate that parses them: a new one fails here until it is covered.

use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsClient};
use crate::shared::folder::Folder;
use crate::shared::reflect::{ask, reflecting, route, setup};
use std::io::{Read as _, Write as _};
use stillgate_route::Variable;
use stillgate_testkit::{Gateway, Head, Setup, Upstream, run_tool};

/// Values of the variables for the request below. `PATH` is replaced by the path of the one route that is requested.
const VARIABLES: &[(&str, &str)] = &[
    ("uri", "/f/PATH/seven"),
    ("document_uri", "/f/PATH/seven"),
    ("request_uri", "/f/PATH/seven?x=1&empty=&X=2"),
    ("args", "x=1&empty=&X=2"),
    ("query_string", "x=1&empty=&X=2"),
    ("is_args", "?"),
    ("host", "h.example"),
    ("request_method", "GET"),
    ("scheme", "SCHEME"),
    ("server_protocol", "HTTP/1.1"),
    ("protocol", "HTTP/1.1"),
    ("remote_addr", "127.0.0.1"),
    ("remote_port", "CLIENT_PORT"),
    ("realip_remote_addr", "127.0.0.1"),
    ("server_addr", "127.0.0.1"),
    ("server_port", "SERVER_PORT"),
    ("arg_x", "1"),
    ("arg_X", "2"),
    ("http_x_test", "one, two"),
    ("http_user_agent", "suite"),
    ("content_type", "text/x"),
    ("content_length", "0"),
    ("cookie_a", "b"),
    ("uri_param_id", "seven"),
    ("method", "GET"),
    ("remote_user", "user"),
    ("route_id", "r-f-PATH--id"),
    ("route_name", "the route"),
    ("service_name", "the service"),
    ("service_id", "s"),
    ("consumer_name", "jack"),
    ("consumer_group_id", "friends"),
    ("status", "200"),
];

/// Further values over TLS; absent without it.
const OF_TLS: &[(&str, &str)] = &[
    ("ssl_server_name", "h.example"),
    ("ssl_protocol", "TLSv1.3"),
    ("ssl_cipher", "CIPHER"),
    ("ssl_client_verify", "SUCCESS"),
    ("ssl_client_s_dn", "O=Example\\, Inc.,CN=alice"),
    ("ssl_client_serial", "SERIAL"),
    ("ssl_client_fingerprint", "FINGERPRINT"),
];

const LINES: &[&str] = &[
    "apikey: jacks",
    "X-Test: one",
    "X-Test: two",
    "User-Agent: suite",
    "Content-Type: text/x",
    "Content-Length: 0",
    "Cookie: z=1; a=b; c=d",
    "Authorization: Basic dXNlcjpwYXNz",
];

const WHO: &str = "services: [{id: s, name: the service, upstream_id: node}]\nconsumer_groups: [{id: friends, plugins: {}}]\n\
                   consumers: [{username: jack, group_id: friends, plugins: {key-auth: {key: jacks}}}]\n";

#[test]
fn every_variable_is_covered() {
    let covered = |name: &str| {
        let prefix = name.strip_suffix("NAME");
        let is = |known: &str| prefix.map_or(known == name, |prefix| known.starts_with(prefix));
        VARIABLES.iter().chain(OF_TLS).any(|(known, _)| is(known))
    };
    let missing: Vec<&str> = Variable::names().filter(|name| !covered(name)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "add them to the tables above");
}

/// The plan of a route: its path, the condition, and whether that holds.
type Plan = Vec<(String, String, bool)>;

/// Each variable is seen by two routes: one whose filter wants what it is, one that wants something else. What is `absent`
/// holds for neither: not equal to the value, nor there.
fn planned(present: &[(&str, &str)], absent: &[(&str, &str)], known: &[(&str, String)]) -> (String, Plan) {
    let (mut routes, mut plan) = ("routes:\n".to_owned(), Vec::new());
    let all = present.iter().map(|variable| (variable, true)).chain(absent.iter().map(|variable| (variable, false)));
    for (number, ((name, value), is_there)) in all.enumerate() {
        let value = known.iter().fold((*value).to_owned(), |value, (from, to)| value.replace(from, to));
        for (kind, operator) in ["==", "~="].into_iter().enumerate() {
            let place = format!("{number}-{kind}");
            let value = value.replace("PATH", &place).replace('\\', "\\\\");
            let condition = format!(r#"["{name}", "{operator}", "{value}"]"#);
            let plugins = format!(
                r#"{{"key-auth": {{}}, "response-rewrite": {{"headers": {{"set": {{"X-Runs": "1"}}}}, "_meta": {{"filter": [{condition}]}}}}}}"#
            );
            let route = route(&format!("/f/{place}/:id"), &plugins);
            routes.push_str(&route.replace(r#""upstream_id": "node""#, r#""service_id": "s", "name": "the route""#));
            plan.push((place, condition, (kind == 0) == is_there));
        }
    }
    (format!("{WHO}{routes}"), plan)
}

/// Sends a request for each; `ask` returns a response's head.
#[track_caller]
fn assert_planned(plan: Plan, mut ask: impl FnMut(&str) -> Head) {
    let mut wrong = Vec::new();
    for (place, condition, expected) in plan {
        let head = ask(&format!("/f/{place}/seven?x=1&empty=&X=2"));
        let runs = head.get("x-runs").is_some();
        if head.status() != 200 || runs != expected {
            wrong.push(format!("{condition}: {}, runs {runs}", head.status()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A gateway whose ports are known before its filters are written.
fn started(node: &Upstream, change: impl Fn(Setup) -> Setup) -> Gateway {
    Gateway::start(STILLGATE, &change(setup(node.addr(), WHO)))
}

#[test]
fn a_filter_can_ask_for_every_variable() {
    let node = reflecting();
    let mut gateway = started(&node, |setup| setup);
    let mut client = gateway.client();
    let client_port = client.stream().local_addr().expect("connected").port().to_string();
    let server_port = gateway.addr().port().to_string();
    let known = [("SCHEME", "http".to_owned()), ("CLIENT_PORT", client_port), ("SERVER_PORT", server_port)];
    let (resources, plan) = planned(VARIABLES, OF_TLS, &known);
    // Opened before the configuration changes, and served by the new one.
    gateway.reload(&setup(node.addr(), &resources));
    assert_planned(plan, |target| ask(&mut client, &format!("GET {target}"), LINES).head);
    gateway.assert_healthy();
}

#[test]
fn a_filter_can_ask_for_every_variable_of_tls() {
    let (roots, clients) = (Authority::new(), Authority::new());
    roots.issue("h", &["h.example"]);
    clients.issue("alice", &["alice"]);
    let ssls = format!(
        "ssls: [{{id: h, snis: [h.example], cert: \"{}\", key: \"{}\", client: {{ca: \"{}\"}}}}]\n",
        roots.path("h.pem"),
        roots.path("h.key"),
        clients.path("ca.pem")
    );
    let change =
        |resources: &str, node: &Upstream| setup(node.addr(), &format!("{ssls}{resources}")).listener("tls: true");
    let node = reflecting();
    let mut gateway = Gateway::start(STILLGATE, &change(WHO, &node));
    let mut client = roots.connect_as(gateway.addr(), "h.example", &["http/1.1"], (&clients, "alice"));
    let asked = |option: &str| {
        let output =
            run_tool("openssl", "openssl", &["x509", "-in", &clients.path("alice.pem"), "-noout", "-sha1", option]);
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().split_once('=').unwrap_or_else(|| panic!("{text}")).1.replace(':', "")
    };
    // Its handshake is done by then.
    assert_eq!(tls_head(&mut client, "/").status(), 404);
    let suite = client.conn.negotiated_cipher_suite().expect("agreed on").suite();
    let known = [
        ("SCHEME", "https".to_owned()),
        ("CLIENT_PORT", client.sock.local_addr().expect("connected").port().to_string()),
        ("SERVER_PORT", gateway.addr().port().to_string()),
        ("CIPHER", format!("{suite:?}").replacen("TLS13_", "TLS_", 1)),
        ("SERIAL", asked("-serial")),
        ("FINGERPRINT", asked("-fingerprint").to_ascii_lowercase()),
    ];
    let (resources, plan) = planned(&[VARIABLES, OF_TLS].concat(), &[], &known);
    gateway.reload(&change(&resources, &node));
    assert_planned(plan, |target| tls_head(&mut client, target));
    gateway.assert_healthy();
}

/// The head of the response; its body is read, too.
fn tls_head(client: &mut TlsClient, target: &str) -> Head {
    let lines: String = LINES.iter().map(|line| format!("{line}\r\n")).collect();
    write!(client, "GET {target} HTTP/1.1\r\nHost: h.example\r\n{lines}\r\n").expect("a request");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let head = Head::parse(&head).expect("a head");
    let length = head.get("content-length").expect("a length").parse().expect("a number");
    client.read_exact(&mut vec![0; length]).expect("the body");
    head
}

/// The answer of `explain` about a route whose plugin has this filter.
fn explained(condition: &str, url: &str) -> String {
    let yaml = format!(
        "gateway: {{listeners: [{{address: \"127.0.0.1:0\"}}]}}\nupstreams: [{{id: u, nodes: {{\"127.0.0.1:1\": 1}}}}]\n\
         routes:\n  - {{id: r, uri: \"/orders/:id\", upstream_id: u, plugins: {{echo: {{body: b, _meta: {{filter: [{condition}]}}}}}}}}\n\
         global_rules: [{{id: g, plugins: {{cors: {{_meta: {{filter: [{condition}]}}}}}}}}]\n"
    );
    let folder = Folder::with(&[("stillgate.yaml", &yaml)]);
    let output = folder.run(&["explain", "stillgate.yaml", "--request", &format!("GET {url}")]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn explain_knows_what_a_filter_comes_to() {
    let check = |condition: &str, url: &str, expected: &str| {
        let said = explained(condition, url);
        let lines: Vec<&str> =
            said.lines().filter(|line| line.starts_with("  echo") || line.starts_with("  cors")).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(expected)), "{condition}, {url}: {said}");
    };
    let skipped = "skipped, since _meta.filter does not hold";
    check(r#"["uri_param_id", "==", "7"]"#, "http://h/orders/7", "filter)");
    check(r#"["uri_param_id", "==", "8"]"#, "http://h/orders/7", &format!("{skipped}: uri_param_id is \"7\""));
    check(r#"["uri_param_no", "==", "8"]"#, "http://h/orders/7", &format!("{skipped}: uri_param_no is absent"));
    // Without a route nothing is captured.
    check(r#"["uri_param_id", "==", "7"]"#, "http://h/else", &format!("{skipped}: uri_param_id is absent"));
    check(
        r#"["ssl_client_verify", "==", "NONE"]"#,
        "http://h/orders/7",
        &format!("{skipped}: ssl_client_verify is absent"),
    );
    let open = "not known whether _meta.filter holds: ssl_client_verify";
    check(r#"["ssl_client_verify", "==", "NONE"]"#, "https://h/orders/7", open);
}
