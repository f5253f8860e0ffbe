//! `cargo xtask nightly`: the project's own suite, measured and compared by the laboratory.
//!
//! What is measured is in `xtask/nightly/suite.yaml`; how, in docs/laboratory.md.

use crate::Result;
use crate::args::Args;
use crate::packages::{self, VALGRIND};
use crate::step;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

const SUITE: &str = "xtask/nightly/suite.yaml";

pub(crate) fn run(mut args: Args) -> Result {
    let pages = step::target_dir().join("nightly");
    let store = args.value("--store")?.unwrap_or_else(|| pages.join("store").to_string_lossy().into_owned());
    let release: Option<String> = args.value("--release")?;
    let commit: Option<String> = args.value("--commit")?;
    let lab: Option<PathBuf> = args.value("--lab")?;
    args.finish()?;
    packages::ensure(&[VALGRIND])?;
    fs::create_dir_all(&pages)?;
    let lab = match lab {
        Some(lab) => std::path::absolute(lab)?,
        None => {
            let mut build = step::cargo(["build", "--release", "--package", "stillgate-lab", "--bin", "stillgate-lab"]);
            step::run(&mut build)?;
            step::target_dir().join("release/stillgate-lab")
        }
    };
    let command = |name: &str, page: &str| {
        let mut command = Command::new(&lab);
        command.args([name, "--store", &store, "--repo"]).arg(step::root()).arg("--html").arg(pages.join(page));
        command
    };
    let mut nightly = command("nightly", "night.html");
    nightly.arg("--suite").arg(step::root().join(SUITE));
    for (option, value) in [("--release", &release), ("--commit", &commit)] {
        nightly.args(value.iter().flat_map(|value| [option, value]));
    }
    let night = nightly.status()?;
    // Its exit code says that something has changed at some time, which is no failure of tonight; without a store there is none.
    command("history", "history.html").stdout(Stdio::null()).status()?;
    println!("night.html and history.html are in {}", pages.display());
    outcome(night)
}

/// As the night ended: 0 nothing is worse, 2 undecided, 3 nothing to compare with.
fn outcome(night: ExitStatus) -> Result {
    match night.code() {
        Some(0 | 2 | 3) => Ok(()),
        Some(1) => Err("something is worse; the report above says what".into()),
        _ => Err(format!("stillgate-lab nightly: {night}").into()),
    }
}
