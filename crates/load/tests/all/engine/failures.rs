//! Targets that refuse, close, fall silent or die.

use crate::engine::server::{AfterAnswer, ok, serve, write};
use crate::engine::{MS, SECONDS, TIMEOUT, errors, even, load, millis, outcome};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_load::{ErrorKind, Load, LoadError, Pace, Void, run};

#[test]
fn a_server_that_closes_each_connection_is_asked_again_and_again() {
    let server = serve(|stream, _| {
        write(stream, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        AfterAnswer::Close
    });
    let outcome = outcome(&load(server.address, Pace::Closed, 3, millis(200)));
    assert_eq!(outcome.errors.examples, [""; 0]);
    assert!(outcome.requests > 3);
    assert_eq!(outcome.requests, server.requests.load(Ordering::SeqCst));
    assert!(outcome.connect.len() >= outcome.requests);
}

#[test]
fn a_target_that_refuses_is_said_so_at_once() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = run(&load(address, even(10.0), 5, millis(100)), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LoadError::Unreachable { .. }), "{error:?}");
    let words = error.to_string();
    assert!(words.contains(&address.to_string()) && words.contains("refused"), "{words}");
    assert!(words.contains("is the target running"), "{words}");
}

#[test]
fn the_first_address_that_answers_is_used() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = serve(|stream, _| ok(stream, "ok"));
    let mut load = load(server.address, even(100.0), 4, millis(100));
    load.target.addresses = vec![refusing, server.address];
    let outcome = outcome(&load);
    assert_eq!((outcome.requests, outcome.errors.total()), (10, 0));
}

#[test]
fn a_target_that_dies_does_not_end_the_run() {
    const DEADLY: u64 = 40;
    for pace in [even(200.0), Pace::Closed] {
        let died = |seconds: u64| {
            let server = serve(|stream, asked| match ok(stream, "ok") {
                AfterAnswer::Keep if asked.total >= DEADLY => AfterAnswer::Die,
                then => then,
            });
            let begun = Instant::now();
            let outcome = outcome(&load(server.address, pace, 3, Duration::from_secs(seconds)));
            // It does not wait for the timeout, since the server has gone.
            assert!(begun.elapsed() < Duration::from_secs(seconds) + TIMEOUT / 2);
            // A busy machine may be too slow for the server to die during the run.
            let has_died = server.requests.load(Ordering::SeqCst) > DEADLY && errors(&outcome, ErrorKind::Connect) > 0;
            has_died.then_some((seconds, outcome))
        };
        let (seconds, outcome) = SECONDS.into_iter().find_map(died).expect("it dies");
        assert!(outcome.requests >= 30, "{outcome:?}");
        assert!(outcome.errors.total() < 100 * seconds, "no loop of attempts: {:?}", outcome.errors);
        assert_eq!(outcome.elapsed, Duration::from_secs(seconds));
        if pace != Pace::Closed {
            let lost = outcome.errors.total() - errors(&outcome, ErrorKind::Connect);
            assert_eq!(outcome.requests + lost + outcome.self_watch.missed_starts, 200 * seconds, "{outcome:?}");
        }
    }
}

#[test]
fn what_is_not_answered_in_time_is_given_up() {
    let server = serve(|stream, asked| {
        if asked.total >= 5 {
            thread::sleep(Duration::from_secs(600));
        }
        ok(stream, "ok")
    });
    let load = Load { timeout: millis(500), ..load(server.address, even(100.0), 2, millis(400)) };
    let begun = Instant::now();
    let outcome = outcome(&load);
    assert!(begun.elapsed() < Duration::from_secs(60));
    // Requests that are answered, as far as in time.
    assert!(outcome.requests <= 5);
    let timeouts = errors(&outcome, ErrorKind::Timeout);
    let missed = outcome.self_watch.missed_starts;
    assert!(timeouts >= 2);
    assert_eq!(timeouts, outcome.errors.total());
    // Nothing is left out: each start was answered, timed out or missed.
    assert_eq!(outcome.requests + timeouts + missed + outcome.cut_off, 40);
    assert_eq!(
        (outcome.latencies.corrected.len(), outcome.latencies.uncorrected.len()),
        (40, outcome.requests + timeouts)
    );
    assert!(outcome.latencies.uncorrected.max() >= 500 * MS);
    assert!(outcome.errors.examples[0].contains("no complete answer in 500 ms"), "{:?}", outcome.errors);
}

#[test]
fn nothing_answered_is_void() {
    let server = serve(|_, _| {
        thread::sleep(Duration::from_secs(3));
        AfterAnswer::Close
    });
    let load = Load { timeout: millis(60), ..load(server.address, even(50.0), 3, millis(100)) };
    let outcome = outcome(&load);
    assert!(outcome.void.contains(&Void::NoAnswers), "{:?}", outcome.void);
    assert_eq!(outcome.latencies.corrected.len(), 5);
}
