//! `cargo xtask test`: all that must hold before a change goes in.

use crate::Result;
use crate::args::Args;
use crate::packages::{
    self, CHROMIUM, CURL, ETCD, GRPCIO, GXX, H11, HAPROXY, NGINX, NGINX_LUA, PEBBLE, PERF, PROMETHEUS,
    PROMETHEUS_CLIENT, PROTOBUF, PYTHON_BROTLI, PYTHON_ZSTD, REDIS, RSYSLOG, VALGRIND, WEBSOCKETS, ZSTD,
};
use crate::step::{self, Steps};
use crate::{arrows, documents, fuzz, go_peers, icount, rooms, suite, tidy};

/// The part of the tests that loom runs, under every order of loads and stores.
const LOOM: [&str; 9] = [
    "test",
    "--package",
    "stillgate-limits",
    "--package",
    "stillgate-metrics",
    "--lib",
    "--profile",
    "loom",
    "loom_tests",
];

/// What reading the sources alone can tell; it takes a second.
pub(crate) fn style(args: Args) -> Result {
    args.finish()?;
    let mut steps = Steps::default();
    look(&mut steps);
    steps.finish()
}

fn look(steps: &mut Steps) {
    steps.run("format", || step::run(&mut step::cargo(["fmt", "--all", "--check"])));
    steps.run("tidy", tidy::check);
    steps.run("documents", documents::check);
    steps.run("arrows between crates", arrows::check);
    steps.run("arrows between rooms", rooms::check);
}

/// How long each fuzz target runs here; long enough to see that it still works and finds the shallow things.
const FUZZ_SECONDS: u64 = 10;

pub(crate) fn run(mut args: Args) -> Result {
    let quick = args.flag("--quick");
    args.finish()?;
    let mut needed = vec![
        NGINX,
        NGINX_LUA,
        HAPROXY,
        CURL,
        H11,
        PROMETHEUS,
        PROMETHEUS_CLIENT,
        CHROMIUM,
        WEBSOCKETS,
        GRPCIO,
        PROTOBUF,
        PERF,
        PEBBLE,
        PYTHON_BROTLI,
        PYTHON_ZSTD,
        ZSTD,
        RSYSLOG,
        ETCD,
        REDIS,
        VALGRIND,
    ];
    if !quick {
        needed.extend([GXX]);
    }
    let mut steps = Steps::default();
    steps.run("Debian packages", || packages::ensure(&needed));
    steps.run("programs built by Go", go_peers::ensure);
    look(&mut steps);
    let mut tests = Vec::new();
    let mut warnings = 0;
    steps.run("build of the tests", || suite::build(&mut tests).map(|warned| warnings = warned));
    steps.run("clippy, which built them", || match warnings {
        0 => Ok(()),
        _ => Err(format!("{warnings} warnings above, and none is allowed").into()),
    });
    steps.run("unit, property and end-to-end tests", || suite::run(&tests));
    steps.run("tests in the documentation", || {
        let mut cargo = step::cargo(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
        step::run(suite::with_clippy(&mut cargo))
    });
    if !quick {
        // Two share a folder of cargo's, where one of them has nothing to build. None measures time.
        steps.together(&[
            ("splitting of heads without debug assertions", suite::run_without_assertions),
            ("loom", loom),
            ("fuzz targets", || fuzz::all(FUZZ_SECONDS)),
            ("instruction counts", || icount::check(false)),
        ]);
    }
    steps.finish()
}

/// Runs the tests that use a Vault against a real one. Its build takes too long for CI, which uses the double.
pub(crate) fn vault(args: Args) -> Result {
    args.finish()?;
    let program = go_peers::vault()?;
    let mut cargo = step::cargo(["test", "--workspace", "--test", "vault", "--test", "e2e_secrets"]);
    step::run(suite::with_clippy(&mut cargo).env("VAULT", program))
}

fn loom() -> Result {
    let mut cargo = step::cargo(LOOM);
    step::run(cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", step::target_dir().join("loom")))
}
