//! Nodes with a real Redis: messages over two nodes, and every possible event of a directory.

use crate::double;
use crate::double::{Node, SILENT, address_of, eventually};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use stillgate_cluster::SendError;
use stillgate_cluster::registry::{FormerDirectory, RedisAddress};
use stillgate_devices::directory::{ConnectOutcome, DeliveryError, DirectoryUnavailable, Duplicate};
use stillgate_testkit::{Redis, RedisSetup};

const OFFLINE: Result<bytes::Bytes, SendError> = Err(SendError::Unsent(DeliveryError::Offline { last_seen_ms: None }));
const UNKNOWN: Result<bytes::Bytes, SendError> = Err(SendError::Unsent(DeliveryError::Unknown));
const NEVER_SEEN: Result<bytes::Bytes, SendError> = Err(SendError::Unsent(DeliveryError::NeverSeen));

/// From the end of a node to the answer that its devices are offline: a lease, and the delay of this machine.
const LEASE_BOUND: Duration = Duration::from_millis(5_000);

#[tokio::test]
async fn a_redis_that_never_answers_has_a_cause() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "requirepass", "a-password"]);
    let port = redis.url(0).rsplit_once(':').unwrap().1.split('/').next().unwrap().to_owned();
    let of_nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, cause) in [
        (format!("redis://:wrong@127.0.0.1:{port}/0"), "Password authentication failed"),
        (format!("redis://127.0.0.1:{port}/0"), "requires a password"),
        (format!("redis://{of_nobody}/0"), "refused"),
    ] {
        let redis = RedisAddress { urls: vec![url], is_cluster: false, ca_pem: None };
        let node = Node::begin("a", &redis, None, None).await;
        let mut error = None;
        eventually("a cause", || {
            error = node.cluster.watch().error();
            error.is_some()
        })
        .await;
        assert!(error.as_ref().unwrap().contains(cause), "{error:?}");
        assert!(!node.cluster.watch().is_up());
    }
}

#[tokio::test]
async fn messages_find_their_device_and_ask_redis_once() {
    let redis = Redis::start();
    let (a, b) = (Node::start("a", &address_of(&redis)).await, Node::start("b", &address_of(&redis)).await);
    for number in 0..20 {
        b.register(&format!("d{number}")).await;
        assert_eq!(&*a.deliver(&format!("d{number}")).await, format!("d{number}").as_bytes());
    }
    let asked = a.cluster.directory().commands() + b.cluster.directory().commands();
    let processed = processed(&redis);
    let begun = Instant::now();
    for number in 0..20_000 {
        a.send(&format!("d{}", number % 20)).await.unwrap();
    }
    let asked = a.cluster.directory().commands() + b.cluster.directory().commands() - asked;
    // Each question is one script, in which Redis counts its commands, too: a heartbeat is five.
    let processed = processed_since(&redis, processed);
    println!("20,000 messages in {:?}: {asked} questions, {processed} commands", begun.elapsed());
    // One heartbeat and one registration again a second for each node, independent of the number of messages.
    let at_most = 4 * (begun.elapsed().as_secs() + 2);
    assert!(asked <= at_most, "{asked}");
    assert_eq!(b.taken.load(Ordering::Relaxed), 20_020);

    // The device moves, and is followed; it leaves, and that is reported.
    b.disconnect("d1");
    a.register("d1").await;
    let c = Node::start("c", &address_of(&redis)).await;
    c.register("d2").await;
    eventually("the older connection to be closed", || !b.has("d2")).await;
    a.deliver("d2").await;
    assert_eq!(c.taken.load(Ordering::Relaxed), 1);
    c.disconnect("d2");
    let is_offline = |sent: &Result<_, _>| matches!(sent, Err(SendError::Unsent(DeliveryError::Offline { .. })));
    let mut sent = a.send("d2").await;
    while !is_offline(&sent) {
        sent = a.send("d2").await;
    }
}

fn processed(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "stats"]);
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    line.trim().parse().unwrap()
}

fn processed_since(redis: &Redis, before: u64) -> u64 {
    processed(redis) - before
}

#[tokio::test]
async fn a_device_is_never_seen_once_every_node_has_had_its_say() {
    let redis = Redis::start();
    let a = Node::start("a", &address_of(&redis)).await;
    assert_eq!(a.send("nobody").await, UNKNOWN, "other nodes may still register devices");
    assert_eq!(a.send_until_known("nobody").await, NEVER_SEEN);
}

#[tokio::test]
async fn a_second_connection_waits_for_the_first_or_its_node_to_end() {
    let redis = Redis::start();
    let (a, b) = (Node::start("a", &address_of(&redis)).await, Node::start("b", &address_of(&redis)).await);
    a.connect_as("d", Duplicate::Refuse).await.unwrap();
    for node in [&a, &b] {
        assert!(matches!(node.connect_as("d", Duplicate::Refuse).await, Ok(ConnectOutcome::Occupied { .. })));
    }
    assert!(a.has("d"));
    a.disconnect("d");
    a.await_registered().await;
    b.connect_as("d", Duplicate::Refuse).await.unwrap();
    assert!(b.has("d"));
    drop(b);
    let begun = Instant::now();
    while matches!(a.connect_as("d", Duplicate::Refuse).await, Ok(ConnectOutcome::Occupied { .. })) {
        assert!(begun.elapsed() < double::PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(2), "its lease had not ended");
}

#[tokio::test]
async fn the_devices_of_a_dead_node_are_offline_within_its_lease() {
    let redis = Redis::start();
    let (a, b) = (Node::start("a", &address_of(&redis)).await, Node::start("b", &address_of(&redis)).await);
    b.register("d").await;
    b.register(SILENT).await;
    a.deliver("d").await;
    let in_flight = {
        let cluster = a.cluster.clone();
        tokio::spawn(async move { cluster.send(SILENT, "message", SILENT.into(), double::MESSAGE_PATIENCE).await })
    };
    eventually("the message to arrive", || b.taken.load(Ordering::Relaxed) == 2).await;
    let killed = Instant::now();
    drop(b);
    // Immediately, not at the timeout.
    assert_eq!(in_flight.await.unwrap(), Err(SendError::Lost));
    let lost_after = killed.elapsed();
    assert!(lost_after < double::MESSAGE_PATIENCE / 2, "{lost_after:?}");
    assert_eq!(a.send_until_known("d").await, OFFLINE);
    double::check_promised("to be lost", lost_after, Duration::from_secs(1));
    double::check_promised("to be offline", killed.elapsed(), 2 * LEASE_BOUND);
}

#[tokio::test]
async fn a_redis_that_was_killed_and_comes_back_empty_is_filled_again() {
    let mut redis = Redis::start();
    let (a, b) = (Node::start("a", &address_of(&redis)).await, Node::start("b", &address_of(&redis)).await);
    for number in 0..2_000 {
        b.register(&format!("d{number}")).await;
    }
    a.deliver("d0").await;
    redis.kill();
    eventually("its loss to be noticed", || a.cluster.directory().is_away() && b.cluster.directory().is_away()).await;
    let begun = Instant::now();
    a.send("d0").await.unwrap();
    // Not in memory, but its node has it.
    a.deliver("d1").await;
    assert_eq!(a.send("nobody").await, UNKNOWN);
    assert_eq!(b.connect("new").await, Err(DirectoryUnavailable), "and it is let in");
    a.deliver("new").await;
    double::check_promised("requests without a directory", begun.elapsed(), Duration::from_secs(2));
    assert!(a.cluster.directory().is_away() && b.cluster.directory().is_away(), "they did not wait for it to be back");
    b.disconnect("d3");

    redis.start_again();
    let restarted = Instant::now();
    eventually("all to be registered again", || redis.cli(&["DBSIZE"]) == "2002").await;
    println!("2,000 devices were registered again after {:?}", restarted.elapsed());
    b.await_registered().await;
    assert!(redis.cli(&["GET", "sg:d:new"]).starts_with("1 "));
    assert_eq!(redis.cli(&["GET", "sg:d:d3"]), "");
    assert!((0..2_000).filter(|number| *number != 3).all(|number| b.has(&format!("d{number}"))), "none was closed");
    assert_eq!(a.send_until_known("nobody").await, NEVER_SEEN);
    // Newer than before the loss.
    a.register("d5").await;
    eventually("the older connection to be closed", || !b.has("d5")).await;
}

#[tokio::test]
async fn a_redis_that_stalls_for_ten_seconds_costs_no_connection() {
    let redis = Redis::start();
    let (a, b) = (Node::start("a", &address_of(&redis)).await, Node::start("b", &address_of(&redis)).await);
    for number in 0..50 {
        b.register(&format!("d{number}")).await;
    }
    a.deliver("d0").await;
    redis.process(0).signal("STOP");
    let stopped = Instant::now();
    let mut slowest = Duration::ZERO;
    while stopped.elapsed() < Duration::from_secs(10) {
        let begun = Instant::now();
        a.send("d0").await.unwrap();
        slowest = slowest.max(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    double::check_promised("the slowest message without a directory", slowest, Duration::from_millis(500));
    a.deliver("d49").await;
    eventually("its stop to be noticed", || b.cluster.directory().is_away()).await;
    assert_eq!(b.connect("new").await, Err(DirectoryUnavailable));
    redis.process(0).signal("CONT");
    eventually("the directory to be back", || !a.cluster.directory().is_away() && !b.cluster.directory().is_away())
        .await;
    b.await_registered().await;
    eventually("the new one to be registered", || redis.cli(&["GET", "sg:d:new"]).starts_with("1 ")).await;
    for number in 0..50 {
        assert_eq!(&*a.deliver(&format!("d{number}")).await, format!("d{number}").as_bytes());
    }
}

#[tokio::test]
async fn two_processes_do_not_share_a_name() {
    let redis = Redis::start();
    let address = address_of(&redis);
    let first = Node::start("a", &address).await;
    first.register("d").await;
    let lease = || redis.cli(&["HGET", "sg:{nodes}:leases", "a"]).split(' ').next().unwrap().to_owned();
    let held = lease();
    let second = Node::start("a", &address).await;
    let tries = second.cluster.directory().commands();
    eventually("the second to try", || second.cluster.directory().commands() >= tries + 2).await;
    assert_eq!(lease(), held, "the first still holds it");
    drop(first);
    eventually("the second to take it", || lease() != held).await;
    drop(second);
}

#[tokio::test]
async fn a_process_that_follows_another_knows_the_nodes_while_redis_is_away() {
    let mut redis = Redis::start();
    let address = address_of(&redis);
    let (a, b) = (Node::start("a", &address).await, Node::start("b", &address).await);
    b.register("d").await;
    eventually("the other node to be seen", || a.cluster.directory().members().get("b").is_some()).await;
    let former = a.cluster.watch().former();
    redis.kill();
    a.cluster.leave();
    let next = Node::start_with("a", &address, None, Some(former)).await;
    assert_eq!(&*next.deliver("d").await, b"d");
    assert_eq!(next.send("nobody").await, UNKNOWN);
}

#[tokio::test]
async fn a_process_that_follows_another_does_not_vouch_for_devices_that_it_has_not_got() {
    let redis = Redis::start();
    let address = address_of(&redis);
    let a = Node::start("a", &address).await;
    let lease = || redis.cli(&["HGET", "sg:{nodes}:leases", "a"]);
    let filled = || lease().split(' ').nth(2).unwrap().to_owned();
    eventually("all to be registered", || filled() != "0").await;
    let (era, former) = (filled(), a.cluster.watch().former());
    assert_eq!(former.fully_registered_era.map(|era| era.to_string()), Some(era.clone()));
    a.cluster.leave();
    // As if the first had been behind with its registrations at that time.
    let behind = FormerDirectory { fully_registered_era: None, ..former.clone() };
    let next = Node::start_with("a", &address, None, Some(behind)).await;
    eventually("its lease to show it", || filled() == "0").await;
    next.cluster.directory().mark_filled();
    eventually("it to have everything", || filled() == era).await;
    next.cluster.leave();
    // Registered devices remain: a device that was never seen is reported as such at once, without waiting for the
    // upgrade.
    let last = Node::start_with("a", &address, None, Some(former)).await;
    let commands = last.cluster.directory().commands();
    eventually("it to hold the lease", || last.cluster.directory().commands() > commands + 1).await;
    assert_eq!(filled(), era);
}

#[tokio::test]
async fn a_process_goes_on_with_devices_of_one_that_named_places_by_worker() {
    let redis = Redis::start();
    let address = address_of(&redis);
    let (a, b) = (Node::start("a", &address).await, Node::start("b", &address).await);
    let Ok(ConnectOutcome::Current { generation, .. }) = a.connect("d").await else { panic!("it is not let in") };
    let entry = || redis.cli(&["GET", "sg:d:d"]).split(' ').map(str::to_owned).collect::<Vec<_>>();
    // An entry as these processes wrote it; 2^52 was above all of their numbers.
    let highest = ((1_u64 << 52) - 1).to_string();
    let mut written = entry();
    written[4].clone_from(&highest);
    redis.cli(&["SET", "sg:d:d", &written.join(" ")]);
    let address_seen = || b.cluster.directory().members().get("a").map(|member| member.address.clone());
    let (former, before, address_before) = (a.cluster.watch().former(), a.devices.lock().unwrap()["d"], address_seen());
    a.cluster.leave();
    a.cluster.directory().mark_handed_over("d", before);
    let next = Node::start_with("a", &address, None, Some(former)).await;
    assert!(next.cluster.directory().adopt("d", 7, generation, 0));
    next.devices.lock().unwrap().insert("d".into(), 7);
    next.await_registered().await;
    assert!(next.has("d"), "it was closed as an older one");
    assert!(entry()[4].parse::<u64>().unwrap() > highest.parse().unwrap(), "{:?}", entry());
    eventually("the next process to be seen", || address_seen() != address_before).await;
    b.deliver("d").await;
    assert_eq!(next.taken.load(Ordering::Relaxed), 1);
    next.disconnect("d");
    eventually("its end to be known", || entry()[0] == "0").await;
}

#[tokio::test]
async fn a_node_whose_process_is_replaced_is_asked_again() {
    let redis = Redis::start();
    let (a, b) = (Node::start("a", &address_of(&redis)).await, Node::start("b", &address_of(&redis)).await);
    b.register("d").await;
    eventually("the other node to be seen", || a.cluster.directory().members().get("b").is_some()).await;
    let ask = |patience| a.cluster.ask_all("message", "d".into(), patience);
    b.leaving.store(3, Ordering::Relaxed);
    let answers = ask(double::PATIENCE).await;
    assert!(matches!(&answers[..], [(node, Some(answer))] if &**node == "b" && &**answer == b"d"), "{answers:?}");
    assert_eq!((b.leaving.load(Ordering::Relaxed), b.taken.load(Ordering::Relaxed)), (0, 1));
    b.leaving.store(u64::MAX, Ordering::Relaxed);
    // The question is not repeated without end.
    let answers = tokio::time::timeout(double::PATIENCE, ask(Duration::from_millis(300))).await.unwrap();
    assert!(matches!(&answers[..], [(_, None)]), "{answers:?}");
}

#[tokio::test]
async fn a_cluster_of_redis_holds_a_directory() {
    let redis = Redis::start_with(RedisSetup { cluster: 3, ..RedisSetup::default() });
    let address = RedisAddress { urls: vec![redis.url(1)], is_cluster: true, ca_pem: None };
    let (a, b) = (Node::start("a", &address).await, Node::start("b", &address).await);
    for number in 0..50 {
        b.register(&format!("d{number}")).await;
        a.deliver(&format!("d{number}")).await;
    }
    let sizes: Vec<String> = (0..3).map(|server| redis.cli_of(server, &["DBSIZE"])).collect();
    assert!(sizes.iter().all(|size| size != "0"), "{sizes:?}");
    a.register("d7").await;
    eventually("the older connection to be closed", || !b.has("d7")).await;
}

#[tokio::test]
async fn redis_may_want_a_password_and_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let redis = Redis::start_with(RedisSetup {
        password: Some("secret".into()),
        certificate: Some((certificate, key)),
        ..RedisSetup::default()
    });
    let address =
        RedisAddress { urls: vec![redis.url(0)], is_cluster: false, ca_pem: Some(made.cert.pem().into_bytes()) };
    let a = Node::start("a", &address).await;
    assert!(matches!(a.connect("d").await, Ok(ConnectOutcome::Current { .. })));
}
