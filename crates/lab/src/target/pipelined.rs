//! Makes series: one request for each number, as fast as they are answered.
//!
//! Several requests are under way on each connection (pipelining), which is the fastest way. For making series, not for
//! measuring: any answer that is not a success ends it.

use crate::error::{Error, Result};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;
use stillgate_wire::{BodyDecoder, HeadLimits, Method, Progress, ResponseHead};

const CONNECTIONS: u64 = 4;
/// Concurrent requests on each connection.
const DEPTH: u64 = 32;

/// No answers at all for this long is an error.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

const BUFFER_BYTES: usize = 64 * 1024;

/// A server that closes this many connections without an answer in between does not want to answer.
const FRUITLESS_MAX: usize = 3;

/// Requests `path` of every number from 0 to `count`, each at least once.
pub(super) fn request_each(address: SocketAddr, count: u64, path: &(dyn Fn(u64) -> String + Sync)) -> Result {
    let lane = |lane: u64| {
        let mut numbers = (lane..count).step_by(CONNECTIONS as usize).peekable();
        let mut batch = Vec::with_capacity(DEPTH as usize);
        let mut connection = None;
        let mut fruitless = 0;
        loop {
            let room = DEPTH as usize - batch.len();
            batch.extend(numbers.by_ref().take(room).map(path));
            if batch.is_empty() {
                return Ok(());
            }
            let open: &mut TcpStream = match &mut connection {
                Some(open) => open,
                None => connection.insert(connect(address)?),
            };
            let Answers { answered, kept } = exchange(open, &batch)?;
            fruitless = if answered == 0 { fruitless + 1 } else { 0 };
            if fruitless == FRUITLESS_MAX {
                return Err(io::Error::other("it closes connections without answering"));
            }
            batch.drain(..answered);
            if !kept {
                connection = None;
            }
        }
    };
    let failed = thread::scope(|scope| {
        let lanes: Vec<_> = (0..CONNECTIONS).map(|number| scope.spawn(move || lane(number))).collect();
        let ends =
            lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        ends.filter_map(io::Result::err).next()
    });
    match failed {
        None => Ok(()),
        Some(error) => Err(Error::new(format!("making series by requests to {address}: {error}"))),
    }
}

struct Answers {
    answered: usize,
    /// Whether the connection can take more.
    kept: bool,
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, STALL_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL_TIMEOUT))?;
    Ok(stream)
}

/// Sends a batch and reads its answers, or as many as come before the connection ends.
fn exchange(stream: &mut TcpStream, paths: &[String]) -> io::Result<Answers> {
    let mut requests = Vec::with_capacity(paths.len() * 64);
    for path in paths {
        requests.extend_from_slice(b"GET ");
        requests.extend_from_slice(path.as_bytes());
        requests.extend_from_slice(b" HTTP/1.1\r\nHost: load.example\r\n\r\n");
    }
    stream.write_all(&requests)?;
    let mut reader = AnswerReader { stream, buffer: vec![0; BUFFER_BYTES], filled: 0 };
    for answered in 0..paths.len() {
        match reader.answer()? {
            None => return Ok(Answers { answered, kept: false }),
            Some(false) => return Ok(Answers { answered: answered + 1, kept: false }),
            Some(true) => {}
        }
    }
    Ok(Answers { answered: paths.len(), kept: true })
}

/// Parses the answers of a stream, one after the other.
struct AnswerReader<'a> {
    stream: &'a mut TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl AnswerReader<'_> {
    /// Reads one answer, and returns whether the connection is kept after it; `None` if it ended before.
    fn answer(&mut self) -> io::Result<Option<bool>> {
        let mut head = ResponseHead::default();
        let limits = HeadLimits::default();
        let length = loop {
            match head.advance(&self.buffer[..self.filled], Method::Get, &limits) {
                Ok(Progress::Complete(length)) => break length,
                Ok(Progress::Partial) if self.more()? => {}
                Ok(Progress::Partial) if self.filled == 0 => return Ok(None),
                Ok(Progress::Partial) => return Err(io::Error::other("an answer was cut off")),
                Err(error) => return Err(io::Error::other(format!("not HTTP: {error:?}"))),
            }
        };
        if !(200..400).contains(&head.status) {
            return Err(io::Error::other(format!("answered {}", head.status)));
        }
        self.drop_front(length);
        let mut body = BodyDecoder::new(head.framing);
        loop {
            let decoded = body.decode(&mut self.buffer[..self.filled]);
            let decoded = decoded.map_err(|error| io::Error::other(format!("a bad body: {error:?}")))?;
            self.drop_front(decoded.consumed);
            if body.is_done() {
                return Ok(Some(head.keep_alive));
            }
            if !self.more()? {
                return match body {
                    BodyDecoder::UntilClose => Ok(Some(false)),
                    _ => Err(io::Error::other("an answer was cut off")),
                };
            }
        }
    }

    /// Reads once; false at the end.
    fn more(&mut self) -> io::Result<bool> {
        let read = self.stream.read(&mut self.buffer[self.filled..])?;
        self.filled += read;
        Ok(read > 0)
    }

    fn drop_front(&mut self, bytes: usize) {
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, sync_channel};

    const SEEN_MAX: usize = 10_000;

    /// A server that sends `answer` to this many requests of a connection and then closes it.
    fn serve(answer: &'static str, requests_max: usize) -> (SocketAddr, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, all) = sync_channel(SEEN_MAX);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let seen = seen.clone();
                thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let mut stream = stream;
                    for _ in 0..requests_max {
                        let mut request = String::new();
                        while !request.ends_with("\r\n\r\n") {
                            if reader.read_line(&mut request).unwrap_or(0) == 0 {
                                return;
                            }
                        }
                        seen.send(request.split(' ').nth(1).unwrap().to_owned()).unwrap();
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                    // Unread input would reset the connection, together with answers on their way.
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let _ = io::copy(&mut reader, &mut io::sink());
                });
            }
        });
        (address, all)
    }

    #[track_caller]
    fn check_all_asked(answer: &'static str, requests_max: usize) {
        let (address, seen) = serve(answer, requests_max);
        request_each(address, 1001, &|number| format!("/{number}")).unwrap();
        let seen: HashSet<String> = seen.try_iter().collect();
        assert_eq!(seen.len(), 1001);
        assert!(seen.contains("/0") && seen.contains("/1000"));
    }

    #[test]
    fn each_is_asked() {
        check_all_asked("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", usize::MAX);
        check_all_asked("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", usize::MAX);
    }

    #[test]
    fn each_is_asked_on_connections_that_end() {
        check_all_asked("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 100);
        check_all_asked("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 1);
    }

    #[test]
    fn what_is_no_success_ends_it() {
        let (address, _seen) = serve("HTTP/1.1 503 Oh\r\nContent-Length: 0\r\n\r\n", usize::MAX);
        let error = request_each(address, 10, &|number| format!("/{number}")).unwrap_err();
        assert_eq!(error.to_string(), format!("making series by requests to {address}: answered 503"));
        let (address, _seen) = serve("", 0);
        let error = request_each(address, 10, &|number| format!("/{number}")).unwrap_err();
        assert!(error.to_string().ends_with("it closes connections without answering"), "{error}");
    }
}
