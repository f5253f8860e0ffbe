//! `cargo xtask bench explosion`: a label with a million values, compared with the same requests without that label.
//!
//! It reproduces the accident of the second reference text. Every run has a new gateway, because a series is new only once; runs
//! with and without the label alternate in ABBA order. Requirements: memory within the budget, the sums over the other labels
//! exact, the label named by `/v1/metrics/cardinality`, and hardly less throughput. As the load may limit the throughput, the
//! gateway's CPU time per request is shown next to it.

use super::closed_loop::ClosedLoop;
use super::exposition::{fetch, sums};
use super::statistics::median;
use super::{GATEWAY_CPU, OTHER_CPU, free_port, peers, start};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, CURL, NGINX};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use stillgate_rig::{Running, cpus};

/// The last one takes the requests that the others do not; requests go to all in turn.
const ROUTES: u64 = 4;
const CONNECTIONS: usize = 32;

/// How far memory may exceed the budget.
const BUDGET_SLACK: f64 = 1.05;
const KIB: u64 = 1024;

const FAMILY: &str = "stillgate_http_requests_total";
const LABEL: &str = "uri";

struct Options {
    uris: u64,
    rounds: u64,
    memory: String,
    memory_kib: u64,
    series_per_family: u64,
}

/// The environment of a run.
struct BenchContext {
    binary: PathBuf,
    dir: tempfile::TempDir,
    upstream: SocketAddr,
}

/// The result of one run.
struct Sample {
    per_second: f64,
    cpu_us: f64,
    /// Resident memory before the load; its peak, scrapes included; and at the end.
    rss_kib: [u64; 3],
    /// Number of lines of the family.
    series: u64,
    scraped_bytes: usize,
    /// The violated requirements.
    faults: Vec<String>,
    cardinality: Value,
}

pub(super) fn run(mut args: Args) -> Result {
    let memory: String = args.value("--memory")?.unwrap_or_else(|| "256MiB".to_owned());
    let options = Options {
        uris: args.value("--uris")?.unwrap_or(1_000_000),
        rounds: args.value("--rounds")?.unwrap_or(3).max(1),
        memory_kib: kib(&memory)?,
        memory,
        series_per_family: args.value("--series-per-family")?.unwrap_or(100_000),
    };
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX, CURL])?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_upstream, upstream) = peers::start_upstream(dir.path())?;
    let place = BenchContext { binary, dir, upstream };
    cpus::pin(&[OTHER_CPU])?;
    println!(
        "{} distinct URIs, closed loop on {CONNECTIONS} connections; budgets: {}, {} series a family\n",
        options.uris, options.memory, options.series_per_family
    );
    println!(
        "{:14} {:>11} {:>8} {:>28} {:>9} {:>12}",
        "label", "requests/s", "CPU µs", "MiB before, peak, after", "series", "scrape bytes"
    );
    let mut pairs = Vec::new();
    for round in 0..options.rounds {
        let mut pair = [None, None];
        for labelled in if round % 2 == 0 { [false, true] } else { [true, false] } {
            let sample = one_run(&place, &options, labelled)?;
            sample.print(labelled);
            pair[usize::from(labelled)] = Some(sample);
        }
        if let [Some(without), Some(with)] = pair {
            pairs.push((without, with));
        }
    }
    let (result, faults) = report(&pairs, &options);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&result)?)?;
        println!("\nwritten to {path}");
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Runs a gateway from start to end.
fn one_run(place: &BenchContext, options: &Options, labelled: bool) -> Result<Sample> {
    let (address, admin, metrics) = (free_port()?, free_port()?, free_port()?);
    let config = place.dir.path().join("stillgate.yaml");
    fs::write(&config, configuration(options, labelled, address, admin, metrics, place.upstream))?;
    let words = peers::stillgate_command(&place.binary, &config);
    let mut gateway = start(&words, &[GATEWAY_CPU], &place.dir.path().join("log"))?;
    gateway.wait_for(address, Running::START_TIMEOUT)?;
    // Allocations of the first scrape exist in every process.
    fetch(metrics, "/metrics")?;
    let before = gateway.memory()?;
    let cpu_before = gateway.cpu_time()?;
    let load = ClosedLoop { address, connections: CONNECTIONS, depth: 1, count: options.uris, request: &request };
    let took = load.run()?;
    gateway.alive()?;
    let cpu = gateway.cpu_time()?;
    let exposition = fetch(metrics, "/metrics")?;
    let after = gateway.memory()?;
    let counted = sums(&exposition, FAMILY, LABEL)?;
    let cardinality: Value = serde_json::from_str(&fetch(admin, "/v1/metrics/cardinality")?)?;
    let mut faults = wrong_sums(&counted.by_labels, options.uris);
    if labelled {
        faults.extend(wrong_cardinality(&cardinality));
    }
    Ok(Sample {
        per_second: options.uris as f64 / took.as_secs_f64(),
        cpu_us: cpu.since(cpu_before).us() / options.uris as f64,
        rss_kib: [before.rss_kib, gateway.peak_rss_kib()?, after.rss_kib],
        series: counted.series,
        scraped_bytes: exposition.len(),
        faults,
        cardinality,
    })
}

fn configuration(
    options: &Options,
    labelled: bool,
    address: SocketAddr,
    admin: SocketAddr,
    metrics: SocketAddr,
    upstream: SocketAddr,
) -> String {
    let mut extra = format!(
        "  metrics:\n    address: \"{metrics}\"\n    memory: {}\n    series_per_family: {}\n",
        options.memory, options.series_per_family
    );
    if labelled {
        extra.push_str(&format!("    labels:\n      http_requests_total: {{{LABEL}: $request_uri}}\n"));
    }
    peers::stillgate_config(address, Some(admin), upstream, ROUTES as usize, &extra)
}

fn request(number: u64, out: &mut Vec<u8>) {
    // Writing to a `Vec` cannot fail. No other route has the last one's prefix, so the catch-all route takes it.
    let route = number % ROUTES;
    let _ =
        write!(out, "GET /service-{route}/v1/item/{number:08}?from=explosion HTTP/1.1\r\nHost: load.example\r\n\r\n");
}

/// The route that takes this [`request`].
fn route(number: u64) -> String {
    if number == ROUTES - 1 { "all".to_owned() } else { format!("r{number}") }
}

/// Every route must have received exactly its share of the requests, all answered with 200.
fn wrong_sums(by_labels: &BTreeMap<String, f64>, uris: u64) -> Vec<String> {
    let mut faults = Vec::new();
    for number in 0..ROUTES {
        let expected = uris / ROUTES + u64::from(number < uris % ROUTES);
        let mark = format!("route=\"{}\"", route(number));
        let of_route = by_labels.iter().filter(|(labels, _)| labels.split(',').any(|label| label == mark));
        let good: f64 = of_route.filter(|(labels, _)| labels.contains("code=\"200\"")).map(|(_, sum)| sum).sum();
        if good != expected as f64 {
            faults.push(format!("{mark}: {good} counted with code 200, {expected} sent"));
        }
    }
    let total: f64 = by_labels.values().sum();
    if total != uris as f64 {
        faults.push(format!("{total} counted in all, {uris} sent; label sets: {:?}", by_labels.keys()));
    }
    faults
}

/// The admin API must name the label that exploded.
fn wrong_cardinality(cardinality: &Value) -> Option<String> {
    let named = |list: &Value, name: &str| list.as_array()?.iter().find(|element| element["name"] == name).cloned();
    let family = named(&cardinality["families"], FAMILY);
    let label = family.as_ref().and_then(|family| named(&family["labels"], LABEL));
    match label {
        Some(label) if label["collapsed"] == true => None,
        Some(label) => Some(format!("/v1/metrics/cardinality: {LABEL} has not collapsed: {label}")),
        None => Some(format!("/v1/metrics/cardinality does not name {FAMILY}, {LABEL}: {cardinality}")),
    }
}

impl Sample {
    fn print(&self, labelled: bool) {
        let [before, peak, after] = self.rss_kib.map(|kib| kib as f64 / KIB as f64);
        let memory = format!("{before:.1}, {peak:.1}, {after:.1}");
        println!(
            "{:14} {:11.0} {:8.2} {memory:>28} {:9} {:12}",
            if labelled { "$request_uri" } else { "none" },
            self.per_second,
            self.cpu_us,
            self.series,
            self.scraped_bytes
        );
    }

    /// The growth of memory under the load, scrapes included.
    fn growth_kib(&self) -> u64 {
        self.rss_kib[1].saturating_sub(self.rss_kib[0])
    }

    fn json(&self) -> Value {
        json!({
            "requests_per_second": self.per_second, "cpu_us": self.cpu_us, "rss_before_peak_after_kib": self.rss_kib,
            "series": self.series, "scraped_bytes": self.scraped_bytes, "faults": self.faults,
            "cardinality": self.cardinality,
        })
    }
}

/// Prints the verdicts; returns the violations of all runs.
fn report(pairs: &[(Sample, Sample)], options: &Options) -> (Value, Vec<String>) {
    let ratio_of = |of: fn(&Sample) -> f64| median(pairs.iter().map(|(without, with)| of(with) / of(without)));
    let throughput = ratio_of(|sample| sample.per_second);
    let cpu = ratio_of(|sample| sample.cpu_us);
    let growth = pairs.iter().map(|(_, with)| with.growth_kib()).max().unwrap_or_default();
    let baseline = pairs.iter().map(|(without, _)| without.growth_kib()).max().unwrap_or_default();
    let mut faults: Vec<String> =
        pairs.iter().flat_map(|(without, with)| without.faults.iter().chain(&with.faults)).cloned().collect();
    if growth as f64 > options.memory_kib as f64 * BUDGET_SLACK {
        faults.push(format!("grew by {growth} KiB, the budget is {} KiB", options.memory_kib));
    }
    println!(
        "\nwith the label: throughput {throughput:.3} and CPU a request {cpu:.3} times those without (medians of pairs)"
    );
    println!(
        "the process grew by at most {:.1} MiB (by {:.1} without the label); the budget is {:.1} MiB",
        growth as f64 / KIB as f64,
        baseline as f64 / KIB as f64,
        options.memory_kib as f64 / KIB as f64
    );
    println!("sums and cardinality: {}", if faults.is_empty() { "as sent" } else { "WRONG" });
    let result = json!({
        "throughput_ratio": throughput, "cpu_ratio": cpu, "growth_kib": growth, "baseline_growth_kib": baseline,
        "budget_kib": options.memory_kib, "faults": faults,
        "runs": pairs.iter().map(|(without, with)| json!({ "without": without.json(), "with": with.json() })).collect::<Vec<_>>(),
    });
    (result, faults)
}

/// A size in the notation of the configuration, in KiB.
fn kib(size: &str) -> Result<u64> {
    let units = [("GiB", KIB * KIB), ("MiB", KIB), ("KiB", 1)];
    let found = units.iter().find_map(|(unit, kib)| Some((size.strip_suffix(unit)?, kib)));
    let (number, unit) = found.ok_or_else(|| format!("--memory {size}: a number with KiB, MiB or GiB"))?;
    Ok(number.parse::<u64>()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(sums: [f64; 4]) -> BTreeMap<String, f64> {
        let labels = |number| format!("route=\"{}\",service=\"\",code=\"200\"", route(number));
        (0..ROUTES).map(labels).zip(sums).collect()
    }

    #[test]
    fn one_request_too_few_is_found() {
        assert_eq!(wrong_sums(&counted([3.0, 3.0, 2.0, 2.0]), 10), Vec::<String>::new());
        assert_eq!(wrong_sums(&counted([3.0, 2.0, 2.0, 2.0]), 10).len(), 2);
        assert_eq!(wrong_sums(&counted([3.0, 3.0, 3.0, 1.0]), 10).len(), 2);
    }

    #[test]
    fn the_label_must_be_named() {
        let answer = |collapsed: bool| json!({"families": [{"name": FAMILY, "labels": [{"name": LABEL, "collapsed": collapsed}]}]});
        assert_eq!(wrong_cardinality(&answer(true)), None);
        assert!(wrong_cardinality(&answer(false)).is_some());
        assert!(wrong_cardinality(&json!({"families": []})).is_some());
    }

    #[test]
    fn sizes() {
        assert_eq!(kib("256MiB").unwrap(), 256 * 1024);
        assert!(kib("256").is_err());
    }
}
