//! `cargo xtask bench dashboards`: CPU time of the worker per request with a hundred open dashboards, and without.
//!
//! Pairs of blocks in ABBA order on one gateway, under the laboratory's open-loop load. A dashboard makes the requests of the
//! Overview: the stream of `/v1/live`, and `/v1/status` every few seconds. Dashboards are read on the load's CPU.

use super::lab_load::{Load, write_mix};
use super::served::Asker;
use super::statistics::median;
use super::{GATEWAY_CPU, OTHER_CPU, free_port, peers, put_first, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;
use stillgate_rig::{Running, cpus};
use stillgate_stats::hodges_lehmann;

const CONNECTIONS: u32 = 64;
const LEAD_IN: Duration = Duration::from_secs(1);
const CONFIDENCE: f64 = 0.95;
/// More often than the Overview checks for problems, which is once a minute.
const ASKED_EVERY: Duration = Duration::from_secs(10);
/// A stream that is silent for this long has ended.
const SILENCE: Duration = Duration::from_secs(10);
/// The least size of an event: far below the actual one.
const EVENT_BYTES_MIN: u64 = 64;

/// The result of one block.
struct Block {
    cpu_us: f64,
    p99_us: f64,
}

pub(super) fn run(mut args: Args) -> Result {
    let pairs: usize = args.value("--pairs")?.unwrap_or(8).max(6);
    let seconds: u64 = args.value("--seconds")?.unwrap_or(5).max(2);
    let rate = args.value("--rate")?.unwrap_or(8_000.0);
    let count: usize = args.value("--dashboards")?.unwrap_or(100);
    let json: Option<String> = args.value("--json")?;
    let (binary, lab) = (super::binary(&mut args)?, super::lab(&mut args)?);
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let (binary, lab, dir) = (binary.path()?, lab.path()?, tempfile::tempdir()?);
    let (upstream_process, upstream) = peers::start_upstream(dir.path())?;
    let first = put_first(&upstream_process.pids())?;
    let goes_first = first.refusal.is_none();
    cpus::pin(&[OTHER_CPU])?;
    let (address, admin, metrics) = (free_port()?, free_port()?, free_port()?);
    let config = dir.path().join("stillgate.yaml");
    let extra = format!("  metrics:\n    address: \"{metrics}\"\n");
    fs::write(&config, peers::stillgate_config(address, Some(admin), upstream, 100, &extra))?;
    let words = peers::stillgate_command(&binary, &config);
    let mut gateway = start(&words, &[GATEWAY_CPU], &dir.path().join("log"))?;
    gateway.wait_for(address, Running::START_TIMEOUT)?;
    println!("{rate} requests/s open loop, {pairs} pairs of blocks of {seconds} s, {count} dashboards or none\n");
    let mix = write_mix(dir.path(), &["/any".to_owned()])?;
    let load = Load { lab, address, rate, connections: CONNECTIONS, mix, lead_in: LEAD_IN, goes_first };
    let mut measured = Vec::new();
    for pair in 0..pairs {
        let [mut without, mut with] = [None, None];
        for is_open in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let open = is_open.then(|| Dashboards::open(admin, count)).transpose()?;
            let block = block(&mut gateway, &load, Duration::from_secs(seconds))?;
            open.map(|open| open.close(seconds)).transpose()?;
            println!(
                "{:>12}: {:6.2} us of CPU a request, p99 {:6.0} us",
                if is_open { "dashboards" } else { "none" },
                block.cpu_us,
                block.p99_us
            );
            *(if is_open { &mut with } else { &mut without }) = Some(block);
        }
        measured.extend(without.zip(with));
    }
    let result = report(&measured, count)?;
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&result)?)?;
        println!("written to {path}");
    }
    Ok(())
}

fn block(gateway: &mut Running, load: &Load, duration: Duration) -> Result<Block> {
    let before = gateway.threads_cpu_us("worker-")?;
    let outcome = load.run(duration)?;
    gateway.alive()?;
    if outcome.failed > 0 {
        return Err(format!("{} requests failed: {:?}", outcome.failed, outcome.failures).into());
    }
    let requests = outcome.requests as f64 + load.lead_in_requests();
    Ok(Block { cpu_us: (gateway.threads_cpu_us("worker-")? - before) / requests, p99_us: outcome.p99_us })
}

fn report(measured: &[(Block, Block)], count: usize) -> Result<Value> {
    let more: Vec<f64> = measured.iter().map(|(without, with)| with.cpu_us - without.cpu_us).collect();
    let estimate = hodges_lehmann(&more, CONFIDENCE).ok_or("too few pairs for an interval")?;
    let [without, with] = [0, 1].map(|side| {
        median(measured.iter().map(|(without, with)| if side == 0 { without.cpu_us } else { with.cpu_us }))
    });
    let interval = &estimate.interval;
    println!(
        "\n{count} dashboards: {without:.2} us without, {with:.2} us with; the difference of pairs is {:+.2} us (95%: {:+.2} to {:+.2})",
        estimate.value, interval.low, interval.high
    );
    let pairs: Vec<Value> = measured
        .iter()
        .map(|(without, with)| {
            json!({ "without_us": without.cpu_us, "with_us": with.cpu_us,
            "without_p99_us": without.p99_us, "with_p99_us": with.p99_us })
        })
        .collect();
    Ok(
        json!({ "dashboards": count, "more_us": estimate.value, "low_us": interval.low, "high_us": interval.high, "pairs": pairs }),
    )
}

/// Open dashboards.
struct Dashboards {
    over: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    streams: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Dashboards {
    fn open(admin: SocketAddr, count: usize) -> Result<Dashboards> {
        let mut open =
            Dashboards { over: Arc::default(), read: Arc::default(), streams: Vec::new(), threads: Vec::new() };
        for _ in 0..count {
            let mut stream = TcpStream::connect(admin)?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.write_all(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")?;
            open.streams.push(stream.try_clone()?);
            let read = open.read.clone();
            open.threads.push(spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                    read.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }));
        }
        let over = open.over.clone();
        open.threads.push(spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let asked = Asker::connect(admin).and_then(|mut asker| asker.get("/v1/status", &[]));
                // Evenly spread, as people open them at any time.
                sleep(if asked.is_ok() { ASKED_EVERY / count.max(1) as u32 } else { ASKED_EVERY });
            }
        }));
        Ok(open)
    }

    /// # Errors
    /// If they did not receive an event every second: then nothing was measured.
    fn close(self, seconds: u64) -> Result {
        self.over.store(true, Ordering::Relaxed);
        for stream in &self.streams {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads {
            thread.join().map_err(|_| "a dashboard panicked")?;
        }
        let (read, expected) =
            (self.read.load(Ordering::Relaxed), self.streams.len() as u64 * seconds * EVENT_BYTES_MIN);
        match read >= expected {
            true => Ok(()),
            false => {
                Err(format!("the dashboards were sent {read} bytes only; at least {expected} were expected").into())
            }
        }
    }
}
