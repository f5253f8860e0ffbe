//! Expositions: scraped in slow motion, and judged by promtool and Python's `prometheus_client`.
//!
//! A scraper may read a whole exposition, read byte by byte, or disconnect. Whole scrapes are checked as strictly as a picky
//! scraper would: the framing by [`BufferedSocket`], gzip by a reader that accepts exactly one member, as browsers and curl
//! do.
//!
//! Both independent judges are run on a complete text; `prometheus.rs` shows how a scraper treats a live target.

use crate::connection::BufferedSocket;
use crate::message::{Fields, Head, Message};
use crate::peers::require_tool;
use flate2::bufread::GzDecoder;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// One family as `prometheus_client` parsed it.
///
/// It removes `_total` from a counter's name in both formats; sample names are unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedFamily {
    /// Without the suffixes of its samples.
    pub name: String,
    /// `counter`, `gauge`, `histogram`, …; `unknown` if no type was given.
    pub kind: String,
    /// Unescaped.
    pub help: String,
    /// Empty in the text format.
    pub unit: String,
    /// In their order.
    pub samples: Vec<ParsedSample>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedSample {
    /// Including its suffix.
    pub name: String,
    /// Unescaped.
    pub labels: Labels,
    /// Its number.
    pub value: f64,
    /// Seconds since the epoch, if there is one.
    pub timestamp: Option<f64>,
    /// Only OpenMetrics has them.
    pub exemplar: Option<ParsedExemplar>,
}

/// The part after a `#` in OpenMetrics.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedExemplar {
    /// Unescaped.
    pub labels: Labels,
    /// The observation.
    pub value: f64,
    /// Seconds since the epoch, if there is one.
    pub timestamp: Option<f64>,
}

/// `promtool check metrics`: the text format 0.0.4, parsed and linted.
///
/// # Errors
/// The output of promtool, if it has complaints.
///
/// # Panics
/// If promtool is missing.
#[track_caller]
pub fn promtool_check_metrics(text: &str) -> Result<(), String> {
    require_tool("promtool", "prometheus");
    let mut command = Command::new("promtool");
    let output = fed(command.args(["check", "metrics"]), text);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    // Some versions print something on success, others complain with status 0.
    if output.status.success() && said.is_empty() { Ok(()) } else { Err(format!("{}: {said}", output.status)) }
}

/// Reads an exposition with `prometheus_client`, whose OpenMetrics parser is the strictest one.
///
/// # Errors
/// The parser's exception.
///
/// # Panics
/// If Python or the module is missing.
#[track_caller]
pub fn python_families(text: &str, openmetrics: bool) -> Result<Vec<ParsedFamily>, String> {
    let format = if openmetrics { "openmetrics" } else { "text" };
    // Debian's interpreter, which finds Debian's modules.
    let mut command = Command::new("/usr/bin/python3");
    let output = fed(command.args(["-c", include_str!("../assets/families.py"), format]), text);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !error.contains("No module named 'prometheus_client'"),
        "install the Debian package python3-prometheus-client (`cargo xtask test` does it when root)"
    );
    if !output.status.success() {
        return Err(error.lines().last().unwrap_or("no output from Python").to_owned());
    }
    let families: Value = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
    Ok(elements(&families).iter().map(family).collect())
}

/// Runs a program with `text` as its standard input, from a file: a pipe could block on both sides.
#[track_caller]
fn fed(command: &mut Command, text: &str) -> Output {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).expect("write a temporary file");
    let program = command.get_program().to_owned();
    command.stdin(Stdio::from(file)).output().unwrap_or_else(|error| panic!("run {}: {error}", program.display()))
}

fn family(value: &Value) -> ParsedFamily {
    ParsedFamily {
        name: word(&value["name"]),
        kind: word(&value["kind"]),
        help: word(&value["help"]),
        unit: word(&value["unit"]),
        samples: elements(&value["samples"]).iter().map(sample).collect(),
    }
}

fn sample(value: &Value) -> ParsedSample {
    let exemplar = &value["exemplar"];
    ParsedSample {
        name: word(&value["name"]),
        labels: labels(&value["labels"]),
        value: number(&value["value"]).expect("a sample has a value"),
        timestamp: number(&value["timestamp"]),
        exemplar: exemplar.is_object().then(|| ParsedExemplar {
            labels: labels(&exemplar["labels"]),
            value: number(&exemplar["value"]).expect("an exemplar has a value"),
            timestamp: number(&exemplar["timestamp"]),
        }),
    }
}

/// A JSON object of strings as labels.
pub(crate) fn labels(value: &Value) -> Labels {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), word(value))).collect()
}

pub(crate) fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A number as text, as Go and Python write NaN and infinity.
pub(crate) fn number(value: &Value) -> Option<f64> {
    value.as_str()?.parse().ok()
}

/// The `Accept` of Prometheus for text.
pub const ACCEPT_TEXT: &str = "text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
/// The default `Accept` of Prometheus.
pub const ACCEPT_OPENMETRICS: &str =
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
/// The `Accept` of Prometheus with native histograms.
pub const ACCEPT_PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
    encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// The receive buffer of a slow scraper: about the minimum of the kernel, so that the sender feels its slowness.
const SLOW_BUFFER_BYTES: usize = 4096;

/// One exposition as it arrived.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// The status code.
    pub status: u16,
    /// The response's fields, in order.
    pub headers: Fields,
    /// Decoded.
    pub body: Vec<u8>,
    /// Bytes of the body before decoding.
    pub encoded_bytes: usize,
}

impl Scrape {
    /// The first value of a field; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    /// The body of a text format.
    ///
    /// # Panics
    /// If the scrape failed or its text is not UTF-8.
    #[track_caller]
    pub fn text(&self) -> &str {
        assert_eq!(self.status, 200, "{self:?}");
        std::str::from_utf8(&self.body).expect("an exposition is UTF-8")
    }

    fn of(response: Message) -> Self {
        let encoded_bytes = response.body.len();
        let status = response.head.status();
        let body = match response.head.get("content-encoding") {
            Some("gzip") => gunzip(&response.body),
            None => response.body,
            Some(other) => panic!("Content-Encoding {other:?} was not requested"),
        };
        Self { status, headers: response.head.fields, body, encoded_bytes }
    }
}

/// Scrapes once, on its own connection.
///
/// # Panics
/// If the response is incomplete, or wrongly framed or compressed.
#[track_caller]
pub fn scrape(addr: SocketAddr, path: &str, accept: &str, gzip: bool) -> Scrape {
    let mut connection = BufferedSocket::new(TcpStream::connect(addr).expect("connect to the exporter"));
    scrape_on(&mut connection, path, accept, gzip)
}

/// [`scrape`] on a connection that is kept.
///
/// # Panics
/// As [`scrape`].
#[track_caller]
pub fn scrape_on(connection: &mut BufferedSocket, path: &str, accept: &str, gzip: bool) -> Scrape {
    connection.send(request(path, accept, gzip));
    Scrape::of(connection.expect_response("GET"))
}

/// A scrape that is read at the test's pace.
#[derive(Debug)]
pub struct SlowScrape {
    stream: TcpStream,
    received: Vec<u8>,
}

impl SlowScrape {
    /// Sends the request and reads nothing.
    ///
    /// # Panics
    /// If nothing listens there.
    #[track_caller]
    pub fn start(addr: SocketAddr, path: &str, accept: &str, gzip: bool) -> Self {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP)).expect("a TCP socket");
        // Set before connecting, otherwise the window is already promised.
        socket.set_recv_buffer_size(SLOW_BUFFER_BYTES).expect("SO_RCVBUF");
        socket.connect(&addr.into()).expect("connect to the exporter");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(crate::PATIENCE)).expect("a read timeout");
        stream.write_all(&request(path, accept, gzip)).expect("send a request");
        Self { stream, received: Vec::new() }
    }

    /// Reads one byte; false at the end of the connection.
    ///
    /// # Panics
    /// If none comes in time.
    #[track_caller]
    pub fn take_byte(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => false,
            Ok(_) => {
                self.received.push(byte[0]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("after {} bytes: {error}", self.received.len()),
        }
    }

    /// All bytes read so far.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// Reads the rest as fast as it comes.
    ///
    /// # Panics
    /// If the response is not complete.
    #[track_caller]
    pub fn finish(self) -> Scrape {
        let mut connection = BufferedSocket::resume(self.stream, self.received);
        Scrape::of(connection.expect_response("GET"))
    }

    /// Disconnects in the middle; the kernel sends a reset.
    pub fn hang_up(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
    }
}

fn request(path: &str, accept: &str, gzip: bool) -> Vec<u8> {
    let encoding = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n{encoding}\r\n").into_bytes()
}

/// Unpacks exactly one member with nothing after it.
#[track_caller]
fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut decoder = GzDecoder::new(bytes);
    let mut body = Vec::new();
    decoder.read_to_end(&mut body).expect("one whole gzip member, its checksum right");
    let rest = decoder.into_inner();
    assert!(rest.is_empty(), "{} bytes after the first gzip member, which curl would not read", rest.len());
    body
}

/// The head of a scrape whose body is still to come, for tests of streaming.
///
/// # Panics
/// If `received` has no complete head.
#[track_caller]
pub fn head_of(received: &[u8]) -> Head {
    let end = crate::message::find(received, b"\r\n\r\n").expect("a whole head");
    Head::parse(&received[..end + 4]).expect("a correct head")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Upstream, eventually};
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const TEXT: &str = "# HELP a_total A \\\\ help.\n# TYPE a_total counter\na_total{x=\"q\\\"\\n\\\\\",y=\"ö\"} 3\n\
        # HELP b_seconds B.\n# TYPE b_seconds gauge\nb_seconds +Inf\n";

    #[test]
    fn python_reads_text() {
        let families = python_families(TEXT, false).unwrap();
        assert_eq!(families.len(), 2);
        assert_eq!((families[0].name.as_str(), families[0].kind.as_str()), ("a", "counter"));
        assert_eq!(families[0].help, "A \\ help.");
        assert_eq!(families[0].samples[0].name, "a_total");
        assert_eq!(families[0].samples[0].labels["x"], "q\"\n\\");
        assert_eq!(families[0].samples[0].labels["y"], "ö");
        assert_eq!(families[1].samples[0].value, f64::INFINITY);
    }

    #[test]
    fn python_reads_openmetrics_strictly() {
        let text = "# TYPE a counter\n# UNIT a_seconds seconds\n";
        assert!(python_families(text, true).is_err());
        let text = "# TYPE a counter\n# HELP a Help.\na_total{x=\"1\"} 3.0 # {trace_id=\"t\"} 0.5 1.25\n\
            a_created{x=\"1\"} 12.5\n# EOF\n";
        let families = python_families(text, true).unwrap();
        let exemplar = families[0].samples[0].exemplar.as_ref().unwrap();
        assert_eq!((exemplar.value, exemplar.timestamp), (0.5, Some(1.25)));
        assert_eq!(exemplar.labels["trace_id"], "t");
        assert_eq!(families[0].samples[1].name, "a_created");
        let unfinished = text.replace("# EOF\n", "");
        assert!(python_families(&unfinished, true).unwrap_err().contains("EOF"));
    }

    #[test]
    fn promtool_lints() {
        promtool_check_metrics(TEXT).unwrap();
        assert!(promtool_check_metrics("# TYPE a counter\na 1\n").unwrap_err().contains("_total"));
        assert!(promtool_check_metrics("a{ 1\n").is_err());
    }

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// An exporter that compresses `text` on request.
    fn exporter(text: &'static [u8]) -> Upstream {
        Upstream::serve(move |connection| {
            while let Ok(request) = connection.read_request() {
                let gzip = request.head.get("accept-encoding") == Some("gzip");
                let (body, field) =
                    if gzip { (packed(text), "Content-Encoding: gzip\r\n") } else { (text.to_vec(), "") };
                let head = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: {}\r\n\r\n", body.len());
                if connection.try_send([head.as_bytes(), &body].concat()).is_err() {
                    return;
                }
            }
        })
    }

    #[test]
    fn whole_plain_and_packed() {
        let exporter = exporter(b"a 1\na 1\na 1\na 1\na 1\na 1\na 1\na 1\na 1\na 1\na 1\na 1\n");
        let plain = scrape(exporter.addr(), "/metrics", ACCEPT_TEXT, false);
        assert_eq!(plain.header("content-length"), plain.encoded_bytes.to_string());
        let gzip = scrape(exporter.addr(), "/metrics", ACCEPT_TEXT, true);
        assert_eq!(gzip.text(), plain.text());
        assert!(gzip.encoded_bytes < plain.encoded_bytes);
    }

    #[test]
    fn bytewise_then_the_rest() {
        let exporter = exporter(b"a 1\n");
        let mut slow = SlowScrape::start(exporter.addr(), "/metrics", ACCEPT_TEXT, false);
        while !slow.received().ends_with(b"\r\n\r\n") {
            assert!(slow.take_byte());
        }
        assert_eq!(head_of(slow.received()).status(), 200);
        assert_eq!(slow.finish().text(), "a 1\n");
    }

    #[test]
    fn hanging_up_reaches_the_sender() {
        let noticed = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&noticed);
        let endless = Upstream::serve(move |connection| {
            connection.read_request().unwrap();
            while connection.try_send([b'x'; 4096]).is_ok() {}
            seen.store(true, Ordering::Release);
        });
        let mut slow = SlowScrape::start(endless.addr(), "/metrics", ACCEPT_TEXT, false);
        assert!(slow.take_byte());
        slow.hang_up();
        eventually("the sender to notice", || noticed.load(Ordering::Acquire));
    }

    #[test]
    #[should_panic(expected = "after the first gzip member")]
    fn two_members_are_refused() {
        gunzip(&[packed(b"a"), packed(b"b")].concat());
    }
}
