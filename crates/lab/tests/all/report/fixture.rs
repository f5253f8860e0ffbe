//! Made-up result files whose latencies come from a small model of a server, so that a report of them looks like a real
//! one.
//!
//! They are written as JSON, not through the laboratory's own types: a second reading of the layout. Analyses are
//! simple, since a report recomputes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// The interval of a point of a time series.
const POINT_S: f64 = 0.1;

/// Latency of an idle server, in microseconds.
const MEDIAN_US: f64 = 240.0;
const SIGMA: f64 = 0.38;

/// How late the generator is.
const LATENESS_NS: [u64; 4] = [900, 1_200, 4_000, 30_000];

/// A sweep of the tail experiment.
pub(crate) struct Sweep {
    /// Names, and how long a scrape of a thousand series stops them, in microseconds.
    pub(crate) targets: Vec<(String, f64)>,
    pub(crate) series: Vec<u64>,
    pub(crate) every_s: Vec<f64>,
    pub(crate) pairs: usize,
    pub(crate) rate: f64,
    pub(crate) block_s: f64,
}

/// The reference's experiment: one target, 100,000 series, scraped every 5 seconds.
fn reference() -> Sweep {
    Sweep {
        targets: vec![("nginx-lua".to_owned(), 9_300.0)],
        series: vec![100_000],
        every_s: vec![5.0],
        pairs: 8,
        rate: 2_000.0,
        block_s: 5.0,
    }
}

/// Three targets, four sizes, two intervals: 24 cells.
pub(crate) fn sweep() -> Sweep {
    Sweep {
        targets: vec![("stillgate".to_owned(), 0.4), ("nginx-lua".to_owned(), 9_300.0), ("haproxy".to_owned(), 900.0)],
        series: vec![1_000, 10_000, 100_000, 1_000_000],
        every_s: vec![5.0, 1.0],
        pairs: 8,
        rate: 1_000.0,
        block_s: 5.0,
    }
}

/// One target, two sizes, two intervals: 4 cells.
pub(crate) fn small_sweep() -> Sweep {
    Sweep { targets: vec![("nginx-lua".to_owned(), 9_300.0)], series: vec![1_000, 100_000], ..sweep() }
}

/// Its result; made once.
pub(crate) fn reference_tail() -> Value {
    static MADE: LazyLock<Value> = LazyLock::new(|| tail(&reference()));
    MADE.clone()
}

/// A tail result.
pub(crate) fn tail(sweep: &Sweep) -> Value {
    let mut random = Random(7);
    let (mut cells, mut analyses) = (Vec::new(), Vec::new());
    for every_s in &sweep.every_s {
        for (name, stop_us) in &sweep.targets {
            for series in &sweep.series {
                let stop_s = (stop_us * 1e-6 * *series as f64 / 1e3).min(every_s * 0.45);
                let (cell, analysis) = cell(sweep, (name, *series, *every_s), stop_s, &mut random);
                cells.push(cell);
                analyses.push(analysis);
            }
        }
    }
    let slower = analyses.iter().filter(|analysis| analysis["verdict"] == "slower").count();
    let sentence = if cells.len() == 1 {
        analyses[0]["sentence"].clone()
    } else {
        json!(format!(
            "Scrapes made the tail slower in {slower} of {} cells: nginx-lua by up to 411 ms at the 99.9th percentile, haproxy \
             from 100,000 series on; stillgate in none.",
            cells.len()
        ))
    };
    let design = json!({
        "rate": sweep.rate, "connections": 50, "block_s": sweep.block_s, "lead_in_s": 0.5, "pairs": sweep.pairs,
        "seed": 20_230_131, "confidence": 0.95, "power": 0.9, "margin": 0.1, "gzip": true, "touched_percent": 1.0,
        "placement": {"target_cpus": [0], "load_cpus": [1]},
    });
    let analysis = json!({"cells": analyses, "sentence": sentence});
    let arguments = json!(["tail", "stillgate", "nginx-lua", "haproxy", "--series", "1k,10k,100k,1M"]);
    file(&json!({"kind": "tail", "design": design, "cells": cells, "analysis": analysis}), &arguments)
}

fn cell(sweep: &Sweep, (name, series, every_s): (&str, u64, f64), stop_s: f64, random: &mut Random) -> (Value, Value) {
    let mut blocks = Vec::new();
    let mut seen: Vec<[Figures; 2]> = Vec::new();
    for pair in 0..sweep.pairs {
        let with_first = random.uniform() < 0.5;
        let mut figures = [(); 2].map(|()| Figures(histogram(&[]), [0.0; 5]));
        for with in [with_first, !with_first] {
            let stops: Vec<f64> = if with { scrapes(sweep.block_s, every_s) } else { Vec::new() };
            let stop_s = stop_s * (1.0 + 0.12 * random.normal()).clamp(0.5, 1.5);
            let run = simulate(sweep.rate, sweep.block_s, &stops, stop_s, random);
            let cpu = 21.0 + random.normal() * 0.3 + stops.len() as f64 * stop_s * 1e6 / (sweep.rate * sweep.block_s);
            figures[usize::from(with)] = run.figures(cpu);
            let scrapes: Vec<Value> = stops
                .iter()
                .map(|at_s| json!({"at_s": at_s, "took_s": stop_s * 1.1 + 0.002, "bytes": series * 9, "error": null}))
                .collect();
            blocks.push(json!({
                "pair": pair, "arm": if with { "with" } else { "without" }, "run": run.record(Some(sweep.rate)),
                "scrapes": scrapes, "cpu_us_per_request": cpu, "stolen_ms": 0.0, "points": run.points,
            }));
        }
        seen.push(figures);
    }
    let effects: Vec<Value> = MEASURES.iter().enumerate().map(|(at, measure)| effect(measure, at, &seen)).collect();
    let p999 = &effects[2];
    let slower = p999["low"].as_f64().unwrap() > p999["without"].as_f64().unwrap() * 0.1;
    let ms = |value: &Value| value.as_f64().unwrap() / 1e3;
    let sentence = if slower {
        format!(
            "Scraping {series} series of {name} every {every_s} s makes the 99.9th percentile slower by {:.1} ms ({:.1} to {:.1} ms).",
            ms(&p999["difference"]),
            ms(&p999["low"]),
            ms(&p999["high"])
        )
    } else {
        format!(
            "Scraping {series} series of {name} every {every_s} s shows no difference; one of {:.2} ms at the 99.9th percentile \
             would have been detected.",
            ms(&p999["minimum_detectable"])
        )
    };
    let all = |side: usize| {
        let mut all = histogram(&[]);
        seen.iter().for_each(|pair| all.add(&pair[side].0).unwrap());
        percentiles(&all)
    };
    let subject = json!({
        "name": name, "version": "1.0", "command": [name, "-c", "gateway.conf"],
        "configuration": "listen: 127.0.0.1:8080\nmetrics:\n  path: /metrics\n", "binary_sha256": "ab".repeat(32), "revision": null,
    });
    let cell = json!({
        "number": 0, "subject": subject, "series_asked": series, "series_shown": series + 23, "scrape_every_s": every_s,
        "blocks": blocks,
    });
    let verdict = if slower { "slower" } else { "no_difference" };
    let analysis = json!({
        "without": all(0), "with": all(1), "pooled": [], "effects": effects, "pairs": sweep.pairs, "void_pairs": 0,
        "verdict": verdict, "sentence": sentence,
    });
    (cell, analysis)
}

/// Times of scrapes within a block.
fn scrapes(block_s: f64, every_s: f64) -> Vec<f64> {
    let count = (block_s / every_s).round().max(1.0) as usize;
    (0..count).map(|at| every_s * (at as f64 + 0.5)).collect()
}

const MEASURES: [&str; 5] = ["p50", "p99", "p99.9", "max", "cpu"];

/// A block's latencies, and its figures in the order of [`MEASURES`].
struct Figures(Histogram<u64>, [f64; 5]);

fn effect(measure: &str, at: usize, seen: &[[Figures; 2]]) -> Value {
    let of = |side: usize| median(seen.iter().map(|pair| pair[side].1[at]).collect());
    let mut differences: Vec<f64> = seen.iter().map(|pair| pair[1].1[at] - pair[0].1[at]).collect();
    differences.sort_by(f64::total_cmp);
    let spread = differences[differences.len() - 1] - differences[0];
    let p = if differences[0] > 0.0 || differences[differences.len() - 1] < 0.0 { 0.031 } else { 0.44 };
    json!({
        "measure": measure, "unit": if measure == "cpu" { "us/request" } else { "us" }, "without": of(0), "with": of(1),
        "difference": median(differences.clone()), "low": differences[0], "high": differences[differences.len() - 1],
        "p_value": p, "p_adjusted": f64::min(1.0, p * 1.6), "minimum_detectable": spread * 0.7,
    })
}

/// A comparison in which B needs this much more CPU time, as a share.
pub(crate) fn compare(pairs: usize, slower: f64) -> Value {
    let mut random = Random(11);
    let mut made = Vec::new();
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); 6];
    for pair in 0..pairs {
        let a_first = random.uniform() < 0.5;
        let drift = 1.0 + 0.02 * (pair as f64 / 5.0).sin();
        let mut side = |cost: f64| {
            let cpu = 11.5 * cost * drift * (1.0 + 0.008 * random.normal());
            let rate = 84_000.0 / cost / drift * (1.0 + 0.01 * random.normal());
            let rated = simulate(1_000.0, 1.0, &[], 0.0, &mut random);
            let rss = 21_500.0 * (1.0 + 0.002 * random.normal());
            let figures = rated.figures(cpu).1;
            let mut closed = rated.record(None);
            closed["rate_achieved"] = json!(rate);
            let record = json!({
                "saturation": closed, "cpu_us_per_request": cpu, "rated": rated.record(Some(20_000.0)), "rss_kib": rss as u64,
            });
            (record, [rate, cpu, figures[0], figures[1], figures[2], rss])
        };
        let (a, b) = (side(1.0), side(1.0 + slower));
        for (at, ratios) in ratios.iter_mut().enumerate() {
            ratios.push(b.1[at] / a.1[at] - 1.0);
        }
        made.push(json!({"first": if a_first { "a" } else { "b" }, "a": a.0, "b": b.0}));
    }
    let units = [
        ("throughput", "requests/s", 84_000.0),
        ("cpu", "us/request", 11.5),
        ("p50", "us", 240.0),
        ("p99", "us", 590.0),
        ("p99.9", "us", 810.0),
        ("rss", "KiB", 21_500.0),
    ];
    let measures: Vec<Value> = units.iter().zip(&ratios).map(|(unit, ratios)| measure(*unit, ratios)).collect();
    let worse = slower > 0.02;
    let sentence = if worse {
        format!(
            "B is worse: it needs {:.1}% more CPU time per request, and throughput is lower to match.",
            slower * 100.0
        )
    } else {
        "No difference larger than 1.4% in throughput or CPU time; latencies could differ by up to 12% unseen."
            .to_owned()
    };
    let subject = |name: &str| {
        json!({"name": name, "version": null, "command": ["./gateway", "-c", "gateway.yaml"], "configuration": null,
            "binary_sha256": "cd".repeat(32), "revision": name})
    };
    let experiment = json!({
        "kind": "compare",
        "design": {
            "pairs": pairs, "looks": [pairs / 2, pairs], "alpha": 0.01, "power": 0.9, "margin": 0.05,
            "deciding": ["cpu", "throughput"], "warm_up_s": 0.2, "saturation_s": 0.6, "rate_s": 0.8, "rate": 20_000.0,
            "connections": 32, "seed": 5, "placement": {"target_cpus": [0], "load_cpus": [1]},
        },
        "a": subject("8f98c58"), "b": subject("7666d90"), "pairs": made, "instructions": null,
        "instructions_missing": "valgrind is not installed; apt-get install valgrind",
        "analysis": {
            "measures": measures, "void_pairs": 0, "decision": if worse { "worse" } else { "not_worse" }, "sentence": sentence,
        },
    });
    file(&experiment, &json!(["compare", "8f98c58", "7666d90", "--repo", "gateway"]))
}

fn measure((name, unit, a): (&str, &str, f64), ratios: &[f64]) -> Value {
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let deviation = (ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / ratios.len() as f64).sqrt();
    let half = 2.9 * deviation / (ratios.len() as f64).sqrt();
    let higher = name == "throughput";
    let verdict = match () {
        () if mean.abs() <= half => "no_difference",
        () if (mean > 0.0) == higher => "faster",
        () => "slower",
    };
    let p = if verdict == "no_difference" { 0.4 } else { 0.000_03 };
    json!({
        "measure": name, "unit": unit, "higher_is_better": higher, "a": a, "b": a * (1.0 + mean), "effect": mean,
        "low": mean - half, "high": mean + half, "p_value": p, "p_adjusted": f64::min(1.0, p * 6.0), "p_mann_whitney": p * 1.3,
        "minimum_detectable": half * 1.4, "verdict": verdict,
        "sentence": format!("{name}: {:+.1}% ({:+.1}% to {:+.1}%).", mean * 100.0, (mean - half) * 100.0, (mean + half) * 100.0),
    })
}

/// The number of commits of [`bisect`], the one that made it slower, and one that cannot be measured.
const COMMITS: usize = 24;
const SLOWER: usize = 15;
const BROKEN: usize = 12;

/// A bisection whose measurements have an outlier on either side of the step.
pub(crate) fn bisect() -> Value {
    let name = |place: usize| format!("{place:02x}{:038}", 0);
    let mut random = Random(23);
    let commits: Vec<Value> = (0..COMMITS)
        .map(|place| {
            let subject =
                if place == SLOWER { "Copy <b>each</b> header".to_owned() } else { format!("Change {place}") };
            json!({"commit": name(place), "subject": subject, "weight": 1.0, "is_merge": false})
        })
        .collect();
    let mut tries = vec![
        json!({"place": BROKEN, "begun_unix_s": 1.0, "seconds": 1.0, "outcome": "skipped", "why": "exit code 125"}),
    ];
    let mut is_after = false;
    for number in 0..44 {
        // In turns, but not so regularly that it looks like a period of the machine.
        let place = if number < 5 {
            [0, COMMITS - 1, SLOWER, SLOWER - 1, 18][number]
        } else if random.uniform() < 0.4 {
            [0, COMMITS - 1][(random.uniform() * 2.0) as usize]
        } else {
            is_after = !is_after;
            if is_after { SLOWER } else { SLOWER - 1 }
        };
        let outlier = if [16, 27].contains(&number) { 3.0 } else { 1.0 };
        let level = if place < SLOWER { 10.0 } else { 10.7 };
        let value = level * outlier * (1.0 + 0.01 * random.normal());
        tries.push(json!({
            "place": place, "begun_unix_s": 2.0 + number as f64, "seconds": 1.0, "outcome": "measured", "value": value, "unit": "us",
        }));
    }
    let experiment = json!({
        "kind": "bisect",
        "design": {
            "measure": "./bench.sh", "build": null, "good": name(0), "bad": "HEAD", "line": "first_parent",
            "higher_is_better": false, "confidence": 0.95, "min_effect": 0.01, "prior_none": 0.25, "prior_several": 0.1,
            "prior_paths": [],
        },
        "commits": commits, "tries": tries, "ended": "decided", "verdict": "undecided", "culprit": null, "changes": [],
        "posterior": {}, "none": 0.25, "several": 0.1, "effect": null, "noise": 0.0, "measurements": 0, "unbuildable": [],
        "sentence": "",
    });
    file(&experiment, &json!(["bisect", "--good", name(0), "--measure", "./bench.sh"]))
}

/// One run in which the server stood still for half a second.
pub(crate) fn load() -> Value {
    let run = simulate(2_000.0, 10.0, &[4.0], 0.5, &mut Random(3));
    let mut record = run.record(Some(2_000.0));
    record["errors"] = json!(12);
    record["errors_by_kind"] = json!({"timeout": 9, "reset": 3});
    record["error_examples"] =
        json!(["127.0.0.1:8080: no answer within 400 ms", "127.0.0.1:8080: connection reset by peer"]);
    let corrected = percentiles(&run.corrected);
    let uncorrected = percentiles(&histogram(&run.uncorrected_ns));
    let lateness = percentiles(&histogram(&LATENESS_NS));
    let experiment = json!({
        "duration_s": 10.0, "requests": record["requests"], "errors": record["errors"],
        "errors_by_kind": record["errors_by_kind"], "void": false, "void_reasons": [], "rate_intended": record["rate_intended"],
        "rate_achieved": record["rate_achieved"], "bytes_received": 4_120_000, "missed_starts": 0, "lateness": lateness,
        "connect": lateness, "send": lateness, "first_byte": corrected,
        "kind": "load", "url": "http://127.0.0.1:8080/", "pace": "open", "connections": 50, "threads": 1, "seed": 1, "run": record,
        "corrected": corrected, "uncorrected": uncorrected, "points": run.points,
    });
    file(&experiment, &json!(["load", "http://127.0.0.1:8080/", "--rate", "2000", "--duration", "10s"]))
}

fn file(experiment: &Value, arguments: &Value) -> Value {
    let mut file = json!({
        "schema_version": 1, "lab_version": "0.1.0", "written_at": "2026-11-21T23:15:00Z", "arguments": arguments,
        "environment": {
            "cpu_model": "AMD EPYC 9B14", "cpus": 2, "cpu_mhz": 2600.0, "governor": null, "turbo": null, "hypervisor": "KVM",
            "kernel": "Linux 6.1.0", "system": "Debian GNU/Linux 12 (bookworm)", "memory_mib": 7953, "clock_source": "kvm-clock",
            "mitigations": ["spectre_v2: Mitigation: Retpolines"], "load_average": 0.42, "commit": "7666d90+changes", "stolen_s": 0.31,
        },
    });
    file.as_object_mut().unwrap().extend(experiment.as_object().unwrap().clone());
    file
}

/// The model's answers.
struct Run {
    latencies_ns: Vec<u64>,
    /// Latencies of these.
    corrected: Histogram<u64>,
    uncorrected_ns: Vec<u64>,
    points: Vec<Value>,
    elapsed_s: f64,
}

/// Requests at a constant rate to a server that stalls for `stop_s` from each of `stops` on.
fn simulate(rate: f64, seconds: f64, stops: &[f64], stop_s: f64, random: &mut Random) -> Run {
    let count = (rate * seconds) as usize;
    let mut run = Run {
        latencies_ns: Vec::with_capacity(count),
        corrected: histogram(&[]),
        uncorrected_ns: Vec::new(),
        points: Vec::new(),
        elapsed_s: seconds,
    };
    for at in 0..count {
        let begun = at as f64 / rate;
        let own = MEDIAN_US * 1e-6 * (SIGMA * random.normal()).exp();
        let stopped = stops.iter().find(|stop| begun >= **stop && begun < **stop + stop_s);
        let wait = stopped.map_or(0.0, |stop| stop + stop_s - begun);
        run.latencies_ns.push(((own + wait) * 1e9) as u64);
        // A client that waits for its answer before the next request sees few of the stops.
        let sent_in_stop = at % 40 == 0;
        run.uncorrected_ns.push(((own + if sent_in_stop { wait } else { 0.0 }) * 1e9) as u64);
    }
    let per_point = (rate * POINT_S).max(1.0) as usize;
    run.corrected = histogram(&run.latencies_ns);
    run.points = run.latencies_ns.chunks(per_point).enumerate().map(|(at, some)| point(at, some)).collect();
    run
}

fn point(at: usize, latencies_ns: &[u64]) -> Value {
    let mut sorted = latencies_ns.to_vec();
    sorted.sort_unstable();
    let us = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    json!({
        "at_s": at as f64 * POINT_S, "length_s": POINT_S, "requests": sorted.len(), "errors": 0, "p50_us": us(0.5),
        "p99_us": us(0.99), "max_us": us(1.0),
    })
}

impl Run {
    fn figures(&self, cpu: f64) -> Figures {
        let us = |share: f64| self.corrected.value_at_quantile(share) as f64 / 1e3;
        Figures(self.corrected.clone(), [us(0.5), us(0.99), us(0.999), us(1.0), cpu])
    }

    fn record(&self, rate: Option<f64>) -> Value {
        let requests = self.latencies_ns.len();
        json!({
            "begun_unix_s": 1_795_302_900.0, "elapsed_s": self.elapsed_s, "requests": requests, "errors": 0, "errors_by_kind": {},
            "error_examples": [], "rate_intended": rate, "rate_achieved": requests as f64 / self.elapsed_s,
            "corrected": encoded(&self.corrected), "uncorrected": encoded(&histogram(&self.uncorrected_ns)),
            "lateness": encoded(&histogram(&LATENESS_NS)), "generator_cpu_cores": 0.31, "generator_cpu_wait_share": 0.002,
            "void": [],
        })
    }
}

fn percentiles(histogram: &Histogram<u64>) -> Value {
    let us = |share: f64| histogram.value_at_quantile(share) as f64 / 1e3;
    json!({"p50": us(0.5), "p90": us(0.9), "p99": us(0.99), "p99_9": us(0.999), "p99_99": us(0.9999), "max": us(1.0)})
}

fn encoded(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).unwrap();
    STANDARD.encode(bytes)
}

fn histogram(latencies_ns: &[u64]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
    latencies_ns.iter().for_each(|ns| histogram.saturating_record(*ns));
    histogram
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Xorshift: any numbers will do, but the same ones every time.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// By the method of Box and Muller.
    fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform().max(1e-12), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}
