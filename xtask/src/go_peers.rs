//! Programs that the end-to-end tests run and Debian has no package of: built by Go, from the module proxy and Go's own checksums.
//!
//! A folder of `xtask` fixes the versions of each. What was built stays below `target/`, where the tests look for it.

use crate::Result;
use crate::packages::{self, GO};
use crate::step;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One program.
struct Peer {
    /// Its folder in `xtask`, and the program's name.
    name: &'static str,
    /// As the folder's `go.mod` and the test that runs it have it.
    version: &'static str,
    /// What is built there.
    package: &'static str,
}

const PEERS: [Peer; 4] = [
    // The conformance tests of HTTP/2.
    Peer { name: "h2spec", version: "2.2.1", package: "github.com/summerwind/h2spec/cmd/h2spec" },
    // The Open Policy Agent, which the plugin opa asks.
    Peer { name: "opa", version: "1.22.3", package: "github.com/open-policy-agent/opa" },
    // An OpenTelemetry Collector, which gets what the plugin opentelemetry sends.
    Peer { name: "otelcol", version: "0.165.0", package: "." },
    // A device; the version is that of its WebSocket library.
    Peer { name: "go-device", version: "1.8.13", package: "." },
];

/// The core of Vault. Not among [`PEERS`]: its build downloads 2.3 GB, and only `cargo xtask vault` needs it.
const VAULT: Peer = Peer { name: "vault", version: "1.14.0", package: "." };

/// Builds those that are not there yet.
pub(crate) fn ensure() -> Result {
    PEERS.iter().try_for_each(|peer| peer.ensure().map(drop))
}

/// Where Vault's program is; built first where it is not there yet.
pub(crate) fn vault() -> Result<PathBuf> {
    VAULT.ensure()
}

impl Peer {
    fn ensure(&self) -> Result<PathBuf> {
        let home = step::target_dir().join("peers").join(format!("{}-{}", self.name, self.version));
        let program = home.join(self.name);
        if !self.is_current(&program)? {
            packages::ensure(&[GO])?;
            println!("building {} {}", self.name, self.version);
            self.build(&home)?;
        }
        Ok(program)
    }

    fn folder(&self) -> PathBuf {
        step::root().join("xtask").join(self.name)
    }

    /// Whether it was built after the last change of its folder.
    fn is_current(&self, program: &Path) -> Result<bool> {
        let Ok(built) = fs::metadata(program).and_then(|program| program.modified()) else { return Ok(false) };
        for file in fs::read_dir(self.folder())? {
            if file?.metadata()?.modified()? > built {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn build(&self, home: &Path) -> Result {
        let peers = home.parent().ok_or("no folder above the programs' own")?;
        fs::create_dir_all(peers)?;
        // Only what is whole gets its name.
        let dir = tempfile::tempdir_in(peers)?;
        let built = dir.path().join("built");
        let mut go = Command::new("go");
        // Without tables of symbols and for debuggers, which take a third of the linker's time.
        go.args(["install", "-ldflags=-s -w", self.package]);
        step::output(go.env("GOBIN", &built).current_dir(self.folder()))?;
        if home.exists() {
            fs::remove_dir_all(home)?;
        }
        fs::rename(&built, home)?;
        Ok(())
    }
}
