//! The effect of an upgrade on everything besides requests and plain tunnels: other configurations, TLS, metrics, descriptors.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use crate::shared::tunnel;
use crate::shared::tunnel::{AGREE, ASK, Tunnel};
use crate::shared::upgrade::{UpgradedGateway, is_gateway, threads};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use stillgate_testkit::{
    ACCEPT_TEXT, Client, Gateway, Head, ReservedPort, Rounds, Setup, Upstream, eventually, scrape,
};

#[test]
fn listeners_come_and_go() {
    let upstream = Upstream::echo();
    let (gone, new) = (ReservedPort::new(), ReservedPort::new());
    let setup = Setup::to(upstream.addr());
    let mut upgraded = UpgradedGateway::start(&setup.clone().with_listener(gone.addr()));
    let mut ends = Client::connect(gone.addr());
    assert_eq!(ends.get("/").head.status(), 200);
    let mut moves = upgraded.gateway.client();
    assert_eq!(moves.get("/").head.status(), 200);
    // A reload and the upgrade may come in either order.
    upgraded.configure(&setup.with_listener(new.addr()));
    upgraded.upgrade();
    assert_eq!(moves.get("/").head.status(), 200);
    assert_eq!(Client::connect(new.addr()).get("/").head.status(), 200);
    eventually("the listener to be closed", || TcpStream::connect(gone.addr()).is_err());
    // The old process announces to clients that arrive meanwhile that it is over.
    if let Ok(last) = ends.try_request("GET", "/", b"") {
        assert_eq!((last.head.status(), last.head.get("connection")), (200, Some("close")));
    }
    upgraded.await_old();
    assert_eq!(moves.get("/").head.get("connection"), None);
}

/// Two routes that let clients switch to another protocol.
fn routes(upstream: &Upstream, first: &str, second: &str) -> Setup {
    Setup::resources(format!(
        "upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}\nroutes:\n{first}\n{second}\n",
        upstream.addr()
    ))
}

const CHAT: &str = "  - {id: chat, uri: /chat, upstream_id: main, enable_websocket: true, on_change: close}";
const NEWS: &str = "  - {id: news, uri: /news, upstream_id: main, enable_websocket: true}";

fn open(gateway: &Gateway, upstream: &Upstream, path: &str) -> Tunnel {
    let mut client = gateway.client();
    client.send(ASK.replace("/chat", path));
    let mut node = upstream.accept();
    node.expect_request();
    node.send(AGREE);
    assert_eq!(client.read_head().expect("an answer").status(), 101);
    Tunnel { client, node }
}

#[test]
fn tunnels_learn_that_their_route_is_another_one() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&routes(&upstream, CHAT, NEWS));
    let (mut chat, mut news) =
        (open(&upgraded.gateway, &upstream, "/chat"), open(&upgraded.gateway, &upstream, "/news"));
    // The order of the routes does not matter to them, nor do the keys around them.
    upgraded.configure(&routes(&upstream, NEWS, CHAT).gateway("server_header: false"));
    upgraded.upgrade();
    upgraded.await_old();
    chat.check();
    news.check();
    // A change of the route does matter: `on_change` decides.
    let changed = CHAT.replace("/chat", "/chat*");
    upgraded.configure(&routes(&upstream, &NEWS.replace("/news", "/news*"), &changed));
    upgraded.upgrade();
    eventually("the tunnel of the changed route to be closed", || chat.client.is_closed());
    news.check();
}

#[test]
fn tunnels_of_a_route_that_is_gone_stay_with_the_former_process() {
    const HURRY: &str = "timeouts: {upgrade: 0ms}";
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&routes(&upstream, CHAT, NEWS).gateway(HURRY));
    let mut chat = open(&upgraded.gateway, &upstream, "/chat");
    let mut news = open(&upgraded.gateway, &upstream, "/news");
    upgraded.configure(&routes(&upstream, CHAT, "").gateway(HURRY));
    upgraded.upgrade();
    // It gives away what it can before it ends, however little time it has.
    upgraded.await_old();
    chat.check();
    eventually("the end of its process to be seen", || news.client.is_closed());
    news.node.expect_close();
}

/// One request over a connection that stays open; its head.
fn get(stream: &mut (impl Read + Write)) -> Head {
    write!(stream, "GET / HTTP/1.1\r\nHost: shop.example.com\r\n\r\n").expect("a request");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let head = Head::parse(&head).expect("a head");
    let length = head.get("content-length").expect("a length").parse().expect("a number");
    stream.read_exact(&mut vec![0; length]).expect("the body");
    head
}

#[test]
fn what_goes_through_tls_ends_in_order_where_it_is() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let ca = authority.dir().display();
    let setup = Setup::resources(format!(
        "ssls:\n  - {{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [shop.example.com]}}\n\
         upstreams:\n  - {{id: main, nodes: {{\"{}\": 1}}}}\nroutes:\n  - {{id: all, uri: /*, upstream_id: main}}\n",
        upstream.addr()
    ))
    .listener("tls: true");
    let mut upgraded = UpgradedGateway::start(&setup);
    let mut before = authority.connect(upgraded.gateway.addr(), "shop.example.com", &[]);
    assert_eq!(get(&mut before).get("connection"), None);
    let successor = upgraded.upgrade();
    // Not closed under a client that may be sending at this very moment.
    assert!(upgraded.gateway.ended().is_none());
    let mut after = authority.connect(upgraded.gateway.addr(), "shop.example.com", &[]);
    assert_eq!(get(&mut after).get("connection"), None);
    let last = get(&mut before);
    assert_eq!((last.status(), last.get("connection")), (200, Some("close")));
    let mut rest = Vec::new();
    assert_eq!(before.read_to_end(&mut rest).expect("an orderly end of TLS"), 0);
    upgraded.await_old();
    assert_eq!(get(&mut after).status(), 200);
    assert!(is_gateway(successor, upgraded.gateway.dir()));
}

/// The behaviour of a listener is fixed for a connection when it begins, whatever a reload or an upgrade changes later.
#[test]
fn connections_from_before_a_change_of_their_listener_go_along() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let ca = authority.dir().display();
    let setup = Setup::resources(format!(
        "ssls:\n  - {{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [shop.example.com]}}\n\
         upstreams:\n  - {{id: main, nodes: {{\"{}\": 1}}}}\nroutes:\n  - {{id: all, uri: /*, upstream_id: main}}\n",
        upstream.addr()
    ));
    let mut upgraded = UpgradedGateway::start(&setup);
    let mut plain = upgraded.gateway.client();
    assert_eq!(plain.get("/").head.status(), 200);
    upgraded.configure(&setup.clone().listener("tls: true"));
    eventually("the reload", || upgraded.gateway.status()["config"]["generation"] == 2);
    upgraded.upgrade();
    let mut tls = authority.connect(upgraded.gateway.addr(), "shop.example.com", &[]);
    assert_eq!(get(&mut tls).status(), 200);
    upgraded.await_old();
    let next = plain.get("/");
    assert_eq!((next.head.status(), next.head.get("connection")), (200, None));
}

/// The sum of a family in an exposition.
fn sum(text: &str, name: &str) -> f64 {
    let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
    text.lines().filter(is_it).filter_map(value).sum()
}

#[test]
fn metrics_go_on_without_a_step() {
    let upstream = Upstream::echo();
    let metrics = ReservedPort::new();
    let setup = Setup::to(upstream.addr()).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let mut upgraded = UpgradedGateway::start(&setup);
    let exposed = || scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
    let mut idle: Vec<Client> = (0..20).map(|_| upgraded.gateway.client()).collect();
    for client in &mut idle {
        assert_eq!(client.get("/").head.status(), 200);
    }
    let (rounds, scrapes, addr) = (Rounds::default(), Rounds::default(), upgraded.gateway.addr());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rounds.of_requests(addr, false, |client| assert_eq!(client.get("/").head.status(), 200));
        });
        scope.spawn(|| {
            let mut last = 0.0;
            while scrapes.go_on() {
                let text = exposed();
                let now = sum(&text, "stillgate_http_requests_total");
                assert!(now >= last, "{now} after {last}\n{text}");
                let connections = sum(&text, "stillgate_connections");
                assert!(connections <= 2.0 * 21.0, "{connections} connections");
                last = now;
                scrapes.count();
            }
        });
        let _ends = (rounds.until_dropped(), scrapes.until_dropped());
        let scrape_on = || scrapes.await_more(2);
        scrape_on();
        upgraded.upgrade();
        upgraded.await_old();
        scrape_on();
        upgraded.upgrade();
        scrape_on();
    });
    let sent = (idle.len() as u64 + rounds.done()) as f64;
    eventually("all requests to be counted", || sum(&exposed(), "stillgate_http_requests_total") == sent);
    eventually("the connections to be those that there are", || {
        let text = exposed();
        let by_state = text.lines().filter(|line| line.starts_with("stillgate_connections{"));
        let states: BTreeMap<&str, f64> = by_state
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(series, value)| (series, value.parse().unwrap_or(-1.0)))
            .collect();
        states.values().sum::<f64>() == idle.len() as f64
    });
}

/// The descriptors of a process, with the number of each kind.
fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return kinds };
    for target in folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()) {
        let target = target.to_string_lossy().into_owned();
        let kind = target.split(":[").next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// The niceness of a process's workers.
fn niceness(pid: u32) -> Vec<i32> {
    let nice = |stat: &String| stat.split(' ').nth(16).expect("a field").parse().expect("a number");
    threads(pid, "worker-").iter().map(nice).collect()
}

#[test]
fn nothing_leaks_into_the_new_process() {
    let upstream = Upstream::bind();
    let setup = tunnel::setup(&upstream).gateway("workers: 2").gateway("access_log: {path: \"{dir}/access.log\"}");
    let mut upgraded = UpgradedGateway::start(&setup);
    let mut tunnels: Vec<Tunnel> = (0..10).map(|_| Tunnel::open(&upgraded.gateway, &upstream)).collect();
    let before = descriptors(upgraded.gateway.pid());
    // The totals of ended processes have one segment, however many processes there were.
    let mut with_totals = before.clone();
    *with_totals.get_mut("/memfd:stillgate-metrics (deleted)").expect("segments of metrics") += 1;
    let first = upgraded.upgrade();
    upgraded.await_old();
    tunnels.iter_mut().for_each(Tunnel::check);
    let mut found = BTreeMap::new();
    eventually("the descriptors to be those of before", || {
        found = descriptors(first);
        found == with_totals
    });
    let second = upgraded.upgrade();
    upgraded.await_end(first);
    eventually("the descriptors to be those of before", || descriptors(second) == with_totals);
    assert_eq!(niceness(second), [0, 0], "the control thread is nice, and what it starts must not be");
    assert!(std::fs::read_link(format!("/proc/{second}/fd/0")).is_ok_and(|path| path.ends_with("null")));
    tunnels.iter_mut().for_each(Tunnel::check);
}

#[test]
fn a_supervisor_learns_the_pid_of_the_process() {
    let upstream = Upstream::echo();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let socket = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
    socket.set_read_timeout(Some(stillgate_testkit::PATIENCE)).expect("a timeout");
    let told = || {
        let mut space = [0; 256];
        let n = socket.recv(&mut space).expect("a word");
        String::from_utf8_lossy(&space[..n]).into_owned()
    };
    let script = dir.path().join("start");
    let text = format!("#!/bin/sh\nNOTIFY_SOCKET={} exec {STILLGATE} \"$@\"\n", dir.path().join("notify").display());
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("cat > {0} && chmod +x {0}", script.display())])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            child.stdin.take().expect("a pipe").write_all(text.as_bytes())?;
            child.wait()
        });
    assert!(status.expect("write the script").success());
    let upgraded = UpgradedGateway::start_from(script.to_str().expect("a plain path"), &Setup::to(upstream.addr()));
    assert_eq!(told(), "READY=1");
    let successor = upgraded.upgrade();
    let mut words = [told(), told()];
    words.sort_unstable();
    assert_eq!(words, [format!("MAINPID={successor}"), "READY=1".to_owned()]);
}

#[test]
fn addresses_of_nodes_and_listeners_are_what_they_were() {
    let upstream = Upstream::echo();
    let node: SocketAddr = upstream.addr();
    let mut upgraded = UpgradedGateway::start(&Setup::to(node).gateway("timeouts: {keepalive: 1h}"));
    let mut client = upgraded.gateway.client();
    let local = client.stream().local_addr().expect("an address");
    assert_eq!(client.get("/").head.status(), 200);
    upgraded.upgrade();
    upgraded.await_old();
    assert_eq!(client.get("/").head.status(), 200);
    assert_eq!(client.stream().local_addr().expect("an address"), local);
    assert_eq!(upgraded.gateway.status()["connections"]["open"], 1);
}
