//! One request, from its head to its line in the access log: the list of its phases, and the context that they work with.

use super::answer::{self, LocalReply, SpecialReply, method_of};
use super::chain::Chains;
use super::forwarding::client_address;
use super::record::Moment;
use super::target::ExchangeTarget;
use super::{ConnectionNext, Exchange, attempts, chain, device, exposition, matching, queue, waiting_place};
use crate::connection::client::ClientConnection;
use crate::plan::snapshot::Snapshot;
use crate::plan::{PlanRoute, Settings};
use crate::sockets::listener::ActiveGuard;
use crate::worker::Worker;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use stillgate_profiler::threads::{WorkKind, work_on};
use stillgate_wire::BodyDecoder;

/// Serves the request whose head was just parsed.
pub(crate) async fn run(worker: &Rc<Worker>, client: &mut ClientConnection, exchange: &mut Exchange) -> ConnectionNext {
    let _in_flight = InFlight::new(worker, client);
    let snapshot = worker.snapshot();
    let serving = RequestContext { worker, client, exchange, snapshot: &snapshot, route: None };
    let mut under_way = UnderWay { serving, is_over: false };
    let serving = &mut under_way.serving;
    let begun = begin(serving);
    let route = serving.route.map_or("", |route| &*route.route.spec.id);
    let after = {
        let mut rest = pin!(async {
            let answered = match begun {
                Ok(()) => phases(serving).await,
                Err(own) => Err(own),
            };
            match answered {
                Ok(after) => after,
                Err(own) => send_local_reply(serving, own).await,
            }
        });
        poll_fn(|cx| work_on(WorkKind::Route, route, || rest.as_mut().poll(cx))).await
    };
    under_way.is_over = true;
    worker.counters.requests_total.add(1);
    // A tunnel is recorded at its end.
    if after != ConnectionNext::Tunnel {
        work_on(WorkKind::Route, route, || log(&mut under_way.serving));
    }
    after
}

/// The status of a request without a response that a drain cuts off; only the access log and metrics show it.
const STATUS_CUT_OFF: u16 = 503;

/// A request whose response is not out. A request that a drain cuts off is logged and counted like any other.
struct UnderWay<'a> {
    serving: RequestContext<'a>,
    is_over: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let worker = self.serving.worker;
        // After a panic the state is unknown, so nothing is logged.
        if self.is_over || !worker.is_cutting.get() || std::thread::panicking() {
            return;
        }
        let outcome = &mut self.serving.exchange.outcome;
        if outcome.status == 0 {
            outcome.status = STATUS_CUT_OFF;
        }
        worker.counters.requests_total.add(1);
        log(&mut self.serving);
    }
}

/// Answers a head that did not arrive or was malformed, and closes. It is logged and counted like any request.
pub(crate) async fn refuse(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    own: LocalReply,
) -> ConnectionNext {
    let snapshot = worker.snapshot();
    // Properties of the connection's last request do not apply to this one.
    exchange.request.clear();
    exchange.request.method = method_of(exchange.from_client.unparsed());
    client.address = client.peer.ip().to_canonical();
    (client.port, client.is_named) = (client.peer.port(), false);
    let mut serving = RequestContext { worker, client, exchange, snapshot: &snapshot, route: None };
    let after = send_local_reply(&mut serving, own).await;
    worker.counters.requests_total.add(1);
    log(&mut serving);
    after
}

/// The phases until the route is known.
fn begin(serving: &mut RequestContext<'_>) -> Result<(), LocalReply> {
    receive(serving)?;
    matching::select(serving)
}

/// The phases from there up to the end of the response; each may end the request with a local answer.
async fn phases(serving: &mut RequestContext<'_>) -> Result<ConnectionNext, LocalReply> {
    if let Some(paused) = chain::run_before_target(serving)? {
        // On the heap, as it is rare: otherwise every idle connection's task would have room for it.
        if let Some(after) = Box::pin(waiting_place::run(serving, paused)).await? {
            return Ok(after);
        }
    }
    let target = ExchangeTarget::new(serving)?;
    if let Some(after) = queue::admit(serving, &target).await? {
        return Ok(after);
    }
    chain::before_proxy(serving)?;
    target.prepare(serving);
    attempts::run(serving, &target).await
}

/// Computes the facts of the request, and begins its body.
#[inline]
fn receive(serving: &mut RequestContext<'_>) -> Result<(), LocalReply> {
    let settings = serving.settings();
    let RequestContext { client, exchange, .. } = serving;
    let decoder = BodyDecoder::of_request(exchange.request.framing, exchange.request.drops_underscores);
    let started = exchange.from_client.start_body(exchange.request.len, decoder);
    let head = exchange.from_client.head();
    client.address = client_address(settings, head, &exchange.request, client.peer.ip());
    (client.port, client.is_named) = (client.peer.port(), false);
    // A path without a normal form is refused when the request is routed by it.
    let _ = exchange.known.make(&exchange.request, head);
    started.map_err(LocalReply::from)
}

/// Sends a local answer.
async fn send_local_reply(serving: &mut RequestContext<'_>, own: LocalReply) -> ConnectionNext {
    let own = match own.elsewhere() {
        None => own,
        // On the heap, as they are rare.
        Some(SpecialReply::Metrics) => match Box::pin(exposition::give(serving)).await {
            Ok(after) => return after,
            Err(own) => own,
        },
        Some(SpecialReply::Device(device)) => match Box::pin(device::begin(serving, &device)).await {
            Ok(after) => return after,
            Err(own) => own,
        },
    };
    match answer::stage(serving, own).await {
        Some(staged) => answer::flush(serving, staged).await,
        None => ConnectionNext::Close,
    }
}

/// The response is out: plugins, metrics and the access log are informed.
#[inline]
fn log(serving: &mut RequestContext<'_>) {
    let dropped = serving.exchange.dropped_trailers();
    if dropped > 0 {
        serving.worker.counters.header_lines_dropped.add(dropped as u64);
    }
    let ended = Moment::now(&serving.exchange.outcome);
    chain::log(serving, ended);
    serving.worker.record(serving.client, serving.exchange, serving.snapshot, ended);
}

/// The tunnel that a request has become has ended.
pub(crate) fn end_upgraded(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    snapshot: &Snapshot,
    chains: Option<Box<Chains>>,
) {
    exchange.chains = chains.map_or_else(Chains::default, |chains| *chains);
    log(&mut RequestContext { worker, client, exchange, snapshot, route: None });
}

/// Counts a request while it is served, even if its task is dropped.
struct InFlight<'a> {
    worker: &'a Worker,
    /// Counts its connection, unless that is shared with other requests and counted elsewhere.
    _active: Option<ActiveGuard>,
}

impl<'a> InFlight<'a> {
    fn new(worker: &'a Worker, client: &ClientConnection) -> Self {
        worker.counters.requests_in_flight.add(1);
        let is_alone = !client.stream.is_http2();
        InFlight { worker, _active: is_alone.then(|| ActiveGuard::new(&client.listener)) }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.worker.counters.requests_in_flight.sub(1);
    }
}

/// A request being served. It is passed from phase to phase.
pub(crate) struct RequestContext<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) client: &'a mut ClientConnection,
    pub(crate) exchange: &'a mut Exchange,
    /// Snapshot from which it is served to its end, whatever is published meanwhile.
    pub(crate) snapshot: &'a Snapshot,
    /// `None`: no route was found yet, or there is none.
    pub(crate) route: Option<&'a PlanRoute>,
}

impl<'a> RequestContext<'a> {
    /// Lends the context for a part of its time.
    #[inline]
    pub(crate) fn lend(&mut self) -> RequestContext<'_> {
        RequestContext {
            worker: self.worker,
            client: self.client,
            exchange: self.exchange,
            snapshot: self.snapshot,
            route: self.route,
        }
    }

    pub(crate) fn settings(&self) -> &'a Settings {
        &self.snapshot.plan.settings
    }
}
