//! The owner's handle of a running exporter: a thread, with the queries and orders that it accepts.
//!
//! Dropping it ends the exporter; responses in progress may still finish, within a time limit.

use crate::answer::answer_scrape;
use crate::server::{self, BUFFER_BYTES_MAX, Connections, HEAD_TIMEOUT};
use crate::source::{ExporterCounts, ExporterTally, ExpositionSite, ExpositionSource, Unavailable};
use crate::turns;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};
use stillgate_metrics::reader::FamilyCardinality;
use stillgate_metrics::{Collector, CollectorOptions};
use stillgate_profiler::threads::Registration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error};

/// Most pending queries and orders.
const COMMANDS_MAX: usize = 64;

/// Number of tasks, each of which may take a slice of a scrape, between two decisions about the thread that runs them
/// (see `turns`).
const TASKS_PER_LOOK: u32 = 4;

/// How often the collector is tended.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Interval while there is more to do.
const TEND_AGAIN: Duration = Duration::from_millis(20);

/// Time for scrapes in flight to finish when the exporter ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running exporter. Dropping it ends it without waiting.
#[derive(Debug)]
pub struct Exporter {
    commands: mpsc::Sender<ExporterCommand>,
    address: Option<SocketAddr>,
    tally: Arc<ExporterTally>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
enum ExporterCommand {
    Cardinality(oneshot::Sender<Vec<FamilyCardinality>>),
    Query(CollectorQuery),
    /// Answer the request on this connection.
    ForwardedScrape(UnixStream, ScrapeOrigin),
    /// The sender is dropped when the order was carried out.
    Order(Order, oneshot::Sender<()>),
}

/// Reads the collector, and sends the result.
struct CollectorQuery(Box<dyn FnOnce(&Collector) + Send>);

impl fmt::Debug for CollectorQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CollectorQuery")
    }
}

/// A weak handle for reading the collector, which does not keep the exporter alive.
#[derive(Debug, Clone)]
pub struct CollectorReader(mpsc::WeakSender<ExporterCommand>);

/// A weak handle for passing connections to the exporter, which does not keep it alive.
#[derive(Debug, Clone)]
pub struct ScrapeForwarder(mpsc::WeakSender<ExporterCommand>, ScrapeOrigin);

#[derive(Debug)]
enum Order {
    Remove { labels: Vec<String>, values: Vec<Vec<String>> },
    Restore { labels: Vec<String>, values: Vec<Vec<String>> },
    SetSite(ExpositionSite),
    SetOptions(CollectorOptions),
    Serve(Option<std::net::TcpListener>),
    StopServing,
}

/// Everything that can wake the exporter, besides its connections.
enum ExporterEvent {
    Command(ExporterCommand),
    Tend,
    /// The handle was dropped.
    Stop,
}

impl Exporter {
    /// Starts the thread, which exposes at `site`. Without a listener nothing is served before [`Exporter::serve`]; the
    /// collector is tended nevertheless.
    pub fn spawn(
        listener: Option<std::net::TcpListener>,
        collector: Collector,
        site: ExpositionSite,
    ) -> io::Result<Exporter> {
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

    /// The address of the initial listener.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Counters of its work.
    pub fn counts(&self) -> ExporterCounts {
        self.tally.read()
    }

    /// The number of series of each family, largest first; `None`: the exporter has ended.
    pub fn cardinality(&self) -> impl Future<Output = Option<Vec<FamilyCardinality>>> + Send + use<> {
        // Weak, since the exporter ends with its last sender: a query that is never polled must not keep it alive.
        let commands = self.commands.downgrade();
        async move {
            let (answer, answered) = oneshot::channel();
            commands.upgrade()?.send(ExporterCommand::Cardinality(answer)).await.ok()?;
            answered.await.ok()
        }
    }

    /// A handle for reading the values.
    pub fn collector_reader(&self) -> CollectorReader {
        CollectorReader(self.commands.downgrade())
    }

    /// A handle for scrapes on the gateway's own routes.
    pub fn route_scrapes(&self) -> ScrapeForwarder {
        ScrapeForwarder(self.commands.downgrade(), ScrapeOrigin::Routes)
    }

    /// A handle for scrapes on the admin address.
    pub fn admin_scrapes(&self) -> ScrapeForwarder {
        ScrapeForwarder(self.commands.downgrade(), ScrapeOrigin::Admin)
    }

    /// Ends series with one of these values of a label, or of several labels together: they are exposed once more and
    /// then removed. The future of this and other orders completes when the exporter has recorded it; they are executed
    /// in the order in which they were first polled.
    pub fn remove(&self, labels: Vec<String>, values: Vec<Vec<String>>) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::Remove { labels, values })
    }

    /// Cancels the removal of these values, which are in use (again).
    pub fn restore(&self, labels: Vec<String>, values: Vec<Vec<String>>) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::Restore { labels, values })
    }

    /// Changes the location of the exposition.
    pub fn set_site(&self, site: ExpositionSite) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::SetSite(site))
    }

    /// Changes the collector's options.
    pub fn set_options(&self, options: CollectorOptions) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::SetOptions(options))
    }

    /// Starts to answer scrapes, on this listener too if there is one.
    pub fn serve(&self, listener: Option<std::net::TcpListener>) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::Serve(listener))
    }

    /// Stops accepting scrapes, so that another process can on the same socket: new connections wait for that, and
    /// scrapes over connections within the process are refused. Those in flight finish; everything else continues.
    pub fn stop_serving(&self) -> impl Future<Output = ()> + Send + use<> {
        self.order(Order::StopServing)
    }

    fn order(&self, order: Order) -> impl Future<Output = ()> + Send + use<> {
        let commands = self.commands.downgrade();
        async move {
            // An exporter that has ended needs no orders.
            let Some(commands) = commands.upgrade() else { return };
            let (done, is_done) = oneshot::channel();
            // If it ends meanwhile, the order is dropped.
            let _ = commands.send(ExporterCommand::Order(order, done)).await;
            drop(commands);
            // The error is the signal that it is done.
            let _ = is_done.await;
        }
    }

    /// Whether the thread has ended, which happens only on request, or by a bug.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the exporter and waits; scrapes in flight finish, within five seconds.
    pub fn stop(self) -> thread::Result<()> {
        drop(self.commands);
        self.thread.join()
    }
}

impl CollectorReader {
    /// Runs `query` on the exporter's thread, whose other work waits for it; `None`: the exporter has ended.
    pub async fn read<T: Send + 'static>(&self, query: impl FnOnce(&Collector) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // The caller may have gone meanwhile.
        let query = CollectorQuery(Box::new(move |collector| drop(answer.send(query(collector)))));
        self.0.upgrade()?.send(ExporterCommand::Query(query)).await.ok()?;
        answered.await.ok()
    }
}

impl ScrapeForwarder {
    /// Passes on a connection, whose one request is answered with the exposition, whatever its path. False: that is not
    /// possible now. If there is no place, the connection is closed without an answer. It never blocks.
    pub fn forward(&self, connection: UnixStream) -> bool {
        self.0
            .upgrade()
            .is_some_and(|commands| commands.try_send(ExporterCommand::ForwardedScrape(connection, self.1)).is_ok())
    }
}

/// Runs the thread.
fn run(
    runtime: Runtime,
    listener: Option<TcpListener>,
    source: &Arc<ExpositionSource>,
    commands: mpsc::Receiver<ExporterCommand>,
) {
    let _profiled = Registration::of_current();
    let (end, ended) = watch::channel(false);
    let control_source = source.clone();
    runtime.spawn(async move {
        control(listener, control_source, commands).await;
        end.send_replace(true);
    });
    turns::run(&runtime, source, &ended);
    // No task of the runtime blocks, so there is nothing to wait for.
    runtime.shutdown_background();
}

async fn control(
    listener: Option<TcpListener>,
    source: Arc<ExpositionSource>,
    mut commands: mpsc::Receiver<ExporterCommand>,
) {
    let mut serving = listener.map(|listener| ScrapeTasks::start(listener, &source));
    let mut forwarded_scrapes = ForwardedScrapes::default();
    let mut tend_at = Instant::now();
    let mut is_broken = false;
    loop {
        let event = tokio::select! {
            command = commands.recv() => command.map_or(ExporterEvent::Stop, ExporterEvent::Command),
            () = sleep_until(tend_at) => ExporterEvent::Tend,
        };
        let handled = match event {
            ExporterEvent::Command(command) => handle(command, &source, &mut serving, &mut forwarded_scrapes).await,
            ExporterEvent::Tend => {
                let tended = source.tend().await;
                tend_at = Instant::now() + if matches!(tended, Ok(true)) { TEND_AGAIN } else { TEND_EVERY };
                tended.map(drop)
            }
            ExporterEvent::Stop => break,
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
        // Connections that have not ended by then are closed with the runtime.
        let _ = tokio::time::timeout(STOP_TIMEOUT, connections.wait_until_idle()).await;
    }
}

async fn handle(
    command: ExporterCommand,
    source: &Arc<ExpositionSource>,
    serving: &mut Option<ScrapeTasks>,
    forwarded_scrapes: &mut ForwardedScrapes,
) -> Result<(), Unavailable> {
    // The sender of an order is dropped after it was carried out.
    match command {
        ExporterCommand::Cardinality(answer) => {
            // The caller may have gone meanwhile.
            let _ = answer.send(source.cardinality().await?);
        }
        ExporterCommand::Query(CollectorQuery(query)) => source.read(query).await?,
        ExporterCommand::ForwardedScrape(connection, origin) => forwarded_scrapes.serve(connection, origin, source),
        ExporterCommand::Order(Order::Remove { labels, values }, _done) => source.remove(labels, values)?,
        ExporterCommand::Order(Order::Restore { labels, values }, _done) => source.restore(&labels, &values)?,
        ExporterCommand::Order(Order::SetSite(site), _done) => source.set_site(site)?,
        ExporterCommand::Order(Order::SetOptions(options), _done) => source.set_options(options)?,
        ExporterCommand::Order(Order::Serve(listener), _done) => {
            forwarded_scrapes.is_closed = false;
            let Some(listener) = listener else { return Ok(()) };
            let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            match listener {
                Ok(listener) => *serving = Some(ScrapeTasks::start(listener, source)),
                Err(error) => error!(%error, "exporter: cannot serve; there are no metrics until a restart"),
            }
        }
        ExporterCommand::Order(Order::StopServing, _done) => {
            forwarded_scrapes.is_closed = true;
            if let Some(serving) = serving.take() {
                // Its connections end by themselves.
                serving.end().await;
            }
        }
    }
    Ok(())
}

/// The tasks that answer scrapes.
struct ScrapeTasks {
    stop: watch::Sender<bool>,
    accepting: task::JoinHandle<Connections>,
}

impl ScrapeTasks {
    fn start(listener: TcpListener, source: &Arc<ExpositionSource>) -> ScrapeTasks {
        let (stop, stopping) = watch::channel(false);
        ScrapeTasks { stop, accepting: tokio::spawn(server::serve(listener, source.clone(), stopping)) }
    }

    /// Stops accepting; existing connections finish their work. `None`: it has panicked.
    async fn end(self) -> Option<Connections> {
        self.stop.send_replace(true);
        self.accepting.await.ok()
    }
}

// Scrapes over connections from another thread of the process, for a route of the gateway, or its admin address, that
// serves the metrics.
//
// Such a connection carries one request. Its other end forwards data as fast as the client takes it, so pieces are
// made no faster. The clients of a gateway may be anybody: scrapes on routes have a limit of their own, which reserves
// places for scrapes over the admin address or the exporter's, and each has a deadline.

/// Most concurrent scrapes of each origin.
const SCRAPES_MAX: usize = 16;

/// Deadline of a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(300);

/// Where a scrape arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScrapeOrigin {
    Routes,
    Admin,
}

/// Answers such scrapes.
#[derive(Debug)]
pub(crate) struct ForwardedScrapes {
    /// Indexed by [`ScrapeOrigin`].
    places: [Arc<Semaphore>; 2],
    /// Another process exposes more than this one knows of.
    pub(crate) is_closed: bool,
}

impl Default for ForwardedScrapes {
    fn default() -> ForwardedScrapes {
        ForwardedScrapes { places: std::array::from_fn(|_| Arc::new(Semaphore::new(SCRAPES_MAX))), is_closed: false }
    }
}

impl ForwardedScrapes {
    /// Answers the request on a connection, or closes it.
    pub(crate) fn serve(&self, connection: UnixStream, origin: ScrapeOrigin, source: &Arc<ExpositionSource>) {
        let place = self.places[origin as usize].clone().try_acquire_owned();
        let (false, Ok(place)) = (self.is_closed, place) else { return source.tally.count_refused() };
        let stream = connection.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(connection));
        let (stream, source) = match stream {
            Ok(stream) => (stream, source.clone()),
            Err(error) => return debug!(%error, "exporter: a connection within the process"),
        };
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(|request: Request<Incoming>| {
                let source = &source;
                async move { Ok::<_, Infallible>(answer_scrape(&request, source).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .keep_alive(false)
                .max_buf_size(BUFFER_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), answer);
            match tokio::time::timeout(SCRAPE_TIMEOUT, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "exporter: a scrape within the process failed"),
                Err(_) => debug!("exporter: a scrape within the process took too long"),
            }
        });
    }
}
