//! One request: choosing its route and its node, trying again where that is safe, answering where nobody else does.
//!
//! What happens at one node is the business of `attempt`.

use super::attempt::{self, Ended, Failed, Tries};
use super::forwarding::{self, client_address};
use super::queue;
use super::receiver::Receiver;
use super::relay::{Bounds, PROBE};
use super::reply::{self, Refusal};
use super::sender::{Coding, Sender};
use super::upgraded::Upgraded;
use super::variables::{RequestVars, with_vars};
use crate::connection::client::Client;
use crate::connection::grpc;
use crate::connection::mistaken::Mistaken;
use crate::node::health;
use crate::plan::snapshot::Snapshot;
use crate::plan::{PlanRoute, Settings, TimeoutsMs};
use crate::telemetry::access_log::ResponseFields;
use crate::telemetry::metrics::{Active, UpstreamEvent};
use crate::telemetry::node_tries::NodeTries;
use crate::telemetry::outcome::{Outcome, Timing};
use crate::worker::Worker;
use std::borrow::Cow;
use std::rc::Rc;
use stillgate_config::{Balance, Upstream};
use stillgate_route::path::{normalise, target_path};
use stillgate_route::{Lookup, Match, canonical_host};
use stillgate_upstream::{Attempt, Decision, Failure, Tried, decide};
use stillgate_wire::{Form, RequestEdits, RequestHead, ResponseEdits, ResponseError, ResponseHead};

/// The memory of one exchange, reused from request to request and from connection to connection.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) from_client: Receiver,
    pub(crate) to_node: Sender,
    pub(crate) response: ResponseHead,
    pub(crate) from_node: Receiver,
    pub(crate) to_client: Sender,
    pub(crate) request_edits: RequestEdits,
    pub(crate) response_edits: ResponseEdits,
    /// Whether the node gets a `Host` line of ours.
    pub(crate) sets_host: bool,
    /// Whether the node is told that the client asks for another protocol.
    pub(crate) passes_upgrade: bool,
    pub(crate) host_scratch: Vec<u8>,
    pub(crate) path_scratch: Vec<u8>,
    /// What the consistent hash hashes.
    pub(crate) key: Vec<u8>,
    /// Room for the value of a variable that has to be put together.
    value: Vec<u8>,
    pub(crate) matching: stillgate_route::Scratch,
    pub(crate) tried: Tried,
    /// What became of each try.
    pub(crate) tries: NodeTries,
    /// Header fields of the response that the access log shows.
    pub(crate) fields: ResponseFields,
    /// An interim response has asked a client that closed its sending side whether it is still there.
    pub(crate) probed: bool,
    /// Interim responses of this request so far.
    pub(crate) interims: u32,
    /// Why the node's response was refused.
    pub(crate) refusal: Option<ResponseError>,
    /// What the node seems to speak that was asked last and did not answer.
    pub(crate) mistaken: Option<Mistaken>,
    pub(crate) outcome: Outcome,
    /// What is left of it where it has made the connection a tunnel.
    pub(crate) upgraded: Option<Box<Upgraded>>,
}

/// What becomes of the client's connection; the worse is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum After {
    KeepAlive,
    Close,
    /// Close, but read and discard for a while first.
    Linger,
    /// It goes on as one of HTTP/2.
    Http2,
    /// Both sides speak another protocol from here on.
    Tunnel,
}

impl Exchange {
    /// Begins the next request of the connection.
    pub(crate) fn begin(&mut self, timing: Timing) {
        self.request.reset();
        self.from_client.begin();
        self.to_client.total = 0;
        self.to_client.coding = Coding::Raw;
        self.probed = false;
        self.interims = 0;
        self.tries.clear();
        self.fields.clear();
        self.outcome = Outcome { timing, ..Outcome::default() };
        if self.from_client.has_leftover() {
            self.outcome.arrived();
        }
    }

    /// Bytes that came for this request; what is behind the message belongs to the next one.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.from_client.total.saturating_sub(self.from_client.unparsed().len() as u64)
    }

    /// Bytes of the response that are out, interim ones of the node among them; our own asking whether the client is there is no
    /// part of it.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.to_client.total.saturating_sub(if self.probed { PROBE.len() as u64 } else { 0 })
    }

    /// Gives all buffers back.
    pub(crate) fn release(&mut self, worker: &Worker) {
        self.from_client.release(&worker.buffers);
        self.from_node.release(&worker.buffers);
        self.to_node.release(&worker.buffers);
        self.to_client.release(&worker.buffers);
    }
}

/// Serves the request whose head was just parsed.
pub(crate) async fn run(worker: &Rc<Worker>, client: &mut Client, exchange: &mut Exchange) -> After {
    let _in_flight = InFlight::new(worker, client);
    let snapshot = worker.snapshot();
    let after = serve(worker, client, exchange, &snapshot).await;
    worker.counters.requests_total.add(1);
    // A tunnel is recorded at its end.
    if after != After::Tunnel {
        worker.record(client, exchange, &snapshot);
    }
    after
}

/// Answers a head that did not come or made no sense, and closes. It is logged and counted like any request.
pub(crate) async fn refuse(worker: &Worker, client: &mut Client, exchange: &mut Exchange, refusal: &Refusal) -> After {
    let snapshot = worker.snapshot();
    // What the connection's last request said of itself does not hold for this one.
    exchange.request.clear();
    exchange.request.method = reply::method_of(exchange.from_client.unparsed());
    client.address = client.peer.ip().to_canonical();
    let after = reply::send(worker, client, exchange, &snapshot.plan.settings, refusal).await;
    worker.counters.requests_total.add(1);
    worker.record(client, exchange, &snapshot);
    after
}

/// Counts a request while it lives, whatever becomes of its task.
struct InFlight<'a> {
    worker: &'a Worker,
    /// Its connection, unless that is shared with other requests and counted where they meet.
    _active: Option<Active<'a>>,
}

impl<'a> InFlight<'a> {
    fn new(worker: &'a Worker, client: &Client) -> Self {
        worker.counters.requests_in_flight.add(1);
        let is_alone = !client.stream.is_http2();
        InFlight { worker, _active: is_alone.then(|| Active::new(&worker.listeners[client.listener])) }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.worker.counters.requests_in_flight.sub(1);
    }
}

async fn serve(worker: &Rc<Worker>, client: &mut Client, exchange: &mut Exchange, snapshot: &Snapshot) -> After {
    let settings = &snapshot.plan.settings;
    let started = exchange.from_client.start_body(exchange.request.len, exchange.request.framing);
    client.address = client_address(settings, exchange.from_client.head(), &exchange.request, client.peer.ip());
    if let Err(malformed) = started {
        return reply::send(worker, client, exchange, settings, &malformed.into()).await;
    }
    match select(worker, client, exchange, snapshot) {
        Ok(found) => {
            exchange.outcome.route = Some(found);
            let route = &snapshot.plan.routes[found.route];
            forward(worker, client, exchange, snapshot, route).await
        }
        Err(refusal) => reply::send(worker, client, exchange, settings, &refusal).await,
    }
}

/// Finds the route.
fn select(worker: &Worker, client: &Client, exchange: &mut Exchange, snapshot: &Snapshot) -> Result<Match, Refusal> {
    let head = exchange.from_client.head();
    match exchange.request.form {
        Form::Authority => return Err(Refusal::closing(405, "CONNECT is not served here")),
        // About the server as a whole (RFC 9110 section 9.3.7): there is no path to route by.
        Form::Asterisk => return Err(Refusal::new(404, "Route Not Found")),
        Form::Origin | Form::Absolute => {}
    }
    let raw_path = target_path(exchange.request.path_and_query.of(head)).0;
    if let Some(answer) = worker.challenges().http(exchange.request.method, raw_path) {
        return Err(Refusal::challenge(answer));
    }
    let path = normalise(raw_path, &mut exchange.path_scratch).map_err(|error| Refusal::new(400, error.to_string()))?;
    let host = canonical_host(exchange.request.authority.of(head), &mut exchange.host_scratch);
    if let (Some(tls), Some(facts)) = (&snapshot.plan.tls, &client.tls)
        && !facts.may_ask_for(tls, host)
    {
        return Err(Refusal::new(421, "a certificate is asked for that was not shown; connect by the host's own name"));
    }
    let vars = RequestVars {
        head,
        request: &exchange.request,
        host,
        path: Some(path),
        client: client.address,
        peer: client.peer,
        local: client.local,
        scheme: client.scheme(),
        tls: client.tls.as_deref(),
        protocol: client.protocol(&exchange.request),
        found: None,
    };
    let request =
        stillgate_route::Request { method: exchange.request.method, host, path, client: client.address, vars: &vars };
    match worker.routes.borrow_mut().find(&snapshot.plan, &request, &mut exchange.matching, &worker.counters) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Refusal::new(404, "Route Not Found")),
        Err(error) => Err(Refusal::new(400, error.to_string())),
    }
}

/// Tries nodes until one answers or the rules say stop.
async fn forward(
    worker: &Rc<Worker>,
    client: &mut Client,
    exchange: &mut Exchange,
    snapshot: &Snapshot,
    route: &PlanRoute,
) -> After {
    let upstream = &snapshot.upstreams[route.upstream()];
    let definition = &upstream.planned.definition;
    let settings = &snapshot.plan.settings;
    let bounds = bounds(client, exchange, definition, snapshot.plan.timeouts(route), settings, worker.clock.now_ms());
    if let Err(after) = queue::admit(worker, client, exchange, settings, upstream, bounds.deadline_ms).await {
        return after;
    }
    exchange.passes_upgrade = exchange.request.asks_upgrade && route.route.upgrades;
    forwarding::edit_request(client, exchange, settings, &definition.pass_host);
    let has_key = hash_key(client, exchange, snapshot, &definition.balance);
    let began_ms = worker.clock.now_ms();
    let mut tries = Tries { upstream, settings, bounds, began_ms, retries_used: 0, fresh: false };
    exchange.tried.clear();
    let mut status = 503;
    let mut same = None;
    loop {
        let picked = same.take().or_else(|| {
            let key = has_key.then_some(exchange.key.as_slice());
            upstream.state.borrow_mut().pick(key, worker.clock.now_ms(), worker.random(), &exchange.tried)
        });
        let Some(index) = picked else {
            worker.troubles.note(&definition.key, no_node(status), &exchange.tries);
            return reply::send(worker, client, exchange, settings, &Refusal::new(status, no_node(status))).await;
        };
        if !exchange.tried.is_empty() {
            worker.note_upstream(UpstreamEvent::Retry, upstream);
        }
        exchange.tried.insert(index);
        let failed = match attempt::run(worker, client, exchange, &tries, index).await {
            Ended::Done(after) => return after,
            Ended::Switched(node) => {
                exchange.upgraded =
                    Some(Box::new(Upgraded::new(worker, client, exchange, snapshot, route, index, node)));
                return After::Tunnel;
            }
            Ended::Refused(refusal) => return reply::send(worker, client, exchange, settings, &refusal).await,
            Ended::Failed(_) if worker.clock.now_ms() >= tries.bounds.deadline_ms => {
                return reply::send(worker, client, exchange, settings, &Refusal::deadline()).await;
            }
            Ended::Failed(failed) => failed,
        };
        match decide(&judge(worker, exchange, &tries, failed)) {
            Decision::RetrySame => {
                tries.fresh = true;
                same = Some(index);
            }
            Decision::RetryNext(with) => {
                tries.fresh = false;
                tries.retries_used += 1;
                status = with;
            }
            decision @ (Decision::Fail(status) | Decision::OverBudget(status)) => {
                if matches!(decision, Decision::OverBudget(_)) {
                    worker.note_upstream(UpstreamEvent::RetryOverBudget, upstream);
                }
                let refusal = Refusal::new(status, describe(failed.failure, exchange.refusal.take()));
                note_trouble(worker, exchange, &definition.key, &refusal);
                return reply::send(worker, client, exchange, settings, &refusal).await;
            }
        }
    }
}

/// Says in the log what a client is not told in full: which nodes of the upstream failed, and what they may have been taken for.
fn note_trouble(worker: &Worker, exchange: &Exchange, upstream: &str, refusal: &Refusal) {
    let hint = exchange.mistaken.map(|mistaken| format!("{}; {}", refusal.message, mistaken.hint()));
    worker.troubles.note(upstream, hint.as_deref().unwrap_or(&refusal.message), &exchange.tries);
}

/// The bounds of all tries together; the client's own deadline among them, where it speaks gRPC.
fn bounds(
    client: &Client,
    exchange: &Exchange,
    upstream: &Upstream,
    node: TimeoutsMs,
    settings: &Settings,
    began_ms: u64,
) -> Bounds {
    let mut bounds = Bounds::new(node, settings);
    // Without HTTP/2 there is no gRPC but for gRPC-Web.
    if (client.stream.is_http2() || upstream.grpc)
        && let Some(timeout_ms) = grpc::timeout_ms(&exchange.request, exchange.from_client.head())
    {
        bounds.deadline_ms = began_ms.saturating_add(timeout_ms);
    }
    bounds
}

fn judge(worker: &Worker, exchange: &Exchange, tries: &Tries<'_>, failed: Failed) -> Attempt {
    let definition = &tries.upstream.planned.definition;
    Attempt {
        failure: failed.failure,
        reused: failed.reused,
        request_sent: failed.request_sent,
        response_started: failed.response_started,
        idempotent: exchange.request.method.is_idempotent(),
        body_replayable: exchange.from_client.replayable,
        retries_used: tries.retries_used,
        retries: definition.retries,
        choices: tries.upstream.state.borrow().choices(),
        elapsed_ms: worker.clock.now_ms() - tries.began_ms,
        in_budget: definition.retry_budget.as_ref().is_none_or(|b| tries.upstream.state.borrow().has_budget(b)),
        retry_timeout_ms: u64::try_from(definition.retry_timeout.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Puts the value that the consistent hash hashes into `exchange.key`; false where there is none.
fn hash_key(client: &Client, exchange: &mut Exchange, snapshot: &Snapshot, balance: &Balance) -> bool {
    let Balance::ConsistentHash(variable) = balance else { return false };
    let mut buffer = std::mem::take(&mut exchange.value);
    let has_key = with_vars(client, exchange, snapshot.plan.matcher(), |vars, key| {
        let value = vars.value(variable, &mut buffer);
        key.clear();
        key.extend_from_slice(value.unwrap_or_default());
        value.is_some()
    });
    exchange.value = buffer;
    has_key
}

fn no_node(status: u16) -> &'static str {
    match status {
        503 => "the upstream has no node",
        _ => "every node of the upstream failed",
    }
}

fn describe(failure: Failure, refusal: Option<ResponseError>) -> Cow<'static, str> {
    match (failure, refusal) {
        (Failure::BadResponse, Some(error)) => format!("the node's response is invalid: {error}").into(),
        _ => health::describe(failure).into(),
    }
}
