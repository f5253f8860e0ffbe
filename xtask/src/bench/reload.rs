//! `cargo xtask bench reload`: latency while routes of the config file change many times a second, compared with the same without
//! changes.
//!
//! Blocks without and with the storm alternate in ABBA order, so that drift of the machine affects both alike. In a block without,
//! the same changes are written to a file that the gateway does not watch: the cost of writing is not the gateway's. The load is
//! the laboratory's, open-loop, so a pause for a reload would show in full. The gateway may use both CPUs, since the second one is
//! for reading a file while serving; load and upstream have priority on theirs.
//!
//! How long a change takes to be served is measured afterwards, under the same load and storm, since polling is a load too.

use super::changing_file::{ChangingFile, Template};
use super::lab_load::{Load, Outcome, write_mix};
use super::served::{Asker, Written};
use super::statistics::{median, percentile, quartiles};
use super::{OTHER_CPU, free_port, peers, put_first, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use stillgate_rig::{Running, cpus, schedule};

const CONNECTIONS: u32 = 16;
const WARM_UP: Duration = Duration::from_secs(3);
/// Before each block, not measured: changes of the previous one are served by then.
const LEAD_IN: Duration = Duration::from_millis(500);
/// How long changes are followed, at most.
const FOLLOW_MAX: Duration = Duration::from_secs(10);
/// Number of failures reported in full; all are counted.
const FAILURES_SHOWN: usize = 3;
/// Number of reported reasons for void runs.
const VOID_REASONS_SHOWN: usize = 3;

struct Options {
    block: Duration,
    pairs: u64,
    rate: f64,
    routes: usize,
    changes: u32,
    expressions: bool,
}

/// The gateway, the file it reads and the requests it gets.
struct Bench<'t> {
    gateway: Running,
    template: &'t Template,
    config: ChangingFile<'t>,
    /// A file that nobody reads.
    decoy: ChangingFile<'t>,
    load: Load,
    changes: u32,
    admin: SocketAddr,
}

/// The result of one block.
struct Block {
    storm: bool,
    outcome: Outcome,
    /// CPU time of all threads except the workers.
    control_us: f64,
    took_us: f64,
    worker_us: f64,
    writes: u64,
    reloads: u64,
}

impl Block {
    /// Whether it shows the limits of the load rather than of the gateway.
    fn is_void(&self) -> bool {
        !self.outcome.void.is_empty()
    }
}

/// One line of the table.
struct Measure {
    name: &'static str,
    of: fn(&Block) -> f64,
}

const MEASURES: &[Measure] = &[
    Measure { name: "p50, µs", of: |block| block.outcome.p50_us },
    Measure { name: "p99, µs", of: |block| block.outcome.p99_us },
    Measure { name: "p99.9, µs", of: |block| block.outcome.p99_9_us },
    Measure { name: "max, µs", of: |block| block.outcome.max_us },
    Measure { name: "load late p99.9, µs", of: |block| block.outcome.late_p99_9_us },
    Measure { name: "worker CPU a request, µs", of: |block| block.worker_us },
];

pub(super) fn run(mut args: Args) -> Result {
    let seconds: u64 = args.value("--seconds")?.unwrap_or(60);
    let pairs: u64 = args.value("--blocks")?.unwrap_or(6).max(1);
    let options = Options {
        // The total duration of the storm.
        block: Duration::from_secs(seconds) / u32::try_from(pairs)?,
        pairs,
        rate: args.value("--rate")?.unwrap_or(2000.0),
        routes: args.value("--routes")?.unwrap_or(1000),
        changes: args.value("--changes")?.unwrap_or(10).max(1),
        expressions: args.flag("--expressions"),
    };
    if options.routes < 10 {
        return Err("--routes: at least 10, of which two change".into());
    }
    let json: Option<String> = args.value("--json")?;
    let (binary, lab) = (super::binary(&mut args)?, super::lab(&mut args)?);
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let (binary, lab) = (binary.path()?, lab.path()?);
    let dir = dir_in_memory()?;
    let (upstream_process, upstream) = peers::start_upstream(dir.path())?;
    let (address, admin) = (free_port()?, free_port()?);
    let head = peers::stillgate_head(address, Some(admin), (upstream, "http"), "");
    let template = Template::new(head, upstream, options.routes, options.expressions);
    let first = put_first(&upstream_process.pids())?;
    let load = Load {
        lab,
        address,
        rate: options.rate,
        connections: CONNECTIONS,
        mix: write_mix(dir.path(), &template.fixed_paths)?,
        lead_in: LEAD_IN,
        goes_first: first.refusal.is_none(),
    };
    let mut bench = Bench::start(&binary, dir.path(), load, admin, &template, options.changes)?;
    // Not earlier: the gateway would be pinned with us.
    cpus::pin(&[OTHER_CPU])?;
    introduce(&options, &template);
    bench.load.run(WARM_UP)?;
    let blocks = bench.blocks(&options)?;
    let followed = bench.follow(options.block.min(FOLLOW_MAX))?;
    let result = report(&blocks, &followed);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&result)?)?;
        println!("written to {path}");
    }
    let outcomes: Vec<&Outcome> = blocks.iter().map(|block| &block.outcome).chain([&followed.outcome]).collect();
    let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
    if failed > 0 {
        let failures = outcomes.iter().flat_map(|outcome| &outcome.failures).take(FAILURES_SHOWN);
        let failures: Vec<&str> = failures.map(String::as_str).collect();
        return Err(format!("{failed} requests failed:\n{}", failures.join("\n")).into());
    }
    Ok(())
}

/// A folder in memory, if the system has one.
fn dir_in_memory() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?)
}

fn introduce(options: &Options, template: &Template) {
    let Options { block, pairs, rate, routes, changes, expressions } = options;
    println!(
        "{rate} requests/s open loop on {CONNECTIONS} connections, {pairs} pairs of blocks of {:.0} s",
        block.as_secs_f64()
    );
    println!(
        "{routes} routes{} in {:.1} MB, {changes} changes a second in every second block\n",
        if *expressions { ", half of them expressions," } else { "" },
        template.bytes() as f64 / 1e6
    );
}

impl<'t> Bench<'t> {
    fn start(
        binary: &Path,
        dir: &Path,
        load: Load,
        admin: SocketAddr,
        template: &'t Template,
        changes: u32,
    ) -> Result<Self> {
        let config = ChangingFile::create(template, &dir.join("config"))?;
        let decoy = ChangingFile::create(template, &dir.join("decoy"))?;
        let words = peers::stillgate_command(binary, config.path());
        let mut gateway = start(&words, &[], &dir.join("log"))?;
        gateway.wait_for(load.address, Running::START_TIMEOUT)?;
        Ok(Self { gateway, template, config, decoy, load, changes, admin })
    }

    fn blocks(&mut self, options: &Options) -> Result<Vec<Block>> {
        let mut blocks = Vec::new();
        for pair in 0..options.pairs {
            for storm in if pair % 2 == 0 { [false, true] } else { [true, false] } {
                blocks.push(self.block(storm, options.block)?);
            }
        }
        Ok(blocks)
    }

    /// Runs one block; at its end all written changes are served.
    fn block(&mut self, storm: bool, duration: Duration) -> Result<Block> {
        let generation = self.generation()?;
        let (cpu_us, worker_us) = self.cpu_us()?;
        let begin = Instant::now();
        let file = if storm { &mut self.config } else { &mut self.decoy };
        let before = file.written();
        let outcome = storm_and_load(file, self.template, &self.load, duration, self.changes, None)?;
        let took_us = begin.elapsed().as_micros() as f64;
        let after = self.cpu_us()?;
        self.gateway.alive()?;
        if storm {
            self.wait_for_last()?;
        }
        let workers_us = after.1 - worker_us;
        Ok(Block {
            storm,
            control_us: (after.0 - cpu_us - workers_us).max(0.0),
            took_us,
            worker_us: workers_us / (self.load.lead_in_requests() + outcome.requests as f64),
            outcome,
            writes: if storm { self.config.written() - before } else { 0 },
            reloads: self.generation()? - generation,
        })
    }

    /// Waits until the last change is served; adds one if that would not be visible.
    fn wait_for_last(&mut self) -> Result {
        let path = loop {
            match self.template.path_of(self.config.written()) {
                Some(path) => break path,
                None => self.config.change()?,
            };
        };
        Asker::connect(self.load.address)?.wait_for(&path, &[])
    }

    /// The CPU time of the process and of its workers so far.
    fn cpu_us(&self) -> Result<(f64, f64)> {
        Ok((self.gateway.cpu_time()?.us(), self.gateway.threads_cpu_us("worker-")?))
    }

    /// The generation that is served; an error if a file was refused, which none should be.
    fn generation(&self) -> Result<u64> {
        // It does not keep connections for long.
        let served = Asker::connect(self.admin)?.served()?;
        match served.error {
            None => Ok(served.generation),
            Some(error) => Err(format!("the gateway refused a file: {error}").into()),
        }
    }

    /// Continues with load and storm, and measures how long changes take.
    fn follow(&mut self, duration: Duration) -> Result<Followed> {
        let mut asker = Asker::connect(self.load.address)?;
        // While one change is awaited, later ones are not observed.
        let (tell, told) = sync_channel(0);
        thread::scope(|scope| {
            let following = scope.spawn(move || asker.follow(&told).map_err(|error| error.to_string()));
            let outcome =
                storm_and_load(&mut self.config, self.template, &self.load, duration, self.changes, Some(tell));
            let mut took_us = following.join().map_err(|_| "following the changes panicked")??;
            took_us.sort_unstable();
            Ok(Followed { outcome: outcome?, took_us })
        })
    }
}

/// The result of following the changes.
struct Followed {
    outcome: Outcome,
    /// Sorted.
    took_us: Vec<u32>,
}

/// Runs the load for one block while the file changes again and again.
fn storm_and_load(
    file: &mut ChangingFile<'_>,
    template: &Template,
    load: &Load,
    duration: Duration,
    changes: u32,
    tell: Option<SyncSender<Written>>,
) -> Result<Outcome> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let writer = scope.spawn(move || -> std::result::Result<(), String> {
            // Its work must not take CPU time from the load.
            schedule::own_last().map_err(|error| error.to_string())?;
            let mut next = Instant::now();
            while !over.load(Ordering::Relaxed) {
                let number = file.change().map_err(|error| error.to_string())?;
                let at = Instant::now();
                if let Some((tell, path)) = tell.as_ref().zip(template.path_of(number)) {
                    // There is no receiver: then the change is not followed.
                    let _ = tell.try_send(Written { at, path });
                }
                next += Duration::from_secs(1) / changes;
                sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok(())
        });
        let outcome = load.run(duration);
        over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| "the writer panicked")??;
        outcome
    })
}

/// Prints the table; returns its rows.
fn table(blocks: &[Block]) -> Vec<Value> {
    let void: Vec<bool> = blocks.chunks(2).map(|pair| pair.iter().any(Block::is_void)).collect();
    println!("{:26} {:>10} {:>10} {:>8} {:>16}   ratio of each pair", "", "idle", "storm", "ratio", "quartiles");
    let mut rows = Vec::new();
    for Measure { name, of } in MEASURES {
        let values = |storm| blocks.iter().filter(move |block| block.storm == storm).map(of);
        let ratios: Vec<f64> = values(true).zip(values(false)).map(|(storm, idle)| storm / idle).collect();
        let marked = ratios.iter().zip(&void);
        let each: Vec<String> =
            marked.map(|(ratio, &void)| format!("{ratio:.2}{}", if void { "!" } else { "" })).collect();
        let (ratio, (low, high)) = (median(ratios.iter().copied()), quartiles(&ratios));
        let (idle, storm) = (median(values(false)), median(values(true)));
        let spread = format!("{low:.3} to {high:.3}");
        println!("{name:26} {idle:10.1} {storm:10.1} {ratio:8.3} {spread:>16}   {}", each.join(" "));
        rows.push(json!({ "measure": name, "idle": idle, "storm": storm, "ratio": ratio, "ratios": ratios }));
    }
    rows
}

/// Prints which figures show the limits of the load rather than of the gateway; returns the number of affected blocks.
fn report_void(blocks: &[Block], followed: &Followed) -> usize {
    let void = blocks.iter().filter(|block| block.is_void()).count();
    if void > 0 {
        println!(
            "\nVOID: {void} of {} blocks (their pairs are marked !); leave the machine alone and repeat",
            blocks.len()
        );
    }
    if !followed.outcome.void.is_empty() {
        println!("\nVOID: the run in which changes were followed");
    }
    let outcomes = blocks.iter().map(|block| &block.outcome).chain([&followed.outcome]);
    for reason in outcomes.flat_map(|outcome| &outcome.void).take(VOID_REASONS_SHOWN) {
        println!("  {reason}");
    }
    void
}

/// Prints the table and the remaining notes.
fn report(blocks: &[Block], followed: &Followed) -> Value {
    let rows = table(blocks);
    let storms = || blocks.iter().filter(|block| block.storm);
    let (written, reloads): (u64, u64) = storms().fold((0, 0), |sum, b| (sum.0 + b.writes, sum.1 + b.reloads));
    let outcomes = || blocks.iter().map(|block| &block.outcome);
    let (requests, failed): (u64, u64) = outcomes().fold((0, 0), |sum, of| (sum.0 + of.requests, sum.1 + of.failed));
    println!(
        "\n(medians over the blocks; a ratio is the median of the pairs' ratios)\n\
         {requests} requests, {failed} failed; {written} changes were written and are all served; {reloads} configs were loaded, so {} \
         changes went with a later one",
        written.saturating_sub(reloads)
    );
    let control = |storm: bool| {
        let of = blocks.iter().filter(|block| block.storm == storm);
        of.fold((0.0, 0.0), |sum, block| (sum.0 + block.control_us, sum.1 + block.took_us))
    };
    let (idle, storm) = (control(false), control(true));
    let (idle_percent, storm_percent) = (idle.0 / idle.1 * 100.0, storm.0 / storm.1 * 100.0);
    let config_ms = storm.0 / 1e3 / reloads as f64;
    println!(
        "threads that are not workers took {storm_percent:.1}% of a CPU in storms, {idle_percent:.1}% without: {config_ms:.1} ms a \
         config"
    );
    let took = |part: f64| f64::from(percentile(&followed.took_us, part)) / 1e3;
    println!(
        "from written to served, {} changes: median {:.1} ms, p90 {:.1} ms, longest {:.1} ms; {} requests meanwhile, {} failed",
        followed.took_us.len(),
        took(0.5),
        took(0.9),
        took(1.0),
        followed.outcome.requests,
        followed.outcome.failed
    );
    let void = report_void(blocks, followed);
    json!({
        "rows": rows, "requests": requests, "failed": failed + followed.outcome.failed, "void_blocks": void,
        "void_followed": !followed.outcome.void.is_empty(),
        "changes": written, "reloads": reloads, "served_us": followed.took_us, "control_percent": storm_percent,
        "control_idle_percent": idle_percent, "control_ms_per_config": config_ms,
    })
}
