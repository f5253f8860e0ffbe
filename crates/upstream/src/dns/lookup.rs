//! One lookup of one name: both address families, through `hickory-resolver`.
//!
//! The families are asked for at the same time. Once one of them has given addresses, the other has a time to answer
//! ([`Graces`]): servers that never answer AAAA are common, and a lookup must not last until its timeout because of
//! them. The caller keeps what it knows of a family that did not answer. What the first family has answered is in a
//! [`FirstAnswer`] at once, so a lookup that is ended early does not lose it.
//!
//! The search list is walked here rather than by hickory, so that both families are answered for the same name of it,
//! and a server that fails for one of them can be distinguished from a name without such addresses. hickory's own cache
//! is off: the caller alone decides when an answer is stale.

use super::patient::PATIENT_MAX;
use super::queue::PLACES_MAX;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::{TokioResolver, system_conf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Timeout of one lookup with all its retries, over both families and the search list.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the second family may take longer than the first one that has addresses.
const SECOND_FAMILY_GRACE: Duration = Duration::from_millis(250);
/// The grace of a family that was not answered in the last lookups. Long lookups of a thousand such names would have to
/// wait for each other.
const SILENT_FAMILY_GRACE: Duration = Duration::from_millis(25);
/// Grace for A records after the answer for AAAA was that the name does not exist.
const MISSING_GRACE: Duration = Duration::from_secs(1);
/// The longest wait for an answer of the servers that are asked together. It is over twice within the timeout of a
/// lookup: servers that were silent are noted as such, and others are asked next.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// Address families, which are queries under way at once in a lookup.
const FAMILIES: usize = 2;

/// How long each family may take longer than the other one, once that has addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Graces {
    v4: Duration,
    v6: Duration,
}

impl Graces {
    /// Both families are waited for until the end of the lookup.
    pub(super) const TO_THE_END: Self = Self { v4: LOOKUP_TIMEOUT, v6: LOOKUP_TIMEOUT };

    /// A shorter wait for families that seem to be silent.
    pub(super) fn new(is_v4_silent: bool, is_v6_silent: bool) -> Self {
        let grace = |is_silent| if is_silent { SILENT_FAMILY_GRACE } else { SECOND_FAMILY_GRACE };
        Self { v4: grace(is_v4_silent), v6: grace(is_v6_silent) }
    }
}

/// What the first family with addresses has answered; set by the lookup, which may be waiting for the other one.
pub(super) type FirstAnswer = Arc<OnceLock<LookupAnswer>>;

/// The result of a lookup; at least one address in one family.
#[derive(Debug, Clone)]
pub(super) struct LookupAnswer {
    pub(super) v4: FamilyLookup<Ipv4Addr>,
    pub(super) v6: FamilyLookup<Ipv6Addr>,
    pub(super) ttl: Duration,
}

impl LookupAnswer {
    /// `None` without any address. Families whose answers have not come are unknown.
    fn of(v4: Option<&FamilyResult<Ipv4Addr>>, v6: Option<&FamilyResult<Ipv6Addr>>) -> Option<Self> {
        if !v4.is_some_and(has_addresses) && !v6.is_some_and(has_addresses) {
            return None;
        }
        let ttls = [ttl_s(v4), ttl_s(v6)];
        let ttl = Duration::from_secs(u64::from(ttls.into_iter().flatten().min().unwrap_or(0)));
        Some(Self { v4: family(v4), v6: family(v6), ttl })
    }
}

/// The result for one address family.
#[derive(Debug, Clone)]
pub(super) enum FamilyLookup<A> {
    /// These addresses, possibly none.
    Known(Vec<A>),
    /// The lookup failed, or was not waited for.
    Unknown,
}

impl<A> FamilyLookup<A> {
    /// Whether there was an answer.
    pub(super) fn is_known(&self) -> bool {
        matches!(self, FamilyLookup::Known(_))
    }
}

/// A client of the given servers, or of the system's. Its clones share its sockets.
#[derive(Debug, Clone)]
pub(super) struct NameServers {
    client: TokioResolver,
    /// Domains that are appended to names that are not fully qualified.
    search: Arc<[Name]>,
    /// Answers instead of the servers.
    #[cfg(test)]
    pub(super) simulated: Option<super::tests::SimulatedServer>,
}

impl NameServers {
    pub(super) fn new(servers: &[SocketAddr]) -> Result<Self, String> {
        let (config, mut options) = if servers.is_empty() {
            system_conf::read_system_conf().unwrap_or_else(|error| {
                tracing::warn!(%error, "no usable /etc/resolv.conf; asking a DNS server on this machine");
                let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
                (ResolverConfig::from_name_servers(vec![local]), ResolverOpts::default())
            })
        } else {
            let servers = servers.iter().map(name_server).collect();
            (ResolverConfig::from_name_servers(servers), ResolverOpts::default())
        };
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.timeout = options.timeout.min(ANSWER_TIMEOUT_MAX);
        // All lookups may share one TCP connection, with queries on it that were given up.
        options.max_active_requests = options.max_active_requests.max(2 * FAMILIES * (PLACES_MAX + PATIENT_MAX));
        let search = config.domain().into_iter().chain(config.search()).cloned().collect();
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let client = builder.build().map_err(|error| format!("cannot set up name resolution: {error}"))?;
        Ok(Self {
            client,
            search,
            #[cfg(test)]
            simulated: None,
        })
    }

    /// Looks a name up. The error is the reason, for people.
    pub(super) async fn lookup(
        self,
        name: Arc<str>,
        graces: Graces,
        first: FirstAnswer,
    ) -> Result<LookupAnswer, String> {
        let name = Name::from_utf8(&*name).map_err(|error| format!("not a DNS name: {error}"))?;
        let end = Instant::now() + LOOKUP_TIMEOUT;
        let mut failure = None::<NetError>;
        let candidates = self.candidates(name);
        let count = candidates.len();
        for (index, candidate) in candidates.into_iter().enumerate() {
            // None of them takes the time of those behind it.
            let left = end.saturating_duration_since(Instant::now()) / (count - index) as u32;
            let end = Instant::now() + left;
            let v4 = self.one_family(candidate.clone(), RecordType::A, |data| match data {
                RData::A(address) => Some(address.0),
                _ => None,
            });
            let v6 = self.one_family(candidate, RecordType::AAAA, |data| match data {
                RData::AAAA(address) => Some(address.0),
                _ => None,
            });
            let on_first = |v4: Option<&_>, v6: Option<&_>| {
                // Set once, by the first candidate that has addresses, which is the last one, too.
                LookupAnswer::of(v4, v6).map(|answer| first.set(answer));
            };
            let (v4, v6) = both_families(v4, v6, end, graces, on_first).await;
            if let Some(answer) = LookupAnswer::of(Some(&v4), Some(&v6)) {
                return Ok(answer);
            }
            if is_missing(&v4) || is_missing(&v6) {
                continue;
            }
            // The reason is preferably a failure rather than a missing name.
            failure = failure.or_else(|| v4.err().into_iter().chain(v6.err()).find(|error| !is_negative(error)));
        }
        Err(failure.map_or_else(|| "the name does not exist or has no addresses".into(), |error| error.to_string()))
    }

    /// The fully qualified names to ask for, the first first, in the order that `resolv.conf` demands.
    fn candidates(&self, name: Name) -> Vec<Name> {
        let qualified = |mut name: Name| {
            name.set_fqdn(true);
            name
        };
        if name.is_fqdn() {
            return vec![name];
        }
        let is_first = usize::from(name.num_labels()) > self.client.options().ndots || name.is_localhost();
        let mut candidates: Vec<Name> =
            (self.search.iter()).filter_map(|domain| name.clone().append_domain(domain).ok()).map(qualified).collect();
        candidates.insert(if is_first { 0 } else { candidates.len() }, qualified(name));
        candidates.dedup();
        candidates
    }

    async fn one_family<A>(
        &self,
        name: Name,
        record_type: RecordType,
        address: impl Fn(&RData) -> Option<A>,
    ) -> FamilyResult<A> {
        #[cfg(test)]
        if let Some(server) = &self.simulated {
            return server.answer(&name, record_type, address).await;
        }
        let lookup = self.client.lookup(name, record_type).await?;
        let records: &[Record] = lookup.answers();
        // Aliases on the way count for the TTL, too.
        let ttl_s = records.iter().map(|record| record.ttl).min().unwrap_or(0);
        let addresses = records.iter().filter_map(|record| address(&record.data)).collect();
        Ok(FamilyAddresses { addresses, ttl_s })
    }
}

/// A family's addresses.
#[derive(Debug)]
pub(super) struct FamilyAddresses<A> {
    pub(super) addresses: Vec<A>,
    pub(super) ttl_s: u32,
}

pub(super) type FamilyResult<A> = Result<FamilyAddresses<A>, NetError>;

/// Waits for both families until `end`, or for the second one until its grace is over. There is nothing to wait for if there is no
/// such name. Of the servers that know A records only, some say so of each name when asked for AAAA (RFC 4074 section 4.2).
/// `on_first` has what is known once there are addresses.
async fn both_families<A, B>(
    v4: impl Future<Output = FamilyResult<A>>,
    v6: impl Future<Output = FamilyResult<B>>,
    mut end: Instant,
    graces: Graces,
    on_first: impl Fn(Option<&FamilyResult<A>>, Option<&FamilyResult<B>>),
) -> (FamilyResult<A>, FamilyResult<B>) {
    let (mut v4, mut v6) = (pin!(v4), pin!(v6));
    let (mut found_v4, mut found_v6) = (None, None);
    while found_v4.is_none() || found_v6.is_none() {
        let (is_useful, grace) = tokio::select! {
            // On a busy machine an answer may be there when the time is over.
            biased;
            found = &mut v4, if found_v4.is_none() => (has_addresses(found_v4.insert(found)), graces.v6),
            found = &mut v6, if found_v6.is_none() => (has_addresses(found_v6.insert(found)), graces.v4),
            () = sleep_until(end) => break,
        };
        if is_useful {
            on_first(found_v4.as_ref(), found_v6.as_ref());
            end = end.min(Instant::now() + grace);
        } else if found_v4.as_ref().is_some_and(is_missing) {
            break;
        } else if found_v6.as_ref().is_some_and(is_missing) {
            end = end.min(Instant::now() + MISSING_GRACE);
        }
    }
    (found_v4.unwrap_or(Err(NetError::Timeout)), found_v6.unwrap_or(Err(NetError::Timeout)))
}

/// Whether a server answered that the name does not exist.
fn is_missing<A>(found: &FamilyResult<A>) -> bool {
    let Err(NetError::Dns(DnsError::NoRecordsFound(records))) = found else { return false };
    records.response_code == ResponseCode::NXDomain
}

fn has_addresses<A>(found: &FamilyResult<A>) -> bool {
    found.as_ref().is_ok_and(|found| !found.addresses.is_empty())
}

fn ttl_s<A>(result: Option<&FamilyResult<A>>) -> Option<u32> {
    result?.as_ref().ok().map(|found| found.ttl_s)
}

fn family<A: Clone>(result: Option<&FamilyResult<A>>) -> FamilyLookup<A> {
    match result {
        Some(Ok(found)) => FamilyLookup::Known(found.addresses.clone()),
        Some(Err(error)) if is_negative(error) => FamilyLookup::Known(Vec::new()),
        Some(Err(_)) | None => FamilyLookup::Unknown,
    }
}

/// Whether the error is a server's answer that the name has no addresses of this type.
fn is_negative(error: &NetError) -> bool {
    matches!(error, NetError::Dns(DnsError::NoRecordsFound(_)))
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let mut udp = ConnectionConfig::udp();
    let mut tcp = ConnectionConfig::tcp();
    udp.port = address.port();
    tcp.port = address.port();
    NameServerConfig::new(address.ip(), true, vec![udp, tcp])
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::net::NoRecords;
    use hickory_resolver::proto::op::Query;
    use std::future::{pending, ready};
    use tokio::time::sleep;

    fn found(addresses: &[u32]) -> FamilyResult<u32> {
        Ok(FamilyAddresses { addresses: addresses.to_vec(), ttl_s: 1 })
    }

    async fn later(after: Duration, result: FamilyResult<u32>) -> FamilyResult<u32> {
        sleep(after).await;
        result
    }

    /// What both families gave, and after what time.
    async fn both(
        v4: impl Future<Output = FamilyResult<u32>>,
        v6: impl Future<Output = FamilyResult<u32>>,
    ) -> (Option<Vec<u32>>, Option<Vec<u32>>, Duration) {
        let began = Instant::now();
        let (v4, v6) = both_families(v4, v6, began + LOOKUP_TIMEOUT, Graces::new(false, false), |_, _| ()).await;
        (v4.ok().map(|found| found.addresses), v6.ok().map(|found| found.addresses), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_family_has_a_short_grace() {
        let ms = Duration::from_millis;
        let (v4, v6, took) = both(later(ms(10), found(&[4])), pending()).await;
        assert_eq!((v4, v6), (Some(vec![4]), None));
        assert!(took >= ms(260) && took < ms(270), "{took:?}");
        let (v4, v6, took) = both(pending(), later(ms(10), found(&[6]))).await;
        assert_eq!((v4, v6), (None, Some(vec![6])));
        assert!(took < ms(270), "{took:?}");
        let (v4, v6, took) = both(later(ms(10), found(&[4])), later(ms(200), found(&[6]))).await;
        assert_eq!((v4, v6), (Some(vec![4]), Some(vec![6])));
        assert!(took < ms(210), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_without_addresses_does_not_hurry_the_other() {
        let second = Duration::from_secs(1);
        let (v4, v6, _) = both(ready(found(&[])), later(second, found(&[6]))).await;
        assert_eq!((v4, v6), (Some(vec![]), Some(vec![6])));
        let (v4, v6, _) = both(ready(Err(NetError::Timeout)), later(second, found(&[6]))).await;
        assert_eq!((v4, v6), (None, Some(vec![6])));
        let (v4, v6, took) = both(ready(found(&[])), pending()).await;
        assert_eq!((v4, v6), (Some(vec![]), None));
        assert!(took >= LOOKUP_TIMEOUT && took < LOOKUP_TIMEOUT + second, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_is_known_while_a_silent_family_has_its_grace() {
        for (is_v6_silent, grace) in [(false, SECOND_FAMILY_GRACE), (true, SILENT_FAMILY_GRACE)] {
            let began = Instant::now();
            let first = OnceLock::new();
            let on_first = |v4: Option<&FamilyResult<u32>>, _: Option<&FamilyResult<u32>>| {
                first.set((began.elapsed(), v4.is_some_and(has_addresses))).unwrap();
            };
            let v4 = later(Duration::from_millis(10), found(&[4]));
            let graces = Graces::new(false, is_v6_silent);
            let (_, v6) = both_families(v4, pending(), began + LOOKUP_TIMEOUT, graces, on_first).await;
            let v6: FamilyResult<u32> = v6;
            assert!(v6.is_err() && began.elapsed() - first.get().unwrap().0 >= grace);
            assert!(began.elapsed() < grace + Duration::from_millis(20));
            assert!(first.get().unwrap().1);
        }
    }

    fn missing() -> FamilyResult<u32> {
        let query = Query::query(Name::root(), RecordType::A);
        Err(NetError::Dns(DnsError::NoRecordsFound(NoRecords::new(query, ResponseCode::NXDomain))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_does_not_exist_is_not_waited_for() {
        let second = Duration::from_secs(1);
        let (v4, v6, took) = both(ready(missing()), pending()).await;
        assert!(v4.is_none() && v6.is_none() && took < second, "{took:?}");
        // A server that denies a name for which it has an A record.
        let (v4, _, took) = both(later(second / 2, found(&[4])), ready(missing())).await;
        assert_eq!(v4, Some(vec![4]));
        assert!(took < second);
        let (.., took) = both(pending(), ready(missing())).await;
        assert!(took < 2 * second, "{took:?}");
    }
}
