//! One try of a request at one node: a connection, the request written, the response passed on.
//!
//! The relay moves the bytes; what its events mean is decided here. Whether there is another try is not.

use super::forwarding::{self, host_for};
use super::relay::{Bounds, Event, Relay};
use super::reply::{Refusal, reason};
use super::sender::Coding;
use super::upgraded;
use super::{After, Exchange};
use crate::connection::client::Client;
use crate::connection::stream::Stream;
use crate::node::health;
use crate::node::{self, ConnectError, Destination};
use crate::plan::Settings;
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use crate::worker::connecting::{Making, Wanted};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_upstream::{ConnMeta, Failure, Report};
use stillgate_wire::{FieldName, FieldValue, Framing, Name, ResponseHead, Version, write_request, write_response};

/// Interim responses passed on for one request.
const INTERIMS_MAX: u32 = 100;
/// nginx's code for a request whose client did not wait for the answer; only the access log sees it.
pub(crate) const STATUS_CLIENT_GONE: u16 = 499;
const HOST: FieldName<'_> = FieldName::constant("Host");
const TE: FieldName<'_> = FieldName::constant("TE");
const STATUS_SWITCHING: u16 = 101;

/// Where the tries of one request stand.
pub(crate) struct Tries<'a> {
    pub(crate) upstream: &'a WorkerUpstream,
    pub(crate) settings: &'a Settings,
    pub(crate) bounds: Bounds,
    pub(crate) began_ms: u64,
    pub(crate) retries_used: u32,
    /// The next try must not use the pool.
    pub(crate) fresh: bool,
}

/// How one try ended.
pub(crate) enum Ended {
    /// The client has its response, or does not need one any more.
    Done(After),
    /// The client has its 101, and what follows is another protocol.
    Switched(Stream),
    /// The gateway has to answer for itself.
    Refused(Refusal),
    /// Nothing has reached the client.
    Failed(Failed),
}

/// A try that failed, as the retry rules want to know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) reused: bool,
    pub(crate) request_sent: bool,
    pub(crate) response_started: bool,
}

/// The node's connection while a try uses it.
struct Connection {
    index: usize,
    stream: Stream,
    meta: ConnMeta,
    /// How long it took to make; zero where it was there.
    connect_us: u64,
}

/// A try that is under way at an endpoint; its end is counted whatever becomes of the task.
struct Trying<'a> {
    upstream: &'a WorkerUpstream,
    worker: &'a Worker,
    index: usize,
    latency_us: Option<u32>,
    is_retry: bool,
    /// As [`Tries::fresh`].
    fresh: bool,
    began_ms: u64,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        let now_ms = self.worker.clock.now_ms();
        let mut state = self.upstream.state.borrow_mut();
        state.on_finish(self.index, self.latency_us, now_ms);
        if self.is_retry {
            state.on_retry_end();
        }
    }
}

impl<'a> Trying<'a> {
    fn new(worker: &'a Worker, tries: &Tries<'a>, index: usize) -> Trying<'a> {
        let (upstream, is_retry) = (tries.upstream, tries.retries_used > 0);
        let mut state = upstream.state.borrow_mut();
        state.on_start(index);
        if is_retry {
            state.on_retry();
        }
        let (fresh, began_ms) = (tries.fresh, worker.clock.now_ms());
        Trying { upstream, worker, index, latency_us: None, is_retry, fresh, began_ms }
    }

    /// The final response's head is here, of a try that began then.
    fn answered(&mut self, exchange: &mut Exchange, began: Option<Instant>) {
        let status = exchange.response.status;
        health::report(self.worker, self.upstream, self.index, Report::Status(status), || format!("status {status}"));
        exchange.tries.answered(status);
        let now = began.map(|_| Instant::now());
        if exchange.outcome.timing.head {
            let elapsed_us = began.zip(now).map(|(began, now)| now.duration_since(began).as_micros() as u64);
            self.latency_us = elapsed_us.map(|us| u32::try_from(us).unwrap_or(u32::MAX));
            exchange.outcome.upstream_us = elapsed_us;
        }
        // Right where the whole response has come with its head; the end of any other is told where that comes.
        exchange.outcome.node_until = now;
    }

    /// It ended before the response did, on this connection.
    fn failed(&self, exchange: &mut Exchange, connection: Connection, event: Event, begun: bool) -> Ended {
        // A node that has not looked at the request is not to blame (RFC 9113 section 8.7): as if nothing had been sent.
        let is_unseen = connection.stream.is_unseen();
        // Once: a node that looks at none, on a new connection either, is one that fails.
        let reused = connection.meta.is_reused() || (is_unseen && !self.fresh);
        if matches!(event, Event::NodeFailed(Failure::SendTimeout | Failure::ReadTimeout | Failure::TryTimeout)) {
            connection.stream.retire();
        }
        exchange.mistaken = connection.stream.mistaken(exchange.from_node.unparsed());
        self.report(event, reused);
        if let Event::NodeFailed(failure) = event {
            exchange.tries.failed(failure);
        }
        match interrupted(exchange, event, reused, begun) {
            Ended::Failed(failed) if is_unseen && exchange.from_client.replayable => {
                Ended::Failed(Failed { request_sent: false, ..failed })
            }
            ended => ended,
        }
    }

    fn report(&self, event: Event, reused: bool) {
        if let Event::NodeFailed(failure) = event {
            health::report_failure(self.worker, self.upstream, self.index, failure, reused);
        }
    }
}

/// One try at one endpoint.
pub(crate) async fn run(
    worker: &Rc<Worker>,
    client: &mut Client,
    exchange: &mut Exchange,
    tries: &Tries<'_>,
    index: usize,
) -> Ended {
    let state = &tries.upstream.state;
    let mut trying = Trying::new(worker, tries, index);
    exchange.mistaken = None;
    let address = state.borrow().endpoint(index).address;
    exchange.outcome.asked = Some((index, address));
    exchange.tries.begin(address);
    let timing = exchange.outcome.timing;
    let began = (timing.head || timing.node).then(Instant::now);
    exchange.outcome.node_since = exchange.outcome.node_since.or(began);
    let mut connection = match pooled(worker, exchange, tries, index) {
        Some(pooled) => pooled,
        // On the heap, as it is rare and large: every idle connection's task has room for whatever is in here.
        None => match Box::pin(connect(worker, client, exchange, tries, index)).await {
            Ok(fresh) => fresh,
            Err(error) => {
                exchange.outcome.node_ended();
                exchange.tries.failed(error.failure);
                return not_connected(error);
            }
        },
    };
    exchange.tries.connected(connection.connect_us);
    stage_request(worker, exchange, tries, index);
    let mut relay = Relay::new(worker, client, exchange, &mut connection.stream, tries.bounds);
    relay.try_began_ms = trying.began_ms;
    let end = loop {
        match poll_fn(|cx| relay.poll(cx)).await {
            Event::Head if is_interim(&relay.exchange.response) => {
                if let Err(failure) = pass_interim(&mut relay, tries.settings) {
                    break Err(Event::NodeFailed(failure));
                }
            }
            Event::Head => {
                trying.answered(relay.exchange, began);
                if let Err(failure) = begin_response(&mut relay, tries.settings) {
                    break Err(Event::NodeFailed(failure));
                }
            }
            Event::Finished => break Ok(()),
            event => {
                relay.exchange.outcome.node_ended();
                break Err(event);
            }
        }
    };
    let (sent, begun, keep_alive) = (relay.request_sent && !relay.node_deaf, relay.in_body(), relay.keep_alive);
    match end {
        Ok(()) if exchange.response.status == STATUS_SWITCHING => Ended::Switched(connection.stream),
        Ok(()) => Ended::Done(finish(worker, client, exchange, tries, connection, sent, keep_alive)),
        Err(event) => trying.failed(exchange, connection, event, begun),
    }
}

/// The name that the node must show a certificate of, where its upstream speaks TLS.
fn server_name(exchange: &Exchange, tries: &Tries<'_>, index: usize) -> Option<ServerName<'static>> {
    let tls = tries.upstream.planned.tls.as_ref()?;
    let state = tries.upstream.state.borrow();
    let node = &state.endpoint(index).host;
    Some(tls.server_name(host_seen(exchange, tries, node), node))
}

/// What the node will take for its own name.
fn host_seen<'a>(exchange: &'a Exchange, tries: &'a Tries<'_>, node: &'a str) -> &'a str {
    std::str::from_utf8(host_for(exchange, &tries.upstream.planned.definition.pass_host, node)).unwrap_or_default()
}

fn pooled(worker: &Worker, exchange: &Exchange, tries: &Tries<'_>, index: usize) -> Option<Connection> {
    if tries.fresh {
        return None;
    }
    let is_name = |shown: Option<&ServerName<'static>>, node: &str| match (&tries.upstream.planned.tls, shown) {
        (Some(tls), Some(shown)) => tls.is_server_name(shown, host_seen(exchange, tries, node), node),
        (tls, shown) => tls.is_none() && shown.is_none(),
    };
    let mut state = tries.upstream.state.borrow_mut();
    let (stream, meta) = node::take_live(&mut state, index, is_name, worker.clock.now_ms())?;
    Some(Connection { index, stream, meta, connect_us: 0 })
}

async fn connect(
    worker: &Rc<Worker>,
    client: &Client,
    exchange: &Exchange,
    tries: &Tries<'_>,
    index: usize,
) -> Result<Connection, ConnectError> {
    let state = &tries.upstream.state;
    let name = server_name(exchange, tries, index);
    let (http2, grpc) = (tries.upstream.planned.definition.http2, tries.upstream.planned.definition.grpc);
    let address = state.borrow().endpoint(index).address;
    let timeout_ms = tries.bounds.node.connect.min(tries.bounds.node.per_try);
    let deadline_ms = (worker.clock.now_ms() + timeout_ms).min(tries.bounds.deadline_ms);
    // One connection carries many: whoever comes while it is being made waits for it, and for the next where others have filled it.
    // Should making it fail, each tries for itself.
    let wanted = || Wanted { pool: Rc::as_ptr(state).addr(), address, name: name.clone() };
    let making = loop {
        match http2.then(|| worker.connecting.begin(wanted())).transpose() {
            Ok(making) => break making,
            Err(other) => {
                let made = Box::pin(other.wait());
                worker.clock.within(&client.timer, deadline_ms, made).await;
                if let Some(pooled) = pooled(worker, exchange, tries, index) {
                    return Ok(pooled);
                }
                if !other.is_made() {
                    break None;
                }
            }
        }
    };
    let tls = tries.upstream.tls.as_ref().zip(name);
    let destination = Destination { upstream: tries.upstream, address, tls, http2, grpc, preface: &[] };
    let left_ms = deadline_ms.saturating_sub(worker.clock.now_ms());
    match node::connect(worker, client, destination, left_ms).await {
        Ok((stream, connect_us)) => {
            health::report(worker, tries.upstream, index, Report::Connected, String::new);
            let meta = state.borrow().fresh_meta(index);
            let (stream, meta) = node::keep_shared(&mut state.borrow_mut(), index, stream, meta, worker.clock.now_ms());
            making.iter().for_each(Making::made);
            Ok(Connection { index, stream, meta, connect_us })
        }
        Err(error) => {
            if !error.is_local {
                let why = || error.error.as_ref().map_or("it took too long".to_owned(), ToString::to_string);
                health::report(worker, tries.upstream, index, Report::Failed(error.failure), why);
            }
            Err(error)
        }
    }
}

fn not_connected(error: ConnectError) -> Ended {
    let failure = error.failure;
    Ended::Failed(Failed { failure, reused: false, request_sent: false, response_started: false })
}

/// Serialises the request for this node, with what is here of its body.
fn stage_request(worker: &Worker, exchange: &mut Exchange, tries: &Tries<'_>, index: usize) {
    let buffers = &worker.buffers;
    exchange.to_node.reset(buffers);
    exchange.from_node.release(buffers);
    exchange.from_node.begin();
    exchange.response.reset();
    exchange.refusal = None;
    if exchange.from_client.replayable {
        exchange.from_client.rewind();
    }
    if exchange.request.framing == Framing::Chunked {
        exchange.to_node.coding = Coding::Chunked;
    }
    let added = exchange.request_edits.fields.added.len();
    if exchange.sets_host {
        let state = tries.upstream.state.borrow();
        let pass_host = &tries.upstream.planned.definition.pass_host;
        let mut edits = std::mem::take(&mut exchange.request_edits);
        edits.fields.add(HOST, FieldValue::of_head(host_for(exchange, pass_host, &state.endpoint(index).host)));
        exchange.request_edits = edits;
    }
    // A node of HTTP/2 may be told; one of HTTP/1.1 would need it in `Connection`, too.
    let te = exchange.request.fields.get(exchange.from_client.head(), Name::Te);
    if tries.upstream.planned.definition.http2 && te.is_some_and(|te| te.eq_ignore_ascii_case(b"trailers")) {
        exchange.request_edits.fields.add(TE, FieldValue::constant("trailers"));
    }
    write_request(
        exchange.to_node.head(buffers),
        exchange.from_client.head(),
        &exchange.request,
        &exchange.request_edits,
    );
    exchange.request_edits.fields.added.truncate(added);
    let end = exchange.from_client.is_done().then(|| exchange.from_client.trailers());
    exchange.to_node.stage(exchange.from_client.content(), end, buffers);
    exchange.from_client.written_but(exchange.to_node.content_left());
}

fn is_interim(response: &ResponseHead) -> bool {
    response.status < 200 && response.status != STATUS_SWITCHING
}

/// Passes an interim response on (RFC 9110 section 15.2).
fn pass_interim(relay: &mut Relay<'_>, settings: &Settings) -> Result<(), Failure> {
    let worker = relay.worker;
    let exchange = &mut *relay.exchange;
    exchange.interims += 1;
    if exchange.interims > INTERIMS_MAX {
        return Err(Failure::BadResponse);
    }
    if exchange.request.version == Version::Http11 {
        forwarding::edit_response(worker, exchange, settings, true, false);
        let head = &exchange.from_node.unparsed()[..exchange.response.len];
        write_response(
            exchange.to_client.head(&worker.buffers),
            head,
            &exchange.response,
            &exchange.response_edits,
            reason,
        );
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

/// Serialises the final head for the client, with what is here of the body.
fn begin_response(relay: &mut Relay<'_>, settings: &Settings) -> Result<(), Failure> {
    if relay.exchange.response.status == STATUS_SWITCHING {
        return upgraded::agree(relay, settings);
    }
    let worker = relay.worker;
    let exchange = &mut *relay.exchange;
    exchange
        .from_node
        .start_body(exchange.response.len, exchange.response.framing)
        .map_err(|_| Failure::BadResponse)?;
    let delimited = match exchange.response.framing {
        Framing::None | Framing::Length(_) => true,
        Framing::Chunked | Framing::UntilClose => exchange.request.version == Version::Http11,
    };
    let chunked = delimited && matches!(exchange.response.framing, Framing::Chunked | Framing::UntilClose);
    // A body still on its way may never come: its client waits for our answer first.
    let keep_alive =
        exchange.request.keep_alive && delimited && exchange.from_client.is_done() && !worker.parts_with(relay.client);
    forwarding::edit_response(worker, exchange, settings, keep_alive, chunked);
    debug_assert!(exchange.to_client.is_idle());
    let interim_bytes = exchange.bytes_sent();
    exchange.to_client.coding = if chunked { Coding::Chunked } else { Coding::Raw };
    let out = exchange.to_client.head(&worker.buffers);
    write_response(out, exchange.from_node.head(), &exchange.response, &exchange.response_edits, reason);
    exchange.outcome.status = exchange.response.status;
    exchange.outcome.head_bytes = interim_bytes + out.len() as u64;
    exchange.fields.note_response(worker.wanted_fields(), &exchange.response, exchange.from_node.head(), out);
    let end = exchange.from_node.is_done().then(|| exchange.from_node.trailers());
    exchange.to_client.stage(exchange.from_node.content(), end, &worker.buffers);
    exchange.from_node.written_but(exchange.to_client.content_left());
    exchange.from_node.drop_head();
    relay.client.ends_with_connection = !delimited;
    relay.keep_alive = keep_alive;
    relay.enter_body();
    Ok(())
}

/// The response is out: keeps or closes the node's connection, and says what becomes of the client's.
fn finish(
    worker: &Worker,
    client: &mut Client,
    exchange: &mut Exchange,
    tries: &Tries<'_>,
    connection: Connection,
    request_sent: bool,
    keep_alive: bool,
) -> After {
    client.ends_with_connection = false;
    // Bytes beyond the response's end belong to no request: the next one on that connection would get them.
    let reusable = request_sent
        && exchange.response.keep_alive
        && !exchange.from_node.has_leftover()
        && !connection.stream.is_one_request();
    exchange.from_node.release(&worker.buffers);
    exchange.to_node.release(&worker.buffers);
    if reusable {
        let Connection { index, stream, meta, .. } = connection;
        let surplus = tries.upstream.state.borrow_mut().put(index, stream, meta, worker.clock.now_ms());
        drop(surplus);
    }
    let clean = exchange.from_client.is_done() && !exchange.from_client.has_leftover();
    match (keep_alive, clean) {
        (true, _) => After::KeepAlive,
        (false, true) => After::Close,
        (false, false) => After::Linger,
    }
}

/// What an event that ended a try means for the request. A response that has begun can only be cut; the client sees
/// that by its length, its chunks, or the reset that [`Client`] ends with.
fn interrupted(exchange: &mut Exchange, event: Event, reused: bool, begun: bool) -> Ended {
    match event {
        Event::NodeFailed(failure) => Ended::Failed(Failed {
            failure,
            reused,
            request_sent: exchange.to_node.total > 0,
            response_started: exchange.from_node.total > 0,
        }),
        Event::BodyTimeout if !begun => Ended::Refused(Refusal::closing(408, "the request body did not come in time")),
        Event::BadBody(malformed) if !begun => Ended::Refused(malformed.into()),
        Event::BadBase64 if !begun => Ended::Refused(Refusal::closing(400, "the body of the call is not base64")),
        Event::ClientGone => {
            if !begun {
                exchange.outcome.status = STATUS_CLIENT_GONE;
            }
            Ended::Done(After::Close)
        }
        Event::Deadline if !begun => Ended::Refused(Refusal::deadline()),
        Event::Cut | Event::Deadline | Event::BodyTimeout | Event::BadBody(_) | Event::BadBase64 => {
            Ended::Done(After::Close)
        }
        Event::Head | Event::Finished => unreachable!("handled where the try is driven"),
    }
}
