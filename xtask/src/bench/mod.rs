//! `cargo xtask bench`: the project's claims of speed, each as a ratio to a named peer or to itself in the same run.
//!
//! Never a gate in a test: a time on a shared machine proves nothing alone.

use crate::Result;
use crate::args::Args;
use crate::{dist, step};
use std::path::PathBuf;

mod body;
mod callgrind;
mod changing_file;
mod check;
mod closed_loop;
mod consumers;
mod control;
mod dashboards;
mod device_peers;
mod explosion;
mod exposition;
mod generator;
mod grpc;
mod h2load;
mod idle;
mod lab_load;
mod load_connection;
mod logger;
mod peers;
mod plugins;
mod process;
mod profiling;
mod proxy;
mod reload;
mod route_sets;
mod routes;
mod schedule;
mod served;
mod soak;
mod statistics;
mod syscalls;
mod tls;
mod tunnels;
mod upgrade;
mod wrk;

/// Where the measured gateway runs.
const GATEWAY_CPU: usize = 0;
/// Where everything else runs: upstream, load, this program.
const OTHER_CPU: usize = 1;

/// Runs a bench in an optimised build of this program: its load generators must not be what limits a throughput.
pub(crate) fn optimised(args: Args) -> Result {
    let mut cargo = step::cargo(["run", "--quiet", "--profile", "bench", "--package", "xtask", "--", "bench"]);
    step::run(cargo.args(args.rest()))
}

pub(crate) fn run(mut args: Args) -> Result {
    match args.word().as_deref() {
        Some("proxy") => proxy::run(args),
        Some("plugins") => plugins::run(args),
        Some("consumers") => consumers::run(args),
        Some("control") => control::run(args),
        Some("dashboards") => dashboards::run(args),
        Some("device-peers") => device_peers::run(args),
        Some("logger") => logger::run(args),
        Some("body") => body::run(args),
        Some("idle") => idle::run(args),
        Some("reload") => reload::run(args),
        Some("routes") => routes::run(args),
        Some("soak") => soak::run(args),
        Some("profiling") => profiling::run(args),
        Some("explosion") => explosion::run(args),
        Some("generator") => generator::run(args),
        Some("tunnels") => tunnels::run(args),
        Some("upgrade") => upgrade::run(args),
        // Not for people: what a bench starts of itself.
        Some(body::node::ROLE) => body::node::run(args),
        Some(tunnels::node::ROLE) => tunnels::node::run(args),
        Some(tunnels::clients::ROLE) => tunnels::clients::run(args),
        _ => Err(
            "bench what? proxy, plugins, consumers, control, dashboards, device-peers, logger, body, idle, profiling, reload, routes, soak, explosion, generator, tunnels or upgrade; see `cargo xtask help`"
                .into(),
        ),
    }
}

/// The gateway: that of `--binary`, or the one that ships.
fn binary(args: &mut Args) -> Result<Binary> {
    Ok(Binary { given: args.value("--binary")?, package: "stillgate-gateway", name: "stillgate" })
}

/// The laboratory: that of `--lab`, or the one that ships.
fn lab(args: &mut Args) -> Result<Binary> {
    Ok(Binary { given: args.value("--lab")?, package: "stillgate-lab", name: "stillgate-lab" })
}

/// A program of this workspace that takes part.
struct Binary {
    given: Option<PathBuf>,
    package: &'static str,
    name: &'static str,
}

impl Binary {
    /// Where it is; built first where none was given.
    fn path(self) -> Result<PathBuf> {
        if let Some(path) = self.given {
            return Ok(path);
        }
        dist::build(self.package, self.name)
    }
}
