//! Nodes in processes of their own, which are killed and stopped.
//!
//! The other process is this test's own executable, which then runs [`node_process`] alone.

use crate::double;
use crate::double::{Node, SILENT, address_of, eventually};
use std::process::Command;
use std::time::{Duration, Instant};
use stillgate_cluster::SendError;
use stillgate_cluster::registry::RedisAddress;
use stillgate_devices::directory::DeliveryError;
use stillgate_testkit::{Process, Redis};

/// The address of a process's directory.
const REDIS: &str = "STILLGATE_TEST_REDIS";
const NODE: &str = "STILLGATE_TEST_NODE";
/// The devices that are connected to it, with a comma after each.
const DEVICES: &str = "STILLGATE_TEST_DEVICES";

/// A node that runs until it is killed; does nothing if none is requested.
#[tokio::test]
async fn node_process() {
    let (Ok(url), Ok(name), Ok(devices)) = (std::env::var(REDIS), std::env::var(NODE), std::env::var(DEVICES)) else {
        return;
    };
    let node = Node::start(&name, &RedisAddress { urls: vec![url], is_cluster: false, ca_pem: None }).await;
    for device in devices.split_terminator(',') {
        node.connect(device).await.unwrap();
    }
    std::future::pending::<()>().await;
}

fn spawn(redis: &Redis, name: &str, devices: &str, folder: &tempfile::TempDir) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["processes::node_process", "--exact", "--nocapture"]);
    command.env(REDIS, redis.url(0)).env(NODE, name).env(DEVICES, devices);
    Process::spawn(name, &mut command, &folder.path().join(name))
}

fn is_online(redis: &Redis, device: &str) -> bool {
    redis.cli(&["GET", &format!("sg:d:{device}")]).starts_with("1 ")
}

#[tokio::test]
async fn a_node_that_is_killed_leaves_no_message_without_an_answer() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let a = Node::start("a", &address_of(&redis)).await;
    let mut b = spawn(&redis, "b", &format!("d,{SILENT}"), &folder);
    eventually("the devices of b", || is_online(&redis, "d") && is_online(&redis, SILENT)).await;
    assert_eq!(&*a.deliver("d").await, b"d");
    // Remembers the node of the device, so that the next message is sent at once.
    let unanswered = tokio::time::timeout(Duration::from_millis(500), a.send(SILENT)).await;
    assert!(unanswered.is_err());
    let in_flight: Vec<_> = (0..20)
        .map(|_| {
            let cluster = a.cluster.clone();
            tokio::spawn(async move { cluster.send(SILENT, "message", SILENT.into(), double::MESSAGE_PATIENCE).await })
        })
        .collect();
    // They have arrived once messages that were sent after them have.
    for _ in 0..3 {
        assert_eq!(&*a.deliver("d").await, b"d");
    }
    b.signal("KILL");
    let killed = Instant::now();
    for message in in_flight {
        assert_eq!(message.await.unwrap(), Err(SendError::Lost));
    }
    let lost_after = killed.elapsed();
    b.wait();
    assert_eq!(a.send_until_known("d").await, Err(SendError::Unsent(DeliveryError::Offline { last_seen_ms: None })));
    // Not at the timeout.
    assert!(lost_after < double::MESSAGE_PATIENCE / 2, "{lost_after:?}");
    double::check_promised("to be lost", lost_after, Duration::from_secs(2));
    // The bound is 5 s; the rest is this machine's delay.
    double::check_promised("to be offline", killed.elapsed(), Duration::from_secs(10));
}

#[tokio::test]
async fn a_node_that_stalls_for_ten_seconds_comes_back_with_its_devices() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let a = Node::start("a", &address_of(&redis)).await;
    let b = spawn(&redis, "b", "d", &folder);
    eventually("the device of b", || is_online(&redis, "d")).await;
    assert_eq!(&*a.deliver("d").await, b"d");
    b.signal("STOP");
    let stopped = Instant::now();
    assert_eq!(a.send("d").await, Err(SendError::Lost), "it was sent, and its fate is unknown");
    assert!(stopped.elapsed() < double::MESSAGE_PATIENCE / 2, "{:?}", stopped.elapsed());
    double::check_promised("to be found out", stopped.elapsed(), Duration::from_secs(8));
    let offline = Err(SendError::Unsent(DeliveryError::Offline { last_seen_ms: None }));
    let mut sent = a.send("d").await;
    while sent != offline {
        // Its lease is still held, but it cannot be reached.
        assert_eq!(sent, Err(SendError::Unsent(DeliveryError::Unknown)));
        assert!(stopped.elapsed() < double::PATIENCE);
        sent = a.send("d").await;
    }
    println!("offline after {:?}", stopped.elapsed());
    tokio::time::sleep(Duration::from_secs(10).saturating_sub(stopped.elapsed())).await;
    b.signal("CONT");
    let going_on = Instant::now();
    let mut sent = a.send("d").await;
    while sent.is_err() {
        assert!(going_on.elapsed() < double::PATIENCE, "{sent:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        sent = a.send("d").await;
    }
    println!("reached again after {:?}", going_on.elapsed());
}
