//! Starts the parts in the order that lets each failure be reported before traffic is accepted.
//!
//! Reading, resolving and compiling come first, then resources that others may hold (addresses, files), workers last. From then on
//! the control loop owns everything.

use super::event_loop::Control;
use super::signals::Signals;
use crate::admin;
use crate::admin::context::PageContext;
use crate::admin::resources::ControlSide;
use crate::configuration::background::CONTROL_NICE;
use crate::configuration::kept::{OpenStore, ServedRevision, datastore_state};
use crate::configuration::reading::{Candidate, ConfigReader};
use crate::configuration::reload::{
    NAMES_TIMEOUT, PublicationHook, Reloadable, Reloader, provide_limits, report_route_cache,
};
use crate::configuration::source::{ConfigSource, ReadError};
use crate::configuration::sources::{Source, SourceError, SourceResult};
use crate::configuration::status;
use crate::configuration::status::IgnoredPlugins;
use crate::configuration::status::{report_rejected, report_warnings};
use crate::configuration::watch::{FileStamp, FileWatch};
use crate::configuration::{names, tls_material};
use crate::upgrade::{
    AdminSocket, DeviceSocket, FormerProcess, Inheritance, Launcher, PeerOffer, PidFile, Program, Takeover,
    UpgradeHandover, revision_of, tell_supervisor,
};
use axum::Router;
use ipnet::IpNet;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use stillgate_allocator::return_free_memory;
use stillgate_cluster::registry::FormerDirectory;
use stillgate_config::{
    ApiKeyRole as Written, Config, Errors, Gateway, LoadedConfig, RecordedProfiles, SHORT_KEY_NAME, Transport,
};
use stillgate_device_node as device_node;
use stillgate_device_node::{DeviceThread, NodeParameters};
use stillgate_door::{Access, AdminKey, Bounds, Guard, Hosts, Role, RunningServer, Server, loopback, tls};
use stillgate_limits::Limits;
use stillgate_live::Live;
use stillgate_logs::Logs;
use stillgate_measures::access_log_writer::{AccessLogWriter, OpenError};
use stillgate_measures::logging::{LevelError, RunningLog};
use stillgate_measures::metrics::{MeteringError, MetricsRuntime, MetricsSetup, metrics_of};
use stillgate_measures::process_metrics::{Facts, LimitFacts, ReloadTimes};
use stillgate_measures::process_stats;
use stillgate_plugin_api::{Outbox, Secret, ServingProcess};
use stillgate_profiler::threads::Registration;
use stillgate_profiler::{continuous, heap};
use stillgate_proxy::{
    Counters, Expose, Fleet, FleetMetrics, InheritedSockets, ListenError, PROFILE_PHASES, Plan, PlanCell, PlanError,
    Sockets, StartError, access_log,
};
use stillgate_upstream::{Resolver, ResolverSettings};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::{info, warn};

/// Reloading is one step at a time, and so is ordering certificates; another is for the workers' end, the rest for explaining.
const BLOCKING_THREADS_MAX: usize = 3 + admin::context::EXPLAINED_MAX;

/// How long the exporter may take to begin on the former process's socket: its thread has a low priority.
const EXPOSED_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for plugins that log and trace to send the rest, after the last request.
pub(crate) const LOGS_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

const NO_TAKEOVER: &str = "cannot take over from the former process";

/// The addresses of the gateway, once it is up.
pub(crate) struct Up<'a> {
    /// The addresses that take traffic.
    pub(crate) listeners: &'a [SocketAddr],
    /// The admin API's.
    pub(crate) admin: Option<SocketAddr>,
    /// The metrics'.
    pub(crate) metrics: Option<SocketAddr>,
    /// Authorises requests to the admin API.
    pub(crate) guard: &'a Guard,
}

/// Why the gateway did not start, or ended by a failure.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The configuration text could not be read.
    Read(ReadError),
    /// The configuration is wrong.
    Config(Errors),
    /// Certificates or keys that it names cannot be used.
    Certificates(stillgate_tls::TlsProblems),
    /// The system refuses something essential.
    System(&'static str, io::Error),
    /// The log cannot be opened as configured.
    Log(LevelError),
    /// The system's resolver configuration cannot be used.
    Resolver(String),
    /// The routes cannot be compiled.
    Plan(PlanError),
    /// An address cannot be listened on.
    Listen(ListenError),
    /// TLS of the admin address cannot be set up.
    Admin(stillgate_tls::Problem),
    /// Metrics cannot be set up.
    Metrics(MeteringError),
    /// The access log cannot be written.
    AccessLog(OpenError),
    /// The workers did not start.
    Workers(StartError),
    /// The process that this one was to follow serves more.
    ServesLess(String),
    /// A worker did not end well.
    Ended(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Read(error) => error.fmt(f),
            RunError::Config(errors) => write!(f, "the configuration is refused\n{errors}"),
            RunError::Certificates(refused) => write!(f, "the configuration is refused\n{refused}"),
            RunError::System(what, error) => write!(f, "{what}: {error}"),
            RunError::Log(error) => error.fmt(f),
            RunError::Resolver(error) => write!(f, "cannot resolve names: {error}; see /etc/resolv.conf"),
            RunError::Plan(error) => write!(f, "the routes cannot be compiled\n{error}"),
            RunError::Listen(error) => error.fmt(f),
            RunError::Admin(problem) => problem.fmt(f),
            RunError::Metrics(error) => error.fmt(f),
            RunError::AccessLog(error) => error.fmt(f),
            RunError::Workers(error) => error.fmt(f),
            RunError::ServesLess(why) => write!(f, "not upgraded: {why}"),
            RunError::Ended(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<SourceError> for RunError {
    fn from(refused: SourceError) -> RunError {
        match refused {
            SourceError::Unreadable(error) => RunError::Read(error),
            SourceError::Wrong { errors, .. } => RunError::Config(errors),
        }
    }
}

/// Serves what `source` says until a signal ends it; `announce` is called when clients can connect.
pub(crate) fn serve(source: ConfigSource, announce: impl FnOnce(&Up<'_>)) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("control-work")
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(|error| RunError::System("cannot start the control thread's runtime", error))?;
    // This comes before all else: until then they end the process.
    let signals = {
        let _entered = runtime.enter();
        Signals::take().map_err(|error| RunError::System("cannot take signals", error))?
    };
    // This comes early: later there may be another file at its path.
    let program = Program::own().map_err(|error| RunError::System("cannot find the file of this program", error))?;
    let stamp = FileWatch::stamp(&source);
    let mut opened = source.open(false);
    let begun = opened.begin()?;
    let logging = RunningLog::start(&begun.config.gateway.log).map_err(RunError::Log)?;
    // This comes before the datastore is read: the memory that it takes shows in the first profile.
    sample_heap(&begun.config);
    drop(begun);
    let loaded = match opened.read(None)? {
        SourceResult::Loaded { loaded, .. } => loaded,
        // What was given before: nothing yet.
        SourceResult::Same => return Err(RunError::Read(ReadError::NotFound)),
    };
    // Reading took many times the memory that its result keeps.
    return_free_memory();
    report_warnings(&loaded, None, source.name().as_deref());
    report_rejected(&loaded.rejected, &[]);
    status::warn_of_ignored(&status::ignored_plugins(&loaded.config), &IgnoredPlugins::default());
    let takeover = Takeover::find().map_err(|error| RunError::System(NO_TAKEOVER, error))?;
    if let Some((_, former)) = &takeover {
        if former.had_end_flag {
            opened.require_end_flag()?;
        }
        if let Some(why) = former.refusal(&loaded.config.digest, datastore_state(&loaded).as_ref()) {
            return Err(RunError::ServesLess(why));
        }
    }
    let beginning = StartContext { signals, source, opened, stamp, loaded, logging, program, takeover };
    // Its name is `main`; this is what it is called everywhere else.
    let _profiled = Registration::new("control", None).ok();
    let result = runtime.block_on(async {
        match start(beginning, announce).await? {
            Some(control) => control.run().await.map_err(RunError::Ended),
            None => Ok(()),
        }
    });
    // It is not dropped: that would wait for a reload, or for workers that were ordered to end at once.
    runtime.shutdown_background();
    result
}

/// What exists before anything is started.
struct StartContext {
    signals: Signals,
    source: ConfigSource,
    opened: Box<dyn Source>,
    /// Stamp of the file, from before it was read.
    stamp: Option<FileStamp>,
    loaded: Arc<LoadedConfig>,
    logging: RunningLog,
    program: Program,
    takeover: Option<(Takeover, Inheritance)>,
}

/// Follows the former process in an upgrade; `None`: there is none.
async fn follow_former(
    takeover: Option<Takeover>,
    former: &mut Inheritance,
    plans: &PlanCell,
    fleet: &mut Fleet,
) -> Result<Option<FormerProcess>, RunError> {
    // Sockets that nothing listens on any more are closed by the former process, after it has accepted the connections waiting
    // there.
    former.listeners = InheritedSockets::default();
    let following = takeover.map(|takeover| takeover.serve(former, &plans.load(), fleet)).transpose();
    let mut following = following.map_err(|error| RunError::System(NO_TAKEOVER, error))?;
    // This comes after the workers' threads were started, since a new thread inherits it.
    lower_priority();
    if let Some(following) = &mut following {
        following.went().await;
    }
    Ok(following)
}

/// `None`: the process was asked to end before it served.
async fn start(beginning: StartContext, announce: impl FnOnce(&Up<'_>)) -> Result<Option<Control>, RunError> {
    let StartContext { mut signals, source, opened, stamp, loaded, logging, program, takeover } = beginning;
    let (takeover, mut former) = takeover.map_or_else(Default::default, |(way, former)| (Some(way), former));
    let config = &loaded.config;
    stillgate_acme::prepare(config);
    // This comes before the certificates are read, with the file's former stamp: a change during the start is noticed after it.
    let reading = ConfigReader::new(opened, Some(loaded.clone()), stillgate_acme::prepare);
    let kept = reading.open_store().cloned();
    report_start(&source, config);
    let watch = stamp.and_then(|stamp| FileWatch::of(&source, stamp, &reading.files()));
    let (tls, warnings) = tls_material::load(config, None).map_err(RunError::Certificates)?;
    let tls_warnings = log_warnings(warnings);
    let gateway = &config.gateway;
    raise_descriptors(config);
    // This is the only slow step.
    let Some(resolver) = signals.ending.unless_asked(resolve(config)).await.transpose()? else {
        info!("asked to end before it served");
        return Ok(None);
    };
    let addresses = names::addresses(&resolver, config);
    let prepared = prepare_metrics(config, &mut former)?;
    let recorded = prepared.as_ref().map(MetricsSetup::plan);
    let plan = Arc::new(Plan::build(1, config, &addresses, None, recorded, Some(&tls)).map_err(RunError::Plan)?);
    report_route_cache(&plan);
    let plans = first(&plan, former.limits.take(), gateway);

    let admin = gateway.admin.as_ref().map(|admin| listen_admin(admin.address, former.admin.take())).transpose()?;
    let devices = listen_devices(gateway, &mut former)?;
    let (sinks, access_log) = start_access_log(gateway)?;
    let workers = stillgate_proxy::worker_count(gateway);
    // This comes before clients can connect, which could take all descriptors.
    let (measuring, mut metering) = start_metrics(prepared, workers, &plan, access_log.as_ref())?;
    drop(plan);
    let sockets = Sockets::open(&config.listeners, workers, &mut former.listeners).map_err(RunError::Listen)?;
    let (logs, outboxes) = start_logs(workers)?;
    let sending = (Arc::new(process()), outboxes);
    let mut fleet = Fleet::start(gateway, sockets, plans.clone(), sinks, measuring, sending, return_free_memory)
        .map_err(RunError::Workers)?;
    let (device_access, mut devices) = start_devices(gateway, devices, &mut fleet, takeover.is_some())?;
    let launcher = start_launcher(program)?;
    let following = follow_former(takeover, &mut former, &plans, &mut fleet).await?;

    let made_key = kept.as_ref().and_then(|kept| kept.key.clone());
    let (admin_access, access) = watch::channel(with_made_key(access_of(gateway), made_key.as_deref()));
    let (ask, questions) = mpsc::channel(admin::context::QUESTIONS_MAX);
    let guard = Arc::new(Guard::new(access));
    let live = Live::start(
        metering.as_ref().map(MetricsRuntime::collector_reader),
        fleet.tally(),
        plans.clone(),
        return_free_memory,
    );
    let recent = access_log.as_ref().and_then(AccessLogWriter::recent);
    let api = PageContext::new(ask, &source, kept.clone(), live.clone(), recent, metering.as_ref(), return_free_memory);
    tokio::spawn(admin::fleet::report(api.clone()));
    let server = admin_server(gateway, (&guard, &device_access), api)?;
    let (admin, serving) = admin.map(|(address, listener)| serve_admin(address, listener, server)).transpose()?.unzip();
    expose(metering.as_mut()).await;
    let pid_file = gateway.pid_file.as_deref().and_then(PidFile::write);
    tell_supervisor("READY=1");
    let metrics = metering.as_ref().and_then(MetricsRuntime::address);
    let admin_address = admin.as_ref().and_then(|admin| admin.listener.local_addr().ok());
    // Building Plans takes more memory than they keep.
    return_free_memory();
    announce(&Up { listeners: &fleet.addresses(), admin: admin_address, metrics, guard: &guard });
    serve_all(following, &fleet, devices.as_mut());
    let published = publication_hooks((admin_access, device_access), made_key, kept.as_ref(), live);
    (published)(&loaded.config, plans.load().generation);
    let reloadable = Reloadable { logging, published, prepare: stillgate_acme::prepare, metering };
    let served = Candidate { loaded, tls, tls_warnings, file_errors: Vec::new() };
    let reloader = Reloader::new(source, reading, served, plans, resolver, reloadable);
    let (changes, asked, written) = ((watch, kept), (questions, serving), (access_log, logs));
    let (device_socket, devices) = devices.unzip();
    let predecessor = (UpgradeHandover::new(launcher, admin, device_socket), pid_file);
    Ok(Some(Control::new(signals, changes, asked, reloader, (fleet, devices), written, predecessor)))
}

/// Nothing can fail any more: what the former process has given is read, and it may go.
fn serve_all(mut following: Option<FormerProcess>, fleet: &Fleet, devices: Option<&mut Devices>) {
    let told = following.as_mut().map(FormerProcess::take_broadcast_reports);
    if let (Some((_, devices)), Some(told)) = (devices, told) {
        devices.begin_filling(told);
    }
    if let Some(following) = following {
        fleet.read_all();
        following.serves();
    }
}

/// Samples the heap as configured.
fn sample_heap(config: &Config) {
    heap::sample_every(config.gateway.debug.heap.map(|bytes| bytes as u64));
}

/// Records profiles as configured.
fn record_profiles(config: &Config) {
    let recorded = config.gateway.debug.profiles.as_ref().map(|RecordedProfiles { cpu, keep, bytes, path }| {
        continuous::Settings { hz: *cpu, keep: *keep, bytes_max: *bytes as u64, folder: path.clone() }
    });
    let warn = |error: &io::Error| warn!(%error, "recorded profiles are lost or not removed");
    continuous::switch(recorded, continuous::Hooks { phases: PROFILE_PHASES, give_back: return_free_memory, warn });
}

/// What each published configuration triggers: access rules follow it, and writers that wait for it are answered.
fn publication_hooks(
    (access, device_access): (watch::Sender<Access>, watch::Sender<Access>),
    made_key: Option<Arc<str>>,
    kept: Option<&OpenStore>,
    live: Arc<Live>,
) -> PublicationHook {
    let keeper = kept.map(|kept| kept.keeper.clone());
    Box::new(move |config: &Config, generation: u64| {
        drop(access.send_replace(with_made_key(access_of(&config.gateway), made_key.as_deref())));
        drop(device_access.send_replace(access_of_devices(&config.gateway)));
        sample_heap(config);
        record_profiles(config);
        live.slow.switch(config.gateway.debug.slow);
        if let (Some(keeper), Some(revision)) = (&keeper, revision_of(&config.digest)) {
            keeper.served.send_replace(ServedRevision { revision, generation });
        }
    })
}

/// Metrics go on from what a former process has counted.
fn prepare_metrics(config: &Config, former: &mut Inheritance) -> Result<Option<MetricsSetup>, RunError> {
    let counted = std::mem::take(&mut former.metrics);
    let prepared = metrics_of(config).map(|metrics| MetricsSetup::new(&metrics, counted)).transpose();
    prepared.map_err(RunError::Metrics)
}

/// The writers of the workers, and their reader.
fn start_metrics(
    prepared: Option<MetricsSetup>,
    workers: usize,
    plan: &Plan,
    access_log: Option<&AccessLogWriter>,
) -> Result<(FleetMetrics, Option<MetricsRuntime>), RunError> {
    let writers = prepared.as_ref().map_or(Ok(Vec::new()), |prepared| prepared.writers(workers));
    let writers = writers.map_err(RunError::Metrics)?;
    let metering = prepared.map(|prepared| prepared.start(plan, &at_start(access_log)));
    let metering = metering.transpose().map_err(RunError::Metrics)?;
    Ok(((writers, metering.as_ref().map(expose_by)), metering))
}

/// How workers get scrapes answered.
fn expose_by(metering: &MetricsRuntime) -> Expose {
    let scrapes = metering.route_scrapes();
    Arc::new(move |connection| scrapes.forward(connection))
}

fn start_launcher(program: Program) -> Result<Launcher, RunError> {
    Launcher::start(program).map_err(|error| RunError::System("cannot start the thread for upgrades", error))
}

fn start_logs(workers: usize) -> Result<(Logs, Vec<Outbox>), RunError> {
    Logs::start(workers, stillgate_plugins::TABLE.names(), LOGS_FLUSH_TIMEOUT)
        .map_err(|error| RunError::System("cannot start the thread for logs of plugins", error))
}

/// The process as the entries of logging plugins name it.
fn process() -> ServingProcess {
    ServingProcess {
        hostname: process_stats::hostname().into(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Logs warnings, and returns them as they are logged.
fn log_warnings(warnings: Vec<stillgate_tls::Problem>) -> Vec<String> {
    let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    lines.iter().for_each(|line| warn!("{line}"));
    lines
}

fn report_start(source: &ConfigSource, config: &Config) {
    info!(
        version = env!("CARGO_PKG_VERSION"),
        digest = config.digest,
        routes = config.routes.len(),
        upstreams = config.upstreams.len(),
        file = source.name(),
        "starting"
    );
}

/// The cell where workers find the first Plan, with the former process's table of limits or, if it needs one, another.
fn first(plan: &Arc<Plan>, limits: Option<Limits>, gateway: &Gateway) -> Arc<PlanCell> {
    let plans = PlanCell::new(plan.clone());
    if let Some(limits) = limits {
        plans.inherit_limits(limits);
    }
    provide_limits(&plans, plan, gateway);
    Arc::new(plans)
}

/// Answers scrapes, on a former process's socket from now on.
async fn expose(metering: Option<&mut MetricsRuntime>) {
    let Some(metering) = metering else { return };
    // It is a task of its own, so that it goes on where nothing waits for it.
    let served = tokio::spawn(metering.serve());
    if timeout(EXPOSED_TIMEOUT, served).await.is_err() {
        warn!("the exporter is slow to begin; going on, and scrapes wait until it does");
    }
}

/// Initial values of the metrics, before anything has happened.
fn at_start(access_log: Option<&AccessLogWriter>) -> Facts {
    Facts {
        generation: 1,
        last_reload_successful: true,
        pending_restart: 0,
        rejected: Default::default(),
        reloads: ReloadTimes::now(),
        workers: Counters::default(),
        acme_failures: 0,
        dropped_lines: access_log.map(AccessLogWriter::dropped_lines),
        limits: LimitFacts::default(),
        source: None,
        directory: None,
    }
}

async fn resolve(config: &Config) -> Result<Resolver, RunError> {
    let mut resolver = Resolver::new(ResolverSettings::default()).map_err(RunError::Resolver)?;
    resolver.set_names(names::of(config));
    // Names without addresses are reported right below.
    let _unresolved = resolver.resolve_all(NAMES_TIMEOUT).await;
    names::warn_unresolved(&resolver);
    Ok(resolver)
}

fn raise_descriptors(config: &Config) {
    match stillgate_proxy::raise_fd_limit() {
        Ok(limit) => report_descriptors(limit, config),
        Err(error) => warn!(%error, "the limit of file descriptors stays as it is"),
    }
}

/// Warns of a low limit: clients alone could take all descriptors, and then none is left to reach a node with.
fn report_descriptors(limit: Option<u64>, config: &Config) {
    let gateway = &config.gateway;
    let has_udp = config.listeners.iter().any(|listener| listener.kind.transport() == Transport::Udp);
    let sessions = if has_udp { gateway.stream_proxy.udp_sessions_per_worker } else { 0 };
    let needed =
        (stillgate_proxy::worker_count(gateway) * (2 * gateway.limits.connections_per_worker + sessions)) as u64;
    match limit {
        Some(limit) if limit < needed => warn!(
            limit,
            needed,
            "the limit of open files is {limit}, but gateway.limits.connections_per_worker needs {needed}; raise \
             LimitNOFILE (ulimit -n), or lower the key"
        ),
        limit => info!(limit, "file descriptors"),
    }
}

/// The address as configured, and its socket: the former process's where that has the same.
fn listen_admin(
    address: SocketAddr,
    former: Option<(SocketAddr, TcpListener)>,
) -> Result<(SocketAddr, TcpListener), RunError> {
    let listener = match former.filter(|(before, _)| *before == address) {
        Some((_, listener)) => Ok(listener),
        None => TcpListener::bind(address),
    };
    let listener = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((address, listener))
    });
    listener.map_err(|error| admin_refused(address, error))
}

fn admin_refused(address: SocketAddr, error: io::Error) -> RunError {
    refused("gateway.admin.address", address, error)
}

/// Sockets of the node of devices, and their addresses as configured.
struct DevicesListening {
    api: (SocketAddr, TcpListener),
    peers: Option<(SocketAddr, device_node::PeerListener)>,
}

fn listen_devices(gateway: &Gateway, former: &mut Inheritance) -> Result<Option<DevicesListening>, RunError> {
    let Some(address) = gateway.devices.as_ref().map(|devices| devices.address) else { return Ok(None) };
    let api = device_node::listen(address, former.devices.take()).map_err(|error| devices_refused(address, error))?;
    Ok(Some(DevicesListening { api, peers: listen_peers(gateway, former.peers.take())? }))
}

/// The socket that other nodes connect to, its address as configured, and what the former process leaves of its directory.
fn listen_peers(
    gateway: &Gateway,
    former: Option<(SocketAddr, TcpListener, FormerDirectory)>,
) -> Result<Option<(SocketAddr, device_node::PeerListener)>, RunError> {
    let peer = gateway.devices.as_ref().and_then(|devices| devices.peer.as_ref());
    let Some(address) = peer.map(|peer| peer.address) else { return Ok(None) };
    let (former, directory) = former.map(|(address, listener, directory)| ((address, listener), directory)).unzip();
    let listening = device_node::listen(address, former);
    let (address, listener) = listening.map_err(|error| refused("gateway.devices.peer.address", address, error))?;
    Ok(Some((address, device_node::PeerListener { listener, former: directory })))
}

fn devices_refused(address: SocketAddr, error: io::Error) -> RunError {
    refused("gateway.devices.address", address, error)
}

fn refused(key: &str, address: SocketAddr, error: io::Error) -> RunError {
    let error = StartError::Bind { address, error };
    RunError::Listen(ListenError { key: key.to_owned(), error })
}

/// The socket that back-ends send requests about devices to, and the thread that answers.
type Devices = (DeviceSocket, DeviceThread);

/// Starts the thread of devices, before priorities are lowered, and returns the sender of its access rules.
fn start_devices(
    gateway: &Gateway,
    listening: Option<DevicesListening>,
    fleet: &mut Fleet,
    follows: bool,
) -> Result<(watch::Sender<Access>, Option<Devices>), RunError> {
    let (told, access) = watch::channel(access_of_devices(gateway));
    let (Some(keys), Some(listening), Some(queues)) = (&gateway.devices, listening, fleet.take_devices()) else {
        return Ok((told, None));
    };
    let DevicesListening { api: (address, listener), peers } = listening;
    let tls = keys.tls.as_ref().map(|tls| tls::server_config(tls, tls::DEVICES));
    let tls = tls.transpose().map_err(RunError::Admin)?;
    let fail = |error| devices_refused(address, error);
    let kept = listener.try_clone().map_err(fail)?;
    let peer_kept = peers.as_ref().map(|(address, peer)| Ok((*address, peer.listener.try_clone()?))).transpose();
    let peer_kept = peer_kept.map_err(fail)?;
    let peer = peers.map(|(_, peer)| peer);
    let starting = NodeParameters { queues, listener, access, tls, peer, follows };
    let thread = DeviceThread::start(keys, starting);
    let mut thread = thread.map_err(|error| RunError::System("cannot start the thread of devices", error))?;
    let peer = peer_kept.zip(thread.directory.clone());
    let peer = peer.map(|((address, listener), directory)| PeerOffer { address, listener, directory });
    let socket = DeviceSocket { address, listener: kept, leaving: thread.take_leaving(), peer };
    Ok((told, Some((socket, thread))))
}

/// The pages of the admin address.
fn admin_server(
    gateway: &Gateway,
    (guard, device_access): (&Arc<Guard>, &watch::Sender<Access>),
    api: PageContext,
) -> Result<Server<Router>, RunError> {
    let tls = gateway.admin.as_ref().and_then(|admin| admin.tls.as_ref());
    let tls = tls.map(|tls| tls::server_config(tls, tls::ADMIN)).transpose().map_err(RunError::Admin)?;
    let mut pages = admin::pages::pages(&api);
    pages.extend(admin::devices::pages(gateway, &device_access.subscribe()));
    let router = stillgate_admin::router(Arc::new(ControlSide::new(api)), guard.clone(), pages);
    Ok(Server { answers: router, tls, bounds: Bounds::ADMIN })
}

fn serve_admin(
    address: SocketAddr,
    listener: TcpListener,
    server: Server<Router>,
) -> Result<(AdminSocket, RunningServer), RunError> {
    let fail = |error| admin_refused(address, error);
    let served = listener.try_clone().and_then(tokio::net::TcpListener::from_std).map_err(fail)?;
    let serving = stillgate_door::serve(served, server);
    Ok((AdminSocket { address, listener, serving: serving.accept_handle() }, serving))
}

fn start_access_log(gateway: &Gateway) -> Result<(Vec<access_log::Sink>, Option<AccessLogWriter>), RunError> {
    let Some(access_log) = &gateway.access_log else {
        return Ok((Vec::new(), None));
    };
    // Only changes of resources use them.
    let recent = (!gateway.config.source.is_file()).then(Arc::default);
    let workers = stillgate_proxy::worker_count(gateway);
    let (sinks, drain) = access_log::channel(&access_log.format, workers);
    let writer = AccessLogWriter::start(access_log.destination.clone(), drain, recent).map_err(RunError::AccessLog)?;
    Ok((sinks, Some(writer)))
}

fn lower_priority() {
    // On Linux this is about the calling thread only; those it starts from now on inherit it.
    if let Err(error) = rustix::process::setpriority_process(None, CONTROL_NICE) {
        warn!(%error, "the control thread keeps its priority");
    }
}

// Access rules of the admin address and of the device API, as the `gateway:` section defines them.

/// Access rules of the admin address, from the `gateway:` section.
pub(crate) fn access_of(gateway: &Gateway) -> Access {
    let admin = gateway.admin.as_ref();
    let names = admin.map_or(&[][..], |admin| &admin.hosts).iter().cloned();
    let hosts = Hosts::new("gateway.admin.hosts", names.chain([process_stats::hostname()]));
    let keys = admin.map_or_else(Vec::new, |admin| keys_of(admin.key.as_ref(), &admin.keys));
    let allow = admin.and_then(|admin| admin.allow.clone()).unwrap_or_else(loopback);
    let is_loopback_reader = keys.is_empty();
    Access { section: "gateway.admin", is_loopback_reader, is_loopback_writer: false, keys, allow, hosts }
}

/// Access rules of the device API: with a key it is open to every address, as back-ends need it; without one, to loopback only.
pub(crate) fn access_of_devices(gateway: &Gateway) -> Access {
    let devices = gateway.devices.as_ref();
    let names = devices.map_or(&[][..], |devices| &devices.hosts).iter().cloned();
    let hosts = Hosts::new("gateway.devices.hosts", names.chain([process_stats::hostname()]));
    let keys = devices.map_or_else(Vec::new, |devices| keys_of(devices.key.as_ref(), &devices.keys));
    let is_open = keys.is_empty();
    let everywhere = || if is_open { loopback() } else { all_addresses() };
    let allow = devices.and_then(|devices| devices.allow.clone()).unwrap_or_else(everywhere);
    Access { section: "gateway.devices", is_loopback_reader: is_open, is_loopback_writer: is_open, keys, allow, hosts }
}

fn all_addresses() -> Vec<IpNet> {
    let v4 = IpNet::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let v6 = IpNet::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    v4.into_iter().chain(v6).collect()
}

fn keys_of(short: Option<&Secret>, listed: &[stillgate_config::AdminKey]) -> Vec<Arc<AdminKey>> {
    let short = short.map(|key| (SHORT_KEY_NAME, key.reveal(), Role::Admin));
    let listed = listed.iter().map(|key| {
        let role = match key.role {
            Written::Admin => Role::Admin,
            Written::Viewer => Role::Viewer,
        };
        (key.name.as_str(), key.key.reveal(), role)
    });
    let key =
        |(name, key, role): (&str, &str, Role)| Arc::new(AdminKey { name: name.to_owned(), key: key.to_owned(), role });
    short.into_iter().chain(listed).map(key).collect()
}

/// Adds the key that was generated at the first start, where none is configured.
pub(crate) fn with_made_key(mut access: Access, key: Option<&str>) -> Access {
    if let Some(key) = key.filter(|_| access.keys.is_empty()) {
        access.keys.push(Arc::new(AdminKey {
            name: SHORT_KEY_NAME.to_owned(),
            key: key.to_owned(),
            role: Role::Admin,
        }));
    }
    access
}
