//! All workers of the process: binding their listeners, starting and ending their threads.

use crate::access_log::Sink;
use crate::counters::{Tally, WorkerCounters};
use crate::overview::Inquiry;
use crate::plan::PlanCell;
use crate::worker::{self, Command, Setup};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_config::Gateway;
use stillgate_metrics::Writer;
use tokio::sync::watch;

/// Connections that may wait to be accepted, per worker and listener.
const BACKLOG: i32 = 4096;

/// Why the workers could not be started, or did not end well.
#[derive(Debug)]
pub enum StartError {
    /// A listener's address is not to be had.
    Bind {
        /// Which one.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// A thread or its runtime could not be made.
    Thread(io::Error),
    /// A worker's thread ended in a panic, which its own log line describes.
    Panicked {
        /// Its number, from 0.
        worker: usize,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind { address, error } => {
                write!(f, "cannot listen on {address}: {error}")?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(f, "; see who does: ss -ltnp 'sport = :{}'", address.port())
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")
                    }
                    io::ErrorKind::AddrNotAvailable => write!(f, "; no interface has this address (see: ip addr)"),
                    _ => Ok(()),
                }
            }
            StartError::Thread(error) => write!(f, "cannot start a worker thread: {error}"),
            StartError::Panicked { worker } => write!(f, "worker {worker} ended in a panic"),
        }
    }
}

impl std::error::Error for StartError {}

/// The running workers.
pub struct Fleet {
    threads: Vec<JoinHandle<io::Result<()>>>,
    tally: Tally,
    inquiry: Inquiry,
    addresses: Vec<SocketAddr>,
    commands: watch::Sender<Command>,
}

impl Fleet {
    /// Binds every listener once per worker and starts the workers. `sinks` has one access log sink per worker or none, and
    /// so has `writers` one of the metrics; `give_back` is called by a worker after many of its connections were closed, to return free memory.
    pub fn start(
        gateway: &Gateway,
        plans: Arc<PlanCell>,
        sinks: Vec<Sink>,
        writers: Vec<Writer>,
        give_back: fn(),
    ) -> Result<Fleet, StartError> {
        let workers = worker_count(gateway);
        debug_assert!(sinks.is_empty() || sinks.len() == workers);
        debug_assert!(writers.is_empty() || writers.len() == workers);
        let mut addresses = Vec::new();
        let mut listeners: Vec<Vec<TcpListener>> = (0..workers).map(|_| Vec::new()).collect();
        for listener in &gateway.listeners {
            addresses.push(bind_all(listener.address, &mut listeners)?);
        }
        let (commands, receiver) = watch::channel(Command::Serve);
        let counters: Arc<[_]> = (0..workers).map(|_| Arc::new(WorkerCounters::default())).collect();
        let (inquiry, questions) = Inquiry::new(workers);
        let mut fleet = Fleet { threads: Vec::new(), tally: Tally(counters.clone()), inquiry, addresses, commands };
        let mut questions = questions.into_iter();
        let (mut sinks, mut writers) = (sinks.into_iter(), writers.into_iter());
        let time_seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        for (index, listeners) in listeners.into_iter().enumerate() {
            let setup = Setup {
                listeners,
                configured: gateway.listeners.clone(),
                plans: plans.clone(),
                counters: counters[index].clone(),
                sink: sinks.next(),
                writer: writers.next(),
                commands: receiver.clone(),
                questions: questions.next().expect("one for each worker"),
                give_back,
                secret: RandomState::new().build_hasher().finish(),
                seed: time_seed.wrapping_add(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            };
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            fleet.threads.push(thread.spawn(move || worker::run(setup)).map_err(StartError::Thread)?);
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

    /// Asks all workers to accept no more, to finish what is in flight within this time, and to end.
    pub fn drain(&self, deadline: Duration) {
        self.commands.send_replace(Command::Drain(deadline));
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

/// One socket per worker on the same address; the kernel spreads connections over them.
fn bind_all(address: SocketAddr, listeners: &mut [Vec<TcpListener>]) -> Result<SocketAddr, StartError> {
    let fail = |error| StartError::Bind { address, error };
    // Sharing a port is asked for by every socket that shares it, so another gateway already there would not be noticed:
    // a first socket that does not share finds out.
    drop(bind(address, false).map_err(fail)?);
    let mut bound = address;
    for worker in listeners {
        let listener = bind(bound, true).map_err(fail)?;
        bound = listener.local_addr().map_err(fail)?;
        worker.push(listener);
    }
    Ok(bound)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    if shared {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
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
