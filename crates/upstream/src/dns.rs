//! Keeps the names of the configuration resolved.
//!
//! The control thread owns one [`Resolver`], sets the names in use and waits in [`Resolver::next_change`] among its
//! other events. Each name is looked up again when the TTL of its answer is over; a change is reported only if the
//! *set* of addresses differs. A failed lookup changes nothing: the last good answer stays in use and the name is tried
//! again with growing pauses. The caller decides how to use the addresses.

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Lookups under way at once. Each is a task and a few sockets at most.
const LOOKUPS_MAX: usize = 64;
/// Lookups among these of names that failed when they were last looked up. Names whose server is silent take all the time
/// that a lookup may take, again and again; they must not keep others waiting, however many they are.
const FAILED_LOOKUPS_MAX: usize = LOOKUPS_MAX / 2;
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
    servers: TokioResolver,
    hosts: HostsFile,
    settings: ResolverSettings,
    names: BTreeMap<String, DnsEntry>,
    /// Names whose addresses changed and were not returned yet.
    changed: BTreeSet<String>,
    lookups: JoinSet<Result<LookupAnswer, String>>,
    /// The name that each task looks up. Tasks of forgotten names are not included.
    tasks: HashMap<Id, String>,
}

#[derive(Debug)]
struct DnsEntry {
    answer: Addresses,
    /// The present union of the answer's families, sorted.
    addresses: Vec<IpAddr>,
    /// When to look up next.
    due: Instant,
    /// Failed lookups in a row.
    failures: u32,
    /// Why the last lookup failed; `None` before the first and after a good one.
    failure: Option<String>,
    /// It was waited for once without success, and is not waited for again.
    was_waited_for: bool,
    task: Option<AbortHandle>,
}

impl Resolver {
    /// A resolver without names. Fails only if the system's resolver configuration is unusable.
    pub fn new(settings: ResolverSettings) -> Result<Self, String> {
        Ok(Self {
            servers: servers(&settings.servers)?,
            hosts: HostsFile::new(settings.hosts_file.clone()),
            settings,
            names: BTreeMap::new(),
            changed: BTreeSet::new(),
            lookups: JoinSet::new(),
            tasks: HashMap::new(),
        })
    }

    /// Sets the names in use. Known names keep their addresses, new ones are looked up as soon as the resolver is
    /// awaited, and all others are forgotten.
    pub fn set_names(&mut self, names: impl IntoIterator<Item = String>) {
        let now = Instant::now();
        let mut old = std::mem::take(&mut self.names);
        for name in names {
            let entry = old.remove(&name).unwrap_or_else(|| DnsEntry::new(now));
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

    /// Waits until every name has addresses or failed once, for `bound` at most, and returns the names without
    /// addresses. A name that was waited for that long is not waited for again. The caller must use
    /// [`Resolver::addresses`] afterwards: changes meanwhile are not reported by [`Resolver::next_change`] again. Names
    /// that failed are tried further there.
    pub async fn resolve_all(&mut self, bound: Duration) -> Vec<UnresolvedName> {
        let first_answers = async {
            let pending =
                |entry: &DnsEntry| entry.addresses.is_empty() && entry.failure.is_none() && !entry.was_waited_for;
            while self.names.values().any(pending) {
                // A step with unreported changes would not wait.
                self.changed.clear();
                self.step().await;
            }
        };
        // A timeout is visible in the unresolved names.
        let _elapsed = timeout(bound, first_answers).await;
        self.names.values_mut().for_each(|entry| entry.was_waited_for = true);
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
                    return AddressChange { name, addresses };
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
                name: name.clone(),
                reason: entry.failure.clone().unwrap_or_else(|| "no answer yet".into()),
            })
            .collect()
    }

    /// Starts due lookups and waits for one event, unless there are changes to return. Cancel-safe.
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
            Some(ended) = self.lookups.join_next_with_id() => self.on_task_end(ended),
            () = due => {}
        }
    }

    /// Begins the lookups that are due, the longest due first, as far as the bounds allow; returns when the next one
    /// will be.
    fn start_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut next_due = None::<Instant>;
        let mut from_hosts = Vec::new();
        let mut due = Vec::new();
        let mut failed_lookups = 0;
        for (name, entry) in &mut self.names {
            if entry.task.is_some() {
                failed_lookups += usize::from(entry.failures > 0);
            } else if entry.due > now {
                next_due = Some(next_due.map_or(entry.due, |due| due.min(entry.due)));
            } else {
                due.push((name, entry));
            }
        }
        // In the order of the names, the first ones would take every place again, and the last ones never get any.
        due.sort_by_key(|(_, entry)| entry.due);
        for (name, entry) in due {
            let has_failed = entry.failures > 0;
            if let Some(answer) = self.hosts.lookup(name) {
                from_hosts.push((name.clone(), answer));
            } else if self.lookups.len() < LOOKUPS_MAX && !(has_failed && failed_lookups >= FAILED_LOOKUPS_MAX) {
                let lookup = lookup(self.servers.clone(), name.clone());
                let task = self.lookups.spawn(lookup);
                self.tasks.insert(task.id(), name.clone());
                entry.task = Some(task);
                failed_lookups += usize::from(has_failed);
            }
        }
        for (name, answer) in from_hosts {
            let due = self.on_lookup_end(&name, Ok(answer));
            next_due = next_due.into_iter().chain(due).min();
        }
        next_due
    }

    fn on_task_end(&mut self, ended: Result<(Id, Result<LookupAnswer, String>), JoinError>) {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(format!("the lookup ended early: {error}"))),
        };
        if let Some(name) = self.tasks.remove(&id) {
            self.on_lookup_end(&name, result);
        }
    }

    /// Handles the end of a name's lookup; returns when the next one is due.
    fn on_lookup_end(&mut self, name: &str, result: Result<LookupAnswer, String>) -> Option<Instant> {
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

impl DnsEntry {
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

    /// Updates the addresses of each family that the answer has, and keeps the other. Returns whether the set changed.
    fn update(&mut self, name: &str, answer: LookupAnswer) -> bool {
        if let FamilyLookup::Known(addresses) = answer.v4 {
            self.answer.v4 = addresses;
        }
        if let FamilyLookup::Known(addresses) = answer.v6 {
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

// The hosts file, read again whenever it changes.
//
// As in the C library, a name in it is answered from it alone: no server is asked for the other address family, which
// would make a gateway without a network wait for answers it does not need.

/// How long an answer from the file is used before the file is checked again.
const HOSTS_TTL: Duration = Duration::from_secs(10);

/// The file and its content when it was last read.
#[derive(Debug)]
struct HostsFile {
    path: PathBuf,
    /// Modification time and length of the file that `hosts` was read from; `None` if there was no file.
    version: Option<(SystemTime, u64)>,
    hosts: Hosts,
}

impl HostsFile {
    /// Not read yet.
    fn new(path: PathBuf) -> Self {
        Self { path, version: None, hosts: Hosts::default() }
    }

    /// The file's answer for the name, if it has one.
    fn lookup(&mut self, name: &str) -> Option<LookupAnswer> {
        self.refresh();
        let name = Name::from_utf8(name).ok()?;
        let records = |record_type| {
            let query = Query::query(name.clone(), record_type);
            let lookup = self.hosts.lookup_static_host(&query);
            lookup.map_or_else(Vec::new, |lookup| lookup.answers().to_vec())
        };
        let v4: Vec<_> = (records(RecordType::A).into_iter())
            .filter_map(|record| match record.data {
                RData::A(address) => Some(address.0),
                _ => None,
            })
            .collect();
        let v6: Vec<_> = (records(RecordType::AAAA).into_iter())
            .filter_map(|record| match record.data {
                RData::AAAA(address) => Some(address.0),
                _ => None,
            })
            .collect();
        (!v4.is_empty() || !v6.is_empty()).then_some(LookupAnswer {
            v4: FamilyLookup::Known(v4),
            v6: FamilyLookup::Known(v6),
            ttl: HOSTS_TTL,
        })
    }

    fn refresh(&mut self) {
        let version = fs::metadata(&self.path).and_then(|metadata| Ok((metadata.modified()?, metadata.len()))).ok();
        if version == self.version {
            return;
        }
        self.version = version;
        match self.read() {
            Ok(hosts) => self.hosts = hosts,
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(%file, %error, "hosts file not read; its names are asked of DNS");
                self.hosts = Hosts::default();
            }
        }
    }

    fn read(&self) -> io::Result<Hosts> {
        let mut hosts = Hosts::default();
        if self.version.is_some() {
            hosts.read_hosts_conf(File::open(&self.path)?)?;
        }
        Ok(hosts)
    }
}

// One lookup of one name: both address families, through `hickory-resolver`.
//
// The families are looked up one after the other, so that a server that fails for one of them can be distinguished
// from a name without such addresses, and so that both are answered for the same name of the search list. hickory's
// own cache is off: the caller alone decides when an answer is stale.

/// Timeout of one lookup with all its retries, over both families.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the first family, so that there is time left to ask for the other one.
const FIRST_FAMILY_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest wait for an answer of the servers that are asked together. It is over twice within the timeout of a
/// family: servers that were silent are noted as such, and others are asked next.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// Addresses by family.
#[derive(Debug, Default)]
struct Addresses {
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
}

/// The result of a lookup; at least one address in one family.
#[derive(Debug)]
struct LookupAnswer {
    v4: FamilyLookup<Ipv4Addr>,
    v6: FamilyLookup<Ipv6Addr>,
    ttl: Duration,
}

/// The result for one address family.
#[derive(Debug)]
enum FamilyLookup<A> {
    /// These addresses, possibly none.
    Known(Vec<A>),
    /// The lookup failed.
    Unknown,
}

/// A client of the given servers, or of the system's.
fn servers(servers: &[SocketAddr]) -> Result<TokioResolver, String> {
    let (config, mut options) = if servers.is_empty() {
        system_conf::read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, "no usable /etc/resolv.conf; asking a DNS server on this machine");
            let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let config = ResolverConfig::from_name_servers(vec![local]);
            (config, ResolverOpts::default())
        })
    } else {
        let servers = servers.iter().map(name_server).collect();
        let config = ResolverConfig::from_name_servers(servers);
        (config, ResolverOpts::default())
    };
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = options.timeout.min(ANSWER_TIMEOUT_MAX);
    // All lookups may share one TCP connection, with queries on it that were given up.
    options.max_active_requests = options.max_active_requests.max(2 * LOOKUPS_MAX);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(|error| format!("cannot set up name resolution: {error}"))
}

/// Looks a name up. The error is the reason, for people.
async fn lookup(servers: TokioResolver, name: String) -> Result<LookupAnswer, String> {
    let name = Name::from_utf8(name).map_err(|error| format!("not a DNS name: {error}"))?;
    let began = Instant::now();
    let v4 = one_family(&servers, name.clone(), RecordType::A, |data| match data {
        RData::A(address) => Some(address.0),
        _ => None,
    });
    let v4 = answer_until(began + FIRST_FAMILY_TIMEOUT, v4).await;
    let v6_name = v4.as_ref().map_or(name, |found| found.name.clone());
    let v6 = one_family(&servers, v6_name, RecordType::AAAA, |data| match data {
        RData::AAAA(address) => Some(address.0),
        _ => None,
    });
    let v6 = answer_until(began + LOOKUP_TIMEOUT, v6).await;
    let v4_empty = v4.as_ref().map_or(true, |found| found.addresses.is_empty());
    let v6_empty = v6.as_ref().map_or(true, |found| found.addresses.is_empty());
    if v4_empty && v6_empty {
        return Err(reason(v4.err(), v6.err()));
    }
    let ttls = [v4.as_ref().ok().map(|found| found.ttl_s), v6.as_ref().ok().map(|found| found.ttl_s)];
    let ttl_s = ttls.into_iter().flatten().min().unwrap_or(0);
    Ok(LookupAnswer { v4: family(v4), v6: family(v6), ttl: Duration::from_secs(u64::from(ttl_s)) })
}

async fn answer_until<A>(end: Instant, answer: impl Future<Output = Result<A, NetError>>) -> Result<A, NetError> {
    timeout_at(end, answer).await.unwrap_or(Err(NetError::Timeout))
}

/// A family's addresses and the name that had them.
struct FamilyAddresses<A> {
    addresses: Vec<A>,
    /// The fully qualified name of the search list that had them.
    name: Name,
    ttl_s: u32,
}

async fn one_family<A>(
    servers: &TokioResolver,
    name: Name,
    record_type: RecordType,
    address: impl Fn(&RData) -> Option<A>,
) -> Result<FamilyAddresses<A>, NetError> {
    let lookup = servers.lookup(name, record_type).await?;
    let records: &[Record] = lookup.answers();
    // Aliases on the way count for the TTL, too.
    let ttl_s = records.iter().map(|record| record.ttl).min().unwrap_or(0);
    Ok(FamilyAddresses {
        addresses: records.iter().filter_map(|record| address(&record.data)).collect(),
        name: lookup.query().name().clone(),
        ttl_s,
    })
}

fn family<A>(result: Result<FamilyAddresses<A>, NetError>) -> FamilyLookup<A> {
    match result {
        Ok(found) => FamilyLookup::Known(found.addresses),
        Err(error) if is_negative(&error) => FamilyLookup::Known(Vec::new()),
        Err(_) => FamilyLookup::Unknown,
    }
}

/// Whether the error is a server's answer that the name has no addresses of this type.
fn is_negative(error: &NetError) -> bool {
    matches!(error, NetError::Dns(DnsError::NoRecordsFound(_)))
}

/// The reason why neither family was found: preferably a failure rather than a missing name.
fn reason(v4: Option<NetError>, v6: Option<NetError>) -> String {
    let mut errors = v4.into_iter().chain(v6);
    match errors.find(|error| !is_negative(error)) {
        Some(error) => error.to_string(),
        None => "the name does not exist or has no addresses".into(),
    }
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let mut udp = ConnectionConfig::udp();
    let mut tcp = ConnectionConfig::tcp();
    udp.port = address.port();
    tcp.port = address.port();
    NameServerConfig::new(address.ip(), true, vec![udp, tcp])
}
