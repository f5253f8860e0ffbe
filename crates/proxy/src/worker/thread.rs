//! One worker: a thread with its own runtime, listeners, pools, clock and memory. Nothing in it is shared but the Plan's
//! pointer, which it reads, and its counters, which it writes.

use super::buffer::Buffers;
use super::clock::Clock;
use super::counters::WorkerCounters;
use super::troubles::Troubles;
use super::turns::{self, Turns};
use crate::client::Client;
use crate::exchange::variables::with_vars;
use crate::exchange::{Exchange, Timing};
use crate::handover::{self, Arrival, Giving, RoutePlaces, Successor};
use crate::listen::accept::accept;
use crate::listen::sockets::WorkerSocket;
use crate::node::connecting::Connecting;
use crate::plan::PlanCell;
use crate::plan::caching::RouteMemory;
use crate::plan::challenges::Challenges;
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::stream_proxy::{self, StreamVars};
use crate::telemetry::access_log::{Record, Sink, WantedFields};
use crate::telemetry::metrics::{Listener, ListenerEvents, MetricsPlan, Recorder};
use crate::telemetry::overview::{self, Question};
use crate::tunnel::Watches;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_config::StreamListener;
use stillgate_metrics::Writer;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::sleep;

/// Free exchanges kept by a worker.
const EXCHANGES_FREE_MAX: usize = 256;
/// A worker that is to end looks this often whether it can.
const END_LOOK: Duration = Duration::from_millis(50);

/// What the control thread asks of the workers.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Accept connections, but leave datagrams to the process before, where their sockets are its as well: of one client's each
    /// process would get some.
    Share,
    /// Serve all that there is.
    Serve,
    /// Accept no more, give away to another process what can be given, finish the rest within this time, end. `is_hurried`:
    /// nobody is waited for who is idle. Part of the command, as a worker may see only the last of several.
    HandOver { to: Arc<Successor>, within: Duration, is_hurried: bool },
    /// Accept no more, finish what is in flight within this time, end.
    Drain(Duration),
}

/// What a worker is made of; sent to its thread.
pub(crate) struct Setup {
    /// Counted from zero.
    pub(crate) number: usize,
    pub(crate) sockets: Vec<WorkerSocket>,
    /// The listeners as configured; behind them, those of streams, and then of datagrams.
    pub(crate) configured: Vec<stillgate_config::Listener>,
    pub(crate) stream_listeners: Vec<StreamListener>,
    pub(crate) plans: Arc<PlanCell>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) sink: Option<Sink>,
    pub(crate) writer: Option<Writer>,
    pub(crate) commands: watch::Receiver<Command>,
    pub(crate) questions: mpsc::Receiver<Question>,
    /// Connections that another process hands over.
    pub(crate) arrivals: mpsc::Receiver<Arrival>,
    /// Where the listeners are, in the configuration's order.
    pub(crate) addresses: Arc<[SocketAddr]>,
    pub(crate) seed: u64,
    /// Which clients cannot guess.
    pub(crate) secret: u64,
    pub(crate) give_back: fn(),
}

/// The worker's own things, reached by its tasks.
pub(crate) struct Worker {
    pub(crate) clock: Clock,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) listeners: Box<[Listener]>,
    pub(crate) stream_listeners: Box<[StreamListener]>,
    /// What has happened at both, in this order.
    pub(crate) listener_events: Box<[ListenerEvents]>,
    pub(crate) addresses: Arc<[SocketAddr]>,
    /// It accepts no more, and no connection is kept for long.
    pub(crate) draining: Cell<bool>,
    /// Another process takes over.
    pub(crate) giving: RefCell<Option<Rc<Giving>>>,
    pub(crate) route_places: RoutePlaces,
    pub(crate) troubles: Troubles,
    pub(crate) connecting: Connecting,
    pub(crate) watches: Watches,
    plans: Arc<PlanCell>,
    pub(crate) snapshot: RefCell<Rc<Snapshot>>,
    sink: RefCell<Option<Sink>>,
    is_logging: bool,
    wanted_fields: WantedFields,
    /// `None`: there are no metrics.
    pub(crate) recorder: Option<RefCell<Recorder>>,
    pub(crate) routes: RefCell<RouteMemory>,
    random: Cell<u64>,
    #[expect(clippy::vec_box, reason = "taking and giving back moves a pointer, not a kilobyte")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    pub(crate) refusals: Cell<usize>,
    /// Requests of HTTP/2 being served.
    pub(crate) streams: Cell<u64>,
    /// Returns this thread's free memory to the system; takes a moment.
    pub(crate) give_back: fn(),
    pub(crate) turns: Turns,
}

/// A socket, of which listener, and whether the process before may read it as well.
type Datagrams = (usize, UdpSocket, bool);

/// Runs a worker until it has drained.
pub(crate) fn run(setup: Setup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let _runtime = runtime.enter();
    let (mut commands, mut questions, mut arrivals) = (setup.commands.clone(), setup.questions, setup.arrivals);
    let of_streams = setup.configured.len()..setup.configured.len() + setup.stream_listeners.len();
    let (of_tcp, of_udp): (Vec<_>, Vec<_>) = setup.sockets.into_iter().partition(|of| of.listener < of_streams.end);
    let datagrams: Vec<Datagrams> = of_udp
        .into_iter()
        .map(|of| Ok((of.listener, UdpSocket::from_std(of.socket.into())?, of.is_left)))
        .collect::<io::Result<_>>()?;
    let listeners: Vec<(usize, Rc<TcpListener>)> = of_tcp
        .into_iter()
        .map(|of| Ok((of.listener, Rc::new(TcpListener::from_std(of.socket.into())?))))
        .collect::<io::Result<_>>()?;
    let version = setup.plans.version();
    let snapshot = Rc::new(Snapshot::next(None, setup.plans.load(), version));
    let of_http = setup.configured.iter().map(|listener| listener.address);
    let of_both = of_http.chain(setup.stream_listeners.iter().map(|listener| listener.address));
    let listener_events = of_both.map(|address| ListenerEvents::new(address.to_string())).collect();
    let worker = Rc::new(Worker {
        listener_events,
        clock: Clock::new(),
        buffers: Buffers::default(),
        counters: setup.counters,
        listeners: setup.configured.into_iter().map(Listener::new).collect(),
        stream_listeners: setup.stream_listeners.into(),
        addresses: setup.addresses,
        draining: Cell::new(false),
        giving: RefCell::default(),
        route_places: RoutePlaces::default(),
        troubles: Troubles::default(),
        connecting: Connecting::default(),
        watches: Watches::default(),
        plans: setup.plans,
        snapshot: RefCell::new(snapshot),
        is_logging: setup.sink.is_some(),
        wanted_fields: setup.sink.as_ref().map(|sink| sink.wanted().clone()).unwrap_or_default(),
        sink: RefCell::new(setup.sink),
        recorder: setup.writer.map(|writer| RefCell::new(Recorder::new(writer, setup.number))),
        routes: RefCell::new(RouteMemory::new(setup.secret)),
        random: Cell::new(setup.seed | 1),
        exchanges: RefCell::default(),
        refusals: Cell::new(0),
        streams: Cell::new(0),
        give_back: setup.give_back,
        turns: Turns::new()?,
    });
    let tasks = LocalSet::new();
    let living = worker.clone();
    let life = tasks.spawn_local(async move {
        living.live(listeners, datagrams, &mut commands, &mut questions, &mut arrivals).await;
    });
    turns::run(&runtime, &tasks, &worker, life);
    Ok(())
}

impl Worker {
    async fn live(
        self: &Rc<Self>,
        mut listeners: Vec<(usize, Rc<TcpListener>)>,
        datagrams: Vec<Datagrams>,
        commands: &mut watch::Receiver<Command>,
        questions: &mut mpsc::Receiver<Question>,
        arrivals: &mut mpsc::Receiver<Arrival>,
    ) {
        let accepting: Vec<AbortHandle> = listeners
            .iter()
            .map(|(index, listener)| spawn_local(accept(self.clone(), listener.clone(), *index)).abort_handle())
            .collect();
        let receive = |(index, socket, _): Datagrams| {
            (index, spawn_local(stream_proxy::serve_udp(self.clone(), socket)).abort_handle())
        };
        let (mut left, own): (Vec<_>, Vec<_>) = datagrams.into_iter().partition(|(_, _, is_left)| *is_left);
        let mut receiving: Vec<(usize, AbortHandle)> = own.into_iter().map(receive).collect();
        let mut deadline_ms = u64::MAX;
        let mut plans = self.plans.news();
        loop {
            tokio::select! {
                () = sleep(END_LOOK), if self.draining.get() => {}
                Some(question) = questions.recv() => {
                    spawn_local(overview::answer(self.clone(), question));
                }
                Some(arrival) = arrivals.recv() => handover::take(self, arrival),
                () = self.give_some() => {}
                Ok(()) = plans.changed() => self.watches.look(self.snapshot().plan.revocations),
                changed = commands.changed() => {
                    // The control thread is gone only when the process ends: then there is nothing to finish for.
                    let command = if changed.is_ok() { commands.borrow_and_update().clone() } else { Command::Drain(Duration::ZERO) };
                    let (successor, time) = match command {
                        Command::Share => continue,
                        Command::Serve => {
                            receiving.extend(left.drain(..).map(receive));
                            continue;
                        }
                        Command::HandOver { to, within, is_hurried } => (Some((to, is_hurried)), within),
                        Command::Drain(time) => (None, time),
                    };
                    deadline_ms = self.clock.now_ms() + time.as_millis() as u64;
                    let giving = successor.map(|(to, is_hurried)| Rc::new(Giving::new(to, is_hurried, deadline_ms)));
                    let listeners = std::mem::take(&mut listeners);
                    self.start_draining(listeners, &accepting, &receiving, giving).await;
                    if changed.is_err() {
                        return;
                    }
                }
            }
            let open = self.counters.connections_open.get() + self.counters.udp_sessions_open.get();
            // What the process before still has would have nowhere to go; it is given on.
            let awaits = self.giving.borrow().is_some() && !(arrivals.is_closed() && arrivals.is_empty());
            let drained = self.draining.get() && open == 0 && !awaits;
            if drained || (self.clock.now_ms() >= deadline_ms && self.has_given(deadline_ms)) {
                self.tick_metrics(true);
                return;
            }
        }
    }

    /// What an ACME server may ask for now.
    #[inline]
    pub(crate) fn challenges(&self) -> &Challenges {
        &self.plans.challenges
    }

    /// The present view of the Plan, taken anew where there is a newer one.
    #[inline]
    pub(crate) fn snapshot(&self) -> Rc<Snapshot> {
        let version = self.plans.version();
        if self.snapshot.borrow().version != version {
            self.renew_snapshot(version);
        }
        self.snapshot.borrow().clone()
    }

    #[cold]
    fn renew_snapshot(&self, version: u64) {
        let next = Rc::new(Snapshot::next(Some(&self.snapshot.borrow()), self.plans.load(), version));
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().renumber(next.plan.numbering);
        }
        self.snapshot.replace(next);
    }

    /// Which header fields of responses the access log shows.
    #[inline]
    pub(crate) fn wanted_fields(&self) -> &WantedFields {
        &self.wanted_fields
    }

    /// Which times anybody wants to know.
    #[inline]
    pub(crate) fn timing(&self) -> Timing {
        let snapshot = self.snapshot.borrow();
        let metrics = snapshot.plan.metrics().filter(|_| self.recorder.is_some());
        Timing {
            request: self.is_logging || metrics.is_some_and(MetricsPlan::times_requests),
            head: self.is_logging || snapshot.plan.uses_latency,
            node: metrics.is_some_and(MetricsPlan::times_nodes),
        }
    }

    pub(crate) fn tick_metrics(&self, due: bool) {
        if let Some(recorder) = &self.recorder {
            let snapshot = self.snapshot.borrow();
            let now_unix_ms = self.clock.now_unix_ms();
            recorder.borrow_mut().tick(now_unix_ms, snapshot.plan.metrics(), &self.listeners, &self.counters, due);
        }
        self.tell_itself(due);
    }

    /// Tells the metrics that a node was set aside, or works again.
    pub(crate) fn tell_node(&self, upstream: &WorkerUpstream, index: usize) {
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            let snapshot = self.snapshot.borrow();
            recorder.borrow_mut().tell_node(snapshot.plan.metrics(), upstream, index, self.clock.now_ms());
        }
    }

    /// A fresh random number (xorshift64*): for choosing among nodes, nothing secret.
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn take_exchange(&self) -> Box<Exchange> {
        self.exchanges.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give_exchange(&self, mut exchange: Box<Exchange>) {
        exchange.release(self);
        let mut free = self.exchanges.borrow_mut();
        if free.len() < EXCHANGES_FREE_MAX {
            free.push(exchange);
        }
    }

    /// Lets go of free exchanges above this many.
    pub(crate) fn keep_exchanges(&self, count: usize) {
        self.exchanges.borrow_mut().truncate(count);
    }

    /// Hands the lines of the access log on.
    pub(crate) fn flush_log(&self) {
        if let Some(sink) = &mut *self.sink.borrow_mut() {
            sink.flush();
        }
    }

    /// Counts a finished request, and writes its line of the access log.
    pub(crate) fn record(&self, client: &Client, exchange: &mut Exchange, snapshot: &Snapshot) {
        let ended = exchange.outcome.started.map(|_| Instant::now());
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().record(client, exchange, snapshot, ended);
        }
        if self.is_logging {
            self.log(client, exchange, snapshot, ended);
        }
    }

    /// Counts a session of `stream_proxy` that has ended, and writes its line of the access log.
    pub(crate) fn record_session(&self, vars: &StreamVars<'_>, received: u64, sent: u64) {
        self.turns.note_news();
        if let Some(recorder) = &self.recorder {
            recorder.borrow_mut().record_session(self.snapshot.borrow().plan.metrics(), vars.session, received, sent);
        }
        if let Some(sink) = &mut *self.sink.borrow_mut() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            sink.record(&vars.line(now.as_millis() as u64, received, sent));
        }
    }

    fn log(&self, client: &Client, exchange: &mut Exchange, snapshot: &Snapshot, ended: Option<Instant>) {
        let mut sink = self.sink.borrow_mut();
        let Some(sink) = &mut *sink else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (status, upstream_time_us) = (exchange.outcome.status, exchange.outcome.upstream_us);
        let bytes_received = exchange.bytes_received();
        let bytes_sent = exchange.bytes_sent();
        let body_bytes_sent = bytes_sent.saturating_sub(exchange.outcome.head_bytes);
        let request_time =
            exchange.outcome.started.zip(ended).map(|(started, ended)| ended.saturating_duration_since(started));
        let request_time_us = request_time.map_or(0, |time| time.as_micros() as u64);
        let kept = exchange.outcome.kept.clone();
        let route = match (&kept, exchange.outcome.route) {
            (Some(kept), _) => Some(&kept.route),
            (None, found) => found.map(|found| &snapshot.plan.routes[found.route].route),
        };
        // Taken out while the exchange lends its variables.
        let (tries, fields) = (std::mem::take(&mut exchange.tries), std::mem::take(&mut exchange.fields));
        with_vars(client, exchange, snapshot.plan.matcher(), |vars, _| {
            sink.record(&Record {
                end_unix_ms: now.as_millis() as u64,
                status,
                bytes_sent,
                body_bytes_sent,
                bytes_received,
                request_time_us,
                upstream_time_us,
                tries: &tries,
                fields: Some(&fields),
                route_id: route.map(|route| route.spec.id.as_str()),
                service_id: route.and_then(|route| route.service_id.as_deref()),
                method: vars.request.method_bytes(vars.head),
                target: vars.request.target.of(vars.head),
                version: vars.protocol,
                client: client.address,
                vars,
            });
        });
        (exchange.tries, exchange.fields) = (tries, fields);
    }
}
