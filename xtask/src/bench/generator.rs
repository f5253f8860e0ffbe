//! `cargo xtask bench generator`: the cost of a request in the laboratory's load generator, compared with wrk.
//!
//! Both drive the same bare responder (`stillgate-lab respond`, on the other CPU) with one thread in a closed loop, in turn. The
//! CPU time is that of the whole process, which the kernel adds to ours when it ends, so starting up counts as well.

use super::statistics::median;
use super::{GATEWAY_CPU, OTHER_CPU, free_port, start, wrk};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, WRK};
use crate::step;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use stillgate_rig::{Running, proc};

/// One run.
struct Run {
    per_second: f64,
    cpu_us: f64,
}

pub(super) fn run(mut args: Args) -> Result {
    let rounds: usize = args.value("--rounds")?.unwrap_or(5).max(1);
    let seconds: u64 = args.value("--seconds")?.unwrap_or(3).max(1);
    let connections: u32 = args.value("--connections")?.unwrap_or(50);
    let lab = super::lab(&mut args)?;
    args.finish()?;
    packages::ensure(&[WRK])?;
    let lab = lab.path()?;
    let dir = tempfile::tempdir()?;
    let address = free_port()?;
    let words = [lab.to_string_lossy().into_owned(), "respond".to_owned(), "--address".to_owned(), address.to_string()];
    let mut responder = start(&words, &[GATEWAY_CPU], &dir.path().join("responder.log"))?;
    responder.wait_for(address, Running::START_TIMEOUT)?;
    println!(
        "closed loop, {connections} connections, {rounds} rounds of {seconds} s in turn; each generator on CPU {OTHER_CPU}\n"
    );
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(measured(|| laboratory(&lab, address, connections, seconds))?);
        theirs.push(measured(|| by_wrk(address, connections, seconds))?);
    }
    for (name, runs) in [("stillgate-lab", &ours), ("wrk", &theirs)] {
        let of = |value: fn(&Run) -> f64| median(runs.iter().map(value));
        let fastest = runs.iter().map(|run| run.per_second).fold(0.0, f64::max);
        println!(
            "{name:14} {:8.0} requests/s (most {fastest:.0})   CPU {:5.2} us a request",
            of(|run| run.per_second),
            of(|run| run.cpu_us)
        );
    }
    let ratios = ours.iter().zip(&theirs).map(|(own, wrk)| own.cpu_us / wrk.cpu_us);
    println!("\nratio of CPU a request, stillgate-lab to wrk: {:.3}", median(ratios));
    Ok(())
}

/// Runs a load that returns its number of requests and its rate, and adds its CPU time.
fn measured(run: impl FnOnce() -> Result<(u64, f64)>) -> Result<Run> {
    let (_, before) = proc::self_and_children()?;
    let (requests, per_second) = run()?;
    let us = (proc::self_and_children()?.1 - before).as_secs_f64() * 1e6;
    Ok(Run { per_second, cpu_us: us / requests.max(1) as f64 })
}

fn laboratory(lab: &Path, address: SocketAddr, connections: u32, seconds: u64) -> Result<(u64, f64)> {
    let cpu = OTHER_CPU.to_string();
    let mut command = Command::new(lab);
    command.args(["load", &format!("http://{address}/"), "--quiet", "--json", "-", "--cpus", &cpu]).args([
        "--connections",
        &connections.to_string(),
        "--duration",
        &format!("{seconds}s"),
    ]);
    let result: Value = serde_json::from_str(&step::output(&mut command)?)?;
    let (requests, rate) = (result["requests"].as_u64(), result["rate_achieved"].as_f64());
    requests.zip(rate).ok_or_else(|| "stillgate-lab told no requests or rate_achieved".into())
}

fn by_wrk(address: SocketAddr, connections: u32, seconds: u64) -> Result<(u64, f64)> {
    let load = wrk::Load { path: "/", headers: Vec::new(), script: None, connections, tls: None };
    let answered = wrk::run(&load, address, seconds)?;
    Ok((answered.requests, answered.per_second))
}
