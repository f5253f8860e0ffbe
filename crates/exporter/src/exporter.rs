//! The running exporter, as its owner holds it: a thread, and the questions and orders it takes.
//!
//! Whoever drops it ends it; what is being sent may then still finish, within a bound.

use crate::beside::{Beside, Entrance};
use crate::server::{self, Connections};
use crate::source::{ExpositionSource, Site, Unavailable};
use crate::tally::{Counts, Tally};
use crate::turns;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use stillgate_metrics::reader::FamilyCardinality;
use stillgate_metrics::{Collector, CollectorOptions};
use stillgate_profiler::threads::Registration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task;
use tokio::time::{Instant, sleep_until};
use tracing::error;

/// Questions and orders that may wait.
const COMMANDS_MAX: usize = 64;

/// Tasks, each of which may take a slice of a scrape, after which it is seen who is to go on (see `turns`).
const TASKS_PER_LOOK: u32 = 4;

/// How often the collector is tended.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// And how soon again while there is more to do.
const TEND_AGAIN: Duration = Duration::from_millis(20);

/// What scrapes in flight have to finish in, once the exporter is to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running exporter. Dropping it ends it without waiting.
#[derive(Debug)]
pub struct Exporter {
    commands: mpsc::Sender<Command>,
    address: Option<SocketAddr>,
    tally: Arc<Tally>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
enum Command {
    Cardinality(oneshot::Sender<Vec<FamilyCardinality>>),
    Look(Look),
    /// To be answered on.
    Beside(UnixStream, Entrance),
    /// The sender is dropped when it is done.
    Order(Order, oneshot::Sender<()>),
}

/// Reads what there is, and sends on what it has found.
struct Look(Box<dyn FnOnce(&Collector) + Send>);

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Look")
    }
}

/// Where an exporter is asked by one who does not own it, and does not keep it.
#[derive(Debug, Clone)]
pub struct Looker(mpsc::WeakSender<Command>);

/// Where connections are given to an exporter by one who does not own it, and does not keep it.
#[derive(Debug, Clone)]
pub struct SideDoor(mpsc::WeakSender<Command>, Entrance);

#[derive(Debug)]
enum Order {
    Remove { labels: Vec<String>, values: Vec<Vec<String>> },
    Restore { labels: Vec<String>, values: Vec<Vec<String>> },
    SetSite(Site),
    SetOptions(CollectorOptions),
    Serve(Option<std::net::TcpListener>),
    StopServing,
}

/// Everything that can wake the exporter, beside its connections.
enum Event {
    Command(Command),
    Tend,
    /// The handle is gone.
    Stop,
}

impl Exporter {
    /// Starts the thread, which exposes at `site`. Without a listener nothing is served before [`Exporter::serve`]; the
    /// collector is tended all the same.
    pub fn spawn(listener: Option<std::net::TcpListener>, collector: Collector, site: Site) -> io::Result<Exporter> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().event_interval(TASKS_PER_LOOK).build()?;
        let listener = match listener {
            None => None,
            Some(listener) => {
                listener.set_nonblocking(true)?;
                let _context = runtime.enter();
                Some(TcpListener::from_std(listener)?)
            }
        };
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let source = Arc::new(ExpositionSource::new(collector, site));
        let tally = source.tally.clone();
        let run = move || run(runtime, listener, &source, received);
        let thread = thread::Builder::new().name("exporter".to_owned()).spawn(run)?;
        Ok(Exporter { commands, address, tally, thread })
    }

    /// Where it has listened from the beginning.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.tally.read()
    }

    /// Asks how many series there are of what, largest first; `None`: the exporter has ended.
    pub fn cardinality(&self) -> impl Future<Output = Option<Vec<FamilyCardinality>>> + Send + use<> {
        // Weak, since the exporter ends with its last sender: a question that is never polled must not keep it.
        let commands = self.commands.downgrade();
        async move {
            let (answer, answered) = oneshot::channel();
            commands.upgrade()?.send(Command::Cardinality(answer)).await.ok()?;
            answered.await.ok()
        }
    }

    /// For those who read the values themselves.
    pub fn looker(&self) -> Looker {
        Looker(self.commands.downgrade())
    }

    /// For scrapes that come by the gateway's own routes.
    pub fn side_door(&self) -> SideDoor {
        SideDoor(self.commands.downgrade(), Entrance::Routes)
    }

    /// For scrapes that come by the admin address.
    pub fn admin_door(&self) -> SideDoor {
        SideDoor(self.commands.downgrade(), Entrance::Admin)
    }

    /// Has series with one of these values of a label, or of several together, exposed once more and then removed. The future of this and
    /// other orders ends when the exporter has taken note; they are taken in the order in which they were first polled.
    pub fn remove(&self, labels: Vec<String>, values: Vec<Vec<String>>) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::Remove { labels, values })
    }

    /// Tells that these values, which may have been removed, are in use.
    pub fn restore(&self, labels: Vec<String>, values: Vec<Vec<String>>) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::Restore { labels, values })
    }

    /// Exposes elsewhere.
    pub fn set_site(&self, site: Site) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::SetSite(site))
    }

    /// Changes the collector's options.
    pub fn set_options(&self, options: CollectorOptions) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::SetOptions(options))
    }

    /// Answers scrapes from now on, on this listener too if there is one.
    pub fn serve(&self, listener: Option<std::net::TcpListener>) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::Serve(listener))
    }

    /// Takes no more scrapes, so that another process can on the same socket: who connects waits for that, and who comes by the
    /// side door is turned away. Those in flight are finished; everything else goes on.
    pub fn stop_serving(&self) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::StopServing)
    }

    fn order(&self, order: Order) -> impl Future<Output = ()> + Send + use<> {
        let commands = self.commands.downgrade();
        async move {
            // One that has ended needs no orders.
            let Some(commands) = commands.upgrade() else { return };
            let (done, is_done) = oneshot::channel();
            // Where it ends meanwhile, the order is dropped.
            let _ = commands.send(Command::Order(order, done)).await;
            drop(commands);
            // An error is what says that it was done.
            let _ = is_done.await;
        }
    }

    /// Whether the thread has ended, which it does only when it is told to, or by a bug.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it and waits; scrapes in flight finish, within five seconds.
    pub fn stop(self) -> thread::Result<()> {
        drop(self.commands);
        self.thread.join()
    }
}

impl Looker {
    /// Runs `look` on the exporter's thread, whose other work waits for it; `None`: the exporter has ended.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Collector) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // Whoever asked may have gone meanwhile.
        let look = Look(Box::new(move |collector| drop(answer.send(look(collector)))));
        self.0.upgrade()?.send(Command::Look(look)).await.ok()?;
        answered.await.ok()
    }
}

impl SideDoor {
    /// Has the one request answered that comes on a connection: it gets the exposition, whatever its path. False: it is not, now.
    /// A connection that is closed without an answer is one for which there was no place. It never waits.
    pub fn give(&self, connection: UnixStream) -> bool {
        self.0.upgrade().is_some_and(|commands| commands.try_send(Command::Beside(connection, self.1)).is_ok())
    }
}

/// The thread.
fn run(
    runtime: Runtime,
    listener: Option<TcpListener>,
    source: &Arc<ExpositionSource>,
    commands: mpsc::Receiver<Command>,
) {
    let _profiled = Registration::of_current();
    let (end, ended) = watch::channel(false);
    let control_source = source.clone();
    runtime.spawn(async move {
        control(listener, control_source, commands).await;
        end.send_replace(true);
    });
    turns::run(&runtime, source, &ended);
    // There is nothing to wait for: no task of it blocks.
    runtime.shutdown_background();
}

async fn control(listener: Option<TcpListener>, source: Arc<ExpositionSource>, mut commands: mpsc::Receiver<Command>) {
    let mut serving = listener.map(|listener| Serving::start(listener, &source));
    let mut beside = Beside::default();
    let mut tend_at = Instant::now();
    let mut is_broken = false;
    loop {
        let event = tokio::select! {
            command = commands.recv() => command.map_or(Event::Stop, Event::Command),
            () = sleep_until(tend_at) => Event::Tend,
        };
        let handled = match event {
            Event::Command(command) => handle(command, &source, &mut serving, &mut beside).await,
            Event::Tend => {
                let tended = source.tend().await;
                tend_at = Instant::now() + if matches!(tended, Ok(true)) { TEND_AGAIN } else { TEND_EVERY };
                tended.map(drop)
            }
            Event::Stop => break,
        };
        if let Err(error) = handled
            && !is_broken
        {
            is_broken = true;
            error!("{error}");
        }
    }
    if let Some(serving) = serving
        && let Some(connections) = serving.end().await
    {
        // Connections that have not ended then are closed with the runtime.
        let _ = tokio::time::timeout(STOP_TIMEOUT, connections.ended()).await;
    }
}

async fn handle(
    command: Command,
    source: &Arc<ExpositionSource>,
    serving: &mut Option<Serving>,
    beside: &mut Beside,
) -> Result<(), Unavailable> {
    // The sender that an order comes with is dropped behind it.
    match command {
        Command::Cardinality(answer) => {
            // Whoever asked may have gone meanwhile.
            let _ = answer.send(source.cardinality().await?);
        }
        Command::Look(Look(look)) => source.look(look).await?,
        Command::Beside(connection, entrance) => beside.serve(connection, entrance, source),
        Command::Order(Order::Remove { labels, values }, _done) => source.remove(labels, values)?,
        Command::Order(Order::Restore { labels, values }, _done) => source.restore(&labels, &values)?,
        Command::Order(Order::SetSite(site), _done) => source.set_site(site)?,
        Command::Order(Order::SetOptions(options), _done) => source.set_options(options)?,
        Command::Order(Order::Serve(listener), _done) => {
            beside.is_closed = false;
            let Some(listener) = listener else { return Ok(()) };
            let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            match listener {
                Ok(listener) => *serving = Some(Serving::start(listener, source)),
                Err(error) => error!(%error, "exporter: cannot serve; there are no metrics until a restart"),
            }
        }
        Command::Order(Order::StopServing, _done) => {
            beside.is_closed = true;
            if let Some(serving) = serving.take() {
                // Its connections end by themselves.
                serving.end().await;
            }
        }
    }
    Ok(())
}

/// What answers scrapes.
struct Serving {
    stop: watch::Sender<bool>,
    accepting: task::JoinHandle<Connections>,
}

impl Serving {
    fn start(listener: TcpListener, source: &Arc<ExpositionSource>) -> Serving {
        let (stop, stopping) = watch::channel(false);
        Serving { stop, accepting: tokio::spawn(server::serve(listener, source.clone(), stopping)) }
    }

    /// Ends accepting; the connections there are finish what they are at. `None`: it has panicked.
    async fn end(self) -> Option<Connections> {
        self.stop.send_replace(true);
        self.accepting.await.ok()
    }
}
