//! `cargo xtask bench plugins`: CPU time that plugins add to a proxied request, compared with equivalents in nginx, HAProxy and
//! Envoy. With `--instructions` the same cases are [counted] instead.
//!
//! Each gateway runs once, with one worker on CPU 0, and serves every case: without a feature, with each alone, and with all five.
//! Requests of all cases have the same headers and paths of the same length. Three runs of cases are enclosed by two runs of the
//! plain one and compared with their mean, so that drift affects both alike. A figure is the gateway's CPU time, of all its threads
//! and processes, divided by the number of answered requests.

use super::peers::Gateway;
use super::statistics::median;
use super::wrk::{self, Load};
use super::{GATEWAY_CPU, OTHER_CPU, start};
use crate::Result;
use crate::args::Args;
use crate::envoy as envoy_program;
use crate::packages::{self, HAPROXY, NGINX, NGINX_BROTLI, NGINX_LUA, WRK};
use cases::{Case, Endpoint};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stillgate_rig::Running;
use verdict::{Added, Unit};

mod cases;
mod counted;
mod envoy;
mod features;
mod haproxy;
mod nginx;
mod stillgate;
mod verdict;

const WARM_UP_SECONDS: u64 = 1;
/// Number of cases between two runs of the plain one.
const BETWEEN: usize = 3;
/// Connections of cases with large responses: the encoders of all of them together stay within their memory limit.
const LARGE_CONNECTIONS_MAX: u32 = 4;

struct Options {
    rounds: usize,
    seconds: u64,
    connections: u32,
}

/// A running gateway.
struct Subject {
    name: &'static str,
    process: Running,
    endpoints: Vec<Endpoint>,
    /// The script of requests with a method other than GET.
    post: PathBuf,
}

/// The results of one case, a figure per round.
struct Measured {
    gateway: &'static str,
    case: &'static Case,
    /// Bytes of a response's body.
    body_bytes: usize,
    rounds: Vec<Pair>,
}

/// One run of a case and the surrounding runs of the plain one.
struct Pair {
    without: Sample,
    with: Sample,
}

/// CPU µs per request of one run.
#[derive(Clone, Copy)]
struct Sample {
    cpu_us: f64,
    /// The part outside the kernel, to the clock tick.
    user_us: f64,
}

impl Sample {
    fn midpoint(self, other: Sample) -> Sample {
        Sample { cpu_us: f64::midpoint(self.cpu_us, other.cpu_us), user_us: f64::midpoint(self.user_us, other.user_us) }
    }
}

impl Measured {
    fn median(&self, of: fn(&Pair) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }

    /// CPU µs that the case adds.
    fn added(&self) -> Added {
        Added::median(self.gateway, self.rounds.iter().map(|pair| pair.with.cpu_us - pair.without.cpu_us))
    }
}

pub(super) fn run(mut args: Args) -> Result {
    if args.flag("--instructions") {
        return counted::run(args);
    }
    let quick = args.flag("--quick");
    let options = Options {
        rounds: args.value("--rounds")?.unwrap_or(if quick { 2 } else { 4 }).max(1),
        seconds: args.value("--seconds")?.unwrap_or(1).max(1),
        connections: args.value("--connections")?.unwrap_or(64),
    };
    let only: Option<String> = args.value("--case")?;
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    let chosen = chosen(only.as_deref())?;
    packages::ensure(&[NGINX, NGINX_BROTLI, NGINX_LUA, HAPROXY, WRK])?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_node, node) = nginx::start_node(dir.path(), &chosen)?;
    let mut subjects = start_all(&binary, dir.path(), node, &chosen)?;
    let Options { rounds, seconds, connections } = &options;
    println!("\n{rounds} rounds of {seconds} s a gateway and case, {connections} connections, one worker each\n");
    let endpoints =
        || subjects.iter().flat_map(|subject| subject.endpoints.iter().map(move |endpoint| (subject, endpoint)));
    // All of them before any load: the work that a load leaves behind is still in progress.
    let mut body_bytes = Vec::new();
    for (Subject { name, .. }, endpoint) in endpoints() {
        body_bytes.push(endpoint.check().map_err(|error| format!("{name}: {error}"))?);
    }
    for (Subject { name, post, .. }, endpoint) in endpoints() {
        wrk::run(&load(endpoint.case, post, &options), endpoint.address, WARM_UP_SECONDS)
            .map_err(|error| format!("{name}, {}: {error}", endpoint.case.name))?;
    }
    let measured = measure(&mut subjects, &body_bytes, &options)?;
    let results = report(&chosen, &measured);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("written to {path}");
    }
    Ok(())
}

/// The plain case, and those with this text in their names; `all` or nothing: all.
fn chosen(only: Option<&str>) -> Result<Vec<&'static Case>> {
    let only = only.filter(|only| *only != "all").unwrap_or_default();
    let mut cases = cases::all();
    let names: Vec<&str> = cases.iter().filter(|case| !case.is_plain()).map(|case| case.name).collect();
    cases.retain(|case| case.is_plain() || case.name.contains(only));
    let has_large = cases.iter().any(|case| !case.is_plain() && case.is_large);
    cases.retain(|case| !case.is_plain() || has_large || !case.is_large);
    match cases.iter().filter(|case| !case.is_plain()).count() {
        0 => Err(format!("--case: all, or a part of one of: {}", names.join("; ")).into()),
        _ => Ok(cases),
    }
}

/// Starts every available gateway.
fn start_all(binary: &Path, dir: &Path, node: SocketAddr, chosen: &[&'static Case]) -> Result<Vec<Subject>> {
    let envoy = envoy_program::ensure().inspect_err(|error| println!("envoy: absent: {error}")).ok();
    let peers = [Some(Gateway::Nginx), Some(Gateway::Haproxy), envoy.as_deref().map(Gateway::Envoy)];
    let ours = stillgate::accepted(binary, dir, chosen, node)?;
    let mut subjects = Vec::new();
    let post = dir.join("post.lua");
    fs::write(&post, "wrk.method = \"POST\"\n")?;
    for gateway in peers.into_iter().flatten().chain([Gateway::Stillgate(binary)]) {
        let (endpoints, words) = configure(gateway, dir, node, if gateway.is_ours() { &ours } else { chosen })?;
        let name = gateway.name();
        let mut process = start(&words, &[GATEWAY_CPU], &dir.join(format!("{name}.log")))?;
        for endpoint in &endpoints {
            process.wait_for(endpoint.address, Running::START_TIMEOUT).map_err(|error| format!("{name}: {error}"))?;
        }
        subjects.push(Subject { name, process, endpoints, post: post.clone() });
    }
    Ok(subjects)
}

/// Writes the configuration of the cases that a gateway supports; returns their addresses, and the command that runs it.
fn configure(
    gateway: Gateway<'_>,
    dir: &Path,
    node: SocketAddr,
    cases: &[&'static Case],
) -> Result<(Vec<Endpoint>, Vec<String>)> {
    let has = |case: &&&'static Case| {
        case.features.iter().all(|feature| match gateway {
            Gateway::Nginx => feature.nginx.is_some(),
            Gateway::Haproxy => feature.haproxy.is_some(),
            Gateway::Envoy(_) => feature.envoy.is_some(),
            Gateway::Stillgate(_) => true,
        })
    };
    let cases: Vec<_> = cases.iter().filter(has).copied().collect();
    let mut endpoints = Endpoint::each(&cases)?;
    let words = match gateway {
        Gateway::Nginx => nginx::configure(dir, &endpoints, node)?,
        Gateway::Haproxy => haproxy::configure(dir, &endpoints, node)?,
        Gateway::Envoy(program) => envoy::configure(program, dir, &endpoints, node)?,
        Gateway::Stillgate(binary) => stillgate::configure(binary, dir, &mut endpoints, node)?,
    };
    Ok((endpoints, words))
}

fn load(case: &Case, post: &Path, options: &Options) -> Load {
    let headers = cases::request_headers(case);
    let script = (case.method() == "POST").then(|| post.to_owned());
    let most = if case.is_large { LARGE_CONNECTIONS_MAX } else { u32::MAX };
    Load { path: case.path, headers, script, connections: options.connections.min(most), tls: None }
}

/// Runs all rounds of all gateways; returns the results of each gateway and case. `body_bytes` are in the order of endpoints.
fn measure(subjects: &mut [Subject], body_bytes: &[usize], options: &Options) -> Result<Vec<Measured>> {
    let mut body_bytes = body_bytes.iter().copied();
    let mut measured: Vec<Vec<Measured>> = subjects
        .iter()
        .map(|subject| {
            let cases = subject.endpoints.iter();
            let empty = |endpoint: &Endpoint| Measured {
                gateway: subject.name,
                case: endpoint.case,
                body_bytes: body_bytes.next().unwrap_or_default(),
                rounds: Vec::new(),
            };
            cases.map(empty).collect()
        })
        .collect();
    let begin = Instant::now();
    for round in 0..options.rounds {
        for (subject, own) in subjects.iter_mut().zip(&mut measured) {
            println!(
                "{:5.0} s  round {} of {}: {}",
                begin.elapsed().as_secs_f64(),
                round + 1,
                options.rounds,
                subject.name
            );
            for is_large in [false, true] {
                subject.round(is_large, own, options)?;
            }
        }
    }
    Ok(measured.into_iter().flatten().filter(|measured| !measured.rounds.is_empty()).collect())
}

impl Subject {
    /// One round of the cases with small or large responses: some of them, the plain one, some of them.
    fn round(&mut self, is_large: bool, measured: &mut [Measured], options: &Options) -> Result {
        let Subject { name, process, endpoints, post } = self;
        let mut sample = |endpoint: &Endpoint| {
            sample(process, endpoint, post, options).map_err(|error| format!("{name}, {}: {error}", endpoint.case.name))
        };
        let of_size = |endpoint: &&Endpoint| endpoint.case.is_large == is_large;
        let Some(plain) = endpoints.iter().filter(of_size).find(|endpoint| endpoint.case.is_plain()) else {
            return Ok(());
        };
        let mut cases: Vec<_> = endpoints.iter().zip(measured).filter(|(endpoint, _)| of_size(endpoint)).collect();
        cases.retain(|(endpoint, _)| !endpoint.case.is_plain());
        let mut before = sample(plain)?;
        for some in cases.chunks_mut(BETWEEN) {
            let with = some.iter().map(|(endpoint, _)| sample(endpoint)).collect::<std::result::Result<Vec<_>, _>>()?;
            let after = sample(plain)?;
            for ((_, measured), with) in some.iter_mut().zip(with) {
                measured.rounds.push(Pair { without: before.midpoint(after), with });
            }
            before = after;
        }
        Ok(())
    }
}

fn sample(process: &mut Running, endpoint: &Endpoint, post: &Path, options: &Options) -> Result<Sample> {
    let (before, ticks) = (process.thread_times()?, process.cpu_time()?);
    let answered = wrk::run(&load(endpoint.case, post, options), endpoint.address, options.seconds)?;
    process.alive()?;
    if answered.requests == 0 {
        return Err("no request was answered".into());
    }
    let cpu_us = process.thread_times()?.since(&before);
    let user_us = process.cpu_time()?.since(ticks).user_us;
    let each = |us: f64| us / answered.requests as f64;
    Ok(Sample { cpu_us: each(cpu_us), user_us: each(user_us) })
}

/// Prints a line for each case and gateway, and a comparison of ours with the cheapest peer; returns them as JSON.
fn report(cases: &[&'static Case], measured: &[Measured]) -> Value {
    println!(
        "{:32} {:10} {:>8} {:>8} {:>9} {:>16} {:>11} {:>7} {:>7}",
        "case", "gateway", "without", "with", "added", "range", "added user", "ratio", "bytes"
    );
    let (mut results, mut verdicts) = (Vec::new(), Vec::new());
    for case in cases {
        let of_case: Vec<&Measured> = measured.iter().filter(|measured| measured.case.name == case.name).collect();
        results.extend(of_case.iter().map(|measured| line(measured)));
        verdicts.extend(verdict::verdict(case, of_case.iter().map(|measured| measured.added()), Unit::Microseconds));
    }
    println!(
        "\n(CPU µs a request of the gateway on CPU {GATEWAY_CPU}, node and load on CPU {OTHER_CPU}; medians of the rounds)"
    );
    verdict::count(&verdicts);
    json!({ "rows": results, "verdicts": verdicts })
}

fn line(measured: &Measured) -> Value {
    let Measured { gateway, case, body_bytes, rounds } = measured;
    let without = measured.median(|pair| pair.without.cpu_us);
    let with = measured.median(|pair| pair.with.cpu_us);
    let Added { amount: added_us, range: [low, high], .. } = measured.added();
    let user_us = measured.median(|pair| pair.with.user_us - pair.without.user_us);
    let ratio = measured.median(|pair| pair.with.cpu_us / pair.without.cpu_us);
    println!(
        "{:32} {gateway:10} {without:8.2} {with:8.2} {added_us:9.2} {:>16} {user_us:11.2} {ratio:7.3} {body_bytes:7}",
        case.name,
        format!("{low:.2} to {high:.2}")
    );
    json!({
        "case": case.name, "gateway": gateway, "without_us": without, "with_us": with, "added_us": added_us, "added_user_us": user_us, "ratio": ratio,
        "body_bytes": body_bytes,
        "rounds_us": rounds.iter().map(|pair| [pair.without.cpu_us, pair.with.cpu_us]).collect::<Vec<_>>(),
    })
}
