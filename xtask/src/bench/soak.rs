//! `cargo xtask bench soak`: builds the shipped binary and runs the testkit's mixed load against it.
//!
//! The testkit's example `soak` defines the load and the checks.

use crate::Result;
use crate::args::Args;
use crate::packages::{self, NGINX};
use crate::step;

pub(super) fn run(mut args: Args) -> Result {
    let seconds: u64 = args.value("--seconds")?.unwrap_or(60);
    let binary = super::binary(&mut args)?;
    args.finish()?;
    packages::ensure(&[NGINX])?;
    let binary = binary.path()?;
    let arguments = ["run", "--release", "--package", "stillgate-testkit", "--example", "soak", "--"];
    let mut command = step::cargo(arguments);
    command.args(["--seconds", &seconds.to_string(), "--binary"]).arg(binary);
    step::run(&mut command)
}
