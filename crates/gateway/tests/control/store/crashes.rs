//! Answered writes persist: after `kill -9` in the middle of writes, and on a file system that is full.

use super::stage::{Admin, Stage, upstream};
use crate::shared::upgrade::sh;
use serde_json::{Value as Json, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use stillgate_testkit::{Rounds, Setup, eventually};

/// Times that the gateway is killed; `STILLGATE_KILLS` sets another number.
const KILLS: u64 = 3;
/// Number of concurrent writers.
const WRITERS: u64 = 3;
/// Writes that are answered before it is killed, at least; `STILLGATE_KILL_AFTER` sets another number.
const ANSWERED_BEFORE: u64 = 40;

fn node() -> Json {
    upstream("127.0.0.1:9".parse().expect("an address"))
}

fn document(n: u64) -> Json {
    json!({ "uri": "/x", "upstream": node(), "labels": { "n": n.to_string() } })
}

/// Writes larger and larger numbers into one route until an answer is missing; the last that was answered.
fn write_numbers(admin: &Admin, route: u64, from: u64, rounds: &Rounds) -> u64 {
    let lines = format!("X-API-KEY: {}\r\n", admin.key);
    let mut last = from;
    while rounds.go_on() {
        let path = format!("/apisix/admin/routes/{route}");
        let answer = admin.try_ask("PUT", &path, &lines, document(last + 1).to_string().as_bytes());
        let Ok(answer) = answer else { break };
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        last += 1;
        rounds.count();
    }
    last
}

/// The number that was written last; 0: none was.
fn number(admin: &Admin, route: u64) -> u64 {
    let answer = admin.ask("GET", &format!("/apisix/admin/routes/{route}"), "");
    if answer.status == 404 {
        return 0;
    }
    answer.json()["value"]["labels"]["n"].as_str().and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn what_was_answered_is_there_after_kill_9() {
    let number_of = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let kills = number_of("STILLGATE_KILLS").unwrap_or(KILLS);
    let answered_before = number_of("STILLGATE_KILL_AFTER").unwrap_or(ANSWERED_BEFORE);
    let mut stage = Stage::start();
    let mut last = [0; WRITERS as usize];
    for kill in 0..kills {
        let (rounds, admin) = (Rounds::default(), &stage.admin);
        last = std::thread::scope(|scope| {
            let writers: [_; WRITERS as usize] = std::array::from_fn(|route| {
                let (rounds, from) = (&rounds, last[route]);
                scope.spawn(move || write_numbers(admin, route as u64, from, rounds))
            });
            let _end = rounds.until_dropped();
            // Step by step: each is waited for as long as the first, whatever the disk takes.
            (0..answered_before.div_ceil(ANSWERED_BEFORE)).for_each(|_| rounds.await_more(ANSWERED_BEFORE));
            stage.gateway.signal("KILL");
            rounds.end();
            writers.map(|writer| writer.join().expect("a writer"))
        });
        stage.gateway.wait();
        stage.gateway.restart(crate::shared::STILLGATE);
        for (route, last) in last.iter_mut().enumerate() {
            let found = number(&stage.admin, route as u64);
            // One more may be there, whose answer was lost.
            assert!((*last..=*last + 1).contains(&found), "kill {kill}: {found} is there, {last} was answered");
            *last = found;
        }
        assert_eq!(stage.admin.revision(), last.iter().sum::<u64>(), "kill {kill}: a revision each");
    }
}

#[test]
fn a_file_that_is_not_a_store_is_distinguished_from_a_new_one() {
    let mut stage = Stage::start();
    let (file, says) = (stage.store_file(), |stage: &Stage, what: &str| stage.gateway.log().contains(what));
    let created = format!("created a new, empty store at {}", file.display());
    assert!(says(&stage, &created) && !says(&stage, "chmod"), "{}", stage.gateway.log());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    stage.restart("TERM");
    assert_eq!(stage.gateway.log().matches(&created).count(), 1, "{}", stage.gateway.log());
    assert!(says(&stage, "mode 0644") && says(&stage, "chmod 600"), "{}", stage.gateway.log());
    stage.gateway.signal("TERM");
    stage.gateway.wait();
    std::fs::write(&file, "").expect("cut off");
    let arguments = ["run", "--config", stage.gateway.config_path().to_str().expect("UTF-8")].map(str::to_owned);
    let ended = std::process::Command::new(crate::shared::STILLGATE).args(arguments).output().expect("run it");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && told.contains("the file is empty, so it is not a store"), "{told}");
    assert_eq!(std::fs::metadata(&file).expect("the file").len(), 0, "left as it is");
}

/// A small file system, which is unmounted when this is dropped.
struct Small<'a>(&'a Path);

impl Small<'_> {
    /// `None`: this needs root.
    fn mount(place: &Path) -> Option<Small<'_>> {
        let script = format!("mount -t tmpfs -o size=4m none {}", place.display());
        let mounted = std::process::Command::new("sh").args(["-c", &script]).status();
        mounted.is_ok_and(|status| status.success()).then_some(Small(place))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_file_system_loses_nothing_that_was_answered() {
    let place = tempfile::tempdir().expect("a folder");
    let Some(_small) = Small::mount(place.path()) else {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    };
    let config = format!("config: {{source: store, store: \"{}/config.redb\"}}", place.path().display());
    let key = format!("key: {}", super::stage::KEY);
    let mut stage = Stage::with(&Setup::default().gateway(&config).admin(&key));
    let body = "x".repeat(60_000);
    let large = |n: u64| json!({ "uri": "/x", "upstream": node(), "plugins": { "echo": { "body": body } }, "labels": { "n": n.to_string() } });
    let put =
        |stage: &Stage, n: u64| stage.admin.ask("PUT", &format!("/apisix/admin/routes/{n}"), &large(n).to_string());
    let mut count = 0;
    let refused = loop {
        let answer = put(&stage, count);
        if answer.status != 201 {
            break answer;
        }
        count += 1;
        assert!(count < 100, "it is never full");
    };
    assert!(matches!(refused.status, 500 | 503), "{refused:?}");
    // Reported once, however many fail.
    assert!(matches!(put(&stage, count).status, 500 | 503));
    let log = |what: &str| stage.gateway.log().matches(what).count();
    let error = || stage.gateway.status()["source_error"].as_str().unwrap_or_default().to_owned();
    eventually("the log", || log("store: a write failed") > 0);
    assert_eq!(log("store: a write failed"), 1, "{}", stage.gateway.log());
    assert!(error().contains("it cannot be written"), "{}", error());
    assert!(count > 3, "{count}");
    assert_eq!(stage.admin.ask("GET", &format!("/apisix/admin/routes/{count}"), "").status, 404);
    let revision = stage.admin.revision();
    assert_eq!(revision, count);
    // It can be left again in the same way as any other.
    sh(&format!("mount -o remount,size=32m {}", place.path().display()));
    eventually("writes to be taken again", || put(&stage, count).status == 201);
    eventually("the log", || log("store: writes are made again") == 1);
    assert_eq!(error(), "");
    stage.restart("KILL");
    for n in 0..=count {
        assert_eq!(number(&stage.admin, n), n);
    }
}
