//! The metrics as the answer to a request, if a plugin has decided so.
//!
//! The request goes to their thread over a pair of sockets, and what it sends goes to the client as a node's response does: piece
//! by piece, as fast as the client takes it. What is between the two threads is in the kernel's buffers, and bounded: neither ever
//! waits for the other.

use super::answer::LocalReply;
use super::attempt::{AttemptOutcome, next_after_response, outcome_of_event};
use super::relay::{Relay, RelayEvent};
use super::target::ExchangeBounds;
use super::{ConnectionNext, RequestContext, response};
use crate::connection::stream::Stream;
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use stillgate_plugin_api::Answer;
use stillgate_route::path::target_path;
use stillgate_upstream::Failure;
use stillgate_wire::{FieldName, Method};

/// Fields by which the exporter chooses the format.
const CHOOSING: [FieldName<'static>; 2] = [FieldName::constant("Accept"), FieldName::constant("Accept-Encoding")];

/// Sends the exposition; an error: nothing has been sent yet, and this is the answer.
pub(super) async fn give(serving: &mut RequestContext<'_>) -> Result<ConnectionNext, LocalReply> {
    let mut exporter = connect(serving)?;
    let RequestContext { worker, exchange, .. } = serving;
    exchange.to_node.reset(&worker.buffers);
    exchange.from_node.release(&worker.buffers);
    exchange.from_node.begin();
    exchange.response.reset();
    exchange.response_body.clear();
    exchange.method_sent = Method::Get;
    let (bounds, now_ms) = (ExchangeBounds::of_own(&serving.snapshot.plan.settings), worker.clock.now_ms());
    let mut relay = Relay::new(serving.lend(), &mut exporter, bounds, now_ms);
    relay.request_sent = true;
    let ended = loop {
        match poll_fn(|cx| relay.poll(cx)).await {
            RelayEvent::Head if relay.serving.exchange.response.status < 200 => {
                break RelayEvent::NodeFailed(Failure::BadResponse);
            }
            RelayEvent::Head => {
                if let Err(event) = response::begin(&mut relay) {
                    break event;
                }
            }
            event => break event,
        }
    };
    let (begun, keep_alive) = (relay.has_begun(), relay.keep_alive);
    let RequestContext { worker, client, exchange, .. } = serving;
    exchange.from_node.release(&worker.buffers);
    if ended == RelayEvent::Finished {
        client.ends_with_connection = false;
        return Ok(next_after_response(exchange, keep_alive));
    }
    match outcome_of_event(exchange, ended, false, begun) {
        AttemptOutcome::Done(after) => Ok(after),
        AttemptOutcome::Refused(own) => Err(own),
        AttemptOutcome::Failed(_) | AttemptOutcome::Switched(_) => Err(unavailable()),
    }
}

/// Makes a connection on which the exporter has got a request.
fn connect(serving: &RequestContext<'_>) -> Result<Stream, LocalReply> {
    let expose = serving.worker.expose.as_ref().ok_or_else(|| LocalReply::of_plugin(Answer::page(404)))?;
    let connected = || -> io::Result<Stream> {
        let (ours, exporters) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // Its buffer is still empty, so it takes everything.
        let question = question(serving);
        let is_asked = (&ours).write(&question)? == question.len();
        if !is_asked || !expose(exporters) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        tokio::net::UnixStream::from_std(ours).map(Stream::Local)
    };
    connected().map_err(|error| {
        tracing::debug!(%error, "the exporter cannot be asked");
        unavailable()
    })
}

/// The question contains the client's query, which may name families, and the formats that it accepts.
fn question(serving: &RequestContext<'_>) -> Vec<u8> {
    let RequestContext { client, exchange, snapshot, .. } = serving;
    let facts = exchange.facts(client, &snapshot.plan);
    let mut out = b"GET /".to_vec();
    if let Some(query) = target_path(facts.path_and_query()).1 {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    out.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n");
    let fields = &exchange.request_edits.fields;
    for name in CHOOSING {
        for value in fields.values(&exchange.request.fields, exchange.from_client.head(), name) {
            for part in [name.bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn unavailable() -> LocalReply {
    LocalReply::overload("the metrics cannot be had now")
}
