//! The secrets that were read from Vaults, and the thread that reads them.

use super::client::{Data, VaultClient, VaultFailure};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_plugin::secrets::Manager;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

/// How long a path that could not be read is not requested again.
const NEGATIVE: Duration = Duration::from_secs(5);
/// Maximum number of paths that are kept; more are refused.
const PATHS_MAX: usize = 4096;

/// Makes the TLS connector for an `https` Vault.
type Tls = fn(&Manager) -> Result<TlsConnector, String>;
/// A secret's place: the Vault as it is configured, and the path.
type SecretPath = (Arc<Manager>, Box<str>);

/// The secrets in Vaults, as far as this process has read them.
#[derive(Clone)]
pub(crate) struct Vaults {
    shared: Arc<VaultCache>,
    orders: mpsc::Sender<SecretPath>,
}

struct VaultCache {
    kept: Mutex<HashMap<SecretPath, CachedSecret>>,
    /// Notified when something was read.
    read: Condvar,
}

struct CachedSecret {
    /// The last answer; after a temporary failure, the value before it.
    answer: Option<Result<Data, String>>,
    at: Instant,
    /// A reader waits for it already.
    is_asked: bool,
    /// The last attempt failed temporarily. If a value was read before, that has been logged.
    is_failing: bool,
}

impl Vaults {
    /// Starts the thread. `tls`: makes the TLS connector for an `https` Vault. `changes` counts the times that a value changed
    /// after it was read.
    pub(crate) fn start(tls: Tls, changes: watch::Sender<u64>) -> std::io::Result<Vaults> {
        let shared = Arc::new(VaultCache { kept: Mutex::default(), read: Condvar::new() });
        let (orders, ordered) = mpsc::channel(PATHS_MAX);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let reader =
            VaultThread { shared: shared.clone(), clients: HashMap::new(), down: HashMap::new(), tls, changes };
        thread::Builder::new().name("secrets".to_owned()).spawn(move || runtime.block_on(reader.run(ordered)))?;
        Ok(Vaults { shared, orders })
    }

    /// A key of the secret at a path. Blocks at the first use.
    pub(crate) fn resolve(&self, manager: &Arc<Manager>, path: &str, key: &str) -> Result<String, String> {
        let place: SecretPath = (manager.clone(), path.into());
        let mut kept = self.shared.lock();
        if kept.len() >= PATHS_MAX && !kept.contains_key(&place) {
            return Err(format!("more than {PATHS_MAX} paths of Vaults are in use; use keys of fewer paths"));
        }
        let now = Instant::now();
        let one = kept.entry(place.clone()).or_insert_with(|| CachedSecret::new(now));
        if one.wants(now) {
            // Each path has one order at most, so the channel has room; the thread ends with the process only.
            one.is_asked = self.orders.try_send(place.clone()).is_ok();
        }
        // Another client's requests may be waited for, too: each has the manager's bound.
        let (kept, _) = self
            .shared
            .read
            .wait_timeout_while(kept, manager.timeout + Duration::from_secs(1), |kept| {
                kept.get(&place).is_some_and(|one| one.answer.is_none())
            })
            .unwrap_or_else(PoisonError::into_inner);
        match kept.get(&place).and_then(|one| one.answer.as_ref()) {
            Some(Ok(data)) => text_of(data.get(key), path, key),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("{}: no answer within {} s", manager.uri, manager.timeout.as_secs())),
        }
    }

    /// Forgets all but these paths, each with its manager.
    pub(crate) fn keep(&self, used: &HashSet<SecretPath>) {
        self.shared.lock().retain(|place, kept| kept.is_asked || used.contains(place));
    }
}

impl VaultCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<SecretPath, CachedSecret>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedSecret {
    fn new(at: Instant) -> CachedSecret {
        CachedSecret { answer: None, at, is_asked: false, is_failing: false }
    }

    /// Whether it has to be read before it can be used.
    fn wants(&self, now: Instant) -> bool {
        let is_old = now.saturating_duration_since(self.at) >= NEGATIVE;
        !self.is_asked && (self.answer.is_none() || (is_old && matches!(self.answer, Some(Err(_)))))
    }
}

fn text_of(value: Option<&Json>, path: &str, key: &str) -> Result<String, String> {
    match value {
        Some(Json::String(text)) if text.is_empty() => Err(format!("the key {key:?} under {path:?} is empty")),
        Some(Json::String(text)) => Ok(text.clone()),
        Some(Json::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("the key {key:?} under {path:?} is not a text")),
        None => Err(format!("there is no key {key:?} under {path:?}")),
    }
}

/// The thread's state.
struct VaultThread {
    shared: Arc<VaultCache>,
    clients: HashMap<Arc<Manager>, Result<VaultClient, String>>,
    /// Vaults that did not answer: until when they get no requests, and why.
    down: HashMap<Arc<Manager>, (Instant, String)>,
    tls: Tls,
    changes: watch::Sender<u64>,
}

impl VaultThread {
    async fn run(mut self, mut ordered: mpsc::Receiver<SecretPath>) {
        loop {
            let due = self.next_due();
            let wait =
                due.as_ref().map_or(Duration::from_secs(3600), |(at, _)| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                biased;
                order = ordered.recv() => match order {
                    Some(place) => self.read(place).await,
                    None => return,
                },
                () = tokio::time::sleep(wait) => {
                    if let Some((_, place)) = due {
                        self.read(place).await;
                    }
                }
            }
        }
    }

    /// The secret that is to be read again next, and when.
    fn next_due(&self) -> Option<(Instant, SecretPath)> {
        let kept = self.shared.lock();
        let due = |(place, kept): (&SecretPath, &CachedSecret)| {
            let after = if kept.is_failing { NEGATIVE.max(place.0.refresh / 10) } else { place.0.refresh };
            kept.answer.as_ref().map(|_| (kept.at + after, place.clone()))
        };
        kept.iter().filter_map(due).min_by_key(|(at, _)| *at)
    }

    async fn read(&mut self, place: SecretPath) {
        let (manager, path) = (&place.0, &*place.1);
        let tls = self.tls;
        if !self.clients.contains_key(manager) {
            // Forgets the managers that nothing uses any more.
            let used: HashSet<Arc<Manager>> = self.shared.lock().keys().map(|(manager, _)| manager.clone()).collect();
            self.clients.retain(|manager, _| used.contains(manager));
            self.down.retain(|manager, _| used.contains(manager));
        }
        let client = self.clients.entry(manager.clone()).or_insert_with(|| {
            let tls = manager.uri.starts_with("https://").then(|| tls(manager)).transpose()?;
            Ok(VaultClient::new(manager.clone(), tls))
        });
        let answer = match (client, self.down.get(manager)) {
            (Err(why), _) => Err(VaultFailure::Definite(why.clone())),
            (Ok(_), Some((until, why))) if Instant::now() < *until => Err(VaultFailure::Passing(why.clone())),
            (Ok(client), _) => {
                let answer = client.read(path).await;
                match &answer {
                    Err(VaultFailure::Passing(why)) => {
                        self.down.insert(manager.clone(), (Instant::now() + NEGATIVE, why.clone()));
                    }
                    Ok(_) | Err(VaultFailure::Definite(_)) => drop(self.down.remove(manager)),
                }
                answer
            }
        };
        if self.keep(&place, answer) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Whether the answer differs from the one before.
    fn keep(&self, place: &SecretPath, answer: Result<Data, VaultFailure>) -> bool {
        let mut kept = self.shared.lock();
        let one = kept.entry(place.clone()).or_insert_with(|| CachedSecret::new(Instant::now()));
        (one.at, one.is_asked) = (Instant::now(), false);
        let (path, before) = (&place.1, one.answer.take());
        let next = match (answer, before.clone()) {
            (Ok(data), _) => {
                if std::mem::take(&mut one.is_failing) {
                    info!(vault = %place.0.uri, path = %path, "a secret can be read again");
                }
                Ok(data)
            }
            (Err(VaultFailure::Passing(why)), Some(Ok(data))) => {
                if !std::mem::replace(&mut one.is_failing, true) {
                    warn!(path = %path, "a secret cannot be read again; what was read before stays in use: {why}");
                }
                Ok(data)
            }
            (Err(VaultFailure::Passing(why)), _) => {
                one.is_failing = true;
                Err(why)
            }
            (Err(VaultFailure::Definite(why)), _) => Err(why),
        };
        let is_changed = before.is_some_and(|before| before != next);
        one.answer = Some(next);
        drop(kept);
        self.shared.read.notify_all();
        is_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin::secrets::{KvVersion, Secret, VaultLogin};

    #[test]
    fn a_failure_that_may_pass_is_tried_again_sooner() {
        let manager = Manager {
            uri: "http://127.0.0.1:1".into(),
            prefix: "kv".into(),
            namespace: None,
            version: KvVersion::One,
            login: VaultLogin::Token(Secret::new("root")),
            ca: None,
            verify: true,
            timeout: Duration::from_secs(20),
            refresh: Duration::from_secs(3600),
        };
        let reader = VaultThread {
            shared: Arc::new(VaultCache { kept: Mutex::default(), read: Condvar::new() }),
            clients: HashMap::new(),
            down: HashMap::new(),
            tls: |_| Err(String::new()),
            changes: watch::Sender::new(0),
        };
        let place: SecretPath = (Arc::new(manager), "jack".into());
        for (answer, secs) in [
            (Err(VaultFailure::Definite("nothing there".to_owned())), 3600),
            (Err(VaultFailure::Passing("sealed".to_owned())), 360),
            (Ok(Arc::default()), 3600),
            (Err(VaultFailure::Passing("sealed".to_owned())), 360),
        ] {
            let before = Instant::now();
            reader.keep(&place, answer);
            let (due, _) = reader.next_due().unwrap();
            let wait = Duration::from_secs(secs);
            assert!((before + wait..=Instant::now() + wait).contains(&due), "{secs} s");
        }
    }
}
