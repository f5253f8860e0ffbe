//! Upstreams under a test's control: one that the test drives step by step, and one that serves by itself.
//!
//! A test that drives it ([`Upstream::bind`], [`Upstream::accept`]) reads as the dialogue it checks. One that serves by
//! itself ([`Upstream::serve`], [`echo`]) suits load and peers. Both count connections and requests.

use crate::connection::BufferedSocket;
use crate::message::{Message, MessageError};
use crate::port::ReservedPort;
use crate::soak::{payload, sha256};
use crate::{PATIENCE, eventually};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A TCP server on its own port.
#[derive(Debug)]
pub struct Upstream {
    port: Arc<ReservedPort>,
    listener: Option<TcpListener>,
    served: Option<ServingThread>,
    counts: Arc<UpstreamCounts>,
}

#[derive(Debug, Default)]
struct UpstreamCounts {
    connections: AtomicUsize,
    requests: AtomicUsize,
    seen: Mutex<Vec<String>>,
    faults: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct ServingThread {
    stop: Arc<AtomicBool>,
    acceptor: JoinHandle<()>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

/// Start lines kept by [`Upstream::seen`]; later ones are only counted.
const SEEN_MAX: usize = 10_000;

impl Upstream {
    /// Listens; the test accepts.
    pub fn bind() -> Self {
        let mut upstream = Self::refusing();
        upstream.listen();
        upstream
    }

    /// Has a port but does not listen: connecting is refused.
    pub fn refusing() -> Self {
        Self {
            port: Arc::new(crate::port::ReservedPort::new()),
            listener: None,
            served: None,
            counts: Arc::new(UpstreamCounts::default()),
        }
    }

    /// Runs `handler` for each connection, in its own thread.
    pub fn serve(handler: impl Fn(&mut BufferedSocket) + Send + Sync + 'static) -> Self {
        let mut upstream = Self::refusing();
        upstream.start(handler);
        upstream
    }

    /// Serves [`echo`] responses on every connection until the peer closes.
    pub fn echo() -> Self {
        let mut upstream = Self::refusing();
        upstream.start_echo();
        upstream
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Begins (again) to listen for a test that accepts by hand.
    pub fn listen(&mut self) {
        self.listener = Some(self.port.listen());
    }

    /// Begins (again) to serve echoes.
    pub fn start_echo(&mut self) {
        let counts = Arc::clone(&self.counts);
        self.start(move |connection| {
            loop {
                match read_expecting(connection) {
                    Ok(request) => {
                        counts.record(&request);
                        if !echo(connection, &request) {
                            return;
                        }
                    }
                    Err(MessageError::Malformed(fault)) => {
                        counts.faults.lock().unwrap().push(fault);
                        return;
                    }
                    Err(_) => return,
                }
            }
        });
    }

    /// Begins (again) to serve.
    pub fn start(&mut self, handler: impl Fn(&mut BufferedSocket) + Send + Sync + 'static) {
        let listener = self.port.listen();
        let stop = Arc::new(AtomicBool::new(false));
        let open = Arc::new(Mutex::new(Vec::<TcpStream>::new()));
        let (stopping, opened) = (Arc::clone(&stop), Arc::clone(&open));
        let counts = Arc::clone(&self.counts);
        let handler = Arc::new(handler);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                counts.connections.fetch_add(1, Ordering::SeqCst);
                let Ok(twin) = stream.try_clone() else {
                    continue;
                };
                {
                    let mut open = opened.lock().unwrap();
                    open.retain(|stream| stream.peer_addr().is_ok());
                    open.push(twin);
                }
                let handler = Arc::clone(&handler);
                std::thread::spawn(move || {
                    let mut connection = BufferedSocket::new(stream);
                    connection.set_patience(PATIENCE * 6);
                    handler(&mut connection);
                    // The copy in `open` would otherwise keep it half open.
                    let _ = connection.stream().shutdown(Shutdown::Both);
                });
            }
        });
        self.served = Some(ServingThread { stop, acceptor, open });
    }

    /// Stops listening and ends every connection, as a killed process would.
    pub fn stop(&mut self) {
        self.listener = None;
        let Some(serving) = self.served.take() else {
            return;
        };
        serving.stop.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which may have ended already.
        let _ = TcpStream::connect(self.addr());
        serving.acceptor.join().expect("the acceptor does not panic");
        for stream in serving.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The next connection.
    ///
    /// # Panics
    /// If none comes in time, or the upstream serves by itself.
    #[track_caller]
    pub fn accept(&self) -> BufferedSocket {
        let mut accepted = None;
        eventually("a connection to the upstream", || {
            accepted = self.try_accept();
            accepted.is_some()
        });
        accepted.expect("the loop above ends with one")
    }

    /// A connection that is already there; `None` if it does not listen or serves by itself.
    pub fn try_accept(&self) -> Option<BufferedSocket> {
        let listener = self.listener.as_ref()?;
        listener.set_nonblocking(true).expect("set the listener non-blocking");
        let (stream, _) = listener.accept().ok()?;
        self.counts.connections.fetch_add(1, Ordering::SeqCst);
        Some(BufferedSocket::new(stream))
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }

    /// Whole requests an echo upstream has read so far.
    pub fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// Requests to an echo upstream that broke a rule. Must stay empty.
    pub fn faults(&self) -> Vec<String> {
        self.counts.faults.lock().unwrap().clone()
    }

    /// The start lines of those requests.
    pub fn seen(&self) -> Vec<String> {
        self.counts.seen.lock().unwrap().clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl UpstreamCounts {
    fn record(&self, request: &Message) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let mut seen = self.seen.lock().unwrap();
        if seen.len() < SEEN_MAX {
            seen.push(request.head.start.clone());
        }
    }
}

/// A larger `size` is reduced to this: targets may be random.
const ECHO_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Reads a request and meets its expectation, if it has one.
fn read_expecting(connection: &mut BufferedSocket) -> Result<Message, MessageError> {
    let head = connection.read_head()?;
    if head.get("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        // A client that has gone is noticed when the body is read.
        let _ = connection.try_send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    connection.read_request_body(head)
}

/// Answers one request as its query requires; returns whether the connection continues.
///
/// `status=404` (200), `size=1000` bytes (0) of [`payload`] with `seed=7` (0), `echo` (the request's body instead),
/// `chunked`, `close` (delimited, unless also chunked), `delay=50` ms, `piece=4096` (bytes a write), `cut=100` (close after that many body bytes).
/// The response reports the request: `X-Body-Sha256`, `X-Body-Length` and `X-Got` (the request line).
pub fn echo(connection: &mut BufferedSocket, request: &Message) -> bool {
    let (method, target) = request.head.method_and_target();
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let param = |name: &str| {
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, "1"));
            (key == name).then_some(value)
        })
    };
    let number = |name: &str| param(name).and_then(|value| value.parse::<u64>().ok());
    let size = number("size").unwrap_or(0).min(ECHO_BYTES_MAX) as usize;
    let body = match param("echo") {
        Some(_) => request.body.clone(),
        None => payload(number("seed").unwrap_or(0), size),
    };
    if let Some(ms) = number("delay") {
        pause(Duration::from_millis(ms));
    }
    let status = number("status").unwrap_or(200);
    let framing = match (param("chunked"), param("close")) {
        _ if matches!(status, 204 | 304) => String::new(),
        (Some(_), None) => "Transfer-Encoding: chunked\r\n".to_owned(),
        (Some(_), Some(_)) => "Transfer-Encoding: chunked\r\nConnection: close\r\n".to_owned(),
        (None, Some(_)) => "Connection: close\r\n".to_owned(),
        (None, None) => format!("Content-Length: {}\r\n", body.len()),
    };
    let head = format!(
        "HTTP/1.1 {status} Status\r\n{framing}X-Got: {}\r\nX-Body-Length: {}\r\nX-Body-Sha256: {}\r\n\r\n",
        request.head.start,
        request.body.len(),
        sha256(&request.body)
    );
    let bodyless = method == "HEAD" || matches!(status, 204 | 304);
    let body = if bodyless { Vec::new() } else { body };
    let piece = number("piece").map_or(body.len(), |piece| piece as usize).max(1);
    let keep = body.len().min(number("cut").map_or(usize::MAX, |cut| cut as usize));
    let mut sent = connection.try_send(&head).is_ok();
    for part in body[..keep].chunks(piece) {
        sent = sent
            && match param("chunked") {
                Some(_) => {
                    connection.try_send([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat()).is_ok()
                }
                None => connection.try_send(part).is_ok(),
            };
    }
    if param("cut").is_some() {
        return false;
    }
    if param("chunked").is_some() && !bodyless {
        sent = sent && connection.try_send(b"0\r\n\r\n").is_ok();
    }
    let stays = param("close").is_none() && !request.head.connection_has("close");
    sent && stays && !request.head.start.ends_with("HTTP/1.0")
}

/// The only place where time must pass: an upstream that is slow on request.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::park_timeout(end.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, Framing};

    #[test]
    fn echoes_as_asked() {
        let upstream = Upstream::echo();
        let mut client = Client::connect(upstream.addr());
        let response = client.request("POST", "/a?echo&status=201", b"body");
        assert_eq!((response.head.status(), &response.body[..]), (201, &b"body"[..]));
        let response = client.get("/b?size=70000&chunked&piece=999&seed=3");
        assert_eq!(response.framing, Framing::Chunked);
        assert_eq!(response.body, payload(3, 70_000));
        let response = client.get("/c?size=10&close");
        assert_eq!((response.framing, response.body.len()), (Framing::Close, 10));
        client.expect_close();
        assert_eq!((upstream.connections(), upstream.requests()), (1, 3));
        assert_eq!(upstream.seen()[1], "GET /b?size=70000&chunked&piece=999&seed=3 HTTP/1.1");
    }

    #[test]
    fn stops_and_starts_on_the_same_port() {
        let mut upstream = Upstream::echo();
        let mut client = Client::connect(upstream.addr());
        client.get("/");
        upstream.stop();
        client.expect_close();
        assert!(TcpStream::connect(upstream.addr()).is_err());
        upstream.start_echo();
        Client::connect(upstream.addr()).get("/");
    }
}
