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
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{error, info};

/// How often the files are looked at though nothing is due: another gateway may have written them.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// When another gateway orders, how long until we look whether it was for us.
const LOCKED_WAIT: Duration = Duration::from_secs(10);
/// For all of one order, so that one server cannot keep the others waiting.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);
/// By how much the issuer's clock may be ahead of ours: a certificate that begins later than that is not waited for.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(3600);

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
    /// Nor, whatever changes here, before the server allows it.
    server_not_before: Option<Instant>,
    /// It was issued, but could not be kept.
    unsaved: Option<String>,
}

/// Keeps the certificates of one configuration after the other.
pub(super) struct Renewing {
    plans: Arc<PlanCell>,
    tell: watch::Sender<BTreeMap<String, State>>,
    stored: Arc<Notify>,
    failures: Arc<AtomicU64>,
    tries: HashMap<String, Tries>,
    /// When each certificate ends, as far as reloads were told.
    told: HashMap<String, Option<i64>>,
}

impl Renewing {
    pub(super) fn new(
        plans: Arc<PlanCell>,
        tell: watch::Sender<BTreeMap<String, State>>,
        stored: Arc<Notify>,
        failures: Arc<AtomicU64>,
    ) -> Renewing {
        Renewing { plans, tell, stored, failures, tries: HashMap::new(), told: HashMap::new() }
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
                    Ok(()) => forget_mended(&mut self.tries, now.as_ref(), wanted.borrow().as_ref()),
                    Err(_) => return,
                },
                () = retry.notified() => self.forget_waits(),
                () = sleep(pause) => {}
            }
        }
    }

    fn forget_waits(&mut self) {
        for tries in self.tries.values_mut() {
            (tries.not_before, tries.server_not_before) = (None, None);
        }
    }

    /// Looks at all files and orders at most one certificate; how long there is nothing to do then.
    async fn step(&mut self, wanted: &Wanted) -> Duration {
        let is_wanted = |id: &String| wanted.certificates.iter().any(|certificate| certificate.id == *id);
        self.tries.retain(|id, _| is_wanted(id));
        self.told.retain(|id, _| is_wanted(id));
        let acme = wanted.acme.clone();
        let ids: Vec<String> = wanted.certificates.iter().map(|certificate| certificate.id.clone()).collect();
        let found = blocking(move || Ok(ids.iter().map(|id| look(&acme, id)).collect::<Vec<_>>())).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                error!("ACME: the certificates' files cannot be looked at: {error}");
                return schedule::RETRY_MIN;
            }
        };
        let mut pause = LOOK_EVERY;
        for (certificate, found) in wanted.certificates.iter().zip(found) {
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
                let file = wanted.acme.certificate_file(id).display().to_string();
                info!(ssl = id, names, ends, file, "ACME: certificate stored");
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
                let now = Instant::now();
                *tries = Tries {
                    state: State { failures, last_error: Some(failure.to_string()), next_try: Some(next_try) },
                    not_before: Some(now + wait),
                    server_not_before: failure.retry_after.map(|after| now + after),
                    unsaved: issued,
                };
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
                let names = certificate.names.clone();
                guarded(async move { orderer.order(&names).await }).await?
            }
        };
        let kept = issued.insert(text).clone();
        let ordered = inspect(issued, certificate, now())?;
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

/// On a task of its own, within the time for it: a panic of what reads the server's answers is a failure like any other. The
/// task ends with the future.
async fn guarded(order: impl Future<Output = Result<String, Failure>> + Send + 'static) -> Result<String, Failure> {
    const DOING: &str = "ordering";
    let mut task = JoinSet::new();
    task.spawn(order);
    match tokio::time::timeout(ORDER_TIMEOUT, task.join_next()).await {
        Ok(Some(Ok(ordered))) => ordered,
        Ok(Some(Err(error))) => {
            Err(Failure::new(DOING, format!("the server's answer led to a bug: {error}"), "report it"))
        }
        Ok(None) => Err(Failure::new(DOING, "it was not begun", "report it")),
        Err(_) => Err(Failure::new(DOING, "the server took too long", "")),
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

/// What failed may be mended by what has changed. Other entries' changes mend nothing, and would have the server asked again
/// each time.
fn forget_mended(tries: &mut HashMap<String, Tries>, before: Option<&Wanted>, after: Option<&Wanted>) {
    let (Some(before), Some(after)) = (before, after) else { return };
    if before.acme.directory != after.acme.directory {
        // Another server: neither the patience that one asked for nor what it has issued is of use with this one.
        return tries.clear();
    }
    let is_set_otherwise = before.acme != after.acme || !Arc::ptr_eq(&before.tls, &after.tls);
    for (id, tries) in tries {
        let names = |of: &Wanted| {
            of.certificates
                .iter()
                .find(|certificate| certificate.id == *id)
                .map(|certificate| certificate.names.clone())
        };
        if is_set_otherwise || names(before) != names(after) {
            tries.not_before = tries.server_not_before;
        }
    }
}

/// What came from the server is looked at before it takes the place of what was there, and forgotten where it is of no use.
fn inspect(issued: &mut Option<String>, certificate: &Certificate, now: UnixTime) -> Result<Ordered, Failure> {
    let text = issued.as_deref().unwrap_or_default();
    let result = usable(text, certificate, now);
    if result.is_err() {
        // What the issuer's clock dates ahead will be of use soon, and another one would be no sooner.
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + CLOCK_AHEAD_MAX);
        if usable(text, certificate, later).is_err() {
            *issued = None;
        }
    }
    result
}

fn usable(text: &str, certificate: &Certificate, now: UnixTime) -> Result<Ordered, Failure> {
    const DOING: &str = "looking at what the server issued";
    let ordered = Ordered::read(text.as_bytes(), now).map_err(|error| Failure::new(DOING, error, ""))?;
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

#[cfg(test)]
mod tests;
