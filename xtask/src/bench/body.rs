//! `cargo xtask bench body`: throughput and memory of large responses with a body filter, compared with the same without one.
//!
//! Each run has a new gateway, since its peak of memory is one of the figures. The gateway has CPU 0; the node and the client share
//! CPU 1, so MiB/s is the throughput of all three together, and the gateway's own CPU time is shown next to it. A body that is
//! larger than a filter may hold is refused, cut or passed unchanged: the table shows which.

use super::statistics::median;
use super::{GATEWAY_CPU, OTHER_CPU, check, free_port, peers, settled_memory, start};
use crate::Result;
use crate::args::Args;
use node::{Framing, MARK};
use reading::{Reader, Received};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;
use stillgate_rig::{Running, cpus};

pub(super) mod node;
mod reading;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Total bytes of all bodies of a run.
const TOTAL_BYTES: u64 = 1024 * MIB;
/// A body that a filter holds as a whole: half of the default limit.
const SMALL_BYTES: u64 = 512 * KIB;

/// A route's plugins, as YAML; the others are compared with the first.
const FILTERS: &[(&str, &str)] = &[
    ("none", ""),
    (
        "response-rewrite filters",
        r#"    plugins: {response-rewrite: {filters: [{regex: "secret=[0-9]+", scope: global, replace: "secret=****"}]}}
"#,
    ),
];

/// Bodies of one size, [`TOTAL_BYTES`] in all.
struct Shape {
    name: &'static str,
    framing: Framing,
    bytes: u64,
    connections: u64,
}

const SHAPES: &[Shape] = &[
    Shape { name: "1 GiB", framing: Framing::Length, bytes: TOTAL_BYTES, connections: 1 },
    Shape { name: "1 GiB chunked", framing: Framing::Chunked, bytes: TOTAL_BYTES, connections: 1 },
    Shape { name: "2048 of 512 KiB", framing: Framing::Length, bytes: SMALL_BYTES, connections: 1 },
    Shape { name: "2048 of 512 KiB chunked", framing: Framing::Chunked, bytes: SMALL_BYTES, connections: 1 },
    Shape { name: "the same on 32 connections", framing: Framing::Chunked, bytes: SMALL_BYTES, connections: 32 },
];

/// The result of one run.
struct Sample {
    /// What the client received, the same in every response.
    outcome: String,
    mib_per_second: f64,
    cpu_ms: f64,
    rss_before_kib: u64,
    /// The peak of memory beyond that.
    growth_kib: u64,
}

pub(super) fn run(mut args: Args) -> Result {
    let rounds: usize = args.value("--rounds")?.unwrap_or(3).max(1);
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_node, node) = start_node(dir.path())?;
    cpus::pin(&[OTHER_CPU])?;
    let filters = accepted(&binary, dir.path(), node)?;
    println!("{rounds} rounds, one worker; {} MiB in each run\n", TOTAL_BYTES / MIB);
    println!(
        "{:27} {:25} {:>7} {:>9} {:>9} {:>11}  outcome",
        "bodies", "filter", "MiB/s", "CPU ms", "RSS KiB", "peak growth"
    );
    let mut results = Vec::new();
    for shape in SHAPES {
        let mut samples: Vec<Vec<Sample>> = filters.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((name, config), samples) in filters.iter().zip(&mut samples) {
                let sample = one_run(&binary, config, shape);
                samples.push(sample.map_err(|error| format!("{}, {name}: {error}", shape.name))?);
            }
        }
        results.extend(filters.iter().zip(&samples).map(|((name, _), samples)| line(shape, name, samples)));
    }
    println!("\n(CPU ms: the gateway's own for all bodies of a run; medians of the rounds, of memory the most)");
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("written to {path}");
    }
    Ok(())
}

fn start_node(dir: &Path) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let program = std::env::current_exe()?;
    let words = [&program.to_string_lossy(), "bench", node::ROLE, &address.to_string()].map(str::to_owned);
    let mut running = start(&words, &[OTHER_CPU], &dir.join("node.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}

/// A configuration file.
struct Config {
    address: SocketAddr,
    file: PathBuf,
}

/// Writes a configuration for each filter; those that the binary refuses are printed with the reason and left out.
fn accepted(binary: &Path, dir: &Path, node: SocketAddr) -> Result<Vec<(&'static str, Config)>> {
    let mut accepted = Vec::new();
    for (number, (name, plugins)) in FILTERS.iter().enumerate() {
        let (address, file) = (free_port()?, dir.join(format!("stillgate-{number}.yaml")));
        let route = format!("  - id: r\n    uri: /*\n    upstream_id: u\n{plugins}");
        fs::write(&file, peers::stillgate_head(address, None, (node, "http"), "") + &route)?;
        match check::refused(binary, &file)? {
            None => accepted.push((*name, Config { address, file })),
            Some(reason) => println!("left out: {name}: its configuration is refused: {reason}"),
        }
    }
    Ok(accepted)
}

/// Runs a gateway from start to end.
fn one_run(binary: &Path, config: &Config, shape: &Shape) -> Result<Sample> {
    let Config { address, file } = config;
    let words = peers::stillgate_command(binary, file);
    let mut gateway = start(&words, &[GATEWAY_CPU], &file.with_extension("log"))?;
    gateway.wait_for(*address, Running::START_TIMEOUT)?;
    // One-time allocations are not charged to the bodies.
    Reader::connect(*address)?.get(&node::path(shape.framing, KIB))?;
    let rss_before_kib = settled_memory(&mut gateway)?.rss_kib;
    let cpu = gateway.thread_times()?;
    let begin = Instant::now();
    let received = read_all(*address, shape)?;
    let seconds = begin.elapsed().as_secs_f64();
    gateway.alive()?;
    let bytes: u64 = received.iter().map(|received| received.bytes).sum();
    Ok(Sample {
        outcome: outcome(&received, shape)?,
        mib_per_second: bytes as f64 / MIB as f64 / seconds,
        cpu_ms: gateway.thread_times()?.since(&cpu) / 1e3,
        rss_before_kib,
        growth_kib: gateway.peak_rss_kib()?.saturating_sub(rss_before_kib),
    })
}

fn read_all(address: SocketAddr, shape: &Shape) -> Result<Vec<Received>> {
    let each = TOTAL_BYTES / shape.bytes / shape.connections;
    let path = node::path(shape.framing, shape.bytes);
    let lane = || -> std::result::Result<Vec<Received>, String> {
        let read = || -> Result<Vec<Received>> {
            let mut reader = Reader::connect(address)?;
            let mut all = Vec::new();
            for _ in 0..each {
                let received = reader.get(&path)?;
                if received.cut.is_some() || received.status != 200 {
                    reader = Reader::connect(address)?;
                }
                all.push(received);
            }
            Ok(all)
        };
        read().map_err(|error| error.to_string())
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..shape.connections).map(|_| scope.spawn(lane)).collect();
        let mut all = Vec::new();
        for lane in lanes {
            all.extend(lane.join().map_err(|_| "a client panicked")??);
        }
        Ok(all)
    })
}

/// How the bodies arrived, which must be the same for all.
fn outcome(received: &[Received], shape: &Shape) -> Result<String> {
    let mut outcomes: Vec<String> = received.iter().map(|received| outcome_of(received, shape)).collect();
    outcomes.sort_unstable();
    outcomes.dedup();
    match outcomes.as_slice() {
        [one] => Ok(one.clone()),
        several => Err(format!("answers differ: {}", several.join("; ")).into()),
    }
}

fn outcome_of(received: &Received, shape: &Shape) -> String {
    let Received { status, bytes, beginning, cut } = received;
    match (status, cut) {
        (200, Some(reason)) => format!("cut: {reason}"),
        (200, None) if *bytes != shape.bytes => format!("{bytes} bytes"),
        (200, None) if beginning.starts_with(MARK.as_bytes()) => "unchanged".to_owned(),
        (200, None) => "changed".to_owned(),
        (status, _) => format!("answered {status}"),
    }
}

/// Prints one line of the table; returns it as JSON.
fn line(shape: &Shape, filter: &str, samples: &[Sample]) -> Value {
    let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
    let mut outcomes: Vec<&str> = samples.iter().map(|sample| sample.outcome.as_str()).collect();
    outcomes.dedup();
    let growth_kib = samples.iter().map(|sample| sample.growth_kib).max().unwrap_or_default();
    let (mib_per_second, cpu_ms) = (of(|sample| sample.mib_per_second), of(|sample| sample.cpu_ms));
    let rss_kib = of(|sample| sample.rss_before_kib as f64);
    println!(
        "{:27} {filter:25} {mib_per_second:7.0} {cpu_ms:9.0} {rss_kib:9.0} {growth_kib:11}  {}",
        shape.name,
        outcomes.join("; ")
    );
    json!({
        "bodies": shape.name, "filter": filter, "mib_per_second": mib_per_second, "cpu_ms": cpu_ms,
        "rss_before_kib": rss_kib, "peak_growth_kib": growth_kib, "outcome": outcomes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_as_many_bytes() {
        for shape in SHAPES {
            assert_eq!(TOTAL_BYTES % (shape.bytes * shape.connections), 0, "{}", shape.name);
        }
    }

    #[test]
    fn outcomes_say_what_a_client_sees() {
        let shape = &SHAPES[2];
        let of = |status, bytes, beginning: &str, cut: Option<&str>| {
            let beginning = beginning.as_bytes().to_vec();
            outcome_of(&Received { status, bytes, beginning, cut: cut.map(str::to_owned) }, shape)
        };
        assert_eq!(of(200, SMALL_BYTES, "secret=1234x", None), "unchanged");
        assert_eq!(of(200, SMALL_BYTES, "secret=****x", None), "changed");
        assert_eq!(of(200, 5, "secre", Some("closed after 5 bytes")), "cut: closed after 5 bytes");
        assert_eq!(of(502, 20, "{", None), "answered 502");
    }
}
