//! `limit-count`: admitted and refused requests, and their headers, with a real table of counters and a clock that the
//! test moves.

use expect_test::{Expect, expect};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use stillgate_limits::Limits;
use stillgate_plugin_api::metadata::{MetadataItem, MetadataTable};
use stillgate_plugin_api::{
    BodyChanges, Chain, Consumers, Facts, Flow, Identity, NoSecrets, NoUpstreams, Phase, PluginLevel, PluginOrigin,
    Request, RequestState, Worker,
};
use stillgate_plugins::TABLE;
use stillgate_route::path::{normalise, target_path};
use stillgate_schema::text::tree;
use stillgate_schema::{Node, Path, Sink};
use stillgate_wire::{Edits, Fields, HeadLimits, HeadProgress, RequestEdits, RequestHead};

/// The beginning of a minute.
const START_MS: u64 = 1_795_219_200_000;

/// A worker with one plugin.
struct Gateway {
    chain: Chain,
    metadata: MetadataTable,
    worker: Worker,
}

impl Gateway {
    /// Creates it with the configuration of the route `r`, and a table of its own.
    fn new(yaml: &str) -> Gateway {
        let table = Limits::create(1 << 16).expect("memory");
        Gateway::with(yaml, "r", &Arc::new(OnceLock::from(Arc::new(table))))
    }

    fn with(yaml: &str, route: &str, limits: &Arc<OnceLock<Arc<Limits>>>) -> Gateway {
        let worker = Worker::new(limits.clone());
        worker.set_now_ms(START_MS);
        let chain = compile(yaml, route).expect("a good configuration");
        Gateway { chain, metadata: MetadataTable::default(), worker }
    }

    fn with_metadata(mut self, yaml: &str) -> Gateway {
        let mut sink = Sink::default();
        let part = TABLE.find("limit-count").expect("a plugin").1.metadata.expect("it has metadata");
        let value = (part.read)(&node(yaml, &mut sink), &Path::Root, &mut sink).expect("good metadata");
        let (plugin, identity, written) = ("limit-count", Identity::of(&[]), Arc::default());
        self.metadata.insert(MetadataItem { plugin, identity, value, written });
        self
    }

    /// Sends a request; returns the status, then header fields, then the body of an answer.
    fn get(&self, client: Ipv4Addr, fields: &str) -> String {
        let head = format!("GET /a HTTP/1.1\r\nHost: h\r\n{}\r\n", fields.replace('\n', "\r\n"));
        let mut parsed = RequestHead::default();
        let progress = parsed.advance(head.as_bytes(), &HeadLimits::default());
        assert_eq!(progress, Ok(HeadProgress::Complete(head.len())), "{head}");
        let mut scratch = Vec::new();
        let path = normalise(target_path(parsed.path_and_query.of(head.as_bytes())).0, &mut scratch).expect("a path");
        let peer = SocketAddr::from((client, 40000));
        let facts = Facts {
            head: head.as_bytes(),
            request: &parsed,
            host: b"h",
            path: Some(path),
            client: client.into(),
            client_port: 40000,
            peer,
            local: peer,
            protocol: "HTTP/1.1",
            scheme: "http",
            trusted_proxies: &[],
            https_port: None,
            tls: None,
            route: None,
        };
        let mut response = Edits::default();
        let flow = self.access(facts, &mut response);
        show(&flow, &response)
    }

    fn access(&self, facts: Facts<'_>, response: &mut Edits) -> Flow {
        let (mut edits, mut body, mut consumer) = (RequestEdits::default(), BodyChanges::default(), None);
        let mut request = Request {
            facts,
            edits: &mut edits,
            body: &mut body,
            received: None,
            settled: &mut RequestState::default(),
            response,
            consumer: &mut consumer,
            consumers: &Consumers::default(),
            id: &stillgate_plugin_api::record::RequestId::default(),
            worker: &self.worker,
            metadata: &self.metadata,
        };
        let (_, entry) = self.chain.of(Phase::Access).next().expect("one plugin");
        entry.plugin.access(&mut request)
    }

    fn wait(&self, ms: u64) {
        self.worker.set_now_ms(self.worker.now_ms() + ms);
    }

    /// The statuses of so many requests of one client.
    fn statuses(&self, client: Ipv4Addr, fields: &str, requests: usize) -> Vec<u16> {
        (0..requests).map(|_| status(&self.get(client, fields))).collect()
    }
}

fn node(yaml: &str, sink: &mut Sink) -> Node {
    tree::parse(0, yaml, Some(&|_| None), sink).expect("YAML").root
}

fn compile(yaml: &str, route: &str) -> Result<Chain, String> {
    let mut sink = Sink::default();
    let node = node(&format!("limit-count: {yaml}"), &mut sink);
    let origin = PluginOrigin { level: PluginLevel::Route, id: route.into() };
    let entries = TABLE.compile(&node, &origin, (&NoSecrets, &NoUpstreams), &Path::Root, &mut sink);
    match sink.has_errors() {
        true => Err(format!("{}\n", sink.into_errors())),
        false => Ok(Chain::merge([&entries[..]]).expect("a short chain")),
    }
}

fn show(flow: &Flow, response: &Edits) -> String {
    let (status, body) = match flow {
        Flow::Continue => (200, &b""[..]),
        Flow::Answer(answer) => (answer.status, answer.body.bytes()),
        waits => panic!("{waits:?}"),
    };
    let mut out = format!("{status}\n");
    response.each(&Fields::default(), &[], &mut |name, value| {
        writeln!(out, "{}: {}", name.escape_ascii(), value.escape_ascii()).expect("room");
    });
    let body = String::from_utf8_lossy(body).replace('\r', "");
    out + &body
}

fn status(shown: &str) -> u16 {
    shown.split('\n').next().and_then(|line| line.parse().ok()).expect("a status")
}

const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Results of three requests, a second apart.
fn check(yaml: &str, fields: &str, expected: Expect) {
    let gateway = Gateway::new(yaml);
    let mut out = String::new();
    for _ in 0..3 {
        out += &gateway.get(A, fields);
        gateway.wait(1_000);
    }
    expected.assert_eq(&out);
}

fn refused(yaml: &str, expected: Expect) {
    expected.assert_eq(&compile(yaml, "r").err().unwrap_or_else(|| "accepted\n".to_owned()));
}

#[test]
fn a_fixed_window_admits_exactly_its_count() {
    check(
        "{count: 2, time_window: 60}",
        "",
        expect![[r#"
        200
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 1
        X-RateLimit-Reset: 60
        200
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 59
        503
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 58
        <html>
        <head><title>503 Service Temporarily Unavailable</title></head>
        <body>
        <center><h1>503 Service Temporarily Unavailable</h1></center>
        <hr><center>stillgate</center>
        </body>
        </html>
    "#]],
    );
    let gateway = Gateway::new("{count: 2, time_window: 60}");
    assert_eq!(gateway.statuses(A, "", 4), [200, 200, 503, 503]);
    assert_eq!(gateway.statuses(B, "", 3), [200, 200, 503], "another client");
    gateway.wait(59_999);
    assert_eq!(gateway.statuses(A, "", 1), [503]);
    gateway.wait(2);
    assert_eq!(gateway.statuses(A, "", 3), [200, 200, 503]);
}

#[test]
fn a_sliding_window_counts_the_one_before_in_part() {
    check(
        "{count: 2, time_window: 60, window_type: sliding}",
        "",
        expect![[r#"
        200
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 1
        X-RateLimit-Reset: 60
        200
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 59
        503
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 58
        <html>
        <head><title>503 Service Temporarily Unavailable</title></head>
        <body>
        <center><h1>503 Service Temporarily Unavailable</h1></center>
        <hr><center>stillgate</center>
        </body>
        </html>
    "#]],
    );
    let gateway = Gateway::new("{count: 4, time_window: 60, window_type: sliding}");
    gateway.wait(59_000);
    assert_eq!(gateway.statuses(A, "", 5), [200, 200, 200, 200, 503]);
    gateway.wait(1_000);
    assert_eq!(gateway.statuses(A, "", 1), [503], "all of the window before counts");
    gateway.wait(15_000);
    assert_eq!(gateway.statuses(A, "", 2), [200, 503], "three quarters of it do");
    gateway.wait(30_000);
    assert_eq!(gateway.statuses(A, "", 3), [200, 200, 503], "a quarter does");
}

#[test]
fn what_a_rejection_says() {
    check(
        "{count: 1, time_window: 60, rejected_code: 429, rejected_msg: 'slow \"down\" /'}",
        "",
        expect![[r#"
        200
        X-RateLimit-Limit: 1
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 60
        429
        X-RateLimit-Limit: 1
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 59
        {"error_msg":"slow \"down\" /"}
        429
        X-RateLimit-Limit: 1
        X-RateLimit-Remaining: 0
        X-RateLimit-Reset: 58
        {"error_msg":"slow \"down\" /"}
    "#]],
    );
    check(
        "{count: 1, time_window: 60, rejected_code: 418, show_limit_quota_header: false}",
        "",
        expect![[r#"
        200
        418
        418
    "#]],
    );
}

#[test]
fn keys_of_each_type() {
    let admitted = |keys: &str, fields: &[(Ipv4Addr, &str)]| {
        let gateway = Gateway::new(&format!("{{count: 1, time_window: 60, {keys}}}"));
        fields.iter().map(|(client, fields)| gateway.statuses(*client, fields, 1)[0] == 200).collect::<Vec<_>>()
    };
    let by_user = "key: http_x_user";
    assert_eq!(admitted(by_user, &[(A, "x-user: u\n"), (B, "x-user: u\n"), (B, "x-user: v\n")]), [true, false, true]);
    assert_eq!(admitted(by_user, &[(A, ""), (A, ""), (B, "")]), [true, false, true], "without: the client's address");
    assert_eq!(admitted(by_user, &[(A, "x-user:\n"), (B, "x-user:\n")]), [true, false], "an empty value is a value");
    let of_two = "key_type: var_combination, key: $http_a $http_b";
    assert_eq!(admitted(of_two, &[(A, "a: 1\n"), (B, "a: 1\n"), (A, "b: 1\n")]), [true, false, true]);
    assert_eq!(admitted(of_two, &[(A, ""), (A, ""), (B, "")]), [true, false, true], "none of both: the address");
    let plain = "key_type: var_combination, key: no variables";
    assert_eq!(admitted(plain, &[(A, ""), (A, ""), (B, "")]), [true, false, true]);
    let default = "key_type: var_combination, key: '$${http_a ?? none}'";
    assert_eq!(admitted(default, &[(A, ""), (B, ""), (A, "a: 1\n")]), [true, false, true]);
    assert_eq!(admitted("key_type: constant, key: $http_a", &[(A, "a: 1\n"), (B, "a: 2\n")]), [true, false]);
}

const RULES: &str = "{rejected_msg: rejected, rules: [
        {key: $http_user, count: $http_jack_count, time_window: 60, header_prefix: jack},
        {key: '$${http_project}', count: '$${http_apisix_count ?? 1}', time_window: 30}]}";

#[test]
fn rules_hold_together_and_have_headers_of_their_own() {
    check(
        RULES,
        "user: jack\njack-count: 2\n",
        expect![[r#"
        200
        X-jack-RateLimit-Limit: 2
        X-jack-RateLimit-Remaining: 1
        X-jack-RateLimit-Reset: 60
        200
        X-jack-RateLimit-Limit: 2
        X-jack-RateLimit-Remaining: 0
        X-jack-RateLimit-Reset: 59
        503
        X-jack-RateLimit-Limit: 2
        X-jack-RateLimit-Remaining: 0
        X-jack-RateLimit-Reset: 58
        {"error_msg":"rejected"}
    "#]],
    );
    check(
        RULES,
        "user: jack\njack-count: 2\nproject: apisix\n",
        expect![[r#"
        200
        X-jack-RateLimit-Limit: 2
        X-jack-RateLimit-Remaining: 1
        X-jack-RateLimit-Reset: 60
        X-2-RateLimit-Limit: 1
        X-2-RateLimit-Remaining: 0
        X-2-RateLimit-Reset: 30
        503
        X-jack-RateLimit-Limit: 2
        X-jack-RateLimit-Remaining: 0
        X-jack-RateLimit-Reset: 59
        X-2-RateLimit-Limit: 1
        X-2-RateLimit-Remaining: 0
        X-2-RateLimit-Reset: 29
        {"error_msg":"rejected"}
        503
        X-jack-RateLimit-Limit: 2
        X-jack-RateLimit-Remaining: 0
        X-jack-RateLimit-Reset: 58
        {"error_msg":"rejected"}
    "#]],
    );
}

#[test]
fn a_rule_applies_to_requests_that_have_its_key() {
    check(
        RULES,
        "",
        expect![[r#"
        500
        <html>
        <head><title>500 Internal Server Error</title></head>
        <body>
        <center><h1>500 Internal Server Error</h1></center>
        <hr><center>stillgate</center>
        </body>
        </html>
        500
        <html>
        <head><title>500 Internal Server Error</title></head>
        <body>
        <center><h1>500 Internal Server Error</h1></center>
        <hr><center>stillgate</center>
        </body>
        </html>
        500
        <html>
        <head><title>500 Internal Server Error</title></head>
        <body>
        <center><h1>500 Internal Server Error</h1></center>
        <hr><center>stillgate</center>
        </body>
        </html>
    "#]],
    );
    let gateway = Gateway::new(RULES);
    // A rule with an invalid limit refuses the request before the other one counts.
    assert_eq!(gateway.statuses(A, "user: u\njack-count: 0\nproject: apisix\n", 2), [500, 500]);
    assert_eq!(gateway.statuses(A, "project: apisix\n", 2), [200, 503]);
}

#[test]
fn a_request_that_cannot_be_counted_is_answered_or_let_through() {
    let late = "count: $http_n, time_window: 60";
    for (fields, strict) in [("n: 1\n", 200), ("n: 0\n", 500), ("n: 1.5\n", 500), ("", 500), ("n: 1e1\n", 200)] {
        assert_eq!(Gateway::new(&format!("{{{late}}}")).statuses(A, fields, 1), [strict], "{fields}");
        assert_eq!(Gateway::new(&format!("{{{late}, allow_degradation: true}}")).statuses(A, fields, 1), [200]);
    }
    let without_table = |yaml: &str| Gateway::with(yaml, "r", &Arc::default()).get(A, "");
    expect![[r#"
        500
        {"error_msg":"failed to limit count"}
    "#]]
    .assert_eq(&without_table("{count: 1, time_window: 60}"));
    assert_eq!(status(&without_table("{count: 1, time_window: 60, allow_degradation: true}")), 200);
}

#[test]
fn requests_with_different_counts_share_a_counter() {
    let gateway = Gateway::new("{count: '$${http_n ?? 2}', time_window: '$${http_tw ?? 5}'}");
    assert_eq!(gateway.statuses(A, "", 3), [200, 200, 503]);
    assert_eq!(gateway.statuses(A, "n: 3\n", 2), [200, 503]);
    assert_eq!(gateway.statuses(A, "tw: 1\n", 1), [200], "another window");
    assert_eq!(gateway.statuses(A, "", 1), [503], "which leaves the first as it was");
    gateway.wait(5_001);
    assert_eq!(gateway.statuses(A, "n: 1\n", 2), [200, 503]);
}

#[test]
fn metadata_names_headers() {
    let metadata = "{limit_header: X-Quota-RateLimit-Limit, remaining_header: X-Left}";
    let get = |yaml: &str| Gateway::new(yaml).with_metadata(metadata).get(A, "");
    expect![[r#"
        200
        X-Quota-RateLimit-Limit: 2
        X-Left: 1
        X-RateLimit-Reset: 60
    "#]]
    .assert_eq(&get("{count: 2, time_window: 60}"));
    expect![[r#"
        200
        X-Quota-a-RateLimit-Limit: 2
        X-Left: 1
        X-a-RateLimit-Reset: 60
    "#]]
    .assert_eq(&get("{rules: [{key: $remote_addr, count: 2, time_window: 60, header_prefix: a}]}"));
}

#[test]
fn counters_belong_to_a_resource_and_its_configuration() {
    let table = Limits::create(1 << 16).expect("memory");
    let limits = Arc::new(OnceLock::from(Arc::new(table)));
    let of = |yaml: &str, route: &str| Gateway::with(yaml, route, &limits);
    let yaml = "{count: 1, time_window: 60}";
    assert_eq!(of(yaml, "r").statuses(A, "", 2), [200, 503]);
    assert_eq!(of("{time_window: 60, count: 1}", "r").statuses(A, "", 1), [503], "compiled again, in another order");
    assert_eq!(of(yaml, "other").statuses(A, "", 2), [200, 503]);
    assert_eq!(of("{count: 2, time_window: 60}", "r").statuses(A, "", 3), [200, 200, 503], "changed");
    let grouped = "{count: 2, time_window: 60, group: g}";
    assert_eq!(of(grouped, "r").statuses(A, "", 1), [200]);
    assert_eq!(of(grouped, "other").statuses(A, "", 2), [200, 503], "shared");
    assert_eq!(of("{count: 3, time_window: 60, group: g}", "r").statuses(A, "", 1), [200], "a changed group");
}

#[test]
fn what_must_be_the_same_in_a_group() {
    let identity = |yaml: &str| {
        let chain = compile(yaml, "r").expect("good");
        let (group, identity) = chain.entries()[0].plugin.shared().expect("a group");
        assert_eq!(group, "g");
        identity
    };
    let first = identity("{count: 1, time_window: 60, key: uri, group: g}");
    assert_eq!(first, identity("{group: g, key: uri, time_window: 60, count: '1', rejected_code: 503}"));
    assert_ne!(first, identity("{count: 1, time_window: 60, key: uri, group: g, rejected_code: 429}"));
    assert_ne!(first, identity("{count: 1, time_window: 60, key: host, group: g}"));
}

#[test]
fn bad_configurations_are_refused() {
    refused(
        "{}",
        expect![[r#"
        1:14: limit-count: there is no limit; add `count` and `time_window`, or `rules`
    "#]],
    );
    refused(
        "{count: 1}",
        expect![[r#"
        1:14: limit-count: there is no limit; add `count` and `time_window`, or `rules`
    "#]],
    );
    refused(
        "{count: 0, time_window: 1.5}",
        expect![[r#"
        1:14: limit-count: there is no limit; add `count` and `time_window`, or `rules`
        1:22: limit-count.count: expected a whole number above 0, found the number 0; write a number, or variables such as "$http_x_limit"
        1:38: limit-count.time_window: expected a whole number above 0, found the number 1.5; write a number, or variables such as "$http_x_limit"
    "#]],
    );
    refused(
        "{count: many, time_window: -1}",
        expect![[r#"
        1:14: limit-count: there is no limit; add `count` and `time_window`, or `rules`
        1:22: limit-count.count: expected a whole number above 0, found the text "many"; write a number, or variables such as "$http_x_limit"
        1:41: limit-count.time_window: expected a whole number above 0, found the number -1; write a number, or variables such as "$http_x_limit"
    "#]],
    );
    refused(
        "{count: 1, time_window: 1, key: nothing_like_it}",
        expect![[r#"
            1:46: limit-count.key: "nothing_like_it": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        "#]],
    );
    refused(
        "{count: 1, time_window: 1, key_type: vars, rejected_code: 600, rejected_msg: ''}",
        expect![[r#"
        1:51: limit-count.key_type: expected var, var_combination or constant, found the text "vars"; did you mean "var"?
        1:72: limit-count.rejected_code: expected a whole number from 200 to 599, found the number 600
        1:91: limit-count.rejected_msg: the message is empty; write one, or remove the key
    "#]],
    );
}

#[test]
fn bad_rules_are_refused() {
    let rule = "{key: $host, count: 1, time_window: 1}";
    refused(
        &format!("{{count: 1, time_window: 1, rules: [{rule}]}}"),
        expect![[r#"
        1:14: limit-count: `rules` cannot be combined with `count` or `time_window`; keep one of the two
    "#]],
    );
    refused(
        &format!("{{rules: [{rule}, {rule}]}}"),
        expect![[r#"
        1:69: limit-count.rules[1].key: the key "$host" is in two rules; keep one of them
    "#]],
    );
    refused(
        &format!("{{group: g, rules: [{rule}]}}"),
        expect![[r#"
        1:14: limit-count: `group` and `rules` cannot be combined; keep one of the two
    "#]],
    );
    refused(
        "{rules: [{key: $host, count: 1, time_window: 1, header_prefix: 'a b'}]}",
        expect![[r#"
        1:77: limit-count.rules[0].header_prefix: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
    "#]],
    );
    refused(
        "{rules: [{key: $host}]}",
        expect![[r#"
        1:23: limit-count.rules[0]: the key "count" is missing; add it
    "#]],
    );
    refused(
        "{count: 1, time_window: 1, sync_interval: 0.5}",
        expect![[r#"
        accepted
    "#]],
    );
}
