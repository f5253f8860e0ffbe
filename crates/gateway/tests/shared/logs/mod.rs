//! Receivers of logs and traces for end-to-end tests: doubles that note their requests, rsyslog, and the counts of the metrics.

pub(crate) mod otlp;
pub(crate) mod strict;

use crate::shared::STILLGATE;
use crate::shared::measured::MeasuredGateway;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use stillgate_testkit::{BufferedSocket, Gateway, Head, Process, ReservedPort, Setup, Upstream, eventually};

/// A request's head and body.
type Got = (Head, Vec<u8>);

/// What a receiver has received.
#[derive(Clone, Default)]
pub(crate) struct ReceivedLogs {
    got: Arc<Mutex<Vec<Got>>>,
    accepted: Arc<AtomicUsize>,
}

impl ReceivedLogs {
    pub(crate) fn requests(&self) -> usize {
        self.got.lock().expect("no panic").len()
    }

    pub(crate) fn last(&self) -> (Head, Vec<u8>) {
        self.got.lock().expect("no panic").last().expect("a request").clone()
    }

    /// Bytes of the longest body.
    pub(crate) fn longest(&self) -> usize {
        self.got.lock().expect("no panic").iter().map(|(_, body)| body.len()).max().unwrap_or_default()
    }

    pub(crate) fn heads(&self) -> Vec<Head> {
        self.got.lock().expect("no panic").iter().map(|(head, _)| head.clone()).collect()
    }

    /// The entries of all requests, whose bodies are JSON.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let got = self.got.lock().expect("no panic");
        got.iter().flat_map(|(_, body)| entries(body)).collect()
    }

    /// How many entries were in the requests that were answered with 200.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst) as u64
    }
}

fn entries(body: &[u8]) -> Vec<Value> {
    match serde_json::from_slice(body).expect("JSON") {
        Value::Array(entries) => entries,
        entry => vec![entry],
    }
}

/// The entries that have arrived in the end.
pub(crate) fn entries_of(seen: &ReceivedLogs) -> Vec<Value> {
    eventually("the entries", || seen.requests() > 0);
    seen.entries()
}

/// A server that answers its requests, counted from 0, with these statuses; 0: it closes the connection instead.
pub(crate) fn receiver(status: impl Fn(usize) -> u16 + Send + Sync + 'static) -> (Upstream, ReceivedLogs) {
    let seen = ReceivedLogs::default();
    let noted = seen.clone();
    let serve = move |connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            let status = {
                let mut got = noted.got.lock().expect("no panic");
                let status = status(got.len());
                got.push((request.head, request.body.clone()));
                status
            };
            if status == 0 {
                return;
            }
            if status == 200 && request.body.starts_with(b"[") {
                noted.accepted.fetch_add(entries(&request.body).len(), Ordering::SeqCst);
            }
            let length = if status == 204 { "" } else { "Content-Length: 0\r\n" };
            if connection.try_send(format!("HTTP/1.1 {status} Status\r\n{length}\r\n")).is_err() {
                return;
            }
        }
    };
    (Upstream::serve(serve), seen)
}

/// A server that reads nothing and answers nothing.
pub(crate) fn stalled() -> Upstream {
    Upstream::serve(|connection| {
        while !connection.is_closed() {
            std::thread::yield_now();
        }
    })
}

/// The parts of Elasticsearch's API that are used: its version, and `_bulk`.
pub(crate) fn elasticsearch(version: &'static str) -> (Upstream, ReceivedLogs) {
    let seen = ReceivedLogs::default();
    let noted = seen.clone();
    let serve = move |connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            let answer = match request.head.method_and_target() {
                ("GET", "/") => format!("{{\"version\":{{\"number\":\"{version}\"}}}}"),
                ("POST", "/_bulk") => "{\"errors\":false}".to_owned(),
                other => panic!("Elasticsearch has no {other:?}"),
            };
            noted.got.lock().expect("no panic").push((request.head, request.body));
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()));
        }
    };
    (Upstream::serve(serve), seen)
}

/// All bytes that came over TCP.
#[derive(Clone, Default)]
pub(crate) struct TcpBytes(Arc<Mutex<Vec<u8>>>);

impl TcpBytes {
    /// A server that reads to the end of each connection.
    pub(crate) fn lines() -> (Upstream, TcpBytes) {
        let collected = TcpBytes::default();
        let noted = collected.clone();
        let serve = move |connection: &mut BufferedSocket| {
            if let Ok(bytes) = connection.read_to_end() {
                noted.0.lock().expect("no panic").extend(bytes);
            }
        };
        (Upstream::serve(serve), collected)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").clone()
    }
}

/// One route that takes everything, with a plugin; `more` are other resources.
pub(crate) fn route(node: &Upstream, plugin: &str, more: &str) -> Setup {
    Setup::resources(format!(
        "upstreams: [{{id: u, type: roundrobin, nodes: {{\"{}\": 1}}}}]\n\
         routes:\n  - id: r\n    uri: /*\n    upstream_id: u\n    plugins:\n      {plugin}\n{more}",
        node.addr()
    ))
}

/// A gateway's setup with `http-logger`.
pub(crate) fn http_logger(node: &Upstream, receiver: &Upstream, keys: &str) -> Setup {
    let uri = format!("http://{}/logs?x=1", receiver.addr());
    route(node, &format!("http-logger: {{uri: \"{uri}\", auth_header: \"Basic c2VjcmV0\", {keys}}}"), "")
}

/// Entries of a plugin that have arrived.
pub(crate) fn sent(measured: &MeasuredGateway, plugin: &str) -> u64 {
    measured.scrape().sum("stillgate_logger_sent_total", &[("plugin", plugin)]) as u64
}

/// Entries of a plugin that are lost, for whatever reason.
pub(crate) fn dropped(measured: &MeasuredGateway, plugin: &str) -> u64 {
    measured.scrape().sum("stillgate_logger_dropped_total", &[("plugin", plugin)]) as u64
}

/// The output of `stillgate check` for a configuration.
pub(crate) fn check(gateway: &Gateway, text: &str) -> String {
    let file = gateway.dir().join("checked.yaml");
    std::fs::write(&file, text).expect("write a file");
    let output = Command::new(STILLGATE).args(["check", "--offline"]).arg(&file).output().expect("run stillgate");
    assert!(!output.status.success(), "{text}");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// rsyslog, which writes each entry to a file: host, application, facility, severity and message.
pub(crate) struct Rsyslog {
    port: ReservedPort,
    file: PathBuf,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Rsyslog {
    pub(crate) fn start(sock_type: &str) -> Rsyslog {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = ReservedPort::for_udp_too();
        let (file, config) = (folder.path().join("messages"), folder.path().join("rsyslog.conf"));
        let text = format!(
            "global(workDirectory=\"{dir}\" maxMessageSize=\"64k\")\nmodule(load=\"im{sock_type}\")\n\
             template(name=\"t\" type=\"string\" string=\"%HOSTNAME%|%APP-NAME%|%syslogfacility-text%|%syslogseverity-text%|%msg%\\n\")\n\
             input(type=\"im{sock_type}\" address=\"127.0.0.1\" port=\"{port}\" ruleset=\"r\")\n\
             ruleset(name=\"r\") {{ action(type=\"omfile\" file=\"{file}\" template=\"t\") }}\n",
            dir = folder.path().display(),
            port = port.addr().port(),
            file = file.display(),
        );
        std::fs::write(&config, text).expect("write a file");
        let mut command = Command::new("rsyslogd");
        command.arg("-n").arg("-f").arg(&config).arg("-i").arg(folder.path().join("pid"));
        let process = Process::spawn("rsyslog", &mut command, &folder.path().join("log"));
        let pid = folder.path().join("pid");
        eventually("rsyslog to be up", || pid.exists());
        if sock_type == "tcp" {
            eventually("rsyslog to listen", || std::net::TcpStream::connect(port.addr()).is_ok());
        } else {
            let wanted = format!(":{:04X} ", port.addr().port());
            let bound = || std::fs::read_to_string("/proc/net/udp").is_ok_and(|text| text.contains(&wanted));
            eventually("rsyslog to listen", bound);
        }
        Rsyslog { port, file, _process: process, _folder: folder }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.addr().port()
    }

    pub(crate) fn messages(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}
