//! The directory's functions as scripts, and the interpretation of their answers.

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{Client, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Script, TlsCertificates};
use std::fmt::{self, Display};
use std::sync::Mutex;
use std::time::Duration;
use stillgate_devices::Generation;
use stillgate_devices::directory::{
    Connect, ConnectOutcome, DirectoryEntry, Disconnect, Duplicate, Era, LEASE_MS, Lease, Location, Member, Members,
    OFFLINE_RETENTION_MS, RegistrationAnswer,
};

const ERA_KEY: &[u8] = b"sg:{nodes}:era";
const LEASES_KEY: &[u8] = b"sg:{nodes}:leases";
const DEVICE_PREFIX: &[u8] = b"sg:d:";

/// How long a dead node is listed.
const DEAD_NODE_KEPT_MS: u64 = 3_600_000;

/// 2024-01-01T00:00:00Z in seconds since the epoch: the beginning of eras.
const ERAS_BEGIN_S: u64 = 1_704_067_200;

pub(super) struct Store {
    link: RegistryLink,
    connect: Script,
    disconnect: Script,
    register: Script,
    heartbeat: Script,
    begin_era: Script,
}

/// This node's own line of the leases.
pub(super) struct OwnLease<'a> {
    pub(super) node: &'a str,
    pub(super) epoch: u64,
    pub(super) fully_registered_era: Option<Era>,
    pub(super) address: &'a str,
}

/// The result of a heartbeat.
#[derive(Debug, Clone)]
pub(super) struct HeartbeatResult {
    pub(super) has_lease: bool,
    pub(super) era: Option<Era>,
    /// The directory's clock as an era.
    pub(super) era_now: Era,
    pub(super) members: Members,
}

/// A script that compares connections.
fn ordering(script: &str) -> Script {
    Script::new(&format!("{}{script}", include_str!("../../scripts/order.lua")))
}

impl Store {
    pub(super) fn new(address: &RedisAddress) -> Result<Store, StoreAddressError> {
        Ok(Store {
            link: RegistryLink::new(address)?,
            connect: ordering(include_str!("../../scripts/connect.lua")),
            disconnect: ordering(include_str!("../../scripts/disconnect.lua")),
            register: ordering(include_str!("../../scripts/register.lua")),
            heartbeat: Script::new(include_str!("../../scripts/heartbeat.lua")),
            begin_era: Script::new(include_str!("../../scripts/begin_era.lua")),
        })
    }

    /// `directory::connect`.
    pub(super) async fn connect(&self, device: &str, request: &Connect) -> Result<ConnectOutcome, StoreError> {
        let Connect { place, era, duplicate, dead, now_ms } = request;
        let stays = u8::from(*duplicate == Duplicate::Refuse);
        let dead = dead.map_or_else(String::new, |dead| dead.to_string());
        let first = era.first_generation();
        let [epoch, connection, first] = [text(place.epoch), text(place.connection), text(first)];
        let [stays, now, kept] = [text(stays), text(now_ms), text(OFFLINE_RETENTION_MS)];
        let arguments = [&*place.node, &epoch, &connection, &first, &stays, &dead, &now, &kept];
        let answer: Vec<redis::Value> = self.run(&self.connect, device, &arguments).await?;
        parse_connect_outcome(&answer).ok_or_else(|| StoreError("an answer of another form than expected".into()))
    }

    /// `directory::register`.
    pub(super) async fn register(
        &self,
        device: &str,
        place: &Location,
        generation: Generation,
        since_ms: u64,
    ) -> Result<RegistrationAnswer, StoreError> {
        let [epoch, connection] = [text(place.epoch), text(place.connection)];
        let [generation, since, kept] = [text(generation), text(since_ms), text(OFFLINE_RETENTION_MS)];
        let arguments = [&*place.node, &epoch, &connection, &generation, &since, &kept];
        let is_current: bool = self.run(&self.register, device, &arguments).await?;
        Ok(if is_current { RegistrationAnswer::Current } else { RegistrationAnswer::Superseded })
    }

    /// `directory::disconnect`.
    pub(super) async fn disconnect(&self, device: &str, ended: &Disconnect, now_ms: u64) -> Result<(), StoreError> {
        let Disconnect { place, and_older } = ended;
        let [epoch, connection, older] = [text(place.epoch), text(place.connection), text(u8::from(*and_older))];
        let [now, kept] = [text(now_ms), text(OFFLINE_RETENTION_MS)];
        let arguments = [&*place.node, &epoch, &connection, &older, &now, &kept];
        let _was_current: bool = self.run(&self.disconnect, device, &arguments).await?;
        Ok(())
    }

    /// A device's entry.
    pub(super) async fn look_up(&self, device: &str) -> Result<Option<DirectoryEntry>, StoreError> {
        let entry = self.link.get(&device_key(device)).await?;
        // Anything that is not an entry counts as absent, a value of another type, too; the next connection overwrites it.
        Ok(entry.and_then(|entry| parse_entry(&String::from_utf8_lossy(&entry))))
    }

    /// Renews this node's lease, and reads all of them.
    pub(super) async fn renew_lease(&self, own_lease: &OwnLease<'_>) -> Result<HeartbeatResult, StoreError> {
        self.beat(own_lease, Some(LEASE_MS)).await
    }

    /// Reads all leases.
    pub(super) async fn read(&self) -> Result<HeartbeatResult, StoreError> {
        self.beat(&OwnLease { node: "", epoch: 0, fully_registered_era: None, address: "" }, None).await
    }

    /// Ends this node's lease.
    pub(super) async fn release(&self, node: &str, epoch: u64) -> Result<(), StoreError> {
        let _reading = self.beat(&OwnLease { node, epoch, fully_registered_era: None, address: "" }, Some(0)).await?;
        Ok(())
    }

    /// Begins another era, unless another node has.
    pub(super) async fn begin_era(&self, found: Option<Era>, era: Era) -> Result<(), StoreError> {
        let found = found.map_or_else(String::new, |found| found.0.to_string());
        let arguments = [found.as_bytes(), &text(era.0).into_bytes()];
        let _era: String = self.link.run(&self.begin_era, &[ERA_KEY], &arguments).await?;
        Ok(())
    }

    /// `lease_ms` is the length of this node's lease; `None` only reads.
    async fn beat(&self, own_lease: &OwnLease<'_>, lease_ms: Option<u64>) -> Result<HeartbeatResult, StoreError> {
        let [epoch, length, fully_registered_era] = [
            text(own_lease.epoch),
            text(lease_ms.unwrap_or(0)),
            text(own_lease.fully_registered_era.map_or(0, |fully_registered_era| fully_registered_era.0)),
        ];
        let [holds, kept] = [text(u8::from(lease_ms.is_some())), text(DEAD_NODE_KEPT_MS)];
        let longest = text(LEASE_MS);
        let node = own_lease.node;
        let arguments = [node, &epoch, &length, &fully_registered_era, own_lease.address, &holds, &kept, &longest];
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let keys = [ERA_KEY, LEASES_KEY];
        let (is_held, era, now_ms, leases): (bool, String, u64, Vec<(String, String)>) =
            self.link.run(&self.heartbeat, &keys, &arguments).await?;
        let era = era.parse().ok().map(Era);
        let era_now = Era(u32::try_from((now_ms / 1000).saturating_sub(ERAS_BEGIN_S)).unwrap_or(u32::MAX));
        let read = leases.iter().filter_map(|(node, lease)| Some((node.as_str().into(), parse_member(lease)?)));
        Ok(HeartbeatResult { has_lease: is_held, era, era_now, members: Members::new(read, era, now_ms, era_now) })
    }

    async fn run<T: redis::FromRedisValue>(
        &self,
        script: &Script,
        device: &str,
        arguments: &[&str],
    ) -> Result<T, StoreError> {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        self.link.run(script, &[&device_key(device)], &arguments).await
    }
}

fn device_key(device: &str) -> Vec<u8> {
    [DEVICE_PREFIX, device.as_bytes()].concat()
}

fn text(number: impl Display) -> String {
    number.to_string()
}

/// `{is_current, generation}`, and a place if there is another connection.
fn parse_connect_outcome(answer: &[redis::Value]) -> Option<ConnectOutcome> {
    let text = |index: usize| redis::from_redis_value_ref::<String>(answer.get(index)?).ok();
    let is_current: bool = redis::from_redis_value_ref(answer.first()?).ok()?;
    let generation = Generation(text(1)?.parse().ok()?);
    let place = || {
        let (epoch, connection) = (text(2)?.parse().ok()?, text(3)?.parse().ok()?);
        Some(Location { node: text(4)?.into(), epoch, connection })
    };
    match is_current {
        true => Some(ConnectOutcome::Current { generation, replaced: place() }),
        false => Some(ConnectOutcome::Occupied { place: place()?, generation }),
    }
}

fn parse_entry(entry: &str) -> Option<DirectoryEntry> {
    let mut parts = entry.splitn(6, ' ');
    let is_online = parts.next()? == "1";
    let [generation, at_ms, epoch, connection] = [(); 4].map(|()| parts.next().and_then(|part| part.parse().ok()));
    let (generation, at_ms) = (Generation(generation?), at_ms?);
    if !is_online {
        return Some(DirectoryEntry::Offline { generation, last_seen_ms: at_ms });
    }
    let place = Location { node: parts.next()?.into(), epoch: epoch?, connection: connection? };
    Some(DirectoryEntry::Online { place, generation, since_ms: at_ms })
}

fn parse_member(lease: &str) -> Option<Member> {
    let mut parts = lease.splitn(4, ' ');
    let [epoch, until_ms, fully_registered_era] =
        [(); 3].map(|()| parts.next().and_then(|part| part.parse::<u64>().ok()));
    let fully_registered_era =
        u32::try_from(fully_registered_era?).ok().filter(|fully_registered_era| *fully_registered_era > 0).map(Era);
    let lease = Lease { epoch: epoch?, until_ms: until_ms? };
    Some(Member { lease, address: parts.next()?.into(), fully_registered_era })
}

// The connection to Redis: one server or a cluster, over TCP or TLS, made again when it breaks.

/// Timeout of an answer. Then the directory counts as away. Unit tests compare answers, however late.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 120_000 } else { 1_000 });
const CONNECT_TIMEOUT: Duration = ANSWER_TIMEOUT;
/// The longest wait before the next attempt to connect: a directory that is back is noticed with the next heartbeat.
const RECONNECT_DELAY_MAX: Duration = Duration::from_millis(500);

/// The address of the directory.
#[derive(Debug, Clone)]
pub struct RedisAddress {
    /// `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, or `rediss://` for TLS. For a cluster, some of its nodes.
    pub urls: Vec<String>,
    /// Whether it is a cluster.
    pub is_cluster: bool,
    /// For TLS, the roots to trust, in PEM; if absent, those of the system.
    pub ca_pem: Option<Vec<u8>>,
}

/// An invalid address.
#[derive(Debug)]
pub struct StoreAddressError(redis::RedisError);

/// A connection that is made when needed.
enum RegistryLink {
    One(ConnectionManager),
    Cluster { client: Box<ClusterClient>, connection: Mutex<Option<ClusterConnection>> },
}

impl RegistryLink {
    /// Checks the address; connects later.
    pub(super) fn new(address: &RedisAddress) -> Result<RegistryLink, StoreAddressError> {
        let certificates = TlsCertificates { client_tls: None, root_cert: address.ca_pem.clone() };
        let infos = address.urls.iter().map(|url| url.as_str().into_connection_info());
        let infos = infos.collect::<Result<Vec<ConnectionInfo>, _>>().map_err(StoreAddressError)?;
        if address.is_cluster {
            let builder = ClusterClientBuilder::new(infos)
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(ANSWER_TIMEOUT)
                .overall_response_timeout(Some(2 * ANSWER_TIMEOUT))
                .retries(2);
            let builder = if address.ca_pem.is_some() { builder.certs(certificates) } else { builder };
            let client = Box::new(builder.build().map_err(StoreAddressError)?);
            return Ok(RegistryLink::Cluster { client, connection: Mutex::new(None) });
        }
        let Some(info) = infos.into_iter().next() else {
            return Err(StoreAddressError((redis::ErrorKind::InvalidClientConfig, "no url").into()));
        };
        let client = match &address.ca_pem {
            Some(_) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT))
            .set_number_of_retries(1)
            .set_max_delay(RECONNECT_DELAY_MAX);
        let manager = client.and_then(|client| client.get_connection_manager_lazy(config));
        manager.map(RegistryLink::One).map_err(StoreAddressError)
    }

    /// Runs a script.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<T, StoreError> {
        let mut invocation = script.prepare_invoke();
        keys.iter().for_each(|key| {
            invocation.key(*key);
        });
        arguments.iter().for_each(|argument| {
            invocation.arg(*argument);
        });
        match self {
            RegistryLink::One(manager) => Ok(invocation.invoke_async(&mut manager.clone()).await?),
            RegistryLink::Cluster { .. } => Ok(invocation.invoke_async(&mut self.cluster().await?).await?),
        }
    }

    /// Reads a key.
    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let found = match self {
            RegistryLink::One(manager) => get.query_async(&mut manager.clone()).await,
            RegistryLink::Cluster { .. } => get.query_async(&mut self.cluster().await?).await,
        };
        match found {
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
            found => Ok(found?),
        }
    }

    async fn cluster(&self) -> Result<ClusterConnection, StoreError> {
        let RegistryLink::Cluster { client, connection } = self else { return Err(StoreError("no cluster".into())) };
        let known = connection.lock().expect("no holder panics").clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = client.get_async_connection().await?;
        *connection.lock().expect("no holder panics") = Some(made.clone());
        Ok(made)
    }
}

/// Why a command failed. Every error means that the directory cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreError(pub(super) Box<str>);

impl From<redis::RedisError> for StoreError {
    fn from(error: redis::RedisError) -> StoreError {
        let text = error.to_string();
        // Redis refuses the length of a script's arguments before it says NOAUTH.
        match text.contains("unauthenticated") || text.contains("NOAUTH") {
            true => StoreError(format!("{text}; Redis requires a password: write it into registry.redis.url").into()),
            false => StoreError(text.into()),
        }
    }
}

impl fmt::Display for StoreAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write redis://HOST:PORT or rediss://USER:PASSWORD@HOST:PORT", self.0)
    }
}

impl std::error::Error for StoreAddressError {}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_devices::Generation;
    use stillgate_devices::directory::{self, Connect, DirectoryEntry, Disconnect, Duplicate, Era, Location};
    use stillgate_testkit::Redis;

    #[test]
    fn entries_are_read_back() {
        let place = Location { node: "a node".into(), epoch: u64::MAX, connection: 7 };
        let online = DirectoryEntry::Online { place, generation: Generation(9), since_ms: 5 };
        assert_eq!(parse_entry("1 9 5 18446744073709551615 7 a node"), Some(online));
        let offline = DirectoryEntry::Offline { generation: Generation(9), last_seen_ms: 5 };
        assert_eq!(parse_entry("0 9 5 0 0 "), Some(offline));
        for garbage in ["", "1", "1 x 5 1 7 a", "1 9 5 1", "nonsense", "1 9 5 1 -7 a"] {
            assert_eq!(parse_entry(garbage), None, "{garbage}");
        }
        assert_eq!(parse_member("1 2 0 ").unwrap().fully_registered_era, None);
        assert_eq!(parse_member("1 2"), None);
    }

    // The scripts agree with the functions: equal requests, in a real Redis and on an entry in memory.

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % bound
        }

        fn place(&mut self) -> Location {
            // Epochs that are not exact as doubles, next to each other.
            let epoch = u64::MAX - self.below(2);
            let node = ["a", "b with a space", ""][self.below(3) as usize].into();
            Location { node, epoch, connection: [8, 9, 10, u64::MAX - 1, u64::MAX][self.below(5) as usize] }
        }
    }

    fn store(redis: &Redis) -> Store {
        Store::new(&RedisAddress { urls: vec![redis.url(0)], is_cluster: false, ca_pem: None }).unwrap()
    }

    #[tokio::test]
    async fn entries_change_alike() {
        let redis = Redis::start();
        let store = store(&redis);
        let mut random = Random(7);
        for device in ["d", "a/b%20{c}.\u{e4} \n", &"x".repeat(1_024)] {
            let mut entry: Option<DirectoryEntry> = None;
            for step in 0..1_500_u64 {
                let place = random.place();
                let last = entry.as_ref().map_or(0, |entry| entry.generation().0);
                let near = Generation((last + 1).saturating_sub(random.below(3)).max(1));
                match random.below(4) {
                    0 | 1 => {
                        let duplicate = if random.below(2) == 0 { Duplicate::Replace } else { Duplicate::Refuse };
                        let dead = (random.below(3) == 0).then_some(near);
                        let era = Era(90_000_000 + random.below(2) as u32);
                        let request = Connect { place, era, duplicate, dead, now_ms: step };
                        let said = store.connect(device, &request).await.unwrap();
                        assert_eq!(said, directory::connect(&mut entry, request.clone()), "{step}: {request:?}");
                    }
                    2 => {
                        let said = store.register(device, &place, near, step).await.unwrap();
                        assert_eq!(
                            said,
                            directory::register(&mut entry, place.clone(), near, step),
                            "{step}: {place:?}"
                        );
                    }
                    _ => {
                        // Mostly the present connection.
                        let place = match &entry {
                            Some(DirectoryEntry::Online { place: current, .. }) if random.below(3) > 0 => {
                                current.clone()
                            }
                            _ => place,
                        };
                        let ended = Disconnect { place, and_older: random.below(2) == 0 };
                        store.disconnect(device, &ended, step).await.unwrap();
                        directory::disconnect(&mut entry, &ended, step);
                    }
                }
                assert_eq!(store.look_up(device).await.unwrap(), entry, "{step}");
            }
        }
    }

    #[tokio::test]
    async fn a_lease_is_held_by_one_process() {
        let redis = Redis::start();
        let store = store(&redis);
        let own_lease =
            |epoch, fully_registered_era| OwnLease { node: "a", epoch, fully_registered_era, address: "127.0.0.1:1" };
        let first = store.renew_lease(&own_lease(u64::MAX, None)).await.unwrap();
        assert!(first.has_lease && first.era.is_none() && !first.members.is_complete());
        assert!(!store.renew_lease(&own_lease(u64::MAX - 1, None)).await.unwrap().has_lease);
        store.begin_era(None, Era(5)).await.unwrap();
        store.begin_era(None, Era(9)).await.unwrap();
        let second = store.renew_lease(&own_lease(u64::MAX, Some(Era(5)))).await.unwrap();
        assert_eq!((second.has_lease, second.era), (true, Some(Era(5))));
        assert!(second.era_now.0 > 90_000_000, "2026 and later");
        let read = store.read().await.unwrap();
        let member = read.members.get("a").unwrap();
        assert_eq!(
            (member.lease.epoch, &*member.address, member.fully_registered_era),
            (u64::MAX, "127.0.0.1:1", Some(Era(5)))
        );
        assert!(read.members.is_complete() && !read.has_lease);
    }

    #[tokio::test]
    async fn a_lease_ends_in_time_after_the_clock_was_put_back() {
        let redis = Redis::start();
        let store = store(&redis);
        let own_lease =
            |node: &'static str, epoch| OwnLease { node, epoch, fully_registered_era: Some(Era(1)), address: "x:1" };
        let before = store.renew_lease(&own_lease("a", 1)).await.unwrap();
        let until_ms = before.members.get("a").unwrap().lease.until_ms;
        // As if two hours had been taken back since.
        redis.cli(&["HSET", "sg:{nodes}:leases", "a", &format!("1 {} 1 x:1", until_ms + 7_200_000)]);
        let read = store.read().await.unwrap();
        let member = read.members.get("a").unwrap();
        assert!(member.lease.until_ms <= until_ms + 60_000, "it ends after the longest lease: {member:?}");
        assert_eq!((member.lease.epoch, &*member.address, member.fully_registered_era), (1, "x:1", Some(Era(1))));
        assert!(!store.renew_lease(&own_lease("a", 2)).await.unwrap().has_lease, "but not before");
        store.release("b", 9).await.unwrap();
        assert!(store.renew_lease(&own_lease("a", 1)).await.unwrap().has_lease);
    }

    #[tokio::test]
    async fn keys_of_another_type_are_no_outage() {
        let redis = Redis::start();
        let store = store(&redis);
        for key in ["sg:d:d", "sg:{nodes}:era", "sg:{nodes}:leases"] {
            redis.cli(&["RPUSH", key, "a list"]);
        }
        assert_eq!(store.look_up("d").await.unwrap(), None);
        let place = Location { node: "a".into(), epoch: 1, connection: 1 };
        store.disconnect("d", &Disconnect { place: place.clone(), and_older: false }, 0).await.unwrap();
        let own_lease = OwnLease { node: "a", epoch: 1, fully_registered_era: None, address: "" };
        assert!(store.renew_lease(&own_lease).await.unwrap().has_lease);
        store.begin_era(None, Era(5)).await.unwrap();
        assert_eq!(store.read().await.unwrap().era, Some(Era(5)));
        let request = Connect { place, era: Era(5), duplicate: Duplicate::Replace, dead: None, now_ms: 0 };
        store.connect("d", &request).await.unwrap();
        assert!(matches!(store.look_up("d").await.unwrap(), Some(DirectoryEntry::Online { .. })));
    }

    #[tokio::test]
    async fn what_is_not_an_entry_is_overwritten() {
        let redis = Redis::start();
        let store = store(&redis);
        redis.cli(&["SET", "sg:d:d", "nonsense"]);
        assert_eq!(store.look_up("d").await.unwrap(), None);
        let place = Location { node: "a".into(), epoch: 1, connection: 1 };
        store.register("d", &place, Generation(3), 0).await.unwrap();
        assert!(matches!(
            store.look_up("d").await.unwrap(),
            Some(DirectoryEntry::Online { generation: Generation(3), .. })
        ));
    }
}
