//! Loads an address with a closed loop, or with an open one if a rate is given, to measure the generator itself.
//!
//! `closed URL [CONNECTIONS [SECONDS [RATE [CPU]]]]`

use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_load::{Arrivals, Bounds, Load, Mix, Pace, Protocol, Schedule, Target, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| arguments.get(at).map_or(Ok(default), |text| text.parse::<f64>());
    let url = arguments.first().ok_or("closed URL [CONNECTIONS [SECONDS [RATE [CPU]]]]")?;
    let target = Target::resolve(url)?;
    let rate = number(3, 0.0)?;
    let cpu = number(4, -1.0)?;
    let load = Load {
        mix: Mix::single("GET", &target.path_and_query, &target.host, &[], Vec::new())?,
        target,
        pace: if rate > 0.0 {
            Pace::Open(Schedule { rate, rate_end: rate, arrivals: Arrivals::Uniform })
        } else {
            Pace::Closed
        },
        warm_up: Duration::from_millis(500),
        duration: Duration::from_secs_f64(number(2, 5.0)?),
        requests: None,
        protocol: Protocol::Http1,
        tls: None,
        connections: number(1, 50.0)? as usize,
        threads: 1,
        cpus: if cpu >= 0.0 { vec![cpu as usize] } else { Vec::new() },
        realtime: false,
        sources: Vec::new(),
        timeout: Duration::from_secs(10),
        interval: Duration::from_secs(1),
        bounds: Bounds::default(),
        seed: 1,
    };
    let outcome = run(&load, &AtomicBool::new(false), &mut |_| {})?;
    let micros = |ns: u64| ns as f64 / 1e3;
    let per_request =
        outcome.self_watch.cpu_cores * outcome.elapsed.as_secs_f64() * 1e6 / outcome.requests.max(1) as f64;
    println!("{} requests, {:.0}/s, errors {}", outcome.requests, outcome.rate_achieved, outcome.errors.total());
    println!("generator: {per_request:.2} us CPU per request, {:.3} cores", outcome.self_watch.cpu_cores);
    println!(
        "waited for a CPU: {:?}, missed starts {}",
        outcome.self_watch.cpu_wait_share_max, outcome.self_watch.missed_starts
    );
    for (name, histogram) in [
        ("corrected", &outcome.latencies.corrected),
        ("uncorrected", &outcome.latencies.uncorrected),
        ("send", &outcome.send),
        ("lateness", &outcome.self_watch.lateness),
    ] {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| micros(histogram.value_at_quantile(q)));
        println!(
            "{name:12} {} p50 {p50:.1} p99 {p99:.1} p99.9 {p999:.1} max {:.1} us",
            histogram.len(),
            micros(histogram.max())
        );
    }
    for void in &outcome.void {
        println!("void: {void}");
    }
    for example in &outcome.errors.examples {
        println!("error: {example}");
    }
    Ok(())
}
