//! Keeping the names of the configuration resolved.
//!
//! The control thread owns one [`Resolver`], tells it which names are in use and waits in [`Resolver::next_change`] among
//! its other events. Each name is looked up again when the TTL of its answer is over; a change is reported only when the
//! *set* of addresses differs. A failed lookup changes nothing: the last good answer stays in use and the name is tried
//! again with growing pauses. What to do with the addresses is not decided here.

mod hosts;
mod lookup;

use hickory_resolver::TokioResolver;
use hosts::HostsFile;
use lookup::{Addresses, Answer, Family};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

/// Lookups under way at once.
const LOOKUPS_MAX: usize = 16;
/// Addresses used of one name; further ones (in ascending order) are left out with a warning.
const ADDRESSES_MAX: usize = 256;

/// Where and how often to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolverSettings {
    /// DNS servers; empty: those of `/etc/resolv.conf`, or as for the C library, one on this machine.
    pub servers: Vec<SocketAddr>,
    /// The hosts file, whose names are not asked of any server.
    pub hosts_file: PathBuf,
    /// An answer is used for at least this long, whatever its TTL.
    pub ttl_min: Duration,
    /// An answer is used for at most this long, whatever its TTL.
    pub ttl_max: Duration,
    /// Pause after the first failed lookup; doubled by each further one.
    pub retry_min: Duration,
    /// The longest pause after a failed lookup.
    pub retry_max: Duration,
}

impl Default for ResolverSettings {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            hosts_file: PathBuf::from("/etc/hosts"),
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(300),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
        }
    }
}

/// The addresses of a name are others than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name.
    pub name: String,
    /// Its addresses, ascending, without duplicates, never none.
    pub addresses: Vec<IpAddr>,
}

/// A name without a usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The name.
    pub name: String,
    /// Why the last lookup gave none.
    pub reason: String,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot resolve {:?}: {}", self.name, self.reason)
    }
}

/// Names, their addresses and the lookups under way. Needs a tokio runtime with IO and time. Dropping it ends all.
#[derive(Debug)]
pub struct Resolver {
    servers: TokioResolver,
    hosts: HostsFile,
    settings: ResolverSettings,
    names: BTreeMap<String, Entry>,
    /// Names whose addresses changed and were not handed out yet.
    changed: BTreeSet<String>,
    lookups: JoinSet<Result<Answer, String>>,
    /// Whose lookup a task is. Tasks of forgotten names are not in here.
    tasks: HashMap<Id, String>,
}

#[derive(Debug)]
struct Entry {
    answer: Addresses,
    /// The present union of the answer's families, sorted.
    addresses: Vec<IpAddr>,
    /// When to look up next.
    due: Instant,
    /// Failed lookups in a row.
    failures: u32,
    /// Why the last lookup failed; `None` before the first and after a good one.
    failure: Option<String>,
    /// It was waited for once, in vain, and is not again.
    was_waited_for: bool,
    task: Option<AbortHandle>,
}

impl Resolver {
    /// A resolver without names. Fails only where the system's resolver configuration cannot be used at all.
    pub fn new(settings: ResolverSettings) -> Result<Self, String> {
        Ok(Self {
            servers: lookup::servers(&settings.servers)?,
            hosts: HostsFile::new(settings.hosts_file.clone()),
            settings,
            names: BTreeMap::new(),
            changed: BTreeSet::new(),
            lookups: JoinSet::new(),
            tasks: HashMap::new(),
        })
    }

    /// Sets the names in use. Those already known keep their addresses, new ones are looked up as soon as the resolver
    /// is awaited, and all others are forgotten.
    pub fn set_names(&mut self, names: impl IntoIterator<Item = String>) {
        let now = Instant::now();
        let mut old = std::mem::take(&mut self.names);
        for name in names {
            let entry = old.remove(&name).unwrap_or_else(|| Entry::new(now));
            self.names.entry(name).or_insert(entry);
        }
        for (name, entry) in old {
            self.changed.remove(&name);
            if let Some(task) = entry.task {
                self.tasks.remove(&task.id());
                task.abort();
            }
        }
    }

    /// Waits until every name has addresses or failed once, for `bound` at most, and returns the names that have none. One that
    /// was waited for so long is not waited for again.
    /// The caller is to build from [`Resolver::addresses`] afterwards: nothing of what changed meanwhile is reported by
    /// [`Resolver::next_change`] again. Names that failed are tried on there.
    pub async fn resolve_all(&mut self, bound: Duration) -> Vec<Unresolved> {
        let first_answers = async {
            let pending =
                |entry: &Entry| entry.addresses.is_empty() && entry.failure.is_none() && !entry.was_waited_for;
            while self.names.values().any(pending) {
                // A step with changes left to hand out would not wait.
                self.changed.clear();
                self.step().await;
            }
        };
        // Running out of time is seen in what is unresolved.
        let _elapsed = timeout(bound, first_answers).await;
        self.names.values_mut().for_each(|entry| entry.was_waited_for = true);
        self.changed.clear();
        self.unresolved()
    }

    /// Waits for the addresses of a name to change; forever where there are no names. Nothing is lost when the future
    /// is dropped, so it can be one arm of a `select!`. Lookups make progress only while it is awaited.
    pub async fn next_change(&mut self) -> Change {
        loop {
            while let Some(name) = self.changed.pop_first() {
                if let Some(entry) = self.names.get(&name) {
                    let addresses = entry.addresses.clone();
                    return Change { name, addresses };
                }
            }
            self.step().await;
        }
    }

    /// The present addresses of a name, ascending; none where it is not in use or was never resolved.
    pub fn addresses(&self, name: &str) -> &[IpAddr] {
        self.names.get(name).map_or(&[], |entry| &entry.addresses)
    }

    /// The names that have no addresses.
    pub fn unresolved(&self) -> Vec<Unresolved> {
        let without = |entry: &&Entry| entry.addresses.is_empty();
        self.names
            .iter()
            .filter(|(_, entry)| without(entry))
            .map(|(name, entry)| Unresolved {
                name: name.clone(),
                reason: entry.failure.clone().unwrap_or_else(|| "no answer yet".into()),
            })
            .collect()
    }

    /// Starts what is due and waits for one thing to happen, unless there are changes to hand out. Cancel-safe.
    async fn step(&mut self) {
        let next_due = self.start_due();
        if !self.changed.is_empty() {
            return;
        }
        let due = async {
            match next_due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(ended) = self.lookups.join_next_with_id() => self.ended(ended),
            () = due => {}
        }
    }

    /// Begins the lookups that are due, as far as the bound allows; returns when the next one will be.
    fn start_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut next_due = None::<Instant>;
        let mut from_hosts = Vec::new();
        for (name, entry) in &mut self.names {
            if entry.task.is_some() {
                continue;
            }
            if entry.due > now {
                next_due = Some(next_due.map_or(entry.due, |due| due.min(entry.due)));
            } else if let Some(answer) = self.hosts.lookup(name) {
                from_hosts.push((name.clone(), answer));
            } else if self.lookups.len() < LOOKUPS_MAX {
                let lookup = lookup::lookup(self.servers.clone(), name.clone());
                let task = self.lookups.spawn(lookup);
                self.tasks.insert(task.id(), name.clone());
                entry.task = Some(task);
            }
        }
        for (name, answer) in from_hosts {
            let due = self.answered(&name, Ok(answer));
            next_due = next_due.into_iter().chain(due).min();
        }
        next_due
    }

    fn ended(&mut self, ended: Result<(Id, Result<Answer, String>), JoinError>) {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(format!("the lookup ended early: {error}"))),
        };
        if let Some(name) = self.tasks.remove(&id) {
            self.answered(&name, result);
        }
    }

    /// Takes in the end of a name's lookup; returns when the next one is due.
    fn answered(&mut self, name: &str, result: Result<Answer, String>) -> Option<Instant> {
        let entry = self.names.get_mut(name)?;
        entry.task = None;
        let pause = match result {
            Ok(answer) => {
                entry.failures = 0;
                entry.failure = None;
                let ttl = answer.ttl;
                if entry.update(name, answer) {
                    self.changed.insert(name.to_owned());
                }
                ttl.clamp(self.settings.ttl_min, self.settings.ttl_max)
            }
            Err(reason) => {
                if entry.failures == 0 {
                    let kept = entry.addresses.len();
                    tracing::warn!(name, reason, kept, "name not resolved; keeping its last addresses");
                }
                let doublings = entry.failures.min(31);
                entry.failures = entry.failures.saturating_add(1);
                entry.failure = Some(reason);
                let pause = self.settings.retry_min.saturating_mul(1 << doublings);
                pause.min(self.settings.retry_max)
            }
        };
        entry.due = Instant::now() + pause;
        Some(entry.due)
    }
}

impl Entry {
    fn new(now: Instant) -> Self {
        Self {
            answer: Addresses::default(),
            addresses: Vec::new(),
            due: now,
            failures: 0,
            failure: None,
            was_waited_for: false,
            task: None,
        }
    }

    /// Takes in what an answer says of either family and keeps what it does not say. Returns whether the set changed.
    fn update(&mut self, name: &str, answer: Answer) -> bool {
        if let Family::Known(addresses) = answer.v4 {
            self.answer.v4 = addresses;
        }
        if let Family::Known(addresses) = answer.v6 {
            self.answer.v6 = addresses;
        }
        let v4 = self.answer.v4.iter().copied().map(IpAddr::V4);
        let v6 = self.answer.v6.iter().copied().map(IpAddr::V6);
        let mut addresses: Vec<IpAddr> = v4.chain(v6).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() > ADDRESSES_MAX {
            let found = addresses.len();
            tracing::warn!(name, found, used = ADDRESSES_MAX, "name has too many addresses");
            addresses.truncate(ADDRESSES_MAX);
        }
        if addresses.is_empty() || addresses == self.addresses {
            return false;
        }
        self.addresses = addresses;
        true
    }
}
