//! Answers the gateway gives itself, in APISIX's form: a JSON object with `error_msg`. A gRPC call gets its own form; the
//! log and the metrics tell of it the status that any other request would have got.

use super::forwarding::push_common_lines;
use super::sender::Coding;
use super::{After, Exchange};
use crate::connection::client::Client;
use crate::connection::grpc;
use crate::plan::Settings;
use crate::worker::Worker;
use std::borrow::Cow;
use std::future::poll_fn;
use std::io::Write;
use std::task::Poll;
use stillgate_wire::{ChunkError, Fault, Method, RequestError};
use tokio::net::TcpStream;

/// The name of a status (RFC 9110 section 15).
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

/// Why the gateway answers a request itself.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: Cow<'static, str>,
    /// What follows on the connection may be no request.
    pub(crate) closes: bool,
    /// The client's own deadline has passed.
    pub(crate) is_deadline: bool,
    /// It may be tried again soon.
    pub(crate) is_overload: bool,
}

impl Refusal {
    pub(crate) fn new(status: u16, message: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { status, message: message.into(), closes: false, is_deadline: false, is_overload: false }
    }

    pub(crate) fn closing(status: u16, message: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { closes: true, ..Refusal::new(status, message) }
    }

    /// What an ACME server has asked for: no refusal, but no node's affair either.
    pub(crate) fn challenge(key_authorization: String) -> Refusal {
        Refusal::new(200, key_authorization)
    }

    pub(crate) fn overload(message: &'static str) -> Refusal {
        Refusal { is_overload: true, ..Refusal::new(503, message) }
    }

    pub(crate) fn deadline() -> Refusal {
        Refusal { is_deadline: true, ..Refusal::new(504, "the time that the client gave the call has passed") }
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Refusal {
        let status = match error.fault() {
            Fault::BadRequest => 400,
            Fault::TargetTooLong => 414,
            Fault::HeadTooLarge => 431,
            Fault::Version => 505,
        };
        Refusal::closing(status, error.to_string())
    }
}

impl From<ChunkError> for Refusal {
    fn from(error: ChunkError) -> Refusal {
        Refusal::closing(400, error.to_string())
    }
}

/// Answers a request; the connection goes on where its body is here and the refusal does not forbid it.
pub(crate) async fn send(
    worker: &Worker,
    client: &mut Client,
    exchange: &mut Exchange,
    settings: &Settings,
    refusal: &Refusal,
) -> After {
    tracing::debug!(status = refusal.status, message = %refusal.message, "answered by the gateway");
    exchange.outcome.status = refusal.status;
    // Part of an interim head is out and its rest may never follow: neither may an answer.
    if !exchange.to_client.is_idle() {
        return After::Close;
    }
    let keep_alive =
        !refusal.closes && exchange.request.keep_alive && exchange.from_client.is_done() && !worker.parts_with(client);
    stage(worker, exchange, settings, refusal, keep_alive);
    flush(worker, client, exchange, settings.send_ms, keep_alive).await
}

fn stage(worker: &Worker, exchange: &mut Exchange, settings: &Settings, refusal: &Refusal, keep_alive: bool) {
    exchange.to_client.coding = Coding::Raw;
    exchange.from_node.release(&worker.buffers);
    exchange.to_node.release(&worker.buffers);
    let before = exchange.bytes_sent();
    let out = exchange.to_client.head(&worker.buffers);
    let mut body = body(refusal.status, &refusal.message);
    if let Some(call) = grpc::call(&exchange.request, exchange.from_client.head()) {
        body.clear();
        grpc::write_answer(out, call, refusal.status, refusal.is_deadline, &refusal.message);
    } else {
        write_head(out, refusal.status, body.len());
    }
    if refusal.is_overload {
        out.extend_from_slice(b"Retry-After: 1\r\n");
    }
    push_common_lines(worker, settings, out, true, exchange.request.version, keep_alive);
    out.extend_from_slice(b"\r\n");
    exchange.outcome.head_bytes = before + out.len() as u64;
    exchange.fields.note_answer(worker.wanted_fields(), out);
    if exchange.request.method != Method::Head {
        out.extend_from_slice(body.as_bytes());
    }
    exchange.to_client.stage(&[], None, &worker.buffers);
}

/// The messages are ours and need no escaping.
fn body(status: u16, message: &str) -> String {
    match (status, message) {
        (200, message) => message.to_owned(),
        (404, message) => format!("{{\"error_msg\":\"404 {message}\"}}\n"),
        (status, "") => format!("{{\"error_msg\":\"{status} {}\"}}\n", reason(status)),
        (status, message) => format!("{{\"error_msg\":\"{status} {}: {message}\"}}\n", reason(status)),
    }
}

fn write_head(out: &mut Vec<u8>, status: u16, length: usize) {
    let reason = reason(status);
    let kind = if status == 200 { "application/octet-stream" } else { "application/json" };
    write!(out, "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n")
        .expect("writing to a vector does not fail");
}

async fn flush(worker: &Worker, client: &mut Client, exchange: &mut Exchange, send_ms: u64, keep_alive: bool) -> After {
    let deadline_ms = worker.clock.now_ms() + send_ms;
    let written = poll_fn(|cx| match exchange.to_client.poll_flush(cx, &mut client.stream, &[], &worker.buffers) {
        Poll::Ready(result) => Poll::Ready(result.is_ok()),
        Poll::Pending if worker.clock.now_ms() >= deadline_ms => Poll::Ready(false),
        Poll::Pending => {
            client.timer.set(&worker.clock, deadline_ms, cx);
            Poll::Pending
        }
    })
    .await;
    match (written, keep_alive) {
        (false, _) => After::Close,
        (true, true) => After::KeepAlive,
        (true, false) => After::Linger,
    }
}

/// What a request line begins with whose answer has no body (RFC 9110 section 9.3.2).
const HEAD: &[u8; 5] = b"HEAD ";

/// The method of a head that was refused, as far as it matters for the answer: the request line may be good up to there.
pub(crate) fn method_of(head: &[u8]) -> Method {
    if head.starts_with(HEAD) { Method::Head } else { Method::default() }
}

/// The same of a connection that no request is read from: by what has come of it, which is waited for where that is nothing.
pub(crate) async fn asks_for_head(stream: &TcpStream) -> bool {
    let mut bytes = [0; HEAD.len()];
    stream.peek(&mut bytes).await.is_ok() && bytes == *HEAD
}

/// The whole answer to a client that speaks HTTP where TLS is spoken.
pub(crate) fn plain_to_tls(is_head: bool) -> Vec<u8> {
    whole(400, "this port speaks TLS: the URL must begin with https", "", is_head)
}

/// The whole answer to a connection beyond the worker's share.
pub(crate) fn overloaded(is_head: bool) -> Vec<u8> {
    whole(503, "too many connections, try again later", "Retry-After: 1\r\n", is_head)
}

/// An answer to a connection of which no request is read.
fn whole(status: u16, message: &str, fields: &str, is_head: bool) -> Vec<u8> {
    let body = body(status, message);
    let mut out = Vec::new();
    write_head(&mut out, status, body.len());
    out.extend_from_slice(fields.as_bytes());
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
    out
}
