//! A scraper in slow motion: it may read a whole exposition, read byte by byte, or disconnect.
//!
//! Whole scrapes are checked as strictly as a picky scraper would: the framing by [`BufferedSocket`], gzip by a reader that
//! accepts exactly one member, as browsers and curl do.

use crate::connection::BufferedSocket;
use crate::message::{Fields, Head, Message};
use flate2::bufread::GzDecoder;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

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
    use flate2::{Compression, write::GzEncoder};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

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
