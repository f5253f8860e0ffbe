//! `cors` with a browser that enforces it: a page in Chromium sends requests to a gateway on another origin.
//!
//! The page is the same for an origin that is allowed and one that is not: `127.0.0.1` and `localhost`.

use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stillgate_testkit::{BufferedSocket, Gateway, Setup, Upstream, require_tool};

const PAGE: &str = include_str!("page.html");

/// Chromium is many processes, each of which waits for a core on a busy machine.
const CHROMIUM_PATIENCE: Duration = Duration::from_secs(600);

/// The pages' reports, each with the name of its host.
type Told = (String, Value);

/// A running Chromium with a page.
struct Browser {
    process: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(url: &str) -> Browser {
        require_tool("chromium", "chromium");
        let profile = tempfile::tempdir().expect("a temporary folder");
        // Tests may run as root, where Chromium refuses its sandbox; containers have little shared memory.
        let process = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--no-proxy-server"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start chromium");
        Browser { process, _profile: profile }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it. It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves the page, and forwards its reports.
fn pages(gateway: Arc<Mutex<String>>, told: SyncSender<Told>) -> Upstream {
    let told = Mutex::new(told);
    Upstream::serve(move |connection| {
        while let Ok(request) = connection.read_request() {
            let host = request.head.get("host").unwrap_or_default().to_owned();
            let (method, target) = request.head.method_and_target();
            let page = PAGE.replace("{gateway}", &gateway.lock().expect("no holder panics"));
            let (kind, body) = match (method, target) {
                ("POST", "/told") => {
                    let value = serde_json::from_slice(&request.body).expect("JSON");
                    // The test may have ended.
                    let _ = told.lock().expect("no holder panics").send((host, value));
                    ("text/plain", "")
                }
                (_, "/page") => ("text/html", &*page),
                _ => ("text/plain", ""),
            };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
            if connection.try_send([head.as_bytes(), body.as_bytes()].concat()).is_err() {
                return;
            }
        }
    })
}

/// A node that answers with its request. Its own CORS fields must not reach the page.
fn node(seen: Arc<Mutex<Vec<String>>>) -> Upstream {
    Upstream::serve(move |connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            let (method, target) = request.head.method_and_target();
            seen.lock().expect("no holder panics").push(format!("{method} {target}"));
            let cookie = request.head.get("cookie").unwrap_or("none");
            let body = format!("{method} {target}\n");
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nX-Shown: yes\r\nX-Hidden: yes\r\n\
                 X-Cookie: {cookie}\r\nAccess-Control-Allow-Origin: http://of.the.node\r\n\r\n",
                body.len()
            );
            if connection.try_send([head, body].concat()).is_err() {
                return;
            }
        }
    })
}

fn gateway(node: &Upstream, allowed: &str) -> Gateway {
    let route = |name: &str, plugins: &str| {
        format!(
            "  - {{\"id\": \"{name}\", \"uri\": \"/{name}/*\", \"upstream_id\": \"node\", \"plugins\": {plugins}}}\n"
        )
    };
    let some = format!(
        r#""cors": {{"allow_origins": "{allowed}", "allow_methods": "GET,PUT", "allow_headers": "X-One",
            "expose_headers": "X-Shown,X-Cookie", "allow_credential": true, "max_age": 60}}"#
    );
    let forced = r#"{"cors": {"allow_origins": "**", "allow_methods": "**", "allow_headers": "**", "expose_headers": "X-Cookie", "allow_credential": true}}"#;
    let resources = [
        format!(
            "upstreams:\n  - {{\"id\": \"node\", \"type\": \"roundrobin\", \"nodes\": {{\"{}\": 1}}}}\nroutes:\n",
            node.addr()
        ),
        route("some", &format!("{{{some}}}")),
        route("keys", &format!(r#"{{{some}, "key-auth": {{}}}}"#)),
        route("open", r#"{"cors": {}}"#),
        route("forced", forced),
        route("none", "{}"),
    ];
    Gateway::start(crate::shared::STILLGATE, &Setup::resources(resources.concat()))
}

#[test]
fn chromium_holds_to_what_cors_says() {
    let (seen, address) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
    let (send, told) = sync_channel(64);
    let (node, pages) = (node(seen.clone()), pages(address.clone(), send));
    let port = pages.addr().port();
    let mut gateway = gateway(&node, &format!("http://127.0.0.1:{port}"));
    *address.lock().expect("no holder panics") = format!("http://{}", gateway.addr());
    let ask = |host: &str| {
        seen.lock().expect("no holder panics").clear();
        let _browser = Browser::open(&format!("http://{host}:{port}/page"));
        let (of, value) = told.recv_timeout(CHROMIUM_PATIENCE).expect("the page tells");
        assert_eq!(of, format!("{host}:{port}"));
        (value, seen.lock().expect("no holder panics").clone())
    };
    let (allowed, asked) = ask("127.0.0.1");
    let expected = json!({
        "simple": "200 GET /some/simple yes",
        "hidden": "200 GET /some/hidden null",
        "preflight": "200 PUT /some/put",
        "method": "TypeError",
        "header": "TypeError",
        "cookie": "200 GET /some/cookie who=rose",
        "cookieAndPreflight": "200 PUT /some/both who=rose",
        "refused": "401 {\"message\":\"Missing API key in request\"}",
        "open": "200 GET /open/simple",
        "openWithCookie": "TypeError",
        "forced": "200 PATCH /forced/cookie who=rose",
        "none": "TypeError",
    });
    assert_eq!(allowed, expected);
    // Preflights end at the gateway; requests that they forbid are not sent.
    let of_some = ["GET /some/simple", "GET /some/hidden", "PUT /some/put", "GET /some/cookie", "PUT /some/both"];
    let others = ["GET /open/simple", "GET /open/cookie", "PATCH /forced/cookie", "GET /none/simple"];
    assert_eq!(asked, [&of_some[..], &others].concat());

    let (refused, asked) = ask("localhost");
    let expected = json!({
        "simple": "TypeError",
        "hidden": "TypeError",
        "preflight": "TypeError",
        "method": "TypeError",
        "header": "TypeError",
        "cookie": "TypeError",
        "cookieAndPreflight": "TypeError",
        "refused": "TypeError",
        "open": "200 GET /open/simple",
        "openWithCookie": "TypeError",
        "forced": refused["forced"].clone(),
        "none": "TypeError",
    });
    assert_eq!(refused, expected);
    // `**` allows every origin; whether a cookie goes to another site is the browser's own rule.
    assert!(refused["forced"].as_str().is_some_and(|text| text.starts_with("200 PATCH /forced/cookie")), "{refused}");
    assert!(asked.iter().all(|line| !line.starts_with("PUT") && !line.starts_with("OPTIONS")), "{asked:?}");
    gateway.assert_healthy();
}
