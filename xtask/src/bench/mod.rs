//! `cargo xtask bench`: the project's claims of speed, each as a ratio to a named peer or to itself in the same run.
//!
//! Never a pass criterion of a test: a time on a shared machine proves nothing by itself.

use crate::Result;
use crate::args::Args;
use crate::{dist, step};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use stillgate_rig::proc::Memory;
use stillgate_rig::schedule::First;
use stillgate_rig::{Running, descriptors, ports};

mod body;
mod check;
mod consumers;
mod exposition;
mod generator;
mod grpc;
mod h2load;
mod idle;
mod lab_load;
mod logger;
mod peers;
mod plugins;
mod profiling;
mod proxy;
mod route_sets;
mod routes;
mod served;
mod soak;
mod statistics;
mod syscalls;
mod tls;
mod wrk;

/// The CPU of the measured gateway.
const GATEWAY_CPU: usize = 0;
/// The CPU of everything else: upstream, load, this program.
const OTHER_CPU: usize = 1;

/// The address on which all of them listen.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Starts `words` on CPUs; none: on those of this program.
fn start(words: &[String], cpus: &[usize], log: &Path) -> Result<Running> {
    let name = words.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    Ok(Running::spawn(&name.to_string_lossy(), words, cpus, log, Stdio::null())?)
}

/// A free port of loopback.
fn free_port() -> Result<SocketAddr> {
    Ok(ports::free(LOOPBACK, 1)?[0])
}

/// The memory of a process once it has settled; prints a note if it has not.
fn settled_memory(process: &mut Running) -> Result<Memory> {
    let (memory, is_settled) = process.settled_memory()?;
    if !is_settled {
        println!("(memory does not settle)");
    }
    Ok(memory)
}

/// Number of files that a process may open, with the soft limit raised to the hard one, which our children inherit.
fn open_files_max() -> u64 {
    descriptors::raise_to(descriptors::limit().hard);
    descriptors::limit().current
}

/// Gives mostly idle processes priority on their CPU until the value is dropped, if that is permitted.
fn put_first(pids: &[u32]) -> Result<First> {
    let first = First::put(&[], pids)?;
    if let Some(error) = &first.refusal {
        println!("(load and upstream do not go before other programs; run as root. {error})");
    }
    Ok(first)
}

/// Runs a bench in an optimised build of this program: its load generators must not limit a throughput.
pub(crate) fn optimised(args: Args) -> Result {
    let mut cargo = step::cargo(["run", "--quiet", "--profile", "bench", "--package", "xtask", "--", "bench"]);
    step::run(cargo.args(args.rest()))
}

pub(crate) fn run(mut args: Args) -> Result {
    match args.word().as_deref() {
        Some("proxy") => proxy::run(args),
        Some("plugins") => plugins::run(args),
        Some("consumers") => consumers::run(args),
        Some("logger") => logger::run(args),
        Some("body") => body::run(args),
        Some("idle") => idle::run(args),
        Some("routes") => routes::run(args),
        Some("soak") => soak::run(args),
        Some("profiling") => profiling::run(args),
        Some("generator") => generator::run(args),
        // Not for people: subcommands that a bench starts.
        Some(body::node::ROLE) => body::node::run(args),
        _ => Err(
            "bench what? proxy, plugins, consumers, logger, body, idle, profiling, routes, soak or generator; see `cargo xtask help`"
                .into(),
        ),
    }
}

/// The gateway: that of `--binary`, or the shipped one.
fn binary(args: &mut Args) -> Result<Binary> {
    Ok(Binary { given: args.value("--binary")?, package: "stillgate-gateway", name: "stillgate" })
}

/// The laboratory: that of `--lab`, or the shipped one.
fn lab(args: &mut Args) -> Result<Binary> {
    Ok(Binary { given: args.value("--lab")?, package: "stillgate-lab", name: "stillgate-lab" })
}

/// A program of this workspace that is used.
struct Binary {
    given: Option<PathBuf>,
    package: &'static str,
    name: &'static str,
}

impl Binary {
    /// Its path; it is built first unless a path was given.
    fn path(self) -> Result<PathBuf> {
        if let Some(path) = self.given {
            return Ok(path);
        }
        dist::build(self.package, self.name)
    }
}
