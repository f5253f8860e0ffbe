//! `cargo xtask bench proxy`: CPU microseconds per proxied request, compared with nginx, HAProxy and Envoy in the same run.
//!
//! Each gateway has one worker on CPU 0; the upstream and the load share CPU 1. The figure is the gateway's user and system time,
//! of all its threads and processes, divided by the number of answered requests, so it is valid even if the load generator is the
//! bottleneck. Rounds are interleaved, and a ratio is the median of the ratios within a round: a disturbance of the machine affects
//! all alike.

use super::peers::{self, Gateway, LARGE_BYTES, Protocol, SMALL_BYTES};
use super::statistics::median;
use super::wrk::{self, Answered};
use super::{grpc, h2load, syscalls, tls};
use crate::Result;
use crate::args::Args;
use crate::envoy;
use crate::packages::{self, HAPROXY, NGHTTP2, NGHTTPD, NGINX, STRACE, WRK};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use stillgate_rig::Running;

/// Number of request headers of the second case, and the bytes of each line with its end.
const HEADERS: usize = 16;
const HEADER_LINE_BYTES: usize = 40;

const WARM_UP_SECONDS: u64 = 1;
const STRACE_SECONDS: u64 = 2;

/// One kind of traffic.
struct Case {
    name: &'static str,
    load: Load,
}

enum Load {
    Wrk(wrk::Load),
    H2load(h2load::Load),
}

impl Case {
    fn run(&self, address: SocketAddr, seconds: u64) -> Result<Answered> {
        match &self.load {
            Load::Wrk(load) => wrk::run(load, address, seconds),
            Load::H2load(load) => h2load::run(load, address, seconds),
        }
    }
}

/// One measured round.
struct Sample {
    cpu_us: f64,
    user_us: f64,
    per_second: f64,
}

/// The options `--rounds` and the like.
struct Options {
    rounds: usize,
    seconds: u64,
    connections: u32,
    routes: usize,
    syscalls: bool,
}

/// A running gateway.
struct Subject {
    name: &'static str,
    process: Running,
    address: SocketAddr,
}

impl Subject {
    /// Fails if it does not behave as the comparison requires.
    fn check(&self, dir: &Path, protocol: Protocol, settings: Option<&Path>) -> Result {
        if let Some(settings) = settings {
            tls::check(self.address, settings)?;
        }
        if protocol == Protocol::Grpc {
            grpc::check(dir, self.address)?;
        }
        Ok(())
    }
}

pub(super) fn run(mut args: Args) -> Result {
    let quick = args.flag("--quick");
    let options = Options {
        rounds: args.value("--rounds")?.unwrap_or(if quick { 2 } else { 5 }),
        seconds: args.value("--seconds")?.unwrap_or(if quick { 1 } else { 3 }),
        connections: args.value("--connections")?.unwrap_or(64),
        routes: args.value("--routes")?.unwrap_or(1000),
        syscalls: args.flag("--syscalls"),
    };
    let word: Option<String> = args.value("--protocol")?;
    let protocol = word.as_deref().map_or(Ok(Protocol::Http1), Protocol::parse)?;
    let json: Option<String> = args.value("--json")?;
    let only: Option<String> = args.value("--case")?;
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX, HAPROXY, WRK, NGHTTP2])?;
    if options.syscalls {
        packages::ensure(&[STRACE])?;
    }
    if protocol == Protocol::Grpc {
        packages::ensure(&[NGHTTPD])?;
    }
    let binary = binary.path()?;
    let envoy = envoy::ensure().inspect_err(|error| println!("Envoy is left out: {error}")).ok();
    let dir = tempfile::tempdir()?;
    let (_upstream, upstream) = match protocol {
        Protocol::Grpc => grpc::start_node(dir.path())?,
        _ => peers::start_upstream(dir.path())?,
    };
    let settings = match protocol {
        Protocol::Http1 => None,
        _ => {
            tls::certificate(dir.path())?;
            Some(tls::client_settings(dir.path())?)
        }
    };
    let peers = [Some(Gateway::Nginx), Some(Gateway::Haproxy), envoy.as_deref().map(Gateway::Envoy)];
    let mut subjects = Vec::new();
    for gateway in peers.into_iter().flatten().chain([Gateway::Stillgate(&binary)]) {
        let (process, address) = gateway.start(dir.path(), upstream, options.routes, protocol)?;
        let subject = Subject { name: gateway.name(), process, address };
        subject
            .check(dir.path(), protocol, settings.as_deref())
            .map_err(|error| format!("{}: {error}", subject.name))?;
        subjects.push(subject);
    }
    introduce(&options, protocol, &subjects);
    let mut results = Vec::new();
    for case in cases(dir.path(), options.connections, protocol, settings.as_deref())? {
        if only.as_ref().is_some_and(|only| !case.name.contains(only)) {
            continue;
        }
        results.extend(measure_case(&case, &mut subjects, &options)?);
    }
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("\nwritten to {path}");
    }
    Ok(())
}

fn introduce(options: &Options, protocol: Protocol, subjects: &[Subject]) {
    let Options { rounds, seconds, connections, routes, .. } = options;
    let load = match protocol {
        Protocol::Http1 => format!("{connections} connections"),
        Protocol::Tls => format!("{connections} connections through TLS 1.3 with {}", tls::CIPHER),
        Protocol::Http2 => format!("{} through TLS 1.3 with {}, HTTP/1.1 to the node", h2load::SHAPE, tls::CIPHER),
        Protocol::Grpc => {
            format!("{} through TLS 1.3 with {}, HTTP/2 without TLS to the node", h2load::SHAPE, tls::CIPHER)
        }
    };
    println!("{rounds} rounds of {seconds} s a gateway and case, {load}, {routes} routes in Stillgate\n");
    print!("{:22} {:10} {:>8} {:>10} {:>11}", "case", "gateway", "CPU µs", "of it user", "requests/s");
    for peer in peers(subjects) {
        print!(" {:>10}", format!("to {}", peer.name));
    }
    println!();
}

/// All except ours, which is the last.
fn peers(subjects: &[Subject]) -> &[Subject] {
    &subjects[..subjects.len() - 1]
}

/// Measures all gateways with one kind of traffic and prints their lines.
fn measure_case(case: &Case, subjects: &mut [Subject], options: &Options) -> Result<Vec<Value>> {
    for subject in subjects.iter_mut() {
        case.run(subject.address, WARM_UP_SECONDS)
            .map_err(|error| format!("{}, {}: {error}", subject.name, case.name))?;
    }
    let mut samples: Vec<Vec<Sample>> = subjects.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (subject, samples) in subjects.iter_mut().zip(&mut samples) {
            samples.push(sample(subject, case, options.seconds)?);
        }
    }
    let mut results = Vec::new();
    for (subject, own) in subjects.iter().zip(&samples) {
        let cpu_us = median(own.iter().map(|sample| sample.cpu_us));
        let user_us = median(own.iter().map(|sample| sample.user_us));
        let per_second = median(own.iter().map(|sample| sample.per_second));
        print!("{:22} {:10} {cpu_us:8.2} {user_us:10.2} {per_second:11.0}", case.name, subject.name);
        let mut result = json!({
            "case": case.name, "gateway": subject.name, "cpu_us": cpu_us, "user_us": user_us,
            "requests_per_second": per_second,
            "rounds_cpu_us": own.iter().map(|sample| sample.cpu_us).collect::<Vec<_>>(),
        });
        for (peer, theirs) in peers(subjects).iter().zip(&samples) {
            let ratio = median(own.iter().zip(theirs).map(|(own, peer)| own.cpu_us / peer.cpu_us));
            print!(" {ratio:10.3}");
            result[format!("ratio_to_{}", peer.name)] = json!(ratio);
        }
        println!();
        if options.syscalls {
            let pids = subject.process.pids();
            let counted = syscalls::count(&pids, || Ok(case.run(subject.address, STRACE_SECONDS)?.requests))?;
            println!("{:22} {:10} {counted}", "", "");
            result["data_syscalls_per_request"] = json!(counted.data);
            result["syscalls_per_request"] = json!(counted.all);
        }
        results.push(result);
    }
    Ok(results)
}

fn sample(subject: &mut Subject, case: &Case, seconds: u64) -> Result<Sample> {
    let before = subject.process.cpu_time()?;
    let answered = case.run(subject.address, seconds).map_err(|error| format!("{}: {error}", subject.name))?;
    subject.process.alive()?;
    let used = subject.process.cpu_time()?.since(before);
    let each = |us: f64| us / answered.requests as f64;
    Ok(Sample { cpu_us: each(used.us()), user_us: each(used.user_us), per_second: answered.per_second })
}

/// Over TLS there is also a run with one handshake per request; over HTTP/2 only what h2load supports.
fn cases(dir: &Path, connections: u32, protocol: Protocol, settings: Option<&Path>) -> Result<Vec<Case>> {
    let streams = |name, path, answer_bytes, message| {
        let load = Load::H2load(h2load::Load { path, answer_bytes, message });
        Case { name, load }
    };
    match protocol {
        Protocol::Http1 | Protocol::Tls => {}
        Protocol::Http2 => {
            let large = streams("16 KiB response", "/large", LARGE_BYTES, None);
            return Ok(vec![streams("small GET", "/", SMALL_BYTES, None), large]);
        }
        Protocol::Grpc => {
            let message = Some(grpc::message(dir));
            return Ok(vec![streams("unary call", grpc::PATH, grpc::MESSAGE_BYTES, message)]);
        }
    }
    let post = dir.join("post.lua");
    fs::write(&post, format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {LARGE_BYTES})\n"))?;
    let load =
        |path| wrk::Load { path, headers: Vec::new(), script: None, connections, tls: settings.map(Path::to_owned) };
    let case = |name, load| Case { name, load: Load::Wrk(load) };
    let headers = (0..HEADERS).map(|number| {
        let name = format!("X-Header-{number:02}");
        let value = "v".repeat(HEADER_LINE_BYTES - name.len() - ": \r\n".len());
        format!("{name}: {value}")
    });
    let mut cases = vec![
        case("small GET", load("/")),
        case("16 KiB response", load("/large")),
        case("16 headers of 40 bytes", wrk::Load { headers: headers.collect(), ..load("/") }),
        case("16 KiB POST", wrk::Load { script: Some(post), ..load("/upload") }),
    ];
    if protocol == Protocol::Tls {
        let headers = vec!["Connection: close".to_owned()];
        cases.push(case("a handshake a request", wrk::Load { headers, ..load("/") }));
    }
    Ok(cases)
}
