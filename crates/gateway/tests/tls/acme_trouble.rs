//! Certificates ordered from Let's Encrypt's test server: what is reported and done when something fails, and what is not lost.

use crate::acme::{ISSUED_WITHIN, NAME, SHOP, Stage, TWO_NAMES, fetch};
use crate::shared::STILLGATE;
use crate::shared::upgrade;
use crate::shared::upgrade::UpgradedGateway;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use stillgate_testkit::{END_PATIENCE, ReservedPort, Setup, eventually, eventually_within};

#[test]
fn a_challenge_that_does_not_come_through_is_reported_and_tried_again() {
    let nobody = ReservedPort::new();
    let mut stage = Stage::new(|pebble| pebble.http_port = nobody.addr().port());
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("", SHOP));
    assert!(!stage.gateway.log().contains("cannot be watched"), "{}", stage.gateway.log());
    stage.await_failure("shop.example.com: API error: ");
    let of = stage.certificate();
    assert_eq!(of["acme"]["failures"], 1);
    assert!(of["acme"]["next_try"].is_string() && of["not_after"].is_null(), "{of}");
    let told = of["acme"]["last_error"].as_str().expect("an error");
    assert!(told.starts_with("showing that the names are ours: the challenge http-01 failed: "), "{told}");
    assert!(told.ends_with("whose listener must be reached at port 80"), "{told}");
    // The process that follows does not order sooner.
    let ordered = || stage.pebble.log().matches("There are now ").count();
    let before = ordered();
    stage.gateway.signal("TERM");
    stage.gateway.wait_within(END_PATIENCE);
    stage.gateway.restart(STILLGATE);
    eventually("what is known of the one before", || !stage.certificate()["acme"]["next_try"].is_null());
    let after = stage.certificate();
    assert_eq!(after["acme"]["failures"], 1);
    assert_eq!(after["acme"]["last_error"], of["acme"]["last_error"]);
    assert_eq!(stage.pebble.log().matches("There are now ").count(), before);
    // The certificate that is shown meanwhile need not be trusted.
    assert!(!stage.is_served(NAME, &root));
    // The other challenge goes another way, and a change is tried at once.
    stage.gateway.reload(&stage.setup("challenge: tls-alpn-01", SHOP));
    stage.await_certificate();
    assert!(stage.is_served(NAME, &root));
}

#[test]
fn a_server_that_is_down_or_has_forgotten_us_takes_nothing_away() {
    let mut stage = Stage::new(|_| {});
    stage.pebble.stop();
    stage.gateway.reload(&stage.setup("", SHOP));
    stage.await_failure("cannot connect");
    stage.pebble.start_again();
    let root = stage.pebble.root();
    stage.gateway.signal("HUP");
    eventually_within(ISSUED_WITHIN, "the certificate", || stage.is_served(NAME, &root));
    stage.await_no_error();
    let account = fs::read(stage.folder().join("account.json")).expect("an account");

    // It forgets its accounts, and another name is requested.
    let serial = stage.serial();
    stage.pebble.stop();
    stage.pebble.start_again();
    stage.gateway.reload(&stage.setup("", TWO_NAMES));
    stage.await_failure("the account's file was set aside");
    assert_eq!(stage.serial(), serial);
    assert!(stage.is_served(NAME, &root));
    assert_eq!(fs::read(stage.folder().join("account.json.unknown")).expect("it is kept"), account);
    let root = stage.pebble.root();
    stage.gateway.signal("HUP");
    eventually_within(ISSUED_WITHIN, "the other certificate", || stage.is_served("www.example.com", &root));
    assert_ne!(fs::read(stage.folder().join("account.json")).expect("an account"), account);

    // Once more; this time the account's email address has to be sent first.
    stage.pebble.stop();
    stage.pebble.start_again();
    let three = ", {id: shop, acme: true, snis: [shop.example.com, www.example.com, three.example.com]}";
    stage.gateway.reload(&stage.setup("email: admin@example.com", three));
    stage.await_failure("the account: API error: ");
    assert!(stage.certificate()["acme"]["last_error"].to_string().contains("the account's file was set aside"));
    let root = stage.pebble.root();
    stage.gateway.signal("HUP");
    eventually_within(ISSUED_WITHIN, "the third certificate", || stage.is_served("three.example.com", &root));
    stage.gateway.assert_healthy();
}

#[test]
fn a_certificate_is_served_though_the_configuration_is_refused() {
    let mut stage = Stage::new(|_| {});
    stage.gateway.reload(&stage.setup("", SHOP));
    stage.await_certificate();
    let status = || stage.gateway.status()["config"].clone();
    let own = fs::read_to_string(stage.authority.file("ca.pem")).expect("read");
    let key = fs::read(stage.authority.file("own.key")).expect("read");
    let good = stage.setup("", SHOP);
    let text = Setup { gateway: format!("{}nonsense: 1\n", good.gateway), ..good.clone() };
    let resources = good.resources.as_deref().expect("they are text");
    // More than one Plan can have, which is found out when it is built.
    let numbered = |prefix: &str| (0..256).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(", ");
    let many = format!("uris: [{}], hosts: [{}]", numbered("/p"), numbered("h"));
    let routes: Vec<String> = (0..65).map(|n| format!("{{id: many{n}, {many}, upstream_id: main}}, ")).collect();
    let plan = resources.replace("routes: [", &format!("routes: [{}", routes.concat()));
    let plan = Setup { resources: Some(plan), ..good.clone() };
    type Break<'a> = &'a dyn Fn();
    let breaks: [(&str, Break<'_>); 3] = [
        ("nonsense", &|| drop(stage.gateway.write_config(&text))),
        ("pairs of a host and a path", &|| drop(stage.gateway.write_config(&plan))),
        ("own.key", &|| stage.authority.write("own.key", "nonsense")),
    ];
    for (reason, is_broken) in breaks {
        let generation = status()["generation"].clone();
        is_broken();
        eventually("the refusal", || status()["last_error"].to_string().contains(reason));
        // The certificate is stored as by another gateway, or by this one.
        stage.authority.issue("renewed", &[NAME]);
        let read = |file: &str| fs::read(stage.authority.file(file)).expect("read");
        let (beside, file) = (stage.folder().join("beside"), stage.folder().join("certificates/shop.pem"));
        let before = stage.serial();
        fs::write(&beside, [read("renewed.pem"), read("renewed.key")].concat()).expect("write");
        fs::rename(beside, file).expect("rename");
        eventually(&format!("the renewed one beside {reason}"), || stage.serial() != before);
        assert!(stage.is_served(NAME, &own) && stage.is_served("own.example.com", &own));
        assert!(status()["last_error"].to_string().contains(reason), "{}", status());
        assert_eq!(status()["generation"], generation);
        let serial = stage.serial();
        stage.authority.write("own.key", &key);
        stage.gateway.reload(&good);
        eventually("all to be well", || status()["last_error"].is_null());
        assert_eq!(stage.serial(), serial);
    }
    stage.gateway.assert_healthy();
}

/// A gate in front of an address: it holds connections, until it is opened for later ones.
struct Gate {
    port: u16,
    held: Arc<Mutex<Vec<TcpStream>>>,
    is_open: Arc<AtomicBool>,
}

impl Gate {
    fn new(to: SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (held, is_open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let gate = Gate { port, held: held.clone(), is_open: is_open.clone() };
        // Ends with the process, as the listener does.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if !is_open.load(Ordering::Relaxed) {
                    held.lock().expect("nobody panicked").push(stream);
                } else if let Ok(node) = TcpStream::connect(to) {
                    let both = |stream: &TcpStream| stream.try_clone().expect("a handle");
                    let (mut from, mut back) = (both(&stream), both(&node));
                    let (mut stream, mut node) = (stream, node);
                    std::thread::spawn(move || std::io::copy(&mut from, &mut node));
                    std::thread::spawn(move || std::io::copy(&mut back, &mut stream));
                }
            }
        });
        gate
    }

    #[track_caller]
    fn await_held(&self, count: usize) {
        eventually_within(ISSUED_WITHIN, "somebody at the gate", || self.held() >= count);
    }

    fn held(&self) -> usize {
        self.held.lock().expect("nobody panicked").len()
    }
}

#[test]
fn an_order_that_is_cut_short_counts_where_it_was_by_a_crash() {
    let http = ReservedPort::new();
    let gate = Gate::new(http.addr());
    let mut stage = Stage::at(http, |pebble| pebble.http_port = gate.port);
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("", SHOP));
    gate.await_held(1);
    stage.gateway.signal("KILL");
    stage.gateway.wait();
    stage.gateway.restart(STILLGATE);
    eventually("the crash to be told", || {
        let told = stage.certificate()["acme"]["last_error"].to_string();
        told.contains("the gateway ended while it was ordering")
    });
    assert_eq!(stage.certificate()["acme"]["failures"], 1);
    // SIGHUP orders it without waiting, and the process is replaced meanwhile.
    let held = gate.held();
    stage.gateway.signal("HUP");
    gate.await_held(held + 1);
    gate.is_open.store(true, Ordering::Relaxed);
    let mut upgraded = UpgradedGateway { gateway: stage.gateway };
    let successor = upgraded.upgrade();
    let acme = || {
        let status = upgraded.gateway.status();
        let shop = status["certificates"].as_array().expect("a list").iter().find(|of| of["id"] == "shop").cloned();
        shop.expect("it is there")["acme"].clone()
    };
    let mut is_late = false;
    eventually_within(ISSUED_WITHIN, "the certificate", || {
        // Pebble waits no more than five seconds for held connections. Where replacing took longer, the order had failed before,
        // and rightly so.
        if !is_late && acme()["last_error"].to_string().contains("the challenge http-01 failed") {
            is_late = true;
            upgrade::signal(successor, "HUP");
        }
        fetch(&upgraded.gateway, NAME, &root).starts_with("200")
    });
    eventually("the failures to be forgotten", || acme()["failures"] == 0);
    upgraded.await_old();
    let issued = stage.pebble.log();
    assert_eq!(issued.matches("Issued certificate serial").count(), 1, "{issued}");
}
