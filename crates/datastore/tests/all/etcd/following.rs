//! Following through breaks, stops, compactions and losses.

use crate::etcd::{FollowerThread, impatient, options};
use std::time::{Duration, Instant};
use stillgate_testkit::{CutEnd, CutPoint, Cutter, EtcdServer as Server, EtcdSetup, Side, eventually};

/// Cuts every connection, until it is disarmed.
const CUT: CutPoint = CutPoint { side: Side::Client, after: 0, end: CutEnd::Fin };

#[test]
fn what_is_written_is_followed() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    let following = FollowerThread::start(options(vec![server.endpoint(0)]));
    following.await_value("routes/1", Some("a"));
    server.put(0, "/apisix/routes/1", "b");
    following.await_value("routes/1", Some("b"));
    server.delete(0, "/apisix/routes/1");
    following.await_value("routes/1", None);
    let mut latencies: Vec<Duration> = (0..200)
        .map(|number| {
            let (value, begun) = (number.to_string(), Instant::now());
            server.put(0, "/apisix/routes/2", &value);
            following.await_value("routes/2", Some(&value));
            begun.elapsed()
        })
        .collect();
    latencies.sort();
    println!("from the beginning of a write to its batch: median {:?}, p99 {:?}", latencies[100], latencies[198]);
    assert_eq!((following.snapshots(), following.losses(), following.returns()), (1, 0, 0));
    following.await_equal(server.endpoint(0));
}

#[test]
fn a_killed_etcd_is_followed_from_where_it_was() {
    let mut server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    let following = FollowerThread::start(options(vec![server.endpoint(0)]));
    following.await_value("routes/1", Some("a"));
    for round in 0..3 {
        server.kill(0);
        eventually("the loss to be told", || following.losses() > following.returns());
        assert_eq!(following.value("routes/1").as_deref(), Some("a"), "what was known is kept");
        server.start_again(0);
        server.put(0, "/apisix/routes/2", format!("{round}"));
        following.await_value("routes/2", Some(&format!("{round}")));
        eventually("the return to be told", || following.returns() == round + 1);
    }
    assert_eq!(following.snapshots(), 1);
    following.await_equal(server.endpoint(0));
}

#[test]
fn a_start_without_etcd_says_so_and_goes_on_when_it_is_there() {
    let mut server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    server.kill(0);
    let following = FollowerThread::start(options(vec![server.endpoint(0)]));
    eventually("the loss to be told", || following.losses() > 0);
    assert!(following.reason().contains("cannot connect"), "{}", following.reason());
    server.start_again(0);
    following.await_value("routes/1", Some("a"));
    eventually("the return to be told", || following.returns() == 1);
}

#[test]
fn a_stopped_etcd_is_noticed() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    let following = FollowerThread::start(impatient(vec![server.endpoint(0)]));
    following.await_value("routes/1", Some("a"));
    let losses = following.losses();
    server.process(0).signal("STOP");
    eventually("the loss to be told", || following.losses() > losses);
    assert!(following.reason().contains("no answer within 2000 ms"), "{}", following.reason());
    server.process(0).signal("CONT");
    server.put(0, "/apisix/routes/1", "b");
    following.await_value("routes/1", Some("b"));
    eventually("the return to be told", || following.returns() == following.losses());
    assert_eq!(following.snapshots(), 1);
    following.await_equal(server.endpoint(0));
}

#[test]
fn after_a_compaction_during_a_break_everything_is_listed() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    server.put(0, "/apisix/routes/2", "a");
    let relay = Cutter::to(server.addr(0));
    let following = FollowerThread::start(options(vec![format!("http://{}", relay.addr())]));
    following.await_value("routes/2", Some("a"));
    let interrupted = |during: &dyn Fn()| {
        let (losses, returns) = (following.losses(), following.returns());
        relay.arm(Some(CUT));
        eventually("the loss to be told", || following.losses() > losses);
        during();
        relay.arm(None);
        eventually("the return to be told", || following.returns() > returns);
    };
    // Without a compaction it continues where it was.
    interrupted(&|| {
        server.delete(0, "/apisix/routes/2");
    });
    following.await_value("routes/2", None);
    assert_eq!(following.snapshots(), 1);
    // The deletion is in the oldest revision that etcd keeps, where some versions lose it.
    interrupted(&|| server.compact(0, server.delete(0, "/apisix/routes/1")));
    following.await_value("routes/1", None);
    assert_eq!(following.snapshots(), 2);
    interrupted(&|| {
        for number in 0..50 {
            server.put(0, &format!("/apisix/routes/{number}"), "b");
        }
        server.compact(0, server.revision(0) - 10);
    });
    following.await_value("routes/0", Some("b"));
    assert_eq!(following.snapshots(), 3);
    // A compaction of known revisions has no effect.
    interrupted(&|| server.compact(0, server.revision(0)));
    server.put(0, "/apisix/routes/0", "c");
    following.await_value("routes/0", Some("c"));
    assert_eq!(following.snapshots(), 3);
    following.await_equal(server.endpoint(0));
}

#[test]
fn breaks_at_any_time_lose_nothing() {
    let server = Server::start();
    let relay = Cutter::to(server.addr(0));
    let following = FollowerThread::start(options(vec![format!("http://{}", relay.addr())]));
    // A follower that has not seen a document cannot tell whether it finds the same etcd again, so it lists.
    server.put(0, "/apisix/routes/first", "seen");
    following.await_value("routes/first", Some("seen"));
    for number in 0..300 {
        server.put(0, &format!("/apisix/routes/{}", number % 17), format!("{number}"));
        if number % 5 == 0 {
            server.delete(0, &format!("/apisix/routes/{}", number % 13));
        }
        if number % 30 == 29 {
            relay.end_with(if number % 60 == 59 { CutEnd::Fin } else { CutEnd::Reset });
        }
    }
    following.await_equal(server.endpoint(0));
    assert_eq!(following.snapshots(), 1);
}

#[test]
fn an_etcd_that_was_emptied_is_listed_again() {
    let mut server = Server::start();
    for number in 0..20 {
        server.put(0, &format!("/apisix/routes/{number}"), "a");
    }
    let following = FollowerThread::start(options(vec![server.endpoint(0)]));
    following.await_value("routes/19", Some("a"));
    server.kill(0);
    server.wipe(0);
    server.start_again(0);
    server.put(0, "/apisix/routes/1", "b");
    following.await_value("routes/1", Some("b"));
    assert_eq!(following.value("routes/19"), None);
    following.await_equal(server.endpoint(0));
}

/// A cluster with the same members and token has the same identity, and its revision shows no difference either.
#[test]
fn an_etcd_that_was_made_again_is_noticed_at_a_later_revision() {
    let mut server = Server::start();
    for number in 0..5 {
        server.put(0, &format!("/apisix/routes/{number}"), "a");
    }
    let relay = Cutter::to(server.addr(0));
    let following = FollowerThread::start(options(vec![format!("http://{}", relay.addr())]));
    following.await_value("routes/4", Some("a"));
    let losses = following.losses();
    relay.arm(Some(CUT));
    relay.end_with(CutEnd::Fin);
    eventually("the loss to be told", || following.losses() > losses);
    let before = server.revision(0);
    server.kill(0);
    server.wipe(0);
    server.start_again(0);
    server.put(0, "/apisix/global_rules/1", "first");
    while server.revision(0) <= before + 5 {
        server.put(0, "/apisix/routes/9", "b");
    }
    relay.arm(None);
    following.await_value("global_rules/1", Some("first"));
    assert_eq!(following.value("routes/4"), None);
    following.await_equal(server.endpoint(0));
}

#[test]
fn of_three_members_one_may_be_lost() {
    let mut server = Server::start_with(&EtcdSetup { members: 3, ..EtcdSetup::default() });
    server.put(0, "/apisix/routes/1", "a");
    let following = FollowerThread::start(impatient((0..3).map(|member| server.endpoint(member)).collect()));
    following.await_value("routes/1", Some("a"));
    for lost in 0..3 {
        let (other, value) = ((lost + 1) % 3, format!("without {lost}"));
        server.kill(lost);
        put_when_there_is_a_leader(&server, other, "/apisix/routes/1", &value);
        following.await_value("routes/1", Some(&value));
        server.start_again(lost);
    }
    for stopped in 0..3 {
        let (other, value) = ((stopped + 1) % 3, format!("{stopped} is stopped"));
        server.process(stopped).signal("STOP");
        put_when_there_is_a_leader(&server, other, "/apisix/routes/1", &value);
        following.await_value("routes/1", Some(&value));
        server.process(stopped).signal("CONT");
        eventually("it to be back", || {
            let revisions = [stopped, other].map(|member| server.try_revision(member));
            revisions[0].is_ok() && revisions[0] == revisions[1]
        });
    }
    assert_eq!(following.snapshots(), 1);
    following.await_equal(server.endpoint(1));
}

#[test]
fn a_member_without_the_majority_is_noticed() {
    let mut server = Server::start_with(&EtcdSetup { members: 3, ..EtcdSetup::default() });
    server.put(0, "/apisix/routes/1", "a");
    let following = FollowerThread::start(impatient(vec![server.endpoint(0)]));
    following.await_value("routes/1", Some("a"));
    let losses = following.losses();
    server.kill(1);
    server.kill(2);
    eventually("the loss to be told", || following.losses() > losses);
    server.start_without_waiting(1);
    server.start_again(2);
    put_when_there_is_a_leader(&server, 2, "/apisix/routes/1", "b");
    following.await_value("routes/1", Some("b"));
    assert_eq!(following.snapshots(), 1);
}

/// Repeating it has no further effect.
fn put_when_there_is_a_leader(server: &Server, member: usize, key: &str, value: &str) {
    eventually("etcd to take a write", || {
        let encoded = |text: &str| serde_json::json!(base64_of(text));
        let request = serde_json::json!({"key": encoded(key), "value": encoded(value)});
        server.try_call(member, "/v3/kv/put", &request).is_ok()
    });
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
