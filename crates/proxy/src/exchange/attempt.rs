//! One try of a request at one node: a connection, the request written, the response passed on.
//!
//! The relay moves the bytes; what its events mean is decided here. Whether to retry is decided elsewhere.

use super::answer::LocalReply;
use super::attempts::Attempts;
use super::relay::{Relay, RelayEvent};
use super::target::host_for;
use super::{ConnectionNext, Exchange, RequestContext, forwarding, response};
use crate::connection::http2::bounds::is_large_head;
use crate::connection::stream::Stream;
use crate::node::{self, ConnectError, Destination, health};
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::{ConnectionKey, PendingNodeConnection, Worker};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;
use stillgate_config::PassHost;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_upstream::{ConnMeta, Failure, NameFault, TryReport};
use stillgate_wire::{Framing, ResponseError};

/// nginx's status for a request whose client did not wait for the response; only the access log shows it.
pub(crate) const STATUS_CLIENT_GONE: u16 = 499;

/// How one try ended.
pub(super) enum AttemptOutcome {
    /// The client has its response, or does not need it any more.
    Done(ConnectionNext),
    /// The client has its 101, and another protocol follows.
    Switched(Stream),
    /// The gateway answers itself.
    Refused(LocalReply),
    /// Nothing has reached the client.
    Failed(FailedAttempt),
}

/// A try that failed, as input for the retry rules.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    pub(super) failure: Failure,
    pub(super) reused: bool,
    pub(super) request_sent: bool,
    pub(super) response_started: bool,
    /// The node failed while the rest of the request had not yet arrived from the client.
    pub(super) awaited_client: bool,
    /// The node has ended request after request without an answer: it is at fault, whatever this request contains.
    pub(super) is_of_node: bool,
    /// Why TLS failed, where the log does not report it with the node.
    pub(super) reason: Option<String>,
}

impl FailedAttempt {
    /// Whether the node closed a new connection on a request that it got, without an answer. The next node shows whether the node
    /// or the request is to blame.
    pub(super) fn is_closed(&self) -> bool {
        let is_sent = self.request_sent && !self.response_started && !self.awaited_client;
        self.failure == Failure::Reset && !self.reused && is_sent && !self.is_of_node
    }
}

/// A try that is under way at an endpoint; its end is counted even if its task is dropped.
struct AttemptGuard<'a> {
    upstream: &'a WorkerUpstream,
    worker: &'a Worker,
    index: usize,
    latency_us: Option<u32>,
    is_retry: bool,
    began_ms: u64,
    /// `None`: the time is not needed.
    began: Option<Instant>,
    /// The node that closed its connection on the same request earlier.
    closed: Option<usize>,
}

impl Drop for AttemptGuard<'_> {
    fn drop(&mut self) {
        let now_ms = self.worker.clock.now_ms();
        let mut state = self.upstream.state.borrow_mut();
        state.on_finish(self.index, self.latency_us, now_ms);
        if self.is_retry {
            state.on_retry_end();
        }
    }
}

impl<'a> AttemptGuard<'a> {
    fn new(worker: &'a Worker, exchange: &mut Exchange, attempts: &Attempts<'a>, index: usize) -> AttemptGuard<'a> {
        let (upstream, is_retry) = (attempts.target.upstream, attempts.retries_used > 0);
        let mut state = upstream.state.borrow_mut();
        state.on_start(index);
        if is_retry {
            state.on_retry();
        }
        let address = state.endpoint(index).address;
        exchange.mistaken = None;
        exchange.outcome.asked = Some((index, address));
        exchange.outcome.is_of_client = false;
        exchange.tries.begin(address);
        let timing = exchange.outcome.timing;
        let began = (timing.head || timing.node).then(Instant::now);
        exchange.outcome.node_since = exchange.outcome.node_since.or(began);
        let (began_ms, closed) = (worker.clock.now_ms(), attempts.closed);
        AttemptGuard { upstream, worker, index, latency_us: None, is_retry, began_ms, began, closed }
    }

    /// The final response's head has arrived.
    fn on_response_head(&mut self, exchange: &mut Exchange) {
        let status = exchange.response.status;
        health::report(self.worker, self.upstream, self.index, TryReport::Status(status), || {
            format!("status {status}")
        });
        if let Some(closed) = self.closed.take() {
            health::report_failure(self.worker, self.upstream, closed, Failure::Reset, false);
        }
        exchange.tries.on_answered(status);
        let now = self.began.map(|_| Instant::now());
        let elapsed_us = self.began.zip(now).map(|(began, now)| now.duration_since(began).as_micros() as u64);
        self.latency_us = elapsed_us.map(|us| u32::try_from(us).unwrap_or(u32::MAX));
        if exchange.outcome.timing.head {
            exchange.outcome.upstream_us = elapsed_us;
        }
        // Right if the whole response has come with its head; for any other, the time is set where its end is read.
        exchange.outcome.node_until = now;
    }

    /// Handles a try that got no connection.
    #[cold]
    fn not_connected(&self, exchange: &mut Exchange, error: &ConnectError) -> AttemptOutcome {
        exchange.outcome.node_ended();
        exchange.tries.on_answered(error.failure.status());
        let (failure, reason) = (error.failure, error.is_handshake.then(|| error.reason()));
        AttemptOutcome::Failed(FailedAttempt {
            failure,
            reused: false,
            request_sent: false,
            response_started: false,
            awaited_client: false,
            is_of_node: false,
            reason,
        })
    }

    /// The try ended before the response did.
    #[cold]
    fn broke(
        &self,
        exchange: &mut Exchange,
        attempts: &Attempts<'_>,
        connection: &NodeConnection,
        event: RelayEvent,
        (begun, awaited_client): (bool, bool),
    ) -> AttemptOutcome {
        let stream = &connection.stream;
        // A node that has not processed the request is not to blame (RFC 9113 section 8.7): treat it as if nothing had been sent.
        let is_unprocessed = stream.is_unprocessed();
        // Once: a node that does so on a new connection as well has failed.
        let reused = connection.meta.is_reused() || (is_unprocessed && !attempts.is_fresh);
        if matches!(event, RelayEvent::NodeFailed(Failure::SendTimeout | Failure::ReadTimeout | Failure::TryTimeout)) {
            stream.retire();
        }
        exchange.mistaken = stream.mistaken(exchange.from_node.unparsed());
        // A connection that ends because of it may have ended because of another request on it; a new one shows which.
        let is_refused = stream.is_protocol_error() && (!is_unprocessed || attempts.is_fresh);
        let event = match event {
            RelayEvent::NodeFailed(Failure::Reset) if is_refused => RelayEvent::NodeFailed(Failure::Refused),
            event => event,
        };
        let mut failed = match outcome_of_event(exchange, event, reused, begun) {
            AttemptOutcome::Failed(failed) => FailedAttempt { awaited_client, ..failed },
            ended => return ended,
        };
        if is_unprocessed && exchange.is_replayable() {
            failed.request_sent = false;
        }
        exchange.tries.on_answered(failed.failure.status());
        let is_of_client = is_of_client(exchange, &failed);
        if (is_of_client && !awaited_client) || failed.is_closed() {
            self.note_unanswered(&mut failed);
        }
        if is_of_client && !failed.is_of_node {
            exchange.outcome.is_of_client = true;
            health::report(self.worker, self.upstream, self.index, TryReport::Inconclusive, String::new);
        } else if !failed.is_closed() {
            health::report_failure(self.worker, self.upstream, self.index, failed.failure, failed.reused);
        }
        AttemptOutcome::Failed(failed)
    }

    /// The request may be at fault, unless the node has failed all others as well.
    fn note_unanswered(&self, failed: &mut FailedAttempt) {
        failed.is_of_node = self.upstream.state.borrow_mut().note_unanswered(self.index, self.worker.clock.now_ms());
        if failed.is_of_node && failed.failure == Failure::Refused {
            // The reset of a stream does not show that a connection was idle for too long.
            (failed.failure, failed.reused) = (Failure::Reset, false);
        }
    }
}

/// Whether what the client sends or requests may have made the try fail.
fn is_of_client(exchange: &Exchange, failed: &FailedAttempt) -> bool {
    let is_large = matches!(exchange.bad_response, Some(ResponseError::HeadTooLarge | ResponseError::TooManyHeaders));
    match failed.failure {
        Failure::BadResponse => is_large || is_echo(exchange),
        Failure::Reset | Failure::ReadTimeout | Failure::TryTimeout => failed.awaited_client,
        Failure::Refused | Failure::Name => true,
        Failure::Connect | Failure::ConnectTimeout | Failure::SendTimeout => false,
    }
}

/// Whether the response's head may be invalid because it repeats what the client sent: decoded, an encoded control character of the
/// target or of a field (a cookie, say) has no form in a field. A body may have such characters in any form.
#[cold]
fn is_echo(exchange: &Exchange) -> bool {
    let has_body = !matches!(exchange.framing_sent, Framing::None | Framing::Length(0));
    exchange.bad_response.is_some() && (has_body || has_encoded_control(exchange.from_client.head()))
}

/// Whether a text has an encoded control character, encoded once or several times.
fn has_encoded_control(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'%').skip(1).any(|mut rest| {
        while let Some(inner) = rest.strip_prefix(b"25") {
            rest = inner;
        }
        matches!(rest, [b'0' | b'1', low, ..] if low.is_ascii_hexdigit()) || matches!(rest, [b'7', b'f' | b'F', ..])
    })
}

/// One try at one endpoint.
pub(super) async fn run(serving: &mut RequestContext<'_>, attempts: &Attempts<'_>, index: usize) -> AttemptOutcome {
    let mut trying = AttemptGuard::new(serving.worker, serving.exchange, attempts, index);
    let mut connection = match pooled(serving.worker, serving.exchange, attempts, index) {
        Some(pooled) => pooled,
        // On the heap, as it is rare and large: otherwise every idle connection's task would have room for it.
        None => match Box::pin(connect(serving, attempts, index)).await {
            Ok(fresh) => fresh,
            Err(error) => return trying.not_connected(serving.exchange, &error),
        },
    };
    serving.exchange.tries.on_connected(connection.connect_us);
    if let Some(refused) = attempts.refused.take() {
        judge_refusal(serving, attempts, refused, index);
    }
    let staged = forwarding::stage_request(serving, attempts.target.upstream, index);
    let mut relay = Relay::new(serving.lend(), &mut connection.stream, attempts.target.bounds, trying.began_ms);
    let event = match staged {
        Ok(()) => drive(&mut relay, &mut trying).await,
        Err(broken) => RelayEvent::BrokenRequest(broken),
    };
    let (sent, begun, keep_alive) = (relay.request_sent && !relay.node_deaf, relay.has_begun(), relay.keep_alive);
    let awaited_client = relay.awaits_client();
    if event != RelayEvent::Finished {
        return trying.broke(serving.exchange, attempts, &connection, event, (begun, awaited_client));
    }
    if serving.exchange.response.status == response::STATUS_SWITCHING {
        return AttemptOutcome::Switched(connection.stream);
    }
    AttemptOutcome::Done(finish(serving, attempts, connection, sent, keep_alive))
}

/// Moves the bytes of a try until it ends.
async fn drive(relay: &mut Relay<'_>, trying: &mut AttemptGuard<'_>) -> RelayEvent {
    loop {
        let passed = match poll_fn(|cx| relay.poll(cx)).await {
            RelayEvent::Head if response::is_interim(&relay.serving.exchange.response) => response::pass_interim(relay),
            RelayEvent::Head => {
                trying.on_response_head(relay.serving.exchange);
                response::begin(relay)
            }
            RelayEvent::Finished => return RelayEvent::Finished,
            event => {
                relay.serving.exchange.outcome.node_ended();
                return event;
            }
        };
        if let Err(event) = passed {
            return event;
        }
    }
}

/// The response has been sent: keeps or closes the node's connection, and returns what becomes of the client's.
fn finish(
    serving: &mut RequestContext<'_>,
    attempts: &Attempts<'_>,
    connection: NodeConnection,
    request_sent: bool,
    keep_alive: bool,
) -> ConnectionNext {
    let RequestContext { worker, client, exchange, .. } = serving;
    client.ends_with_connection = false;
    // Bytes beyond the end of the response belong to no request: the next one on that connection would get them.
    let reusable = request_sent
        && exchange.response.keep_alive
        && exchange.from_node.is_done()
        && !exchange.from_node.has_leftover()
        && !connection.stream.is_one_request();
    exchange.from_node.release(&worker.buffers);
    exchange.to_node.release(&worker.buffers);
    if reusable {
        let NodeConnection { index, stream, meta, .. } = connection;
        let surplus = attempts.target.upstream.state.borrow_mut().put(index, stream, meta, worker.clock.now_ms());
        drop(surplus);
    }
    next_after_response(exchange, keep_alive)
}

/// What becomes of the client's connection after a response that has been sent.
pub(super) fn next_after_response(exchange: &Exchange, keep_alive: bool) -> ConnectionNext {
    let clean = exchange.from_client.is_done() && !exchange.from_client.has_leftover();
    match (keep_alive, clean) {
        (true, _) => ConnectionNext::KeepAlive,
        (false, true) => ConnectionNext::Close,
        (false, false) => ConnectionNext::Linger,
    }
}

/// What an event that ended a try means for the request. A response that has begun can only be truncated; the client sees that by
/// its length, its chunks, or the reset that [`crate::connection::client::ClientConnection`] ends with.
pub(super) fn outcome_of_event(
    exchange: &mut Exchange,
    event: RelayEvent,
    reused: bool,
    begun: bool,
) -> AttemptOutcome {
    match event {
        RelayEvent::NodeFailed(failure) => AttemptOutcome::Failed(FailedAttempt {
            failure,
            reused,
            request_sent: exchange.to_node.total > 0,
            response_started: exchange.from_node.total > 0,
            awaited_client: false,
            is_of_node: false,
            reason: None,
        }),
        RelayEvent::Disagreed | RelayEvent::Part => {
            exchange.outcome.is_of_client = true;
            AttemptOutcome::Refused(answer_to(event))
        }
        RelayEvent::ClientGone => {
            if !begun {
                exchange.outcome.status = STATUS_CLIENT_GONE;
            }
            AttemptOutcome::Done(ConnectionNext::Close)
        }
        _ if begun => AttemptOutcome::Done(ConnectionNext::Close),
        event => AttemptOutcome::Refused(answer_to(event)),
    }
}

/// The answer if no part of a response has been sent.
fn answer_to(event: RelayEvent) -> LocalReply {
    match event {
        RelayEvent::BodyTimeout => LocalReply::closing(408, "the request body did not come in time"),
        RelayEvent::BadBody(malformed) => malformed.into(),
        RelayEvent::BadBase64 => LocalReply::closing(400, "the body of the call is not base64"),
        RelayEvent::Inexpressible => {
            LocalReply::closing(400, "the request cannot be sent over HTTP/2, which its node speaks")
        }
        RelayEvent::BrokenRequest(broken) => LocalReply::closing(broken.status(), broken.message()),
        RelayEvent::Deadline => LocalReply::deadline(),
        RelayEvent::BrokenResponse(broken) => LocalReply::error(broken.status_of_response(), broken.message()),
        RelayEvent::PluginFailed => LocalReply::error(500, "a plugin failed"),
        RelayEvent::Cut => LocalReply::error(502, "the node broke its response off"),
        RelayEvent::Disagreed => {
            LocalReply::error(502, "the node switches to another protocol than the request validly asks for")
        }
        RelayEvent::Part => {
            LocalReply::error(502, "the node sends a part of the body, and a plugin must see all of it")
        }
        RelayEvent::Head | RelayEvent::Finished | RelayEvent::NodeFailed(_) | RelayEvent::ClientGone => {
            unreachable!("handled where the try is driven")
        }
    }
}

// The node's connection for one try: from the pool, or a new one.

/// The node's connection while a try uses it.
pub(super) struct NodeConnection {
    pub(super) index: usize,
    pub(super) stream: Stream,
    pub(super) meta: ConnMeta,
    /// How long it took to make; zero if it existed already.
    pub(super) connect_us: u64,
}

/// The name that the node's certificate must be valid for, if its upstream uses TLS.
fn server_name(exchange: &Exchange, attempts: &Attempts<'_>, index: usize) -> Option<ServerName<'static>> {
    let upstream = attempts.target.upstream;
    let tls = upstream.planned.tls()?;
    let state = upstream.state.borrow();
    let node = &state.endpoint(index).host;
    Some(tls.server_name(host_seen(exchange, attempts, node), node))
}

/// The name by which the node sees itself addressed.
fn host_seen<'a>(exchange: &'a Exchange, attempts: &'a Attempts<'_>, node: &'a str) -> &'a str {
    let pass_host = &attempts.target.upstream.planned.definition.pass_host;
    std::str::from_utf8(host_for(exchange, pass_host, node)).unwrap_or_default()
}

/// Whether that name comes with the request, so that its client, or a plugin, has chosen it.
fn is_name_of_request(exchange: &Exchange, attempts: &Attempts<'_>) -> bool {
    let planned = &attempts.target.upstream.planned;
    let is_passed = planned.definition.pass_host == PassHost::Pass || exchange.request_edits.host().is_some();
    is_passed && planned.tls().is_some_and(|tls| !tls.has_own_name())
}

/// Whether the head of the request may be too large for its node.
fn has_large_head(exchange: &Exchange, upstream: &WorkerUpstream) -> bool {
    upstream.planned.link.http2
        && is_large_head(
            &[
                exchange.from_client.head(),
                exchange.request_edits.fields.lines(),
                exchange.request_edits.target().unwrap_or_default(),
            ],
            exchange.request.fields.len(),
        )
}

/// Takes a connection that already exists.
pub(super) fn pooled(
    worker: &Worker,
    exchange: &Exchange,
    attempts: &Attempts<'_>,
    index: usize,
) -> Option<NodeConnection> {
    if attempts.is_fresh {
        return None;
    }
    let upstream = attempts.target.upstream;
    let has_large_head = has_large_head(exchange, upstream);
    let is_name = |shown: Option<&ServerName<'static>>, node: &str| match (upstream.planned.tls(), shown) {
        (Some(tls), Some(shown)) => tls.is_server_name(shown, host_seen(exchange, attempts, node), node),
        (tls, shown) => tls.is_none() && shown.is_none(),
    };
    let mut state = upstream.state.borrow_mut();
    let (stream, meta) = node::take_live(&mut state, index, is_name, (has_large_head, worker.clock.now_ms()))?;
    Some(NodeConnection { index, stream, meta, connect_us: 0 })
}

/// Makes a new connection; with HTTP/2, it may be one that another request makes meanwhile.
pub(super) async fn connect(
    serving: &RequestContext<'_>,
    attempts: &Attempts<'_>,
    index: usize,
) -> Result<NodeConnection, ConnectError> {
    let RequestContext { worker, client, exchange, .. } = serving;
    let (upstream, bounds) = (attempts.target.upstream, attempts.target.bounds);
    let state = &upstream.state;
    let name = server_name(exchange, attempts, index);
    let (http2, grpc) = (upstream.planned.link.http2, upstream.planned.link.grpc);
    let address = state.borrow().endpoint(index).address;
    let timeout_ms = bounds.node.connect.min(bounds.node.per_try);
    let ours_ms = worker.clock.now_ms() + timeout_ms;
    let deadline_ms = ours_ms.min(bounds.deadline_ms);
    // One connection carries many requests: a request that arrives while a connection is being made waits for it, and for the next
    // if others have filled it. If making it fails, each request tries for itself. So does one with a large head.
    let has_large_head = has_large_head(exchange, upstream);
    let wanted = || ConnectionKey { pool: Rc::as_ptr(state).addr(), address, name: name.clone() };
    let making = loop {
        match (http2 && !has_large_head).then(|| worker.connecting.begin(wanted())).transpose() {
            Ok(making) => break making,
            Err(other) => {
                let made = Box::pin(other.wait());
                worker.clock.within(&client.timer, deadline_ms, made).await;
                if let Some(pooled) = pooled(worker, exchange, attempts, index) {
                    return Ok(pooled);
                }
                if !other.is_made() {
                    break None;
                }
            }
        }
    };
    let given = name.as_ref().filter(|_| is_name_of_request(exchange, attempts)).map(|name| name.to_str().into_owned());
    let tls = upstream.tls.as_ref().zip(name);
    let destination = Destination { upstream, address, tls, http2, grpc, has_large_head, proxy_protocol_header: &[] };
    let left_ms = deadline_ms.saturating_sub(worker.clock.now_ms());
    match node::connect(worker, &client.timer, destination, left_ms).await {
        Ok((stream, connect_us)) => {
            health::report(worker, upstream, index, TryReport::Connected, String::new);
            if let Some(name) = &given {
                state.borrow_mut().accept_name(index, name);
            }
            let meta = state.borrow().fresh_meta(index);
            let (stream, meta) = node::keep_shared(&mut state.borrow_mut(), index, stream, meta, worker.clock.now_ms());
            making.iter().for_each(PendingNodeConnection::mark_made);
            Ok(NodeConnection { index, stream, meta, connect_us })
        }
        Err(mut error) => {
            let fault = given.filter(|_| error.is_handshake && !error.is_local);
            let fault = fault.map(|name| state.borrow_mut().refuse_name(index, &name));
            // If a client gives a call less time than we give a node, its timeout proves nothing about the node.
            let is_late = error.failure == Failure::ConnectTimeout && deadline_ms < ours_ms;
            if fault == Some(NameFault::Unproved) {
                error.failure = Failure::Name;
            }
            let is_of_node = !error.is_local && !is_late && matches!(fault, None | Some(NameFault::Node));
            let report = if is_of_node { TryReport::Failed(error.failure) } else { TryReport::Inconclusive };
            health::report(worker, upstream, index, report, || error.reason());
            Err(error)
        }
    }
}

/// The node at `index` is connected under the server name that another node has refused while no node is known to accept it: judges
/// what that shows about the other.
#[cold]
pub(super) fn judge_refusal(serving: &RequestContext<'_>, attempts: &Attempts<'_>, refused: usize, index: usize) {
    let Some(name) = server_name(serving.exchange, attempts, index) else { return };
    let (upstream, name) = (attempts.target.upstream, name.to_str());
    let fault = {
        let mut state = upstream.state.borrow_mut();
        // Also if the connection already existed: the name may have been forgotten since.
        state.accept_name(index, &name);
        state.refuse_name(refused, &name)
    };
    if fault == NameFault::Node {
        let why = || "it refuses a server name that another node accepts".to_owned();
        health::report(serving.worker, upstream, refused, TryReport::Failed(Failure::Connect), why);
    }
}

#[cfg(test)]
mod tests {
    use super::has_encoded_control;

    #[test]
    fn encoded_control_characters() {
        for (text, expected) in [
            ("/a%0db", true),
            ("/%00", true),
            ("/%1F", true),
            ("/a?b=%7f", true),
            ("/%250A", true),
            ("/%252501", true),
            ("/a%20b", false),
            ("/%", false),
            ("/%0", false),
            ("/%0g", false),
            ("/%80", false),
            ("/%2", false),
            ("/%25", false),
            ("/a0d", false),
        ] {
            assert_eq!(has_encoded_control(text.as_bytes()), expected, "{text}");
        }
    }
}
