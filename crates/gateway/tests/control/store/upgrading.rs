//! A binary upgrade during writes: each write is answered, and the successor has every write that was answered as done.

use super::stage::{Admin, Answer, KEY, STORE, upstream};
use crate::shared::killing::{When, kill_successor};
use crate::shared::upgrade::UpgradedGateway;
use serde_json::json;
use std::time::Duration;
use stillgate_testkit::{Client, Rounds, Setup, Upstream, eventually};

/// Writers at once, each with its route.
const WRITERS: u64 = 3;

fn put(admin: &Admin, node: &Upstream, route: u64, n: u64) -> Answer {
    let lines = format!("X-API-KEY: {KEY}\r\n");
    let document =
        json!({ "uri": format!("/{route}"), "upstream": upstream(node.addr()), "labels": { "n": n.to_string() } });
    let path = format!("/apisix/admin/routes/{route}");
    admin.ask_with("PUT", &path, &lines, document.to_string().as_bytes())
}

fn is_done(answer: &Answer) -> bool {
    match answer.status {
        200 | 201 => true,
        503 => {
            assert!(answer.head.get("retry-after").is_some(), "{answer:?}");
            false
        }
        _ => panic!("{answer:?}"),
    }
}

#[test]
fn writes_before_during_and_after_an_upgrade() {
    let node = Upstream::echo();
    let setup = Setup::resources("").gateway(STORE).admin(&format!("key: {KEY}"));
    let mut upgraded = UpgradedGateway::start(&setup);
    let admin = Admin { addr: upgraded.gateway.admin_addr(), key: KEY.to_owned() };
    for round in 0..2 {
        let rounds = Rounds::default();
        let last: Vec<u64> = std::thread::scope(|scope| {
            let (rounds, admin, node) = (&rounds, &admin, &node);
            let write = |route: u64| {
                move || {
                    let (mut n, mut last) = (round * 1_000_000, 0);
                    while rounds.go_on() {
                        n += 1;
                        if is_done(&put(admin, node, route, n)) {
                            last = n;
                            rounds.count();
                        }
                    }
                    last
                }
            };
            let writers: Vec<_> = (0..WRITERS).map(|route| scope.spawn(write(route))).collect();
            let _end = rounds.until_dropped();
            rounds.await_more(20);
            let old = upgraded.pid().expect("a process");
            upgraded.upgrade();
            match round {
                0 => upgraded.await_old(),
                _ => upgraded.await_end(old),
            }
            rounds.await_more(20);
            rounds.end();
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
        });
        for (route, last) in last.iter().enumerate() {
            let read = admin.read(&format!("routes/{route}"));
            assert_eq!(read["value"]["labels"]["n"], last.to_string(), "round {round}");
            assert_eq!(Client::connect(upgraded.gateway.addr()).get(&format!("/{route}")).head.status(), 200);
        }
        let status = admin.ask("GET", "/v1/status", "").json();
        assert_eq!((&status["source"], &status["rejected"]), (&json!("store"), &json!([])));
    }
}

/// The store is the successor's while it proves itself, and comes back when that is killed.
#[test]
fn a_successor_that_is_killed_in_its_probation_takes_no_write_with_it() {
    let node = Upstream::echo();
    let setup = Setup::resources("").gateway(STORE).admin(&format!("key: {KEY}"));
    let upgraded = UpgradedGateway::start(&setup);
    let admin = Admin { addr: upgraded.gateway.admin_addr(), key: KEY.to_owned() };
    let rounds = Rounds::default();
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut n, mut last) = (0, 0);
            while rounds.go_on() {
                n += 1;
                // A write that was not answered may be there or not.
                let lines = format!("X-API-KEY: {KEY}\r\n");
                let labels = json!({ "n": n.to_string() });
                let document = json!({ "uri": "/1", "upstream": upstream(node.addr()), "labels": labels }).to_string();
                let answer = admin.try_ask("PUT", "/apisix/admin/routes/1", &lines, document.as_bytes());
                if answer.is_ok_and(|answer| is_done(&answer)) {
                    last = n;
                    rounds.count();
                }
            }
            last
        });
        let _end = rounds.until_dropped();
        rounds.await_more(20);
        for when in [When::After(Duration::from_millis(20)), When::Accepting, When::Serving(Duration::from_millis(100))]
        {
            kill_successor(&upgraded, when);
            rounds.await_more(20);
        }
        rounds.end();
        writer.join().expect("the writer")
    });
    let read: u64 =
        admin.read("routes/1")["value"]["labels"]["n"].as_str().and_then(|n| n.parse().ok()).expect("a number");
    assert!(read >= last, "{read} is there, and {last} was answered");
    let status = admin.ask("GET", "/v1/status", "").json();
    assert_eq!((&status["source"], &status["rejected"]), (&json!("store"), &json!([])));
    assert_eq!(Client::connect(upgraded.gateway.addr()).get("/1").head.status(), 200);
}

/// A successor that cannot come up gives the store back.
#[test]
fn after_a_refused_upgrade_writes_go_on() {
    let node = Upstream::echo();
    let setup = Setup::resources("").gateway(STORE).admin(&format!("key: {KEY}"));
    let upgraded = UpgradedGateway::start(&setup);
    let admin = Admin { addr: upgraded.gateway.admin_addr(), key: KEY.to_owned() };
    assert_eq!(put(&admin, &node, 1, 1).status, 201);
    let good = std::fs::read_to_string(upgraded.gateway.config_path()).expect("the file");
    upgraded.gateway.write_config_text("gateway: {nonsense: true}");
    eventually("the file to be refused", || !upgraded.gateway.status()["config"]["last_error"].is_null());
    assert!(!upgraded.try_upgrade().status.success());
    eventually("writes to be taken again", || is_done(&put(&admin, &node, 1, 2)));
    upgraded.gateway.write_config_text(&good);
    eventually("the file to be taken", || upgraded.gateway.status()["config"]["last_error"].is_null());
    upgraded.upgrade();
    eventually("writes to be taken by the successor", || is_done(&put(&admin, &node, 1, 3)));
    assert_eq!(admin.read("routes/1")["value"]["labels"]["n"], "3");
}
