//! A scraper as Prometheus is one, and a second look at what it got.
//!
//! Under load it only takes the bytes: unpacking them would cost the CPU it shares with the load. What an exposition says
//! is read by curl outside the measured time.

use super::schedule::{self, Policy};
use crate::Result;
use crate::step;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// Between the starts of two scrapes.
const INTERVAL: Duration = Duration::from_secs(1);
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(60);

/// What Prometheus 2 asks for.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
    text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// What is scraped.
#[derive(Clone, Copy)]
pub(super) struct Scraper {
    pub(super) address: SocketAddr,
    pub(super) gzip: bool,
}

/// What came of it, one each a scrape.
#[derive(Default)]
pub(super) struct Scrapes {
    pub(super) took_us: Vec<u32>,
    pub(super) bytes: Vec<u64>,
}

impl Scraper {
    /// Scrapes every [`INTERVAL`] until it is over; a scrape that takes longer delays the next. Unpark the thread to end a
    /// pause.
    pub(super) fn run(self, over: &AtomicBool) -> std::result::Result<Scrapes, String> {
        // What it does must not take from the load beside it.
        schedule::set_own(Policy::Idle).map_err(|error| error.to_string())?;
        let mut scrapes = Scrapes::default();
        let mut next = Instant::now();
        while !over.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < next {
                park_timeout(next - now);
                continue;
            }
            let bytes = self.scrape().map_err(|error| format!("scrape of {}: {error}", self.address))?;
            scrapes.took_us.push(u32::try_from(now.elapsed().as_micros()).unwrap_or(u32::MAX));
            scrapes.bytes.push(bytes);
            next = (next + INTERVAL).max(Instant::now());
        }
        Ok(scrapes)
    }

    /// One scrape on a connection of its own; the bytes of the response.
    fn scrape(self) -> Result<u64> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(SCRAPE_TIMEOUT))?;
        let encoding = if self.gzip { "Accept-Encoding: gzip\r\n" } else { "" };
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: exporter\r\nAccept: {ACCEPT}\r\n{encoding}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut part = vec![0; 256 * 1024];
        let mut bytes = 0_u64;
        let mut framing = Framing::default();
        loop {
            let length = stream.read(&mut part)?;
            if length == 0 {
                break;
            }
            framing.see(&part[..length], bytes == 0);
            bytes += length as u64;
        }
        framing.check(bytes)?;
        Ok(bytes)
    }
}

/// As much of a response as tells whether it came whole.
#[derive(Default)]
struct Framing {
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Framing {
    /// The head is taken to come in the first piece.
    fn see(&mut self, piece: &[u8], is_first: bool) {
        const HEAD_BYTES: usize = 4096;
        const END: usize = b"0\r\n\r\n".len();
        if is_first {
            self.first = piece[..piece.len().min(HEAD_BYTES)].to_vec();
        }
        self.last.extend_from_slice(&piece[piece.len().saturating_sub(END)..]);
        self.last.drain(..self.last.len().saturating_sub(END));
    }

    fn check(&self, bytes: u64) -> Result {
        let Some(end) = self.first.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Err(format!("no head in {bytes} bytes").into());
        };
        let head = String::from_utf8_lossy(&self.first[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err(head.lines().next().unwrap_or_default().to_owned().into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let whole = match length {
            Some(length) => end as u64 + 4 + length.trim().parse::<u64>()? == bytes,
            None if head.contains("transfer-encoding: chunked") => self.last == b"0\r\n\r\n",
            None => true,
        };
        if whole { Ok(()) } else { Err(format!("cut off after {bytes} bytes").into()) }
    }
}

/// The body of `path`, by curl, which checks framing and gzip.
pub(super) fn fetch(address: SocketAddr, path: &str) -> Result<String> {
    let url = format!("http://{address}{path}");
    // No limit of its own on time: a million lines are taken at the server's pace.
    let arguments = ["--silent", "--show-error", "--fail", "--globoff", "--noproxy", "*", "--compressed", &url];
    step::output(Command::new("curl").args(arguments))
}

/// One family of an exposition in text, added up.
pub(super) struct Sums {
    /// Lines.
    pub(super) series: u64,
    /// The sum over all of them.
    pub(super) total: f64,
    /// Sums by what is left of a line's labels without those that were to be left out.
    pub(super) by_labels: BTreeMap<String, f64>,
}

/// Adds up the samples called `name`, over the values of the label `without`.
pub(super) fn sums(exposition: &str, name: &str, without: &str) -> Result<Sums> {
    let mut sums = Sums { series: 0, total: 0.0, by_labels: BTreeMap::new() };
    for line in exposition.lines() {
        let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')) else {
            continue;
        };
        let (labels, value) = rest.rsplit_once("} ").ok_or_else(|| format!("not a sample: {line}"))?;
        let value: f64 = value.split(' ').next().unwrap_or_default().parse()?;
        sums.series += 1;
        sums.total += value;
        // Most lines have labels that were seen, so nothing is kept for them.
        let labels = without_label(labels, without);
        match sums.by_labels.get_mut(labels.as_str()) {
            Some(sum) => *sum += value,
            None => drop(sums.by_labels.insert(labels, value)),
        }
    }
    Ok(sums)
}

/// `a="x",b="y"` without `b`. Values may hold anything but an unescaped quote.
fn without_label(labels: &str, without: &str) -> String {
    let mut kept = String::new();
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = after.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let end = end.unwrap_or(after.len());
        let name = name.trim_start_matches(',');
        if name != without {
            let comma = if kept.is_empty() { "" } else { "," };
            kept.push_str(&format!("{comma}{name}=\"{}\"", &after[..end]));
        }
        rest = after.get(end + 1..).unwrap_or_default();
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_without_a_label() {
        let text = "# TYPE a counter\na{x=\"1\",uri=\"/a\",y=\"2\"} 3\na{x=\"1\",uri=\"/b\\\"},{\\\\\",y=\"2\"} 4\n\
            a{x=\"2\",uri=\"/a\",y=\"2\"} 5\nab{x=\"1\"} 100\n";
        let sums = sums(text, "a", "uri").unwrap();
        assert_eq!((sums.series, sums.total), (3, 12.0));
        let expected = [("x=\"1\",y=\"2\"", 7.0), ("x=\"2\",y=\"2\"", 5.0)];
        assert_eq!(sums.by_labels, expected.map(|(labels, sum)| (labels.to_owned(), sum)).into());
    }

    #[test]
    fn a_response_is_whole_or_not() {
        let check = |response: &[u8]| {
            let mut framing = Framing::default();
            framing.see(&response[..response.len() - 2], true);
            framing.see(&response[response.len() - 2..], false);
            framing.check(response.len() as u64).is_ok()
        };
        assert!(check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"));
        assert!(!check(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc"));
        assert!(check(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"));
        assert!(!check(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"));
        assert!(!check(b"HTTP/1.1 500 Oh\r\n\r\n"));
    }
}
