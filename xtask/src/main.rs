//! `cargo xtask TASK`: the project's own tasks, one module each.
//!
//! They are a program and not a shell script so that they report missing tools, measure themselves, and run the same on every
//! machine. Nothing in here is part of the gateway.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::process::ExitCode;

mod args;
mod arrows;
mod costs;
mod deny;
mod dist;
mod documents;
mod envoy;
mod function_order;
mod functions;
mod fuzz;
mod go_peers;
mod icount;
mod junit;
mod names;
mod nightly;
mod packages;
mod parallel;
mod passed;
mod rooms;
mod source;
mod step;
mod suite;
mod test;
mod tidy;
mod tree;
mod type_names;
mod unsafety;
mod wheels;
mod wording;

/// A task succeeds or ends with one message for the person who ran it; nothing depends on the kind of error, so there are no kinds.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "\
cargo xtask test [--quick] [--all] [--record]
                                      everything CI checks; --all also runs tests that have passed and cannot have changed since;
                                      --quick leaves out instruction counts, --record keeps the CPU time of each step
cargo xtask test SELECTION            some tests, with the arguments of `cargo nextest run`: --test http limits::, -p stillgate-wire, -E 'test(=…)'
cargo xtask style                     what needs no build: format, style, words, names, documents, arrows
cargo xtask nightly --tests [--fuzz-seconds S]
                                      the long forms: longer tests, each fuzz target S (300) seconds, a real Vault, an hour of load, cargo-deny
cargo xtask fuzz [--seconds S]        the fuzz targets, S (10) seconds each
cargo xtask dist                      gateway and laboratory as they are measured and shipped, in target/dist/bin
cargo xtask package                   Debian packages, archive, wheel, a container's files and SBOM, in target/packages
cargo xtask vault                     the tests of secrets with a real Vault in place of its double; not part of CI
cargo xtask icount [--update]         instructions per operation against xtask/icount.toml
cargo xtask nightly [--store DIR] [--release REV] [--commit REV] [--lab PATH] [--budget 20m]
                                      the suite of xtask/nightly, compared with the last night and a release; at most half an hour
cargo xtask envoy                     fetches the pinned Envoy, and prints its path
Everything else that is measured: `stillgate-lab` with the suites in bench, see CONTRIBUTING.md and docs/laboratory.md.
";

fn main() -> ExitCode {
    let mut args = args::Args::new(std::env::args().skip(1));
    let done = match args.word().as_deref() {
        Some("test") => test::run(args),
        Some("style") => test::style(args),
        Some("fuzz") => fuzz::run(args),
        Some("vault") => test::vault(args),
        Some("icount") => icount::run(args),
        Some("dist") => dist::run(args),
        Some("package") => dist::package(args),
        Some("envoy") => envoy::run(args),
        Some("nightly") if args.flag("--tests") => test::nightly(args),
        Some("nightly") => nightly::run(args),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
