//! A client: requests are written as lines, and the responses form a transcript to compare.
//!
//! ```text
//! PUT /apisix/admin/routes/1 | If-Match: "3" {"uri": "/a"}
//! ```

use crate::control::Memory;
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response};
use http_body_util::BodyExt;
use regex::Regex;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use stillgate_admin::{Page, router};
use stillgate_door::{Access, AdminKey, Guard, Hosts, Peer, Role, loopback};
use tokio::sync::watch;
use tower::ServiceExt;

pub(crate) const LOCAL: &str = "127.0.0.1";

/// Headers that a transcript shows.
const SHOWN: [&str; 8] = [
    "etag",
    "allow",
    "x-stillgate-generation",
    "x-digest",
    "set-cookie",
    "retry-after",
    "connection",
    "x-stillgate-warning",
];

pub(crate) struct Client {
    pub(crate) memory: Arc<Memory>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) access: watch::Sender<Access>,
    pub(crate) router: Router,
    /// Sent with every request.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) peer: IpAddr,
}

pub(crate) fn keys() -> Vec<Arc<AdminKey>> {
    let key = |name: &str, role| Arc::new(AdminKey { name: name.to_owned(), key: format!("{name}-secret"), role });
    vec![key("ci", Role::Admin), key("tv", Role::Viewer)]
}

impl Client {
    /// Makes a client with the key of an admin, at revision 10.
    pub(crate) fn admin() -> Client {
        Client::of(Memory::at_revision(10)).with("x-api-key", "ci-secret")
    }

    pub(crate) fn of(memory: Memory) -> Client {
        let hosts = Hosts::new("gateway.admin.hosts", []);
        let access = Access {
            section: "gateway.admin",
            keys: keys(),
            allow: loopback(),
            hosts,
            is_loopback_reader: false,
            is_loopback_writer: false,
        };
        Client::with_access(memory, access)
    }

    pub(crate) fn with_access(memory: Memory, access: Access) -> Client {
        let memory = Arc::new(memory);
        let (access, receiver) = watch::channel(access);
        let guard = Arc::new(Guard::new(receiver));
        let page = |path, text: &'static str| Page {
            method: Method::GET,
            path,
            summary: "A page of the gateway",
            answer: axum::routing::get(move || async move { text }),
        };
        let pages =
            vec![page("/v1/health", "health"), page("/v1/status", "status"), page("/v1/upstreams", "upstreams")];
        let router = router(memory.clone(), guard.clone(), pages);
        let headers = vec![("host".to_owned(), "127.0.0.1:9180".to_owned())];
        Client { memory, guard, access, router, headers, peer: LOCAL.parse().unwrap() }
    }

    /// Also sends a header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Client {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Client {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn from(mut self, peer: &str) -> Client {
        self.peer = peer.parse().unwrap();
        self
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path).extension(Peer(self.peer));
        for (name, value) in self.headers.iter().filter(|(name, _)| !headers.iter().any(|(own, _)| own == name)) {
            request = request.header(name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap()
    }

    /// Sends a line; returns the status and the text.
    pub(crate) async fn ask(&self, line: &str) -> (u16, String) {
        let (head, body) =
            line.split_once(" {").map_or((line, String::new()), |(head, rest)| (head, format!("{{{rest}")));
        let (head, body) = match head.split_once(" [") {
            Some((head, rest)) if body.is_empty() => (head, format!("[{rest}")),
            Some((head, rest)) => (head, format!("[{rest} {body}")),
            None => (head, body),
        };
        let (head, body) = head
            .split_once(" \"")
            .filter(|_| body.is_empty() && !head.contains('|'))
            .map_or((head, body), |(head, rest)| (head, format!("\"{rest}")));
        let mut parts = head.split(" | ");
        let (method, path) = parts.next().unwrap().split_once(' ').unwrap();
        let headers: Vec<(String, &str)> = parts
            .map(|header| header.split_once(':').unwrap())
            .map(|(name, value)| (name.to_lowercase(), value.trim()))
            .collect();
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let response = self.send(method, path, &headers, body).await;
        let status = response.status().as_u16();
        let mut shown = String::new();
        for name in SHOWN {
            for value in response.headers().get_all(name) {
                write!(shown, " ({name}: {})", value.to_str().unwrap()).unwrap();
            }
        }
        let text = text(response).await;
        (status, format!("{} {}{shown}", status, text.trim_end()).replace(" \n", "\n"))
    }

    /// The transcript of all lines.
    pub(crate) async fn transcript(&self, lines: &[&str]) -> String {
        let mut transcript = String::new();
        for line in lines {
            let (_, answer) = self.ask(line).await;
            writeln!(transcript, "> {line}\n{}", scrub(&answer)).unwrap();
        }
        transcript
    }
}

pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Replaces the parts that differ each time.
fn scrub(text: &str) -> String {
    let times = Regex::new(r#""(create_time|update_time|X-Last-Modified)":1[0-9]{9}\b"#).unwrap();
    let tokens = Regex::new(r"[0-9a-f]{64}").unwrap();
    let text = times.replace_all(text, r#""$1":NOW"#);
    tokens.replace_all(&text, "TOKEN").into_owned()
}
