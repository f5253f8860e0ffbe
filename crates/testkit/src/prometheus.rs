//! A real Prometheus server that scrapes one target and answers queries about it.
//!
//! Prometheus 2.42 (Debian 12's) has no option for the format: it requests OpenMetrics first, and protobuf first with
//! native histograms. So a forced format goes through our relay, which replaces `Accept` and records the `Content-Type`
//! of each answer; [`ScrapeFormat::Negotiated`] goes directly to the target.

use crate::connection::BufferedSocket;
use crate::exposition::{
    ACCEPT_OPENMETRICS, ACCEPT_PROTOBUF, ACCEPT_TEXT, Labels, ParsedExemplar, elements, labels, number, word,
};
use crate::message::{Message, MessageError};
use crate::peers::require_tool;
use crate::port::ReservedPort;
use crate::process::Process;
use crate::upstream::Upstream;
use crate::{eventually, eventually_within, holds_within};
use serde_json::Value;
use std::fmt::Write;
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// How long a query may take to succeed: Prometheus passes on new targets only every 5 s, at two stages, so the first
/// scrape comes up to 10 s after the start.
const QUERY_PATIENCE: Duration = Duration::from_secs(240);

/// Content types kept; a test uses the first few.
const SERVED_MAX: usize = 1000;

/// The job's name, which is the label `job` of every series.
pub const JOB: &str = "stillgate";

/// The format that Prometheus gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrapeFormat {
    /// As requested by Prometheus itself.
    Negotiated,
    /// Text 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Delimited protobuf.
    Protobuf,
}

impl ScrapeFormat {
    /// The three that can be forced.
    pub const FORCED: [Self; 3] = [Self::Text, Self::OpenMetrics, Self::Protobuf];

    fn accept(self) -> Option<&'static str> {
        match self {
            Self::Negotiated => None,
            Self::Text => Some(ACCEPT_TEXT),
            Self::OpenMetrics => Some(ACCEPT_OPENMETRICS),
            Self::Protobuf => Some(ACCEPT_PROTOBUF),
        }
    }
}

/// The target, and how to scrape it.
#[derive(Debug, Clone)]
pub struct PrometheusSetup {
    /// The exporter.
    pub target: SocketAddr,
    /// Including its query, for example `?name[]=x`.
    pub path: String,
    /// The format.
    pub format: ScrapeFormat,
    /// `--enable-feature=native-histograms`.
    pub native_histograms: bool,
    /// The interval of scrapes, and the timeout of each.
    pub interval: Duration,
}

impl PrometheusSetup {
    /// `/metrics` of `target` every two seconds, as Prometheus does by default. A scrape that takes longer fails, and
    /// its samples are then absent.
    pub fn of(target: SocketAddr) -> Self {
        Self {
            target,
            path: "/metrics".to_owned(),
            format: ScrapeFormat::Negotiated,
            native_histograms: false,
            interval: Duration::from_secs(2),
        }
    }

    fn render(&self, target: SocketAddr) -> String {
        let interval_ms = self.interval.as_millis();
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let mut yaml = format!(
            "global: {{scrape_interval: {interval_ms}ms, scrape_timeout: {interval_ms}ms}}\n\
             scrape_configs:\n  - job_name: {JOB}\n    metrics_path: {path}\n\
             \x20   static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        if !query.is_empty() {
            yaml.push_str("    params:\n");
            for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
                writeln!(yaml, "      \"{name}\": [\"{value}\"]").expect("writing to a String cannot fail");
            }
        }
        yaml
    }
}

/// Prometheus' view of its target.
#[derive(Debug, Clone, PartialEq)]
pub struct ScrapeHealth {
    /// `up`, `down`, or `unknown` before the first scrape.
    pub health: String,
    /// Why the last scrape failed; empty if it did not.
    pub last_error: String,
    /// Duration of the last scrape, in seconds.
    pub duration_s: f64,
}

/// A running server. It ends when dropped, and its data is deleted.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    port: ReservedPort,
    relay: Option<Relay>,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    /// If it is missing or does not start.
    #[track_caller]
    pub fn start(setup: &PrometheusSetup) -> Self {
        require_tool("prometheus", "prometheus");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let port = crate::port::ReservedPort::new();
        let relay = setup.format.accept().map(|accept| Relay::start(setup.target, accept));
        let target = relay.as_ref().map_or(setup.target, |relay| relay.server.addr());
        let config = dir.path().join("prometheus.yml");
        std::fs::write(&config, setup.render(target)).expect("write prometheus.yml");
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={}", port.addr()))
            .arg("--log.level=warn");
        let native = if setup.native_histograms { ",native-histograms" } else { "" };
        command.arg(format!("--enable-feature=exemplar-storage{native}"));
        let process = Process::spawn("prometheus", &mut command, &dir.path().join("prometheus.log"));
        let mut server = Self { process, port, relay, _dir: dir };
        eventually("Prometheus to be ready", || {
            assert!(server.process.ended().is_none(), "Prometheus ended at its start:\n{}", server.process.log());
            let listens = TcpStream::connect(server.addr()).is_ok();
            listens && server.get("/-/ready").is_some()
        });
        server
    }

    /// The address of its API.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The current instant vector (or scalar) of an expression. A native histogram has no single number; use
    /// `histogram_count()` and the like.
    ///
    /// # Panics
    /// If Prometheus refuses the expression.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<(Labels, f64)> {
        let data = self.ask(&format!("/api/v1/query?query={}", percent_encoded(expression)));
        if data["resultType"] == "scalar" {
            return number(&data["result"][1]).map(|value| (Labels::new(), value)).into_iter().collect();
        }
        let results = elements(&data["result"]).iter();
        results.filter_map(|result| Some((labels(&result["metric"]), number(&result["value"][1])?))).collect()
    }

    /// Queries until `predicate` holds, and returns that result.
    ///
    /// # Panics
    /// If it does not in time, with the last result and the target's health.
    #[track_caller]
    pub fn wait_for(
        &self,
        expression: &str,
        mut predicate: impl FnMut(&[(Labels, f64)]) -> bool,
    ) -> Vec<(Labels, f64)> {
        let mut last = Vec::new();
        let has_come_true = holds_within(QUERY_PATIENCE, || {
            last = self.query(expression);
            predicate(&last)
        });
        assert!(has_come_true, "{expression} has not come true; last: {last:?}; target: {:?}", self.targets());
        last
    }

    /// The exemplars of the last ten minutes of the series that an expression selects.
    ///
    /// # Panics
    /// If Prometheus refuses the expression.
    #[track_caller]
    pub fn exemplars(&self, expression: &str) -> Vec<ParsedExemplar> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let query = percent_encoded(expression);
        let data = self.ask(&format!("/api/v1/query_exemplars?query={query}&start={}&end={}", now - 600, now + 60));
        let exemplars = elements(&data).iter().flat_map(|series| elements(&series["exemplars"]));
        let exemplar = |found: &Value| ParsedExemplar {
            labels: labels(&found["labels"]),
            value: number(&found["value"]).expect("an exemplar has a value"),
            timestamp: found["timestamp"].as_f64(),
        };
        exemplars.map(exemplar).collect()
    }

    /// Waits until an expression has exactly one value and that is `expected`.
    ///
    /// # Panics
    /// If that does not happen in time.
    #[track_caller]
    pub fn wait_for_value(&self, expression: &str, expected: f64) {
        self.wait_for(expression, |result| matches!(result, [(_, value)] if *value == expected));
    }

    /// Waits for a successful scrape.
    ///
    /// # Panics
    /// If a scrape fails other than by its timeout, with Prometheus' reason, or none comes in time.
    #[track_caller]
    pub fn wait_until_up(&self) {
        eventually_within(QUERY_PATIENCE, "a good scrape by Prometheus", || {
            let targets = self.targets();
            for target in &targets {
                // On a busy machine the next one may come in time.
                let is_late = target.last_error.contains("context deadline exceeded");
                assert!(target.health != "down" || is_late, "Prometheus cannot scrape: {}", target.last_error);
            }
            targets.iter().any(|target| target.health == "up")
        });
    }

    /// The target's health; empty before it was discovered.
    pub fn targets(&self) -> Vec<ScrapeHealth> {
        let data = self.ask("/api/v1/targets?state=active");
        let health = |target: &Value| ScrapeHealth {
            health: word(&target["health"]),
            last_error: word(&target["lastError"]),
            duration_s: target["lastScrapeDuration"].as_f64().unwrap_or_default(),
        };
        elements(&data["activeTargets"]).iter().map(health).collect()
    }

    /// The `Content-Type` of each answer so far; only known for forced formats.
    pub fn served(&self) -> Vec<String> {
        let served = self.relay.as_ref().map(|relay| relay.served.lock().expect("no thread panics with it").clone());
        served.unwrap_or_default()
    }

    /// The server's log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// `data` of an API answer.
    #[track_caller]
    fn ask(&self, target: &str) -> Value {
        let response = Client::connect(self.addr()).get(target);
        let mut answer: Value = serde_json::from_slice(&response.body).expect("Prometheus answers JSON");
        assert_eq!(answer["status"], "success", "{target}: {answer}");
        answer["data"].take()
    }

    /// The body of a 200, or `None`.
    fn get(&self, target: &str) -> Option<Vec<u8>> {
        let response = Client::connect(self.addr()).try_request("GET", target, b"").ok()?;
        (response.head.status() == 200).then_some(response.body)
    }
}

/// A relay between Prometheus and the target that replaces `Accept`. It reads a whole exposition before it passes it
/// on.
#[derive(Debug)]
struct Relay {
    server: Upstream,
    served: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    fn start(target: SocketAddr, accept: &'static str) -> Self {
        let served = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&served);
        let server = Upstream::serve(move |connection| {
            // Prometheus sees that the target is down, too: its connection is closed without an answer.
            while let Some(content_type) = relay_one(connection, target, accept) {
                let mut noted = noted.lock().expect("no thread panics with it");
                if noted.len() < SERVED_MAX {
                    noted.push(content_type);
                }
            }
        });
        Self { server, served }
    }
}

/// One exchange; the `Content-Type` of its answer.
fn relay_one(prometheus: &mut BufferedSocket, target: SocketAddr, accept: &str) -> Option<String> {
    let request = prometheus.read_request().ok()?;
    let mut head = format!("{}\r\nAccept: {accept}\r\n", request.head.start);
    for (name, value) in request.head.fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("accept")) {
        write!(head, "{name}: {value}\r\n").expect("writing to a String cannot fail");
    }
    let mut exporter = BufferedSocket::new(TcpStream::connect(target).ok()?);
    exporter.try_send(head + "\r\n").ok()?;
    let response = exporter.read_response("GET").ok()?;
    let mut head = format!("{}\r\nContent-Length: {}\r\n", response.head.start, response.body.len());
    let hop = ["content-length", "transfer-encoding", "connection"];
    for (name, value) in &response.head.fields {
        if !hop.contains(&name.to_ascii_lowercase().as_str()) {
            write!(head, "{name}: {value}\r\n").expect("writing to a String cannot fail");
        }
    }
    let content_type = response.head.get("content-type").unwrap_or_default().to_owned();
    prometheus.try_send([head.as_bytes(), b"\r\n", &response.body].concat()).ok()?;
    Some(content_type)
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            other => write!(encoded, "%{other:02X}").expect("writing to a String cannot fail"),
        }
    }
    encoded
}

// A client that decides where its bytes are split.

/// After this many pieces the other side no longer gets the core after each: on a machine where others compute all the
/// time, that costs milliseconds each time, and minutes for seventy thousand pieces.
const YIELDS_MAX: usize = 1_000;

/// How a message is cut into writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one write.
    Whole,
    /// A write for every byte.
    Bytewise,
    /// A write after every LF, and between CR and LF.
    AtLineEnds,
}

impl Delivery {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Whole, Self::Bytewise, Self::AtLineEnds];

    fn pieces(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Self::Whole => vec![bytes],
            Self::Bytewise => bytes.chunks(1).collect(),
            Self::AtLineEnds => bytes
                .split_inclusive(|&byte| byte == b'\r')
                .flat_map(|piece| piece.split_inclusive(|&byte| byte == b'\n'))
                .collect(),
        }
    }
}

/// A connection to the gateway; it dereferences to [`BufferedSocket`].
#[derive(Debug)]
pub struct Client(BufferedSocket);

impl Client {
    /// Connects.
    ///
    /// # Panics
    /// If nothing listens there.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Self {
        Self(BufferedSocket::new(TcpStream::connect(addr).expect("connect to the gateway")))
    }

    /// Sends `bytes` in pieces. Stops without an error when the peer has closed: it may refuse half-way.
    pub fn deliver(&mut self, bytes: &[u8], how: Delivery) {
        for (at, piece) in how.pieces(bytes).into_iter().enumerate() {
            if self.0.try_send(piece).is_err() {
                return;
            }
            if at < YIELDS_MAX {
                std::thread::yield_now();
            }
        }
    }

    /// One `GET` and its response, on this connection.
    ///
    /// # Panics
    /// If there is no complete response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Message {
        self.request("GET", target, b"")
    }

    /// One request with a body of known length (none if it is empty), and its response.
    ///
    /// # Panics
    /// If there is no complete response.
    #[track_caller]
    pub fn request(&mut self, method: &str, target: &str, body: &[u8]) -> Message {
        self.try_request(method, target, body).unwrap_or_else(|broken| panic!("{method} {target}: {broken:?}"))
    }

    /// As [`Client::request`].
    ///
    /// # Errors
    /// If there is no complete response.
    pub fn try_request(&mut self, method: &str, target: &str, body: &[u8]) -> Result<Message, MessageError> {
        let length = match body.len() {
            0 => String::new(),
            len => format!("Content-Length: {len}\r\n"),
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n");
        let sent = self.0.try_send([head.as_bytes(), body].concat());
        // A response may come before the whole body was sent; it counts.
        let response = self.0.read_response(method);
        if sent.is_err() && response.is_err() { Err(MessageError::Reset(Vec::new())) } else { response }
    }

    /// An accepted connection, to deliver responses in pieces, too.
    pub fn from_connection(connection: BufferedSocket) -> Self {
        Self(connection)
    }

    /// Returns the connection.
    pub fn into_connection(self) -> BufferedSocket {
        self.0
    }
}

impl Deref for Client {
    type Target = BufferedSocket;

    fn deref(&self) -> &BufferedSocket {
        &self.0
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut BufferedSocket {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exporter that reports the requested format in that format (except protobuf, which no test here reads).
    fn exporter() -> Upstream {
        Upstream::serve(|connection| {
            while let Ok(request) = connection.read_request() {
                let accept = request.head.get("accept").unwrap_or_default();
                let (kind, end) = match accept {
                    accept if accept.starts_with("application/openmetrics-text") => {
                        ("application/openmetrics-text; version=1.0.0; charset=utf-8", "# EOF\n")
                    }
                    _ => ("text/plain; version=0.0.4; charset=utf-8", ""),
                };
                let query = request.head.method_and_target().1.contains("?name%5B%5D=asked");
                let body = format!("# TYPE asked gauge\nasked{{query=\"{query}\"}} 7\n{end}");
                let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
                if connection.try_send(head + &body).is_err() {
                    return;
                }
            }
        })
    }

    #[test]
    fn scrapes_and_answers() {
        let exporter = exporter();
        let prometheus = Prometheus::start(&PrometheusSetup::of(exporter.addr()));
        prometheus.wait_for_value("asked", 7.0);
        prometheus.wait_until_up();
        assert_eq!(prometheus.wait_for("asked", |found| found.len() == 1)[0].0["job"], JOB);
        assert_eq!(
            prometheus.wait_for("scalar(asked) + 1", |found| found.iter().any(|it| it.1 > 0.0)),
            [(Labels::new(), 8.0)]
        );
        assert!(prometheus.query("absent_metric").is_empty());
        assert!(prometheus.served().is_empty());
    }

    #[test]
    fn forces_a_format() {
        let exporter = exporter();
        let setup = PrometheusSetup {
            format: ScrapeFormat::Text,
            native_histograms: true,
            path: "/metrics?name[]=asked".to_owned(),
            ..PrometheusSetup::of(exporter.addr())
        };
        let prometheus = Prometheus::start(&setup);
        prometheus.wait_for_value("asked{query=\"true\"}", 7.0);
        assert!(prometheus.served()[0].starts_with("text/plain"));
    }

    #[test]
    fn reports_why_a_scrape_failed() {
        let broken = Upstream::serve(|connection| {
            while connection.read_request().is_ok() {
                connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\na b c\n");
            }
        });
        let prometheus = Prometheus::start(&PrometheusSetup::of(broken.addr()));
        eventually_within(QUERY_PATIENCE, "the failure to be known", || {
            prometheus.targets().iter().any(|target| target.health == "down" && !target.last_error.is_empty())
        });
        prometheus.wait_for_value("up", 0.0);
    }
}

#[cfg(test)]
mod client_tests {
    use super::*;

    #[test]
    fn pieces_add_up() {
        let bytes = b"GET / HTTP/1.1\r\nA: b\n\r\n";
        for how in Delivery::ALL {
            assert_eq!(how.pieces(bytes).concat(), bytes);
        }
        assert_eq!(Delivery::AtLineEnds.pieces(b"a\r\nb\nc"), [&b"a\r"[..], b"\n", b"b\n", b"c"]);
    }
}
