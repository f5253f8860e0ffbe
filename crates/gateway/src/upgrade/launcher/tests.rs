//! The old process's reaction to new ones of every kind: shell scripts play them.

use super::super::READY_TIMEOUT;
use super::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Checks the result of starting a shell script.
fn check(script: &str, ready_timeout: Duration, expected: &str) {
    let arguments = vec!["-c".into(), script.into()];
    let program = Program { path: "/bin/sh".into(), name: "sh".into(), arguments, ready_timeout };
    let hello = |_| {
        (
            Message::Hello { version: 1, pid: 1, digest: "x".repeat(1000), had_end_flag: false, datastore: None },
            Vec::new(),
        )
    };
    let offer = (0..1000).map(hello).collect();
    let found = launch(&program, offer, &StartingProcess::default(), &|_| {}).expect_err("it is not a gateway");
    assert!(found.contains(expected), "{script}: {found}");
}

#[test]
fn a_program_that_is_no_gateway_is_found_out() {
    check("exit 3", READY_TIMEOUT, "exit status: 3");
    check("kill -9 $$", READY_TIMEOUT, "signal: 9");
    check("exec <&-; exec sleep 600", READY_TIMEOUT, "killed");
    let soon = Duration::from_millis(300);
    // It does not even read: the offer fills the socket.
    check("exec sleep 600", soon, "not ready within");
    check("exec cat >/dev/null", soon, "not ready within");
    let (path, name) = (PathBuf::from("/nowhere/stillgate"), OsString::new());
    let missing = Program { path, name, arguments: vec![], ready_timeout: READY_TIMEOUT };
    assert!(
        launch(&missing, Vec::new(), &StartingProcess::default(), &|_| {})
            .expect_err("no file")
            .contains("/nowhere/stillgate")
    );
}

#[tokio::test]
async fn who_has_given_an_order_hears_that_the_thread_is_gone() {
    let (orders, progress) = (sync_channel(1).0, mpsc::channel(1).1);
    let mut launcher = Launcher { orders, progress, starting: Arc::default(), failures: 0, is_loss_told: false };
    for _ in 0..2 {
        let told = launcher.progress().await;
        assert!(matches!(&told, Progress::Failed(reason) if reason.contains("thread has ended")), "{told:?}");
        timeout(Duration::ZERO, launcher.progress()).await.expect_err("it is said once");
        launcher.order(Order::Launch(Vec::new()));
    }
}

/// Checks the result of handing connections over to a shell script.
fn check_end(script: &str, expected: &str) {
    let (channel, theirs) = Channel::pair().expect("sockets");
    let mut child = Command::new("/bin/sh").args(["-c", script]).stdin(theirs).spawn().expect("a shell");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (outbox, parcels) = mpsc::channel(2);
    // Nothing is handed over: its end is noticed regardless.
    let progress = runtime.block_on(hand_over(&mut child, channel, parcels));
    assert!(outbox.is_closed(), "{script}");
    assert_eq!(format!("{progress:?}"), expected, "{script}");
    end(&mut child);
}

#[test]
fn the_end_of_one_that_has_taken_over_is_seen_at_once() {
    check_end("exit 0", r#"Ended("exit status: 0")"#);
    check_end("kill -9 $$", r#"Lost("signal: 9 (SIGKILL)")"#);
    check_end("exec <&-; exec sleep 600", "HandedOver");
}

/// Everything has been given.
fn nothing_more() -> mpsc::Receiver<Parcel> {
    let (_, parcels) = mpsc::channel(1);
    parcels
}

#[test]
fn an_end_that_came_before_ours_is_seen_as_well() {
    let (channel, theirs) = Channel::pair().expect("sockets");
    let mut child = Command::new("/bin/sh").args(["-c", "kill -9 $$"]).stdin(theirs).spawn().expect("a shell");
    channel.receive(None).map(drop).expect("its end");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let progress = runtime.block_on(hand_over(&mut child, channel, nothing_more()));
    assert_eq!(format!("{progress:?}"), r#"Lost("signal: 9 (SIGKILL)")"#);
}

#[test]
fn everything_is_handed_over_when_the_other_one_says_so() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    // It dies while its end is open; and when it has seen ours, without a word.
    for script in ["sleep 0.1; kill -9 $$", "read -r line; kill -9 $$"] {
        let (channel, theirs) = Channel::pair().expect("sockets");
        let mut child = Command::new("/bin/sh").args(["-c", script]).stdin(theirs).spawn().expect("a shell");
        let progress = runtime.block_on(hand_over(&mut child, channel, nothing_more()));
        assert_eq!(format!("{progress:?}"), r#"Lost("signal: 9 (SIGKILL)")"#, "{script}");
    }
    let (channel, theirs) = Channel::pair().expect("sockets");
    let theirs = Channel::new(theirs).expect("one of ours");
    let mut child = Command::new("/bin/sleep").arg("600").spawn().expect("a process");
    let taker = thread::spawn(move || {
        assert!(theirs.receive(None).expect("an end").is_none());
        Message::Taken {}.send_with(&theirs, &[]).expect("room");
    });
    let progress = runtime.block_on(hand_over(&mut child, channel, nothing_more()));
    assert_eq!(format!("{progress:?}"), "HandedOver");
    taker.join().expect("no panic");
    end(&mut child);
}

#[test]
fn one_that_dies_before_it_is_told_to_go_on_changes_nothing() {
    let (channel, theirs) = Channel::pair().expect("sockets");
    let mut child = Command::new("/bin/sh").args(["-c", "exit 3"]).stdin(theirs).spawn().expect("a shell");
    child.wait().expect("its end");
    let reason = go(&mut child, &channel).expect_err("it is gone");
    assert!(reason.contains("exit status: 3"), "{reason}");
}

#[test]
fn one_that_serves_already_gets_to_finish() {
    let (channel, theirs) = Channel::pair().expect("sockets");
    let script = r#"trap "exit 7" TERM; echo >&0; while :; do sleep 0.01; done"#;
    let child = Command::new("/bin/sh").args(["-c", script]).stdin(theirs).spawn().expect("a shell");
    channel.receive(Some(READY_TIMEOUT)).expect("a line").expect("a line");
    let reason = dismiss(child, channel);
    assert!(reason.contains("exit status: 7"), "{reason}");
}
