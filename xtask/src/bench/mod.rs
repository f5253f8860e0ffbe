//! `cargo xtask bench`: the project's claims of speed, each as a ratio to a named peer or to itself in the same run.
//!
//! Never a gate in a test: a time on a shared machine proves nothing alone.

use crate::Result;
use crate::args::Args;
use crate::step;
use std::path::PathBuf;

mod changing_file;
mod closed_loop;
mod explosion;
mod idle;
mod load_connection;
mod open_loop;
mod peers;
mod process;
mod proxy;
mod reload;
mod route_sets;
mod routes;
mod schedule;
mod scraper;
mod served;
mod soak;
mod statistics;
mod syscalls;
mod tail;
mod wrk;

/// Where the measured gateway runs.
const GATEWAY_CPU: usize = 0;
/// Where everything else runs: upstream, load, this program.
const OTHER_CPU: usize = 1;

pub(crate) fn run(mut args: Args) -> Result {
    match args.word().as_deref() {
        Some("proxy") => proxy::run(args),
        Some("idle") => idle::run(args),
        Some("reload") => reload::run(args),
        Some("routes") => routes::run(args),
        Some("soak") => soak::run(args),
        Some("tail") => tail::run(args),
        Some("explosion") => explosion::run(args),
        _ => Err("bench what? proxy, idle, reload, routes, soak, tail or explosion; see `cargo xtask help`".into()),
    }
}

/// The binary of `--binary`, or the one that ships, built now.
fn binary(args: &mut Args) -> Result<Binary> {
    Ok(match args.value("--binary")? {
        Some(path) => Binary::Given(path),
        None => Binary::Built,
    })
}

/// Which gateway is measured.
enum Binary {
    Given(PathBuf),
    Built,
}

impl Binary {
    /// Where it is, once it is built.
    fn path(self) -> Result<PathBuf> {
        match self {
            Binary::Given(path) => Ok(path),
            Binary::Built => {
                let arguments = ["build", "--release", "--package", "stillgate-gateway", "--bin", "stillgate"];
                step::run(&mut step::cargo(arguments))?;
                Ok(step::target_dir().join("release/stillgate"))
            }
        }
    }
}
