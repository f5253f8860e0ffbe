//! One scrape: a GET on its own connection, with the answer read to the last byte.

use crate::target::MetricsAddress;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use stillgate_wire::{BodyDecoder, HeadLimits, Method, Progress, ResponseHead};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence: a worker that first sorts a million series is silent for long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes per read: an exposition of a million series is tens of megabytes.
const BUFFER_BYTES: usize = 256 * 1024;

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

/// The progress of an exchange.
#[derive(Default)]
struct ExchangeProgress {
    bytes: u64,
    under_way: bool,
}

/// Sends the request and reads the whole answer; `see` gets the content piece by piece, still encoded. Returns the
/// bytes of the whole answer.
pub(super) fn exchange(
    metrics: &MetricsAddress,
    wanted: ScrapeKind,
    see: &mut dyn FnMut(&[u8]),
) -> Result<u64, ExchangeFailure> {
    let mut way = ExchangeProgress::default();
    take(metrics, wanted, see, &mut way).map_err(|message| ExchangeFailure {
        message,
        bytes: way.bytes,
        broke_off: way.under_way,
    })?;
    Ok(way.bytes)
}

fn take(
    metrics: &MetricsAddress,
    wanted: ScrapeKind,
    see: &mut dyn FnMut(&[u8]),
    way: &mut ExchangeProgress,
) -> Result<(), String> {
    let mut stream = TcpStream::connect_timeout(&metrics.address, CONNECT_TIMEOUT)
        .and_then(|stream| stream.set_read_timeout(Some(SILENCE_TIMEOUT)).map(|()| stream))
        .map_err(|error| format!("cannot connect: {error}"))?;
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
    way.under_way = true;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    let mut body: Option<BodyDecoder> = None;
    let mut head = ResponseHead::default();
    loop {
        let read = stream
            .read(&mut buffer[filled..])
            .map_err(|error| format!("cut off after {} bytes: {error}", way.bytes))?;
        way.bytes += read as u64;
        if read == 0 {
            return match body {
                Some(BodyDecoder::UntilClose) => Ok(()),
                _ => Err(format!("cut off after {} bytes", way.bytes)),
            };
        }
        filled += read;
        let mut from = 0;
        if body.is_none() {
            match head.advance(&buffer[..filled], Method::Get, &HeadLimits::default()) {
                Ok(Progress::Partial) => continue,
                Ok(Progress::Complete(_)) if head.status != 200 => {
                    way.under_way = false;
                    return Err(format!("answered {}", head.status));
                }
                Ok(Progress::Complete(length)) => from = length,
                Err(error) => {
                    way.under_way = false;
                    return Err(format!("not an HTTP answer: {error:?}"));
                }
            }
        }
        let decoder = body.get_or_insert_with(|| BodyDecoder::new(head.framing));
        let decoded = decoder.decode(&mut buffer[from..filled]).map_err(|error| format!("a bad body: {error:?}"))?;
        see(&buffer[from..from + decoded.data]);
        // The decoder consumes everything, unless the body is complete.
        filled = 0;
        if decoder.is_done() {
            return Ok(());
        }
    }
}

impl fmt::Display for ExchangeFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
