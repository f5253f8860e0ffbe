//! `cargo xtask bench upgrade`: the effect of upgrades of the running gateway on tunnels and requests, compared with times without.
//!
//! Every tunnel is pinged again and again, and requests are sent at a constant rate on kept connections, both in open loops. Blocks
//! without and with an upgrade alternate; the tunnels are opened once and survive all of them. In a block with one, the gateway
//! gets SIGUSR2 after a third of the time: it starts the same binary as its successor, which takes over, and exits. Both processes
//! share the gateway's CPU; load and upstreams have priority on theirs. If the gateway may use that CPU as well, a worker is
//! scheduled on it now and then, and waits behind them for up to seconds, with or without an upgrade.

use super::lab_load::{Load, Outcome, write_mix};
use super::statistics::median;
use super::tunnels::{Clients, Counted, PATH, Pace, TUNNELS, start_node, start_stillgate, tunnels};
use super::{GATEWAY_CPU, OTHER_CPU, peers, put_first};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use rustix::process::{getpid, set_child_subreaper};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use stillgate_rig::{Running, Signal, cpus, proc};

/// The rate of requests.
const CONNECTIONS: u32 = 64;
/// Before each block, not measured for requests: their connections exist by then.
const LEAD_IN: Duration = Duration::from_secs(1);
/// An old process that still exists then is an error.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);
/// The polling interval, which limits the precision of an upgrade's times.
const LOOK: Duration = Duration::from_millis(2);
/// The longest pause that is allowed on a tunnel.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Number of failures reported in full; all are counted.
const FAILURES_SHOWN: usize = 5;

struct Options {
    tunnels: usize,
    interval: Duration,
    rate: f64,
    upgrades: usize,
    block: Duration,
}

struct Bench {
    gateway: Running,
    clients: Clients,
    load: Load,
    pings_per_second: f64,
}

/// The duration of an upgrade, from the signal.
struct Upgrade {
    /// Until the successor's process existed.
    started: Duration,
    /// Until the old process was gone.
    gone: Duration,
}

/// The result of one block.
struct Block {
    upgrade: Option<Upgrade>,
    pings: Counted,
    requests: Outcome,
}

/// One line of the table.
struct Line {
    name: &'static str,
    of: fn(&Block) -> f64,
}

const LINES: &[Line] = &[
    Line { name: "ping p50, us", of: |block| f64::from(block.pings.answer_us.p50) },
    Line { name: "ping p99, us", of: |block| f64::from(block.pings.answer_us.p99) },
    Line { name: "ping p99.9, us", of: |block| f64::from(block.pings.answer_us.p99_9) },
    Line { name: "longest ping, us", of: |block| f64::from(block.pings.answer_us.max) },
    Line { name: "a tunnel's longest, median", of: |block| f64::from(block.pings.worst_us.p50) },
    Line { name: "a tunnel's longest, p99", of: |block| f64::from(block.pings.worst_us.p99) },
    Line { name: "longest without any pong, us", of: |block| f64::from(block.pings.silence_us) },
    Line { name: "clients late p99.9, us", of: |block| f64::from(block.pings.late_us.p99_9) },
    Line { name: "request p50, us", of: |block| block.requests.p50_us },
    Line { name: "request p99, us", of: |block| block.requests.p99_us },
    Line { name: "request p99.9, us", of: |block| block.requests.p99_9_us },
    Line { name: "longest request, us", of: |block| block.requests.max_us },
    Line { name: "load late p99.9, us", of: |block| block.requests.late_p99_9_us },
];

pub(super) fn run(mut args: Args) -> Result {
    let wanted: usize = args.value("--tunnels")?.unwrap_or(TUNNELS).max(1);
    let options = Options {
        interval: Duration::from_millis(args.value("--interval-ms")?.unwrap_or(1000).max(1)),
        rate: args.value("--rate")?.unwrap_or(5000.0),
        upgrades: args.value("--upgrades")?.unwrap_or(3),
        block: Duration::from_secs(args.value("--seconds")?.unwrap_or(10).max(1)),
        tunnels: tunnels(wanted)?,
    };
    let json: Option<String> = args.value("--json")?;
    let (binary, lab) = (super::binary(&mut args)?, super::lab(&mut args)?);
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let (binary, lab) = (binary.path()?, lab.path()?);
    // A successor becomes our child when the process that started it exits.
    set_child_subreaper(Some(getpid()))?;
    let dir = tempfile::tempdir()?;
    let (node_process, node) = start_node(dir.path())?;
    let (upstream_process, upstream) = peers::start_upstream(dir.path())?;
    let (gateway, address) =
        start_stillgate(&binary, dir.path(), (node, upstream), options.tunnels, Some(GATEWAY_CPU))?;
    let mut clients = Clients::start()?;
    let begin = Instant::now();
    clients.open(address, PATH, options.tunnels)?;
    let first = put_first(&[node_process.pids(), upstream_process.pids(), vec![clients.pid()]].concat())?;
    let load = Load {
        lab,
        address,
        rate: options.rate,
        connections: CONNECTIONS,
        mix: write_mix(dir.path(), &["/any".to_owned()])?,
        lead_in: LEAD_IN,
        goes_first: first.refusal.is_none(),
    };
    let pings_per_second = options.tunnels as f64 / options.interval.as_secs_f64();
    let mut bench = Bench { gateway, clients, load, pings_per_second };
    // Not earlier: the gateway would be pinned with us.
    cpus::pin(&[OTHER_CPU])?;
    introduce(&options, begin.elapsed());
    let blocks = bench.blocks(&options)?;
    report(&blocks, json.as_deref())?;
    verdict(&blocks, &bench.gateway.log())
}

fn introduce(options: &Options, opened: Duration) {
    let Options { tunnels, interval, rate, upgrades, block } = options;
    println!(
        "{tunnels} tunnels, opened in {:.1} s, each pinged every {} ms; {rate} requests/s on {CONNECTIONS} kept connections",
        opened.as_secs_f64(),
        interval.as_millis()
    );
    println!("{upgrades} upgrades, in every second block of {} s\n", block.as_secs());
}

impl Bench {
    fn blocks(&mut self, options: &Options) -> Result<Vec<Block>> {
        let mut blocks = Vec::new();
        for _ in 0..options.upgrades.max(1) {
            blocks.push(self.block(false, options.block)?);
            if options.upgrades > 0 {
                blocks.push(self.block(true, options.block)?);
            }
        }
        Ok(blocks)
    }

    fn block(&mut self, with_upgrade: bool, duration: Duration) -> Result<Block> {
        let Self { gateway, clients, load, pings_per_second } = self;
        let pace = Pace::Clock(*pings_per_second);
        thread::scope(|scope| {
            let pinging = scope.spawn(move || clients.run(pace, LEAD_IN + duration).map_err(|error| error.to_string()));
            let requesting = scope.spawn(|| load.run(duration).map_err(|error| error.to_string()));
            let upgrade = with_upgrade.then(|| {
                sleep(LEAD_IN + duration / 3);
                upgrade(gateway)
            });
            let pings = pinging.join().map_err(|_| "pinging panicked")?;
            let requests = requesting.join().map_err(|_| "requesting panicked")?;
            // The first of the three: the others' are a consequence.
            let upgrade = upgrade.transpose()?;
            gateway.alive()?;
            Ok(Block { upgrade, pings: pings?, requests: requests? })
        })
    }
}

/// Lets a gateway start its successor, and waits until it has exited; `gateway` is the successor then.
fn upgrade(gateway: &mut Running) -> Result<Upgrade> {
    let begin = Instant::now();
    gateway.signal(Signal::USR2)?;
    let mut successor: Option<(u32, Duration)> = None;
    while !gateway.has_ended()? {
        match successor {
            // It may exit between two polls.
            None => successor = gateway.pids().get(1).map(|pid| (*pid, begin.elapsed())),
            Some((pid, _)) if !proc::runs(pid) => {
                return Err(format!("the successor has ended:\n{}", gateway.log()).into());
            }
            Some(_) => {}
        }
        if begin.elapsed() > GONE_TIMEOUT {
            let log = gateway.log();
            return Err(format!("the old process is still there after {GONE_TIMEOUT:?}:\n{log}").into());
        }
        sleep(LOOK);
    }
    let gone = begin.elapsed();
    let Some((successor, started)) = successor else {
        return Err(format!("SIGUSR2 ended the gateway, and it has no successor:\n{}", gateway.log()).into());
    };
    gateway.follow(successor);
    Ok(Upgrade { started, gone })
}

/// Prints the table and the durations of the upgrades.
fn report(blocks: &[Block], json: Option<&str>) -> Result {
    let of = |line: &Line, with: bool| -> Vec<f64> {
        blocks.iter().filter(|block| block.upgrade.is_some() == with).map(line.of).collect()
    };
    println!("{:30} {:>12} {:>12} {:>12}", "(medians of the blocks)", "without", "with upgrade", "worst with");
    let mut rows: Vec<Value> = Vec::new();
    for line in LINES {
        let (without, with) = (of(line, false), of(line, true));
        let worst = with.iter().copied().fold(f64::NAN, f64::max);
        let (quiet, upgraded) = (median(without.iter().copied()), median(with.iter().copied()));
        println!("{:30} {quiet:12.0} {upgraded:12.0} {worst:12.0}", line.name);
        rows.push(json!({ "line": line.name, "without": without, "with": with }));
    }
    println!();
    let mut upgrades: Vec<Value> = Vec::new();
    for (number, block) in blocks.iter().filter(|block| block.upgrade.is_some()).enumerate() {
        let Some(Upgrade { started, gone }) = &block.upgrade else { continue };
        let (started_ms, gone_ms) = (started.as_millis() as u64, gone.as_millis() as u64);
        println!(
            "upgrade {}: successor started after {started_ms} ms, old process gone after {gone_ms} ms",
            number + 1
        );
        upgrades.push(json!({ "started_ms": started_ms, "gone_ms": gone_ms }));
    }
    let void: Vec<&String> = blocks.iter().flat_map(|block| &block.requests.void).collect();
    if let Some(reason) = void.first() {
        println!("VOID: load and machine disturbed each other ({} times); the first: {reason}", void.len());
    }
    if let Some(path) = json {
        let pings: Vec<Value> = blocks.iter().map(|block| block.pings.to_json()).collect();
        let result = json!({ "rows": rows, "upgrades": upgrades, "pings": pings });
        fs::write(Path::new(path), serde_json::to_string_pretty(&result)?)?;
        println!("written to {path}");
    }
    Ok(())
}

/// Prints what was lost, with the warnings in the gateways' common log. Returns an error if anything was lost, if a tunnel paused
/// for longer than [`PAUSE_MAX`], or if a disturbance of the machine makes the result undetermined.
fn verdict(blocks: &[Block], log: &str) -> Result {
    let sum = |of: fn(&Block) -> u64| blocks.iter().map(of).sum::<u64>();
    let (pings, requests) = (sum(|block| block.pings.sent), sum(|block| block.requests.requests));
    let (broken, lost) = (sum(|block| block.pings.broken), sum(|block| block.pings.lost));
    let (doubled, failed) = (sum(|block| block.pings.doubled), sum(|block| block.requests.failed));
    println!(
        "{pings} pings, {lost} lost, {doubled} answered twice, {broken} tunnels disconnected; {requests} requests, {failed} failed"
    );
    if broken + lost + doubled + failed == 0 {
        return timely(blocks);
    }
    let told = blocks.iter().flat_map(|block| block.pings.ends.iter().chain(&block.requests.failures));
    let told = told.take(FAILURES_SHOWN).map(String::as_str);
    let complaints = log.lines().filter(|line| ["\"WARN\"", "\"ERROR\""].iter().any(|level| line.contains(level)));
    let told: Vec<&str> = told.chain(complaints.take(FAILURES_SHOWN)).collect();
    Err(format!("something was lost:\n{}", told.join("\n")).into())
}

/// Returns an error if an upgrade caused too long a pause.
fn timely(blocks: &[Block]) -> Result {
    if let Some(reason) = blocks.iter().flat_map(|block| &block.requests.void).next() {
        return Err(format!("nothing was lost, and the times are void: {reason}").into());
    }
    let upgraded = blocks.iter().filter(|block| block.upgrade.is_some());
    let longest = Duration::from_micros(upgraded.map(|block| block.pings.worst_us.max.into()).max().unwrap_or(0));
    println!("a tunnel's longest pause with an upgrade: {} ms of {}", longest.as_millis(), PAUSE_MAX.as_millis());
    match longest > PAUSE_MAX {
        true => Err(format!("a ping waited {longest:?}, more than {PAUSE_MAX:?}").into()),
        false => Ok(()),
    }
}
