//! `cargo xtask bench routes`: CPU time per request of a gateway with many expression routes, compared with the same gateway with
//! one.
//!
//! Both run at once on the same CPU and are loaded in turn, in ABBA order, with the same requests. The requests are for the route
//! in the middle; or, if a family has several kinds of routes, for one of each kind from there on; or with `--spread` for routes
//! all over the list. With a single request, the one route is the one that takes it; otherwise one that takes all. Every few pairs
//! both gateways are restarted in the opposite order: the memory layout alone can change the figure by a percent. The figure is
//! that of `bench proxy`, to the nanosecond if the kernel reports it.

use super::peers;
use super::route_sets::{self, FAMILIES, Family};
use super::statistics::{median, quartiles};
use super::wrk::{self, Load};
use super::{GATEWAY_CPU, free_port, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX, WRK};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use stillgate_rig::Running;

const WARM_UP_SECONDS: u64 = 1;
const PAIRS_PER_START: usize = 4;

/// The most requests of `--spread`; their heads take a few hundred bytes each.
const SPREAD_MAX: usize = 2000;
/// A step through the routes that visits all of them: it is prime, and so coprime to most numbers.
const STRIDE: usize = 7_919;

struct Options {
    routes: usize,
    pairs: usize,
    seconds: u64,
    connections: u32,
    cache: String,
    spread: bool,
    binary: PathBuf,
}

/// A running gateway.
struct Subject {
    process: Running,
    address: SocketAddr,
}

/// CPU µs per request, of the gateway with one route and of the one with all.
struct Pair {
    one_us: f64,
    all_us: f64,
}

pub(super) fn run(mut args: Args) -> Result {
    let only: Option<String> = args.value("--family")?;
    let json: Option<String> = args.value("--json")?;
    let routes = args.value("--routes")?.unwrap_or(10_000).max(1);
    let pairs = args.value("--rounds")?.unwrap_or(12).max(1);
    let seconds = args.value("--seconds")?.unwrap_or(3);
    let connections = args.value("--connections")?.unwrap_or(64);
    let cache: String = args.value("--cache")?.unwrap_or_else(|| "auto".to_owned());
    let spread = args.flag("--spread");
    let binary = super::binary(&mut args)?;
    args.finish()?;
    let chosen: Vec<&Family> =
        FAMILIES.iter().filter(|family| only.as_ref().is_none_or(|only| family.name == only)).collect();
    if chosen.is_empty() {
        return Err(format!("--family {}: paths, hosts, headers, mixed or uri", only.unwrap_or_default()).into());
    }
    packages::ensure(&[NGINX, WRK])?;
    let options = Options { routes, pairs, seconds, connections, cache, spread, binary: binary.path()? };
    let dir = tempfile::tempdir()?;
    let (_upstream, upstream) = peers::start_upstream(dir.path())?;
    println!(
        "{pairs} pairs of rounds of {seconds} s a family, {connections} connections, route cache: {}\n",
        options.cache
    );
    println!(
        "{:8} {:>8} {:>9} {:>9} {:>7} {:>15} {:>15}  cache used",
        "family", "requests", "1 route", routes, "ratio", "quartiles", "range"
    );
    let results = chosen.into_iter().map(|family| measure(family, &options, dir.path(), upstream));
    let results = results.collect::<Result<Vec<_>>>()?;
    println!("\n(CPU µs a request, medians; a ratio is the median of the pairs' ratios)");
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("written to {path}");
    }
    Ok(())
}

/// Measures one family and prints its line.
fn measure(family: &Family, options: &Options, dir: &Path, upstream: SocketAddr) -> Result<Value> {
    let asked = asked(family, options);
    let heads: Vec<String> = asked.iter().map(|&n| family.head(n)).collect();
    let script = dir.join("heads.lua");
    fs::write(&script, route_sets::script(&heads))?;
    let load =
        Load { path: "/", headers: Vec::new(), script: Some(script), connections: options.connections, tls: None };
    let one = match asked[..] {
        [n] => family.route(n),
        _ => route_sets::entry(0, family.any),
    };
    let all = (0..options.routes).map(|n| family.route(n)).collect();
    let mut pairs = Vec::new();
    let mut used = [false; 2];
    while pairs.len() < options.pairs {
        let flip = pairs.len() / PAIRS_PER_START % 2 == 1;
        let mut subjects = start_both([&one, &all], flip, options, dir, upstream)?;
        for subject in &subjects {
            wrk::run(&load, subject.address, WARM_UP_SECONDS).map_err(|error| format!("{}: {error}", family.name))?;
        }
        for (used, subject) in used.iter_mut().zip(&subjects) {
            *used = uses_cache(&subject.process.log());
        }
        for _ in 0..PAIRS_PER_START.min(options.pairs - pairs.len()) {
            pairs.push(pair(&mut subjects, pairs.len() % 2 == 1, &load, options.seconds)?);
        }
    }
    Ok(report(family, options, &pairs, heads.len(), used))
}

/// The routes that requests are for.
fn asked(family: &Family, options: &Options) -> Vec<usize> {
    let routes = options.routes;
    if options.spread {
        return (0..routes.min(SPREAD_MAX)).map(|n| n * STRIDE % routes).collect();
    }
    let count = family.kinds.min(routes);
    let first = (routes / 2).min(routes - count);
    (first..first + count).collect()
}

/// Starts a gateway with each list of routes; the second one first if `flip` is set.
fn start_both(
    lists: [&String; 2],
    flip: bool,
    options: &Options,
    dir: &Path,
    upstream: SocketAddr,
) -> Result<[Subject; 2]> {
    let start = |name: &str, list: &String| -> Result<Subject> {
        let address = free_port()?;
        let extra = format!("  route_cache: {{mode: {}}}\n", options.cache);
        let mut text = peers::stillgate_head(address, None, (upstream, "http"), &extra);
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{list}");
        let config = dir.join(format!("{name}.yaml"));
        fs::write(&config, text)?;
        let words = peers::stillgate_command(&options.binary, &config);
        let mut process = start(&words, &[GATEWAY_CPU], &dir.join(format!("{name}.log")))?;
        process.wait_for(address, Running::START_TIMEOUT)?;
        Ok(Subject { process, address })
    };
    if flip {
        let all = start("all", lists[1])?;
        return Ok([start("one", lists[0])?, all]);
    }
    Ok([start("one", lists[0])?, start("all", lists[1])?])
}

/// Runs one round each; that of the gateway with all routes first if `flip` is set.
fn pair(subjects: &mut [Subject; 2], flip: bool, load: &Load, seconds: u64) -> Result<Pair> {
    let [one, all] = subjects;
    if flip {
        let all_us = sample(all, load, seconds)?;
        return Ok(Pair { one_us: sample(one, load, seconds)?, all_us });
    }
    Ok(Pair { one_us: sample(one, load, seconds)?, all_us: sample(all, load, seconds)? })
}

/// CPU µs per request of one round.
fn sample(subject: &mut Subject, load: &Load, seconds: u64) -> Result<f64> {
    let before = subject.process.threads_cpu_us("")?;
    let answered = wrk::run(load, subject.address, seconds)?;
    subject.process.alive()?;
    Ok((subject.process.threads_cpu_us("")? - before) / answered.requests as f64)
}

/// The route cache statistics in the gateway's log.
fn uses_cache(log: &str) -> bool {
    let line = log.lines().rfind(|line| line.contains("route cache"));
    line.is_some_and(|line| line.contains("\"used\":true") || line.contains("used=true"))
}

/// Prints the family's line.
fn report(family: &Family, options: &Options, pairs: &[Pair], requests: usize, used: [bool; 2]) -> Value {
    let (one_us, all_us) = (median(pairs.iter().map(|pair| pair.one_us)), median(pairs.iter().map(|pair| pair.all_us)));
    let ratios: Vec<f64> = pairs.iter().map(|pair| pair.all_us / pair.one_us).collect();
    let ratio = median(ratios.iter().copied());
    let (low, high) = quartiles(&ratios);
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let said = |used: bool| if used { "yes" } else { "no" };
    println!(
        "{:8} {requests:>8} {one_us:9.2} {all_us:9.2} {ratio:7.3} {:>15} {:>15}  {}, {}",
        family.name,
        format!("{low:.3} to {high:.3}"),
        format!("{least:.3} to {most:.3}"),
        said(used[0]),
        said(used[1]),
    );
    json!({
        "family": family.name, "routes": options.routes, "requests": requests, "cache": options.cache,
        "cache_used": used, "one_us": one_us, "all_us": all_us, "ratio": ratio, "ratios": ratios,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_log_says_of_the_cache() {
        let text = |used: bool| format!("{{\"message\":\"x\"}}\n{{\"message\":\"route cache\",\"used\":{used}}}\n");
        assert!(uses_cache(&text(true)));
        assert!(!uses_cache(&text(false)));
        assert!(!uses_cache(""));
    }
}
