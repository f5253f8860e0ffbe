//! The control loop: everything that can wake the main thread, and what it does about it.
//!
//! It owns the workers' handle, the configuration and the logs; the admin server and the signals only send it requests. Nothing
//! here takes long: slow work is done on another thread and comes back as an event.

mod upgrading;

use super::signals::Signals;
use super::start::LOGS_FLUSH_TIMEOUT;
use crate::admin::cardinality::Cardinality;
use crate::admin::context::Question;
use crate::admin::status::{AccessLogStatus, StatusPage, certificates, counted};
use crate::admin::upstreams::UpstreamsSnapshot;
use crate::configuration::kept::{DatastoreTraits, FollowStatus, FollowedRevision, OpenStore, StoreRequest};
use crate::configuration::reload::{ReloadEvent, Reloader};
use crate::configuration::secrets;
use crate::configuration::watch::FileWatch;
use crate::upgrade::{self, PidFile, UpgradeHandover};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use stillgate_acme::Renewals;
use stillgate_device_node::DeviceThread;
use stillgate_door::RunningServer;
use stillgate_health::{Checker, HealthChange};
use stillgate_logs::Logs;
use stillgate_measures::access_log_writer::AccessLogWriter;
use stillgate_measures::limits::LimitsReader;
use stillgate_measures::process_metrics::{DirectoryFacts, EtcdFacts, Facts, SourceFacts};
use stillgate_measures::process_stats::now_unix_ms;
use stillgate_plugin_api::outbox::OutboxCounters;
use stillgate_proxy::access_log::rfc3339;
use stillgate_proxy::{Commander, Counters, Fleet, Inquiry, StartError, WorkerTally};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, Interval, interval, sleep_until, timeout};
use tracing::{error, info, warn};

/// Time for the access log to be written out, after the last request: for a disk or a reader that is slow, and for its thread to
/// get a core.
const ACCESS_LOG_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to wait for the thread that sends for plugins, which has a bound of its own, until it gets a core.
const LOGS_END_TIMEOUT: Duration = LOGS_FLUSH_TIMEOUT.saturating_add(Duration::from_secs(5));

/// How often the workers are checked and the metrics updated.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Everything that can wake the control thread.
enum ControlEvent {
    /// SIGHUP: reload, whether or not the file changed; without a file as SIGTERM.
    Hangup,
    /// SIGTERM, SIGINT or SIGQUIT: finish and end; the second time end at once.
    Terminate(&'static str),
    /// `timeouts.shutdown_delay` after such a signal is over.
    DelayEnded,
    /// SIGUSR1: reopen the access log.
    ReopenLogs,
    /// SIGUSR2: another process of our binary is to take over.
    Upgrade,
    /// The upgrade has come a step further.
    UpgradeStep(upgrade::UpgradeEvent),
    /// The configuration file, or one that it names, may have changed.
    FileTouched,
    /// A question of the admin API.
    Asked(Question),
    /// A reload, or a change of addresses, has come a step further.
    Reload(Box<ReloadEvent>),
    /// Active checks have found that a node's state has changed.
    NodeChanged(Box<HealthChange>),
    /// A certificate was ordered and stored.
    CertificateStored,
    /// A secret of a Vault has changed.
    SecretChanged,
    /// The datastore has changed.
    Stored,
    /// The exporter has carried out its orders.
    OrdersEnded,
    /// A second has passed.
    Second,
    /// All workers have ended, as requested.
    WorkersEnded(Result<(), String>),
}

/// The workers, as the control loop sees them.
enum Workers {
    Serving(Fleet),
    /// Finishing what is in flight; giving the rest away, where another process has taken over.
    Ending {
        ended: JoinHandle<Result<(), StartError>>,
        commander: Commander,
        is_handing_over: bool,
    },
}

/// Owns everything that runs.
pub(crate) struct Control {
    signals: Signals,
    /// `None`: the configuration is not a file.
    watch: Option<FileWatch>,
    questions: mpsc::Receiver<Question>,
    /// The admin address's connections; `None`: not configured, or they were ended.
    admin: Option<RunningServer>,
    /// `None`: no devices are configured, or the thread has ended.
    devices: Option<DeviceThread>,
    reloader: Reloader,
    orders_ended: Arc<Notify>,
    workers: Workers,
    workers_count: usize,
    tally: WorkerTally,
    inquiry: Inquiry,
    checker: Checker,
    certificates: Renewals,
    secrets: watch::Receiver<u64>,
    /// `None`: resources come from the file.
    datastore: Option<Datastore>,
    access_log: Option<AccessLogWriter>,
    /// `None`: the thread has ended, or is being waited for.
    logs: Option<Logs>,
    /// Counts of the entries that it was to send.
    sent: Arc<OutboxCounters>,
    limits: LimitsReader,
    predecessor: UpgradeHandover,
    /// Removed as the process ends; `None` once it is the successor's.
    pid_file: Option<PidFile>,
    /// The signal that ends us, and the time at which the listeners close.
    announced: Option<(&'static str, Instant)>,
    /// What failed, although all workers have ended.
    failure: Option<String>,
    started: Instant,
    is_exporter_lost: bool,
    /// When to check whether all workers are there and what they still hold, and to update the metrics.
    second: Interval,
}

impl Control {
    /// Takes over everything that was started.
    pub(crate) fn new(
        signals: Signals,
        (watch, kept): (Option<FileWatch>, Option<OpenStore>),
        (questions, admin): (mpsc::Receiver<Question>, Option<RunningServer>),
        mut reloader: Reloader,
        (fleet, devices): (Fleet, Option<DeviceThread>),
        (access_log, logs): (Option<AccessLogWriter>, Logs),
        (predecessor, pid_file): (UpgradeHandover, Option<PidFile>),
    ) -> Control {
        let mut checker = Checker::default();
        checker.follow(&reloader.served_plan().plan);
        let mut certificates = Renewals::start(reloader.plans().clone());
        let served = reloader.candidate();
        certificates.follow(&served.loaded, &served.tls);
        Control {
            signals,
            watch,
            questions,
            admin,
            devices,
            // Without metrics this never reports.
            orders_ended: reloader.metering().map(|metering| metering.orders_ended()).unwrap_or_default(),
            limits: LimitsReader::new(reloader.plans().limits.clone()),
            reloader,
            workers_count: fleet.workers(),
            tally: fleet.tally(),
            inquiry: fleet.inquiry(),
            checker,
            certificates,
            secrets: secrets::subscribe_changes(),
            datastore: kept.map(Datastore::new),
            workers: Workers::Serving(fleet),
            access_log,
            sent: logs.counts.clone(),
            logs: Some(logs),
            predecessor,
            pid_file,
            announced: None,
            failure: None,
            started: Instant::now(),
            is_exporter_lost: false,
            second: interval(LOOK_EVERY),
        }
    }

    /// Runs until the gateway has ended; an error says that it ended by a failure.
    pub(crate) async fn run(mut self) -> Result<(), String> {
        loop {
            let event = self.next().await;
            if let ControlFlow::Break(result) = self.handle(event) {
                // This also runs where a worker has failed: connections that the others gave away have to arrive.
                let handed_over = self.finish_handing_over().await;
                self.end_admin().await;
                self.stop_device_api().await;
                self.end_datastore().await;
                self.end_access_log().await;
                self.end_logs().await;
                result?;
                self.end_metrics().await;
                return self.failure.take().map_or(handed_over, Err);
            }
        }
    }

    /// Every arm can be cancelled without losing what it waits for.
    async fn next(&mut self) -> ControlEvent {
        let watch = &mut self.watch;
        let touched = async {
            match watch {
                Some(watch) => watch.wait_for_change().await,
                None => std::future::pending().await,
            }
        };
        let datastore = &mut self.datastore;
        let stored = async {
            match datastore {
                Some(datastore) => datastore.wait_for_change().await,
                None => std::future::pending().await,
            }
        };
        let announced = self.announced;
        let delay_ended = async move {
            match announced {
                Some((_, at)) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let is_deciding = self.predecessor.is_deciding();
        let workers = &mut self.workers;
        let ended = async {
            match workers {
                Workers::Serving(_) => std::future::pending().await,
                Workers::Ending { ended, .. } => ControlEvent::WorkersEnded(match ended.await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                }),
            }
        };
        tokio::select! {
            // Ending takes priority over answering, so that a flood of questions cannot delay it.
            biased;
            signal = self.signals.ending.next() => ControlEvent::Terminate(signal),
            () = delay_ended => ControlEvent::DelayEnded,
            event = ended => event,
            _ = self.second.tick() => ControlEvent::Second,
            Some(()) = self.signals.hangup.recv() => ControlEvent::Hangup,
            Some(()) = self.signals.reopen.recv() => ControlEvent::ReopenLogs,
            Some(()) = self.signals.upgrade.recv() => ControlEvent::Upgrade,
            step = self.predecessor.next() => ControlEvent::UpgradeStep(step),
            () = touched => ControlEvent::FileTouched,
            () = self.orders_ended.notified() => ControlEvent::OrdersEnded,
            change = self.checker.next_change() => ControlEvent::NodeChanged(Box::new(change)),
            () = self.certificates.wait_for_certificate() => ControlEvent::CertificateStored,
            Ok(()) = self.secrets.changed() => ControlEvent::SecretChanged,
            () = stored => ControlEvent::Stored,
            // A successor compares itself with what is served now; later changes are published when that is decided.
            step = self.reloader.next(is_deciding) => ControlEvent::Reload(Box::new(step)),
            Some(question) = self.questions.recv() => ControlEvent::Asked(question),
        }
    }

    fn watch_folders(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.watch_folders();
        }
    }

    fn handle(&mut self, event: ControlEvent) -> ControlFlow<Result<(), String>> {
        match event {
            // A demo whose terminal is closed ends: there is nothing to reload.
            ControlEvent::Hangup if self.watch.is_none() => return self.terminate("SIGHUP"),
            ControlEvent::Hangup => {
                match self.predecessor.is_deciding() {
                    true => info!("SIGHUP: reloading, as soon as it is known which process serves on"),
                    false => info!("SIGHUP: reloading"),
                }
                self.watch_folders();
                self.certificates.retry();
                self.reloader.request(true);
            }
            ControlEvent::CertificateStored => {
                // The folder may have been missing when it was to be watched.
                self.watch_folders();
                self.reloader.request(false);
            }
            ControlEvent::FileTouched | ControlEvent::SecretChanged | ControlEvent::Stored => {
                self.reloader.request(false)
            }
            ControlEvent::Reload(step) => {
                let fleet = match &mut self.workers {
                    Workers::Serving(fleet) => Some(fleet),
                    Workers::Ending { .. } => None,
                };
                self.reloader.handle(*step, fleet);
                if matches!(self.workers, Workers::Serving(_)) {
                    self.checker.follow(&self.reloader.served_plan().plan);
                }
                let served = self.reloader.candidate();
                self.certificates.follow(&served.loaded, &served.tls);
                if let Some(watch) = &mut self.watch {
                    watch.set_others(self.reloader.files());
                }
            }
            ControlEvent::ReopenLogs => match &self.access_log {
                Some(access_log) => access_log.reopen(),
                None => info!("SIGUSR1: there is no access log to reopen"),
            },
            ControlEvent::Upgrade => self.upgrade(),
            ControlEvent::UpgradeStep(step) => self.upgrade_step(step),
            ControlEvent::OrdersEnded => {
                if let Some(metering) = self.reloader.metering() {
                    metering.send_orders();
                }
            }
            ControlEvent::Asked(question) => self.answer(question),
            ControlEvent::NodeChanged(change) => self.report_change(&change),
            ControlEvent::Terminate(signal) => return self.announce(signal),
            ControlEvent::DelayEnded => {
                if let Some((signal, _)) = self.announced.take() {
                    return self.terminate(signal);
                }
            }
            ControlEvent::Second => {
                self.reloader.sweep();
                self.report_metrics();
                // The others would serve on, with less and less; the supervisor restarts the whole process.
                if matches!(&self.workers, Workers::Serving(fleet) if fleet.has_ended()) {
                    error!("a worker has ended, which is a bug; so the gateway ends");
                    return self.terminate("worker lost");
                }
            }
            ControlEvent::WorkersEnded(result) => {
                self.log_cut();
                match &result {
                    Ok(()) => info!("ended"),
                    Err(error) => error!("{error}"),
                }
                return ControlFlow::Break(result);
            }
        }
        ControlFlow::Continue(())
    }

    /// The first signal: with `timeouts.shutdown_delay` health checks see the end before the listeners close.
    fn announce(&mut self, signal: &'static str) -> ControlFlow<Result<(), String>> {
        if self.announced.is_some() {
            return ControlFlow::Break(Err(self.ending_at_once_message(signal)));
        }
        let delay = self.reloader.gateway().timeouts.shutdown_delay;
        if delay.is_zero() || matches!(self.workers, Workers::Ending { .. }) {
            return self.terminate(signal);
        }
        self.predecessor.abandon();
        self.announced = Some((signal, Instant::now() + delay));
        let delay_seconds = delay.as_secs_f64();
        info!(
            delay_seconds,
            "{signal}: health is 503 from now on, and the listeners close after timeouts.shutdown_delay"
        );
        ControlFlow::Continue(())
    }

    fn ending_at_once_message(&self, signal: &str) -> String {
        let open = self.tally.read().requests_in_flight;
        format!("{signal} again: ending at once, with {open} requests in flight")
    }

    /// Logs what the workers have cut off at their end.
    fn log_cut(&self) {
        let Counters { cut_requests: requests, cut_tunnels: tunnels, cut_streams: streams, .. } = self.tally.read();
        if requests + tunnels + streams > 0 {
            warn!(requests, tunnels, streams, "cut off: these did not end in time (timeouts.drain, timeouts.upgrade)");
        }
    }

    fn terminate(&mut self, signal: &str) -> ControlFlow<Result<(), String>> {
        if matches!(self.workers, Workers::Ending { is_handing_over: false, .. }) {
            return ControlFlow::Break(Err(self.ending_at_once_message(signal)));
        }
        self.certificates.stop();
        let deadline = self.reloader.gateway().timeouts.drain;
        let in_flight = self.tally.read().requests_in_flight;
        self.predecessor.abandon();
        match &mut self.workers {
            Workers::Serving(fleet) => fleet.drain(deadline),
            // A second signal ends it at once.
            Workers::Ending { commander, is_handing_over, .. } => {
                *is_handing_over = false;
                commander.hurry(deadline);
            }
        }
        self.await_workers(false);
        // Logged after the workers were notified; each acts on it at its next turn.
        info!(in_flight, deadline_seconds = deadline.as_secs_f64(), "{signal}: finishing what is in flight");
        ControlFlow::Continue(())
    }

    /// From here on the workers are ending.
    fn await_workers(&mut self, is_handing_over: bool) {
        let Workers::Serving(fleet) = &self.workers else { return };
        let commander = fleet.commander();
        let (start, started) = std::sync::mpsc::sync_channel::<Fleet>(1);
        let ended = spawn_blocking(move || match started.recv() {
            Ok(fleet) => fleet.join(),
            // It always sends before it is dropped.
            Err(_) => Ok(()),
        });
        let ending = Workers::Ending { ended, commander, is_handing_over };
        if let Workers::Serving(fleet) = std::mem::replace(&mut self.workers, ending) {
            let _ = start.send(fleet);
        }
    }

    async fn end_access_log(&mut self) {
        // If the process is to end at once, it still has workers, which write to it.
        let has_ended = matches!(&self.workers, Workers::Ending { ended, .. } if ended.is_finished());
        let Some(access_log) = self.access_log.take_if(|_| has_ended) else { return };
        let written = spawn_blocking(|| access_log.finish(ACCESS_LOG_END_TIMEOUT));
        if !matches!(self.signals.ending.unless_asked(written).await, Some(Ok(true))) {
            warn!("the access log's last lines are lost: its reader is too slow");
        }
    }

    /// Requests at the admin address that have arrived get an answer.
    async fn end_admin(&mut self) {
        let has_ended = matches!(&self.workers, Workers::Ending { ended, .. } if ended.is_finished());
        let Some(admin) = self.admin.take_if(|_| has_ended) else { return };
        // From here on these are not answered.
        self.questions.close();
        while self.questions.try_recv().is_ok() {}
        self.signals.ending.unless_asked(admin.end()).await;
    }

    /// Requests of the device API that have arrived get an answer.
    async fn stop_device_api(&mut self) {
        let has_ended = matches!(&self.workers, Workers::Ending { ended, .. } if ended.is_finished());
        let Some(devices) = self.devices.take_if(|_| has_ended) else { return };
        let joined = spawn_blocking(move || devices.end());
        self.signals.ending.unless_asked(joined).await;
    }

    /// All writers have ended; what was written has to be found by the next start.
    async fn end_datastore(&mut self) {
        if let Some(datastore) = self.datastore.take() {
            self.signals.ending.unless_asked(datastore.end()).await;
        }
    }

    /// Sends what plugins have logged, as far as its receivers accept it.
    async fn end_logs(&mut self) {
        let has_ended = matches!(&self.workers, Workers::Ending { ended, .. } if ended.is_finished());
        let Some(logs) = self.logs.take_if(|_| has_ended) else { return };
        let sent = spawn_blocking(move || logs.finish(LOGS_END_TIMEOUT));
        self.signals.ending.unless_asked(sent).await;
    }

    fn answer(&mut self, question: Question) {
        // The sender of the question may have gone meanwhile.
        match question {
            Question::Status(answer) => drop(answer.send(self.status())),
            Question::Cardinality(answer) => match self.reloader.metering() {
                Some(metering) => {
                    let families = metering.cardinality();
                    // It ends with the exporter's answer, which may take its time.
                    let metrics = self.reloader.served_plan().loaded.config.gateway.metrics.clone();
                    tokio::spawn(async move {
                        let known = families.await.zip(metrics);
                        drop(answer.send(known.map(|(families, metrics)| Cardinality::new(families, &metrics))));
                    });
                }
                None => drop(answer.send(None)),
            },
            Question::Upstreams(answer) => {
                let snapshot = UpstreamsSnapshot {
                    plan: self.reloader.served_plan().plan,
                    records: self.checker.records(),
                    unresolved: self.reloader.unresolved_names(),
                };
                let inquiry = self.inquiry.clone();
                // Workers answer when they have time.
                tokio::spawn(async move { drop(answer.send((snapshot, inquiry.ask().await))) });
            }
            Question::Served(answer) => drop(answer.send(self.reloader.served_plan())),
        }
    }

    fn report_change(&mut self, change: &HealthChange) {
        let HealthChange { upstream, endpoint, is_healthy, reason } = change;
        match is_healthy {
            true => info!(%upstream, node = %endpoint.address, reason, "active checks: a node is healthy again"),
            false => warn!(%upstream, node = %endpoint.address, reason, "active checks: a node is unhealthy"),
        }
        if let (Some(metering), Some(endpoints)) = (self.reloader.metering(), self.checker.endpoints(upstream)) {
            metering.report_checked(upstream, endpoint, endpoints);
        }
    }

    fn report_metrics(&mut self) {
        let config = self.reloader.status();
        let facts = Facts {
            generation: config.generation,
            last_reload_successful: config.last_error.is_none(),
            pending_restart: self.reloader.pending_restart().len(),
            rejected: self.reloader.rejected_counts(),
            reloads: self.reloader.times(),
            workers: self.tally.read(),
            acme_failures: self.certificates.failures(),
            dropped_lines: self.access_log.as_ref().map(AccessLogWriter::dropped_lines),
            limits: self.limits.read(),
            source: self.datastore.as_ref().map(Datastore::facts),
            directory: self.devices.as_ref().and_then(|devices| devices.directory.as_ref()).map(DirectoryFacts::read),
        };
        let ends = self.reloader.certificate_ends().clone();
        let ignored = self.reloader.ignored().clone();
        let Some(metering) = self.reloader.metering() else { return };
        metering.tell(&facts);
        metering.report_sent(&self.sent);
        metering.report_certificates(&ends);
        metering.report_ignored(&ignored);
        if metering.is_broken() && !std::mem::replace(&mut self.is_exporter_lost, true) {
            error!(
                "the exporter has ended, which is a bug; requests are served, but there are no metrics until a restart"
            );
        }
    }

    /// The exposition is there until the last request is counted. A scrape in flight is waited for, unless the process is to end at
    /// once.
    async fn end_metrics(&mut self) {
        self.report_metrics();
        let Some(metering) = self.reloader.take_metering() else { return };
        self.signals.ending.unless_asked(spawn_blocking(|| metering.end())).await;
    }

    fn status(&self) -> StatusPage {
        let (connections, requests, tunnels, streams) = counted(&self.tally.read());
        let stored = self.datastore.as_ref().map(Datastore::state);
        StatusPage {
            version: env!("CARGO_PKG_VERSION"),
            source: self.datastore.as_ref().map_or("file", |datastore| datastore.traits.name),
            source_path: self.reloader.source_path(),
            batch_writes_max: self.datastore.as_ref().map(|datastore| datastore.traits.writes_max),
            revision: stored.as_ref().and_then(|_| self.reloader.revision()),
            source_error: stored.as_ref().and_then(FollowedRevision::error),
            source_heard_at: self.datastore.as_ref().and_then(Datastore::heard_unix_ms).map(rfc3339),
            rejected: self.reloader.rejected_status(),
            ignored_plugins: self.reloader.ignored().clone(),
            is_waiting: stored.is_some_and(|stored| stored.revision.is_none()),
            config: self.reloader.status(),
            pending_restart: self.reloader.pending_restart().to_vec(),
            workers: self.workers_count,
            uptime_seconds: self.started.elapsed().as_secs(),
            connections,
            requests,
            tunnels,
            streams,
            devices: self.devices.is_some(),
            devices_error: self.devices.as_ref().and_then(|devices| devices.directory.as_ref()?.error()),
            access_log: self.access_log.as_ref().map(|log| AccessLogStatus { dropped_lines: log.dropped_lines() }),
            certificates: certificates(&self.reloader.candidate(), &self.certificates.states()),
            draining: self.announced.is_some() || matches!(self.workers, Workers::Ending { .. }),
        }
    }
}

// The datastore, as the control loop sees it: a source of changes, which a successor may need.

/// Time for a datastore to end: a snapshot of etcd may have to be written.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A datastore that is followed.
struct Datastore {
    traits: &'static DatastoreTraits,
    stored: watch::Receiver<FollowedRevision>,
    asks: mpsc::Sender<StoreRequest>,
    /// Revision that was last requested to be read.
    revision: Option<u64>,
}

impl Datastore {
    fn new(kept: OpenStore) -> Datastore {
        let mut stored = kept.keeper.stored.subscribe();
        // The datastore may have changed since it was read at the start.
        stored.mark_changed();
        Datastore { traits: kept.keeper.traits, stored, asks: kept.asks, revision: None }
    }

    /// Waits until there is a change to read. May be cancelled without losing anything.
    async fn wait_for_change(&mut self) {
        loop {
            if self.stored.changed().await.is_err() {
                return std::future::pending().await;
            }
            let revision = self.stored.borrow_and_update().revision;
            if revision != self.revision {
                self.revision = revision;
                return;
            }
        }
    }

    /// How it is followed.
    fn state(&self) -> FollowedRevision {
        self.stored.borrow().clone()
    }

    /// When the datastore last answered, in milliseconds since 1970. A store that can be written is in this process.
    fn heard_unix_ms(&self) -> Option<u64> {
        let stored = self.stored.borrow();
        match self.traits.is_embedded && stored.connection == FollowStatus::Good {
            true => Some(now_unix_ms()),
            false => stored.heard_unix_ms,
        }
    }

    /// Values for the metrics.
    fn facts(&self) -> SourceFacts {
        let heard_unix_ms = self.heard_unix_ms();
        let stored = self.stored.borrow();
        // A datastore that a successor has opened is not lost.
        let is_up = !matches!(stored.connection, FollowStatus::Lost(_));
        let etcd = EtcdFacts { newest: stored.newest, modified: stored.modified };
        let etcd = (!self.traits.is_embedded).then_some(etcd);
        SourceFacts { is_up, revision: stored.revision, heard_unix_ms, etcd }
    }

    /// Lets go of it, so that a successor can open it, or takes it again. It is not waited for: a successor tries until it can.
    fn set_released(&self, is_released: bool) {
        let (done, _) = oneshot::channel();
        if let Err(TrySendError::Full(asked)) = self.asks.try_send(StoreRequest::SetReleased(is_released, done)) {
            warn!("the datastore is too busy to be handed over; the upgrade waits for it");
            let asks = self.asks.clone();
            // They are sent in the order of the calls: senders that wait for a place get it one after the other.
            tokio::spawn(async move { drop(asks.send(asked).await) });
        }
    }

    /// Ends it, so that a start finds what was written last.
    async fn end(&self) {
        let (done, ended) = oneshot::channel();
        let ending = async {
            if self.asks.send(StoreRequest::End(done)).await.is_ok() {
                // It answers, or it has ended already.
                let _ = ended.await;
            }
        };
        if timeout(END_TIMEOUT, ending).await.is_err() {
            warn!("the datastore takes too long to end; a start without it may serve an older configuration");
        }
    }
}
