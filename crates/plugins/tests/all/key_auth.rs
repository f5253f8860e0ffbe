//! key-auth: the node's request, or the answer, for each request.

use expect_test::{Expect, expect};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use stillgate_plugin_api::{
    BodyChanges, ChainEntry, Consumer, Consumers, Credential, Facts, Flow, MetadataTable, NoSecrets, NoUpstreams,
    PluginLevel, PluginOrigin, Request, RequestState, Worker,
};
use stillgate_schema::text::tree::parse;
use stillgate_schema::{Path, Sink};
use stillgate_wire::{Edits, HeadLimits, HeadProgress, RequestEdits, RequestHead};

fn compile(keys: &str) -> Result<Arc<ChainEntry>, String> {
    let mut sink = Sink::default();
    let tree = parse(0, &format!("key-auth: {keys}"), Some(&|_| None), &mut sink).unwrap();
    let origin = PluginOrigin { level: PluginLevel::Route, id: "r".into() };
    let entries =
        stillgate_plugins::TABLE.compile(&tree.root, &origin, (&NoSecrets, &NoUpstreams), &Path::Root, &mut sink);
    match sink.has_errors() {
        true => Err(sink.into_errors().to_string()),
        false => Ok(entries[0].clone()),
    }
}

fn consumers() -> Consumers {
    let mut all = Consumers::default();
    let mut insert = |name: &str, custom_id: Option<&str>, ids: &[&str], keys: &[(&str, Option<u16>)]| {
        let consumer = Consumer {
            name: name.into(),
            group: None,
            labels: custom_id.map(|id| ("custom_id".into(), id.into())).into_iter().collect(),
            plugins: Arc::default(),
            credentials: ids.iter().map(|id| (*id).into()).collect(),
        };
        let credential = |(key, place): &(&str, Option<u16>)| Credential {
            plugin: "key-auth",
            lookup: key.as_bytes().into(),
            place: *place,
            verifier: None,
        };
        all.insert(consumer, keys.iter().map(credential).collect()).unwrap();
    };
    insert("jack", None, &[], &[("auth-one", None)]);
    insert("rose", Some("id-7"), &["main", "spare"], &[("a b&c", Some(0)), ("spare-key", Some(1))]);
    insert("anonymous", Some("nobody"), &[], &[]);
    all
}

/// Runs the phase `rewrite` and returns the outcome as text.
fn rewrite(entry: &ChainEntry, consumers: &Consumers, head: &str) -> String {
    let bytes = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
    let mut request = RequestHead::default();
    let progress = request.advance(bytes.as_bytes(), &HeadLimits::default()).unwrap();
    assert!(matches!(progress, HeadProgress::Complete(_)));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
    let (mut edits, mut response, mut body) = (RequestEdits::default(), Edits::default(), BodyChanges::default());
    let (worker, metadata, mut consumer) = (Worker::default(), MetadataTable::default(), None);
    let mut settled = RequestState::default();
    let facts = Facts {
        head: bytes.as_bytes(),
        request: &request,
        host: b"a.example",
        path: None,
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        client_port: 40000,
        trusted_proxies: &[],
        https_port: None,
        peer: address,
        local: address,
        protocol: "HTTP/1.1",
        scheme: "http",
        tls: None,
        route: None,
    };
    let mut asked = Request {
        facts,
        edits: &mut edits,
        body: &mut body,
        received: None,
        settled: &mut settled,
        response: &mut response,
        consumer: &mut consumer,
        consumers,
        id: &stillgate_plugin_api::record::RequestId::default(),
        worker: &worker,
        metadata: &metadata,
    };
    let flow = entry.plugin.rewrite(&mut asked);
    let mut out = String::new();
    match flow {
        Flow::Answer(answer) => {
            writeln!(out, "{} {}", answer.status, answer.content_type.as_deref().unwrap_or("-")).unwrap();
            out.push_str(std::str::from_utf8(response.lines()).unwrap());
            out.push_str(std::str::from_utf8(answer.body.bytes()).unwrap());
        }
        Flow::Continue => {
            writeln!(out, "{}", std::str::from_utf8(asked.target()).unwrap()).unwrap();
            edits.fields.each(&request.fields, bytes.as_bytes(), &mut |name, value| {
                let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                writeln!(out, "{name}: {value}").unwrap();
            });
        }
        waits => panic!("{waits:?}"),
    }
    out.replace('\r', "")
}

fn check(keys: &str, head: &str, expected: Expect) {
    expected.assert_eq(&rewrite(&compile(keys).unwrap(), &consumers(), head));
}

#[test]
fn a_key_in_the_header_says_who_asks() {
    let forged = "X-Consumer-Username: root\nx-credential-identifier: 1\nX-CONSUMER-CUSTOM-ID: 0";
    check(
        "{}",
        &format!("GET /a?b HTTP/1.1\nHost: a\n{forged}\napikey: auth-one"),
        expect![[r#"
            /a?b
            Host: a
            apikey: auth-one
            X-Consumer-Username: jack
        "#]],
    );
    check(
        "{header: X-Key, hide_credentials: true}",
        &format!("GET /a?apikey=auth-one HTTP/1.1\nHost: a\n{forged}\nx-KEY: spare-key\nx-key: auth-one"),
        expect![[r#"
            /a
            Host: a
            X-Consumer-Username: rose
            X-Credential-Identifier: spare
            X-Consumer-Custom-ID: id-7
        "#]],
    );
}

#[test]
fn a_key_in_the_query_is_decoded() {
    for target in ["/a?apikey=a+b%26c&x=%7e", "/a?x=%7e&%61pikey=%61%20b%26%63"] {
        check(
            "{hide_credentials: true}",
            &format!("GET {target} HTTP/1.1\nHost: a"),
            expect![[r#"
                /a?x=%7e
                Host: a
                X-Consumer-Username: rose
                X-Credential-Identifier: main
                X-Consumer-Custom-ID: id-7
            "#]],
        );
    }
    check(
        "{query: auth, hide_credentials: true}",
        "GET /a?auth=auth-one HTTP/1.1\nHost: a\nauth: auth-one",
        expect![[r#"
            /a
            Host: a
            auth: auth-one
            X-Consumer-Username: jack
        "#]],
    );
    check(
        "{}",
        "GET /a?apikey=auth-one HTTP/1.1\nHost: a",
        expect![[r#"
            /a?apikey=auth-one
            Host: a
            X-Consumer-Username: jack
        "#]],
    );
}

#[test]
fn without_a_valid_key_the_answer_is_401() {
    check(
        "{}",
        "GET /a?keys=auth-one HTTP/1.1\nHost: a",
        expect![[r#"
            401 text/plain; charset=utf-8
            WWW-Authenticate: apikey realm="key"
            {"message":"Missing API key in request"}
        "#]],
    );
    let invalid = [
        "GET /a HTTP/1.1\nHost: a\napikey: auth-on",
        "GET /a HTTP/1.1\nHost: a\napikey:",
        // The header takes precedence over the query.
        "GET /a?apikey=auth-one HTTP/1.1\nHost: a\napikey: AUTH-ONE",
        "GET /a?apikey HTTP/1.1\nHost: a",
        "GET /a?apikey= HTTP/1.1\nHost: a",
        "GET /a?apikey=auth-one&apikey=auth-one HTTP/1.1\nHost: a",
        "GET /a?apikey=%zz HTTP/1.1\nHost: a",
        // The first line counts.
        "GET /a HTTP/1.1\nHost: a\napikey: other\napikey: auth-one",
        // The consumer's name is not its key.
        "GET /a HTTP/1.1\nHost: a\napikey: jack",
    ];
    for head in invalid {
        check(
            "{realm: the gate}",
            head,
            expect![[r#"
                401 text/plain; charset=utf-8
                WWW-Authenticate: apikey realm="the gate"
                {"message":"Invalid API key in request"}
            "#]],
        );
    }
}

#[test]
fn the_anonymous_consumer_stands_for_those_without_a_valid_key() {
    for head in [
        "GET /a?x=1 HTTP/1.1\nHost: a\nX-Consumer-Username: jack",
        "GET /a?x=1&apikey=wrong HTTP/1.1\nHost: a\napikey: wrong\nX-Consumer-Custom-ID: 1",
    ] {
        check(
            "{anonymous_consumer: anonymous, hide_credentials: true}",
            head,
            expect![[r#"
                /a?x=1
                Host: a
                X-Consumer-Username: anonymous
            "#]],
        );
    }
    check(
        "{anonymous_consumer: nobody}",
        "GET /a HTTP/1.1\nHost: a",
        expect![[r#"
            401 text/plain; charset=utf-8
            WWW-Authenticate: apikey realm="key"
            {"message":"Invalid user authorization"}
        "#]],
    );
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let check = |keys: &str, expected: Expect| expected.assert_eq(&compile(keys).unwrap_err());
    check(
        "{header: \"a b\"}",
        expect![[
            r#"1:20: key-auth.header: "a b": not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only"#
        ]],
    );
    check(
        "{header: Connection}",
        expect![[
            r#"1:20: key-auth.header: "Connection": this field frames the message or belongs to one connection; the gateway sets it"#
        ]],
    );
    check(
        "{realm: 'a\"b'}",
        expect![[
            r#"1:19: key-auth.realm: "a\"b" is not a realm; use printable ASCII characters other than '"' and '\'"#
        ]],
    );
    check(
        "{key: a}",
        expect![[
            r#"1:12: key-auth.key: unknown key "key"; known keys: header, query, hide_credentials, anonymous_consumer, realm"#
        ]],
    );
}
