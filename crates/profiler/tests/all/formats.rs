//! Other programs read the output: Go's pprof, a protobuf decoder, and the formats of speedscope and Chrome by their
//! schemas.

use crate::{alone, readers};
use prost::Message;
use serde_json::{Value as Json, json};
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use stillgate_profiler::cpu::{self, CpuOptions, ThreadScope};
use stillgate_profiler::output::{format, html, pprof, svg};
use stillgate_profiler::profile::Profile;
use stillgate_profiler::session::{Cancel, ProfileSession};
use stillgate_profiler::threads::Registration;
use stillgate_testkit::PATIENCE;

/// CPU time of each thread: some hundred samples, however long it takes on a busy machine.
const WORK: Duration = Duration::from_millis(600);

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A real profile, of two threads.
fn profile() -> &'static Profile {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    PROFILE.get_or_init(|| {
        let _alone = alone();
        let (is_over, working) = (AtomicBool::new(false), AtomicUsize::new(2));
        let cancel = Cancel::default();
        let busy = |number: u32| {
            let (is_over, working, cancel) = (&is_over, &working, cancel.clone());
            move || {
                let _registered = Registration::new(&format!("worker-{number}"), None).unwrap();
                while cpu_time() < WORK {
                    planted_sum();
                }
                // The last one that has done enough ends the profile, and all work until then.
                if working.fetch_sub(1, Ordering::Relaxed) == 1 {
                    cancel.cancel();
                }
                while !is_over.load(Ordering::Relaxed) {
                    planted_sum();
                }
            }
        };
        std::thread::scope(|scope| {
            let session = ProfileSession::begin("CPU", "the test", PATIENCE).unwrap();
            scope.spawn(busy(0));
            scope.spawn(busy(1));
            let profile = cpu::take(session, CpuOptions::new(ThreadScope::AllThreads, 240, 250).unwrap(), &cancel);
            is_over.store(true, Ordering::Relaxed);
            profile.unwrap()
        })
    })
}

#[inline(never)]
fn planted_sum() {
    let mut sum = 0_u64;
    // Calls nothing, not even in a build without optimisation.
    while sum < 1_000_000 {
        sum += 1;
    }
    black_box(sum);
}

fn written(folder: &Path) -> PathBuf {
    let file = folder.join("cpu.pb.gz");
    std::fs::write(&file, pprof::write(profile())).unwrap();
    file
}

/// The checked fields of `google/pprof`'s `profile.proto`.
#[derive(Clone, PartialEq, Message)]
struct DecodedProfile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

#[test]
fn another_decoder_reads_the_same() {
    let profile = profile();
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(&*pprof::write(profile)).read_to_end(&mut message).unwrap();
    let read = DecodedProfile::decode(&*message).unwrap();
    let text = |number: i64| read.string_table[number as usize].as_str();
    assert_eq!(text(0), "");
    let types: Vec<_> = read.sample_type.iter().map(|of| (text(of.r#type), text(of.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!((read.duration_nanos, read.period), (profile.duration_ns, 4_000_000));
    assert_eq!(read.sample.len(), profile.samples.len());
    for (read_sample, sample) in read.sample.iter().zip(&profile.samples) {
        assert_eq!(read_sample.value, sample.values);
        let names = |id: &u64| {
            let location = read.location.iter().find(|location| location.id == *id).unwrap();
            let function = |line: &Line| read.function.iter().find(|function| function.id == line.function_id).unwrap();
            location.line.iter().map(|line| text(function(line).name).to_owned()).collect::<Vec<_>>()
        };
        let read_names: Vec<_> = read_sample.location_id.iter().flat_map(names).collect();
        let own = profile.functions_of(sample).map(|line| profile.functions[line.function].name.clone());
        assert_eq!(read_names, own.rev().collect::<Vec<_>>());
    }
}

#[test]
fn go_prints_the_top() {
    let text = readers::go_top(profile());
    assert!(text.contains("Type: cpu") && text.contains("Duration: "), "{text}");
    let first = text.lines().skip_while(|line| !line.contains("flat%")).nth(1).unwrap_or_default();
    assert!(first.contains("planted_sum"), "{text}");
}

#[test]
fn python_finds_the_functions_and_threads() {
    let read = readers::python(profile());
    assert_eq!(read["types"], json!([["samples", "count"], ["cpu", "nanoseconds"]]));
    let planted =
        read["functions"].as_object().unwrap().iter().find(|(name, _)| name.ends_with("formats::planted_sum"));
    let nanoseconds = planted.unwrap().1[1].as_i64().unwrap();
    assert!(nanoseconds * 10 > profile().total(1) * 9, "{nanoseconds} of {}", profile().total(1));
    assert_eq!(read["labels"]["thread"], json!(["worker-0", "worker-1"]));
}

#[test]
fn go_serves_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    for page in stillgate_testkit::go_pages(&written(folder.path())) {
        assert!(page.contains("planted_sum"), "{page}");
    }
}

fn check(schema: &str, text: &str) -> Json {
    let schema: Json = serde_json::from_str(schema).unwrap();
    let value: Json = serde_json::from_str(text).unwrap();
    let wrong: Vec<String> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&value)
        .take(3)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    value
}

#[test]
fn speedscope_reads_it() {
    let value = check(include_str!("../data/speedscope.schema.json"), &format::write_speedscope(profile(), 1));
    let threads = value["profiles"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    let frames = value["shared"]["frames"].as_array().unwrap().len();
    for thread in threads {
        let samples = thread["samples"].as_array().unwrap();
        assert_eq!(samples.len(), thread["weights"].as_array().unwrap().len());
        let indices = samples.iter().flat_map(|stack| stack.as_array().unwrap());
        assert!(indices.map(|index| index.as_u64().unwrap() as usize).all(|index| index < frames));
    }
}

#[test]
fn chrome_reads_it() {
    let value = check(include_str!("../data/chrome.schema.json"), &format::write_chrome(profile()).unwrap());
    let events = value["traceEvents"].as_array().unwrap();
    // A function that continues is a few slices, not one for each sample, and they cover the CPU time of the threads.
    let planted = events.iter().filter(|event| event["name"].as_str().unwrap().ends_with("formats::planted_sum"));
    let spent: f64 = planted.map(|event| event["dur"].as_f64().unwrap()).sum();
    let cpu_us = profile().total(1) as f64 / 1000.0;
    // On a busy machine it waits for a CPU now and then, without moving. Ends of slices are those of samples.
    let wall_us = 2.2 * profile().duration_ns as f64 / 1000.0;
    assert!(spent > 0.8 * cpu_us && spent < wall_us, "{spent} of {cpu_us} µs");
    // Slices of a lane lie inside each other or apart.
    for lane in [1, 2] {
        let own = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == lane);
        let mut slices: Vec<(i64, i64)> = own
            .map(|event| {
                let (from, took) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                ((from * 1000.0).round() as i64, ((from + took) * 1000.0).round() as i64)
            })
            .collect();
        slices.sort_by_key(|(from, to)| (*from, -*to));
        let mut open: Vec<i64> = Vec::new();
        for (from, to) in slices {
            open.retain(|end| *end > from);
            assert!(open.last().is_none_or(|end| to <= *end + 1), "{from} to {to} crosses what ends at {open:?}");
            open.push(to);
        }
    }
}

#[test]
fn pictures_name_the_functions() {
    let profile = profile();
    let svg = svg::write(profile, 1);
    assert!(svg.starts_with("<svg") && svg.contains("formats::planted_sum: "), "{svg}");
    let page = html::write(profile, 1, None);
    assert!(page.contains("planted_sum"));
}
