//! All workers of the process: starting and ending their threads. What they listen on is in `sockets`.
//!
//! `thread` is what runs one of them, `turns` what it does whenever it wakes, `accept` how connections come to it, `taking` how
//! those of another process do, `draining` how it stops accepting.

mod accept;
mod draining;
mod overview;
mod taking;
mod thread;
mod turns;

use crate::basics::counters::{Tally, WorkerCounters};
use crate::handover::{Arrival, INBOX, Inbox, Successor};
use crate::plan::PlanCell;
use crate::random;
use crate::sockets::{Listening, Sockets, StartError};
use crate::telemetry::access_log::Sink;
use crate::telemetry::overview::Inquiry;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_config::Gateway;
use stillgate_metrics::Writer;
use thread::{Command, Setup};
use tokio::sync::{mpsc, watch};

/// What a worker's thread is called, before its number.
pub const WORKER_NAME: &str = "worker-";

/// The running workers.
pub struct Fleet {
    threads: Vec<JoinHandle<io::Result<()>>>,
    tally: Tally,
    inquiry: Inquiry,
    addresses: Arc<[SocketAddr]>,
    /// Descriptors of what the workers listen on, so that it can be left to another process; `None`: no longer.
    sockets: Option<Sockets>,
    arrivals: Vec<mpsc::Sender<Arrival>>,
    commander: Commander,
}

/// Tells the workers what to do, also after the [`Fleet`] has been handed over to be joined.
#[derive(Debug, Clone)]
pub struct Commander(watch::Sender<Command>);

impl Commander {
    /// Asks all workers to accept no more, to finish what is in flight within this time, and to end.
    pub fn drain(&self, deadline: Duration) {
        self.0.send_replace(Command::Drain(deadline));
    }

    /// Asks workers that hand over to go on with it, but to finish within this time.
    pub fn hurry(&self, deadline: Duration) {
        self.0.send_modify(|command| {
            if let Command::HandOver { within, is_hurried, .. } = command {
                (*within, *is_hurried) = (deadline, true);
            }
        });
    }
}

impl Fleet {
    /// Starts the workers, on sockets that were opened for as many of them. `sinks` has one access log sink per worker or none, and
    /// so has `writers` one of the metrics; `give_back` is called by a worker after many of its connections were closed, to return free memory.
    pub fn start(
        gateway: &Gateway,
        sockets: Sockets,
        plans: Arc<PlanCell>,
        sinks: Vec<Sink>,
        writers: Vec<Writer>,
        give_back: fn(),
    ) -> Result<Fleet, StartError> {
        let workers = worker_count(gateway);
        debug_assert!(sinks.is_empty() || sinks.len() == workers);
        debug_assert!(writers.is_empty() || writers.len() == workers);
        let dealt = sockets.deal(workers).map_err(StartError::Thread)?;
        let addresses: Arc<[SocketAddr]> = sockets.addresses().into();
        let (arrivals, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(INBOX)).unzip();
        let mut inboxes = inboxes.into_iter();
        let (commands, receiver) = watch::channel(Command::Share);
        let counters: Arc<[_]> = (0..workers).map(|_| Arc::new(WorkerCounters::default())).collect();
        let (inquiry, questions) = Inquiry::new(workers);
        let mut fleet = Fleet {
            threads: Vec::new(),
            tally: Tally(counters.clone()),
            inquiry,
            addresses: addresses.clone(),
            sockets: Some(sockets),
            arrivals,
            commander: Commander(commands),
        };
        let mut questions = questions.into_iter();
        let (mut sinks, mut writers) = (sinks.into_iter(), writers.into_iter());
        let time_seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        for (index, sockets) in dealt.into_iter().enumerate() {
            let setup = Setup {
                number: index,
                sockets,
                configured: gateway.listeners.clone(),
                stream_listeners: gateway.stream_proxy.tcp.clone(),
                plans: plans.clone(),
                counters: counters[index].clone(),
                sink: sinks.next(),
                writer: writers.next(),
                commands: receiver.clone(),
                questions: questions.next().expect("one for each worker"),
                arrivals: inboxes.next().expect("one for each worker"),
                addresses: addresses.clone(),
                give_back,
                secret: random::number(),
                seed: time_seed.wrapping_add(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            };
            let thread = std::thread::Builder::new().name(format!("{WORKER_NAME}{index}"));
            fleet.threads.push(thread.spawn(move || thread::run(setup)).map_err(StartError::Thread)?);
        }
        Ok(fleet)
    }

    /// Where the listeners are, in the configuration's order.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// Whether a worker has ended.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Where to read the workers' counts.
    pub fn tally(&self) -> Tally {
        self.tally.clone()
    }

    /// Where to ask what the workers know of the nodes.
    pub fn inquiry(&self) -> Inquiry {
        self.inquiry.clone()
    }

    /// Has the workers read datagrams also where the process before has read them until now.
    pub fn read_all(&self) {
        self.commander.0.send_replace(Command::Serve);
    }

    /// Asks all workers to accept no more, to finish what is in flight within this time, and to end.
    pub fn drain(&mut self, deadline: Duration) {
        self.sockets = None;
        self.commander.drain(deadline);
    }

    /// Asks all workers to accept no more, to give away what they can, to finish the rest within this time, and to end.
    pub fn hand_over(&mut self, successor: Successor, deadline: Duration) {
        self.sockets = None;
        // Nobody hands over to this process any more, unless it has begun already.
        self.arrivals.clear();
        let command = Command::HandOver { to: Arc::new(successor), within: deadline, is_hurried: false };
        self.commander.0.send_replace(command);
    }

    /// What the workers listen on, to be left to another process; empty once they do not.
    pub fn listening(&self) -> &[Listening] {
        self.sockets.as_ref().map_or(&[], Sockets::listening)
    }

    /// Where connections of the process before are given to the workers, which do not end while they hand over and it is
    /// there. There is one. `changed` are the routes that are not what they are there.
    pub fn inbox(&mut self, changed: HashSet<String>) -> Inbox {
        Inbox::new(std::mem::take(&mut self.arrivals), changed)
    }

    /// Goes on being of use when the fleet waits for its end.
    pub fn commander(&self) -> Commander {
        self.commander.clone()
    }

    /// Waits until all workers have ended.
    pub fn join(self) -> Result<(), StartError> {
        let mut result = Ok(());
        for (worker, thread) in self.threads.into_iter().enumerate() {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => result = Err(StartError::Thread(error)),
                Err(_) => result = Err(StartError::Panicked { worker }),
            }
        }
        result
    }
}

/// How many workers a configuration asks for.
pub fn worker_count(gateway: &Gateway) -> usize {
    match gateway.workers {
        Some(workers) => workers.get(),
        None => std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
    }
}

/// Raises the soft limit of open files to the hard one and returns it; `None` where the system has no limit.
pub fn raise_fd_limit() -> io::Result<Option<u64>> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}
