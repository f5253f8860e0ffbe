//! Runs mixed load against a gateway binary for a given time and reports all faults.
//!
//! `cargo run -p stillgate-testkit --example soak -- --binary target/release/stillgate --seconds 60`

use std::process::ExitCode;
use std::time::Duration;
use stillgate_testkit::{SoakPlan, soak};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1).cloned()).unwrap_or_else(|| default.to_owned())
    };
    let (Ok(seconds), Ok(clients), Ok(seed)) =
        (value("--seconds", "60").parse(), value("--clients", "16").parse(), value("--seed", "1").parse())
    else {
        eprintln!("usage: soak [--binary FILE] [--seconds N] [--clients N] [--seed N]");
        return ExitCode::from(2);
    };
    let plan = SoakPlan {
        duration: Duration::from_secs(seconds),
        clients,
        body_bytes_max: 1024 * 1024,
        upstream_period: Duration::from_secs(2),
        seed,
    };
    let report = soak(&value("--binary", "target/release/stillgate"), &plan);
    println!(
        "{} checked, {} aborted, {} excused, {} upstream restarts, {} profiles; resident {} -> {} KiB, descriptors {} -> {}",
        report.checked,
        report.aborted,
        report.excused,
        report.restarts,
        report.profiles,
        report.rss.0 / 1024,
        report.rss.1 / 1024,
        report.fds.0,
        report.fds.1
    );
    for fault in &report.faults {
        println!("FAULT {fault}");
    }
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
