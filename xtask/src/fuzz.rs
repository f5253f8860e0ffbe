//! The fuzz targets under libFuzzer, with the stable compiler.
//!
//! Coverage comes from LLVM's own pass, which `-C passes` enables without a nightly flag. An address sanitizer is not needed: the
//! code under test is `forbid(unsafe_code)`, so panics are the only crashes to find.

use crate::Result;
use crate::args::Args;
use crate::packages::{self, GXX};
use crate::parallel;
use crate::step::{self, root, target_dir};
use std::fs;
use std::path::Path;
use std::process::Command;

/// One binary of `fuzz/Cargo.toml` each, with its seeds in `fuzz/corpus/NAME`.
const TARGETS: &[&str] =
    &["request_head", "response_head", "chunked_body", "proxy_header", "field_blocks", "expression"];

/// Longest input tried; more than a head needs to reach every state of the parser.
const INPUT_BYTES_MAX: usize = 4096;

/// Instruments every crate for libFuzzer, and keeps the checks that a release build leaves out.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

pub(crate) fn run(mut args: Args) -> Result {
    let seconds = args.value("--seconds")?.unwrap_or(10);
    args.finish()?;
    packages::ensure(&[GXX])?;
    all(seconds)
}

/// Builds the targets and runs each for `seconds`, one on each CPU at a time.
pub(crate) fn all(seconds: u64) -> Result {
    let triple = host_triple()?;
    let built = target_dir().join("fuzz");
    // With `--target`, build scripts and macros stay without the flags above.
    let arguments = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &triple];
    step::run(step::cargo(arguments).env("RUSTFLAGS", RUSTFLAGS).env("CARGO_TARGET_DIR", &built))?;
    let outcomes = parallel::map(TARGETS, parallel::cpus(), |target| {
        let binary = built.join(&triple).join("release").join(target);
        one(target, &binary, &built.join("corpus").join(target), seconds).map_err(|error| error.to_string())
    });
    let failures: Vec<String> = outcomes.into_iter().filter_map(std::result::Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn one(target: &str, binary: &Path, found: &Path, seconds: u64) -> Result {
    let artifacts = root().join("fuzz/artifacts").join(target);
    fs::create_dir_all(found)?;
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(binary);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([found, &root().join("fuzz/corpus").join(target)]);
    let (good, _, log) = step::capture(&mut command)?;
    if !good {
        let tail: Vec<&str> = log.lines().rev().take(40).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        return Err(
            format!("{target}: a check failed; the input is in fuzz/artifacts/{target}\n{}", tail.join("\n")).into()
        );
    }
    // libFuzzer's last line: "#123 DONE cov: 45 ft: 67 corp: 8/9b lim: 10 exec/s: 11 rss: 12Mb".
    let last = log.lines().rev().find(|line| line.contains("DONE"));
    println!("{target}: {}", last.unwrap_or("no summary").trim());
    Ok(())
}

fn host_triple() -> Result<String> {
    let version = step::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc -vV names no host")?.to_owned())
}
