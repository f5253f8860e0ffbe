//! `cargo xtask bench proxy`: CPU microseconds per proxied request, beside nginx and HAProxy in the same run.
//!
//! Each gateway has one worker on CPU 0; the upstream and the load share CPU 1. The figure is the gateway's own user and
//! system time divided by the requests answered, so it holds where the load generator is the bottleneck too. Rounds are
//! interleaved, and a ratio is the median of the ratios within a round: what disturbs the machine disturbs all alike.

use super::h2load;
use super::peers::{self, Gateway, LARGE_BYTES, Protocol};
use super::process::Running;
use super::statistics::median;
use super::syscalls;
use super::wrk::{self, Answered, Load};
use crate::Result;
use crate::args::Args;
use crate::packages::{self, HAPROXY, NGHTTP2, NGINX, STRACE, WRK};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Request headers of the second case, and the bytes of each line with its end.
const HEADERS: usize = 16;
const HEADER_LINE_BYTES: usize = 40;

const WARM_UP_SECONDS: u64 = 1;
const STRACE_SECONDS: u64 = 2;

/// One kind of traffic.
struct Case {
    name: &'static str,
    load: Load,
    protocol: Protocol,
}

impl Case {
    fn run(&self, address: SocketAddr, seconds: u64) -> Result<Answered> {
        match self.protocol {
            Protocol::Http1 | Protocol::Tls => wrk::run(&self.load, address, seconds),
            Protocol::Http2 => h2load::run(self.load.path, address, seconds),
        }
    }
}

/// One measured round.
struct Sample {
    cpu_us: f64,
    user_us: f64,
    per_second: f64,
}

/// What `--rounds` and the like say.
struct Options {
    rounds: usize,
    seconds: u64,
    connections: u32,
    routes: usize,
    syscalls: bool,
}

/// A gateway that runs.
struct Subject {
    name: &'static str,
    process: Running,
    address: SocketAddr,
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
    let binary = binary.path()?;
    let dir = tempfile::tempdir()?;
    let (_upstream, upstream) = peers::start_upstream(dir.path())?;
    if protocol != Protocol::Http1 {
        peers::certificate(dir.path())?;
    }
    let mut subjects = Vec::new();
    for gateway in [Gateway::Nginx, Gateway::Haproxy, Gateway::Stillgate(&binary)] {
        let (process, address) = gateway.start(dir.path(), upstream, options.routes, protocol)?;
        subjects.push(Subject { name: gateway.name(), process, address });
    }
    println!(
        "{} rounds of {} s a gateway and case, {} connections, {} routes\n",
        options.rounds, options.seconds, options.connections, options.routes
    );
    println!(
        "{:22} {:10} {:>8} {:>8} {:>11} {:>9}",
        "case", "gateway", "CPU µs", "of it user", "requests/s", "to nginx"
    );
    let mut results = Vec::new();
    for case in cases(dir.path(), options.connections, protocol)? {
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

/// Measures all gateways under one kind of traffic and prints their lines.
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
        let ratio = median(own.iter().zip(&samples[0]).map(|(own, nginx)| own.cpu_us / nginx.cpu_us));
        println!("{:22} {:10} {cpu_us:8.2} {user_us:10.2} {per_second:11.0} {ratio:9.3}", case.name, subject.name);
        let mut result = json!({
            "case": case.name, "gateway": subject.name, "cpu_us": cpu_us, "user_us": user_us,
            "requests_per_second": per_second, "ratio_to_nginx": ratio,
            "rounds_cpu_us": own.iter().map(|sample| sample.cpu_us).collect::<Vec<_>>(),
        });
        if options.syscalls {
            let pids = subject.process.tree()?;
            let counted = syscalls::count(&pids, || case.run(subject.address, STRACE_SECONDS))?;
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
    subject.process.check_alive()?;
    let after = subject.process.cpu_time()?;
    let tick_us = 1e6 / rustix::param::clock_ticks_per_second() as f64;
    let each = |ticks: u64| ticks as f64 * tick_us / answered.requests as f64;
    let user = after.user_ticks - before.user_ticks;
    let system = after.system_ticks - before.system_ticks;
    Ok(Sample { cpu_us: each(user + system), user_us: each(user), per_second: answered.per_second })
}

/// Through TLS also one handshake a request; over HTTP/2 what h2load can say.
fn cases(dir: &Path, connections: u32, protocol: Protocol) -> Result<Vec<Case>> {
    let post = dir.join("post.lua");
    fs::write(&post, format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {LARGE_BYTES})\n"))?;
    let load = |path| Load { path, headers: Vec::new(), script: None, connections, scheme: protocol.scheme() };
    let case = |name, load| Case { name, load, protocol };
    let headers = (0..HEADERS).map(|number| {
        let name = format!("X-Header-{number:02}");
        let value = "v".repeat(HEADER_LINE_BYTES - name.len() - ": \r\n".len());
        format!("{name}: {value}")
    });
    let mut cases = vec![case("small GET", load("/")), case("16 KiB response", load("/large"))];
    if protocol != Protocol::Http2 {
        cases.push(case("16 headers of 40 bytes", Load { headers: headers.collect(), ..load("/") }));
        cases.push(case("16 KiB POST", Load { script: Some(post), ..load("/upload") }));
    }
    if protocol == Protocol::Tls {
        let headers = vec!["Connection: close".to_owned()];
        cases.push(case("a handshake a request", Load { headers, ..load("/") }));
    }
    Ok(cases)
}
