//! One delivery of a batch: to a file, a socket, or an HTTP server. The sender decides whether to try again.

mod socket;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use socket::{Datagrams, OutletSocket, tcp};
use std::fs::{File, metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stillgate_plugin_api::outbox::{Entries, HttpReceiver, Outlet, Question, Receiver, Url};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

/// Batches of one outlet that are posted concurrently.
const POSTS_AT_ONCE: usize = 4;

/// The result of a batch that has arrived.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryReport {
    /// Bytes sent.
    pub(crate) bytes: u64,
    /// Entries that can never be sent.
    pub(crate) too_large: u64,
    /// Entries that the receiver rejected.
    pub(crate) refused: u64,
}

/// The content to deliver, for all tries.
pub(crate) enum Payload {
    Whole(Bytes),
    /// Split into datagrams when sent.
    Entries(Entries),
}

/// State that an outlet keeps between deliveries: connections, an open file.
pub(crate) enum Delivery {
    File(AppendFile),
    Http(Box<OutletClient>),
    Tcp(OutletSocket),
    Udp(Datagrams),
}

impl Delivery {
    pub(crate) fn new(outlet: &Outlet) -> Delivery {
        match &outlet.receiver {
            Receiver::File(_) => Delivery::File(AppendFile::default()),
            Receiver::Http(_) => Delivery::Http(Box::default()),
            Receiver::Tcp(_) => Delivery::Tcp(OutletSocket::default()),
            Receiver::Udp(_) => Delivery::Udp(Datagrams),
        }
    }

    /// How many batches are delivered concurrently. Batches in one stream are sent one after the other, to keep their
    /// order.
    pub(crate) fn at_once(&self) -> usize {
        match self {
            Delivery::Http(_) => POSTS_AT_ONCE,
            Delivery::File(_) | Delivery::Tcp(_) | Delivery::Udp(_) => 1,
        }
    }

    /// The content to send for a batch, whose entries are not needed afterwards.
    pub(crate) fn payload(&self, outlet: &Outlet, entries: Entries) -> Payload {
        if let Delivery::Udp(_) = self {
            return Payload::Entries(entries);
        }
        let sent_bytes: usize = entries.iter().map(|entry| entry.len().max(outlet.encode.sent_bytes(entry)) + 2).sum();
        let mut bytes = Vec::with_capacity(sent_bytes + 64);
        outlet.encode.encode(&entries, &mut bytes);
        Payload::Whole(bytes.into())
    }

    /// Delivers a batch, or returns the error, without secrets.
    pub(crate) async fn run(&self, outlet: &Outlet, payload: &Payload) -> Result<DeliveryReport, String> {
        let bytes = match (self, &outlet.receiver, payload) {
            (Delivery::File(file), Receiver::File(to), Payload::Whole(bytes)) => {
                file.append(&to.path, bytes.clone()).await?
            }
            (Delivery::Http(client), Receiver::Http(to), Payload::Whole(bytes)) => {
                let (bytes, refused) = client.post(to, bytes.clone()).await?;
                return Ok(DeliveryReport { bytes, too_large: 0, refused });
            }
            (Delivery::Tcp(stream), Receiver::Tcp(to), Payload::Whole(bytes)) => stream.write(to, bytes).await?,
            (Delivery::Udp(datagrams), Receiver::Udp(to), Payload::Entries(entries)) => {
                return datagrams.send(to, entries, &*outlet.encode).await;
            }
            _ => return Err("an outlet has changed its receiver, which is a bug".to_owned()),
        };
        Ok(DeliveryReport { bytes, ..DeliveryReport::default() })
    }
}

// Appends to a file, which may be moved away at any time: then, or if it is missing, one is made.

/// The open file; `None` if it is not open.
#[derive(Default)]
pub(crate) struct AppendFile(Arc<Mutex<Option<File>>>);

impl AppendFile {
    /// Appends whole lines.
    pub(crate) async fn append(&self, path: &str, lines: Bytes) -> Result<u64, String> {
        let (open, path) = (self.0.clone(), path.to_owned());
        // A write may block on the disk.
        let written = spawn_blocking(move || {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            append(&mut open, &path, &lines).map_err(|error| format!("cannot append to {path}: {error}"))
        });
        written.await.map_err(|error| error.to_string())?
    }
}

fn append(open: &mut Option<File>, path: &str, lines: &[u8]) -> io::Result<u64> {
    let is_same = |file: &File| match (file.metadata(), metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    };
    let mut file = match open.take().filter(is_same) {
        Some(file) => file,
        None => open_file(path)?,
    };
    // In one call, so that lines of two outlets with one file do not mix; after a short write they may.
    file.write_all(lines)?;
    *open = Some(file);
    Ok(lines.len() as u64)
}

fn open_file(path: &str) -> io::Result<File> {
    // Opening a FIFO would wait for a reader without this flag.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().append(true).create(true).custom_flags(flags).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

// Posts batches over HTTP/1.1. Connections are kept for the next ones as long as the receiver's configuration
// allows.

/// The part of a response that is read. Elasticsearch answers with a line for each entry.
const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"));

/// Names and values.
type HeaderFields = Vec<(&'static str, String)>;

/// The connections of one outlet.
#[derive(Default)]
pub(crate) struct OutletClient {
    idle: Mutex<Vec<IdleSocket>>,
    /// Header fields that resulted from the receiver's answers, by address.
    learned: Mutex<Vec<(usize, HeaderFields)>>,
    /// The index of the next address.
    turn: Mutex<usize>,
}

/// A connection that is ready for the next request.
struct IdleSocket {
    url: usize,
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// The answer to a request.
struct OutletAnswer {
    status: u16,
    body: Bytes,
}

impl OutletClient {
    /// Posts a batch to one of the receiver's addresses. Returns its bytes, and the number of entries that the
    /// answer refuses.
    pub(crate) async fn post(&self, to: &HttpReceiver, body: Bytes) -> Result<(u64, u64), String> {
        let bytes = body.len() as u64;
        let url = self.next_url(to.urls.len());
        let at = || format!("{}:{}", to.urls[url].host, to.urls[url].port);
        let posted = async {
            let learned = match &to.question {
                Some(question) => self.learn_fields(to, url, question).await?,
                None => Vec::new(),
            };
            let request = request(to, &to.urls[url], Method::POST, &to.urls[url].target, learned, body)?;
            self.exchange(to, url, request).await
        };
        let answer = match timeout(to.timeout, posted).await {
            Ok(answer) => answer.map_err(|error| format!("{}: {error}", at()))?,
            Err(_) => return Err(format!("{}: no response within {} ms", at(), to.timeout.as_millis())),
        };
        match (200..to.status_below).contains(&answer.status) {
            true => Ok((bytes, to.refused.map_or(0, |refused| refused(&answer.body)))),
            false => Err(format!("{}: the response has the status {}", at(), answer.status)),
        }
    }

    /// One after the other, which over many batches is as good as a random choice.
    fn next_url(&self, count: usize) -> usize {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        *turn = turn.wrapping_add(1);
        *turn % count
    }

    async fn learn_fields(&self, to: &HttpReceiver, url: usize, question: &Question) -> Result<HeaderFields, String> {
        if let Some(fields) = self.known_fields(url) {
            return Ok(fields);
        }
        let request = request(to, &to.urls[url], Method::GET, &question.target, Vec::new(), Bytes::new())?;
        let answer = self.exchange(to, url, request).await?;
        if answer.status != 200 {
            return Err(format!("the request for its version got the status {}", answer.status));
        }
        let fields = (question.learn)(&answer.body)?;
        self.learned.lock().unwrap_or_else(PoisonError::into_inner).push((url, fields.clone()));
        Ok(fields)
    }

    fn known_fields(&self, url: usize) -> Option<HeaderFields> {
        let known = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(of, _)| *of == url).map(|(_, fields)| fields.clone())
    }

    async fn exchange(
        &self,
        to: &HttpReceiver,
        url: usize,
        request: Request<Full<Bytes>>,
    ) -> Result<OutletAnswer, String> {
        let mut request = request;
        if let Some(mut sender) = self.take_idle(to, url) {
            match sender.try_send_request(request).await {
                Ok(response) => return self.answer(to, url, sender, response).await,
                // It was closed meanwhile, and no byte of the request was sent.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(failed.into_error().to_string()),
                },
            }
        }
        let mut sender = connect(&to.urls[url], to.verifies, to.timeout).await?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        self.answer(to, url, sender, response).await
    }

    /// Reads the response to its end, so that the connection can be used again.
    async fn answer(
        &self,
        to: &HttpReceiver,
        url: usize,
        sender: SendRequest<Full<Bytes>>,
        response: Response<hyper::body::Incoming>,
    ) -> Result<OutletAnswer, String> {
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        if to.keepalive.is_some() && !sender.is_closed() {
            let idle = IdleSocket { url, sender, since: Instant::now() };
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
        }
        Ok(OutletAnswer { status: parts.status.as_u16(), body: body.to_bytes() })
    }

    /// The most recently used connection to an address.
    fn take_idle(&self, to: &HttpReceiver, url: usize) -> Option<SendRequest<Full<Bytes>>> {
        let keepalive = to.keepalive.unwrap_or(Duration::ZERO);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| !idle.sender.is_closed() && idle.since.elapsed() < keepalive);
        let at = idle.iter().rposition(|idle| idle.url == url)?;
        Some(idle.remove(at).sender)
    }
}

async fn connect(url: &Url, verifies: bool, time: Duration) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = tcp(&url.host, url.port, time).await?;
    // A connection ends when its sender is dropped, or the server closes it. The request reports its errors.
    if url.is_tls {
        let stream = socket::begin_tls(stream, &url.host, verifies).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move { drop(connection.await) });
        return Ok(sender);
    }
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn request(
    to: &HttpReceiver,
    url: &Url,
    method: Method,
    target: &str,
    learned: HeaderFields,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, String> {
    let bad = |_| "a header field of the configuration cannot be sent".to_owned();
    let mut request =
        Request::builder().method(&method).uri(target).body(Full::new(body)).map_err(|e| e.to_string())?;
    let fields = request.headers_mut();
    fields.insert(HOST, HeaderValue::from_str(&url.authority).map_err(bad)?);
    fields.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    for (name, value) in to
        .headers
        .iter()
        .map(|(name, value)| (&**name, value))
        .chain(learned.iter().map(|(name, value)| (*name, value)))
    {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
        fields.insert(name, HeaderValue::from_str(value).map_err(bad)?);
    }
    if method == Method::GET {
        fields.remove(CONTENT_TYPE);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_was_moved_away_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let (text, mut open) = (path.to_str().unwrap(), None);
        append(&mut open, text, b"1\n").unwrap();
        append(&mut open, text, b"2\n").unwrap();
        fs::rename(&path, folder.path().join("a.log.1")).unwrap();
        append(&mut open, text, b"3\n").unwrap();
        fs::remove_file(&path).unwrap();
        append(&mut open, text, b"4\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
        assert_eq!(fs::read_to_string(folder.path().join("a.log.1")).unwrap(), "1\n2\n");
        assert!(append(&mut None, "/nowhere/at/all", b"5\n").is_err());
    }
}
