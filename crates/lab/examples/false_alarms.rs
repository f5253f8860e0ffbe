//! Checks `stillgate-lab compare` on a real machine: how often it reports a difference where there is none, and how
//! often it finds a planted one.
//!
//! `cargo build --release -p stillgate-lab --bins --examples`, then `target/release/examples/false_alarms SAME PLANTED
//! PERCENT [OPTION…]` runs SAME comparisons of a server with itself and PLANTED ones with a copy that takes PERCENT
//! more CPU per request; further arguments go to `compare`, for example `--no-instructions`: instructions reveal a spin
//! even where time alone would not. The results of all runs stay in the folder `false-alarms`. No run is repeated,
//! whatever its result.

use serde_json::Value;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_load::{Bounds, Load, Mix, Pace, Protocol, Target};
use stillgate_rig::proc::Stat;

/// The default of `compare`.
const CONNECTIONS: usize = 32;

/// Load before CPU per request is measured, and while it is measured.
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

/// Number of rounds that are timed to find the cost of one.
const ROUNDS_TIMED: u64 = 1_000_000;

/// How long to wait for the server to listen.
const PATIENCE: Duration = Duration::from_secs(5);

const FOLDER: &str = "false-alarms";

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The results of some comparisons.
#[derive(Default)]
struct Counts {
    comparisons: u32,
    worse: u32,
    undecided: u32,
    void: u32,
    /// Comparisons in which a measure differed, for the worse or the better.
    differing: u32,
    seconds_max: f64,
}

fn main() -> Result {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [same, planted, percent, options @ ..] = words.as_slice() else {
        return Err("usage: false_alarms SAME PLANTED PERCENT [OPTION OF compare…]".into());
    };
    let (same, planted, percent): (u32, u32, f64) = (same.parse()?, planted.parse()?, percent.parse()?);
    let here = std::env::current_exe()?;
    let examples = here.parent().ok_or("this program's path has no parent folder")?;
    let spinning = examples.join("spinning");
    let lab = examples.parent().ok_or("the examples' path has no parent folder")?.join("stillgate-lab");
    fs::create_dir_all(FOLDER)?;
    let rounds = rounds_of(&spinning, percent)?;
    println!("{percent}% more CPU per request is {rounds} rounds");
    let command = |rounds: u64| format!("'{}' {{address}} {rounds}", spinning.display());
    let run = |name: &str, number: u32, b: u64| {
        let file = PathBuf::from(FOLDER).join(format!("{name}-{number}.json"));
        compare(&lab, &command(0), &command(b), &file, options)
    };
    let (mut alarms, mut found) = (Counts::default(), Counts::default());
    for number in 0..same.max(planted) {
        // Alternates, so that a change of the machine affects both.
        if number < same {
            alarms.add(run("same", number, 0)?);
        }
        if number < planted {
            found.add(run("planted", number, rounds)?);
        }
    }
    alarms.print("with itself");
    found.print(&format!("{percent}% slower"));
    Ok(())
}

/// The extra work: `percent` of the CPU time per request of the server under full load.
fn rounds_of(spinning: &Path, percent: f64) -> Result<u64> {
    let output = Command::new(spinning).args(["--time", &ROUNDS_TIMED.to_string()]).output()?;
    let ns: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut server = Command::new(spinning).arg(address.to_string()).arg("0").stdin(Stdio::null()).spawn()?;
    let cpu_ns = cpu_a_request(&server, address);
    server.kill()?;
    server.wait()?;
    Ok((cpu_ns? * percent / 100.0 / (ns / ROUNDS_TIMED as f64)).round() as u64)
}

fn cpu_a_request(server: &Child, address: std::net::SocketAddr) -> Result<f64> {
    let begun = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        if begun.elapsed() > PATIENCE {
            return Err("the server does not listen".into());
        }
        sleep(Duration::from_millis(5));
    }
    let target = Target::parse(&format!("http://{address}/"))?;
    let mix = Mix::single("GET", "/", &target.host, &[], Vec::new()).map_err(|error| error.to_string())?;
    let mut load = Load {
        target,
        mix,
        pace: Pace::Closed,
        warm_up: Duration::ZERO,
        duration: WARM_UP,
        requests: None,
        protocol: Protocol::Http1,
        tls: None,
        connections: CONNECTIONS,
        threads: 1,
        cpus: Vec::new(),
        realtime: false,
        sources: Vec::new(),
        timeout: PATIENCE,
        interval: MEASURED,
        bounds: Bounds::default(),
        seed: 1,
    };
    let mut run = |duration| {
        load.duration = duration;
        stillgate_load::run(&load, &std::sync::atomic::AtomicBool::new(false), &mut |_| {})
    };
    run(WARM_UP)?;
    let before = Stat::read(server.id())?.cpu_us();
    let outcome = run(MEASURED)?;
    let used_us = Stat::read(server.id())?.cpu_us().zip(before).map(|(after, before)| after - before);
    Ok(used_us.ok_or("no CPU time in /proc/PID/stat")? * 1e3 / outcome.requests.max(1) as f64)
}

/// Runs one comparison; returns its sentence and how long it took.
fn compare(lab: &Path, a: &str, b: &str, file: &Path, options: &[String]) -> Result<(Value, f64)> {
    let begun = Instant::now();
    let output = Command::new(lab).args(["compare", a, b, "--json"]).arg(file).args(options).output()?;
    if output.status.code().is_none_or(|code| code > 3) {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let result: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    println!("{}: {}", file.display(), result["analysis"]["sentence"].as_str().unwrap_or("no sentence"));
    Ok((result, begun.elapsed().as_secs_f64()))
}

impl Counts {
    fn add(&mut self, (result, seconds): (Value, f64)) {
        let analysis = &result["analysis"];
        self.comparisons += 1;
        self.seconds_max = self.seconds_max.max(seconds);
        match analysis["decision"].as_str() {
            Some("worse") => self.worse += 1,
            Some("undecided") => self.undecided += 1,
            Some("void") => self.void += 1,
            _ => {}
        }
        let differs = |measure: &Value| measure["verdict"] != "no_difference";
        let measures = analysis["measures"].as_array();
        self.differing += u32::from(measures.is_some_and(|measures| measures.iter().any(differs)));
    }

    fn print(&self, name: &str) {
        println!(
            "{name}: {} comparisons, worse {}, any difference {}, undecided {}, void {}; the longest took {:.0} s",
            self.comparisons, self.worse, self.differing, self.undecided, self.void, self.seconds_max
        );
    }
}
