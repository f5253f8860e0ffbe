//! Small servers for the engine's tests: a thread per connection, each request passed to a closure that writes the
//! answer.
//!
//! Deliberately not a correct server: tests need wrong answers, stalls and connections that break.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Enough for a handler; there may be thousands of threads.
const STACK_BYTES: usize = 128 * 1024;

/// A server with counts for tests.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Requests read.
    pub(crate) requests: Arc<AtomicU64>,
    /// Connections accepted.
    pub(crate) accepted: Arc<AtomicU64>,
}

/// A complete request.
pub(crate) struct ReceivedRequest {
    /// Its number over all connections, from zero.
    pub(crate) total: u64,
    /// Bytes of its body.
    pub(crate) body_bytes: u64,
}

/// Whether a connection continues after an answer.
#[derive(PartialEq, Eq)]
pub(crate) enum AfterAnswer {
    Keep,
    Close,
    /// Also stops accepting connections.
    Die,
}

/// Answers every request with `answer`.
pub(crate) fn serve(
    answer: impl Fn(&mut TcpStream, &ReceivedRequest) -> AfterAnswer + Send + Sync + 'static,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (requests, accepted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let server = Server { address, requests: requests.clone(), accepted: accepted.clone() };
    let (answer, dead) = (Arc::new(answer), Arc::new(AtomicBool::new(false)));
    thread::spawn(move || {
        for stream in listener.incoming() {
            if dead.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            accepted.fetch_add(1, Ordering::SeqCst);
            let (answer, requests, dead) = (answer.clone(), requests.clone(), dead.clone());
            let serve = move || {
                let then = converse(stream, &requests, &dead, &*answer);
                if then == Some(AfterAnswer::Die) && !dead.swap(true, Ordering::SeqCst) {
                    // Wakes the listener, which then ends.
                    drop(TcpStream::connect(address));
                }
            };
            thread::Builder::new().stack_size(STACK_BYTES).spawn(serve).unwrap();
        }
    });
    server
}

/// An answer of 200 with this body.
pub(crate) fn ok(stream: &mut TcpStream, body: &str) -> AfterAnswer {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    write(stream, answer.as_bytes())
}

/// Writes it; a client that has gone does not fail the test.
pub(crate) fn write(stream: &mut TcpStream, bytes: &[u8]) -> AfterAnswer {
    match stream.write_all(bytes) {
        Ok(()) => AfterAnswer::Keep,
        Err(_) => AfterAnswer::Close,
    }
}

fn converse(
    mut stream: TcpStream,
    requests: &AtomicU64,
    dead: &AtomicBool,
    answer: &dyn Fn(&mut TcpStream, &ReceivedRequest) -> AfterAnswer,
) -> Option<AfterAnswer> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let body_bytes = read_request(&mut reader)?;
        let asked = ReceivedRequest { total: requests.fetch_add(1, Ordering::SeqCst), body_bytes };
        match answer(&mut stream, &asked) {
            AfterAnswer::Keep if !dead.load(Ordering::SeqCst) => {}
            then => return Some(then),
        }
    }
}

/// The length of its body.
fn read_request(reader: &mut BufReader<TcpStream>) -> Option<u64> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            let read = std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok()?;
            return (read == length).then_some(length);
        }
    }
}
