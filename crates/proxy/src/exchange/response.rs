//! The head of a node's response on its way to the client: interim ones, and the final one, whose framing is chosen after all
//! plugins have seen it.

use super::chain::{self, ResponseSource};
use super::forwarding;
use super::relay::{Relay, RelayEvent};
use super::sender::BodyDelimiting;
use super::{Exchange, RequestContext, upgraded_exchange};
use crate::connection::grpc;
use std::io::Write;
use stillgate_upstream::Failure;
use stillgate_wire::{BodyDecoder, Framing, Method, Name, ResponseHead, Version, reason, write_response};

/// Interim responses passed on for one request.
const INTERIMS_MAX: u32 = 100;
pub(super) const STATUS_SWITCHING: u16 = 101;
const STATUS_PARTIAL: u16 = 206;

pub(super) fn is_interim(response: &ResponseHead) -> bool {
    response.status < 200 && response.status != STATUS_SWITCHING
}

/// Passes an interim response on (RFC 9110 section 15.2).
#[cold]
pub(super) fn pass_interim(relay: &mut Relay<'_>) -> Result<(), RelayEvent> {
    let settings = relay.serving.settings();
    let RequestContext { worker, exchange, .. } = &mut relay.serving;
    exchange.interims += 1;
    if exchange.interims > INTERIMS_MAX {
        return Err(RelayEvent::NodeFailed(Failure::BadResponse));
    }
    // A second permission to send the body adds nothing.
    let is_repeated = exchange.response.status == 100 && exchange.probed;
    // What plugins remove from heads must not come in one that they do not see.
    let is_hidden = exchange.response.status != 100 && chain::filters_heads(exchange);
    if exchange.request.version == Version::Http11 && !is_repeated && !is_hidden {
        forwarding::edit_interim(exchange, settings);
        let head = &exchange.from_node.unparsed()[..exchange.response.len];
        let out = exchange.to_client.head(&worker.buffers);
        write_response(out, head, &exchange.response, &exchange.response_edits, reason);
        exchange.to_client.stage(&[], None, &worker.buffers);
    }
    let is_continue = exchange.response.status == 100;
    exchange.from_node.skip_head(exchange.response.len);
    exchange.response.reset();
    if is_continue {
        relay.continue_passed();
    }
    Ok(())
}

/// Serialises the final head for the client, with what has arrived of the body.
pub(super) fn begin(relay: &mut Relay<'_>) -> Result<(), RelayEvent> {
    if relay.serving.exchange.response.status == STATUS_SWITCHING {
        return upgraded_exchange::agree(relay);
    }
    let exchange = &mut *relay.serving.exchange;
    if exchange.needs_whole && exchange.response.status == STATUS_PARTIAL && is_part_of_bytes(exchange) {
        return Err(RelayEvent::Part);
    }
    let decoder = BodyDecoder::new(exchange.response.framing);
    let started = exchange.from_node.start_body(exchange.response.len, decoder);
    started.map_err(|_| RelayEvent::NodeFailed(Failure::BadResponse))?;
    forwarding::edit_response(exchange, &relay.serving.snapshot.plan.settings);
    if exchange.chains.is_on() {
        chain::header_filter(&mut relay.serving, ResponseSource::Node).map_err(|_| RelayEvent::PluginFailed)?;
        let RequestContext { worker, client, exchange, .. } = &mut relay.serving;
        exchange.response_body.start_capture(|| worker.plugins.held.begin(client.address));
    }
    let delimited = delimit(&mut relay.serving);
    write_head(relay, delimited);
    let RequestContext { worker, exchange, .. } = &mut relay.serving;
    exchange.response_pipe().stage(worker).map_err(|broken| {
        // Nothing of it has been sent.
        exchange.to_client.release(&worker.buffers);
        RelayEvent::BrokenResponse(broken)
    })?;
    exchange.from_node.drop_head();
    relay.serving.client.ends_with_connection = delimited == ResponseEnd::Close;
    relay.enter_body();
    Ok(())
}

/// Whether a 206 is a part of a body, as the node did not leave that to `Range`: what a filter looks for may be cut in two. A node
/// that counts in other units (`Content-Range: items 0-9/100`) sends a body that is whole.
#[cold]
fn is_part_of_bytes(exchange: &Exchange) -> bool {
    const BYTES: &[u8] = b"bytes";
    let head = &exchange.from_node.unparsed()[..exchange.response.len];
    let fields = exchange.response.fields.iter();
    let mut ranges = fields
        .filter(|field| field.name.of(head).eq_ignore_ascii_case(b"content-range"))
        .map(|field| field.value.of(head))
        .peekable();
    let is_bytes = |value: &[u8]| {
        value.is_empty() || value.get(..BYTES.len()).is_some_and(|unit| unit.eq_ignore_ascii_case(BYTES))
    };
    ranges.peek().is_none() || ranges.any(is_bytes)
}

/// How the client sees where a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseEnd {
    /// By its head.
    Head,
    /// By the chunked coding.
    Chunks,
    /// By the end of the connection.
    Close,
}

impl ResponseEnd {
    fn by_chunks(version: Version) -> ResponseEnd {
        if version == Version::Http11 { ResponseEnd::Chunks } else { ResponseEnd::Close }
    }
}

/// Chooses how the response is delimited, with its body unchanged or changed.
#[inline]
fn delimit(serving: &mut RequestContext<'_>) -> ResponseEnd {
    if serving.exchange.chains.is_on() && is_body_changed(serving.exchange) {
        return delimit_changed(serving);
    }
    let exchange = &*serving.exchange;
    match exchange.response.framing {
        Framing::None | Framing::Length(_) => ResponseEnd::Head,
        Framing::Chunked | Framing::UntilClose => ResponseEnd::by_chunks(exchange.request.version),
    }
}

/// Whether the client gets a body at all, with this status of a plugin's or the node's.
fn may_have_body(exchange: &Exchange) -> bool {
    exchange.request.method != Method::Head && !matches!(status_of(exchange), 204 | 304)
}

#[inline]
fn status_of(exchange: &Exchange) -> u16 {
    exchange.response_edits.status().unwrap_or(exchange.response.status)
}

/// Whether plugins have changed the body, including whether there is one.
#[inline]
fn is_body_changed(exchange: &Exchange) -> bool {
    let comes = exchange.response.framing != Framing::None;
    // A node's head may state a length that is valid with its own status, but not with a plugin's (RFC 9110 section 8.6).
    let length_is_wrong = status_of(exchange) == 204 && exchange.response.status != 204;
    !exchange.response_body.is_empty() || comes != may_have_body(exchange) || length_is_wrong
}

/// How a response is delimited whose body plugins have changed.
#[cold]
fn delimit_changed(serving: &mut RequestContext<'_>) -> ResponseEnd {
    let may_have_body = may_have_body(serving.exchange);
    let status = status_of(serving.exchange);
    let held = || serving.worker.plugins.held.begin(serving.client.address);
    let Exchange { request, response, response_body, response_edits, from_node, .. } = &mut *serving.exchange;
    let comes = response.framing != Framing::None;
    let is_call = grpc::ends_call(response, from_node.head());
    let edits = &mut response_edits.fields;
    for (index, field) in response.fields.iter().enumerate() {
        if field.id == Name::ContentLength {
            edits.removed.insert(index);
        }
    }
    let came = match response.framing {
        Framing::Length(length) => Some(length),
        Framing::None | Framing::Chunked | Framing::UntilClose => None,
    };
    let mut length = response_body.changes.length_of(came);
    if !may_have_body {
        // A HEAD may get the length that a GET would have had (RFC 9110 section 8.6); that of a 304 is not known.
        length = length.filter(|_| request.method == Method::Head && !matches!(status, 204 | 304));
        response_body.clear();
        if comes {
            response_body.changes.replace(&[]);
        }
    } else if length.is_none() && (!comes || is_call && came == Some(0) && !response_body.changes.drops_what_comes()) {
        // Also a call that ends with its head ("Trailers-Only"): its client would take an end behind it for a broken call.
        response_body.clear();
        length = Some(0);
    }
    if !response_body.is_empty() {
        response_body.start(false, held());
        response_body.passes_trailers = is_call;
    }
    if let Some(length) = length {
        write!(edits.appended, "Content-Length: {length}\r\n").expect("writing to a vector does not fail");
    }
    let is_by_head = !may_have_body || length.is_some();
    if is_by_head { ResponseEnd::Head } else { ResponseEnd::by_chunks(request.version) }
}

/// The trailer fields that the node announces do not reach the client.
#[cold]
fn announce_no_trailers(exchange: &mut Exchange) {
    let announced = exchange.response.fields.iter().enumerate().filter(|(_, field)| field.id == Name::Trailer);
    announced.for_each(|(index, _)| exchange.response_edits.fields.removed.insert(index));
}

fn write_head(relay: &mut Relay<'_>, delimited: ResponseEnd) {
    let settings = relay.serving.settings();
    let RequestContext { worker, client, exchange, .. } = &mut relay.serving;
    let is_delimited = delimited != ResponseEnd::Close;
    let is_chunked = delimited == ResponseEnd::Chunks;
    // A body that is still on its way may never arrive: its client waits for our answer first.
    let keep_alive =
        exchange.request.keep_alive && is_delimited && exchange.from_client.is_done() && !worker.parts_with(client);
    relay.keep_alive = keep_alive;
    if exchange.response.framing == Framing::Chunked && (!is_chunked || !exchange.response_body.is_empty()) {
        announce_no_trailers(exchange);
    } else {
        let Exchange { response, response_edits, from_node, .. } = &mut **exchange;
        response_edits.fields.filter_trailer_names(&response.fields, from_node.head(), false);
    }
    forwarding::end_response_edits(worker, exchange, settings, keep_alive, is_chunked);
    assert!(exchange.to_client.is_idle());
    let interim_bytes = exchange.bytes_sent();
    exchange.to_client.coding = if is_chunked { BodyDelimiting::Chunked } else { BodyDelimiting::Raw };
    let out = exchange.to_client.head(&worker.buffers);
    write_response(out, exchange.from_node.head(), &exchange.response, &exchange.response_edits, reason);
    exchange.outcome.status = exchange.response_edits.status().unwrap_or(exchange.response.status);
    exchange.outcome.head_bytes = interim_bytes + out.len() as u64;
    exchange.fields.note_response(worker.wanted_fields(), &exchange.response, exchange.from_node.head(), out);
}
