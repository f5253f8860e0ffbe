//! `cargo xtask dist`: gateway and laboratory as they are measured and shipped, with their line tables in separate files.
//!
//! The program names its file (`.gnu_debuglink`), so that profilers and debuggers find it next to the program or below
//! `/usr/lib/debug`. Function names stay in the program: without the file a profile only lacks line numbers.

use crate::Result;
use crate::args::Args;
use crate::function_order;
use crate::step::{self, target_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages with their programs.
pub(crate) const PROGRAMS: [(&str, &str); 2] = [("stillgate-gateway", GATEWAY), ("stillgate-lab", "stillgate-lab")];
const GATEWAY: &str = "stillgate";

pub(crate) fn run(args: Args) -> Result {
    args.finish()?;
    for (package, name) in PROGRAMS {
        let program = build(package, name)?;
        for file in [&program, &lines_of(&program)] {
            println!("{:>6.1} MB  {}", fs::metadata(file)?.len() as f64 / 1e6, file.display());
        }
    }
    Ok(())
}

/// Version of the program that writes the list of parts.
const CYCLONEDX: &str = "0.5.9";

/// Builds the programs and makes their packages.
pub(crate) fn package(args: Args) -> Result {
    args.finish()?;
    let out = target_dir().join("packages");
    fs::create_dir_all(&out)?;
    let mut make = step::cargo(["run", "--quiet", "--package", "stillgate-packaging", "--"]);
    for (package, name) in PROGRAMS {
        make.arg(build(package, name)?);
    }
    step::run(make.arg(&out))?;
    parts_list(&out)
}

/// The software bill of materials of each program: every crate that it is made of, in CycloneDX's format.
fn parts_list(out: &Path) -> Result {
    let home = target_dir().join("peers").join(format!("cargo-cyclonedx-{CYCLONEDX}"));
    if !home.join("bin/cargo-cyclonedx").is_file() {
        let mut install = step::cargo(["install", "--locked", "--quiet", "cargo-cyclonedx", "--version", CYCLONEDX]);
        step::run(install.arg("--root").arg(&home))?;
    }
    let mut write = Command::new(home.join("bin/cargo-cyclonedx"));
    write.args(["cyclonedx", "--format", "json", "--spec-version", "1.5", "--describe", "binaries"]);
    step::output(write.current_dir(step::root()))?;
    for (package, name) in PROGRAMS {
        let folder = step::root().join("crates").join(package.trim_start_matches("stillgate-"));
        let written = folder.join(format!("{name}_bin.cdx.json"));
        let to = out.join(format!("{name}.cdx.json"));
        fs::copy(&written, &to).map_err(|error| format!("{}: {error}", written.display()))?;
        println!("           {}", to.display());
    }
    // It writes beside every manifest.
    let all = step::output(
        Command::new("find")
            .arg(step::root().join("crates"))
            .arg(step::root().join("xtask"))
            .args(["-name", "*.cdx.json"]),
    )?;
    for file in all.lines() {
        fs::remove_file(file)?;
    }
    Ok(())
}

/// Crates that work without the gateway, with those they depend on.
const PUBLISHABLE: [&str; 8] = [
    "stillgate-lab",
    "stillgate-load",
    "stillgate-metrics",
    "stillgate-profiler",
    "stillgate-rig",
    "stillgate-stats",
    "stillgate-wire",
    "stillgate-yaml",
];

/// Packs and builds the crates as their users would, and uploads nothing.
pub(crate) fn check_publishable() -> Result {
    let mut publish = step::cargo(["publish", "--dry-run", "--locked", "--quiet", "--allow-dirty"]);
    step::run(publish.args(PUBLISHABLE.iter().flat_map(|name| ["--package", name])))
}

/// Builds one program; returns its path.
pub(crate) fn build(package: &str, name: &str) -> Result<PathBuf> {
    let built = match name {
        // The linker of other machines takes no order.
        GATEWAY if cfg!(target_arch = "x86_64") => function_order::build(package, name)?,
        _ => {
            step::run(&mut step::cargo(["build", "--profile", "dist", "--package", package, "--bin", name]))?;
            target_dir().join("dist").join(name)
        }
    };
    let folder = target_dir().join("dist/bin");
    let program = folder.join(name);
    let is_newer =
        |path: &Path| Ok::<_, std::io::Error>(fs::metadata(path)?.modified()? >= fs::metadata(&built)?.modified()?);
    if !is_newer(&program).unwrap_or(false) {
        fs::create_dir_all(&folder)?;
        split(&built, &program)?;
    }
    Ok(program)
}

/// The file with the line tables of a program.
fn lines_of(program: &Path) -> PathBuf {
    program.with_extension("debug")
}

fn split(built: &Path, program: &Path) -> Result {
    let lines = lines_of(program);
    let objcopy = |arguments: &[&str], to: &Path| {
        let mut command = Command::new("objcopy");
        step::output(command.args(arguments).arg(built).arg(to))
            .map_err(|error| format!("{error}\nobjcopy is in Debian's package binutils"))
    };
    objcopy(&["--only-keep-debug"], &lines)?;
    // Renamed once it is complete, so that an interrupted run leaves no partial program.
    let unfinished = program.with_extension("unfinished");
    objcopy(&["--strip-debug", &format!("--add-gnu-debuglink={}", lines.display())], &unfinished)?;
    fs::rename(unfinished, program)?;
    Ok(())
}
