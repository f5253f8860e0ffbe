//! `cargo xtask bench reload`: latency while the config file changes many times a second, against the same without.
//!
//! Blocks without and with the storm alternate in ABBA order, so that a drift of the machine falls on both alike. In a
//! block without, the same file is written as often, but where the gateway does not look: what writing takes from the load
//! generator beside it is not the gateway's doing. The load is open-loop: a pause for a reload would show in full.

use super::open_loop::{self, Load, Outcome};
use super::process::{Running, free_port};
use super::statistics::{median, percentile};
use super::{OTHER_CPU, peers, schedule};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const RELOADS_PER_SECOND: u32 = 10;
const CONNECTIONS: u32 = 16;
const WARM_UP: Duration = Duration::from_secs(3);
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Percentiles shown; 1 is the maximum.
const SHOWN: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// The file that changes and what it is made of.
struct Storm {
    config: PathBuf,
    /// A file the gateway does not know of.
    decoy: PathBuf,
    fixed: String,
}

/// One block's sorted latencies.
struct Block {
    storm: bool,
    sorted_us: Vec<u32>,
}

pub(super) fn run(mut args: Args) -> Result {
    let seconds: u64 = args.value("--seconds")?.unwrap_or(60);
    let rate: f64 = args.value("--rate")?.unwrap_or(2000.0);
    let routes: usize = args.value("--routes")?.unwrap_or(1000);
    let pairs: u64 = args.value("--blocks")?.unwrap_or(6).max(1);
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_upstream, upstream) = peers::start_upstream(dir.path())?;
    let (address, admin) = (free_port()?, free_port()?);
    let storm = Storm {
        config: dir.path().join("stillgate.yaml"),
        decoy: dir.path().join("decoy/stillgate.yaml"),
        fixed: peers::stillgate_config(address, Some(admin), upstream, routes, ""),
    };
    fs::create_dir(dir.path().join("decoy"))?;
    storm.write(&storm.config, 0)?;
    // Free to use both CPUs: reading a config while serving is what the second one is for.
    let words = peers::stillgate_command(&binary, &storm.config);
    let mut gateway = Running::spawn(&words, None, &dir.path().join("log"))?;
    gateway.wait_for(address)?;
    schedule::pin(OTHER_CPU)?;

    let load = Load {
        address,
        rate,
        connections: CONNECTIONS,
        paths: (0..routes.saturating_sub(1))
            .map(|route| format!("/service-{route}/v1/x"))
            .chain(["/".to_owned()])
            .collect(),
        lead_in: Duration::ZERO,
    };
    let block = Duration::from_secs(seconds) / u32::try_from(pairs)?;
    println!(
        "{rate} requests/s open loop, {routes} routes, {pairs} pairs of blocks of {:.0} s, {RELOADS_PER_SECOND} reloads/s in every second one\n",
        block.as_secs_f64()
    );
    open_loop::run(&load, WARM_UP)?;
    let generation = generation(admin)?;
    let mut blocks = Vec::new();
    let mut total = Outcome::default();
    let mut written = 0;
    for pair in 0..pairs {
        for storming in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let file = if storming { &storm.config } else { &storm.decoy };
            let (mut outcome, writes) = one_block(&load, block, &storm, file, written)?;
            written += if storming { writes } else { 0 };
            gateway.check_alive()?;
            outcome.latencies_us.sort_unstable();
            blocks.push(Block { storm: storming, sorted_us: outcome.latencies_us.clone() });
            total.merge(outcome);
        }
    }
    let reloads = reloads_after(admin, generation, written)?;
    let result = report(&blocks, &total, written, reloads);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&result)?)?;
    }
    if total.failed > 0 {
        return Err(format!("{} requests failed:\n{}", total.failed, total.failures.join("\n")).into());
    }
    Ok(())
}

impl Storm {
    /// Replaces the file at once, with one route that differs from the last time.
    fn write(&self, file: &Path, number: u64) -> Result {
        let next = file.with_extension("next");
        let changed = format!("  - id: changed\n    uri: /changed/{number}\n    upstream_id: u\n");
        fs::write(&next, format!("{}{changed}", self.fixed))?;
        Ok(fs::rename(&next, file)?)
    }
}

/// Runs the load for one block while `file` is written again and again; how often it was.
fn one_block(load: &Load, duration: Duration, storm: &Storm, file: &Path, before: u64) -> Result<(Outcome, u64)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> std::result::Result<u64, String> {
            let mut next = Instant::now();
            let mut writes = 0;
            while !over.load(Ordering::Relaxed) {
                writes += 1;
                storm.write(file, before + writes).map_err(|error| error.to_string())?;
                next += Duration::from_secs(1) / RELOADS_PER_SECOND;
                sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok(writes)
        });
        let outcome = open_loop::run(load, duration);
        over.store(true, Ordering::Relaxed);
        let writes = writer.join().map_err(|_| "the writer panicked")??;
        Ok((outcome?, writes))
    })
}

/// Prints the table and the paired ratios.
fn report(blocks: &[Block], total: &Outcome, written: u64, reloads: u64) -> Value {
    println!("{:8} {:>12} {:>12} {:>8}   ratio of each pair", "", "idle µs", "storm µs", "ratio");
    let mut rows = Vec::new();
    for (name, part) in SHOWN {
        let of = |storm: bool| -> Vec<f64> {
            let chosen = blocks.iter().filter(|block| block.storm == storm);
            chosen.map(|block| f64::from(percentile(&block.sorted_us, part))).collect()
        };
        let (idle, storm) = (of(false), of(true));
        let ratios: Vec<f64> = storm.iter().zip(&idle).map(|(storm, idle)| storm / idle).collect();
        let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let ratio = median(ratios.iter().copied());
        let (idle_us, storm_us) = (median(idle), median(storm));
        println!("{name:8} {idle_us:12.0} {storm_us:12.0} {ratio:8.3}   {}", each.join(" "));
        rows.push(
            json!({ "percentile": name, "idle_us": idle_us, "storm_us": storm_us, "ratio": ratio, "ratios": ratios }),
        );
    }
    println!(
        "\n(medians over the blocks; a ratio is the median of the pairs' ratios)\n\
         {} requests, {} failed; the file changed {written} times, {reloads} configs were loaded",
        total.latencies_us.len() as u64 + total.failed,
        total.failed
    );
    json!({
        "rows": rows, "requests": total.latencies_us.len(), "failed": total.failed,
        "changes": written, "reloads": reloads,
    })
}

/// How many configs were loaded since `before`, once the last change is.
fn reloads_after(admin: SocketAddr, before: u64, written: u64) -> Result<u64> {
    let begin = Instant::now();
    let mut last = generation(admin)?;
    while last < before + written && begin.elapsed() < ADMIN_TIMEOUT {
        sleep(Duration::from_millis(100));
        last = generation(admin)?;
    }
    Ok(last - before)
}

/// `config.generation` of the admin address's status.
fn generation(admin: SocketAddr) -> Result<u64> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or("the admin address gave no answer")?;
    let status: Value = serde_json::from_str(body.trim())?;
    let generation = status["config"]["generation"].as_u64();
    generation.ok_or_else(|| format!("no config.generation in {body}").into())
}
