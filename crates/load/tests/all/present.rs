//! Output of runs for people and programs.
//!
//! `UPDATE_EXPECT=1 cargo test` rewrites the expected files; read the difference.

use expect_test::expect_file;
use std::time::{Duration, UNIX_EPOCH};
use stillgate_load::outcome::histogram;
use stillgate_load::present::table;
use stillgate_load::{
    Arrivals, Bounds, ErrorKind, Errors, Latencies, Load, Mix, Note, Pace, Protocol, RunSummary, Schedule, SelfWatch,
    Target, Void,
};

fn load(pace: Pace, threads: usize) -> Load {
    let target = Target::parse("http://127.0.0.1:8080/items").unwrap();
    Load {
        mix: Mix::single("GET", &target.path_and_query, &target.host, &[], Vec::new()).unwrap(),
        target,
        pace,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(10),
        requests: None,
        protocol: Protocol::Http1,
        tls: None,
        connections: 50,
        threads,
        cpus: Vec::new(),
        realtime: false,
        sources: Vec::new(),
        timeout: Duration::from_secs(1),
        interval: Duration::from_secs(1),
        bounds: Bounds::default(),
        seed: 1,
    }
}

fn open(rate: f64, rate_end: f64, arrivals: Arrivals) -> Pace {
    Pace::Open(Schedule { rate, rate_end, arrivals })
}

/// A hundred thousand requests of 10 to 100,000 times `unit_ns`.
fn spread(unit_ns: u64) -> hdrhistogram::Histogram<u64> {
    let mut histogram = histogram();
    (1..=10_000).for_each(|number| histogram.record_n(number * 10 * unit_ns, 10).unwrap());
    histogram
}

/// Lateness of each start.
fn lateness() -> hdrhistogram::Histogram<u64> {
    let mut lateness = spread(2);
    lateness.add(spread(2)).unwrap();
    lateness
}

fn outcome() -> RunSummary {
    RunSummary {
        begun: UNIX_EPOCH + Duration::from_millis(1_790_000_000_250),
        elapsed: Duration::from_millis(10_001),
        requests: 199_990,
        answered_in_time: 199_985,
        good: 199_990,
        good_in_time: 199_985,
        drain: Duration::from_micros(420),
        cut_off: 0,
        interrupted: false,
        errors: Errors::default(),
        sent: 200_000,
        sent_again: 0,
        bytes_received: 20_772_000,
        rate_achieved: 19_997.5,
        rate_intended: Some(20_000.0),
        latencies: Latencies { corrected: spread(100), uncorrected: spread(50) },
        refused: histogram(),
        connect: spread(3),
        send: spread(1),
        first_byte: spread(40),
        self_watch: SelfWatch {
            lateness: lateness(),
            missed_starts: 0,
            cpu_cores: 0.43,
            cpu_share_max: 0.431,
            realtime: false,
            pause_longest: Duration::ZERO,
            pauses: Duration::ZERO,
            cpu_wait_share_max: Some(0.002),
        },
        void: Vec::new(),
        notes: Vec::new(),
    }
}

fn with_errors() -> RunSummary {
    let mut outcome = outcome();
    outcome.errors.counts[ErrorKind::Timeout as usize] = 12;
    outcome.errors.counts[ErrorKind::Status as usize] = 5;
    outcome.errors.examples = vec!["GET /items: status 503".to_owned(), "GET /items: \u{1b}[31mred\r\n".to_owned()];
    (outcome.good, outcome.good_in_time) = (199_985, 199_980);
    outcome.refused.record_n(310_000, 5).unwrap();
    outcome.self_watch.missed_starts = 1;
    (outcome.cut_off, outcome.interrupted) = (3, true);
    outcome.drain = Duration::from_secs(1);
    let (answered, places, cpu_share) = (199_985, 50, 0.431);
    outcome.notes = vec![Note::FellBehind { answered, due: 210_000, places, cpu_share }, Note::NotFirst];
    outcome
}

fn void() -> RunSummary {
    let mut outcome = outcome();
    outcome.void = vec![
        Void::Late {
            share: 0.05,
            share_max: 0.001,
            late: Duration::from_millis(1),
            worst: Duration::from_millis(500),
            cpu_wait_share: Some(0.2),
            cpu_share: 0.4,
        },
        Void::NoAnswers,
    ];
    outcome
}

/// The outcome of a run without answers.
fn empty() -> RunSummary {
    RunSummary {
        elapsed: Duration::ZERO,
        requests: 0,
        answered_in_time: 0,
        good: 0,
        good_in_time: 0,
        drain: Duration::ZERO,
        sent: 0,
        sent_again: 0,
        bytes_received: 0,
        rate_achieved: 0.0,
        rate_intended: None,
        latencies: Latencies { corrected: histogram(), uncorrected: histogram() },
        refused: histogram(),
        connect: histogram(),
        send: histogram(),
        first_byte: histogram(),
        self_watch: SelfWatch {
            lateness: histogram(),
            missed_starts: 0,
            cpu_cores: 0.0,
            cpu_share_max: 0.0,
            realtime: false,
            pause_longest: Duration::ZERO,
            pauses: Duration::ZERO,
            cpu_wait_share_max: None,
        },
        ..outcome()
    }
}

#[test]
fn tables() {
    let uniform = open(20_000.0, 20_000.0, Arrivals::Uniform);
    expect_file!["../data/table-open.txt"].assert_eq(&table(&outcome(), &load(uniform, 1)));
    let ramp = open(100.5, 20_000.0, Arrivals::Poisson);
    expect_file!["../data/table-errors.txt"].assert_eq(&table(&with_errors(), &load(ramp, 2)));
    let closed = RunSummary { rate_intended: None, ..outcome() };
    expect_file!["../data/table-closed.txt"].assert_eq(&table(&closed, &load(Pace::Closed, 1)));
    expect_file!["../data/table-void.txt"].assert_eq(&table(&void(), &load(uniform, 1)));
    expect_file!["../data/table-empty.txt"].assert_eq(&table(&empty(), &load(Pace::Closed, 1)));
}

#[test]
fn a_void_run_has_no_line_that_looks_like_a_result() {
    let text = table(&void(), &load(open(1.0, 1.0, Arrivals::Uniform), 1));
    let (heading, figures) = text.split_once("\n\n").unwrap();
    assert!(heading.starts_with("Running 10s test @ "));
    assert!(figures.starts_with("*** VOID"));
    assert!(!figures.lines().any(|line| line.starts_with("Requests/sec") || line.starts_with(" 99")), "{text}");
}
