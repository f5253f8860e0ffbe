//! No value that a client or a configuration can put into a head splits a message. h11 reads what comes out, strictly.

mod reflect;

use reflect::{STILLGATE, check, route, setup};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use stillgate_testkit::{Broken, Connection, Gateway, Upstream, encode, http2, require_tool};

/// Marks a field that only an attack can make.
const EVIL: &str = "x-evil";

/// A node that keeps each request's bytes as they came, answers with few, and closes.
struct Node {
    upstream: Upstream,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Node {
    fn new() -> Node {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let upstream = Upstream::serve(move |connection| {
            let bytes = request_bytes(connection);
            kept.lock().expect("no test panics with it").push(bytes);
            let _ = connection.try_send(
                b"HTTP/1.1 200 OK\r\nX-Node: n\xff\tn\r\nContent-Length: 9\r\nConnection: close\r\n\r\nnode body",
            );
        });
        Node { upstream, seen }
    }

    /// What came since last asked.
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.seen.lock().expect("no test panics with it"))
    }
}

/// A head, the body that it tells of, and what came with it.
fn request_bytes(connection: &mut Connection) -> Vec<u8> {
    let mut bytes = until(connection, b"\r\n\r\n");
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.split_once("\r\ncontent-length: ").and_then(|(_, after)| after.split_once('\r')?.0.parse().ok());
    if head.contains("\r\ntransfer-encoding:") {
        bytes.extend(until(connection, b"0\r\n\r\n"));
    } else if let Some(length) = length {
        bytes.extend(connection.read_exactly(length).unwrap_or_default());
    }
    bytes.extend(connection.pending());
    bytes
}

fn until(connection: &mut Connection, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end) {
        match connection.read_exactly(1) {
            Ok(byte) => bytes.extend(byte),
            Err(_) => return bytes,
        }
    }
    bytes
}

fn routes(of: &[(&str, &str)]) -> String {
    let routes: String = of.iter().map(|(uri, plugins)| route(uri, plugins)).collect();
    format!("routes:\n{routes}")
}

/// What h11 says of a list of messages, each `request METHOD HEX` or `response METHOD HEX`.
fn judged(messages: &[(&str, String, Vec<u8>)]) -> Vec<serde_json::Value> {
    require_tool("python3", "python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/python/h11_judge.py");
    // Debian's own, which has python3-h11, whatever else is installed.
    let mut child = Command::new("/usr/bin/python3")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut stdin = child.stdin.take().expect("piped");
    let lines: String = messages
        .iter()
        .map(|(kind, method, bytes)| {
            let hex: String = ascii_target(kind, bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{kind} {method} {hex}\n")
        })
        .collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("the judge ends");
    writer.join().expect("no panic").expect("the judge reads all");
    assert!(output.status.success(), "the judge failed");
    let text = String::from_utf8(output.stdout).expect("JSON");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Bytes above ASCII go through in a target, as nginx lets them, though h11 takes none there. They end no line.
fn ascii_target(kind: &str, bytes: &[u8]) -> Vec<u8> {
    let line = if kind == "request" { bytes.iter().position(|&byte| byte == b'\n').unwrap_or(0) } else { 0 };
    let mut bytes = bytes.to_vec();
    bytes[..line].iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'~');
    bytes
}

/// Everything that a client can write, in every place that a plugin reads.
const PLUGGED: &[(&str, &str)] = &[
    (
        "/rr",
        r#"{"response-rewrite": {"headers": {"set": {"X-Arg": "[$arg_x]", "X-Args": "[$args]", "X-Uri": "[$uri]", "X-Request-Uri": "[$request_uri]", "X-Cookie": "[$cookie_x]", "X-Header": "[$http_x_in]", "X-Host": "[$host]", "X-Method": "[$request_method]"}, "add": ["X-Added: $arg_x$http_x_in"]}}}"#,
    ),
    (
        "/pr",
        r#"{"proxy-rewrite": {"headers": {"set": {"X-Arg": "[$arg_x]", "X-Args": "[$args]", "X-Uri": "[$uri]", "X-Cookie": "[$cookie_x]", "X-Header": "[$http_x_in]", "X-Host": "[$host]"}, "add": {"X-Added": "$arg_x$http_x_in"}}}}"#,
    ),
    ("/uri", r#"{"proxy-rewrite": {"uri": "/to/$arg_x/$cookie_x/$http_x_in?q=$arg_x&h=$http_x_in&c=$cookie_x"}}"#),
    ("/raw", r#"{"proxy-rewrite": {"uri": "/to/$arg_x$http_x_in", "use_real_request_uri_unsafe": true}}"#),
    ("/re/*", r#"{"proxy-rewrite": {"regex_uri": ["^/re/(.*)", "/$1"], "headers": {"set": {"X-Captured": "[$1]"}}}}"#),
    (
        "/rawre/*",
        r#"{"proxy-rewrite": {"regex_uri": ["^/rawre/(.*)", "/$1"], "use_real_request_uri_unsafe": true, "headers": {"set": {"X-Captured": "[$1]"}}}}"#,
    ),
    (
        "/cors",
        r#"{"cors": {"allow_origins": "**", "allow_headers": "**", "allow_credential": true, "allow_methods": "GET"}}"#,
    ),
    (
        "/cors-re",
        r#"{"cors": {"allow_origins_by_regex": [".*"], "timing_allow_origins_by_regex": [".*"], "allow_headers": "**"}}"#,
    ),
    ("/auth", r#"{"key-auth": {"hide_credentials": true}}"#),
    ("/guest", r#"{"key-auth": {"anonymous_consumer": "guest"}}"#),
    (
        "/limit",
        r#"{"limit-count": {"count": "$arg_x", "time_window": 60, "key": "$http_x_in $arg_x", "key_type": "var_combination", "rejected_code": 429, "rejected_msg": "a\r\nX-Evil: 1\r\n\r\n"}}"#,
    ),
    ("/body", r#"{"response-rewrite": {"body": "\r\n\r\nHTTP/1.1 200 OK\r\nX-Evil: 1\r\n\r\n"}}"#),
];

const CONSUMERS: &str = "consumers:\n  - {\"username\": \"guest\", \"plugins\": {}}\n  - {\"username\": \"jack\", \"labels\": {\"custom_id\": \"c\"}, \"plugins\": {\"key-auth\": {\"key\": \"k\"}}}\n";

/// What is put into a value: encoded and raw line ends, NUL, bytes above ASCII, other separators.
const VALUES: &[&[u8]] = &[
    b"%0d%0aX-Evil:%201%0d%0a%0d%0a",
    b"%0aX-Evil:1",
    b"%0dX-Evil:1",
    b"%250d%250aX-Evil:1",
    b"%u000aX-Evil:1",
    b"%e5%98%8a%e5%98%8dX-Evil:1",
    b"%c0%8aX-Evil:1",
    b"a%00b",
    b"%20HTTP/1.1%0d%0aX-Evil:1",
    b"%09X-Evil:1",
    b"a\xe5\x98\x8a\xe5\x98\x8dX-Evil:1",
    b"\xff\xfe\x80",
    b"a\rX-Evil: 1",
    b"a\nX-Evil: 1",
    b"a\0b",
    b"a\x0bX-Evil: 1",
    b"a\x0cX-Evil: 1",
    b"a\x1fb",
    b"a\x7fb",
    b"a\tb",
    b"a b",
    b"\"a\", b;c\\",
    b"?a#b&c",
    b"%2e%2e/%2e%2e//x",
    b"%",
    b"%zz%0",
    b"$arg_x$http_x_in${uri}$1\\$1",
];

/// The requests that carry a value, each with its method: in the query, the path, a cookie and header fields.
fn requests(path: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    let path = path.replace('*', "p");
    let mut requests = Vec::new();
    let mut push = |method: &str, target: &[u8], lines: &[&[u8]]| {
        let mut bytes = [method.as_bytes(), b" ", target, b" HTTP/1.1\r\nHost: h\r\n"].concat();
        for line in lines {
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"Connection: close\r\n\r\n");
        requests.push((method.to_owned(), bytes));
    };
    push("GET", &[path.as_bytes(), b"?x=", value, b"&apikey=", value].concat(), &[]);
    push("GET", &[path.trim_end_matches('p').as_bytes(), b"/", value].concat(), &[]);
    push("GET", &[path.trim_end_matches('p').as_bytes(), value].concat(), &[]);
    let lines = [
        [b"X-In: ", value].concat(),
        [b"Cookie: x=", value].concat(),
        [b"Origin: ", value].concat(),
        [b"Access-Control-Request-Headers: ", value].concat(),
        [b"apikey: ", value].concat(),
        [b"X-Consumer-Username: ", value].concat(),
    ];
    let all: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
    push("GET", path.as_bytes(), &all);
    if path.starts_with("/cors") {
        push("OPTIONS", path.as_bytes(), &all);
    }
    if matches!(&*path, "/rr" | "/pr" | "/auth") {
        // Each alone, since one that is refused hides the others.
        for line in &all[..3] {
            push("GET", path.as_bytes(), &[line, b"apikey: k"]);
        }
        push("GET", path.as_bytes(), &[&[b"X-In", value, b": 1"].concat()]);
    }
    requests
}

#[test]
fn no_value_of_a_client_splits_a_message() {
    let node = Node::new();
    let resources = format!("{CONSUMERS}{}", routes(PLUGGED));
    let mut gateway = Gateway::start(STILLGATE, &setup(node.upstream.addr(), &resources));
    let (mut messages, mut sources) = (Vec::new(), Vec::new());
    for (path, _) in PLUGGED {
        for value in VALUES {
            for (method, request) in requests(path, value) {
                let mut client = gateway.client();
                // It may be refused half-way.
                let _ = client.try_send(&request);
                let response = match client.read_to_end() {
                    Ok(bytes) | Err(Broken::Reset(bytes)) => bytes,
                    Err(broken) => panic!("no end of {}: {broken:?}", encode(&request)),
                };
                let told = node.take();
                assert!(told.len() <= 1, "{} requests of {}", told.len(), encode(&request));
                for bytes in told {
                    messages.push(("request", "GET".to_owned(), bytes));
                    sources.push(request.clone());
                }
                assert!(!response.is_empty(), "no answer to {}", encode(&request));
                messages.push(("response", method, response));
                sources.push(request);
            }
        }
    }
    let mut wrong = Vec::new();
    for (((kind, _, bytes), source), said) in messages.iter().zip(&sources).zip(judged(&messages)) {
        let evil = |field: &serde_json::Value| field[0].as_str().is_some_and(|name| name.eq_ignore_ascii_case(EVIL));
        let split = said["headers"].as_array().is_none_or(|fields| fields.iter().any(evil)) || said["rest"] != "";
        // A client may name a field as it likes, in a line of its own.
        let asked_for = source.windows(9).any(|window| window == b"\nX-Evil: ");
        if split && !asked_for {
            wrong.push(format!("{kind}: {said}\n  of {}\n  as {}", encode(source), encode(bytes)));
        }
    }
    assert!(messages.len() > 1500, "{}", messages.len());
    assert!(
        wrong.is_empty(),
        "{} of {} are split or malformed:\n{}",
        wrong.len(),
        messages.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
    gateway.assert_healthy();
}

/// A plugin answers before the body is there: what comes of it is not taken for a request.
#[test]
fn an_unread_body_is_no_request() {
    let upstream = Upstream::echo();
    let routes = routes(&[
        ("/auth", r#"{"key-auth": {}}"#),
        ("/limit", r#"{"limit-count": {"count": 1, "time_window": 600}}"#),
        ("/cors", r#"{"cors": {}}"#),
        ("/other", "{}"),
    ]);
    let mut gateway = Gateway::start(STILLGATE, &setup(upstream.addr(), &routes));
    gateway.client().get("/limit");
    let before = upstream.requests();
    let inner = "GET /other HTTP/1.1\r\nHost: h\r\n\r\n";
    for (line, status) in [("POST /auth", 401), ("POST /limit", 503), ("OPTIONS /cors", 200)] {
        let length = format!("Content-Length: {}\r\n\r\n{inner}", inner.len());
        let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
        for framed in [length, chunked] {
            for at in [0, framed.find("\r\n\r\n").expect("its head's end") + 4] {
                let mut client = gateway.client();
                client.send(format!("{line} HTTP/1.1\r\nHost: h\r\n{}", &framed[..at]));
                if at == 0 {
                    client.send(&framed);
                } else {
                    // It may be refused before.
                    let _ = client.try_send(&framed[at..]);
                }
                assert_eq!(client.expect_response("POST").head.status(), status, "{line}");
                // Either the connection ends, or the body is read over and a next request is the next.
                let _ = client.try_send("GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n");
                match client.read_response("GET") {
                    Ok(next) => assert_eq!(next.head.status(), 404, "{line}"),
                    Err(Broken::Malformed(why)) => panic!("{line}: {why}"),
                    Err(_) => {}
                }
            }
        }
    }
    assert_eq!(upstream.requests(), before, "{:?}", upstream.seen());
    gateway.assert_healthy();
}

/// HTTP/2 has no lines: what would be one in HTTP/1 must be refused, or stay inside its value.
#[test]
fn no_value_of_http2_splits_a_message() {
    let node = Node::new();
    let resources = format!("{CONSUMERS}{}", routes(PLUGGED));
    let mut gateway = Gateway::start(STILLGATE, &setup(node.upstream.addr(), &resources));
    let mut messages = Vec::new();
    for path in ["/rr", "/pr", "/uri", "/re/p", "/cors", "/auth", "/raw"] {
        for value in VALUES.iter().filter_map(|value| std::str::from_utf8(value).ok()) {
            let in_query = format!("{path}?x={value}");
            for (target, fields) in [
                (&*in_query, vec![]),
                (path, vec![("x-in", value), ("apikey", "k")]),
                (path, vec![("cookie", "x=1"), ("cookie", value), ("origin", value)]),
                (path, vec![(value, "1")]),
            ] {
                let mut client = http2::Http2::connect(gateway.addr());
                let mut all = http2::get_fields(target).to_vec();
                all.extend(fields);
                client.send_head(1, &all, http2::END_STREAM);
                client.finish(1);
                messages.extend(node.take().into_iter().map(|bytes| ("request", "GET".to_owned(), bytes)));
            }
        }
    }
    let wrong: Vec<String> = judged(&messages)
        .iter()
        .zip(&messages)
        .filter(|(said, _)| {
            let evil =
                |field: &serde_json::Value| field[0].as_str().is_some_and(|name| name.eq_ignore_ascii_case(EVIL));
            said["headers"].as_array().is_none_or(|fields| fields.iter().any(evil)) || said["rest"] != ""
        })
        .map(|(said, (_, _, bytes))| format!("{said}\n  as {}", encode(bytes)))
        .collect();
    assert!(messages.len() > 100, "{}", messages.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), messages.len(), wrong[..wrong.len().min(12)].join("\n"));
    gateway.assert_healthy();
}

/// A configuration that would split a message is refused, whatever the key.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn no_configuration_splits_a_message() {
    let node = Node::new();
    let mut messages = Vec::new();
    let mut origins = Vec::new();
    for evil in ["a\\r\\nX-Evil: 1", "a\\nX-Evil: 1", "a\\rX-Evil: 1", "a\\u0000b", "\\r\\n\\r\\n", "a\\u007fb"] {
        let routes = |plugins: String| routes(&[("/a", &plugins)]);
        for resources in [
            routes(format!(r#"{{"proxy-rewrite": {{"uri": "/{evil}"}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"uri": "/{evil}", "use_real_request_uri_unsafe": true}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"uri": "/b?{evil}"}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"regex_uri": ["^/a", "/{evil}"]}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"regex_uri": ["^/a", "/b?{evil}"]}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"host": "{evil}"}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"method": "{evil}"}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"headers": {{"set": {{"X-A": "{evil}"}}}}}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"headers": {{"add": {{"X-A{evil}": "b"}}}}}}}}"#)),
            routes(format!(r#"{{"proxy-rewrite": {{"headers": {{"remove": ["{evil}"]}}}}}}"#)),
            routes(format!(r#"{{"response-rewrite": {{"headers": {{"set": {{"X-A": "{evil}"}}}}}}}}"#)),
            routes(format!(r#"{{"response-rewrite": {{"headers": {{"set": {{"{evil}": "b"}}}}}}}}"#)),
            routes(format!(r#"{{"response-rewrite": {{"headers": {{"add": ["X-A: {evil}"]}}}}}}"#)),
            routes(format!(r#"{{"response-rewrite": {{"headers": {{"X-A": "{evil}"}}}}}}"#)),
            routes(format!(r#"{{"cors": {{"allow_methods": "{evil}"}}}}"#)),
            routes(format!(r#"{{"cors": {{"allow_headers": "{evil}"}}}}"#)),
            routes(format!(r#"{{"cors": {{"expose_headers": "{evil}"}}}}"#)),
            routes(format!(r#"{{"cors": {{"allow_origins": "https://{evil}"}}}}"#)),
            routes(format!(r#"{{"cors": {{"timing_allow_origins": "https://{evil}"}}}}"#)),
            routes(format!(r#"{{"key-auth": {{"realm": "{evil}"}}}}"#)),
            routes(format!(r#"{{"key-auth": {{"header": "{evil}"}}}}"#)),
            routes(format!(r#"{{"key-auth": {{"query": "{evil}", "hide_credentials": true}}}}"#)),
            routes(format!(r#"{{"key-auth": {{"_meta": {{"error_response": "{evil}"}}}}}}"#)),
            format!(
                "plugin_metadata:\n  - {{\"id\": \"limit-count\", \"limit_header\": \"{evil}\"}}\n{}",
                routes(r#"{"limit-count": {"count": 1, "time_window": 9}}"#.to_owned())
            ),
            format!(
                "plugin_metadata:\n  - {{\"id\": \"cors\", \"allow_origins\": {{\"n\": \"https://{evil}\"}}}}\n{}",
                routes(r#"{"cors": {"allow_origins_by_metadata": ["n"]}}"#.to_owned())
            ),
            format!(
                "consumers:\n  - {{\"username\": \"{evil}\", \"plugins\": {{\"key-auth\": {{\"key\": \"k\"}}}}}}\n{}",
                routes(r#"{"key-auth": {}}"#.to_owned())
            ),
            format!(
                "consumers:\n  - {{\"username\": \"u\", \"labels\": {{\"custom_id\": \"{evil}\"}}, \"plugins\": {{\"key-auth\": {{\"key\": \"k\"}}}}}}\n{}",
                routes(r#"{"key-auth": {}}"#.to_owned())
            ),
            format!(
                "consumers:\n  - {{\"username\": \"u\", \"credentials\": [{{\"id\": \"{evil}\", \"plugins\": {{\"key-auth\": {{\"key\": \"k\"}}}}}}]}}\n{}",
                routes(r#"{"key-auth": {}}"#.to_owned())
            ),
        ] {
            if !check(&resources).0 {
                continue;
            }
            // What is taken must be harmless.
            let gateway = Gateway::start(STILLGATE, &setup(node.upstream.addr(), &resources));
            for lines in ["Origin: https://x.example\r\n", "apikey: k\r\n"] {
                let mut client = gateway.client();
                client.send(format!("GET /a HTTP/1.1\r\nHost: h\r\n{lines}Connection: close\r\n\r\n"));
                let response = client.read_to_end().expect("an answer and its end");
                for bytes in node.take() {
                    messages.push(("request", "GET".to_owned(), bytes));
                    origins.push(resources.clone());
                }
                messages.push(("response", "GET".to_owned(), response));
                origins.push(resources.clone());
            }
        }
    }
    let mut wrong = Vec::new();
    for ((said, (kind, _, bytes)), origin) in judged(&messages).iter().zip(&messages).zip(&origins) {
        let evil = |field: &serde_json::Value| field[0].as_str().is_some_and(|name| name.eq_ignore_ascii_case(EVIL));
        if said["headers"].as_array().is_none_or(|fields| fields.iter().any(evil)) || said["rest"] != "" {
            wrong.push(format!("{kind}: {said}\n  of {origin}\n  as {}", encode(bytes)));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), messages.len(), wrong[..wrong.len().min(12)].join("\n"));
}

/// Framing is the gateway's: a configuration that names its fields is refused, or does not change how a body ends.
#[test]
fn no_configuration_changes_framing() {
    let node = Node::new();
    let (mut messages, mut origins) = (Vec::new(), Vec::new());
    for (name, value) in [
        ("Content-Length", "3"),
        ("Content-Length", "300"),
        ("content-length", "$arg_x"),
        ("Transfer-Encoding", "chunked"),
        ("Transfer-Encoding", "gzip"),
        ("Connection", "X-Node, Content-Length"),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Host", "evil.example"),
        ("Host", "a b"),
        ("TE", "trailers"),
        ("Trailer", "X"),
        ("Keep-Alive", "x"),
        ("Expect", "100-continue"),
        ("Date", ""),
        ("Server", ""),
    ] {
        for plugins in [
            format!(r#"{{"proxy-rewrite": {{"headers": {{"set": {{"{name}": "{value}"}}}}}}}}"#),
            format!(r#"{{"proxy-rewrite": {{"headers": {{"add": {{"{name}": "{value}"}}}}}}}}"#),
            format!(r#"{{"proxy-rewrite": {{"headers": {{"remove": ["{name}"]}}}}}}"#),
            format!(r#"{{"response-rewrite": {{"headers": {{"set": {{"{name}": "{value}"}}}}}}}}"#),
            format!(r#"{{"response-rewrite": {{"headers": {{"add": ["{name}: {value}"]}}}}}}"#),
            format!(r#"{{"response-rewrite": {{"headers": {{"remove": ["{name}"]}}, "body": "another"}}}}"#),
            format!(
                r#"{{"response-rewrite": {{"headers": {{"set": {{"{name}": "{value}"}}}}, "filters": [{{"regex": "node", "replace": "a longer word than that"}}]}}}}"#
            ),
        ] {
            let resources = routes(&[("/a", &plugins)]);
            if !check(&resources).0 {
                continue;
            }
            let gateway = Gateway::start(STILLGATE, &setup(node.upstream.addr(), &resources));
            for (method, body) in [("GET", ""), ("POST", "hello"), ("HEAD", "")] {
                let mut client = gateway.client();
                let length =
                    if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
                client.send(format!("{method} /a?x=2 HTTP/1.1\r\nHost: h\r\n{length}Connection: close\r\n\r\n{body}"));
                let response = client.read_to_end().expect("an answer and its end");
                let what = format!("{method} {plugins}");
                for bytes in node.take() {
                    messages.push(("request", method.to_owned(), bytes));
                    origins.push((what.clone(), body.to_owned()));
                }
                let expected = match method {
                    "HEAD" => "",
                    _ if plugins.contains("another") => "another",
                    _ if plugins.contains("longer") => "a longer word than that body",
                    _ => "node body",
                };
                messages.push(("response", method.to_owned(), response));
                origins.push((what, expected.to_owned()));
            }
        }
    }
    let mut wrong = Vec::new();
    for ((said, (kind, _, bytes)), (what, body)) in judged(&messages).iter().zip(&messages).zip(&origins) {
        let hex: String = body.bytes().map(|byte| format!("{byte:02x}")).collect();
        if said["body"].as_str() != Some(&hex) || said["rest"] != "" {
            wrong.push(format!("{kind}: {said}\n  of {what}\n  as {}", encode(bytes)));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), messages.len(), wrong[..wrong.len().min(20)].join("\n"));
}
