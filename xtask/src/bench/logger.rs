//! `cargo xtask bench logger`: latency with an `http-logger` whose receiver stalls, compared with the same without the plugin.
//!
//! Pairs of blocks in ABBA order, each with a new gateway on one CPU, under the laboratory's open-loop load. The receiver accepts
//! connections and reads nothing during the load, so that the queue of entries reaches its bound. Then it answers, and the received
//! and dropped entries must add up to the number of requests.

use super::exposition::{fetch, sums};
use super::lab_load::{Load, Outcome, write_mix};
use super::statistics::median;
use super::{GATEWAY_CPU, OTHER_CPU, free_port, peers, put_first, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use receiver::Receiver;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::{Running, cpus};
use stillgate_stats::hodges_lehmann;

mod receiver;

const CONNECTIONS: u32 = 64;
/// Before the measured time: the bound is nearly reached by then.
const LEAD_IN: Duration = Duration::from_secs(2);
/// How much p99.9 may increase with the plugin: by this share of its value without, or by this much, whichever is larger.
const MORE_SHARE_MAX: f64 = 0.2;
const MORE_US_MAX: f64 = 2000.0;
/// It is judged by the upper end of this interval: 95% sure that the increase is not above the bound.
const CONFIDENCE: f64 = 0.9;
/// Bytes queued for one receiver, including the batch that is being written to it.
const HELD_BYTES_MAX: f64 = 17.0 * 1024.0 * 1024.0;
/// How much the gateway's peak of memory may increase with the plugin: the queue, the chunks between the worker and the sending
/// thread (8 MiB), and as much again for the batches that are being encoded.
const MORE_RSS_KIB_MAX: u64 = (17 + 8 + 8) * 1024;
/// The time in which the queue is sent once the receiver answers.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
const SENT: &str = "stillgate_logger_sent_total";
const DROPPED: &str = "stillgate_logger_dropped_total";

/// The parts shared by all blocks.
struct BenchContext {
    binary: PathBuf,
    lab: PathBuf,
    dir: tempfile::TempDir,
    upstream: SocketAddr,
    goes_first: bool,
    rate: f64,
    block: Duration,
}

/// The result of one block.
struct Block {
    outcome: Outcome,
    rss_kib: u64,
    entries: Option<Entries>,
}

/// The outcomes of the entries.
struct Entries {
    requests: u64,
    /// Entries queued at the end of the load.
    held_bytes: f64,
    sent: u64,
    dropped: u64,
    received: u64,
}

pub(super) fn run(mut args: Args) -> Result {
    let pairs: usize = args.value("--pairs")?.unwrap_or(6).max(1);
    let block = Duration::from_secs(args.value("--seconds")?.unwrap_or(10).max(1));
    let rate = args.value("--rate")?.unwrap_or(10_000.0);
    let json: Option<String> = args.value("--json")?;
    let (binary, lab) = (super::binary(&mut args)?, super::lab(&mut args)?);
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let (binary, lab, dir) = (binary.path()?, lab.path()?, tempfile::tempdir()?);
    let (upstream_process, upstream) = peers::start_upstream(dir.path())?;
    let first = put_first(&upstream_process.pids())?;
    let goes_first = first.refusal.is_none();
    cpus::pin(&[OTHER_CPU])?;
    println!(
        "{rate} requests/s open loop on {CONNECTIONS} connections, {pairs} pairs of blocks of {} s\n",
        block.as_secs()
    );
    let place = BenchContext { binary, lab, dir, upstream, goes_first, rate, block };
    let mut measured = Vec::new();
    for pair in 0..pairs {
        let [mut without, mut with] = [None, None];
        for logs in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let block = place.block(logs)?;
            block.print();
            *(if logs { &mut with } else { &mut without }) = Some(block);
        }
        measured.extend(without.zip(with));
    }
    let (results, faults) = judge(&measured);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("written to {path}");
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

impl BenchContext {
    /// Runs a gateway from start to end.
    fn block(&self, logs: bool) -> Result<Block> {
        let (receiver, address, metrics) = (Receiver::start()?, free_port()?, free_port()?);
        let config = self.dir.path().join("stillgate.yaml");
        fs::write(&config, configuration(address, metrics, self.upstream, logs.then_some(receiver.address)))?;
        let words = peers::stillgate_command(&self.binary, &config);
        let mut gateway = start(&words, &[GATEWAY_CPU], &self.dir.path().join("log"))?;
        gateway.wait_for(address, Running::START_TIMEOUT)?;
        let outcome = self.load(address)?.run(self.block)?;
        gateway.alive()?;
        let rss_kib = gateway.peak_rss_kib()?;
        let entries = if logs { Some(account(metrics, &receiver)?) } else { None };
        Ok(Block { outcome, rss_kib, entries })
    }

    fn load(&self, address: SocketAddr) -> Result<Load> {
        let mix = write_mix(self.dir.path(), &["/any".to_owned()])?;
        let (lab, goes_first) = (self.lab.clone(), self.goes_first);
        Ok(Load { lab, address, rate: self.rate, connections: CONNECTIONS, mix, lead_in: LEAD_IN, goes_first })
    }
}

fn configuration(address: SocketAddr, metrics: SocketAddr, node: SocketAddr, receiver: Option<SocketAddr>) -> String {
    let extra = format!("  metrics:\n    address: \"{metrics}\"\n");
    let mut text = peers::stillgate_config(address, None, node, 1, &extra);
    if let Some(receiver) = receiver {
        let keys = json!({ "uri": format!("http://{receiver}/logs"), "concat_method": "new_line", "timeout": 3600 });
        text.push_str(&format!("    plugins: {}\n", json!({ "http-logger": keys })));
    }
    text
}

/// Lets the receiver answer, and waits until all entries are sent or dropped.
fn account(metrics: SocketAddr, receiver: &Receiver) -> Result<Entries> {
    let sum = |name: &str| -> Result<f64> { Ok(sums(&fetch(metrics, "/metrics")?, name, "")?.total) };
    let held_bytes = sum("stillgate_logger_bytes")?;
    receiver.answer();
    let begin = Instant::now();
    loop {
        let [requests, sent, dropped] = ["stillgate_http_requests_total", SENT, DROPPED].map(sum);
        let (requests, sent, dropped) = (requests? as u64, sent? as u64, dropped? as u64);
        if sent + dropped >= requests || begin.elapsed() > TAKEN_TIMEOUT {
            return Ok(Entries { requests, held_bytes, sent, dropped, received: receiver.entries() });
        }
        sleep(LOOK);
    }
}

impl Block {
    fn print(&self) {
        let Outcome { p50_us, p99_us, p99_9_us, max_us, requests, failed, void, .. } = &self.outcome;
        let name = if self.entries.is_some() { "stalled" } else { "without" };
        println!(
            "{name}  p50 {p50_us:5.0} µs  p99 {p99_us:6.0}  p99.9 {p99_9_us:6.0}  max {max_us:7.0}  {requests} requests, {failed} failed  peak RSS {:.1} MiB{}",
            self.rss_kib as f64 / 1024.0,
            if void.is_empty() { String::new() } else { format!("  VOID: {}", void.join("; ")) }
        );
        if let Some(Entries { requests, held_bytes, sent, dropped, received }) = &self.entries {
            println!(
                "         entries: {requests} = {dropped} dropped + {sent} sent; the receiver got {received}; {:.1} MiB waited",
                held_bytes / 1024.0 / 1024.0
            );
        }
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.outcome.failed > 0 {
            faults.push(format!("{} requests failed", self.outcome.failed));
        }
        let Some(Entries { requests, held_bytes, sent, dropped, received }) = &self.entries else { return faults };
        if sent + dropped != *requests || received != sent {
            faults.push(format!("{requests} requests, {sent} entries sent, {received} received, {dropped} dropped"));
        }
        if *held_bytes > HELD_BYTES_MAX {
            faults.push(format!("{held_bytes} bytes waited"));
        }
        if *dropped == 0 {
            faults.push("nothing was dropped: the bound was not reached; make it last longer".to_owned());
        }
        faults
    }
}

/// The medians of the valid pairs, and the violated requirements.
fn judge(pairs: &[(Block, Block)]) -> (Value, Vec<String>) {
    let is_valid = |block: &Block| block.outcome.void.is_empty();
    let valid: Vec<_> = pairs.iter().filter(|(without, with)| is_valid(without) && is_valid(with)).collect();
    let p99_9 = |of: fn(f64, f64) -> f64| {
        median(valid.iter().map(|(without, with)| of(without.outcome.p99_9_us, with.outcome.p99_9_us)))
    };
    let (without, with) = (p99_9(|without, _| without), p99_9(|_, with| with));
    let (ratio, more) = (p99_9(|without, with| with / without), p99_9(|without, with| with - without));
    println!(
        "\np99.9: {without:.0} µs without, {with:.0} stalled; within pairs {ratio:.3} times, {more:+.0} µs (medians of {} of {} pairs)",
        valid.len(),
        pairs.len()
    );
    let mut faults: Vec<String> =
        pairs.iter().flat_map(|(without, with)| [without.faults(), with.faults()].concat()).collect();
    if valid.len() * 2 <= pairs.len() {
        faults.push("most pairs are void".to_owned());
    }
    let beyond: Vec<f64> = valid.iter().map(|(without, with)| beyond_us(without, with)).collect();
    let bound = hodges_lehmann(&beyond, CONFIDENCE).map(|estimate| estimate.interval.high);
    match bound {
        None => faults.push(format!("{} pairs that are not void are too few for a bound", valid.len())),
        Some(bound) => {
            println!("upper bound of what p99.9 is beyond its margin: {bound:+.0} µs, which must not be above 0");
            if bound > 0.0 {
                faults.push(format!("p99.9 may be {bound:.0} µs beyond its margin"));
            }
        }
    }
    let more_kib = pairs.iter().map(|(without, with)| with.rss_kib.saturating_sub(without.rss_kib)).max().unwrap_or(0);
    println!("peak memory: at most {:.1} MiB more than without, in a pair", more_kib as f64 / 1024.0);
    if more_kib > MORE_RSS_KIB_MAX {
        faults.push(format!("peak memory is {more_kib} KiB above what it is without, more than {MORE_RSS_KIB_MAX}"));
    }
    let blocks = |(without, with): &(Block, Block)| json!([without.outcome.p99_9_us, with.outcome.p99_9_us]);
    let all: Vec<Value> = pairs.iter().map(blocks).collect();
    let result = json!({
        "p99_9_us": all, "ratio": ratio, "more_us": more, "beyond_margin_us_max": bound, "more_rss_kib_max": more_kib,
    });
    (result, faults)
}

/// By how much the p99.9 of a pair exceeds the limit; below 0 if it does not.
fn beyond_us(without: &Block, with: &Block) -> f64 {
    let (without, with) = (without.outcome.p99_9_us, with.outcome.p99_9_us);
    with - without - (MORE_SHARE_MAX * without).max(MORE_US_MAX)
}
