//! One lookup of one name: both address families, through `hickory-resolver`.
//!
//! The families are looked up one after the other, so that a server that fails for one of them can be distinguished
//! from a name without such addresses, and so that both are answered for the same name of the search list. hickory's
//! own cache is off: the caller alone decides when an answer is stale.

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::{TokioResolver, system_conf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of one lookup with all its retries, over both families.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Addresses by family.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    pub(super) v4: Vec<Ipv4Addr>,
    pub(super) v6: Vec<Ipv6Addr>,
}

/// The result of a lookup; at least one address in one family.
#[derive(Debug)]
pub(super) struct LookupAnswer {
    pub(super) v4: FamilyLookup<Ipv4Addr>,
    pub(super) v6: FamilyLookup<Ipv6Addr>,
    pub(super) ttl: Duration,
}

/// The result for one address family.
#[derive(Debug)]
pub(super) enum FamilyLookup<A> {
    /// These addresses, possibly none.
    Known(Vec<A>),
    /// The lookup failed.
    Unknown,
}

/// A client of the given servers, or of the system's.
pub(super) fn servers(servers: &[SocketAddr]) -> Result<TokioResolver, String> {
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
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(|error| format!("cannot set up name resolution: {error}"))
}

/// Looks a name up. The error is the reason, for people.
pub(super) async fn lookup(servers: TokioResolver, name: String) -> Result<LookupAnswer, String> {
    match timeout(LOOKUP_TIMEOUT, both_families(&servers, &name)).await {
        Ok(result) => result,
        Err(_elapsed) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
    }
}

async fn both_families(servers: &TokioResolver, name: &str) -> Result<LookupAnswer, String> {
    let name = Name::from_utf8(name).map_err(|error| format!("not a DNS name: {error}"))?;
    let v4 = one_family(servers, name.clone(), RecordType::A, |data| match data {
        RData::A(address) => Some(address.0),
        _ => None,
    })
    .await;
    let v6_name = v4.as_ref().map_or(name, |found| found.name.clone());
    let v6 = one_family(servers, v6_name, RecordType::AAAA, |data| match data {
        RData::AAAA(address) => Some(address.0),
        _ => None,
    })
    .await;
    let v4_empty = v4.as_ref().map_or(true, |found| found.addresses.is_empty());
    let v6_empty = v6.as_ref().map_or(true, |found| found.addresses.is_empty());
    if v4_empty && v6_empty {
        return Err(reason(v4.err(), v6.err()));
    }
    let ttls = [v4.as_ref().ok().map(|found| found.ttl_s), v6.as_ref().ok().map(|found| found.ttl_s)];
    let ttl_s = ttls.into_iter().flatten().min().unwrap_or(0);
    Ok(LookupAnswer { v4: family(v4), v6: family(v6), ttl: Duration::from_secs(u64::from(ttl_s)) })
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
