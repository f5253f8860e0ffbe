//! One worker: a thread with its own runtime, listeners, pools, clock and memory. Nothing in it is shared but the Plan's
//! pointer, which it reads, and its counters, which it writes.

use crate::access_log::{Record, Sink};
use crate::buffer::Buffers;
use crate::client::{self, Client};
use crate::clock::{Clock, TICK_MS};
use crate::counters::WorkerCounters;
use crate::exchange::Exchange;
use crate::node;
use crate::plan::PlanCell;
use crate::reply;
use crate::snapshot::Snapshot;
use crate::troubles::Troubles;
use crate::variables::with_vars;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::MissedTickBehavior;

/// Free exchanges kept by a worker.
const EXCHANGES_FREE_MAX: usize = 256;
/// How long accepting rests after it failed, so that a lack of descriptors does not become a lack of CPU.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Refused connections that are closed politely at the same time; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// How long a refused client has to read why.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Ticks between looks at the pools and the log.
const TICKS_PER_SECOND: u64 = 1000 / TICK_MS;
const TICKS_PER_FLUSH: u64 = 2;
/// Connections that must have been closed for their memory to be given back.
const GIVE_BACK_CONNECTIONS: u64 = 1000;
/// Timers of closed connections that may wait for their place in the wheel to come round.
const TIMERS_SPARE_MAX: u64 = 4096;
/// Buffers an idle worker keeps.
const BUFFERS_KEPT_IDLE: usize = 8;

/// What the control thread asks of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Serve,
    /// Accept no more, finish what is in flight within this time, end.
    Drain(Duration),
}

/// What a worker is made of; sent to its thread.
pub(crate) struct Setup {
    pub(crate) listeners: Vec<std::net::TcpListener>,
    pub(crate) plans: Arc<PlanCell>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) sink: Option<Sink>,
    pub(crate) commands: watch::Receiver<Command>,
    pub(crate) seed: u64,
    pub(crate) give_back: fn(),
}

/// The worker's own things, reached by its tasks.
pub(crate) struct Worker {
    pub(crate) clock: Clock,
    pub(crate) buffers: Buffers,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) draining: Cell<bool>,
    pub(crate) troubles: Troubles,
    plans: Arc<PlanCell>,
    snapshot: RefCell<Rc<Snapshot>>,
    sink: RefCell<Option<Sink>>,
    is_logging: bool,
    random: Cell<u64>,
    #[expect(clippy::vec_box, reason = "taking and giving back moves a pointer, not a kilobyte")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    refusals: Cell<usize>,
    /// Returns this thread's free memory to the system; takes a moment.
    give_back: fn(),
    /// Most connections open at once since memory was last given back.
    peak: Cell<u64>,
}

/// Runs a worker until it has drained.
pub(crate) fn run(setup: Setup) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = LocalSet::new();
    let mut commands = setup.commands.clone();
    local.block_on(&runtime, async move {
        let listeners: Vec<Rc<TcpListener>> = setup
            .listeners
            .into_iter()
            .map(|listener| TcpListener::from_std(listener).map(Rc::new))
            .collect::<io::Result<_>>()?;
        let version = setup.plans.version();
        let snapshot = Rc::new(Snapshot::next(None, setup.plans.load(), version));
        let worker = Rc::new(Worker {
            clock: Clock::new(),
            buffers: Buffers::default(),
            counters: setup.counters,
            draining: Cell::new(false),
            troubles: Troubles::default(),
            plans: setup.plans,
            snapshot: RefCell::new(snapshot),
            is_logging: setup.sink.is_some(),
            sink: RefCell::new(setup.sink),
            random: Cell::new(setup.seed | 1),
            exchanges: RefCell::default(),
            refusals: Cell::new(0),
            give_back: setup.give_back,
            peak: Cell::new(0),
        });
        worker.live(listeners, &mut commands).await;
        Ok(())
    })
}

impl Worker {
    async fn live(self: &Rc<Self>, mut listeners: Vec<Rc<TcpListener>>, commands: &mut watch::Receiver<Command>) {
        let accepting: Vec<AbortHandle> = listeners
            .iter()
            .map(|listener| spawn_local(accept(self.clone(), listener.clone())).abort_handle())
            .collect();
        let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0u64;
        let mut deadline_ms = u64::MAX;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    count += 1;
                    self.tick(count);
                }
                changed = commands.changed() => {
                    // The control thread is gone only when the process ends: then there is nothing to finish for.
                    let command = if changed.is_ok() { *commands.borrow_and_update() } else { Command::Drain(Duration::ZERO) };
                    if let Command::Drain(time) = command {
                        deadline_ms = self.clock.now_ms() + time.as_millis() as u64;
                        self.start_draining(std::mem::take(&mut listeners), &accepting).await;
                    }
                    if changed.is_err() {
                        return;
                    }
                }
            }
            let drained = self.draining.get() && self.counters.connections_open.get() == 0;
            if drained || self.clock.now_ms() >= deadline_ms {
                return;
            }
        }
    }

    fn tick(&self, count: u64) {
        self.clock.advance();
        drop(self.snapshot());
        if count.is_multiple_of(TICKS_PER_FLUSH)
            && let Some(sink) = &mut *self.sink.borrow_mut()
        {
            sink.flush();
        }
        if count.is_multiple_of(TICKS_PER_SECOND) {
            let now_ms = self.clock.now_ms();
            for upstream in self.snapshot().upstreams.iter() {
                let mut state = upstream.state.borrow_mut();
                if state.idle() > 0 {
                    state.expire(now_ms, node::is_dead);
                }
            }
            self.troubles.report(now_ms);
            self.give_memory_back();
        }
    }

    /// After a burst: what idle connections and their requests used is not kept for ever.
    fn give_memory_back(&self) {
        if self.counters.requests_in_flight.get() == 0 {
            self.exchanges.borrow_mut().truncate(BUFFERS_KEPT_IDLE);
            self.buffers.shrink(BUFFERS_KEPT_IDLE);
        }
        let open = self.counters.connections_open.get();
        if self.clock.entries() as u64 > 2 * open + TIMERS_SPARE_MAX {
            self.clock.sweep();
        }
        self.peak.set(self.peak.get().max(open));
        let is_quiet = self.counters.requests_in_flight.get() == 0;
        if is_quiet && self.peak.get() - open >= GIVE_BACK_CONNECTIONS {
            self.peak.set(open);
            self.clock.sweep();
            (self.give_back)();
        }
    }

    /// Closes the listeners. Connections that wait in their queues would be reset by that: they are taken first.
    async fn start_draining(self: &Rc<Self>, listeners: Vec<Rc<TcpListener>>, accepting: &[AbortHandle]) {
        accepting.iter().for_each(AbortHandle::abort);
        // A turn of the event loop, so that it has seen what came in until now; and no budget, so that all of it is taken.
        tokio::task::yield_now().await;
        let take_all = poll_fn(|cx| {
            for listener in &listeners {
                while let Poll::Ready(accepted) = listener.poll_accept(cx) {
                    match accepted {
                        Ok((stream, peer)) => self.admit(stream, peer),
                        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                        Err(_) => break,
                    }
                }
            }
            Poll::Ready(())
        });
        tokio::task::coop::unconstrained(take_all).await;
        self.draining.set(true);
        self.clock.wake_all();
    }

    /// The present view of the Plan, taken anew where there is a newer one.
    #[inline]
    pub(crate) fn snapshot(&self) -> Rc<Snapshot> {
        let version = self.plans.version();
        if self.snapshot.borrow().version != version {
            let next = Rc::new(Snapshot::next(Some(&self.snapshot.borrow()), self.plans.load(), version));
            self.snapshot.replace(next);
        }
        self.snapshot.borrow().clone()
    }

    /// Whether anybody wants to know how long requests take.
    pub(crate) fn is_timed(&self) -> bool {
        self.is_logging || self.snapshot.borrow().uses_latency
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

    /// Writes the access log line of a finished request.
    pub(crate) fn record(&self, client: &Client, x: &mut Exchange, snapshot: &Snapshot) {
        if !self.is_logging {
            return;
        }
        let mut sink = self.sink.borrow_mut();
        let Some(sink) = &mut *sink else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (status, upstream_time_us) = (x.outcome.status, x.outcome.upstream_us);
        // What is behind the message belongs to the next one.
        let bytes_received = x.from_client.total.saturating_sub(x.from_client.unparsed().len() as u64);
        let bytes_sent = x.to_client.total;
        let body_bytes_sent = bytes_sent.saturating_sub(x.outcome.head_bytes);
        let request_time_us = x.outcome.started.map_or(0, |started| started.elapsed().as_micros() as u64);
        let route_id = x.outcome.route.map(|found| &*snapshot.plan.routes[found.route].id);
        let upstream_addr = x.outcome.upstream_addr;
        with_vars(client, x, snapshot.plan.matcher(), |vars, _| {
            sink.record(&Record {
                end_unix_ms: now.as_millis() as u64,
                status,
                bytes_sent,
                body_bytes_sent,
                bytes_received,
                request_time_us,
                upstream_time_us,
                upstream_addr,
                route_id,
                method: vars.request.method_bytes(vars.head),
                target: vars.request.target.of(vars.head),
                version: vars.request.version.as_str(),
                client: client.address,
                vars,
            });
        });
    }

    /// Serves a connection just accepted, or refuses it.
    fn admit(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        // A connection that is gone already shows that when it is read.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else { return };
        self.counters.connections_total.add(1);
        let share = self.snapshot().plan.settings.connections_max as u64;
        if self.counters.connections_open.get() >= share {
            self.counters.connections_refused.add(1);
            if self.refusals.get() < REFUSALS_MAX {
                self.refusals.set(self.refusals.get() + 1);
                spawn_local(refuse(self.clone(), stream));
            }
            return;
        }
        self.counters.connections_open.add(1);
        let open = Open(self.clone());
        let mut client = Client::new(stream, peer, local, self.clock.now_ms());
        spawn_local(async move { client::serve(&open.0, &mut client).await });
    }
}

/// Counts an open connection, and notices one whose task panicked.
struct Open(Rc<Worker>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.connections_open.sub(1);
        if std::thread::panicking() {
            self.0.counters.panics.add(1);
        }
    }
}

async fn accept(worker: Rc<Worker>, listener: Rc<TcpListener>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => worker.admit(stream, peer),
            // The client gave up while it was queued: nothing is wrong here.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if worker.counters.accept_errors.get().is_multiple_of(100) {
                    tracing::warn!(
                        %error,
                        "cannot accept connections; new ones wait (raise the limit of open files: ulimit -n, LimitNOFILE)"
                    );
                }
                worker.counters.accept_errors.add(1);
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Tells a client that there is no room for it, and gives it the time to read that.
async fn refuse(worker: Rc<Worker>, mut stream: TcpStream) {
    let polite = async {
        stream.write_all(&reply::overloaded()).await?;
        stream.shutdown().await?;
        let mut space = [0; 1024];
        poll_fn(|cx| {
            loop {
                let mut space = ReadBuf::new(&mut space);
                match Pin::new(&mut stream).poll_read(cx, &mut space) {
                    Poll::Ready(Ok(())) if !space.filled().is_empty() => {}
                    Poll::Ready(result) => return Poll::Ready(result),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    };
    // However it ends, the client was told or did not listen.
    let _ = tokio::time::timeout(REFUSAL_TIME, polite).await;
    worker.refusals.set(worker.refusals.get() - 1);
}
