//! One scrape: a GET on its own connection, with the answer read to the last byte.

use crate::client::{self, Failure, Part, receive};
use crate::target::MetricsAddress;
use std::fmt;
use std::io::Write as _;
use std::time::Duration;

/// Longest silence: a worker that first sorts a million series is silent for long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// The kind of request.
#[derive(Debug, Clone, Copy)]
pub(super) enum ScrapeKind {
    /// As Prometheus requests it.
    Scrape {
        /// Whether it may be compressed.
        gzip: bool,
    },
    /// The simplest format, in which each line is a series: OpenMetrics has further lines with the creation times of
    /// series.
    Lines,
}

const ACCEPT_LINES: &str = "text/plain;version=0.0.4";

/// The text formats.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,\
    text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// A failure, and how many bytes came before it.
#[derive(Debug)]
pub(super) struct ExchangeFailure {
    message: String,
    pub(super) bytes: u64,
    /// The request was sent and not refused, and the answer broke off.
    pub(super) broke_off: bool,
}

/// Sends the request and reads the whole answer; `see` gets the content piece by piece, still encoded. Returns the
/// bytes of the whole answer.
pub(super) fn exchange(
    metrics: &MetricsAddress,
    wanted: ScrapeKind,
    see: &mut dyn FnMut(&[u8]),
) -> Result<u64, ExchangeFailure> {
    let mut bytes = 0;
    match take(metrics, wanted, see, &mut bytes) {
        Ok(_) => Ok(bytes),
        Err(Failure { message, broke_off }) => Err(ExchangeFailure { message, bytes, broke_off }),
    }
}

fn take(
    metrics: &MetricsAddress,
    wanted: ScrapeKind,
    see: &mut dyn FnMut(&[u8]),
    bytes: &mut u64,
) -> Result<bool, Failure> {
    let mut stream = client::connect(metrics.address, SILENCE_TIMEOUT)?;
    let (accept, encoding) = match wanted {
        ScrapeKind::Scrape { gzip: true } => (ACCEPT, "Accept-Encoding: gzip\r\n"),
        ScrapeKind::Scrape { gzip: false } => (ACCEPT, ""),
        ScrapeKind::Lines => (ACCEPT_LINES, ""),
    };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: stillgate-lab\r\nAccept: {accept}\r\n{encoding}Connection: close\r\n\r\n",
        metrics.path, metrics.address
    );
    stream.write_all(request.as_bytes()).map_err(|error| format!("cannot send the request: {error}"))?;
    receive(&mut stream, bytes, &mut |part| match part {
        Part::Head(head) if head.status != 200 => Err(format!("answered {}", head.status)),
        Part::Head(_) => Ok(()),
        Part::Body(content) => {
            see(content);
            Ok(())
        }
    })
}

impl fmt::Display for ExchangeFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    /// One exchange with a server that sends this answer in pieces of `piece` bytes, and closes.
    fn run_exchange(answer: &str, piece: usize) -> (Result<u64, String>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut content = Vec::new();
        let got = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                for part in answer.as_bytes().chunks(piece) {
                    // The client may have closed already.
                    if stream.write_all(part).is_err() {
                        return;
                    }
                }
            });
            let metrics = MetricsAddress { address, path: "/metrics".to_owned() };
            exchange(&metrics, ScrapeKind::Lines, &mut |part| content.extend_from_slice(part))
                .map_err(|failed| failed.to_string())
        });
        (got, content)
    }

    #[test]
    fn an_answer_is_taken_whole() {
        #[track_caller]
        fn check(answer: &str, expected: &str) {
            for piece in [1, 7, answer.len()] {
                let (got, content) = run_exchange(answer, piece);
                assert_eq!(got, Ok(answer.len() as u64), "in pieces of {piece}");
                assert_eq!(String::from_utf8_lossy(&content), expected);
            }
        }
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc");
        check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "");
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "abc");
        check("HTTP/1.0 200 OK\r\n\r\nabc", "abc");
    }

    #[test]
    fn incomplete_answers_are_reported() {
        #[track_caller]
        fn check(answer: &str, expected: &str) {
            assert_eq!(run_exchange(answer, answer.len().max(1)).0, Err(expected.to_owned()));
        }
        check("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "cut off after 41 bytes");
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "cut off after 54 bytes");
        check("HTTP/1.1 200 OK\r\nConte", "cut off after 22 bytes");
        check("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404");
        check("", "cut off after 0 bytes");
        check("220 mail\r\n\r\n", "not an HTTP answer: StatusLine");
    }
}
