//! Following through breaks, stops, compactions and losses.

use crate::etcd::{FollowerThread, impatient, key, options, run, texts};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_datastore::etcd::{Etcd, FollowerEvent, follow};
use stillgate_datastore::{Author, Transaction, Write};
use stillgate_testkit::{CutEnd, CutPoint, Cutter, EtcdServer as Server, EtcdSetup, Side, eventually};
use tokio::sync::mpsc;

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

/// Another program wrote the same keys at the same revisions, with other values.
#[test]
fn an_etcd_whose_documents_differ_in_their_values_only_is_noticed() {
    let mut server = Server::start();
    let write_all = |server: &Server, value: &str| {
        for number in 0..5 {
            server.put(0, &format!("/apisix/routes/{number}"), value);
        }
    };
    write_all(&server, "a");
    let relay = Cutter::to(server.addr(0));
    let following = FollowerThread::start(options(vec![format!("http://{}", relay.addr())]));
    following.await_value("routes/4", Some("a"));
    let losses = following.losses();
    relay.arm(Some(CUT));
    eventually("the loss to be told", || following.losses() > losses);
    server.kill(0);
    server.wipe(0);
    server.start_again(0);
    write_all(&server, "b");
    // Changes of others, which the follower does not see.
    server.put(0, "/other/1", "x");
    relay.arm(None);
    following.await_value("routes/4", Some("b"));
    following.await_equal(server.endpoint(0));
}

/// A proxy keeps the connection of the watch open, and passes nothing on any more.
#[test]
fn a_watch_that_delivers_nothing_any_more_is_replaced() {
    let server = Server::start();
    for number in 0..3 {
        server.put(0, &format!("/apisix/routes/{number}"), "a");
    }
    let relay = Cutter::to(server.addr(0));
    let following = FollowerThread::start(options(vec![format!("http://{}", relay.addr())]));
    following.await_value("routes/2", Some("a"));
    eventually("the watch", || following.count(|told| matches!(told, FollowerEvent::Snapshot(_))) == 1);
    let silenced = |change: &dyn Fn()| {
        // The watch begins after the list.
        std::thread::sleep(Duration::from_secs(1));
        let losses = following.losses();
        relay.silence_last();
        change();
        eventually("the loss to be told", || following.losses() > losses);
        assert!(following.reason().contains("does not deliver changes"), "{}", following.reason());
    };
    silenced(&|| {
        server.delete(0, "/apisix/routes/1");
    });
    following.await_value("routes/1", None);
    silenced(&|| {
        server.put(0, "/apisix/routes/2", "b");
    });
    following.await_value("routes/2", Some("b"));
    // Changes of others do not make it begin again.
    let (losses, heard) = (following.losses(), following.revisions_heard());
    let other = server.put(0, "/other/1", "x");
    eventually("the revision to be heard", || following.revisions_heard() > heard.max(other - 1));
    std::thread::sleep(Duration::from_secs(18));
    assert_eq!((following.losses(), following.snapshots()), (losses, 1));
    following.await_equal(server.endpoint(0));
}

/// A write was refused because etcd's space is used up: that is reported until its alarm is cleared.
#[test]
fn an_etcd_without_space_is_reported() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    let (sender, mut receiver) = mpsc::channel(64);
    let etcd = Arc::new(Etcd::new(options(vec![server.endpoint(0)])).unwrap());
    let alarm = |action: &str| {
        let status = server.call(0, "/v3/maintenance/status", &serde_json::json!({}));
        let request =
            serde_json::json!({"action": action, "memberID": status["header"]["member_id"], "alarm": "NOSPACE"});
        server.call(0, "/v3/maintenance/alarm", &request);
    };
    run(async {
        let _following = tokio::spawn(follow(Arc::clone(&etcd), sender));
        let mut next = async |is_it: &dyn Fn(&FollowerEvent) -> bool| loop {
            let event = receiver.recv().await.expect("it is followed");
            if is_it(&event) {
                return;
            }
        };
        next(&|event| matches!(event, FollowerEvent::Snapshot(_))).await;
        alarm("ACTIVATE");
        let writes = vec![Write::Put { key: key("routes/2"), value: "b".to_owned(), ttl_seconds: None }];
        let change =
            Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author: Author::default() };
        let refused = etcd.commit(&change).await.unwrap_err().to_string();
        assert!(refused.contains("database space exceeded"), "{refused}");
        next(&|event| matches!(event, FollowerEvent::Lost { reason } if reason.contains("takes no writes"))).await;
        alarm("DEACTIVATE");
        next(&|event| *event == FollowerEvent::Back).await;
        etcd.commit(&change).await.unwrap();
    });
}

/// An endpoint was set up again on its own, with nothing in it.
#[test]
fn an_endpoint_of_another_cluster_is_not_used() {
    let (server, stranger) = (Server::start(), Server::start());
    let relays = [server.addr(0), server.addr(0), stranger.addr(0)].map(Cutter::to);
    let endpoints: Vec<String> = relays.iter().map(|relay| format!("http://{}", relay.addr())).collect();
    for number in 0..40 {
        server.put(0, &format!("/apisix/routes/{number}"), "a");
        stranger.put(0, &format!("/apisix/routes/{}", number + 100), "wrong");
    }
    for _ in 0..6 {
        let listed = run(Etcd::new(options(endpoints.clone())).unwrap().list()).unwrap();
        assert_eq!(texts(&listed.snapshot).iter().filter(|(_, value)| value == "a").count(), 40);
        assert_eq!(listed.snapshot.documents.len(), 40);
    }
    let following = FollowerThread::start(options(endpoints.clone()));
    following.await_value("routes/39", Some("a"));
    for round in 0..6 {
        relays[..2].iter().for_each(|relay| relay.end_with(CutEnd::Fin));
        server.put(0, "/apisix/routes/0", format!("{round}"));
        following.await_value("routes/0", Some(&format!("{round}")));
    }
    let etcd = Etcd::new(options(endpoints)).unwrap();
    run(etcd.list()).unwrap();
    for number in 0..6 {
        let writes = vec![Write::Put { key: key("routes/new"), value: format!("{number}"), ttl_seconds: None }];
        let change =
            Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author: Author::default() };
        run(etcd.commit(&change)).unwrap();
        assert_eq!(server.get(0, "/apisix/routes/new"), Some(format!("{number}")));
    }
    assert_eq!(stranger.get(0, "/apisix/routes/new"), None);
    assert_eq!(following.snapshots(), 1);
    // Where only the stranger answers, what was read last stays.
    relays[..2].iter().for_each(|relay| relay.arm(Some(CUT)));
    let losses = following.losses();
    eventually("the loss to be told", || following.losses() > losses);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((following.value("routes/1").as_deref(), following.value("routes/100")), (Some("a"), None));
}

/// The only endpoint now belongs to another cluster, which has replaced the former one.
#[test]
fn a_cluster_that_most_endpoints_belong_to_is_followed() {
    let (old, new) = (Server::start(), Server::start());
    old.put(0, "/apisix/routes/1", "old");
    new.put(0, "/apisix/routes/1", "new");
    let relay = Cutter::to(old.addr(0));
    let following = FollowerThread::start(options(vec![format!("http://{}", relay.addr())]));
    following.await_value("routes/1", Some("old"));
    relay.redirect(new.addr(0));
    following.await_value("routes/1", Some("new"));
    following.await_equal(new.endpoint(0));
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
