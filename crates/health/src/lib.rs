//! Active health checks: for each endpoint of an upstream that wants them a task of the control thread, whatever the number
//! of workers.
//!
//! A task makes one check after the other, at the pace that the endpoint's state asks for, and alone decides what they
//! come to (`judge`). Workers learn it through the endpoint's [`HealthVerdict`]; the control loop receives changes, for the
//! log and the metrics; the admin API reads the last record. A reload that leaves an endpoint and its checks as they were
//! leaves its task alone.

#![forbid(unsafe_code)]

mod judge;
mod probe;

pub use judge::{CheckOutcome, CheckRecord, Last};

use judge::Judge;
use probe::Probe;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_config::{ActiveCheck, Upstream};
use stillgate_proxy::{Plan, random};
use stillgate_tls::ClientTls;
use stillgate_upstream::{Endpoint, HealthVerdict};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// Changes that may wait for the control loop; a check whose change finds no room waits with it.
const CHANGES_MAX: usize = 256;
/// By how much of the interval a check may come earlier or later, so that those that began together drift apart.
const JITTER: f64 = 0.1;

/// Owns the checks.
pub struct Checker {
    upstreams: HashMap<String, CheckedUpstream>,
    /// The Plan that was followed last. Weak, since a Plan is freed when no worker holds it.
    plan: Weak<Plan>,
    results: mpsc::Sender<HealthChange>,
    received: mpsc::Receiver<HealthChange>,
}

/// One upstream with active checks.
struct CheckedUpstream {
    definition: Arc<Upstream>,
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientTls>>,
    /// Bounds the checks under way.
    places: Arc<Semaphore>,
    tasks: Tasks,
}

/// By the endpoint's address and host.
type Tasks = HashMap<(SocketAddr, Arc<str>), Task>;

/// Checks one endpoint until it is dropped.
struct Task {
    verdict: Arc<HealthVerdict>,
    record: watch::Receiver<CheckRecord>,
    handle: AbortHandle,
}

impl CheckedUpstream {
    fn is_of(&self, definition: &Arc<Upstream>, endpoints: &[Endpoint], tls: Option<&Arc<ClientTls>>) -> bool {
        Arc::ptr_eq(&self.definition, definition) && self.endpoints == endpoints && is_same(self.tls.as_ref(), tls)
    }

    fn rules(&self) -> &ActiveCheck {
        rules(&self.definition)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// An endpoint has become healthy, or is no more.
#[derive(Debug)]
pub struct HealthChange {
    /// The upstream's key.
    pub upstream: String,
    /// Which one.
    pub endpoint: Endpoint,
    /// What it is now.
    pub is_healthy: bool,
    /// What the checks found.
    pub reason: String,
}

impl Default for Checker {
    /// Checks nothing until it follows a Plan.
    fn default() -> Checker {
        let (results, received) = mpsc::channel(CHANGES_MAX);
        Checker { upstreams: HashMap::new(), plan: Weak::new(), results, received }
    }
}

impl Checker {
    /// Checks from now on what `plan` says. Needs a running runtime.
    pub fn follow(&mut self, plan: &Arc<Plan>) {
        let followed = Arc::downgrade(plan);
        if followed.ptr_eq(&self.plan) {
            return;
        }
        self.plan = followed;
        let mut before = std::mem::take(&mut self.upstreams);
        for (definition, endpoints, tls) in plan.checked_upstreams() {
            let checked = match before.remove(&definition.key) {
                Some(same) if same.is_of(definition, endpoints, tls) => same,
                changed => self.check(definition, endpoints, tls, changed),
            };
            self.upstreams.insert(definition.key.clone(), checked);
        }
    }

    /// Stops checking. The workers keep the last verdict on each endpoint.
    pub fn stop(&mut self) {
        self.upstreams.clear();
    }

    /// Waits for the next change. May be cancelled without losing any.
    pub async fn next_change(&mut self) -> HealthChange {
        self.received.recv().await.expect("this holds a sender")
    }

    /// The endpoints of an upstream; `None`: it has no active checks.
    pub fn endpoints(&self, upstream: &str) -> Option<&[Endpoint]> {
        self.upstreams.get(upstream).map(|checked| checked.endpoints.as_slice())
    }

    /// What is known of every endpoint, by its upstream's key, address and host.
    pub fn records(&self) -> HashMap<(String, SocketAddr, Arc<str>), CheckRecord> {
        let of = |(key, checked): (&String, &CheckedUpstream)| {
            let record = |((address, host), task): (&(SocketAddr, Arc<str>), &Task)| {
                ((key.clone(), *address, host.clone()), task.record.borrow().clone())
            };
            checked.tasks.iter().map(record).collect::<Vec<_>>()
        };
        self.upstreams.iter().flat_map(of).collect()
    }

    fn check(
        &self,
        definition: &Arc<Upstream>,
        endpoints: &[Endpoint],
        tls: Option<&Arc<ClientTls>>,
        before: Option<CheckedUpstream>,
    ) -> CheckedUpstream {
        let rules = rules(definition);
        let (places, mut old) = match before {
            Some(before)
                if before.rules() == rules
                    && before.definition.proxy_protocol == definition.proxy_protocol
                    && before.definition.pass_host == definition.pass_host
                    && is_same(before.tls.as_ref(), tls) =>
            {
                (before.places, before.tasks)
            }
            _ => (Arc::new(Semaphore::new(rules.concurrency)), HashMap::new()),
        };
        let mut tasks = HashMap::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let Some(verdict) = &endpoint.verdict else { continue };
            let peer = (endpoint.address, endpoint.host.clone());
            let task = old.remove(&peer).filter(|task| Arc::ptr_eq(&task.verdict, verdict));
            let task = task.unwrap_or_else(|| self.start(definition, endpoint, verdict, tls, &places));
            tasks.insert(peer, task);
        }
        CheckedUpstream {
            definition: definition.clone(),
            endpoints: endpoints.to_vec(),
            tls: tls.cloned(),
            places,
            tasks,
        }
    }

    fn start(
        &self,
        definition: &Arc<Upstream>,
        endpoint: &Endpoint,
        verdict: &Arc<HealthVerdict>,
        tls: Option<&Arc<ClientTls>>,
        places: &Arc<Semaphore>,
    ) -> Task {
        let rules = rules(definition).clone();
        let (records, record) = watch::channel(CheckRecord::default());
        let checking = CheckTask {
            probe: Probe::new(
                endpoint,
                &rules,
                &definition.pass_host,
                tls.map(|tls| &**tls),
                definition.proxy_protocol,
            ),
            rules,
            upstream: definition.key.clone(),
            endpoint: endpoint.clone(),
            verdict: verdict.clone(),
            places: places.clone(),
            records,
            changes: self.results.clone(),
        };
        Task { verdict: verdict.clone(), record, handle: tokio::spawn(checking.run()).abort_handle() }
    }
}

/// What a task works with.
struct CheckTask {
    rules: ActiveCheck,
    probe: Probe,
    upstream: String,
    endpoint: Endpoint,
    verdict: Arc<HealthVerdict>,
    places: Arc<Semaphore>,
    records: watch::Sender<CheckRecord>,
    changes: mpsc::Sender<HealthChange>,
}

impl CheckTask {
    async fn run(self) {
        let mut judge = Judge::default();
        // The first checks are spread over the interval: there may be thousands.
        sleep(self.interval().mul_f64(random::share())).await;
        loop {
            let (outcome, latency) = {
                let _place = self.places.acquire().await.expect("the semaphore is never closed");
                let began = Instant::now();
                (self.probe.run().await, began.elapsed())
            };
            self.take(&mut judge, outcome, latency).await;
            sleep(self.interval().mul_f64(1.0 + JITTER * (2.0 * random::share() - 1.0))).await;
        }
    }

    fn interval(&self) -> Duration {
        match self.verdict.is_healthy() {
            true => self.rules.healthy.interval,
            false => self.rules.unhealthy.interval,
        }
    }

    async fn take(&self, judge: &mut Judge, outcome: CheckOutcome, latency: Duration) {
        let decided = judge.take(&outcome, self.verdict.is_healthy(), &self.rules);
        let now_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let is_failure = outcome.is_failure(&self.rules);
        self.records.send_modify(|record| record.add(outcome, is_failure, latency, now_unix_ms));
        let Some(decision) = decided else { return };
        self.verdict.set(decision.is_healthy);
        self.records.send_modify(|record| record.changed = Some((now_unix_ms, decision.reason.clone())));
        let change = HealthChange {
            upstream: self.upstream.clone(),
            endpoint: self.endpoint.clone(),
            is_healthy: decision.is_healthy,
            reason: decision.reason,
        };
        // Where nobody listens the process is ending.
        let _ = self.changes.send(change).await;
    }
}

fn rules(upstream: &Upstream) -> &ActiveCheck {
    let checks = upstream.checks.as_ref().and_then(|checks| checks.active.as_ref());
    checks.expect("only upstreams with active checks come here")
}

fn is_same(old: Option<&Arc<ClientTls>>, new: Option<&Arc<ClientTls>>) -> bool {
    old.map(Arc::as_ptr) == new.map(Arc::as_ptr)
}
