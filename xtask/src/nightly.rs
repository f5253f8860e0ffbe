//! `cargo xtask nightly`: the project's own suite, measured and compared by the laboratory.
//!
//! `xtask/nightly/suite.yaml` defines the measurements; docs/laboratory.md describes the method.

use crate::Result;
use crate::args::Args;
use crate::packages::{self, VALGRIND};
use crate::step;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

const SUITE: &str = "xtask/nightly/suite.yaml";

/// As in `suite.yaml`: without optimisation across crates, which takes as long as the rest of a build.
const BUILD_SETTINGS: [(&str, &str); 3] =
    [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_BENCH_LTO", "off"), ("CARGO_PROFILE_BENCH_DEBUG", "false")];

/// The time for builds and measurements in a night, besides half an hour for the laboratory's own build and the counts.
const BUDGET: &str = "20m";

pub(crate) fn run(mut args: Args) -> Result {
    let pages = step::target_dir().join("nightly");
    let store = args.value("--store")?.unwrap_or_else(|| pages.join("store").to_string_lossy().into_owned());
    let release: Option<String> = args.value("--release")?;
    let commit: Option<String> = args.value("--commit")?;
    let lab: Option<PathBuf> = args.value("--lab")?;
    let budget = args.value("--budget")?.unwrap_or_else(|| BUDGET.to_owned());
    args.finish()?;
    packages::ensure(&[VALGRIND])?;
    fs::create_dir_all(&pages)?;
    let begun = Instant::now();
    let target = std::env::var_os("NIGHTLY_TARGET").map_or_else(|| pages.join("target"), PathBuf::from);
    let target = std::path::absolute(target)?;
    let lab = match lab {
        Some(lab) => std::path::absolute(lab)?,
        None => build_lab(&target)?,
    };
    let command = |name: &str, page: &str| {
        let mut command = Command::new(&lab);
        command.args([name, "--store", &store, "--repo"]).arg(step::root()).arg("--html").arg(pages.join(page));
        command.env("NIGHTLY_TARGET", &target);
        command
    };
    let mut nightly = command("nightly", "night.html");
    nightly.arg("--suite").arg(step::root().join(SUITE)).args(["--budget", &budget]);
    for (option, value) in [("--release", &release), ("--commit", &commit)] {
        nightly.args(value.iter().flat_map(|value| [option, value]));
    }
    let night = nightly.status()?;
    // Its exit code reports whether something has ever changed, which is not a failure of tonight; without a store it has none.
    command("history", "history.html").stdout(Stdio::null()).status()?;
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!("night.html and history.html are in {}; all of it took {minutes:.1} min", pages.display());
    outcome(night)
}

/// Uses the profile and the folder of the suite's builds, which share its dependencies: a release build takes a third of a night.
fn build_lab(target: &Path) -> Result<PathBuf> {
    let words = ["build", "--profile", "bench", "--package", "stillgate-lab", "--bin", "stillgate-lab"];
    let mut build = step::cargo(words);
    step::run(build.env("CARGO_TARGET_DIR", target).envs(BUILD_SETTINGS))?;
    // The suite's builds write to the same folder.
    let lab = target.join("stillgate-lab-of-tonight");
    fs::copy(target.join("release/stillgate-lab"), &lab)?;
    Ok(lab)
}

/// The result of the night: 0 nothing is worse, 2 undecided, 3 nothing to compare with.
fn outcome(night: ExitStatus) -> Result {
    match night.code() {
        Some(0 | 2 | 3) => Ok(()),
        Some(1) => Err("something is worse; the report above says what".into()),
        _ => Err(format!("stillgate-lab nightly: {night}").into()),
    }
}
