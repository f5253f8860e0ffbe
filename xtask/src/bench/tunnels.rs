//! `cargo xtask bench tunnels`: the cost of an idle tunnel (WebSocket), and of a message through it, compared with nginx in the
//! same run.
//!
//! Each round restarts each gateway, with one worker on its CPU; clients and node are separate processes on the other. A message is
//! a ping and its pong, so a gateway relays two frames for each. Memory is that of the gateway for both sides of a tunnel; the
//! kernel's is reported separately.

use super::GATEWAY_CPU;
use super::settled_memory;
use super::statistics::median;
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use kernel::KernelMemory;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::Running;

pub(super) mod clients;
mod counted;
mod fleet;
mod kernel;
pub(super) mod node;
mod setting;
pub(super) mod websocket;

pub(super) use clients::Clients;
pub(super) use counted::Counted;
pub(super) use fleet::Pace;
pub(super) use setting::{PATH, TUNNELS, start_node, start_stillgate, tunnels};

/// Tunnels that are opened and closed first, so that one-time allocations are not charged to the others.
const WARM_UP: usize = 100;
/// Messages per second for a nearly idle gateway.
const SLOW_PER_SECOND: f64 = 100.0;
/// Messages in flight for a busy gateway.
const AT_ONCE: usize = 64;

/// The result of one round of one gateway, one value per line of the table.
type Sample = Vec<f64>;

/// The lines of the table.
const LINES: &[&str] = &[
    "memory before, MiB (PSS)",
    "bytes a tunnel (PSS)",
    "bytes a tunnel (RSS)",
    "the same after messages (PSS)",
    "left after closing (PSS)",
    "kernel, its part of a tunnel",
    "opened a second",
    "idle: CPU us a second",
    "100/s: CPU us a message",
    "the same without what idle takes",
    "one by one: CPU us a message",
    "one by one: messages/s",
    "64 at once: CPU us a message",
    "64 at once: messages/s",
];

#[derive(Clone, Copy)]
enum Subject<'a> {
    Nginx,
    Stillgate(&'a Path),
}

pub(super) fn run(mut args: Args) -> Result {
    let wanted: usize = args.value("--tunnels")?.unwrap_or(TUNNELS).max(AT_ONCE);
    let rounds: usize = args.value("--rounds")?.unwrap_or(3).max(1);
    let seconds: u64 = args.value("--seconds")?.unwrap_or(3).max(1);
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let tunnels = tunnels(wanted)?;
    let binary = binary.path()?;
    let bench = Bench { tunnels, phase: Duration::from_secs(seconds) };
    println!("{rounds} rounds; {tunnels} tunnels, {seconds} s of each kind of load; one worker on CPU {GATEWAY_CPU}\n");
    let subjects = [Subject::Nginx, Subject::Stillgate(&binary)];
    let mut samples: [Vec<Sample>; 2] = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            let name = subject.name();
            samples.push(bench.round(*subject).map_err(|error| format!("{name}, round {round}: {error}"))?);
        }
    }
    let rows = report(&samples[0], &samples[1]);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&json!({ "tunnels": tunnels, "rows": rows }))?)?;
        println!("\nwritten to {path}");
    }
    Ok(())
}

/// Prints the table; returns its rows.
fn report(nginx: &[Sample], stillgate: &[Sample]) -> Vec<Value> {
    println!("\n{:32} {:>11} {:>11} {:>9}", "(medians)", "nginx", "stillgate", "ratio");
    let mut rows = Vec::new();
    for (at, line) in LINES.iter().enumerate() {
        let of = |samples: &[Sample]| -> Vec<f64> { samples.iter().map(|sample| sample[at]).collect() };
        let (theirs, ours) = (of(nginx), of(stillgate));
        let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
        let (nginx, stillgate) = (median(theirs.iter().copied()), median(ours.iter().copied()));
        // Undefined if nginx needs nothing at all.
        let shown = if ratio > 0.0 && ratio.is_finite() { format!("{ratio:.3}") } else { "-".to_owned() };
        println!("{line:32} {nginx:11.1} {stillgate:11.1} {shown:>9}");
        rows.push(json!({ "line": line, "nginx": theirs, "stillgate": ours, "ratio": ratio }));
    }
    rows
}

impl Subject<'_> {
    fn name(self) -> &'static str {
        match self {
            Subject::Nginx => "nginx",
            Subject::Stillgate(_) => "stillgate",
        }
    }

    fn start(self, dir: &Path, node: SocketAddr, tunnels: usize) -> Result<(Running, SocketAddr)> {
        match self {
            Subject::Nginx => setting::start_nginx(dir, node, tunnels),
            Subject::Stillgate(binary) => start_stillgate(binary, dir, (node, node), tunnels, Some(GATEWAY_CPU)),
        }
    }
}

struct Bench {
    tunnels: usize,
    phase: Duration,
}

impl Bench {
    /// Runs one gateway from start to end.
    fn round(&self, subject: Subject<'_>) -> Result<Sample> {
        let dir = tempfile::tempdir()?;
        let (_node, node) = start_node(dir.path())?;
        let (mut gateway, address) = subject.start(dir.path(), node, self.tunnels)?;
        let mut clients = Clients::start()?;
        clients.open(address, PATH, WARM_UP)?;
        clients.close()?;
        let before = settled_memory(&mut gateway)?;
        let kernel_before = KernelMemory::now()?;
        let begin = Instant::now();
        clients.open(address, PATH, self.tunnels)?;
        let opened_per_second = self.tunnels as f64 / begin.elapsed().as_secs_f64();
        let with = settled_memory(&mut gateway)?;
        let kernel = KernelMemory::now()?.since(&kernel_before);
        let idle_us = self.idle(&gateway)?;
        let (slow_us, _) = self.messages(&mut clients, &gateway, Pace::Clock(SLOW_PER_SECOND))?;
        let (single_us, single_per_second) = self.messages(&mut clients, &gateway, Pace::Answers(1))?;
        let (busy_us, busy_per_second) = self.messages(&mut clients, &gateway, Pace::Answers(AT_ONCE))?;
        let used = settled_memory(&mut gateway)?;
        clients.close()?;
        let after = settled_memory(&mut gateway)?;
        let each = |kib: u64, before: u64| (kib as f64 - before as f64) * 1024.0 / self.tunnels as f64;
        let pss = |kib: u64| each(kib, before.pss_kib);
        println!(
            "{:9} kernel: {:.0} bytes a tunnel for all four ends, of which two are the gateway's: {}",
            subject.name(),
            kernel.bytes() / self.tunnels as f64,
            kernel.of_each(self.tunnels)
        );
        Ok(vec![
            before.pss_kib as f64 / 1024.0,
            pss(with.pss_kib),
            each(with.rss_kib, before.rss_kib),
            pss(used.pss_kib),
            pss(after.pss_kib),
            kernel.bytes() / 2.0 / self.tunnels as f64,
            opened_per_second,
            idle_us,
            slow_us,
            slow_us - idle_us / SLOW_PER_SECOND,
            single_us,
            single_per_second,
            busy_us,
            busy_per_second,
        ])
    }

    /// CPU µs per second while nothing is sent.
    fn idle(&self, gateway: &Running) -> Result<f64> {
        let before = gateway.thread_times()?;
        sleep(self.phase);
        Ok(gateway.thread_times()?.since(&before) / self.phase.as_secs_f64())
    }

    /// The gateway's CPU µs per message, and messages per second.
    fn messages(&self, clients: &mut Clients, gateway: &Running, pace: Pace) -> Result<(f64, f64)> {
        let before = gateway.thread_times()?;
        let counted = clients.run(pace, self.phase)?;
        let used_us = gateway.thread_times()?.since(&before);
        if let Some(wrong) = counted.wrong() {
            return Err(wrong.into());
        }
        let answered = counted.answered as f64;
        Ok((used_us / answered, answered / self.phase.as_secs_f64()))
    }
}
