//! Local answers of the gateway, whatever their reason: a plugin's, those of an ACME challenge, and errors in APISIX's form, a JSON
//! object with `error_msg`. All take the same path, through the plugins that see responses, except complete answers on connections
//! from which no request is read.
//!
//! A gRPC call gets its own form; the log and the metrics report the status that any other request would have got.

use super::body_pipe::{BrokenBody, filter_all};
use super::chain::{self, ResponseSource};
use super::forwarding::{self, CommonLines};
use super::sender::{BodyDelimiting, COPY_BYTES_MAX};
use super::{ConnectionNext, RequestContext};
use crate::basics::min_rate::{MinRate, client_bytes_min};
use crate::connection::grpc;
use std::borrow::Cow;
use std::future::poll_fn;
use std::io::Write;
use std::sync::Arc;
use std::task::Poll;
use stillgate_plugin_api::client_bound::Lease;
use stillgate_plugin_api::{Answer, AnswerBody, Device};
use stillgate_wire::{ChunkError, Fault, FieldName, FieldValue, Method, RequestError, reason};
use tokio::net::TcpStream;

const CONTENT_TYPE: FieldName<'_> = FieldName::constant("Content-Type");

/// A local answer, and what it means beyond its bytes. It is on the heap, as the result of every phase has room for it.
#[derive(Debug)]
pub(crate) struct LocalReply(Box<ReplyDraft>);

#[derive(Debug)]
struct ReplyDraft {
    answer: Answer,
    /// For logs, and for gRPC calls, whose answers have no body.
    message: Cow<'static, str>,
    kind: LocalReplyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalReplyKind {
    Plain,
    /// What follows on the connection may not be a request.
    Closing,
    /// The client's own deadline has passed.
    Deadline,
    /// The client may retry soon.
    Overload,
    /// The client may retry after so many seconds.
    Later(u64),
}

/// Where an answer that a plugin has named comes from.
pub(super) enum SpecialReply {
    /// The thread that exposes the metrics.
    Metrics,
    /// Instead of an answer, the request becomes the connection of this device.
    Device(Arc<Device>),
}

impl LocalReply {
    /// An error in APISIX's form.
    pub(crate) fn error(status: u16, message: impl Into<Cow<'static, str>>) -> LocalReply {
        let message = message.into();
        let body = AnswerBody::Owned(error_body(status, &message).into_bytes());
        let answer = Answer { status, content_type: Some(Cow::Borrowed("application/json")), body };
        LocalReply(Box::new(ReplyDraft { answer, message, kind: LocalReplyKind::Plain }))
    }

    /// No route takes the request. APISIX sends JSON as well, with the content type text.
    pub(crate) fn no_route() -> LocalReply {
        let mut answer = LocalReply::error(404, "Route Not Found");
        answer.0.answer.content_type = Some(Cow::Borrowed("text/plain; charset=utf-8"));
        answer
    }

    fn of_kind(mut self, kind: LocalReplyKind) -> LocalReply {
        self.0.kind = kind;
        self
    }

    /// An error after which the connection is closed.
    pub(crate) fn closing(status: u16, message: impl Into<Cow<'static, str>>) -> LocalReply {
        LocalReply::error(status, message).of_kind(LocalReplyKind::Closing)
    }

    /// Response to the request of an ACME server.
    pub(crate) fn challenge(key_authorization: String) -> LocalReply {
        let body = AnswerBody::Owned(key_authorization.into_bytes());
        let answer = Answer { status: 200, content_type: Some(Cow::Borrowed("application/octet-stream")), body };
        LocalReply::of_plugin(answer)
    }

    /// The gateway is overloaded.
    pub(crate) fn overload(message: &'static str) -> LocalReply {
        LocalReply::error(503, message).of_kind(LocalReplyKind::Overload)
    }

    /// Like `overload`, with the seconds after which the client may retry.
    pub(crate) fn later(message: &'static str, after_s: u64) -> LocalReply {
        LocalReply::error(503, message).of_kind(LocalReplyKind::Later(after_s))
    }

    /// The client's deadline for its call has passed.
    pub(crate) fn deadline() -> LocalReply {
        LocalReply::error(504, "the time that the client gave the call has passed").of_kind(LocalReplyKind::Deadline)
    }

    /// The answer of a plugin.
    pub(crate) fn of_plugin(answer: Answer) -> LocalReply {
        let message = Cow::Borrowed(reason(answer.status));
        LocalReply(Box::new(ReplyDraft { answer, message, kind: LocalReplyKind::Plain }))
    }

    /// Like `of_plugin`, where what follows on the connection may not be a request.
    pub(crate) fn of_plugin_closing(answer: Answer) -> LocalReply {
        LocalReply::of_plugin(answer).of_kind(LocalReplyKind::Closing)
    }

    /// Where the answer comes from; `None`: from here.
    pub(super) fn elsewhere(&self) -> Option<SpecialReply> {
        match &self.0.answer.body {
            AnswerBody::Metrics => Some(SpecialReply::Metrics),
            AnswerBody::Device(device) => Some(SpecialReply::Device(device.clone())),
            _ => None,
        }
    }

    pub(crate) fn is_overload(&self) -> bool {
        self.0.kind == LocalReplyKind::Overload
    }
}

impl From<RequestError> for LocalReply {
    fn from(error: RequestError) -> LocalReply {
        let status = match error.fault() {
            Fault::BadRequest => 400,
            Fault::TargetTooLong => 414,
            Fault::HeadTooLarge => 431,
            Fault::Version => 505,
        };
        LocalReply::closing(status, error.to_string())
    }
}

impl From<ChunkError> for LocalReply {
    fn from(error: ChunkError) -> LocalReply {
        LocalReply::closing(400, error.to_string())
    }
}

/// Stages an answer to the request; the connection is kept if the request's body has arrived and the answer does not forbid it.
/// `None`: it is too late for an answer.
pub(crate) async fn stage(serving: &mut RequestContext<'_>, own: LocalReply) -> Option<StagedReply> {
    let LocalReply(own) = own;
    tracing::debug!(status = own.answer.status, message = %own.message, "answered by the gateway");
    let RequestContext { worker, client, exchange, .. } = serving;
    exchange.outcome.status = own.answer.status;
    // Part of an interim head has been sent and its rest may never follow: so an answer cannot follow either.
    if !exchange.to_client.is_idle() {
        return None;
    }
    let is_closing = own.kind == LocalReplyKind::Closing;
    let keep_alive =
        !is_closing && exchange.request.keep_alive && exchange.from_client.is_done() && !worker.parts_with(client);
    exchange.to_client.coding = BodyDelimiting::Raw;
    exchange.from_node.release(&worker.buffers);
    exchange.to_node.release(&worker.buffers);
    exchange.response_body.clear();
    exchange.response_body.end_capture();
    forwarding::edit_answer(exchange);
    let own = if exchange.chains.is_on() { filter(serving, *own).await } else { *own };
    let (own, held) = hold_body(serving, own);
    let body = write(serving, own, keep_alive);
    Some(StagedReply { body, _held: held, keep_alive })
}

/// An answer whose head is staged.
pub(crate) struct StagedReply {
    /// The body, sent after the head.
    body: AnswerBody,
    _held: Option<Lease>,
    /// Whether the client's connection is kept after it.
    keep_alive: bool,
}

/// Counts a body that was made for this request as held, until the client has taken it. If that is too much, an error takes its
/// place.
fn hold_body(serving: &mut RequestContext<'_>, own: ReplyDraft) -> (ReplyDraft, Option<Lease>) {
    let RequestContext { worker, client, exchange, .. } = serving;
    let status = own.answer.status;
    let has_body = !matches!(status, 204 | 304) && exchange.request.method != Method::Head;
    let is_call = || status >= 400 && grpc::call(&exchange.request, exchange.from_client.head()).is_some();
    let bytes = match &own.answer.body {
        AnswerBody::Owned(body) if has_body && body.len() > COPY_BYTES_MAX && !is_call() => body.len(),
        _ => return (own, None),
    };
    let mut held = worker.plugins.held.begin(client.address);
    if held.set(bytes).is_ok() {
        return (own, Some(held));
    }
    let kind = if own.kind == LocalReplyKind::Closing { own.kind } else { LocalReplyKind::Overload };
    let refusal = LocalReply::overload("the memory limit for bodies held by plugins is reached").of_kind(kind);
    exchange.outcome.status = refusal.0.answer.status;
    // The edits describe the body that is not sent.
    exchange.response_edits.clear();
    (*refusal.0, None)
}

/// Lets the plugins see the answer, and change it. If it cannot be given to them in the form they need, an error in our own form
/// takes its place.
async fn filter(serving: &mut RequestContext<'_>, own: ReplyDraft) -> ReplyDraft {
    let (kind, came_with) = (own.kind, own.answer.status);
    let filtered = run_filters(serving, own).await;
    let exchange = &mut *serving.exchange;
    exchange.response_body.clear();
    let own = filtered.unwrap_or_else(|failed| {
        exchange.response_edits.clear();
        let (status, message) = match failed {
            AnswerFailure::Broken(broken) if broken.is_busy() => (broken.status(), broken.message()),
            AnswerFailure::Broken(broken) if !broken.is_panic() && came_with >= 400 => (came_with, "a plugin failed"),
            AnswerFailure::Panicked | AnswerFailure::Broken(_) => (500, "a plugin failed"),
        };
        *LocalReply::error(status, message).of_kind(kind).0
    });
    exchange.outcome.status = own.answer.status;
    own
}

/// Plugins failed while processing an answer.
enum AnswerFailure {
    /// At the head.
    Panicked,
    /// At the body.
    Broken(BrokenBody),
}

async fn run_filters(serving: &mut RequestContext<'_>, own: ReplyDraft) -> Result<ReplyDraft, AnswerFailure> {
    let ReplyDraft { mut answer, message, kind } = own;
    let content_type = answer.content_type.take();
    if let Some(Ok(value)) = content_type.as_deref().map(|text| FieldValue::new(text.as_bytes())) {
        serving.exchange.response_edits.fields.add(CONTENT_TYPE, value);
    }
    chain::header_filter(serving, ResponseSource::Us(answer.status, answer.body.bytes().len()))
        .map_err(|_| AnswerFailure::Panicked)?;
    let RequestContext { worker, client, exchange, .. } = serving;
    let filtered = filter_all(&mut exchange.response_body, answer.body.bytes(), client.address, worker).await;
    let filtered = filtered.inspect_err(|broken| broken.tell(worker));
    if let Some(filtered) = filtered.map_err(AnswerFailure::Broken)? {
        answer.body = AnswerBody::Owned(filtered);
    }
    answer.status = exchange.response_edits.status().unwrap_or(answer.status);
    Ok(ReplyDraft { answer, message, kind })
}

/// Stages the answer; returns the body that follows what is staged.
fn write(serving: &mut RequestContext<'_>, own: ReplyDraft, keep_alive: bool) -> AnswerBody {
    let RequestContext { worker, exchange, snapshot, .. } = serving;
    let before = exchange.bytes_sent();
    let out = exchange.to_client.head(&worker.buffers);
    let ReplyDraft { mut answer, message, kind } = own;
    // An answer that is not an error, such as a redirect or a response to a preflight, has content of its own.
    let call = || grpc::call(&exchange.request, exchange.from_client.head());
    if answer.status >= 400
        && let Some(call) = call()
    {
        answer.body = AnswerBody::Empty;
        exchange.response_edits.fields.remove_added(CONTENT_TYPE);
        grpc::write_answer(out, call, answer.status, kind == LocalReplyKind::Deadline, &message);
    } else {
        let length = (!matches!(answer.status, 204 | 304)).then_some(answer.body.bytes().len());
        write_head(out, answer.status, answer.content_type.as_deref(), length);
        if length.is_none() {
            answer.body = AnswerBody::Empty;
        }
    }
    match kind {
        LocalReplyKind::Overload => out.extend_from_slice(b"Retry-After: 1\r\n"),
        LocalReplyKind::Later(after_s) => {
            write!(out, "Retry-After: {after_s}\r\n").expect("writing to a vector does not fail");
        }
        LocalReplyKind::Plain | LocalReplyKind::Closing | LocalReplyKind::Deadline => {}
    }
    let edits = &exchange.response_edits.fields;
    out.extend_from_slice(edits.lines());
    let lines = CommonLines::new(snapshot.plan.settings.server_header, true, exchange.request.version, keep_alive);
    lines.without(edits).push(worker, out);
    out.extend_from_slice(b"\r\n");
    exchange.outcome.head_bytes = before + out.len() as u64;
    exchange.fields.note_answer(worker.wanted_fields(), out);
    if exchange.request.method == Method::Head {
        answer.body = AnswerBody::Empty;
    }
    exchange.to_client.stage(answer.body.bytes(), None, &worker.buffers);
    answer.body
}

/// The messages are our own and need no escaping.
pub(super) fn error_body(status: u16, message: &str) -> String {
    match (status, message) {
        (404, message) => format!("{{\"error_msg\":\"404 {message}\"}}\n"),
        (status, "") => format!("{{\"error_msg\":\"{status} {}\"}}\n", reason(status)),
        (status, message) => format!("{{\"error_msg\":\"{status} {}: {message}\"}}\n", reason(status)),
    }
}

pub(super) fn write_head(out: &mut Vec<u8>, status: u16, content_type: Option<&str>, length: Option<usize>) {
    let mut put = |text: std::fmt::Arguments<'_>| out.write_fmt(text).expect("writing to a vector does not fail");
    put(format_args!("HTTP/1.1 {status} {}\r\n", reason(status)));
    if let Some(content_type) = content_type {
        put(format_args!("Content-Type: {content_type}\r\n"));
    }
    if let Some(length) = length {
        put(format_args!("Content-Length: {length}\r\n"));
    }
}

/// Writes what is staged.
pub(crate) async fn flush(serving: &mut RequestContext<'_>, staged: StagedReply) -> ConnectionNext {
    let RequestContext { worker, client, exchange, snapshot, .. } = serving;
    let body = staged.body.bytes();
    let send_ms = snapshot.plan.settings.send_ms;
    let mut rate = MinRate::begin(worker.clock.now_ms(), exchange.to_client.total);
    let written = poll_fn(|cx| {
        let rest = &body[body.len() - exchange.to_client.content_left()..];
        match exchange.to_client.poll_flush(cx, &mut client.stream, rest, &worker.buffers) {
            Poll::Ready(result) => Poll::Ready(result.is_ok()),
            Poll::Pending => {
                let now_ms = worker.clock.now_ms();
                rate.update(now_ms, exchange.to_client.total, client_bytes_min(send_ms));
                let deadline_ms = rate.since_ms() + send_ms;
                if now_ms >= deadline_ms {
                    return Poll::Ready(false);
                }
                client.timer.set(&worker.clock, deadline_ms, cx);
                Poll::Pending
            }
        }
    })
    .await;
    match (written, staged.keep_alive) {
        (false, _) => ConnectionNext::Close,
        (true, true) => ConnectionNext::KeepAlive,
        (true, false) => ConnectionNext::Linger,
    }
}

/// Beginning of a request line whose answer has no body (RFC 9110 section 9.3.2).
const HEAD: &[u8; 5] = b"HEAD ";

/// The method of a head that was refused, as far as it matters for the answer: the request line may be good up to there.
pub(crate) fn method_of(head: &[u8]) -> Method {
    if head.starts_with(HEAD) { Method::Head } else { Method::default() }
}

/// Whether the method is HEAD on a connection that no request is read from, by the bytes that have arrived; waits for them if there
/// are none.
pub(crate) async fn asks_for_head(stream: &TcpStream) -> bool {
    let mut bytes = [0; HEAD.len()];
    stream.peek(&mut bytes).await.is_ok() && bytes == *HEAD
}

/// The complete answer to a client that speaks plain HTTP on a TLS port.
pub(crate) fn plain_to_tls(is_head: bool) -> Vec<u8> {
    whole(400, "this port speaks TLS: the URL must begin with https", "", is_head)
}

/// The complete answer to a connection beyond the worker's limit.
pub(crate) fn overloaded(is_head: bool) -> Vec<u8> {
    whole(503, "too many connections, try again later", "Retry-After: 1\r\n", is_head)
}

fn whole(status: u16, message: &str, fields: &str, is_head: bool) -> Vec<u8> {
    let body = error_body(status, message);
    let mut out = Vec::new();
    write_head(&mut out, status, Some("application/json"), Some(body.len()));
    out.extend_from_slice(fields.as_bytes());
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
    out
}
