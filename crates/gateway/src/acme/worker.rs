//! The task that keeps certificates: looks at the files, orders the first that is due, waits.

use super::order::{Failure, Orderer, blocking};
use super::schedule::{self, Reason};
use super::{Certificate, Wanted, storage};
use crate::source::read_bounded;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_config::Acme;
use stillgate_proxy::PlanCell;
use stillgate_proxy::access_log::rfc3339;
use stillgate_tls::rustls::pki_types::UnixTime;
use stillgate_tls::{FILE_BYTES_MAX, Ordered};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tracing::{error, info};

/// How often the files are looked at though nothing is due: another gateway may have written them.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// When another gateway orders, how long until we look whether it was for us.
const LOCKED_WAIT: Duration = Duration::from_secs(10);
/// For all of one order, so that one server cannot keep the others waiting.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);

/// How the ordering of one certificate goes, for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct State {
    /// In a row; 0 after a success.
    pub(crate) failures: u32,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// When it is tried again, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_try: Option<String>,
}

/// What is known of one certificate beside its file.
#[derive(Default)]
struct Tries {
    state: State,
    /// Nothing is tried before.
    not_before: Option<Instant>,
    /// It was issued, but could not be kept.
    unsaved: Option<String>,
}

pub(super) struct Worker {
    plans: Arc<PlanCell>,
    tell: watch::Sender<BTreeMap<String, State>>,
    stored: Arc<Notify>,
    failures: Arc<AtomicU64>,
    tries: HashMap<String, Tries>,
    /// When each certificate ends, as far as reloads were told.
    told: HashMap<String, Option<i64>>,
}

impl Worker {
    pub(super) fn new(
        plans: Arc<PlanCell>,
        tell: watch::Sender<BTreeMap<String, State>>,
        stored: Arc<Notify>,
        failures: Arc<AtomicU64>,
    ) -> Worker {
        Worker { plans, tell, stored, failures, tries: HashMap::new(), told: HashMap::new() }
    }

    /// Keeps what is wanted until nobody can want anything any more.
    pub(super) async fn run(mut self, mut wanted: watch::Receiver<Option<Wanted>>, retry: Arc<Notify>) {
        loop {
            let now = wanted.borrow_and_update().clone();
            let pause = match &now {
                Some(now) => self.step(now).await,
                None => {
                    self.tries.clear();
                    self.publish();
                    LOOK_EVERY
                }
            };
            tokio::select! {
                changed = wanted.changed() => match changed {
                    // What failed may be mended by what has changed.
                    Ok(()) => self.forget_waits(),
                    Err(_) => return,
                },
                () = retry.notified() => self.forget_waits(),
                () = sleep(pause) => {}
            }
        }
    }

    fn forget_waits(&mut self) {
        self.tries.values_mut().for_each(|tries| tries.not_before = None);
    }

    /// Looks at all files and orders at most one certificate; how long there is nothing to do then.
    async fn step(&mut self, wanted: &Wanted) -> Duration {
        self.tries.retain(|id, _| wanted.certificates.iter().any(|certificate| certificate.id == *id));
        let acme = wanted.acme.clone();
        let ids: Vec<String> = wanted.certificates.iter().map(|certificate| certificate.id.clone()).collect();
        let found = blocking(move || Ok(ids.iter().map(|id| look(&acme, id)).collect::<Vec<_>>())).await;
        let mut pause = LOOK_EVERY;
        for (certificate, found) in wanted.certificates.iter().zip(found.unwrap_or_default()) {
            self.tell_change(&certificate.id, found.as_ref());
            match due(found.as_ref(), certificate, &wanted.acme) {
                Err(left) => pause = pause.min(left),
                Ok(reason) => {
                    let not_before = self.tries.get(&certificate.id).and_then(|tries| tries.not_before);
                    let left = not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
                    if left.is_zero() {
                        self.attempt(wanted, certificate, reason).await;
                        self.publish();
                        return Duration::ZERO;
                    }
                    pause = pause.min(left);
                }
            }
        }
        self.publish();
        pause
    }

    /// The file's notice may not come, from another machine's disk say.
    fn tell_change(&mut self, id: &str, found: Option<&Ordered>) {
        let end = found.map(|found| found.not_after_seconds);
        let before = self.told.insert(id.to_owned(), end);
        if before.is_some_and(|before| before != end) {
            self.stored.notify_one();
        }
    }

    async fn attempt(&mut self, wanted: &Wanted, certificate: &Certificate, reason: Reason) {
        let unsaved = self.tries.entry(certificate.id.clone()).or_default().unsaved.take();
        let mut issued = unsaved;
        let result = self.obtain(wanted, certificate, reason, &mut issued).await;
        let tries = self.tries.entry(certificate.id.clone()).or_default();
        let (id, names) = (&certificate.id, certificate.names.join(", "));
        match result {
            Ok(Obtained::Stored(ordered)) => {
                let ends = rfc3339(millis(ordered.not_after_seconds));
                info!(ssl = id, names, ends, "ACME: certificate stored");
                let rest = schedule::rest(ordered.not_after_seconds.saturating_sub(now_seconds()));
                *tries = Tries { not_before: Some(Instant::now() + rest), ..Tries::default() };
                self.told.insert(certificate.id.clone(), Some(ordered.not_after_seconds));
                self.stored.notify_one();
            }
            Ok(Obtained::ByAnother) => *tries = Tries::default(),
            Ok(Obtained::Locked) => {
                tries.not_before = Some(Instant::now() + LOCKED_WAIT);
                tries.unsaved = issued;
            }
            Err(failure) => {
                let failures = tries.state.failures.saturating_add(1);
                let wait = schedule::wait(failures, failure.retry_after, random());
                let wait_seconds = wait.as_secs();
                self.failures.fetch_add(1, Ordering::Relaxed);
                error!(
                    ssl = id,
                    names,
                    failures,
                    "ACME: no certificate: {failure}; tried again in {wait_seconds} s, or at once after SIGHUP"
                );
                let next_try = rfc3339(now_ms().saturating_add(wait.as_millis() as u64));
                let state = State { failures, last_error: Some(failure.to_string()), next_try: Some(next_try) };
                *tries = Tries { state, not_before: Some(Instant::now() + wait), unsaved: issued };
            }
        }
    }

    /// `issued`: what was issued and is not kept yet.
    async fn obtain(
        &self,
        wanted: &Wanted,
        certificate: &Certificate,
        reason: Reason,
        issued: &mut Option<String>,
    ) -> Result<Obtained, Failure> {
        const STORAGE: &str = "gateway.acme.storage";
        let acme = &wanted.acme;
        let on_disk = |error: String| Failure::new(STORAGE, error, "");
        let (settings, id) = (acme.clone(), certificate.id.clone());
        let prepared = blocking(move || {
            storage::prepare(&settings)?;
            let Some(lock) = storage::lock(&settings)? else { return Ok(None) };
            storage::has_room(&settings)?;
            Ok(Some((lock, look(&settings, &id))))
        });
        let Some((_lock, found)) = prepared.await.map_err(on_disk)? else { return Ok(Obtained::Locked) };
        if due(found.as_ref(), certificate, acme).is_err() {
            self.stored.notify_one();
            return Ok(Obtained::ByAnother);
        }
        let text = match issued.take() {
            Some(text) => text,
            None => {
                let (names, directory) = (certificate.names.join(", "), &acme.directory);
                info!(ssl = certificate.id, names, directory, "ACME: ordering a certificate: {}", reason.words());
                let orderer = Orderer { acme: acme.clone(), tls: wanted.tls.clone(), plans: self.plans.clone() };
                let ordered = tokio::time::timeout(ORDER_TIMEOUT, orderer.order(&certificate.names)).await;
                ordered.unwrap_or_else(|_| Err(Failure::new("ordering", "the server took too long", "")))?
            }
        };
        let ordered = usable(&text, certificate)?;
        let kept = issued.insert(text).clone();
        let (settings, id) = (acme.clone(), certificate.id.clone());
        let stored = blocking(move || storage::store_certificate(&settings, &id, kept.as_bytes())).await;
        stored.map_err(on_disk)?;
        *issued = None;
        Ok(Obtained::Stored(ordered))
    }

    fn publish(&self) {
        let states: BTreeMap<_, _> = self.tries.iter().map(|(id, tries)| (id.clone(), tries.state.clone())).collect();
        self.tell.send_replace(states);
    }
}

/// How a try ended that did not fail.
enum Obtained {
    Stored(Ordered),
    /// Another gateway was quicker.
    ByAnother,
    /// Another gateway orders.
    Locked,
}

/// The certificate in a file; `None`: none that could be used.
fn look(acme: &Acme, id: &str) -> Option<Ordered> {
    Ordered::read(&read_bounded(&acme.certificate_file(id), FILE_BYTES_MAX).ok()?, now()).ok()
}

fn due(found: Option<&Ordered>, certificate: &Certificate, acme: &Acme) -> Result<Reason, Duration> {
    schedule::due(found, &certificate.names, acme.renew_before, now_seconds())
}

/// What came from the server is looked at before it takes the place of what was there.
fn usable(text: &str, certificate: &Certificate) -> Result<Ordered, Failure> {
    const DOING: &str = "looking at what the server issued";
    let ordered = Ordered::read(text.as_bytes(), now()).map_err(|error| Failure::new(DOING, error, ""))?;
    match certificate.names.iter().find(|name| !ordered.names.contains(name)) {
        Some(name) => Err(Failure::new(DOING, format!("it is not for {name}"), "ask the issuer")),
        None => Ok(ordered),
    }
}

fn now() -> UnixTime {
    // A clock before 1970 finds every certificate not yet valid.
    UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn now_seconds() -> i64 {
    i64::try_from(now().as_secs()).unwrap_or(i64::MAX)
}

fn now_ms() -> u64 {
    now().as_secs().saturating_mul(1000)
}

fn millis(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

/// From 0 to 1; nothing secret.
fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}
