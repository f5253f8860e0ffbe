//! One request and its response: choosing the route and the node, trying, trying again, answering.
//!
//! The relay moves the bytes; what they mean is decided here.

use crate::client::Client;
use crate::forwarding::{self, client_address, host_for};
use crate::node::{self, ConnectError};
use crate::plan::{PlanRoute, TimeoutsMs};
use crate::receiver::Receiver;
use crate::relay::{Bounds, Event, Relay};
use crate::reply;
use crate::sender::{Coding, Sender};
use crate::snapshot::{Snapshot, WorkerUpstream};
use crate::variables::{RequestVars, with_vars};
use crate::worker::Worker;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;
use stillgate_config::Balance;
use stillgate_route::path::{normalise, target_path};
use stillgate_route::{Lookup, Match, canonical_host};
use stillgate_upstream::{Attempt, ConnMeta, Decision, Failure, Tried, decide};
use stillgate_wire::{
    Edits, Form, Framing, HeadLimits, RequestHead, ResponseError, ResponseHead, Version, write_request, write_response,
};
use tokio::net::TcpStream;

/// The memory of one exchange, reused from request to request and from connection to connection.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) from_client: Receiver,
    pub(crate) to_node: Sender,
    pub(crate) response: ResponseHead,
    pub(crate) from_node: Receiver,
    pub(crate) to_client: Sender,
    pub(crate) request_edits: Edits,
    pub(crate) response_edits: Edits,
    /// Whether the node gets a `Host` line of ours.
    pub(crate) sets_host: bool,
    pub(crate) host_scratch: Vec<u8>,
    pub(crate) path_scratch: Vec<u8>,
    /// Value of a variable: a hash key, a log field.
    pub(crate) key: Vec<u8>,
    pub(crate) matching: stillgate_route::Scratch,
    tried: Tried,
    /// Why the node's response was refused.
    pub(crate) refusal: Option<ResponseError>,
    pub(crate) outcome: Outcome,
}

/// What the access log tells.
#[derive(Default)]
pub(crate) struct Outcome {
    /// `None`: nobody asks for times.
    pub(crate) started: Option<Instant>,
    pub(crate) status: u16,
    pub(crate) head_bytes: u64,
    pub(crate) upstream_us: Option<u64>,
    pub(crate) upstream_addr: Option<SocketAddr>,
    pub(crate) route: Option<Match>,
}

/// What becomes of the client's connection; the worse is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum After {
    KeepAlive,
    Close,
    /// Close, but read and discard for a while first.
    Linger,
    /// Reset.
    Abort,
}

impl Exchange {
    /// Begins the next request of the connection.
    pub(crate) fn begin(&mut self) {
        self.request.reset();
        self.from_client.begin();
        self.outcome = Outcome::default();
    }

    /// Gives all buffers back.
    pub(crate) fn release(&mut self, worker: &Worker) {
        self.from_client.release(&worker.buffers);
        self.from_node.release(&worker.buffers);
        self.to_node.release(&worker.buffers);
        self.to_client.release(&worker.buffers);
    }
}

/// A refusal of the request by the gateway itself.
struct Refusal {
    status: u16,
    message: String,
    /// What follows on the connection may be no request.
    closes: bool,
}

impl Refusal {
    fn new(status: u16, message: impl ToString) -> Refusal {
        Refusal { status, message: message.to_string(), closes: false }
    }

    fn closing(status: u16, message: impl ToString) -> Refusal {
        Refusal { closes: true, ..Refusal::new(status, message) }
    }
}

/// Serves the request whose head was just parsed.
pub(crate) async fn run(worker: &Rc<Worker>, client: &mut Client, x: &mut Exchange) -> After {
    let _in_flight = InFlight::new(worker);
    let snapshot = worker.snapshot();
    x.outcome.started = worker.is_timed(&snapshot).then(Instant::now);
    let after = serve(worker, client, x, &snapshot).await;
    worker.counters.requests_total.add(1);
    worker.record(client, x, &snapshot);
    after
}

/// Answers a head that did not come or made no sense, and closes. It is logged and counted like any request.
pub(crate) async fn refuse(
    worker: &Worker,
    client: &mut Client,
    x: &mut Exchange,
    status: u16,
    message: &str,
) -> After {
    // What the connection's last request said of itself does not hold for this one.
    x.request.clear();
    client.address = client.peer.ip().to_canonical();
    let after = reply::send(worker, client, x, status, message, true).await;
    worker.counters.requests_total.add(1);
    worker.record(client, x, &worker.snapshot());
    after
}

/// Counts a request while it lives, whatever becomes of its task.
struct InFlight<'a>(&'a Worker);

impl<'a> InFlight<'a> {
    fn new(worker: &'a Worker) -> Self {
        worker.counters.requests_in_flight.add(1);
        InFlight(worker)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.counters.requests_in_flight.sub(1);
    }
}

async fn serve(worker: &Rc<Worker>, client: &mut Client, x: &mut Exchange, snapshot: &Snapshot) -> After {
    let started = x.from_client.start_body(x.request.len, x.request.framing);
    if let Err(malformed) = started {
        return reply::send(worker, client, x, 400, &malformed.to_string(), true).await;
    }
    match select(client, x, snapshot) {
        Ok(found) => {
            x.outcome.route = Some(found);
            let route = &snapshot.plan.routes[found.route];
            forward(worker, client, x, snapshot, route).await
        }
        Err(refusal) => reply::send(worker, client, x, refusal.status, &refusal.message, refusal.closes).await,
    }
}

/// Finds the route.
fn select(client: &mut Client, x: &mut Exchange, snapshot: &Snapshot) -> Result<Match, Refusal> {
    let head = x.from_client.head();
    client.address = client_address(&snapshot.plan.settings, head, &x.request, client.peer.ip());
    match x.request.form {
        Form::Authority => return Err(Refusal::closing(405, "CONNECT is not served here")),
        // About the server as a whole (RFC 9110 section 9.3.7): there is no path to route by.
        Form::Asterisk => return Err(Refusal::new(404, "Route Not Found")),
        Form::Origin | Form::Absolute => {}
    }
    let raw_path = target_path(x.request.path_and_query.of(head)).0;
    let path = normalise(raw_path, &mut x.path_scratch).map_err(|error| Refusal::new(400, error))?;
    let host = canonical_host(x.request.authority.of(head), &mut x.host_scratch);
    let vars = RequestVars {
        head,
        request: &x.request,
        host,
        path: Some(path),
        client: client.address,
        peer: client.peer,
        local: client.local,
        captures: None,
    };
    let request =
        stillgate_route::Request { method: x.request.method, host, path, client: client.address, vars: &vars };
    match snapshot.plan.matcher().find(&request, &mut x.matching) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Refusal::new(404, "Route Not Found")),
        Err(error) => Err(Refusal::new(400, error)),
    }
}

/// Where the tries of one request stand.
struct Tries<'a> {
    upstream: &'a WorkerUpstream,
    bounds: Bounds,
    began_ms: u64,
    retries_used: u32,
    /// The next try must not use the pool.
    fresh: bool,
}

/// How one try ended.
enum Ended {
    /// The client has its response, or does not need one any more.
    Done(After),
    /// The gateway has to answer for itself.
    Refused(Refusal),
    /// Nothing has reached the client.
    Failed { failure: Failure, reused: bool, request_sent: bool, response_started: bool },
}

/// Tries nodes until one answers or the rules say stop.
async fn forward(
    worker: &Rc<Worker>,
    client: &mut Client,
    x: &mut Exchange,
    snapshot: &Snapshot,
    route: &PlanRoute,
) -> After {
    let upstream = &*snapshot.upstreams[route.upstream];
    let definition = &upstream.definition.definition;
    let settings = &snapshot.plan.settings;
    forwarding::edit_request(client, x, settings, &definition.pass_host);
    let has_key = hash_key(client, x, snapshot, &definition.balance);
    let mut tries = Tries {
        upstream,
        bounds: bounds(route.timeouts, snapshot),
        began_ms: worker.clock.now_ms(),
        retries_used: 0,
        fresh: false,
    };
    x.tried.clear();
    let mut status = 503;
    let mut same = None;
    loop {
        let picked = same.take().or_else(|| {
            let key = has_key.then_some(x.key.as_slice());
            upstream.state.borrow_mut().pick(key, worker.clock.now_ms(), worker.random(), &x.tried)
        });
        let Some(index) = picked else {
            return reply::send(worker, client, x, status, no_node(status), false).await;
        };
        x.tried.insert(index);
        let (failure, attempt) = match attempt(worker, client, x, &tries, index).await {
            Ended::Done(after) => return after,
            Ended::Refused(refusal) => {
                return reply::send(worker, client, x, refusal.status, &refusal.message, refusal.closes).await;
            }
            Ended::Failed { failure, reused, request_sent, response_started } => {
                (failure, judge(worker, x, &tries, failure, reused, request_sent, response_started))
            }
        };
        match decide(&attempt) {
            Decision::RetrySame => {
                tries.fresh = true;
                same = Some(index);
            }
            Decision::RetryNext(with) => {
                tries.fresh = false;
                tries.retries_used += 1;
                status = with;
            }
            Decision::Fail(status) => {
                let message = failed(failure, x.refusal.take());
                return reply::send(worker, client, x, status, &message, false).await;
            }
        }
        worker.counters.upstream_retries.add(1);
    }
}

fn judge(
    worker: &Worker,
    x: &Exchange,
    tries: &Tries<'_>,
    failure: Failure,
    reused: bool,
    request_sent: bool,
    response_started: bool,
) -> Attempt {
    let definition = &tries.upstream.definition.definition;
    Attempt {
        failure,
        reused,
        request_sent,
        response_started,
        idempotent: x.request.method.is_idempotent(),
        body_replayable: x.from_client.replayable,
        retries_used: tries.retries_used,
        retries: definition.retries,
        choices: tries.upstream.state.borrow().choices(),
        elapsed_ms: worker.clock.now_ms() - tries.began_ms,
        retry_timeout_ms: u64::try_from(definition.retry_timeout.as_millis()).unwrap_or(u64::MAX),
    }
}

fn bounds(timeouts: TimeoutsMs, snapshot: &Snapshot) -> Bounds {
    let settings = &snapshot.plan.settings;
    Bounds {
        node: timeouts,
        client_body_ms: settings.body_ms,
        client_send_ms: settings.send_ms,
        response_head: HeadLimits { target_bytes_max: 0, ..settings.request_limits },
    }
}

/// Puts the value that the consistent hash hashes into `x.key`; false where there is none.
fn hash_key(client: &Client, x: &mut Exchange, snapshot: &Snapshot, balance: &Balance) -> bool {
    let Balance::ConsistentHash(variable) = balance else { return false };
    with_vars(client, x, snapshot.plan.matcher(), |vars, key| {
        let mut buffer = Vec::new();
        let value = vars.value(variable, &mut buffer);
        key.clear();
        key.extend_from_slice(value.unwrap_or_default());
        value.is_some()
    })
}

fn no_node(status: u16) -> &'static str {
    match status {
        503 => "the upstream has no node",
        _ => "every node of the upstream failed",
    }
}

fn failed(failure: Failure, refusal: Option<ResponseError>) -> String {
    match (failure, refusal) {
        (Failure::Connect, _) => "the node could not be connected to".into(),
        (Failure::ConnectTimeout, _) => "connecting to the node took too long".into(),
        (Failure::Reset, _) => "the node closed the connection".into(),
        (Failure::SendTimeout, _) => "the node did not take the request in time".into(),
        (Failure::ReadTimeout, _) => "the node did not answer in time".into(),
        (Failure::BadResponse, Some(error)) => format!("the node's response is invalid: {error}"),
        (Failure::BadResponse, None) => "the node's response is invalid".into(),
    }
}

/// A try that is under way at an endpoint; its end is counted whatever becomes of the task.
struct Trying<'a> {
    upstream: &'a WorkerUpstream,
    worker: &'a Worker,
    index: usize,
    latency_us: Option<u32>,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        let now_ms = self.worker.clock.now_ms();
        self.upstream.state.borrow_mut().on_finish(self.index, self.latency_us, now_ms);
    }
}

/// One try at one endpoint.
async fn attempt(worker: &Rc<Worker>, client: &mut Client, x: &mut Exchange, tries: &Tries<'_>, index: usize) -> Ended {
    let state = &tries.upstream.state;
    state.borrow_mut().on_start(index);
    let mut trying = Trying { upstream: tries.upstream, worker, index, latency_us: None };
    let began = x.outcome.started.map(|_| Instant::now());
    let pooled = match tries.fresh {
        true => None,
        false => node::take_live(&mut state.borrow_mut(), index, worker.clock.now_ms()),
    };
    let (mut stream, meta) = match pooled {
        Some(pooled) => pooled,
        None => match connect(worker, client, tries, index).await {
            Ok(fresh) => fresh,
            Err(failure) => return not_connected(failure),
        },
    };
    x.outcome.upstream_addr = Some(state.borrow().endpoint(index).address);
    stage_request(worker, x, tries, index);
    let mut relay = Relay::new(worker, client, x, &mut stream, tries.bounds);
    let end = loop {
        match poll_fn(|cx| relay.poll(cx)).await {
            Event::Head if is_interim(&relay.x.response) => match pass_interim(&mut relay) {
                Ok(()) => {}
                Err(failure) => break Err(Event::NodeFailed(failure)),
            },
            Event::Head => {
                let elapsed_us = began.map(|began| began.elapsed().as_micros() as u64);
                trying.latency_us = elapsed_us.map(|us| u32::try_from(us).unwrap_or(u32::MAX));
                relay.x.outcome.upstream_us = elapsed_us;
                match begin_response(&mut relay) {
                    Ok(keep_alive) => relay.keep_alive = keep_alive,
                    Err(failure) => break Err(Event::NodeFailed(failure)),
                }
            }
            Event::Finished => break Ok(()),
            event => break Err(event),
        }
    };
    let (sent, begun) = (relay.request_sent && !relay.node_deaf, relay.in_body());
    let keep_alive = relay.keep_alive;
    match end {
        Ok(()) => Ended::Done(finish(worker, x, tries, index, stream, meta, sent, keep_alive)),
        Err(event) => failed_try(x, event, meta.is_reused(), begun),
    }
}

async fn connect(
    worker: &Worker,
    client: &Client,
    tries: &Tries<'_>,
    index: usize,
) -> Result<(TcpStream, ConnMeta), ConnectError> {
    let state = &tries.upstream.state;
    let address = state.borrow().endpoint(index).address;
    match node::connect(worker, client, address, tries.bounds.node.connect).await {
        Ok(stream) => {
            let mut state = state.borrow_mut();
            state.on_success(index);
            Ok((stream, state.fresh_meta(index)))
        }
        Err(error) => {
            let key = &tries.upstream.definition.definition.key;
            tracing::debug!(upstream = %key, node = %address, error = ?error.error, "no connection");
            if !error.is_local {
                state.borrow_mut().on_connect_failure(index, worker.clock.now_ms());
            }
            Err(error)
        }
    }
}

fn not_connected(error: ConnectError) -> Ended {
    Ended::Failed { failure: error.failure, reused: false, request_sent: false, response_started: false }
}

/// Serialises the request for this node, with what is here of its body.
fn stage_request(worker: &Worker, x: &mut Exchange, tries: &Tries<'_>, index: usize) {
    let buffers = &worker.buffers;
    x.to_node.reset(buffers);
    x.from_node.release(buffers);
    x.from_node.begin();
    x.response.reset();
    x.refusal = None;
    if x.from_client.replayable {
        x.from_client.rewind();
    }
    if x.request.framing == Framing::Chunked {
        x.to_node.coding = Coding::Chunked;
    }
    let added = x.request_edits.added.len();
    if x.sets_host {
        let state = tries.upstream.state.borrow();
        let pass_host = &tries.upstream.definition.definition.pass_host;
        let mut edits = std::mem::take(&mut x.request_edits);
        edits.add("Host", host_for(x, pass_host, &state.endpoint(index).host));
        x.request_edits = edits;
    }
    write_request(x.to_node.head(buffers), x.from_client.head(), &x.request, &x.request_edits);
    x.request_edits.added.truncate(added);
    let end = x.from_client.is_done().then(|| x.from_client.trailers());
    x.to_node.stage(x.from_client.content(), end, buffers);
    x.from_client.written_but(x.to_node.content_left());
}

fn is_interim(response: &ResponseHead) -> bool {
    response.status < 200
}

/// Passes an interim response on (RFC 9110 section 15.2). A 101 answers an upgrade that was not asked for.
fn pass_interim(relay: &mut Relay<'_>) -> Result<(), Failure> {
    let x = &mut *relay.x;
    if x.response.status == 101 {
        return Err(Failure::BadResponse);
    }
    if x.request.version == Version::Http11 {
        let snapshot = relay.worker.snapshot();
        forwarding::edit_response(relay.worker, x, &snapshot.plan.settings, true, false);
        let head = &x.from_node.unparsed()[..x.response.len];
        write_response(x.to_client.head(&relay.worker.buffers), head, &x.response, &x.response_edits);
        x.to_client.stage(&[], None, &relay.worker.buffers);
    }
    let is_continue = x.response.status == 100;
    x.from_node.skip_head(x.response.len);
    x.response.reset();
    if is_continue {
        relay.continue_passed();
    }
    Ok(())
}

/// Serialises the final head for the client, with what is here of the body; whether its connection is kept afterwards.
fn begin_response(relay: &mut Relay<'_>) -> Result<bool, Failure> {
    let worker = relay.worker;
    let snapshot = worker.snapshot();
    let x = &mut *relay.x;
    x.from_node.start_body(x.response.len, x.response.framing).map_err(|_| Failure::BadResponse)?;
    let delimited = match x.response.framing {
        Framing::None | Framing::Length(_) => true,
        Framing::Chunked | Framing::UntilClose => x.request.version == Version::Http11,
    };
    let chunked = delimited && matches!(x.response.framing, Framing::Chunked | Framing::UntilClose);
    // A body still on its way may never come: its client waits for our answer first.
    let keep_alive = x.request.keep_alive && delimited && x.from_client.is_done() && !worker.draining.get();
    forwarding::edit_response(worker, x, &snapshot.plan.settings, keep_alive, chunked);
    let interim_bytes = x.to_client.total;
    debug_assert!(x.to_client.is_idle());
    x.to_client.coding = if chunked { Coding::Chunked } else { Coding::Raw };
    let out = x.to_client.head(&worker.buffers);
    write_response(out, x.from_node.head(), &x.response, &x.response_edits);
    x.outcome.status = x.response.status;
    x.outcome.head_bytes = interim_bytes + out.len() as u64;
    let end = x.from_node.is_done().then(|| x.from_node.trailers());
    x.to_client.stage(x.from_node.content(), end, &worker.buffers);
    x.from_node.written_but(x.to_client.content_left());
    x.from_node.drop_head();
    relay.enter_body();
    Ok(keep_alive)
}

/// The response is out: keeps or closes the node's connection, and says what becomes of the client's.
#[expect(clippy::too_many_arguments, reason = "the end of a try is where all its parts meet once")]
fn finish(
    worker: &Worker,
    x: &mut Exchange,
    tries: &Tries<'_>,
    index: usize,
    stream: TcpStream,
    meta: ConnMeta,
    request_sent: bool,
    keep_alive: bool,
) -> After {
    // Bytes beyond the response's end belong to no request: the next one on that connection would get them.
    let reusable = request_sent && x.response.keep_alive && !x.from_node.has_leftover();
    x.from_node.release(&worker.buffers);
    x.to_node.release(&worker.buffers);
    if reusable {
        let surplus = tries.upstream.state.borrow_mut().put(index, stream, meta, worker.clock.now_ms());
        drop(surplus);
    }
    let clean = x.from_client.is_done() && !x.from_client.has_leftover();
    match (keep_alive, clean) {
        (true, _) => After::KeepAlive,
        (false, true) => After::Close,
        (false, false) => After::Linger,
    }
}

/// What an event that ended a try means for the request.
fn failed_try(x: &mut Exchange, event: Event, reused: bool, begun: bool) -> Ended {
    match event {
        Event::NodeFailed(failure) => Ended::Failed {
            failure,
            reused,
            request_sent: x.to_node.total > 0,
            response_started: x.from_node.total > 0,
        },
        // A client that sees neither a length nor chunks can tell a cut response from a whole one by a reset only.
        Event::Cut if x.to_client.coding == Coding::Raw && !has_length(&x.response) => Ended::Done(After::Abort),
        Event::Cut => Ended::Done(After::Close),
        Event::BodyTimeout if !begun => Ended::Refused(Refusal::closing(408, "the request body did not come in time")),
        Event::BadBody(malformed) if !begun => Ended::Refused(Refusal::closing(400, malformed)),
        Event::BodyTimeout | Event::BadBody(_) => Ended::Done(After::Abort),
        Event::ClientGone => {
            if !begun {
                x.outcome.status = STATUS_CLIENT_GONE;
            }
            Ended::Done(After::Close)
        }
        Event::Head | Event::Finished => unreachable!("handled where the try is driven"),
    }
}

fn has_length(response: &ResponseHead) -> bool {
    matches!(response.framing, Framing::Length(_))
}

/// nginx's code for a request whose client did not wait for the answer; only the access log sees it.
const STATUS_CLIENT_GONE: u16 = 499;
