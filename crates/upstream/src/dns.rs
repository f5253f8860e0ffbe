//! Keeps the names of the configuration resolved.
//!
//! The control thread owns one [`Resolver`], sets the names in use and waits in [`Resolver::next_change`] among its
//! other events. Each name is looked up again when the TTL of its answer is over; a change is reported only if the
//! *set* of addresses differs. A failed lookup changes nothing: the last good answer stays in use and the name is tried
//! again with growing pauses. The caller decides how to use the addresses.
//!
//! The resolver owns the hosts file ([`HostsFile`]), the order in which names are looked up and the bounds of the lookups
//! under way ([`LookupQueue`]), and one task for each of these lookups ([`NameServers::lookup`]). Tasks return their
//! results through their `JoinSet`; there are no channels. A lookup waits shortly for the second address family. A family
//! that is not answered is waited for by a patient lookup beside the usual ones ([`PatientLookups`]), which changes nothing
//! else.

mod hosts;
mod lookup;
mod patient;
mod queue;

use hosts::HostsFile;
use lookup::{FamilyLookup, FirstAnswer, Graces, LookupAnswer, NameServers};
use patient::PatientLookups;
use queue::{LookupHistory, LookupQueue, NextLookup, Pace};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

/// Lookups in a row with addresses of one family and no answer for the other, after which the next ones wait for it but
/// shortly, and a patient one looks for it. One packet may be lost.
const UNANSWERED_WITH_GRACE: u32 = 2;
/// The same, after which its addresses are not used any more, if a patient lookup has none either.
const UNANSWERED_MAX: u32 = 10;
/// Most addresses used of one name; further ones (in ascending order) are left out with a warning.
const ADDRESSES_MAX: usize = 256;

/// Servers and intervals of the resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolverSettings {
    /// DNS servers; empty: those of `/etc/resolv.conf`, or as in the C library, one on this machine.
    pub servers: Vec<SocketAddr>,
    /// The hosts file, whose names are not looked up on any server.
    pub hosts_file: PathBuf,
    /// Least time for which an answer is used, even with a shorter TTL.
    pub ttl_min: Duration,
    /// Longest time for which an answer is used, even with a longer TTL.
    pub ttl_max: Duration,
    /// Pause after the first failed lookup; doubled after each further one.
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

/// A change of the addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressChange {
    /// The name.
    pub name: String,
    /// Its addresses, ascending, without duplicates, never empty.
    pub addresses: Vec<IpAddr>,
}

/// A name without a usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnresolvedName {
    /// The name.
    pub name: String,
    /// Why the last lookup had no answer.
    pub reason: String,
}

impl fmt::Display for UnresolvedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot resolve {:?}: {}", self.name, self.reason)
    }
}

/// Names, their addresses and the lookups under way. Needs a tokio runtime with IO and time. Dropping it ends all
/// lookups.
#[derive(Debug)]
pub struct Resolver {
    servers: NameServers,
    hosts: HostsFile,
    settings: ResolverSettings,
    names: BTreeMap<Arc<str>, DnsEntry>,
    /// Every name of `names`, waiting for its lookup or with a lookup under way.
    turns: LookupQueue,
    /// Names that [`Resolver::resolve_all`] waits for ([`DnsEntry::is_awaited`]).
    awaited: usize,
    /// Names whose addresses changed and were not returned yet.
    changed: BTreeSet<Arc<str>>,
    lookups: JoinSet<LookupEnd>,
    /// The name that each task looks up. Tasks that were ended are not included.
    tasks: HashMap<Id, Arc<str>>,
    patient: PatientLookups,
}

#[derive(Debug, Default)]
struct DnsEntry {
    answer: Addresses,
    /// The present union of the answer's families, sorted.
    addresses: Vec<IpAddr>,
    history: LookupHistory,
    /// Why the last lookup failed; `None` before the first and after a good one.
    failure: Option<String>,
    /// It has a patient lookup, which waits or is under way.
    is_patient: bool,
    /// It was waited for once without success, and is not waited for again.
    was_waited_for: bool,
    task: Option<LookupTask>,
}

/// A lookup under way.
#[derive(Debug)]
struct LookupTask {
    handle: AbortHandle,
    began: Instant,
    first: FirstAnswer,
}

/// Addresses by family.
#[derive(Debug, Default)]
struct Addresses {
    v4: FamilyMemory<Ipv4Addr>,
    v6: FamilyMemory<Ipv6Addr>,
}

/// What is known of one family of a name.
#[derive(Debug)]
struct FamilyMemory<A> {
    addresses: Vec<A>,
    state: FamilyState,
    /// Lookups in a row that had addresses of the other family, and no answer for this one.
    unanswered: u32,
}

/// What was seen of a family last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FamilyState {
    /// Nothing yet.
    New,
    Answered,
    /// A patient lookup was in vain.
    Silent,
}

impl<A> Default for FamilyMemory<A> {
    fn default() -> Self {
        Self { addresses: Vec::new(), state: FamilyState::New, unanswered: 0 }
    }
}

impl<A> FamilyMemory<A> {
    /// Takes the result of a lookup. Without one the addresses stay until a patient lookup has none either: they may have
    /// moved.
    fn update(&mut self, found: FamilyLookup<A>) {
        match found {
            FamilyLookup::Known(addresses) => *self = Self { addresses, state: FamilyState::Answered, unanswered: 0 },
            FamilyLookup::Unknown => self.unanswered = self.unanswered.saturating_add(1),
        }
    }

    /// Takes the result of a patient lookup. It is old where another lookup had an answer meanwhile.
    fn update_patiently(&mut self, found: FamilyLookup<A>) {
        if self.unanswered == 0 {
            return;
        }
        match found {
            FamilyLookup::Known(_) => self.update(found),
            FamilyLookup::Unknown if self.state == FamilyState::Answered && self.unanswered < UNANSWERED_MAX => {}
            FamilyLookup::Unknown => *self = Self { state: FamilyState::Silent, ..Self::default() },
        }
    }

    /// Whether it needs a patient lookup, so that answers that are late or often lost do not hide the family.
    fn needs_patience(&self) -> bool {
        match self.state {
            FamilyState::New => self.unanswered > 0,
            FamilyState::Answered if self.unanswered == UNANSWERED_WITH_GRACE => true,
            FamilyState::Answered | FamilyState::Silent => self.unanswered >= UNANSWERED_MAX,
        }
    }

    /// Whether no answer is to be expected.
    fn seems_silent(&self) -> bool {
        self.state == FamilyState::Silent || self.unanswered >= UNANSWERED_WITH_GRACE
    }
}

/// The end of a lookup.
#[derive(Debug)]
struct LookupEnd {
    took: Duration,
    /// The answer, or for people, why there is none.
    result: Result<LookupAnswer, String>,
}

impl Resolver {
    /// A resolver without names. Fails only if the system's resolver configuration is unusable.
    pub fn new(settings: ResolverSettings) -> Result<Self, String> {
        Ok(Self {
            servers: NameServers::new(&settings.servers)?,
            hosts: HostsFile::new(settings.hosts_file.clone()),
            settings,
            names: BTreeMap::new(),
            turns: LookupQueue::default(),
            awaited: 0,
            changed: BTreeSet::new(),
            lookups: JoinSet::new(),
            tasks: HashMap::new(),
            patient: PatientLookups::default(),
        })
    }

    /// Sets the names in use. Known names keep their addresses, new ones are looked up as soon as the resolver is
    /// awaited, and all others are forgotten.
    pub fn set_names(&mut self, names: impl IntoIterator<Item = String>) {
        let now = Instant::now();
        let mut old = std::mem::take(&mut self.names);
        for name in names {
            if let Some((name, entry)) = old.remove_entry(&*name) {
                self.names.insert(name, entry);
            } else if !self.names.contains_key(&*name) {
                let name = Arc::<str>::from(name);
                self.turns.queue(name.clone(), Pace::Quick, now);
                self.names.insert(name, DnsEntry::default());
            }
        }
        for (name, mut entry) in old {
            self.changed.remove(&name);
            self.turns.remove(&name);
            entry.end_task(&mut self.tasks);
        }
        self.patient.retain(|name| self.names.contains_key(name));
        self.awaited = self.names.values().filter(|entry| entry.is_awaited()).count();
    }

    /// Waits until every name has addresses or failed once, for `bound` at most, and returns the names without
    /// addresses. A name that was waited for that long is not waited for again. The caller must use
    /// [`Resolver::addresses`] afterwards: changes meanwhile are not reported by [`Resolver::next_change`] again. Names
    /// that failed are tried further there.
    pub async fn resolve_all(&mut self, bound: Duration) -> Vec<UnresolvedName> {
        let first_answers = async {
            while self.awaited > 0 {
                // A step with unreported changes would not wait.
                self.changed.clear();
                self.step().await;
            }
        };
        // A timeout is visible in the unresolved names.
        let _elapsed = timeout(bound, first_answers).await;
        self.names.values_mut().for_each(|entry| entry.was_waited_for = true);
        self.awaited = 0;
        self.changed.clear();
        self.unresolved()
    }

    /// Waits for the addresses of a name to change; forever if there are no names. Nothing is lost when the future is
    /// dropped, so it can be one arm of a `select!`. Lookups make progress only while it is awaited.
    pub async fn next_change(&mut self) -> AddressChange {
        loop {
            while let Some(name) = self.changed.pop_first() {
                if let Some(entry) = self.names.get(&name) {
                    let addresses = entry.addresses.clone();
                    return AddressChange { name: name.to_string(), addresses };
                }
            }
            self.step().await;
        }
    }

    /// The present addresses of a name, ascending; empty if it is not in use or was never resolved.
    pub fn addresses(&self, name: &str) -> &[IpAddr] {
        self.names.get(name).map_or(&[], |entry| &entry.addresses)
    }

    /// The names without addresses.
    pub fn unresolved(&self) -> Vec<UnresolvedName> {
        let without = |entry: &&DnsEntry| entry.addresses.is_empty();
        self.names
            .iter()
            .filter(|(_, entry)| without(entry))
            .map(|(name, entry)| UnresolvedName {
                name: name.to_string(),
                reason: entry.failure.clone().unwrap_or_else(|| "no answer yet".into()),
            })
            .collect()
    }

    /// Begins due lookups and waits for events, unless there are changes to return. Cancel-safe.
    async fn step(&mut self) {
        let wake = self.begin_due();
        if !self.changed.is_empty() {
            return;
        }
        let due = async {
            match wake {
                Some(wake) => sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(ended) = self.lookups.join_next_with_id() => self.on_task_end(ended),
            Some((name, answer)) = self.patient.next_end() => self.on_patient_end(&name, answer),
            () = due => {}
        }
        while let Some(ended) = self.lookups.try_join_next_with_id() {
            self.on_task_end(ended);
        }
        while let Some((name, answer)) = self.patient.try_next_end() {
            self.on_patient_end(&name, answer);
        }
    }

    /// Begins the lookups whose turn it is; returns when there may be more to begin.
    fn begin_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if self.hosts.refresh() {
            // Names that failed may have long pauses and long queues, but those in the file need no server.
            let in_file = self.names.keys().filter(|name| self.hosts.lookup(name).is_some());
            in_file.for_each(|name| self.turns.hasten(name, now));
        }
        self.patient.begin(&self.servers);
        loop {
            let (name, instead_of) = match self.turns.next(now) {
                NextLookup::Begin { name, instead_of } => (name, instead_of),
                NextLookup::Wait(wake) => return wake,
            };
            if let Some(other) = instead_of
                && let Some(end) = self.names.get_mut(&other).and_then(|entry| entry.end_task(&mut self.tasks))
            {
                self.on_lookup_end(&other, end);
            }
            if let Some(answer) = self.hosts.lookup(&name) {
                self.on_lookup_end(&name, LookupEnd { took: Duration::ZERO, result: Ok(answer) });
            } else if let Some(entry) = self.names.get_mut(&name) {
                let (began, first) = (Instant::now(), FirstAnswer::default());
                let lookup = self.servers.clone().lookup(name.clone(), entry.graces(), first.clone());
                let handle = self.lookups.spawn(async move {
                    let began = Instant::now();
                    let result = lookup.await;
                    LookupEnd { took: began.elapsed(), result }
                });
                self.tasks.insert(handle.id(), name);
                entry.task = Some(LookupTask { handle, began, first });
            }
        }
    }

    fn on_task_end(&mut self, ended: Result<(Id, LookupEnd), JoinError>) {
        let (id, end) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let result = Err(format!("the lookup ended early: {error}"));
                (error.id(), LookupEnd { took: Duration::ZERO, result })
            }
        };
        if let Some(name) = self.tasks.remove(&id) {
            self.on_lookup_end(&name, end);
        }
    }

    /// Handles the end of a name's lookup, and queues the next one.
    fn on_lookup_end(&mut self, name: &Arc<str>, end: LookupEnd) {
        let Some(entry) = self.names.get_mut(name) else { return };
        entry.task = None;
        self.awaited -= usize::from(entry.is_awaited());
        let (pace, pause) = match end.result {
            Ok(answer) => {
                entry.failure = None;
                let ttl = answer.ttl.clamp(self.settings.ttl_min, self.settings.ttl_max);
                entry.answer.v4.update(answer.v4);
                entry.answer.v6.update(answer.v6);
                if entry.refresh(name) {
                    self.changed.insert(name.clone());
                }
                let begins_to_wait = !entry.is_patient && entry.needs_patience();
                if begins_to_wait {
                    entry.is_patient = true;
                    self.patient.queue(name.clone());
                }
                // An answer that was lost is there again before a patient lookup has had its place.
                let pause = if begins_to_wait { ttl.min(self.settings.retry_min) } else { ttl };
                (entry.history.answered(end.took), pause)
            }
            Err(reason) => {
                if !entry.history.has_failed() {
                    let kept = entry.addresses.len();
                    tracing::warn!(%name, reason, kept, "name not resolved; keeping its last addresses");
                }
                entry.failure = Some(reason);
                entry.history.failed(self.settings.retry_min, self.settings.retry_max)
            }
        };
        let now = Instant::now();
        self.turns.end(name.clone(), pace, now + pause, now);
    }

    /// Adds what a patient lookup has found of families that had no answer. One without any answer changes nothing.
    fn on_patient_end(&mut self, name: &Arc<str>, answer: Option<LookupAnswer>) {
        let Some(entry) = self.names.get_mut(name) else { return };
        entry.is_patient = false;
        let Some(answer) = answer else { return };
        let families =
            [("A", entry.answer.v4.state, answer.v4.is_known()), ("AAAA", entry.answer.v6.state, answer.v6.is_known())];
        for (records, ..) in families.iter().filter(|(_, state, is_known)| *state == FamilyState::New && !is_known) {
            tracing::warn!(%name, records, "no answer for these records of the name; using the others");
        }
        entry.answer.v4.update_patiently(answer.v4);
        entry.answer.v6.update_patiently(answer.v6);
        if entry.refresh(name) {
            self.changed.insert(name.clone());
        }
    }
}

impl DnsEntry {
    /// Whether nothing is known of the name yet, and it was not waited for in vain.
    fn is_awaited(&self) -> bool {
        self.addresses.is_empty() && self.failure.is_none() && !self.was_waited_for
    }

    /// Ends the lookup under way, if there is one. Returns what its first family has answered.
    fn end_task(&mut self, tasks: &mut HashMap<Id, Arc<str>>) -> Option<LookupEnd> {
        let task = self.task.take()?;
        tasks.remove(&task.handle.id());
        task.handle.abort();
        let answer = task.first.get()?.clone();
        Some(LookupEnd { took: task.began.elapsed(), result: Ok(answer) })
    }

    fn graces(&self) -> Graces {
        Graces::new(self.answer.v4.seems_silent(), self.answer.v6.seems_silent())
    }

    fn needs_patience(&self) -> bool {
        self.answer.v4.needs_patience() || self.answer.v6.needs_patience()
    }

    /// Makes the union of the families again. Returns whether the set changed.
    fn refresh(&mut self, name: &str) -> bool {
        let v4 = self.answer.v4.addresses.iter().copied().map(IpAddr::V4);
        let v6 = self.answer.v6.addresses.iter().copied().map(IpAddr::V6);
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

#[cfg(test)]
mod tests;
