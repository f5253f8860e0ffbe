//! Posts batches over HTTP/1.1. Connections are kept for the next ones as long as the receiver's configuration
//! allows.

use super::socket::tcp;
use super::tls;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use stillgate_plugin::outbox::{HttpReceiver, Question, Url};
use tokio::time::{Instant, timeout};

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
                Some(question) => self.learned(to, url, question).await?,
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

    async fn learned(&self, to: &HttpReceiver, url: usize, question: &Question) -> Result<HeaderFields, String> {
        if let Some(fields) = self.known(url) {
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

    fn known(&self, url: usize) -> Option<HeaderFields> {
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
        let mut sender = connect(&to.urls[url], to.verifies).await?;
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

async fn connect(url: &Url, verifies: bool) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = tcp(&url.host, url.port).await?;
    // A connection ends when its sender is dropped, or the server closes it. The request reports its errors.
    if url.is_tls {
        let stream = tls::begin(stream, &url.host, verifies).await?;
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
