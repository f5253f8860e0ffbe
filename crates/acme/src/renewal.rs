//! The task that renews certificates: checks the files, orders the first that is due, and waits.

use super::order::{OrderFailure, Orderer, run_blocking};
use super::order_progress::{self, AttemptNote, Note, OrderProgress, OrderState, forget_mended};
use super::schedule::{self, OrderReason, SuggestionKey, Suggestions};
use super::storage::{self, Lock};
use super::{Certificate, CertificateOrders};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_config::Acme;
use stillgate_files::read_bounded;
use stillgate_proxy::access_log::rfc3339;
use stillgate_proxy::{PlanCell, random};
use stillgate_tls::rustls::pki_types::UnixTime;
use stillgate_tls::{FILE_BYTES_MAX, OrderedCertificateInfo};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

/// How often the files are checked although nothing is due: another gateway may have written them.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// The pause while another gateway orders, before the files are checked again.
const LOCKED_WAIT: Duration = Duration::from_secs(10);
/// The time limit of one order, so that one server cannot keep the others waiting.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);
/// The key of the configuration that is named in errors about files.
const STORAGE: &str = "gateway.acme.storage";

/// Maintains the certificates of the latest configuration.
pub(super) struct CertificateRenewal {
    plans: Arc<PlanCell>,
    tell: watch::Sender<BTreeMap<String, OrderState>>,
    stored: Arc<Notify>,
    failures: Arc<AtomicU64>,
    progress: HashMap<String, OrderProgress>,
    suggestions: Suggestions,
    /// The certificates that reloads were last notified of.
    told: HashMap<String, Option<ReportedCertificate>>,
}

/// When a certificate expires, and its key for ARI.
type ReportedCertificate = (i64, Option<SuggestionKey>);

impl CertificateRenewal {
    pub(super) fn new(
        plans: Arc<PlanCell>,
        tell: watch::Sender<BTreeMap<String, OrderState>>,
        stored: Arc<Notify>,
        failures: Arc<AtomicU64>,
    ) -> CertificateRenewal {
        let (progress, suggestions, told) = (HashMap::new(), Suggestions::default(), HashMap::new());
        CertificateRenewal { plans, tell, stored, failures, progress, suggestions, told }
    }

    /// Maintains the wanted certificates until the sender is dropped.
    pub(super) async fn run(mut self, mut wanted: watch::Receiver<Option<CertificateOrders>>, retry: Arc<Notify>) {
        loop {
            let now = wanted.borrow_and_update().clone();
            let pause = match &now {
                Some(now) => self.step(now).await,
                None => {
                    self.progress.clear();
                    self.suggestions = Suggestions::default();
                    self.publish();
                    LOOK_EVERY
                }
            };
            tokio::select! {
                changed = wanted.changed() => match changed {
                    Ok(()) => self.change(now.as_ref(), wanted.borrow().as_ref()),
                    Err(_) => return,
                },
                () = retry.notified() => self.forget_waits(),
                () = sleep(pause) => {}
            }
        }
    }

    fn change(&mut self, before: Option<&CertificateOrders>, after: Option<&CertificateOrders>) {
        forget_mended(&mut self.progress, before, after);
        let server = |of: Option<&CertificateOrders>| of.map(|of| of.acme.directory.clone());
        if server(before) != server(after) {
            self.suggestions = Suggestions::default();
        }
    }

    fn forget_waits(&mut self) {
        for progress in self.progress.values_mut() {
            (progress.not_before, progress.server_not_before) = (None, None);
        }
    }

    /// Checks all files and orders at most one certificate; returns how long to wait before the next step.
    async fn step(&mut self, wanted: &CertificateOrders) -> Duration {
        let is_wanted = |id: &String| wanted.certificates.iter().any(|certificate| certificate.id == *id);
        self.progress.retain(|id, _| is_wanted(id));
        self.told.retain(|id, _| is_wanted(id));
        self.suggestions.retain(is_wanted);
        let acme = wanted.acme.clone();
        let ids: Vec<String> = wanted.certificates.iter().map(|certificate| certificate.id.clone()).collect();
        let found = run_blocking(move || Ok(ids.iter().map(|id| read_ordered(&acme, id)).collect::<Vec<_>>())).await;
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
            self.report_change(&certificate.id, found.as_ref());
            let now = Instant::now();
            match found.as_ref().and_then(|found| self.suggestions.ask_in(&certificate.id, found, now)) {
                Some(Duration::ZERO) => {
                    self.ask(wanted, certificate, found.and_then(|found| found.ari_identifier)).await;
                    return Duration::ZERO;
                }
                Some(left) => pause = pause.min(left),
                None => {}
            }
            match self.due(found.as_ref(), certificate, &wanted.acme) {
                Err(left) => pause = pause.min(left),
                Ok(reason) => {
                    let not_before = self.progress.get(&certificate.id).and_then(|progress| progress.not_before);
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

    /// Notifies of a changed file. The file watch may miss a change, for example on a network file system. The first check notifies
    /// too: the file may have changed since it was loaded.
    fn report_change(&mut self, id: &str, found: Option<&OrderedCertificateInfo>) {
        let is = found.map(expiry_and_key);
        let before = self.told.insert(id.to_owned(), is.clone());
        if before != Some(is) {
            self.stored.notify_one();
        }
    }

    async fn ask(&mut self, wanted: &CertificateOrders, certificate: &Certificate, key: Option<SuggestionKey>) {
        let Some(key) = key else { return };
        let (orderer, of) = (self.orderer(wanted), key.clone());
        let answer = run_guarded(async move { schedule::ask_server(&orderer, &of).await }).await;
        self.suggestions.take(&certificate.id, &key, answer, Instant::now(), random::share());
    }

    async fn attempt(&mut self, wanted: &CertificateOrders, certificate: &Certificate, reason: OrderReason) {
        let unsaved = self.progress.entry(certificate.id.clone()).or_default().unsaved.take();
        let mut attempt = RenewalAttempt { begun: None, _lock: None, issued: unsaved };
        let result = self.obtain(wanted, certificate, reason, &mut attempt).await;
        let progress = self.progress.entry(certificate.id.clone()).or_default();
        let (acme, id, names) = (&wanted.acme, &certificate.id, certificate.names.join(", "));
        let begun = attempt.begun.take();
        let has_begun = begun.is_some();
        begun.into_iter().for_each(AttemptNote::end);
        match result {
            Ok(AttemptResult::Stored(ordered)) => {
                let ends = rfc3339(millis(ordered.not_after_seconds));
                let file = acme.certificate_file(id).display().to_string();
                info!(ssl = id, names, ends, file, "ACME: certificate stored");
                let rest = schedule::rest(ordered.not_after_seconds.saturating_sub(now_seconds()));
                *progress = OrderProgress {
                    not_before: Some(Instant::now() + rest),
                    has_read_note: true,
                    ..OrderProgress::default()
                };
                self.told.insert(id.clone(), Some(expiry_and_key(&ordered)));
                self.stored.notify_one();
                keep_note(acme, id, None).await;
            }
            Ok(AttemptResult::ByAnother) => {
                *progress = OrderProgress { has_read_note: true, ..OrderProgress::default() };
                keep_note(acme, id, None).await;
            }
            Ok(AttemptResult::Locked) => {
                progress.not_before = Some(Instant::now() + LOCKED_WAIT);
                progress.unsaved = attempt.issued;
            }
            Ok(AttemptResult::Waits(note, (wait, server))) => {
                let (failures, wait_seconds) = (note.failures, wait.as_secs());
                warn!(
                    ssl = id,
                    names,
                    failures,
                    "ACME: attempts before this start failed, the last one with: {}; the next is in {wait_seconds} s, or at once \
                     after SIGHUP",
                    note.error
                );
                *progress = OrderProgress::failed(failures, note.error, wait, server, now().as_secs());
            }
            Err(failure) => {
                let failures = progress.state.failures.saturating_add(1);
                let wait = schedule::wait(failures, failure.retry_after, random::share());
                let (wait_seconds, server) = (wait.as_secs(), failure.retry_after.unwrap_or_default());
                self.failures.fetch_add(1, Ordering::Relaxed);
                error!(
                    ssl = id,
                    names,
                    failures,
                    "ACME: no certificate: {failure}; tried again in {wait_seconds} s, or at once after SIGHUP"
                );
                let (now_seconds, error) = (now().as_secs(), failure.to_string());
                if has_begun {
                    let of = order_progress::digest(acme, certificate);
                    let note = Note::failed(failures, &of, &error, (wait, server), now_seconds);
                    keep_note(acme, id, Some(note)).await;
                }
                // Failures before the note was read do not invalidate it.
                let has_read_note = progress.has_read_note;
                *progress = OrderProgress::failed(failures, error, wait, server, now_seconds);
                (progress.unsaved, progress.has_read_note) = (attempt.issued, has_read_note);
            }
        }
    }

    async fn obtain(
        &mut self,
        wanted: &CertificateOrders,
        certificate: &Certificate,
        reason: OrderReason,
        attempt: &mut RenewalAttempt,
    ) -> Result<AttemptResult, OrderFailure> {
        let acme = &wanted.acme;
        let on_disk = |error: String| OrderFailure::new(STORAGE, error, "");
        let (settings, id) = (acme.clone(), certificate.id.clone());
        let prepared = run_blocking(move || {
            storage::prepare(&settings)?;
            let Some(lock) = storage::lock(&settings)? else { return Ok(None) };
            let note = storage::note(&settings, &id).as_deref().and_then(Note::read);
            storage::check_room(&settings)?;
            Ok(Some((lock, read_ordered(&settings, &id), note)))
        });
        let Some((lock, found, note)) = prepared.await.map_err(on_disk)? else { return Ok(AttemptResult::Locked) };
        attempt._lock = Some(lock);
        if self.due(found.as_ref(), certificate, acme).is_err() {
            self.stored.notify_one();
            return Ok(AttemptResult::ByAnother);
        }
        if let Some(text) = attempt.issued.clone() {
            return store_issued(acme, certificate, text, attempt).await;
        }
        let (of, now_seconds) = (order_progress::digest(acme, certificate), now().as_secs());
        let progress = self.progress.entry(certificate.id.clone()).or_default();
        let has_read_note = std::mem::replace(&mut progress.has_read_note, true);
        if let Some(note) = note.as_ref().filter(|_| !has_read_note) {
            let left = note.remaining_pause(&of, now_seconds);
            if !left.0.is_zero() {
                return Ok(AttemptResult::Waits(note.clone(), left));
            }
            progress.state.failures = note.failures;
        }
        let begun = Note::begun(progress.state.failures.saturating_add(1), &of, now_seconds);
        let (settings, id) = (acme.clone(), certificate.id.clone());
        let begun = run_blocking(move || AttemptNote::new(settings, id, &begun, note)).await;
        attempt.begun = Some(begun.map_err(on_disk)?);
        let (names, directory) = (certificate.names.join(", "), &acme.directory);
        info!(ssl = certificate.id, names, directory, "ACME: ordering a certificate: {}", reason.words());
        let is_next = matches!(reason, OrderReason::EndsSoon | OrderReason::Suggested);
        let replaces = found.and_then(|found| found.ari_identifier).filter(|_| is_next);
        let (orderer, names) = (self.orderer(wanted), certificate.names.clone());
        let text = run_guarded(async move { orderer.order(&names, replaces.as_ref()).await }).await?;
        store_issued(acme, certificate, text, attempt).await
    }

    fn orderer(&self, wanted: &CertificateOrders) -> Orderer {
        Orderer { acme: wanted.acme.clone(), tls: wanted.tls.clone(), plans: self.plans.clone() }
    }

    fn due(
        &self,
        found: Option<&OrderedCertificateInfo>,
        certificate: &Certificate,
        acme: &Acme,
    ) -> Result<OrderReason, Duration> {
        let suggested = found.and_then(|found| self.suggestions.at_seconds(&certificate.id, found));
        schedule::due(found, &certificate.names, acme.renew_before, suggested, now_seconds())
    }

    fn publish(&self) {
        let states: BTreeMap<_, _> =
            self.progress.iter().map(|(id, progress)| (id.clone(), progress.state.clone())).collect();
        self.tell.send_replace(states);
    }
}

/// What an attempt holds; it is released in this order if the attempt is cancelled.
struct RenewalAttempt {
    begun: Option<AttemptNote>,
    _lock: Option<Lock>,
    /// The issued certificate that is not stored yet.
    issued: Option<String>,
}

/// Stores the issued certificate. It stays in `attempt` if that fails and may succeed later.
async fn store_issued(
    acme: &Arc<Acme>,
    certificate: &Certificate,
    text: String,
    attempt: &mut RenewalAttempt,
) -> Result<AttemptResult, OrderFailure> {
    attempt.issued = Some(text.clone());
    let ordered = inspect(&mut attempt.issued, certificate, now())?;
    let (settings, id) = (acme.clone(), certificate.id.clone());
    let stored = run_blocking(move || storage::store_certificate(&settings, &id, text.as_bytes())).await;
    stored.map_err(|error| OrderFailure::new(STORAGE, error, ""))?;
    attempt.issued = None;
    Ok(AttemptResult::Stored(ordered))
}

/// Stores the note for the next start. If that fails, the server may only be asked earlier than it should be.
async fn keep_note(acme: &Arc<Acme>, id: &str, note: Option<Note>) {
    let (acme, id) = (acme.clone(), id.to_owned());
    let kept = run_blocking(move || match note {
        Some(note) => storage::store_note(&acme, &id, &note.text()),
        None => storage::remove_note(&acme, &id),
    });
    if let Err(error) = kept.await {
        warn!("ACME: how long nothing is to be tried is not kept for the next start: {error}");
    }
}

/// Runs the work in a task of its own with a time limit: a panic while parsing the server's responses is a failure like any other.
/// The task ends with the future.
async fn run_guarded<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<OrderFailure> + Send + 'static,
{
    const DOING: &str = "ordering";
    let mut task = JoinSet::new();
    task.spawn(work);
    let failure = match tokio::time::timeout(ORDER_TIMEOUT, task.join_next()).await {
        Ok(Some(Ok(done))) => return done,
        Ok(Some(Err(error))) => {
            OrderFailure::new(DOING, format!("the server's answer led to a bug: {error}"), "report it")
        }
        Ok(None) => OrderFailure::new(DOING, "it was not begun", "report it"),
        Err(_) => OrderFailure::new(DOING, "the server took too long", ""),
    };
    Err(failure.into())
}

/// The result of an attempt that did not fail.
enum AttemptResult {
    Stored(OrderedCertificateInfo),
    /// Another gateway stored the certificate first.
    ByAnother,
    /// Another gateway holds the lock.
    Locked,
    /// Attempts of an earlier process failed, and it is too soon for another one. The durations: the remaining pause, and the part
    /// of it that the server requested.
    Waits(Note, (Duration, Duration)),
}

fn expiry_and_key(ordered: &OrderedCertificateInfo) -> ReportedCertificate {
    (ordered.not_after_seconds, ordered.ari_identifier.clone())
}

/// Reads the certificate in a file; `None` if it is unusable.
fn read_ordered(acme: &Acme, id: &str) -> Option<OrderedCertificateInfo> {
    OrderedCertificateInfo::read(&read_bounded(&acme.certificate_file(id), FILE_BYTES_MAX).ok()?, now()).ok()
}

fn now() -> UnixTime {
    // With a clock before 1970, every certificate is not yet valid.
    UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn now_seconds() -> i64 {
    i64::try_from(now().as_secs()).unwrap_or(i64::MAX)
}

fn millis(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
pub(super) mod tests;

// Checks an issued certificate before it replaces the previous one.

/// The largest lead of the issuer's clock. A certificate whose validity begins later than that is refused.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(3600);

/// Reads the certificate if it can be used now. It is dropped if it never can be.
pub(super) fn inspect(
    issued: &mut Option<String>,
    certificate: &Certificate,
    now: UnixTime,
) -> Result<OrderedCertificateInfo, OrderFailure> {
    let text = issued.as_deref().unwrap_or_default();
    let result = usable(text, certificate, now);
    if result.is_err() {
        // A certificate dated ahead by the issuer's clock becomes valid soon, and another one would not be valid sooner.
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + CLOCK_AHEAD_MAX);
        if usable(text, certificate, later).is_err() {
            *issued = None;
        }
    }
    result
}

fn usable(text: &str, certificate: &Certificate, now: UnixTime) -> Result<OrderedCertificateInfo, OrderFailure> {
    const DOING: &str = "looking at what the server issued";
    const HINT: &str = "what was shown stays; ask the issuer";
    let ordered =
        OrderedCertificateInfo::read(text.as_bytes(), now).map_err(|error| OrderFailure::new(DOING, error, HINT))?;
    match certificate.names.iter().find(|name| !ordered.names.contains(name)) {
        Some(name) => Err(OrderFailure::new(DOING, format!("it is not for {name}"), HINT)),
        None => Ok(ordered),
    }
}

#[cfg(test)]
mod issued_tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(id: &str, names: &[&str]) -> Certificate {
        Certificate { id: id.to_owned(), names: names.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn what_was_issued_is_forgotten_only_where_it_is_of_no_use() {
        // Its validity begins on 2026-05-01.
        const BEGIN_SECONDS: u64 = 1_777_593_600;
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 5, 1), date_time_ymd(2026, 8, 1));
        let good = format!("{}\n{}", params.self_signed(&key).unwrap().pem(), key.serialize_pem());
        let check = |text: &str, name: &str, now_seconds: u64, expected: Option<&str>, is_kept: bool| {
            let mut issued = Some(text.to_owned());
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now_seconds));
            let told = inspect(&mut issued, &certificate("a", &[name]), now).map_err(|failure| failure.to_string());
            assert_eq!(told.is_ok(), expected.is_none(), "{told:?}");
            assert!(told.err().unwrap_or_default().contains(expected.unwrap_or_default()));
            assert_eq!(issued.is_some(), is_kept, "{expected:?}");
        };
        check(&good, "a.example", BEGIN_SECONDS, None, true);
        check(&good, "a.example", BEGIN_SECONDS - 60, Some("not valid before"), true);
        check(&good, "a.example", BEGIN_SECONDS - 3601, Some("not valid before"), false);
        check(&good, "a.example", BEGIN_SECONDS + 366 * 24 * 3600, Some("expired"), false);
        check(&good, "b.example", BEGIN_SECONDS, Some("it is not for b.example"), false);
        let others =
            format!("{}\n{}", params.self_signed(&key).unwrap().pem(), KeyPair::generate().unwrap().serialize_pem());
        check(&others, "a.example", BEGIN_SECONDS, Some("the key does not belong to the certificate"), false);
        check("<html>", "a.example", BEGIN_SECONDS, Some("looking at what the server issued"), false);
    }
}
