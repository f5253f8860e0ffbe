//! The program of h2spec, which Debian has no package of: built by Go, from the module proxy and Go's own checksums.
//!
//! `xtask/h2spec` fixes the versions. What was built stays below `target/`, where the end-to-end tests look for it.

use crate::Result;
use crate::packages::{self, GO};
use crate::step;
use std::fs;
use std::path::Path;
use std::process::Command;

/// As `xtask/h2spec/go.mod` and `crates/gateway/tests/e2e_h2spec.rs` have it.
const VERSION: &str = "2.2.1";
const PACKAGE: &str = "github.com/summerwind/h2spec/cmd/h2spec";

/// Builds it where it is not there yet.
pub(crate) fn ensure() -> Result {
    let home = step::target_dir().join("peers").join(format!("h2spec-{VERSION}"));
    if !home.join("h2spec").is_file() {
        packages::ensure(&[GO])?;
        println!("building h2spec {VERSION}");
        build(&home)?;
    }
    Ok(())
}

fn build(home: &Path) -> Result {
    let peers = home.parent().ok_or("no folder above h2spec's")?;
    fs::create_dir_all(peers)?;
    // Only what is whole gets its name.
    let dir = tempfile::tempdir_in(peers)?;
    let built = dir.path().join("built");
    let mut go = Command::new("go");
    go.args(["install", PACKAGE]).env("GOBIN", &built).current_dir(step::root().join("xtask/h2spec"));
    step::output(&mut go)?;
    fs::rename(&built, home)?;
    Ok(())
}
