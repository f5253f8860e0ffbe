//! `cargo xtask bench plugins --instructions`: the instructions and system calls that plugins add to a request, which hardly differ
//! from run to run even on a shared machine.
//!
//! The gateways run one by one with the configuration of the timed bench, first under strace and then under callgrind, and serve
//! all cases. Requests are sent one by one on one connection, so that each takes the same path through the event loop. A figure is
//! the count of a case minus that of the plain one. Envoy is not included: it is too large for valgrind.

use super::super::peers::Gateway;
use super::super::{GATEWAY_CPU, start, syscalls};
use super::cases::{Case, Endpoint, request_headers};
use super::verdict::{self, Added, Unit};
use super::{chosen, configure, nginx, stillgate};
use crate::Result;
use crate::args::Args;
use crate::bench::served::Asker;
use crate::packages::{self, HAPROXY, NGINX, NGINX_BROTLI, NGINX_LUA, STRACE, VALGRIND};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::Running;
use stillgate_rig::callgrind::{Counter, Threads};

/// Requests per case and round.
const REQUESTS: u64 = 1000;
/// Requests per case and round with large responses, where nearly all work is per byte.
const LARGE_REQUESTS: u64 = 100;
/// Requests before the first round, which create connections, buffers and compiled functions.
const WARM_UP_REQUESTS: u64 = 100;
const LARGE_WARM_UP_REQUESTS: u64 = 10;
/// Requests per case under strace.
const TRACED_REQUESTS: u64 = 500;

/// Entries of logs and traces are sent at the latest after 5 s without another.
const COLLECTED: Duration = Duration::from_secs(6);

/// The time limit under valgrind, with the largest lists.
const START_TIMEOUT: Duration = Duration::from_secs(180);

struct Options {
    rounds: usize,
    /// The folder of profiles.
    profiles: Option<PathBuf>,
}

/// The results of one gateway in one case.
struct Measured {
    gateway: &'static str,
    case: &'static Case,
    /// System calls per request.
    syscalls: f64,
    /// Instructions per request, one figure per round.
    instructions: Vec<f64>,
}

impl Measured {
    /// Instructions of the lowest round: occasional other work of a gateway can only add to them.
    fn least(&self) -> f64 {
        self.instructions.iter().copied().fold(f64::MAX, f64::min)
    }
}

pub(super) fn run(mut args: Args) -> Result {
    let options = Options { rounds: args.value("--rounds")?.unwrap_or(2).max(1), profiles: args.value("--profiles")? };
    let only: Option<String> = args.value("--case")?;
    let json: Option<String> = args.value("--json")?;
    let binary = crate::bench::binary(&mut args)?;
    args.finish()?;
    let chosen = chosen(only.as_deref())?;
    packages::ensure(&[NGINX, NGINX_BROTLI, NGINX_LUA, HAPROXY, STRACE, VALGRIND])?;
    let binary = binary.path()?;
    if let Some(dir) = &options.profiles {
        fs::create_dir_all(dir)?;
    }
    let dir = tempfile::tempdir()?;
    let (_node, node) = nginx::start_node(dir.path(), &chosen)?;
    let ours = stillgate::accepted(&binary, dir.path(), &chosen, node)?;
    println!(
        "\n{} rounds of {REQUESTS} requests a gateway and case; Envoy is too large for valgrind\n",
        options.rounds
    );
    let begin = Instant::now();
    let mut measured = Vec::new();
    for gateway in [Gateway::Nginx, Gateway::Haproxy, Gateway::Stillgate(&binary)] {
        let cases = if gateway.is_ours() { &ours } else { &chosen };
        let (endpoints, mut words) = configure(gateway, dir.path(), node, cases)?;
        if gateway == Gateway::Nginx {
            // A worker in a separate process would not be traced.
            words.extend(["-g", "master_process off;"].map(str::to_owned));
        }
        let subject =
            Subject { name: gateway.name(), is_ours: gateway.is_ours(), words, endpoints, dir: dir.path(), begin };
        measured.extend(subject.measure(&options).map_err(|error| format!("{}: {error}", gateway.name()))?);
    }
    let results = report(&chosen, &measured);
    if let Some(path) = json {
        fs::write(&path, serde_json::to_string_pretty(&results)?)?;
        println!("written to {path}");
    }
    Ok(())
}

/// A gateway to be measured.
struct Subject<'a> {
    name: &'static str,
    is_ours: bool,
    words: Vec<String>,
    endpoints: Vec<Endpoint>,
    dir: &'a Path,
    begin: Instant,
}

impl Subject<'_> {
    fn measure(&self, options: &Options) -> Result<Vec<Measured>> {
        let mut measured = self.traced()?;
        self.progress("starts under callgrind");
        // Stillgate's first thread is the control thread, which handles no requests but does much work once a second.
        let threads = if self.is_ours { Threads::Others } else { Threads::All };
        let mut counter = Counter::start(&self.words, threads, &[GATEWAY_CPU], self.dir, self.name)?;
        for endpoint in &self.endpoints {
            counter.process.wait_for(endpoint.address, START_TIMEOUT)?;
        }
        counter.begin()?;
        let mut clients = self.clients(LARGE_WARM_UP_REQUESTS, WARM_UP_REQUESTS)?;
        if clients.iter().any(|client| self.collects(client.case)) {
            sleep(COLLECTED);
        }
        for round in 0..options.rounds {
            self.progress(&format!("round {} of {}", round + 1, options.rounds));
            for (client, measured) in clients.iter_mut().zip(&mut measured) {
                let profile = options.profiles.as_ref().map(|dir| dir.join(self.profile_name(client.case)));
                measured.instructions.push(self.count(&mut counter, client, profile.as_deref())?);
            }
        }
        Ok(measured)
    }

    /// The instructions per request of a case.
    fn count(&self, counter: &mut Counter, client: &mut Client, profile: Option<&Path>) -> Result<f64> {
        client.reconnect()?;
        counter.instructions(None)?;
        let requests = client.requests(LARGE_REQUESTS, REQUESTS);
        client.send(requests)?;
        if self.collects(client.case) {
            sleep(COLLECTED);
        }
        Ok(counter.instructions(profile)? as f64 / requests as f64)
    }

    /// The system calls of each case, without valgrind, under which reading the clock becomes a system call.
    fn traced(&self) -> Result<Vec<Measured>> {
        self.progress("system calls");
        let mut process = start(&self.words, &[GATEWAY_CPU], &self.dir.join(format!("{}.log", self.name)))?;
        for endpoint in &self.endpoints {
            process.wait_for(endpoint.address, Running::START_TIMEOUT)?;
        }
        let pids = process.pids();
        let mut measured = Vec::new();
        for mut client in self.clients(LARGE_WARM_UP_REQUESTS, WARM_UP_REQUESTS)? {
            let requests = client.requests(LARGE_REQUESTS, TRACED_REQUESTS);
            client.reconnect()?;
            let counted = syscalls::count(&pids, || client.send(requests).map(|()| requests))?;
            process.alive()?;
            measured.push(Measured {
                gateway: self.name,
                case: client.case,
                syscalls: counted.all,
                instructions: Vec::new(),
            });
        }
        Ok(measured)
    }

    /// Makes a client for each case, after a check of the case and some requests.
    fn clients(&self, large: u64, small: u64) -> Result<Vec<Client>> {
        let client = |endpoint: &Endpoint| {
            endpoint.check()?;
            let Endpoint { case, address } = *endpoint;
            let mut client = Client { case, address, headers: request_headers(case), asker: Asker::connect(address)? };
            client.send(client.requests(large, small))?;
            Ok(client)
        };
        self.endpoints.iter().map(client).collect()
    }

    fn collects(&self, case: &Case) -> bool {
        self.is_ours && case.collects()
    }

    fn progress(&self, what: &str) {
        println!("{:5.0} s  {}: {what}", self.begin.elapsed().as_secs_f64(), self.name);
    }

    fn profile_name(&self, case: &Case) -> String {
        let words: Vec<&str> =
            case.name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|s| !s.is_empty()).collect();
        format!("{}-{}", self.name, words.join("-"))
    }
}

/// A kept connection for a case.
struct Client {
    case: &'static Case,
    address: SocketAddr,
    headers: Vec<String>,
    asker: Asker,
}

impl Client {
    fn requests(&self, large: u64, small: u64) -> u64 {
        if self.case.is_large { large } else { small }
    }

    /// Makes a new connection that has served one request: a kept one may have been closed meanwhile.
    fn reconnect(&mut self) -> Result {
        self.asker = Asker::connect(self.address)?;
        self.send(1)
    }

    /// Sends this many requests one by one; fails if a response is not as expected.
    fn send(&mut self, requests: u64) -> Result {
        let Self { case, headers, asker, .. } = self;
        for _ in 0..requests {
            let answer =
                asker.ask(case.method(), case.path, headers).map_err(|error| format!("{}: {error}", case.name))?;
            if answer.status != case.status() {
                return Err(format!("{}: answered {} and not {}", case.name, answer.status, case.status()).into());
            }
        }
        Ok(())
    }
}

/// The additional instructions and system calls of a case.
struct Difference<'a> {
    with: &'a Measured,
    without: &'a Measured,
}

impl Difference<'_> {
    fn instructions(&self) -> Added {
        let without = self.without.least();
        let most = self.with.instructions.iter().copied().fold(f64::MIN, f64::max);
        let added = self.with.least() - without;
        Added { gateway: self.with.gateway, amount: added, range: [added, most - without] }
    }

    /// Prints a line; returns it as JSON.
    fn line(&self) -> Value {
        let Measured { gateway, case, syscalls, instructions } = self.with;
        let (with, without) = (self.with.least(), self.without.least());
        let Added { amount: added, range: [low, high], .. } = self.instructions();
        let added_syscalls = syscalls - self.without.syscalls;
        println!(
            "{:32} {gateway:10} {without:9.0} {with:9.0} {added:9.0} {:>19} {added_syscalls:9.2}",
            case.name,
            format!("{low:.0} to {high:.0}")
        );
        json!({
            "case": case.name, "gateway": gateway, "without_instructions": without, "with_instructions": with,
            "added_instructions": added, "without_syscalls": self.without.syscalls, "with_syscalls": syscalls,
            "added_syscalls": added_syscalls,
            "rounds_instructions": self.without.instructions.iter().zip(instructions).collect::<Vec<_>>(),
        })
    }
}

/// Prints a line for each case and gateway, and a comparison of ours with the cheapest peer; returns them as JSON.
fn report(cases: &[&'static Case], measured: &[Measured]) -> Value {
    println!(
        "\n{:32} {:10} {:>9} {:>9} {:>9} {:>19} {:>9}",
        "case", "gateway", "without", "with", "added", "range", "syscalls"
    );
    let (mut results, mut verdicts) = (Vec::new(), Vec::new());
    for case in cases.iter().filter(|case| !case.is_plain()) {
        let of_case = measured.iter().filter(|measured| measured.case.name == case.name);
        let differences: Vec<Difference<'_>> = of_case
            .filter_map(|with| {
                let plain = |other: &&Measured| {
                    other.gateway == with.gateway && other.case.is_plain() && other.case.is_large == case.is_large
                };
                Some(Difference { with, without: measured.iter().find(plain)? })
            })
            .collect();
        results.extend(differences.iter().map(Difference::line));
        verdicts.extend(verdict::verdict(case, differences.iter().map(Difference::instructions), Unit::Instructions));
    }
    println!(
        "\n(instructions in user mode a request, and the system calls that are added to it; the least of the rounds)"
    );
    verdict::count(&verdicts);
    json!({ "rows": results, "verdicts": verdicts })
}
