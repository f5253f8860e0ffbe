//! `cargo xtask bench tail`: the slowest requests while a scraper comes every second, against the same without a scraper.
//!
//! The experiment of the first reference text. Load is open-loop at a constant rate; blocks with and without scrapes
//! alternate in ABBA order, those of all subjects interleaved. The hard case is the default: one worker, and the whole
//! gateway on one CPU, so that encoding competes with serving; `--free` gives it both. The load, the upstream and the
//! scraper share the other CPU; the first two go before all else there, so what taking the bytes costs is not the gateway's
//! doing. nginx whose `stub_status` is scraped alike shows what the machine itself does to such a measurement.
//!
//! The series come from a label with the value of a query argument. The load then touches a part of them, spread over all,
//! so that between two scrapes something has changed nearly everywhere; `--clustered` takes neighbours instead.

use super::closed_loop::ClosedLoop;
use super::open_loop::{self, Load};
use super::process::{Running, free_port, stolen_ticks};
use super::schedule::Policy;
use super::scraper::{Scraper, Scrapes, fetch, sums};
use super::statistics::{median, percentile};
use super::{GATEWAY_CPU, OTHER_CPU, peers, schedule};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, CURL, NGINX};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Enough for a million series with all that belongs to them.
const MEMORY: &str = "1GiB";

/// Before each block, unmeasured: connections are opened, and another subject's block has cooled the caches.
const LEAD_IN: Duration = Duration::from_millis(500);

/// The series are made by pipelined requests, the quickest way there is.
const WARM_UP_CONNECTIONS: usize = 8;
const WARM_UP_DEPTH: u64 = 16;

/// Where the generator woke up later than this for one in a thousand requests, the machine was not ours.
const LATE_US_MAX: u32 = 200;

/// A step through the touched series that visits all of them: prime, and so coprime to their number.
const STRIDE: u64 = 2_147_483_647;

const FAMILY: &str = "stillgate_http_requests_total";

struct Options {
    series: Vec<u64>,
    block: Duration,
    pairs: u64,
    rate: f64,
    connections: u32,
    gzip: bool,
    touched_percent: f64,
    clustered: bool,
    free: bool,
}

/// A gateway under measure.
struct Subject {
    name: String,
    /// None for a peer that does not count requests.
    series: Option<u64>,
    process: Running,
    load: Load,
    scraper: Scraper,
    blocks: Vec<Block>,
    sent: u64,
    failures: Vec<String>,
}

/// What one block gave.
struct Block {
    scraped: bool,
    sorted_us: Vec<u32>,
    late_sorted_us: Vec<u32>,
    cpu_us: f64,
    /// By the host, of both CPUs.
    stolen_ms: f64,
    scrapes: Scrapes,
}

/// One line of the table.
struct Measure {
    name: &'static str,
    of: fn(&Block) -> f64,
}

const MEASURES: &[Measure] = &[
    Measure { name: "p50", of: |block| f64::from(percentile(&block.sorted_us, 0.5)) },
    Measure { name: "p99", of: |block| f64::from(percentile(&block.sorted_us, 0.99)) },
    Measure { name: "p99.9", of: |block| f64::from(percentile(&block.sorted_us, 0.999)) },
    Measure { name: "p99.99", of: |block| f64::from(percentile(&block.sorted_us, 0.9999)) },
    Measure { name: MAXIMUM, of: |block| f64::from(percentile(&block.sorted_us, 1.0)) },
    Measure { name: "load late p99.9", of: |block| f64::from(percentile(&block.late_sorted_us, 0.999)) },
    Measure { name: "load late max", of: |block| f64::from(percentile(&block.late_sorted_us, 1.0)) },
    Measure { name: "CPU a request", of: |block| block.cpu_us },
];
const MAXIMUM: &str = "max";

pub(super) fn run(mut args: Args) -> Result {
    let seconds: u64 = args.value("--seconds")?.unwrap_or(60);
    let pairs: u64 = args.value("--blocks")?.unwrap_or(6).max(1);
    let series: String = args.value("--series")?.unwrap_or_else(|| "100000,1000000".to_owned());
    let options = Options {
        series: series.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?,
        block: Duration::from_secs(seconds) / u32::try_from(pairs)?,
        pairs,
        rate: args.value("--rate")?.unwrap_or(10_000.0),
        connections: args.value("--connections")?.unwrap_or(32),
        gzip: !args.flag("--plain"),
        touched_percent: args.value("--touched")?.unwrap_or(1.0),
        clustered: args.flag("--clustered"),
        free: args.flag("--free"),
    };
    let json: Option<String> = args.value("--json")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX, CURL])?;
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (upstream_process, upstream) = peers::start_upstream(dir.path())?;
    let mut subjects = vec![start_nginx(dir.path(), upstream, &options)?];
    for &series in &options.series {
        subjects.push(start_stillgate(&binary, dir.path(), upstream, series, &options)?);
    }
    schedule::pin(OTHER_CPU)?;
    introduce(&options);
    for subject in &mut subjects {
        subject.make_series()?;
    }
    // Only now: at full speed they would starve whatever else runs on that CPU.
    schedule::put_first(&upstream_process.tree()?);
    for pair in 0..options.pairs {
        for subject in &mut subjects {
            for scraped in if pair % 2 == 0 { [false, true] } else { [true, false] } {
                subject.run_block(scraped, options.block)?;
            }
        }
    }
    schedule::set_own(Policy::Normal)?;
    let results = subjects.iter_mut().map(Subject::report).collect::<Result<Vec<_>>>()?;
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("\nwritten to {path}");
    }
    let failures: Vec<_> = subjects.iter().flat_map(|subject| &subject.failures).map(String::as_str).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn introduce(options: &Options) {
    println!(
        "{} requests/s open loop on {} connections, {} pairs of blocks of {:.0} s a subject, a {} scrape a second in every second block",
        options.rate,
        options.connections,
        options.pairs,
        options.block.as_secs_f64(),
        if options.gzip { "gzip" } else { "plain" }
    );
    println!(
        "{}% of the series touched, {}; each gateway on {}\n",
        options.touched_percent,
        if options.clustered { "neighbours" } else { "spread over all" },
        if options.free { "both CPUs" } else { "one CPU" }
    );
}

fn start_nginx(dir: &Path, upstream: SocketAddr, options: &Options) -> Result<Subject> {
    let address = free_port()?;
    let servers = peers::nginx_proxy(address, upstream, "location = /metrics { stub_status; }");
    let words = peers::nginx(dir, "nginx", &servers)?;
    start("nginx, stub_status".to_owned(), &words, dir, (address, address), None, options)
}

fn start_stillgate(binary: &Path, dir: &Path, upstream: SocketAddr, series: u64, options: &Options) -> Result<Subject> {
    let (address, metrics) = (free_port()?, free_port()?);
    // Twice the room: a family near its budget collapses, which is not this experiment.
    let extra = format!(
        "  metrics:\n    address: \"{metrics}\"\n    memory: {MEMORY}\n    series_per_family: {}\n    labels:\n      \
         http_requests_total: {{id: $arg_id}}\n",
        2 * series
    );
    let config = dir.join(format!("stillgate-{series}.yaml"));
    fs::write(&config, peers::stillgate_config(address, None, upstream, 1, &extra))?;
    let words = peers::stillgate_command(binary, &config);
    start(format!("stillgate, {series} series"), &words, dir, (address, metrics), Some(series), options)
}

fn start(
    name: String,
    words: &[String],
    dir: &Path,
    (address, metrics): (SocketAddr, SocketAddr),
    series: Option<u64>,
    options: &Options,
) -> Result<Subject> {
    let cpu = if options.free { None } else { Some(GATEWAY_CPU) };
    let mut process = Running::spawn(words, cpu, &dir.join(format!("{}.log", address.port())))?;
    process.wait_for(address)?;
    let load = Load {
        address,
        rate: options.rate,
        connections: options.connections,
        paths: touched_paths(series.unwrap_or(1), options),
        lead_in: LEAD_IN,
    };
    let scraper = Scraper { address: metrics, gzip: options.gzip };
    Ok(Subject { name, series, process, load, scraper, blocks: Vec::new(), sent: 0, failures: Vec::new() })
}

/// The requests of the load, each for one of the touched series.
fn touched_paths(series: u64, options: &Options) -> Vec<String> {
    let touched = ((series as f64 * options.touched_percent / 100.0) as u64).clamp(1, series);
    let distance = if options.clustered { 1 } else { series / touched };
    (0..touched).map(|number| path(number * STRIDE % touched * distance)).collect()
}

fn path(id: u64) -> String {
    format!("/?id={id:08}")
}

impl Block {
    fn is_late(&self) -> bool {
        percentile(&self.late_sorted_us, 0.999) > LATE_US_MAX
    }
}

impl Subject {
    /// One request for each series, and a look whether all are there.
    fn make_series(&mut self) -> Result {
        let Some(series) = self.series else { return Ok(()) };
        let request = |number: u64, out: &mut Vec<u8>| {
            // A `Vec` takes every write.
            let _ = write!(out, "GET {} HTTP/1.1\r\nHost: load.example\r\n\r\n", path(number));
        };
        let load = ClosedLoop {
            address: self.load.address,
            connections: WARM_UP_CONNECTIONS,
            depth: WARM_UP_DEPTH,
            count: series,
            request: &request,
        };
        let took = load.run().map_err(|error| format!("{}: {error}", self.name))?;
        self.sent += series;
        self.process.check_alive()?;
        let shown = sums(&fetch(self.scraper.address, "/metrics")?, FAMILY, "id")?;
        if shown.series < series {
            return Err(format!("{}: only {} series of {FAMILY} are shown", self.name, shown.series).into());
        }
        println!(
            "{}: made in {:.1} s; {} MiB resident",
            self.name,
            took.as_secs_f64(),
            self.process.memory()?.rss_kib / 1024
        );
        Ok(())
    }

    fn run_block(&mut self, scraped: bool, duration: Duration) -> Result {
        let (before, stolen) = (self.process.cpu_time()?, stolen_ticks()?);
        let over = AtomicBool::new(false);
        let (load, scraper) = (&self.load, self.scraper);
        let (outcome, scrapes) = thread::scope(|scope| -> Result<_> {
            let scraping = scraped.then(|| scope.spawn(|| scraper.run(&over)));
            let outcome = open_loop::run(load, duration);
            over.store(true, Ordering::Relaxed);
            let scrapes = match scraping {
                None => Scrapes::default(),
                Some(scraping) => {
                    scraping.thread().unpark();
                    scraping.join().map_err(|_| "the scraper panicked")??
                }
            };
            Ok((outcome?, scrapes))
        })
        .map_err(|error| format!("{}: {error}", self.name))?;
        self.process.check_alive()?;
        let after = self.process.cpu_time()?;
        let ticks = after.user_ticks + after.system_ticks - before.user_ticks - before.system_ticks;
        let tick_ms = 1e3 / rustix::param::clock_ticks_per_second() as f64;
        let cpu_us = ticks as f64 * tick_ms * 1e3 / outcome.sent as f64;
        let stolen_ms = (stolen_ticks()? - stolen) as f64 * tick_ms;
        self.sent += outcome.sent;
        if outcome.failed > 0 {
            let name = &self.name;
            self.failures.push(format!("{name}: {} failed: {}", outcome.failed, outcome.failures.join("; ")));
        }
        let (mut sorted_us, mut late_sorted_us) = (outcome.latencies_us, outcome.late_us);
        sorted_us.sort_unstable();
        late_sorted_us.sort_unstable();
        self.blocks.push(Block { scraped, sorted_us, late_sorted_us, cpu_us, stolen_ms, scrapes });
        Ok(())
    }

    fn of(&self, measure: &Measure, scraped: bool) -> Vec<f64> {
        self.blocks.iter().filter(|block| block.scraped == scraped).map(measure.of).collect()
    }

    /// Prints this subject's table and what else there is to say.
    fn report(&mut self) -> Result<Value> {
        println!("\n{:34} {:>10} {:>10} {:>8}   ratio of each pair", self.name, "quiet µs", "scraped µs", "ratio");
        let mut rows = Vec::new();
        for measure in MEASURES {
            let (quiet, scraped) = (self.of(measure, false), self.of(measure, true));
            let ratios: Vec<f64> = scraped.iter().zip(&quiet).map(|(scraped, quiet)| scraped / quiet).collect();
            let marked = ratios.iter().zip(self.void_pairs());
            let each: Vec<String> =
                marked.map(|(ratio, void)| format!("{ratio:.2}{}", if void { "!" } else { "" })).collect();
            let ratio = median(ratios.iter().copied());
            let (quiet_us, scraped_us) = (median(quiet.iter().copied()), median(scraped.iter().copied()));
            println!("  {:32} {quiet_us:10.1} {scraped_us:10.1} {ratio:8.3}   {}", measure.name, each.join(" "));
            rows.push(json!({ "measure": measure.name, "quiet_us": quiet, "scraped_us": scraped, "ratio": ratio }));
        }
        self.report_maxima();
        let late = self.report_void();
        let scrapes = || self.blocks.iter().map(|block| &block.scrapes);
        let mut took: Vec<u32> = scrapes().flat_map(|scrapes| &scrapes.took_us).copied().collect();
        took.sort_unstable();
        let bytes = median(scrapes().flat_map(|scrapes| &scrapes.bytes).map(|&bytes| bytes as f64));
        let (median_ms, max_ms) = (percentile(&took, 0.5) as f64 / 1e3, percentile(&took, 1.0) as f64 / 1e3);
        println!("  {} scrapes of {bytes:.0} bytes: median {median_ms:.1} ms, longest {max_ms:.1} ms", took.len());
        let counted = self.report_total()?;
        Ok(json!({
            "subject": self.name, "series": self.series, "rows": rows, "late_blocks": late, "requests": self.sent, "counted": counted,
            "scrapes": took.len(), "scrape_bytes": bytes, "scrape_median_ms": median_ms, "scrape_max_ms": max_ms,
            "rss_kib": self.process.memory()?.rss_kib, "failures": self.failures,
        }))
    }

    /// Of each pair, whether the load was late in one of its blocks: then it says little.
    fn void_pairs(&self) -> impl Iterator<Item = bool> {
        self.blocks.chunks(2).map(|pair| pair.iter().any(Block::is_late))
    }

    /// Says what speaks against the figures; how many blocks it concerns.
    fn report_void(&self) -> usize {
        let late = self.blocks.iter().filter(|block| block.is_late()).count();
        if late > 0 {
            let all = self.blocks.len();
            println!("  in {late} of {all} blocks the load itself was late (pairs marked !): the machine was busy");
        }
        let stolen = |scraped| self.blocks.iter().filter(move |block| block.scraped == scraped).map(|b| b.stolen_ms);
        let (quiet, scraped): (f64, f64) = (stolen(false).sum(), stolen(true).sum());
        println!("  the host took {quiet:.0} ms of CPU time from quiet blocks, {scraped:.0} ms from scraped ones");
        late
    }

    /// The maxima of both kinds of block, which is more than their medians say.
    fn report_maxima(&self) {
        let Some(measure) = MEASURES.iter().find(|measure| measure.name == MAXIMUM) else { return };
        let sorted = |scraped| {
            let mut maxima = self.of(measure, scraped);
            maxima.sort_by(f64::total_cmp);
            maxima
        };
        let (quiet, scraped) = (sorted(false), sorted(true));
        let largest = quiet.last().copied().unwrap_or_default();
        let above = scraped.iter().filter(|&&maximum| maximum > largest).count();
        let list = |maxima: &[f64]| maxima.iter().map(|maximum| format!("{maximum:.0}")).collect::<Vec<_>>().join(" ");
        println!("  maxima of quiet blocks: {}; of scraped ones: {}", list(&quiet), list(&scraped));
        println!("  {above} of {} scraped maxima are above all quiet ones", scraped.len());
    }

    /// What the gateway counted beside what it was sent; every one, or something is wrong.
    fn report_total(&mut self) -> Result<Option<f64>> {
        if self.series.is_none() {
            return Ok(None);
        }
        let total = sums(&fetch(self.scraper.address, "/metrics")?, FAMILY, "id")?.total;
        let said = format!("{} requests sent, {total} counted", self.sent);
        println!("  {said}");
        // A request that failed may have been counted or not.
        if self.failures.is_empty() && total != self.sent as f64 {
            self.failures.push(format!("{}: {said}", self.name));
        }
        Ok(Some(total))
    }
}
