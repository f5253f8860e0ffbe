//! `cargo xtask TASK`: the project's own tasks, one module each.
//!
//! They are a program and not a shell script so that they report missing tools, measure themselves, and run the same on every
//! machine. Nothing in here is part of the gateway.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::process::ExitCode;

mod args;
mod arrows;
mod bench;
mod costs;
mod deny;
mod dist;
mod documents;
mod envoy;
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
                                      the long forms: longer tests, each fuzz target S (300) seconds, a real Vault, cargo-deny
cargo xtask fuzz [--seconds S]        the fuzz targets, S (10) seconds each
cargo xtask dist                      gateway and laboratory as they are measured and shipped, in target/dist/bin
cargo xtask vault                     the tests of secrets with a real Vault in place of its double; not part of CI
cargo xtask icount [--update]         instructions per operation against xtask/icount.toml
cargo xtask nightly [--store DIR] [--release REV] [--commit REV] [--lab PATH] [--budget 20m]
                                      the suite of xtask/nightly, compared with the last night and a release; at most half an hour
cargo xtask bench proxy  [--rounds N] [--seconds S] [--connections N] [--routes N] [--case NAME] [--protocol http1|tls|http2|grpc] [--quick] [--syscalls] [--json FILE]
                                      CPU per request beside nginx, HAProxy and Envoy
cargo xtask bench plugins [--rounds N] [--seconds S] [--connections N] [--case NAME|all] [--quick] [--json FILE]
                                      CPU that plugins add to a request, beside the like in nginx, HAProxy and Envoy
cargo xtask bench plugins --instructions [--rounds N] [--case NAME|all] [--profiles DIR] [--json FILE]
                                      the same in instructions and system calls, beside nginx and HAProxy; DIR: profiles of callgrind
cargo xtask bench consumers [--consumers N] [--additions N] [--json FILE]
                                      memory of N consumers, and how soon one more is served
cargo xtask bench logger [--pairs N] [--seconds S] [--rate R] [--lab PATH] [--json FILE]
                                      latency with http-logger to a receiver that stalls; memory and losses
cargo xtask bench body   [--rounds N] [--json FILE]
                                      memory and throughput of 1 GiB of responses through a filter of bodies
cargo xtask bench idle   [--connections N]
                                      memory of idle keep-alive connections
cargo xtask bench profiling [--rounds N]
                                      instructions per request where profiles are allowed and where the heap is sampled
cargo xtask bench routes [--routes N] [--rounds N] [--seconds S] [--connections N] [--family NAME] [--cache off|on|auto]
                         [--spread] [--json FILE]
                                      CPU per request with N expression routes beside one; also with URI routes
cargo xtask bench soak   [--seconds S]
                                      mixed load with checksums, aborting clients, a dying upstream
cargo xtask bench generator [--rounds N] [--seconds S] [--connections N] [--lab PATH]
                                      CPU per request of the laboratory's load generator beside wrk
The benches build the binary of profile `dist` first; --binary PATH measures another one. ENVOY=PATH: an Envoy to use instead of the
pinned one.
Latency under scrapes, and one revision against another: `stillgate-lab`, see docs/laboratory.md.
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
        Some("bench") if cfg!(debug_assertions) => bench::optimised(args),
        Some("bench") => bench::run(args),
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
