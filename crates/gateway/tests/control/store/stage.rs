//! A gateway whose resources are in a store, and a client of its Admin API.

use crate::shared::STILLGATE;
use serde_json::Value as Json;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use stillgate_testkit::{BufferedSocket, Gateway, Head, MessageError, Setup};

/// A key of the Admin API, where the test configures one.
pub(crate) const KEY: &str = "key-of-an-admin-0123456789";

/// A gateway with a store, empty at first.
pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) admin: Admin,
}

/// A client of the Admin API, with a new connection for each request.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) addr: SocketAddr,
    pub(crate) key: String,
}

/// An answer of the Admin API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

/// Lines of `gateway:` that put resources into a store.
pub(crate) const STORE: &str = "config: {source: store, store: \"{dir}/config.redb\", secret_folders: [\"{dir}\"]}";

impl Stage {
    /// Starts with the key that the gateway makes.
    #[track_caller]
    pub(crate) fn start() -> Stage {
        Stage::with(&Setup::default())
    }

    /// Starts with [`STORE`] and further keys.
    #[track_caller]
    pub(crate) fn with(setup: &Setup) -> Stage {
        let mut setup = setup.clone();
        setup.resources = Some(String::new());
        if !setup.gateway.contains("source:") {
            setup = setup.gateway(STORE);
        }
        Stage::of(Gateway::start(STILLGATE, &setup))
    }

    fn of(gateway: Gateway) -> Stage {
        let made = gateway.dir().join("config.redb.admin-key");
        let key = std::fs::read_to_string(made).unwrap_or_else(|_| KEY.to_owned());
        let admin = Admin { addr: gateway.admin_addr(), key };
        Stage { gateway, admin }
    }

    pub(crate) fn store_file(&self) -> PathBuf {
        self.gateway.dir().join("config.redb")
    }

    /// The status of a `GET` by a client of its own.
    #[track_caller]
    pub(crate) fn get(&self, target: &str) -> u16 {
        self.gateway.get(target).head.status()
    }

    /// Ends it with this signal and starts it again.
    #[track_caller]
    pub(crate) fn restart(&mut self, signal: &str) {
        self.gateway.signal(signal);
        self.gateway.wait();
        self.gateway.restart(STILLGATE);
    }
}

impl Admin {
    /// A request with the key.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, &format!("X-API-KEY: {}\r\n", self.key), body.as_bytes())
    }

    /// A request with these header lines.
    #[track_caller]
    pub(crate) fn ask_with(&self, method: &str, path: &str, lines: &str, body: &[u8]) -> Answer {
        self.try_ask(method, path, lines, body).unwrap_or_else(|broken| panic!("{method} {path}: {broken:?}"))
    }

    /// Like [`Admin::ask_with`]; the error says what came instead of an answer.
    pub(crate) fn try_ask(&self, method: &str, path: &str, lines: &str, body: &[u8]) -> Result<Answer, MessageError> {
        let refused = |_| MessageError::Closed;
        let mut connection = BufferedSocket::new(TcpStream::connect(self.addr).map_err(refused)?);
        let host = if lines.to_ascii_lowercase().contains("host:") { "" } else { "Host: localhost\r\n" };
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\n{host}{lines}Content-Length: {length}\r\n\r\n");
        // It may be answered before all of it is read.
        let sent = connection.try_send([head.as_bytes(), body].concat());
        let answer = connection.read_response(method);
        let message = if sent.is_err() && answer.is_err() { Err(MessageError::Reset(Vec::new())) } else { answer }?;
        Ok(Answer { status: message.head.status(), head: message.head, body: message.body })
    }

    /// Puts a resource, which must be taken.
    #[track_caller]
    pub(crate) fn put(&self, resource: &str, document: &Json) -> Answer {
        let answer = self.ask("PUT", &format!("/apisix/admin/{resource}"), &document.to_string());
        assert!(matches!(answer.status, 200 | 201), "PUT {resource} {document}: {answer:?}");
        answer
    }

    /// The document of a resource that exists.
    #[track_caller]
    pub(crate) fn read(&self, resource: &str) -> Json {
        let answer = self.ask("GET", &format!("/apisix/admin/{resource}"), "");
        assert_eq!(answer.status, 200, "GET {resource}: {answer:?}");
        answer.json()
    }

    /// Deletes a resource, which must be there.
    #[track_caller]
    pub(crate) fn delete(&self, resource: &str) {
        let answer = self.ask("DELETE", &format!("/apisix/admin/{resource}"), "");
        assert_eq!(answer.status, 200, "DELETE {resource}: {answer:?}");
    }

    #[track_caller]
    pub(crate) fn revision(&self) -> u64 {
        let answer = self.ask("GET", "/v1/status", "");
        answer.json()["revision"].as_u64().unwrap_or_else(|| panic!("no revision: {answer:?}"))
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The message of an error.
    #[track_caller]
    pub(crate) fn error(&self) -> String {
        self.json()["error_msg"].as_str().unwrap_or_default().to_owned()
    }
}

/// An upstream with this one node.
pub(crate) fn upstream(node: SocketAddr) -> Json {
    serde_json::json!({ "type": "roundrobin", "nodes": { node.to_string(): 1 } })
}
