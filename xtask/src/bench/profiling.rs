//! `cargo xtask bench profiling`: the cost of a request, in instructions, if profiles are enabled and if the heap is sampled.
//!
//! Counted with callgrind, on one connection to a route without plugins. No profile is taken meanwhile; `cargo bench -p
//! stillgate-profiler` measures the cost of taking one.

use super::peers::{self, NGINX_CONNECTIONS};
use super::served::Asker;
use super::{GATEWAY_CPU, OTHER_CPU, free_port, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX, VALGRIND};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use stillgate_rig::Running;
use stillgate_rig::callgrind::{Counter, Threads};

/// Requests per round.
const REQUESTS: u64 = 2000;
const WARM_UP_REQUESTS: u64 = 500;

/// The time limit under valgrind.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// The variants, compared with the first.
const CASES: [(&str, &str); 3] = [
    ("off", ""),
    ("pprof: true", "  debug: {pprof: true}\n"),
    ("heap: 512KiB", "  debug: {pprof: true, heap: 512KiB}\n"),
];

pub(super) fn run(mut args: Args) -> Result {
    let rounds: usize = args.value("--rounds")?.unwrap_or(5).max(1);
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX, VALGRIND])?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let node = free_port()?;
    let server = format!("server {{ listen {node}; location / {{ return 200 text; }} }}");
    let words = peers::nginx(dir.path(), "node", NGINX_CONNECTIONS, &server)?;
    let mut running = start(&words, &[OTHER_CPU], &dir.path().join("node.log"))?;
    running.wait_for(node, Running::START_TIMEOUT)?;
    println!("{rounds} rounds of {REQUESTS} requests; the least of the rounds, and the most\n");
    println!("{:16} {:>14} {:>9} {:>9}", "gateway.debug", "instructions", "most", "more");
    let mut off = None;
    for (number, (name, debug)) in CASES.iter().enumerate() {
        let counts = counts(&binary, dir.path(), (node, debug), number, rounds)?;
        let (least, most) = counts.iter().fold((f64::MAX, f64::MIN), |(a, b), one| (a.min(*one), b.max(*one)));
        let more = least - *off.get_or_insert(least);
        println!("{name:16} {least:14.1} {most:9.1} {more:9.1}");
    }
    Ok(())
}

/// Instructions per request, one figure per round.
fn counts(
    binary: &Path,
    dir: &Path,
    (node, debug): (SocketAddr, &str),
    number: usize,
    rounds: usize,
) -> Result<Vec<f64>> {
    let (address, file) = (free_port()?, dir.join(format!("stillgate-{number}.yaml")));
    let route = "  - id: r\n    uri: /*\n    upstream_id: u\n";
    fs::write(&file, peers::stillgate_head(address, None, (node, "http"), debug) + route)?;
    let words = peers::stillgate_command(binary, &file);
    // The first thread is the control thread: it serves no requests, and works once a second.
    let mut counter = Counter::start(&words, Threads::Others, &[GATEWAY_CPU], dir, &format!("stillgate-{number}"))?;
    counter.process.wait_for(address, START_TIMEOUT)?;
    counter.begin()?;
    let mut asker = Asker::connect(address)?;
    let mut send = |requests: u64| -> Result {
        for _ in 0..requests {
            let answer = asker.get("/", &[])?;
            if answer.status != 200 {
                return Err(format!("answered {}", answer.status).into());
            }
        }
        Ok(())
    };
    send(WARM_UP_REQUESTS)?;
    let mut counts = Vec::new();
    for _ in 0..rounds {
        counter.instructions(None)?;
        send(REQUESTS)?;
        counts.push(counter.instructions(None)? as f64 / REQUESTS as f64);
    }
    Ok(counts)
}
