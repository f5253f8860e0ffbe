//! `cargo xtask test`: all that must hold before a change goes in. `cargo xtask nightly --tests`: the long forms of the same.

use crate::Result;
use crate::args::Args;
use crate::packages::{
    self, CHROMIUM, CURL, ETCD, GRPCIO, H11, HAPROXY, NGINX, NGINX_LUA, PEBBLE, PERF, PROMETHEUS, PROMETHEUS_CLIENT,
    PROTOBUF, PYTHON_BROTLI, PYTHON_ZSTD, REDIS, RSYSLOG, VALGRIND, WEBSOCKETS, ZSTD,
};
use crate::step::{self, Steps};
use crate::suite::{self, LONG_FORMS, Run};
use crate::{arrows, deny, documents, fuzz, go_peers, icount, rooms, tidy};

/// What the tests run beside the gateway.
const PEERS: &[packages::Package] = &[
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

/// How long the nightly runs each fuzz target.
const FUZZ_SECONDS: u64 = 300;

/// The checks that read the sources alone; they take seconds.
pub(crate) fn style(args: Args) -> Result {
    args.finish()?;
    let mut steps = Steps::default();
    check_style(&mut steps);
    steps.finish()
}

fn check_style(steps: &mut Steps) {
    steps.run("format", || step::run(&mut step::cargo(["fmt", "--all", "--check"])));
    steps.run("tidy", tidy::check);
    steps.run("documents", documents::check);
    steps.run("arrows between crates", arrows::check);
    steps.run("arrows between rooms", rooms::check);
}

/// Everything, or the tests that the arguments select: those are nextest's own.
pub(crate) fn run(mut args: Args) -> Result {
    let quick = args.flag("--quick");
    let record = args.flag("--record");
    let selection = args.rest();
    if !selection.is_empty() {
        if quick || record {
            return Err("--quick and --record are for the whole run, not for a selection of tests".into());
        }
        return Run { selection, ..Run::default() }.start();
    }
    let mut steps = Steps::default();
    steps.run("Debian packages", || packages::ensure(PEERS));
    check_style(&mut steps);
    // Go fills the cores where cargo waits for one crate.
    steps.together("build", &[("tests, linted by clippy", suite::build), ("peers in Go", go_peers::ensure)]);
    steps.run("unit, property and end-to-end tests", || Run::default().start());
    steps.run("tests in the documentation", documentation_tests);
    if !quick {
        steps.run("instruction counts", || icount::check(false));
    }
    match record {
        true => steps.record(),
        false => steps.compare(),
    }
}

fn documentation_tests() -> Result {
    let mut cargo = step::cargo(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
    step::run(suite::with_clippy(&mut cargo))
}

/// The long forms: what takes too long for each change.
pub(crate) fn nightly(mut args: Args) -> Result {
    let seconds = args.value("--fuzz-seconds")?.unwrap_or(FUZZ_SECONDS);
    args.finish()?;
    let mut steps = Steps::default();
    steps.run("Debian packages", || packages::ensure(PEERS));
    steps.together("build", &[("tests, linted by clippy", suite::build), ("peers in Go", go_peers::ensure)]);
    steps.run("all tests in their long forms", || {
        let (name, value) = LONG_FORMS;
        Run { environment: vec![(name, value.into())], ..Run::default() }.start()
    });
    steps.run("fuzz targets", || fuzz::all(seconds));
    steps.run("secrets with a real Vault", with_vault);
    steps.run("dependencies: licences, sources, duplicates", deny::check_policy);
    steps.run("dependencies: advisories", deny::check_advisories);
    steps.finish()
}

/// Runs the tests that use a Vault against a real one. Its build takes too long for CI, which uses the double.
pub(crate) fn vault(args: Args) -> Result {
    args.finish()?;
    with_vault()
}

fn with_vault() -> Result {
    let environment = vec![("VAULT", go_peers::vault()?)];
    let tests = "binary_id(=stillgate-testkit::vault) or binary_id(=stillgate-gateway::plugins) and test(/^secrets::/)";
    Run { selection: vec!["-E".to_owned(), tests.to_owned()], environment }.start()
}
