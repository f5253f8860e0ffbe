//! `cargo xtask bench control`: resources in a store or in etcd: start, memory, and how soon a write is served.
//!
//! The gateway is started with the resources in a file, and with the same in the store or in etcd. Then they are changed through
//! the Admin API, one by one at a constant rate, in every second block of load, ABBA. A write is answered when it is served, which
//! a request that only the new version takes verifies. At the end another client writes to etcd, and the route is polled until it
//! is served. Load and upstream have priority on their CPU; etcd shares it.

mod etcd;
mod resources;

use super::lab_load::{Load, Outcome, write_mix};
use super::served::Asker;
use super::statistics::{median, percentile};
use super::{OTHER_CPU, free_port, peers, put_first, settled_memory, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, ETCD, NGINX};
use etcd::Etcd;
use resources::{FIRST_CHANGE, Resources, change};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use stillgate_rig::proc::Memory;
use stillgate_rig::{Running, cpus};

const ADMIN_KEY: &str = "the-admin-key-of-the-bench";
const CONNECTIONS: u32 = 16;
const WARM_UP: Duration = Duration::from_secs(3);
/// Before each block, not measured.
const LEAD_IN: Duration = Duration::from_millis(500);
/// The interval of checks whether a start is complete.
const LOOK: Duration = Duration::from_millis(5);
const START_MAX: Duration = Duration::from_secs(120);
/// Operations in a batch.
const BATCH: usize = 128;
/// Number of writes of another client, and how many per second.
const FOREIGN_WRITES: u64 = 200;
const FOREIGN_A_SECOND: u32 = 20;
const FAILURES_SHOWN: usize = 3;

struct Options {
    source: String,
    seconds: u64,
    pairs: u64,
    changes: u32,
    workers: usize,
}

/// A gateway that serves the resources.
struct Gateway {
    process: Running,
    address: SocketAddr,
    admin: SocketAddr,
    start: Duration,
    memory: Memory,
    peak_kib: u64,
}

/// The result of one block.
struct Block {
    outcome: Outcome,
    /// From a PUT to its response, in µs; empty: nothing was written.
    puts_us: Vec<u32>,
}

pub(super) fn run(mut args: Args) -> Result {
    let options = Options {
        source: args.value("--source")?.unwrap_or_else(|| "store".to_owned()),
        seconds: args.value("--seconds")?.unwrap_or(60),
        pairs: args.value("--blocks")?.unwrap_or(3).max(1),
        changes: args.value("--changes")?.unwrap_or(50).max(1),
        workers: args.value("--workers")?.unwrap_or(1).max(1),
    };
    let (routes, consumers) =
        (args.value("--routes")?.unwrap_or(50_000).max(1), args.value("--consumers")?.unwrap_or(10_000));
    let rate: f64 = args.value("--rate")?.unwrap_or(5000.0);
    let json: Option<String> = args.value("--json")?;
    let (binary, lab) = (super::binary(&mut args)?, super::lab(&mut args)?);
    args.finish()?;
    if !["file", "store", "etcd"].contains(&options.source.as_str()) {
        return Err("--source: file, store or etcd".into());
    }
    packages::ensure(&[NGINX, ETCD])?;
    let (binary, lab) = (binary.path()?, lab.path()?);
    let dir = tempfile::tempdir()?;
    let (upstream_process, upstream) = peers::start_upstream(dir.path())?;
    let resources = Resources { routes, consumers, upstream };
    println!("{routes} routes, {consumers} consumers; {} worker(s)\n", options.workers);
    println!("{:28} {:>10} {:>10} {:>10}", "", "start s", "RSS MiB", "peak MiB");
    let by_file = Gateway::start(&binary, dir.path(), "file", "", &options, &resources)?;
    if options.source == "file" {
        return Ok(());
    }
    let reference = by_file.memory.rss_kib;
    drop(by_file);
    let etcd = (options.source == "etcd").then(|| Etcd::start(dir.path())).transpose()?;
    let mut gateway = started(&binary, dir.path(), &options, &resources, etcd.as_ref())?;
    let ratio = gateway.memory.rss_kib as f64 / reference as f64;
    println!("\nmemory beside the same by file: {ratio:.2}");
    let first = put_first(&upstream_process.pids())?;
    let load = Load {
        lab,
        address: gateway.address,
        rate,
        connections: CONNECTIONS,
        mix: write_mix(dir.path(), &resources.fixed_paths())?,
        lead_in: LEAD_IN,
        goes_first: first.refusal.is_none(),
    };
    // Not earlier: the gateway would be pinned with us.
    cpus::pin(&[OTHER_CPU])?;
    load.run(WARM_UP)?;
    let mut next = FIRST_CHANGE;
    let blocks = gateway.blocks(&options, &load, &mut next)?;
    let mut result = report(&options, rate, &blocks);
    if let Some(etcd) = &etcd {
        result["foreign_us"] = gateway.follow(etcd, &load, &mut next)?;
    }
    result["start_seconds"] = gateway.start.as_secs_f64().into();
    result["memory_ratio"] = ratio.into();
    println!("memory at the end: {:.0} MiB", gateway.process.memory()?.rss_kib as f64 / 1024.0);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&result)?)?;
        println!("written to {path}");
    }
    check_failures(&blocks)
}

/// Fills the store or etcd, and starts a gateway on it.
fn started(
    binary: &Path,
    dir: &Path,
    options: &Options,
    resources: &Resources,
    etcd: Option<&Etcd>,
) -> Result<Gateway> {
    let source = match etcd {
        Some(etcd) => {
            etcd.fill(&resources.documents())?;
            let snapshot = dir.join("snapshot");
            format!(
                "{{source: etcd, etcd: {{endpoints: [\"http://{}\"], snapshot: \"{}\"}}}}",
                etcd.address,
                snapshot.display()
            )
        }
        None => format!("{{source: store, store: \"{}\"}}", dir.join("config.redb").display()),
    };
    let empty = Resources { routes: 0, consumers: 0, upstream: resources.upstream };
    if etcd.is_none() {
        let filled = Gateway::begin(binary, dir, "filling", &source, options, &empty)?;
        filled.fill(&resources.documents())?;
    }
    Gateway::start(binary, dir, &options.source, &source, options, resources)
}

impl Gateway {
    /// Starts it on both CPUs, waits until it serves the last route and its memory has settled, and prints both.
    fn start(
        binary: &Path,
        dir: &Path,
        name: &str,
        source: &str,
        options: &Options,
        resources: &Resources,
    ) -> Result<Gateway> {
        let began = Instant::now();
        let mut gateway = Gateway::begin(binary, dir, name, source, options, resources)?;
        let last = format!("/service-{}/v1/x", resources.routes.saturating_sub(1));
        while Asker::connect(gateway.address)
            .and_then(|mut asker| asker.get(&last, &[]))
            .map_or(0, |answer| answer.status)
            != 200
        {
            gateway.process.alive()?;
            if began.elapsed() > START_MAX {
                return Err(format!("{last} is not served after {START_MAX:?}:\n{}", gateway.process.log()).into());
            }
            sleep(LOOK);
        }
        gateway.start = began.elapsed();
        gateway.memory = settled_memory(&mut gateway.process)?;
        gateway.peak_kib = gateway.process.peak_rss_kib()?;
        let mib = |kib: u64| kib as f64 / 1024.0;
        let (start, peak) = (gateway.start.as_secs_f64(), mib(gateway.peak_kib));
        println!("{name:28} {start:10.2} {:10.0} {peak:10.0}", mib(gateway.memory.rss_kib));
        Ok(gateway)
    }

    /// Starts it, and waits until it listens. Without a `source` the resources are in its file.
    fn begin(
        binary: &Path,
        dir: &Path,
        name: &str,
        source: &str,
        options: &Options,
        resources: &Resources,
    ) -> Result<Gateway> {
        let (address, admin) = (free_port()?, free_port()?);
        let (workers, is_file) = (options.workers, source.is_empty());
        let mut text = format!(
            "gateway:\n  workers: {workers}\n  listeners: [{{address: \"{address}\"}}]\n  admin: {{address: \"{admin}\", key: {ADMIN_KEY}}}\n"
        );
        text.push_str(peers::WITHOUT_METRICS);
        text.push_str(&if is_file { resources.yaml() } else { format!("  config: {source}\n") });
        let file: PathBuf = dir.join(format!("{name}.yaml"));
        fs::write(&file, text)?;
        let mut process = start(&peers::stillgate_command(binary, &file), &[], &file.with_extension("log"))?;
        process.wait_for(address, Running::START_TIMEOUT)?;
        let memory = process.memory()?;
        Ok(Gateway { process, address, admin, start: Duration::ZERO, memory, peak_kib: 0 })
    }

    /// Writes resources through the Admin API.
    fn fill(&self, documents: &[(String, Value)]) -> Result {
        let mut asker = Asker::connect(self.admin)?;
        for some in documents.chunks(BATCH) {
            let put = |(key, value): &(String, Value)| json!({"method": "PUT", "path": format!("/apisix/admin/{key}"), "body": value});
            let operations: Vec<Value> = some.iter().map(put).collect();
            let answer =
                asker.request("POST", "/v1/batch?wait=stored", &key(), &Value::from(operations).to_string())?;
            if answer.status != 200 {
                return Err(format!(
                    "a batch is answered {}: {}",
                    answer.status,
                    String::from_utf8_lossy(&answer.body)
                )
                .into());
            }
        }
        Ok(())
    }

    fn blocks(&mut self, options: &Options, load: &Load, next: &mut u64) -> Result<Vec<Block>> {
        let duration = Duration::from_secs(options.seconds) / u32::try_from(options.pairs)?;
        let mut blocks = Vec::new();
        for pair in 0..options.pairs {
            for changes in if pair % 2 == 0 { [0, options.changes] } else { [options.changes, 0] } {
                blocks.push(self.block(duration, changes, load, next)?);
            }
        }
        Ok(blocks)
    }

    fn block(&mut self, duration: Duration, changes: u32, load: &Load, next: &mut u64) -> Result<Block> {
        let mut puts_us = Vec::new();
        let outcome = beside(load, duration, |over| {
            let (mut admin, mut client) = (Asker::connect(self.admin)?, Asker::connect(self.address)?);
            let mut due = Instant::now();
            while changes > 0 && !over.load(Ordering::Relaxed) {
                puts_us.push(put(&mut admin, &mut client, *next)?);
                *next += 1;
                due += Duration::from_secs(1) / changes;
                sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(())
        })?;
        self.process.alive()?;
        Ok(Block { outcome, puts_us })
    }

    /// Writes to etcd under load, and measures how long it takes until each write is served; in µs.
    fn follow(&mut self, etcd: &Etcd, load: &Load, next: &mut u64) -> Result<Value> {
        let (mut took_us, mut etcd_us) = (Vec::new(), Vec::new());
        let duration = Duration::from_secs(FOREIGN_WRITES) / FOREIGN_A_SECOND + WARM_UP;
        let outcome = beside(load, duration, |_| {
            let (mut writer, mut client) = (Asker::connect(etcd.address)?, Asker::connect(self.address)?);
            let mut due = Instant::now();
            for _ in 0..FOREIGN_WRITES {
                let (key, document, path) = change(*next);
                let began = Instant::now();
                etcd::put(&mut writer, &key, &document)?;
                etcd_us.push(micros(began));
                client.wait_for(&path, &[])?;
                took_us.push(micros(began));
                *next += 1;
                due += Duration::from_secs(1) / FOREIGN_A_SECOND;
                sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(())
        })?;
        took_us.sort_unstable();
        etcd_us.sort_unstable();
        let ms = |part| f64::from(percentile(&took_us, part)) / 1e3;
        let etcd_ms = |part| f64::from(percentile(&etcd_us, part)) / 1e3;
        println!(
            "{FOREIGN_WRITES} writes of somebody else, from the beginning of the write to the first request that is answered by it: \
             p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms (etcd alone has answered after {:.1}, {:.1} and {:.1} ms); \
             {} of {} requests failed",
            ms(0.5),
            ms(0.99),
            ms(1.0),
            etcd_ms(0.5),
            etcd_ms(0.99),
            etcd_ms(1.0),
            outcome.failed,
            outcome.requests
        );
        Ok(json!({"p50": ms(0.5) * 1e3, "p99": ms(0.99) * 1e3, "max": ms(1.0) * 1e3, "failed": outcome.failed,
            "etcd_p50": etcd_ms(0.5) * 1e3, "etcd_p99": etcd_ms(0.99) * 1e3}))
    }
}

fn key() -> [String; 1] {
    [format!("X-API-KEY: {ADMIN_KEY}")]
}

/// Writes a change through the Admin API; returns the time until its response, in µs. Then it must be served.
fn put(admin: &mut Asker, client: &mut Asker, number: u64) -> Result<u32> {
    let (path_of, document, path) = change(number);
    let began = Instant::now();
    let answer = admin.request("PUT", &format!("/apisix/admin/{path_of}"), &key(), &document.to_string())?;
    let took = micros(began);
    if answer.status != 200 || answer.header("x-stillgate-generation").is_none() {
        return Err(format!("a PUT is answered {}: {}", answer.status, String::from_utf8_lossy(&answer.body)).into());
    }
    match client.get(&path, &[])?.status {
        200 => Ok(took),
        status => Err(format!("a PUT is answered, and {path} is answered {status}").into()),
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// Runs the load, and meanwhile other work on a separate thread.
fn beside(load: &Load, duration: Duration, work: impl FnOnce(&AtomicBool) -> Result + Send) -> Result<Outcome> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let working = scope.spawn(move || work(over).map_err(|error| error.to_string()));
        let outcome = load.run(duration);
        over.store(true, Ordering::Relaxed);
        working.join().map_err(|_| "what writes has panicked")??;
        outcome
    })
}

fn report(options: &Options, rate: f64, blocks: &[Block]) -> Value {
    let (with, without): (Vec<&Block>, Vec<&Block>) = blocks.iter().partition(|block| !block.puts_us.is_empty());
    let mut puts_us: Vec<u32> = with.iter().flat_map(|block| &block.puts_us).copied().collect();
    puts_us.sort_unstable();
    let ms = |part| f64::from(percentile(&puts_us, part)) / 1e3;
    let p99 = |blocks: &[&Block]| median(blocks.iter().map(|block| block.outcome.p99_us));
    let (requests, failed) = blocks.iter().fold((0, 0), |(requests, failed), Block { outcome, .. }| {
        (requests + outcome.requests, failed + outcome.failed)
    });
    println!(
        "\n{} writes through the Admin API, {} a second, each served when it is answered: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        puts_us.len(),
        options.changes,
        ms(0.5),
        ms(0.99),
        ms(1.0)
    );
    println!(
        "{rate} requests/s: {requests} in all, {failed} failed; p99 {:.0} µs with changes, {:.0} µs without (medians of {} blocks)",
        p99(&with),
        p99(&without),
        options.pairs
    );
    let void: Vec<&String> = blocks.iter().flat_map(|block| &block.outcome.void).collect();
    if let Some(reason) = void.first() {
        println!("VOID: the load says that the machine was not left alone: {reason}");
    }
    json!({
        "puts": puts_us.len(), "put_p50_us": ms(0.5) * 1e3, "put_p99_us": ms(0.99) * 1e3, "put_max_us": ms(1.0) * 1e3,
        "requests": requests, "failed": failed, "p99_with_us": p99(&with), "p99_without_us": p99(&without), "void": void.len(),
    })
}

fn check_failures(blocks: &[Block]) -> Result {
    let failures: Vec<&str> =
        blocks.iter().flat_map(|block| &block.outcome.failures).take(FAILURES_SHOWN).map(String::as_str).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(format!("requests failed:\n{}", failures.join("\n")).into()),
    }
}
