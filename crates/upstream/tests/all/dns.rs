//! Name resolution against a DNS server of the test's own, on loopback.

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stillgate_upstream::{AddressChange, Resolver, ResolverSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

/// No operation here should take as long, even on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// The server's answer for a name.
#[derive(Debug, Clone)]
enum Says {
    /// These addresses with this TTL.
    Addresses(Vec<IpAddr>, u32),
    NotExisting,
    /// An error for AAAA queries only, the addresses otherwise.
    NoV6(Vec<IpAddr>, u32),
    Broken,
    /// No answer.
    Silence,
    /// No answer to AAAA queries, the addresses otherwise.
    SilenceOfV6(Vec<IpAddr>, u32),
    /// An alias of the other name.
    Alias(&'static str, u32),
}

/// The server's records, and how often each name was queried, counted by A queries.
#[derive(Debug, Default)]
struct Zone {
    says: HashMap<&'static str, Says>,
    asked: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Server {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

impl Server {
    async fn start() -> Self {
        let (tcp, udp) = same_port().await;
        let server = Server { address: udp.local_addr().unwrap(), zone: Arc::default() };
        let over_udp = server.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((len, from)) = udp.recv_from(&mut buffer).await {
                if let Some(reply) = over_udp.reply(&buffer[..len], 512) {
                    udp.send_to(&reply, from).await.unwrap();
                }
            }
        });
        let over_tcp = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = tcp.accept().await {
                tokio::spawn(over_tcp.clone().serve(stream));
            }
        });
        server
    }

    async fn serve(self, mut stream: TcpStream) {
        while let Ok(len) = stream.read_u16().await {
            let mut query = vec![0; usize::from(len)];
            stream.read_exact(&mut query).await.unwrap();
            let Some(reply) = self.reply(&query, usize::from(u16::MAX)) else { continue };
            stream.write_u16(reply.len() as u16).await.unwrap();
            stream.write_all(&reply).await.unwrap();
        }
    }

    fn set(&self, name: &'static str, says: Says) {
        self.zone.lock().unwrap().says.insert(name, says);
    }

    fn asked(&self, name: &str) -> usize {
        let zone = self.zone.lock().unwrap();
        zone.asked.get(name).copied().unwrap_or(0)
    }

    fn reply(&self, query: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
        let query = Message::from_vec(query).unwrap();
        let question = query.queries[0].clone();
        let mut reply = Message::response(query.id, OpCode::Query);
        reply.metadata.recursion_available = true;
        let mut zone = self.zone.lock().unwrap();
        let mut name = question.name().to_ascii().trim_end_matches('.').to_string();
        if question.query_type() == RecordType::A {
            *zone.asked.entry(name.clone()).or_default() += 1;
        }
        loop {
            let owner = Name::from_ascii(format!("{name}.")).unwrap();
            let v6 = question.query_type() == RecordType::AAAA;
            match zone.says.get(name.as_str()).unwrap_or(&Says::NotExisting) {
                Says::Alias(target, ttl) => {
                    let target_name = Name::from_ascii(format!("{target}.")).unwrap();
                    let data = hickory_resolver::proto::rr::rdata::CNAME(target_name);
                    reply.add_answer(Record::from_rdata(owner, *ttl, RData::CNAME(data)));
                    name = target.to_string();
                    continue;
                }
                Says::NotExisting => reply.metadata.response_code = ResponseCode::NXDomain,
                Says::Silence => return None,
                Says::SilenceOfV6(..) if v6 => return None,
                Says::Broken => reply.metadata.response_code = ResponseCode::ServFail,
                Says::NoV6(..) if v6 => reply.metadata.response_code = ResponseCode::ServFail,
                Says::Addresses(addresses, ttl) | Says::NoV6(addresses, ttl) | Says::SilenceOfV6(addresses, ttl) => {
                    for address in addresses.iter().filter(|a| a.is_ipv6() == v6) {
                        let data = RData::from(*address);
                        reply.add_answer(Record::from_rdata(owner.clone(), *ttl, data));
                    }
                }
            }
            break;
        }
        reply.add_query(question);
        let bytes = reply.to_vec().unwrap();
        if bytes.len() <= bytes_max {
            return Some(bytes);
        }
        reply.answers.clear();
        reply.metadata.truncation = true;
        Some(reply.to_vec().unwrap())
    }
}

/// A TCP and a UDP socket on one port.
async fn same_port() -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            return (tcp, udp);
        }
    }
}

fn settings(server: &Server) -> ResolverSettings {
    ResolverSettings {
        servers: vec![server.address],
        hosts_file: PathBuf::from("/nonexistent/hosts"),
        ttl_min: Duration::from_millis(20),
        ttl_max: Duration::from_secs(300),
        retry_min: Duration::from_millis(20),
        retry_max: Duration::from_millis(50),
    }
}

fn resolver(settings: ResolverSettings, names: &[&str]) -> Resolver {
    let mut resolver = Resolver::new(settings).unwrap();
    resolver.set_names(names.iter().map(|name| name.to_string()));
    resolver
}

fn ips(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|a| a.parse().unwrap()).collect()
}

async fn change(resolver: &mut Resolver) -> AddressChange {
    timeout(BOUND, resolver.next_change()).await.unwrap()
}

/// Lets the resolver work until the condition holds; it must not report a change meanwhile.
async fn quiet_until(resolver: &mut Resolver, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "did not come true");
        let waited = timeout(Duration::from_millis(5), resolver.next_change()).await;
        assert_eq!(waited.ok(), None, "no change was to be seen");
    }
}

#[tokio::test]
async fn starts_with_what_resolves_and_reports_the_rest() {
    let server = Server::start().await;
    let both = ips(&["10.0.0.2", "10.0.0.1", "2001:db8::1", "10.0.0.2"]);
    server.set("good.test", Says::Addresses(both, 60));
    server.set("broken.test", Says::Broken);
    server.set("alias.test", Says::Alias("good.test", 60));
    let names = ["good.test", "gone.test", "broken.test", "alias.test"];
    let mut resolver = resolver(settings(&server), &names);

    let unresolved = resolver.resolve_all(BOUND).await;
    let reasons: HashMap<_, _> = (unresolved.iter()).map(|u| (u.name.as_str(), u.reason.as_str())).collect();
    assert_eq!(reasons.len(), 2, "{unresolved:?}");
    assert!(reasons["gone.test"].contains("does not exist"), "{unresolved:?}");
    assert!(!reasons["broken.test"].contains("does not exist"), "{unresolved:?}");
    let sorted = ips(&["10.0.0.1", "10.0.0.2", "2001:db8::1"]);
    assert_eq!(resolver.addresses("good.test"), sorted);
    assert_eq!(resolver.addresses("alias.test"), sorted);
    assert!(resolver.addresses("gone.test").is_empty());

    server.set("gone.test", Says::Addresses(ips(&["10.0.0.9"]), 60));
    let expected = AddressChange { name: "gone.test".into(), addresses: ips(&["10.0.0.9"]) };
    assert_eq!(change(&mut resolver).await, expected, "and nothing of the others");
}

#[tokio::test]
async fn resolve_all_gives_up_at_its_bound() {
    // The port is bound, but nothing answers.
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let server = Server { address: silent.local_addr().unwrap(), zone: Arc::default() };
    let mut resolver = resolver(settings(&server), &["slow.test", "localhost"]);
    let unresolved = resolver.resolve_all(Duration::from_millis(200)).await;
    // It did not wait until the lookup itself times out, which would have another reason.
    assert!(unresolved.iter().any(|it| it.name == "slow.test" && it.reason == "no answer yet"), "{unresolved:?}");
    // It is not waited for again: one bad name would delay all changes of a source that changes often.
    let again = resolver.resolve_all(BOUND).await;
    assert!(again.iter().any(|it| it.name == "slow.test" && it.reason == "no answer yet"), "{again:?}");
    // The other one runs on a thread, which may not get a CPU in time.
    if unresolved.len() > 1 {
        assert_eq!(change(&mut resolver).await.name, "localhost");
    }
    assert_eq!(resolver.addresses("localhost"), ips(&["127.0.0.1", "::1"]), "without a server");
}

#[tokio::test]
async fn a_change_is_one_of_the_set_and_not_of_the_order() {
    let server = Server::start().await;
    server.set("a.test", Says::Addresses(ips(&["10.0.0.1", "10.0.0.2"]), 0));
    let mut resolver = resolver(settings(&server), &["a.test"]);
    assert_eq!(resolver.resolve_all(BOUND).await, []);

    server.set("a.test", Says::Addresses(ips(&["10.0.0.2", "10.0.0.1"]), 0));
    let asked = server.asked("a.test");
    quiet_until(&mut resolver, || server.asked("a.test") > asked + 2).await;
    server.set("a.test", Says::Addresses(ips(&["10.0.0.2"]), 0));
    assert_eq!(change(&mut resolver).await.addresses, ips(&["10.0.0.2"]));
    assert_eq!(resolver.addresses("a.test"), ips(&["10.0.0.2"]));
}

#[tokio::test]
async fn the_ttl_is_honoured_within_its_bounds() {
    let server = Server::start().await;
    server.set("short.test", Says::Addresses(ips(&["10.0.0.1"]), 1));
    server.set("zero.test", Says::Addresses(ips(&["10.0.0.1"]), 0));
    let mut first = resolver(settings(&server), &["short.test", "zero.test"]);
    let began = Instant::now();
    assert_eq!(first.resolve_all(BOUND).await, []);
    server.set("short.test", Says::Addresses(ips(&["10.0.0.2"]), 1));
    assert_eq!(change(&mut first).await.name, "short.test");
    let took = began.elapsed();
    assert!(took > Duration::from_millis(900), "{took:?}");
    let asked = server.asked("short.test");
    assert!((2..=1 + (took.as_secs_f64() / 0.9) as usize).contains(&asked), "{asked} times in {took:?}");
    // As often as ttl_min allows.
    let asked = server.asked("zero.test");
    quiet_until(&mut first, || server.asked("zero.test") > asked + 5).await;

    server.set("long.test", Says::Addresses(ips(&["10.0.0.1"]), 86_400));
    let ttl_max = Duration::from_millis(30);
    let clamped = ResolverSettings { ttl_max, ..settings(&server) };
    let mut second = resolver(clamped, &["long.test"]);
    quiet_first(&mut second).await;
    quiet_until(&mut second, || server.asked("long.test") > 2).await;
}

/// Resolves all names, which must succeed.
async fn quiet_first(resolver: &mut Resolver) {
    assert_eq!(resolver.resolve_all(BOUND).await, []);
}

#[tokio::test]
async fn a_failure_keeps_the_last_good_answer() {
    let server = Server::start().await;
    let good = ips(&["10.0.0.1", "2001:db8::1"]);
    server.set("a.test", Says::Addresses(good.clone(), 0));
    let mut resolver = resolver(settings(&server), &["a.test"]);
    quiet_first(&mut resolver).await;
    for failure in [Says::Broken, Says::NotExisting, Says::Addresses(Vec::new(), 0), Says::NoV6(good.clone(), 0)] {
        server.set("a.test", failure);
        let asked = server.asked("a.test");
        quiet_until(&mut resolver, || server.asked("a.test") > asked + 2).await;
        assert_eq!(resolver.addresses("a.test"), good);
    }
    server.set("a.test", Says::Addresses(ips(&["10.0.0.1"]), 0));
    assert_eq!(change(&mut resolver).await.addresses, ips(&["10.0.0.1"]));
    assert_eq!(resolver.unresolved(), []);
}

/// More names than lookups can be under way at once.
const MANY: usize = 520;

/// A resolver of [`MANY`] names for which the server says this, and one more name, the last in their order.
fn beside_names(server: &Server, says: &Says, last: &'static str) -> Resolver {
    let mut names: Vec<&str> = (0..MANY).map(|n| &*format!("bad-{n}.test").leak()).collect();
    for name in &names {
        server.set(name, says.clone());
    }
    names.push(last);
    resolver(settings(server), &names)
}

/// Follows a name that moves. It takes longer than the bound if it waits for lookups of others.
async fn follows_moves(resolver: &mut Resolver, server: &Server) {
    let moves = async {
        for n in 1..=30 {
            let moved = ips(&[&format!("10.0.0.{n}")]);
            server.set("z.test", Says::Addresses(moved.clone(), 0));
            while resolver.addresses("z.test") != moved {
                resolver.next_change().await;
            }
        }
    };
    timeout(Duration::from_secs(25), moves).await.expect("followed");
}

#[tokio::test]
async fn silent_names_do_not_keep_others_waiting() {
    let server = Server::start().await;
    server.set("z.test", Says::Addresses(ips(&["10.0.0.0"]), 0));
    let mut resolver = beside_names(&server, &Says::Silence, "z.test");
    let first = timeout(Duration::from_secs(25), resolver.next_change()).await.expect("resolved");
    assert_eq!(first, AddressChange { name: "z.test".into(), addresses: ips(&["10.0.0.0"]) });
    // It did not wait for the end of any of their lookups.
    let unresolved = resolver.unresolved();
    assert!(unresolved.len() == MANY && unresolved.iter().all(|it| it.reason == "no answer yet"), "{unresolved:?}");
    follows_moves(&mut resolver, &server).await;
    assert_eq!(resolver.unresolved().len(), MANY);
}

#[tokio::test]
async fn names_that_fall_silent_do_not_keep_others_waiting() {
    let server = Server::start().await;
    server.set("z.test", Says::Addresses(ips(&["10.0.0.0"]), 0));
    let good = ips(&["10.0.1.1"]);
    let mut resolver = beside_names(&server, &Says::Addresses(good.clone(), 0), "z.test");
    quiet_first(&mut resolver).await;
    for n in 0..MANY {
        server.set(format!("bad-{n}.test").leak(), Says::Silence);
    }
    follows_moves(&mut resolver, &server).await;
    assert!((0..MANY).all(|n| resolver.addresses(&format!("bad-{n}.test")) == good), "kept");
}

#[tokio::test]
async fn names_without_answers_for_v6_do_not_keep_others_waiting() {
    let server = Server::start().await;
    server.set("z.test", Says::Addresses(ips(&["10.0.0.0"]), 0));
    let mut resolver = beside_names(&server, &Says::SilenceOfV6(ips(&["10.0.1.1"]), 0), "z.test");
    quiet_first(&mut resolver).await;
    follows_moves(&mut resolver, &server).await;
}

#[tokio::test]
async fn names_that_failed_are_tried_in_turn() {
    let server = Server::start().await;
    server.set("z.test", Says::Broken);
    let mut resolver = beside_names(&server, &Says::Silence, "z.test");
    quiet_until(&mut resolver, || server.asked("z.test") > 0).await;
    server.set("z.test", Says::Addresses(ips(&["10.0.0.1"]), 0));
    // The others are first once each.
    let change = timeout(Duration::from_secs(60), resolver.next_change()).await.expect("tried again");
    assert_eq!(change.name, "z.test");
}

#[tokio::test]
async fn a_family_is_used_though_the_other_is_never_answered() {
    let server = Server::start().await;
    let known = ips(&["10.0.0.1", "2001:db8::1"]);
    server.set("a.test", Says::Addresses(known, 0));
    server.set("b.test", Says::SilenceOfV6(ips(&["10.0.0.1"]), 60));
    let mut resolver = resolver(settings(&server), &["a.test", "b.test"]);
    let began = Instant::now();
    quiet_first(&mut resolver).await;
    assert!(began.elapsed() < Duration::from_secs(4), "it did not wait for the timeout: {:?}", began.elapsed());
    assert_eq!(resolver.addresses("b.test"), ips(&["10.0.0.1"]));
    // Known addresses of the silent family are kept.
    server.set("a.test", Says::SilenceOfV6(ips(&["10.0.0.2"]), 0));
    assert_eq!(change(&mut resolver).await.addresses, ips(&["10.0.0.2", "2001:db8::1"]));
}

#[tokio::test]
async fn many_addresses_come_over_tcp_and_are_bounded() {
    let server = Server::start().await;
    let many =
        |count: u32| -> Vec<IpAddr> { (1..=count).map(|n| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))).collect() };
    server.set("a.test", Says::Addresses(many(200), 60));
    server.set("b.test", Says::Addresses(many(300), 60));
    let mut resolver = resolver(settings(&server), &["a.test", "b.test"]);
    quiet_first(&mut resolver).await;
    assert_eq!(resolver.addresses("a.test"), many(200));
    assert_eq!(resolver.addresses("b.test"), many(256));
}

#[tokio::test]
async fn names_no_longer_in_use_are_forgotten() {
    let server = Server::start().await;
    for name in ["a.test", "b.test", "c.test"] {
        server.set(name, Says::Addresses(ips(&["10.0.0.1"]), 0));
    }
    let mut resolver = resolver(settings(&server), &["a.test", "b.test"]);
    quiet_first(&mut resolver).await;
    resolver.set_names(["b.test".to_string(), "c.test".to_string()]);
    assert!(resolver.addresses("a.test").is_empty());
    assert_eq!(resolver.addresses("b.test"), ips(&["10.0.0.1"]), "kept");
    assert_eq!(change(&mut resolver).await.name, "c.test");
    let (a, b) = (server.asked("a.test"), server.asked("b.test"));
    quiet_until(&mut resolver, || server.asked("b.test") > b + 3).await;
    assert!(server.asked("a.test") <= a + 1, "but for one that was under way");
}

#[tokio::test]
async fn the_hosts_file_comes_first_and_is_read_again() {
    let server = Server::start().await;
    server.set("a.test", Says::Addresses(ips(&["10.0.0.1", "2001:db8::1"]), 0));
    let path = std::env::temp_dir().join(format!("stillgate-hosts-{}", std::process::id()));
    // In one step, as it may be read at any moment.
    let write = |text: &str| {
        let beside = path.with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &path).unwrap();
    };
    write("192.0.2.7 a.test other.test # local\n");
    let hosts_file = path.clone();
    let ttl_max = Duration::from_millis(20);
    let settings = ResolverSettings { hosts_file, ttl_max, ..settings(&server) };
    let mut resolver = resolver(settings, &["a.test"]);
    quiet_first(&mut resolver).await;
    assert_eq!(resolver.addresses("a.test"), ips(&["192.0.2.7"]));
    assert_eq!(server.asked("a.test"), 0);
    write("192.0.2.7 a.test\n192.0.2.8 a.test\n");
    let expected = ips(&["192.0.2.7", "192.0.2.8"]);
    assert_eq!(change(&mut resolver).await.addresses, expected);
    std::fs::remove_file(&path).unwrap();
    let expected = ips(&["10.0.0.1", "2001:db8::1"]);
    assert_eq!(change(&mut resolver).await.addresses, expected);
}
