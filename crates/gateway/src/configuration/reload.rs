//! From a changed file or a changed DNS answer to a published Plan, one step at a time.
//!
//! Nothing is swapped in before it is complete: read and validated, its new names resolved, compiled. Slow work runs on a thread of
//! its own, so that the control loop goes on answering meanwhile; requests during a step are remembered (not queued: ten touches of
//! the file are one reload) and done next. A file that is refused changes nothing but the status, and so does one with an address
//! that cannot be bound.
//!
//! ```text
//!  request() ──▶ Reading ──▶ Resolving ──▶ Building ──▶ publish ──▶ Idle
//!                  │ refused or unchanged      │ refused             ▲
//!                  └───────────────────────────┴─────────────────────┘
//!  a name's addresses changed ───────────▶ Building ──▶ publish, under the same generation
//!  certificates changed beside what is refused ──┘
//! ```

use super::background::{self, Waits};
use super::kept::DatastoreKind;
use super::reading::{Candidate, ConfigReader, ReadResult, SourceReading};
use super::restart::keys_that_need_restart;
use super::source::ConfigSource;
use super::sources::millis;
use super::status;
use super::status::IgnoredPlugins;
use super::status::{ConfigStatus, LastError, RejectedStatus, now_rfc3339};
use super::status::{report_rejected, report_warnings};
use super::{names, tls_material};
use crate::upgrade::revision_of;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{Config, Gateway, LoadedConfig, ResourceKind};
use stillgate_measures::logging::RunningLog;
use stillgate_measures::metrics::{MetricsRuntime, PendingPlan};
use stillgate_measures::process_metrics::ReloadTimes;
use stillgate_measures::process_stats::now_unix_ms;
use stillgate_proxy::{Fleet, MatchCost, Plan, PlanCell, PlanError};
use stillgate_tls::Material;
use stillgate_upstream::{AddressChange, Resolver, UnresolvedName};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

/// Time for new names to be resolved before a configuration is published without their addresses.
pub(crate) const NAMES_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for new names while other changes are waiting.
const NAMES_TIMEOUT_WHILE_OTHERS_WAIT: Duration = Duration::from_millis(500);

/// Called with a configuration that is published, and its number.
pub(crate) type PublicationHook = Box<dyn Fn(&Config, u64)>;

/// The parts of the process besides the Plan that follow a reload.
pub(crate) struct Reloadable {
    /// Takes over `gateway.log.level`.
    pub(crate) logging: RunningLog,
    /// Notifies those that follow what is published.
    pub(crate) published: PublicationHook,
    /// Creates what must exist before the files of a configuration are watched.
    pub(crate) prepare: fn(&Config),
    /// Takes over the part of `gateway.metrics` that needs no restart; `None`: the process was started without metrics.
    pub(crate) metering: Option<MetricsRuntime>,
}

/// A Plan and what it was built from.
pub(crate) struct ServedPlan {
    pub(crate) plan: Arc<Plan>,
    pub(crate) loaded: Arc<LoadedConfig>,
}

/// Owns the configuration that is served, and all steps to the next one.
pub(crate) struct Reloader {
    source: ConfigSource,
    plans: Arc<PlanCell>,
    resolver: Resolver,
    reloadable: Reloadable,
    served: Arc<LoadedConfig>,
    /// The certificates that `served` is served with.
    tls: Arc<Material>,
    /// The last warnings about certificates that were logged; they are not repeated.
    tls_warnings: Vec<String>,
    /// Plugins that `served` is served without.
    ignored: IgnoredPlugins,
    /// When those certificates end.
    certificate_ends: Arc<BTreeMap<String, i64>>,
    /// `None`: it is in use.
    reading: Option<Box<ConfigReader>>,
    /// The files besides the configuration's own that may change what is read.
    files: BTreeSet<PathBuf>,
    /// Whether a version of the file ended with `#END`, so that later ones must.
    had_end_flag: bool,
    /// What the process was started with; some of it holds until its end.
    started: Gateway,
    /// The keys that differ from it, and so take effect at the next start.
    pending_restart: Vec<&'static str>,
    loaded_at: String,
    last_error: Option<LastError>,
    times: ReloadTimes,
    /// Digest of the text that was last looked at, good or bad. `None`: it could not be read.
    looked_at: Option<String>,
    work: ReloadWork,
    wanted: FollowUp,
    retired: RetiredPlans,
    /// Garbage, to be freed where that delays nothing.
    garbage: Garbage,
}

/// The work in progress.
enum ReloadWork {
    Idle,
    /// The flag says whether a user requested it, and should see the same errors again.
    Reading(JoinHandle<(Box<ConfigReader>, SourceReading)>, bool),
    Resolving {
        next: Candidate,
        since: Instant,
    },
    Building(JoinHandle<BuildResult>, Option<Box<PendingPlan>>),
}

/// The result of building.
type BuildResult = (Candidate, Result<Arc<Plan>, PlanError>);

/// The work that follows it.
#[derive(Default)]
struct FollowUp {
    /// Read the file; `Some(true)`: and publish it even if it is the same.
    reload: Option<bool>,
    /// Check the certificates of what is served: what was to replace it is not published.
    certificates: bool,
    /// Addresses, or certificates, changed since the last build began.
    parts: bool,
}

/// What can happen to a [`Reloader`].
pub(crate) enum ReloadEvent {
    /// Reading has ended.
    Read(Result<(Box<ConfigReader>, SourceReading), JoinError>),
    /// New names are resolved, or their time is up.
    NamesSettled,
    /// Building has ended.
    Built(Result<BuildResult, JoinError>),
    /// A name has other addresses.
    AddressesChanged(AddressChange),
}

impl Reloader {
    /// Begins with what `plans` holds, which was built from `served`.
    pub(crate) fn new(
        source: ConfigSource,
        reading: ConfigReader,
        served: Candidate,
        plans: Arc<PlanCell>,
        resolver: Resolver,
        reloadable: Reloadable,
    ) -> Reloader {
        let Candidate { loaded: served, tls, tls_warnings, .. } = served;
        Reloader {
            source,
            tls_warnings,
            plans,
            resolver,
            reloadable,
            started: served.config.gateway.clone(),
            looked_at: Some(served.config.digest.clone()),
            pending_restart: Vec::new(),
            ignored: status::ignored_plugins(&served.config),
            served,
            certificate_ends: ends(&tls),
            tls,
            files: reading.files(),
            had_end_flag: reading.had_end_flag(),
            reading: Some(Box::new(reading)),
            loaded_at: now_rfc3339(),
            last_error: None,
            times: ReloadTimes::now(),
            work: ReloadWork::Idle,
            wanted: FollowUp::default(),
            retired: RetiredPlans::default(),
            garbage: Garbage::default(),
        }
    }

    /// The `gateway:` section that holds now.
    pub(crate) fn gateway(&self) -> &Gateway {
        &self.served.config.gateway
    }

    /// The keys of what is served that wait for the next start.
    pub(crate) fn pending_restart(&self) -> &[&'static str] {
        &self.pending_restart
    }

    /// The files to be watched besides the configuration's own.
    pub(crate) fn files(&self) -> &BTreeSet<PathBuf> {
        &self.files
    }

    /// Whether a version of the file ended with `#END`, so that a successor may not read one without it.
    pub(crate) fn had_end_flag(&self) -> bool {
        self.had_end_flag
    }

    /// What is served right now.
    pub(crate) fn served_plan(&self) -> ServedPlan {
        ServedPlan { plan: self.plans.load(), loaded: self.served.clone() }
    }

    /// The configuration that is served, with its certificates.
    pub(crate) fn candidate(&self) -> Candidate {
        let (loaded, tls) = (self.served.clone(), self.tls.clone());
        Candidate { loaded, tls, tls_warnings: Vec::new(), file_errors: Vec::new() }
    }

    /// When the certificates that are served end, in seconds since 1970, by the ids of their entries; the same one until they
    /// are others.
    pub(crate) fn certificate_ends(&self) -> &Arc<BTreeMap<String, i64>> {
        &self.certificate_ends
    }

    /// Where workers find the Plan.
    pub(crate) fn plans(&self) -> &Arc<PlanCell> {
        &self.plans
    }

    /// How many resources of each kind are rejected, for the metrics.
    pub(crate) fn rejected_counts(&self) -> [u32; ResourceKind::COUNT] {
        let mut counts = [0; ResourceKind::COUNT];
        self.served.rejected.iter().for_each(|rejected| counts[rejected.kind as usize] += 1);
        counts
    }

    /// Plugins that requests are served without.
    pub(crate) fn ignored(&self) -> &IgnoredPlugins {
        &self.ignored
    }

    /// Times for the metrics.
    pub(crate) fn times(&self) -> ReloadTimes {
        self.times
    }

    /// State for the status page.
    pub(crate) fn status(&self) -> ConfigStatus {
        let plan = self.plans.load();
        ConfigStatus {
            generation: plan.generation,
            digest: plan.digest.clone(),
            loaded_at: self.loaded_at.clone(),
            last_error: self.last_error.clone(),
        }
    }

    /// The revision of the datastore that is served; `None`: no datastore is configured.
    pub(crate) fn revision(&self) -> Option<u64> {
        revision_of(&self.served.config.digest)
    }

    /// The resources that are not served as they were put, for the status page.
    pub(crate) fn rejected_status(&self) -> Vec<RejectedStatus> {
        self.served.rejected.iter().map(RejectedStatus::from).collect()
    }

    /// Where the configuration is: its file, or the address of its datastore; `None`: it has no name.
    pub(crate) fn source_path(&self) -> Option<String> {
        let gateway = self.gateway();
        match DatastoreKind::of(gateway) {
            None => self.source.name(),
            Some(kind) => Some(kind.address(gateway)),
        }
    }

    /// The names of nodes that have no address, and why.
    pub(crate) fn unresolved_names(&self) -> HashMap<String, String> {
        self.resolver.unresolved().into_iter().map(|UnresolvedName { name, reason }| (name, reason)).collect()
    }

    /// The metrics; `None`: they are disabled.
    pub(crate) fn metering(&mut self) -> Option<&mut MetricsRuntime> {
        self.reloadable.metering.as_mut()
    }

    /// Ends with what only the end of the process takes away.
    pub(crate) fn take_metering(&mut self) -> Option<MetricsRuntime> {
        self.reloadable.metering.take()
    }

    /// Requests that the file is read; where `even_if_same`, also published if it is the same.
    pub(crate) fn request(&mut self, even_if_same: bool) {
        let before = self.wanted.reload.unwrap_or(false);
        self.wanted.reload = Some(before || even_if_same);
        self.begin();
    }

    /// Waits for the next step; where `is_paused`, nothing is published. May be cancelled without losing anything.
    pub(crate) async fn next(&mut self, is_paused: bool) -> ReloadEvent {
        let resolver = &mut self.resolver;
        match &mut self.work {
            ReloadWork::Idle => ReloadEvent::AddressesChanged(resolver.next_change().await),
            ReloadWork::Reading(task, _) => tokio::select! {
                read = task => ReloadEvent::Read(read),
                change = resolver.next_change() => ReloadEvent::AddressesChanged(change),
            },
            ReloadWork::Resolving { since, .. } => {
                let bound = if self.wanted.reload.is_some() { NAMES_TIMEOUT_WHILE_OTHERS_WAIT } else { NAMES_TIMEOUT };
                let left = bound.saturating_sub(since.elapsed());
                // Names still without addresses are reported when it is published.
                let _unresolved = resolver.resolve_all(left).await;
                ReloadEvent::NamesSettled
            }
            ReloadWork::Building(task, _) => tokio::select! {
                built = task, if !is_paused => ReloadEvent::Built(built),
                change = resolver.next_change() => ReloadEvent::AddressesChanged(change),
            },
        }
    }

    /// Takes in a step and begins what follows from it. Without a fleet nothing is bound any more.
    pub(crate) fn handle(&mut self, step: ReloadEvent, fleet: Option<&mut Fleet>) {
        match step {
            ReloadEvent::Read(Ok((reading, look))) => {
                self.files = reading.files();
                self.files.append(&mut tls_material::files(&self.served.config));
                self.had_end_flag = reading.had_end_flag();
                self.reading = Some(reading);
                self.take_read(look.read);
                if let Some(tls) = look.renewed {
                    info!("certificates renewed; the configuration stays the one before");
                    self.set_certificates(tls);
                    self.wanted.parts = true;
                }
            }
            ReloadEvent::Built(Ok((next, built))) => self.take_built(next, built, fleet),
            ReloadEvent::Read(Err(error)) => {
                self.work = ReloadWork::Idle;
                self.refuse(vec![format!("loading failed, which is a bug: {error}")]);
            }
            ReloadEvent::Built(Err(error)) => {
                self.work = ReloadWork::Idle;
                self.give_up(vec![format!("compiling failed, which is a bug: {error}")]);
            }
            ReloadEvent::NamesSettled => {
                if let ReloadWork::Resolving { next, .. } = std::mem::replace(&mut self.work, ReloadWork::Idle) {
                    let generation = self.plans.load().generation + 1;
                    self.build(generation, next);
                }
            }
            ReloadEvent::AddressesChanged(change) => {
                info!(name = change.name, addresses = ?change.addresses, "addresses changed");
                self.wanted.parts = true;
            }
        }
        self.retired.sort_out(&mut self.garbage);
        self.begin();
    }

    /// Begins what is wanted, unless a step is in progress.
    fn begin(&mut self) {
        if !matches!(self.work, ReloadWork::Idle) {
            return;
        }
        let reload = self.wanted.reload.take();
        if std::mem::take(&mut self.wanted.certificates) || reload.is_some() {
            let looked_at = self.looked_at.clone();
            // If a step was lost to a bug, the next one starts over.
            let begin_anew = || {
                let source = self.source.open(self.had_end_flag);
                Box::new(ConfigReader::new(source, None, self.reloadable.prepare))
            };
            let mut reading = self.reading.take().unwrap_or_else(begin_anew);
            let (served, waits) = (self.candidate(), self.waits());
            let task = spawn_blocking(move || {
                let look = background::run(waits, || match reload {
                    Some(true) => reading.look(None, &served),
                    Some(false) => reading.look(looked_at.as_deref(), &served),
                    None => reading.look_at_served(&served),
                });
                (reading, look)
            });
            self.work = ReloadWork::Reading(task, reload == Some(true));
        } else if self.wanted.parts {
            let generation = self.plans.load().generation;
            let served = self.candidate();
            self.build(generation, served);
        }
    }

    /// What waits for the next configuration.
    fn waits(&self) -> Waits {
        if self.revision().is_some() { Waits::Writer } else { Waits::Nobody }
    }

    fn take_read(&mut self, read: ReadResult) {
        let is_asked = matches!(std::mem::replace(&mut self.work, ReloadWork::Idle), ReloadWork::Reading(_, true));
        match read {
            ReadResult::Unchanged => debug!("configuration unchanged"),
            ReadResult::Refused { digest, errors } => {
                self.looked_at = digest;
                if is_asked || !self.is_told(&errors) {
                    self.refuse(errors);
                }
            }
            ReadResult::Good(next) => {
                let loaded = &next.loaded;
                self.looked_at = Some(loaded.config.digest.clone());
                report_warnings(loaded, Some(&self.served), self.source.name().as_deref());
                let is_new = |warning: &&String| !self.tls_warnings.contains(warning);
                next.tls_warnings.iter().filter(is_new).for_each(|warning| warn!("{warning}"));
                self.tls_warnings.clone_from(&next.tls_warnings);
                // The names of what is served are kept until it is replaced.
                let mut names = names::of(&loaded.config);
                names.append(&mut names::of(&self.served.config));
                self.resolver.set_names(names);
                self.work = ReloadWork::Resolving { next, since: Instant::now() };
            }
        }
    }

    fn build(&mut self, generation: u64, next_served: Candidate) {
        self.wanted.parts = false;
        let config = &next_served.loaded.config;
        let addresses = names::addresses(&self.resolver, config);
        let previous = self.plans.load();
        let metering = self.reloadable.metering.as_ref();
        let next = match metering.map(|metering| metering.next(config)).transpose() {
            Ok(next) => next,
            Err(error) => return self.give_up(vec![format!("gateway.metrics: {error}")]),
        };
        let recorded = next.as_ref().map(PendingPlan::plan);
        let garbage = std::mem::take(&mut self.garbage);
        let (plans, waits) = (self.plans.clone(), self.waits());
        let task = spawn_blocking(move || {
            let plan = background::run(waits, || {
                let began = std::time::Instant::now();
                drop(garbage);
                let free_ms = millis(began);
                let Candidate { loaded, tls, .. } = &next_served;
                let plan = Plan::build(generation, &loaded.config, &addresses, Some(&previous), recorded, Some(tls));
                debug!(free_ms, build_ms = millis(began) - free_ms, "plan built");
                if let Ok(plan) = &plan {
                    provide_limits(&plans, plan, &loaded.config.gateway);
                }
                plan
            });
            (next_served, plan.map(Arc::new))
        });
        self.work = ReloadWork::Building(task, next.map(Box::new));
    }

    fn take_built(&mut self, candidate: Candidate, built: Result<Arc<Plan>, PlanError>, fleet: Option<&mut Fleet>) {
        let next = match std::mem::replace(&mut self.work, ReloadWork::Idle) {
            ReloadWork::Building(_, next) => next,
            _ => None,
        };
        match built {
            Ok(plan) => {
                let reloaded = plan.generation != self.plans.load().generation;
                let config = &candidate.loaded.config;
                // This comes before anything is published: an address that cannot be bound leaves everything as it was.
                let opened = fleet.filter(|_| reloaded).map(|fleet| {
                    let opened = fleet.open_listeners(&config.listeners);
                    opened.map(|opened| (fleet, opened))
                });
                let opened = match opened.transpose() {
                    Ok(opened) => opened,
                    Err(error) => return self.give_up(vec![error.to_string()]),
                };
                let replaced = self.plans.publish(plan.clone());
                if let Some((fleet, opened)) = opened {
                    fleet.listen(opened, config.gateway.timeouts.drain);
                }
                if plan.has_route_cache() != replaced.has_route_cache() {
                    report_route_cache(&plan);
                }
                let number = self.retired.push(replaced.clone());
                if let Some((metering, next)) = self.reloadable.metering.as_mut().zip(next)
                    && let Err(error) = metering.on_published(*next, &plan, &replaced, number)
                {
                    warn!("gateway.metrics: {error}");
                }
                if reloaded {
                    self.take_over(candidate);
                }
            }
            Err(error) => self.give_up(error.to_string().lines().map(str::to_owned).collect()),
        }
    }

    /// A valid configuration can still fail to publish.
    fn give_up(&mut self, errors: Vec<String>) {
        // While its names were resolved, changes were not reported one by one.
        self.wanted.parts = true;
        self.wanted.certificates = true;
        self.resolver.set_names(names::of(&self.served.config));
        if self.reading.as_mut().is_some_and(|reading| reading.fall_back(&errors)) {
            self.wanted.reload.get_or_insert(false);
        }
        self.refuse(errors);
    }

    /// What follows once a new configuration is published.
    fn take_over(&mut self, Candidate { loaded, tls, file_errors, .. }: Candidate) {
        let config = &loaded.config;
        self.set_certificates(tls);
        self.loaded_at = now_rfc3339();
        self.times = ReloadTimes::now();
        match file_errors.is_empty() {
            true => self.last_error = None,
            false if self.is_told(&file_errors) => {}
            false => self.refuse(file_errors),
        }
        self.resolver.set_names(names::of(config));
        info!(
            generation = self.plans.load().generation,
            digest = config.digest,
            routes = config.routes.len(),
            upstreams = config.upstreams.len(),
            "configuration published"
        );
        names::warn_unresolved(&self.resolver);
        report_rejected(&loaded.rejected, &self.served.rejected);
        let ignored = status::ignored_plugins(config);
        status::warn_of_ignored(&ignored, &std::mem::replace(&mut self.ignored, ignored.clone()));
        let (old, new) = (&self.served.config.gateway, &config.gateway);
        if old.log.level != new.log.level
            && let Err(error) = self.reloadable.logging.set_level(&new.log.level)
        {
            warn!("{error}");
        }
        (self.reloadable.published)(config, self.plans.load().generation);
        self.pending_restart = keys_that_need_restart(&self.started, new);
        for key in &self.pending_restart {
            warn!("{key} differs from what the gateway was started with; takes effect at the next start");
        }
        self.garbage.configs.push(std::mem::replace(&mut self.served, loaded));
    }

    fn set_certificates(&mut self, tls: Arc<Material>) {
        self.certificate_ends = ends(&tls);
        self.tls = tls;
    }

    /// Whether these were the last errors: resources may change many times before a broken file is repaired.
    fn is_told(&self, errors: &[String]) -> bool {
        self.last_error.as_ref().is_some_and(|last| last.errors == errors)
    }

    fn refuse(&mut self, errors: Vec<String>) {
        error!("configuration refused; the one before goes on serving");
        for line in &errors {
            error!("{line}");
        }
        self.last_error = Some(LastError { at: now_rfc3339(), errors });
        self.times.last_unix_ms = now_unix_ms();
    }

    /// Frees Plans that no worker holds any more, here and not in the worker that was the last, and ends the series of what
    /// only they had; to be called now and then.
    pub(crate) fn sweep(&mut self) {
        self.retired.sort_out(&mut self.garbage);
        // Otherwise the next build frees it, on its thread.
        if matches!(self.work, ReloadWork::Idle) && !self.garbage.is_empty() {
            let garbage = std::mem::take(&mut self.garbage);
            // It ends by itself; nothing has to wait for it.
            drop(spawn_blocking(move || background::run(Waits::Nobody, || drop(garbage))));
        }
        if let Some(metering) = &mut self.reloadable.metering {
            metering.settle(self.retired.oldest());
        }
    }
}

fn ends(tls: &Material) -> Arc<BTreeMap<String, i64>> {
    Arc::new(tls.expiries().map(|(id, end)| (id.to_owned(), end)).collect())
}

/// Makes the table of limits where the Plan that is published next needs one.
pub(crate) fn provide_limits(plans: &PlanCell, plan: &Plan, gateway: &Gateway) {
    let bytes_max = gateway.limits.counters_bytes;
    if let Err(error) = plans.provide_limits(plan, bytes_max) {
        error!(%error, bytes_max, "no memory for the counters of limits (gateway.limits.counters_bytes): limits cannot count");
    }
}

/// Logs whether routes are cached, and why.
pub(crate) fn report_route_cache(plan: &Plan) {
    let cost = plan.match_cost();
    let ns = |of: fn(&MatchCost) -> f64| cost.map(|cost| of(cost).round() as u64);
    debug!(
        used = plan.has_route_cache(),
        match_ns = ns(|cost| cost.matcher_ns),
        hit_ns = ns(|cost| cost.hit_ns),
        miss_ns = ns(|cost| cost.miss_ns),
        "route cache"
    );
}

// Keeps replaced Plans until no request needs them, and what is to be freed then.
//
// The last worker to hold a Plan would have to free it, which takes milliseconds where there are many routes. So each replaced
// Plan is held here too, and dropped once nothing else has it.

/// Replaced Plans watched for the end of the requests that hold them; beyond it the oldest is left to the worker that holds
/// it. It is those requests that keep their memory, so this bounds a list of pointers, and how long looking through it takes.
const RETIRED_MAX: usize = 1 << 16;

/// Replaced Plans, numbered in the order in which they were published.
#[derive(Debug, Default)]
pub(crate) struct RetiredPlans {
    /// The oldest first.
    plans: VecDeque<(u64, Arc<Plan>)>,
    count: u64,
}

/// Garbage that nothing uses any more.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    plans: Vec<Arc<Plan>>,
    /// Configurations that were replaced.
    pub(crate) configs: Vec<Arc<LoadedConfig>>,
}

impl Garbage {
    pub(crate) fn is_empty(&self) -> bool {
        self.plans.is_empty() && self.configs.is_empty()
    }
}

impl RetiredPlans {
    /// A Plan has been replaced; returns its number.
    pub(crate) fn push(&mut self, plan: Arc<Plan>) -> u64 {
        self.count += 1;
        self.plans.push_back((self.count, plan));
        self.count
    }

    /// The number of the oldest one that is still held; `None`: none is.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.plans.front().map(|(number, _)| *number)
    }

    /// Finds those that no worker holds any more.
    pub(crate) fn sort_out(&mut self, garbage: &mut Garbage) {
        self.plans.retain(|(_, plan)| {
            let is_held = Arc::strong_count(plan) > 1;
            if !is_held {
                garbage.plans.push(plan.clone());
            }
            is_held
        });
        while self.plans.len() > RETIRED_MAX {
            self.plans.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn plans_go_when_their_last_request_has() {
        let config = stillgate_config::load("routes: []\n", &|_| None).unwrap().config;
        let plan = |generation| Arc::new(Plan::build(generation, &config, &HashMap::new(), None, None, None).unwrap());
        let (mut retired, mut garbage) = (RetiredPlans::default(), Garbage::default());
        let (first, second) = (plan(1), plan(2));
        assert_eq!([retired.push(first.clone()), retired.push(second.clone()), retired.push(plan(3))], [1, 2, 3]);
        retired.sort_out(&mut garbage);
        assert_eq!((retired.oldest(), garbage.plans.len()), (Some(1), 1));
        drop(second);
        retired.sort_out(&mut garbage);
        assert_eq!((retired.oldest(), garbage.plans.len()), (Some(1), 2));
        drop(first);
        retired.sort_out(&mut garbage);
        assert_eq!((retired.oldest(), garbage.plans.len()), (None, 3));
    }
}
