//! `cargo xtask test`: everything that must pass before a change is merged. `cargo xtask nightly --tests`: the long forms of the
//! same.

use crate::Result;
use crate::args::Args;
use crate::packages::{
    self, CHROMIUM, CURL, ETCD, GRPCIO, GXX, H11, HAPROXY, NGINX, NGINX_LUA, PEBBLE, PERF, PROMETHEUS,
    PROMETHEUS_CLIENT, PROTOBUF, PYTHON_BROTLI, PYTHON_ZSTD, REDIS, RSYSLOG, TMUX, VALGRIND, WEBSOCKETS, ZSTD,
};
use crate::passed::Parts;
use crate::step::{self, Steps};
use crate::suite::{self, LONG_FORMS, TestRun};
use crate::wheels::Wheel;
use crate::{arrows, deny, dist, documents, fuzz, go_peers, icount, rooms, tidy, type_names, unsafety, wording};
use std::process::Command;
use std::sync::Mutex;

/// The packages that the tests run besides the gateway.
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
    TMUX,
    RSYSLOG,
    ETCD,
    REDIS,
    VALGRIND,
];

/// axe-core, the accessibility checker that a test runs in the dashboard's pages. This wheel packages its release.
const AXE: Wheel = Wheel {
    name: "axe",
    package: "axe-playwright-python",
    version: "0.1.8",
    // One wheel for all machines.
    sha256: ["fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8"; 2],
    program: "axe_playwright_python/axe.min.js",
};

/// How long the nightly runs each fuzz target.
const FUZZ_SECONDS: u64 = 300;

/// The checks that only read the sources; they take seconds.
pub(crate) fn style(args: Args) -> Result {
    args.finish()?;
    let mut steps = Steps::default();
    check_style(&mut steps);
    steps.finish()
}

fn check_style(steps: &mut Steps) {
    steps.run("format", || step::run(&mut step::cargo(["fmt", "--all", "--check"])));
    steps.run("tidy", tidy::check);
    steps.run("words", wording::check);
    steps.run("names of types", type_names::check);
    steps.run("documents", documents::check);
    steps.run("unsafe code", unsafety::check);
    steps.run("arrows between crates", arrows::check);
    steps.run("arrows between rooms", rooms::check);
}

/// Runs everything, or the tests that the arguments, which are nextest's, select.
pub(crate) fn run(mut args: Args) -> Result {
    let quick = args.flag("--quick");
    let record = args.flag("--record");
    let all = args.flag("--all") || record;
    let selection = args.rest();
    if !selection.is_empty() {
        if quick || all {
            return Err("--quick, --all and --record are for the whole run, not for a selection of tests".into());
        }
        return TestRun { selection, ..TestRun::default() }.start();
    }
    let mut steps = Steps::default();
    steps.run("Debian packages", || packages::ensure(PEERS));
    check_style(&mut steps);
    let parts = build(&mut steps);
    steps.run("unit, property and end-to-end tests", || {
        let parts = if all { parts.without_memory() } else { parts };
        TestRun { parts, ..TestRun::default() }.start()
    });
    steps.run("tests in the documentation", documentation_tests);
    if !quick {
        steps.run("instruction counts", || icount::check(false, all));
    }
    match record {
        true => steps.record(),
        false => steps.compare(),
    }
}

/// Builds the tests, and at the same time the peers, so that Go uses the cores while cargo waits for one crate.
fn build(steps: &mut Steps) -> Parts {
    let parts = Mutex::default();
    steps.together(
        "build",
        &[
            ("tests, linted by clippy", &|| suite::build(&parts)),
            ("peers in Go", &go_peers::ensure),
            ("axe-core", &|| AXE.ensure().map(drop)),
        ],
    );
    parts.into_inner().unwrap_or_default()
}

fn documentation_tests() -> Result {
    let mut cargo = step::cargo(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
    step::run(suite::with_clippy(&mut cargo))
}

/// Runs the long forms: checks that take too long for each change.
pub(crate) fn nightly(mut args: Args) -> Result {
    let seconds = args.value("--fuzz-seconds")?.unwrap_or(FUZZ_SECONDS);
    args.finish()?;
    let mut steps = Steps::default();
    steps.run("Debian packages", || packages::ensure(&[PEERS, &[GXX]].concat()));
    build(&mut steps);
    steps.run("all tests in their long forms", || {
        let environment = LONG_FORMS.iter().map(|(name, value)| (*name, value.into())).collect();
        TestRun { environment, profile: Some("nightly"), ..TestRun::default() }.start()
    });
    steps.run("fuzz targets", || fuzz::all(seconds));
    steps.run("secrets with a real Vault", with_vault);
    steps.run("an hour of load", soak);
    steps.run("crates that can be published", dist::check_publishable);
    steps.run("dependencies: licences, sources, duplicates", deny::check_policy);
    steps.run("dependencies: advisories", deny::check_advisories);
    steps.finish()
}

/// Runs the tests that use a Vault against a real one. Its build takes too long for CI, which uses the double.
pub(crate) fn vault(args: Args) -> Result {
    args.finish()?;
    with_vault()
}

/// Its page is in `target/soak`.
fn soak() -> Result {
    let mut command = Command::new("bash");
    command.current_dir(step::root()).arg("bench/soak.sh").arg(step::target_dir().join("soak")).arg("1h");
    for (variable, (package, name)) in ["GATEWAY", "LAB"].into_iter().zip(dist::PROGRAMS) {
        command.env(variable, dist::build(package, name)?);
    }
    step::run(&mut command)
}

fn with_vault() -> Result {
    let environment = vec![("VAULT", go_peers::vault()?)];
    let tests = "binary_id(=stillgate-testkit::vault) or binary_id(=stillgate-gateway::plugins) and test(/^secrets::/)";
    TestRun { selection: vec!["-E".to_owned(), tests.to_owned()], environment, ..TestRun::default() }.start()
}
