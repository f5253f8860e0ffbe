//! A load of constant rate that does not wait for answers: latency counts from when a request should have started.
//!
//! A closed loop asks less of a gateway that stalls, and so hides the stall. Each connection is a blocking thread with its
//! own share of the schedule: simple, and accurate to some 10 µs at the few thousand requests a second used here.

use crate::Result;
use rustix::thread::set_current_timer_slack;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the longest answer that is understood.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Failures kept word for word; all are counted.
const FAILURES_KEPT: usize = 3;

/// What is asked for.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    /// Requests a second, over all connections.
    pub(super) rate: f64,
    pub(super) connections: u32,
    /// Asked for in turn.
    pub(super) paths: Vec<String>,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Outcome {
    /// One a request that was answered 200, in no order.
    pub(super) latencies_us: Vec<u32>,
    pub(super) failed: u64,
    pub(super) failures: Vec<String>,
}

impl Outcome {
    pub(super) fn merge(&mut self, other: Self) {
        self.latencies_us.extend(other.latencies_us);
        self.failed += other.failed;
        let room = FAILURES_KEPT.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }

    fn fail(&mut self, why: String) {
        self.failed += 1;
        if self.failures.len() < FAILURES_KEPT {
            self.failures.push(why);
        }
    }
}

/// Keeps the load up for `duration`, on connections of its own.
pub(super) fn run(load: &Load, duration: Duration) -> Result<Outcome> {
    let interval = Duration::from_secs_f64(f64::from(load.connections) / load.rate);
    let begin = Instant::now() + Duration::from_millis(50);
    let threads: Vec<_> = (0..load.connections)
        .map(|number| {
            let load = load.clone();
            let first = begin + interval.mul_f64(f64::from(number) / f64::from(load.connections));
            thread::spawn(move || one_connection(&load, first, interval, begin + duration))
        })
        .collect();
    let mut all = Outcome::default();
    for thread in threads {
        all.merge(thread.join().map_err(|_| "a load thread panicked")?);
    }
    Ok(all)
}

fn one_connection(load: &Load, first: Instant, interval: Duration, end: Instant) -> Outcome {
    // The default slack of 50 µs would be most of what is measured. Refused: the figures are a little coarser.
    let _ = set_current_timer_slack(NonZeroU64::new(1_000));
    let mut outcome = Outcome::default();
    let mut stream: Option<TcpStream> = None;
    let mut intended = first;
    let mut paths = load.paths.iter().cycle();
    while intended < end {
        let Some(path) = paths.next() else {
            return outcome;
        };
        if let Some(early) = intended.checked_duration_since(Instant::now()) {
            sleep(early);
        }
        match exchange(&mut stream, load.address, path) {
            Ok(()) => {
                let took = intended.elapsed().as_micros();
                outcome.latencies_us.push(u32::try_from(took).unwrap_or(u32::MAX));
            }
            Err(error) => {
                outcome.fail(format!("{path}: {error}"));
                stream = None;
            }
        }
        intended += interval;
    }
    outcome
}

/// One request and its whole answer. The gateway may say `Connection: close` when it is to be replaced; then the next
/// request opens a new connection.
fn exchange(stream: &mut Option<TcpStream>, address: SocketAddr, path: &str) -> Result {
    let open = match stream {
        Some(open) => open,
        None => {
            let new = TcpStream::connect(address)?;
            new.set_nodelay(true)?;
            new.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.insert(new)
        }
    };
    open.write_all(format!("GET {path} HTTP/1.1\r\nHost: load.example\r\n\r\n").as_bytes())?;
    let mut buffer = Vec::with_capacity(1024);
    let mut part = [0; 4096];
    let (head, whole) = loop {
        let length = open.read(&mut part)?;
        if length == 0 {
            return Err(format!("closed after {} bytes of an answer", buffer.len()).into());
        }
        buffer.extend_from_slice(&part[..length]);
        if let Some((head, whole)) = expected(&buffer)?
            && buffer.len() >= whole
        {
            break (head, whole);
        }
        if buffer.len() > ANSWER_BYTES_MAX {
            return Err("an answer without end".into());
        }
    };
    if buffer.len() > whole {
        return Err("bytes after the answer's end".into());
    }
    let head = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200") {
        return Err(head.lines().next().unwrap_or_default().to_owned().into());
    }
    if head.contains("connection: close") {
        *stream = None;
    }
    Ok(())
}

/// Lengths of the head and of the whole answer, once the head is there.
fn expected(buffer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = end + 4;
    let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.ok_or("an answer without Content-Length")?.trim().parse()?;
    Ok(Some((head, head + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_length() {
        assert_eq!(expected(b"HTTP/1.1 200 OK\r\n").unwrap(), None);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(expected(answer).unwrap(), Some((38, 41)));
        assert!(expected(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
