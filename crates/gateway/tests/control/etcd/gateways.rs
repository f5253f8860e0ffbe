//! Gateways on a real etcd: their setup, requests of an admin, load, and a comparison with one that starts from scratch.

use crate::shared::STILLGATE;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use stillgate_testkit::{BufferedSocket, Client, EtcdServer, Gateway, Head, Setup, eventually, pause_between_requests};

pub(crate) const ADMIN_KEY: &str = "the-admin-key-of-these-tests";

/// Failures of a load that are shown.
const FAILURES_MAX: usize = 5;

/// A gateway whose resources are in an etcd. `keys`: further ones of `gateway.config.etcd`, each with a comma before it.
pub(crate) fn setup(endpoints: &[String], keys: &str) -> Setup {
    setup_within(endpoints, "50s", keys)
}

/// Like `setup`, with a timeout for each request to etcd. Other tests use a long one: a running etcd answers in the end, and a
/// stopped one refuses connections.
pub(crate) fn setup_within(endpoints: &[String], timeout: &str, keys: &str) -> Setup {
    let etcd = format!("{{endpoints: {endpoints:?}, timeout: {timeout}{keys}}}");
    // The admin section goes on here.
    Setup::resources("").gateway(&format!("  key: {ADMIN_KEY}\nconfig: {{source: etcd, etcd: {etcd}}}"))
}

/// Starts one on all members of an etcd.
#[track_caller]
pub(crate) fn start(etcd: &EtcdServer, members: usize) -> Gateway {
    Gateway::start(STILLGATE, &setup(&endpoints(etcd, members), ""))
}

pub(crate) fn endpoints(etcd: &EtcdServer, members: usize) -> Vec<String> {
    (0..members).map(|member| etcd.endpoint(member)).collect()
}

/// Sends a request to the Admin API: status, head and body of the answer. `fields`: further lines of the request's head.
#[track_caller]
pub(crate) fn ask(gateway: &Gateway, request_line: &str, fields: &str, body: &Value) -> (u16, Head, Value) {
    let mut connection = BufferedSocket::new(TcpStream::connect(gateway.admin_addr()).expect("connect"));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    connection.send(format!(
        "{request_line} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {ADMIN_KEY}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let response = connection.expect_response(request_line.split(' ').next().expect("a method"));
    let body = serde_json::from_slice(&response.body).unwrap_or_default();
    (response.head.status(), response.head, body)
}

/// Puts a resource through the Admin API, which must take it.
#[track_caller]
pub(crate) fn put(gateway: &Gateway, path: &str, body: &Value) -> Head {
    let (status, head, answer) = ask(gateway, &format!("PUT /apisix/admin/{path}"), "", body);
    assert!([200, 201].contains(&status), "{path}: {status} {answer}");
    head
}

/// A route that takes one path to a node.
pub(crate) fn route(uri: &str, node: SocketAddr) -> Value {
    json!({"uri": uri, "upstream": {"type": "roundrobin", "nodes": {node.to_string(): 1}}})
}

/// The status of one `GET`.
#[track_caller]
pub(crate) fn status(gateway: &Gateway, target: &str) -> u16 {
    gateway.get(target).head.status()
}

#[track_caller]
pub(crate) fn await_status(gateway: &Gateway, target: &str, expected: u16) {
    let mut last = 0;
    let is_there = || {
        last = status(gateway, target);
        last == expected
    };
    let waiting = std::panic::AssertUnwindSafe(|| eventually(&format!("{target}: {expected}"), is_there));
    if let Err(panic) = std::panic::catch_unwind(waiting) {
        eprintln!("{target}: {last} instead of {expected}\n{}", gateway.status());
        std::panic::resume_unwind(panic);
    }
}

/// The status of `/v1/health`.
#[track_caller]
pub(crate) fn health(gateway: &Gateway) -> u16 {
    Client::connect(gateway.admin_addr()).get("/v1/health").head.status()
}

#[track_caller]
pub(crate) fn generation(gateway: &Gateway) -> u64 {
    gateway.status()["config"]["generation"].as_u64().expect("a number")
}

/// Rejected resources: kind, id and what is served instead, in order.
#[track_caller]
pub(crate) fn rejected(gateway: &Gateway) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let status = gateway.status();
    let rejected = status["rejected"].as_array().expect("a list").iter();
    let mut rejected: Vec<_> = rejected.map(|of| (text(&of["kind"]), text(&of["id"]), text(&of["serving"]))).collect();
    rejected.sort();
    rejected
}

/// All resources, with the revisions that made them.
#[track_caller]
fn resources(gateway: &Gateway) -> Value {
    let (status, _, mut whole) = ask(gateway, "GET /apisix/admin/configs", "", &Value::Null);
    assert_eq!(status, 200, "{whole}");
    // Values that only that gateway counts.
    let keys = whole.as_object_mut().expect("a map");
    keys.retain(|key, _| !key.ends_with("_conf_version") && !key.starts_with("X-"));
    whole
}

/// Waits until a gateway has the same resources as one that starts now, and serves them.
#[track_caller]
pub(crate) fn await_equal(gateway: &Gateway, setup: &Setup) {
    let fresh = Gateway::start(STILLGATE, setup);
    let seen = |gateway: &Gateway| (resources(gateway), rejected(gateway));
    eventually("the state to be that of a gateway that was just started", || seen(gateway) == seen(&fresh));
}

/// Requests one after the other, none of which may fail.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Vec<String>)>,
}

impl Load {
    pub(crate) fn start(addr: SocketAddr, target: &'static str) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            let (mut answered, mut failures) = (0, Vec::new());
            let mut client = Client::connect(addr);
            while !ends.load(Ordering::Relaxed) && failures.len() < FAILURES_MAX {
                let is_last = match client.try_request("GET", target, b"") {
                    Ok(answer) if answer.head.status() == 200 => {
                        answered += 1;
                        answer.head.get("connection") == Some("close")
                    }
                    Ok(answer) => {
                        failures.push(format!("{answer:?}"));
                        true
                    }
                    Err(broken) => {
                        failures.push(format!("{broken:?}"));
                        true
                    }
                };
                if is_last {
                    client = Client::connect(addr);
                }
                pause_between_requests();
            }
            (answered, failures)
        });
        Load { over, thread }
    }

    #[track_caller]
    pub(crate) fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        let (answered, failures) = self.thread.join().expect("no panic");
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(answered > 0, "there was no load");
    }
}
