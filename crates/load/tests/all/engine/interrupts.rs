//! Runs that are ended early, and requests under way when a run ends.

use crate::engine::server::{AfterAnswer, ok, serve};
use crate::engine::{SECONDS, even, load, millis, outcome};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_load::engine::PreparationPhase;
use stillgate_load::{Load, LoadError, Note, Pace, Void, run};

/// Far longer than ending takes, far shorter than the run to be ended.
const SOON: Duration = Duration::from_secs(120);

const LONG: Duration = Duration::from_secs(1200);

#[test]
fn in_the_warm_up() {
    for pace in [even(500.0), Pace::Closed] {
        let server = serve(|stream, _| ok(stream, "ok"));
        let load = Load { warm_up: LONG, threads: 2, ..load(server.address, pace, 4, LONG) };
        let (interrupt, mut ended) = (AtomicBool::new(false), None);
        thread::scope(|scope| {
            scope.spawn(|| {
                while server.requests.load(Ordering::SeqCst) < 20 {
                    thread::yield_now();
                }
                interrupt.store(true, Ordering::Relaxed);
            });
            ended = Some(run(&load, &interrupt, &mut |_| panic!("nothing is measured in a warm-up")));
        });
        let error = ended.unwrap().unwrap_err();
        assert!(matches!(error, LoadError::Interrupted(PreparationPhase::WarmUp)), "{error:?}");
        assert!(error.to_string().contains("in the warm-up; nothing was measured"), "{error}");
    }
}

#[test]
fn while_connecting() {
    // Nothing accepts: once the queue is full, connecting never ends.
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let (interrupt, begun) = (AtomicBool::new(false), Instant::now());
    let mut ended = None;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Vec::new();
            while let Ok(stream) = TcpStream::connect_timeout(&address, millis(100)) {
                held.push(stream);
            }
            interrupt.store(true, Ordering::Relaxed);
        });
        ended = Some(run(&load(address, even(10.0), 50, millis(100)), &interrupt, &mut |_| {}));
    });
    let error = ended.unwrap().unwrap_err();
    assert!(matches!(error, LoadError::Interrupted(PreparationPhase::Connecting)), "{error:?}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn what_is_under_way_then_is_no_failure() {
    let server = serve(|stream, asked| {
        if asked.total >= 5 {
            thread::sleep(LONG);
        }
        ok(stream, "ok")
    });
    // Each connection has a request that is not answered, after all that are.
    for (pace, first, asked) in [(even(100.0), 5, 7), (Pace::Closed, 0, 9)] {
        let (interrupt, mut told, begun) = (AtomicBool::new(false), 0, Instant::now());
        let load = Load { timeout: LONG, ..load(server.address, pace, 2, LONG) };
        let outcome = run(&load, &interrupt, &mut |_| {
            told += 1;
            interrupt.store(told >= 3 && server.requests.load(Ordering::SeqCst) == asked, Ordering::Relaxed);
        })
        .unwrap();
        assert!(begun.elapsed() < SOON, "it does not wait for the timeout: {:?}", begun.elapsed());
        assert!(outcome.interrupted && outcome.elapsed < SOON);
        assert_eq!((outcome.errors.total(), outcome.requests, outcome.cut_off), (0, first, 2), "{outcome:?}");
        let latencies = &outcome.latencies;
        assert_eq!(latencies.uncorrected.len(), first, "their duration is unknown");
        let open = if pace == Pace::Closed { 0 } else { outcome.cut_off + outcome.self_watch.missed_starts };
        assert_eq!(latencies.corrected.len(), first + open);
    }
}

#[test]
fn while_the_last_answers_are_awaited() {
    let server = serve(|stream, asked| {
        if asked.total >= 5 {
            thread::sleep(LONG);
        }
        ok(stream, "ok")
    });
    let load = Load { timeout: LONG, ..load(server.address, even(100.0), 2, millis(100)) };
    let interrupt = AtomicBool::new(false);
    let outcome = run(&load, &interrupt, &mut |interval| {
        let is_at_the_end = interval.start + interval.length > interval.of;
        interrupt.store(is_at_the_end && server.requests.load(Ordering::SeqCst) == 7, Ordering::Relaxed);
    })
    .unwrap();
    assert!(outcome.interrupted && outcome.elapsed == millis(100) && outcome.drain < SOON, "{outcome:?}");
    assert_eq!((outcome.requests, outcome.errors.total(), outcome.cut_off), (5, 0, 2));
}

#[test]
fn a_schedule_that_is_beyond_the_target() {
    let server = serve(|stream, _| {
        thread::sleep(millis(30));
        ok(stream, "ok")
    });
    let load = Load { timeout: millis(2000), ..load(server.address, even(2000.0), 2, millis(200)) };
    let outcome = outcome(&load);
    let missed = outcome.self_watch.missed_starts;
    // Each start is counted somewhere, and those that were sent late and cut off did not time out.
    assert_eq!((outcome.requests + outcome.cut_off + missed, outcome.errors.total()), (400, 0), "{outcome:?}");
    assert!(outcome.cut_off <= 2 && outcome.answered_in_time < outcome.requests, "{outcome:?}");
    assert!(outcome.drain >= millis(1950), "{:?}", outcome.drain);
    let in_time = outcome.rate_achieved * outcome.elapsed.as_secs_f64();
    assert!((in_time - outcome.answered_in_time as f64).abs() < 1e-6);
    assert_eq!(outcome.latencies.corrected.len(), 400);
    // A debug build on a busy machine may be at its own limit, too.
    let told = outcome.notes.iter().any(|note| matches!(note, Note::FellBehind { due: 400, places: 2, .. }));
    assert!(told || outcome.void.iter().any(|void| matches!(void, Void::Saturated { .. })), "{outcome:?}");
}

#[test]
fn a_target_that_closes_without_an_answer_is_asked_again_soon() {
    let server = serve(|_, _| AfterAnswer::Close);
    let asked = |seconds: u64| {
        let outcome = outcome(&load(server.address, even(100.0), 4, Duration::from_secs(seconds)));
        assert_eq!(outcome.errors.total() + outcome.self_watch.missed_starts, 100 * seconds);
        // Pauses of 10, 20, 40, 80 and 100 ms, with new connections after each; on a busy machine it takes longer.
        outcome.sent >= 12
    };
    assert!(SECONDS.into_iter().any(asked));
}
