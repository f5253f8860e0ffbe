//! Programs for the end-to-end tests that Debian does not package: built by Go, from the module proxy with Go's own checksums.
//!
//! A folder of `xtask` fixes the versions of each. The results stay below `target/`, where the tests look for them.

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
    /// The version in the folder's `go.mod` and in the test that runs it.
    version: &'static str,
    /// The package that is built there.
    package: &'static str,
}

const PEERS: [Peer; 4] = [
    // The conformance tests of HTTP/2.
    Peer { name: "h2spec", version: "2.2.1", package: "github.com/summerwind/h2spec/cmd/h2spec" },
    // The Open Policy Agent, which the plugin opa queries.
    Peer { name: "opa", version: "1.22.3", package: "github.com/open-policy-agent/opa" },
    // An OpenTelemetry Collector, which receives data from the plugin opentelemetry.
    Peer { name: "otelcol", version: "0.165.0", package: "." },
    // A device; the version is that of its WebSocket library.
    Peer { name: "go-device", version: "1.8.13", package: "." },
];

/// The core of Vault. Not among [`PEERS`]: its build downloads 2.3 GB, and only `cargo xtask vault` needs it.
const VAULT: Peer = Peer { name: "vault", version: "1.14.0", package: "." };

/// Builds those that do not exist yet.
pub(crate) fn ensure() -> Result {
    for peer in &PEERS {
        let home = peer.home();
        if !home.join(peer.name).is_file() {
            packages::ensure(&[GO])?;
            println!("building {} {}", peer.name, peer.version);
            peer.build(&home)?;
        }
    }
    Ok(())
}

/// Returns the path of Vault's program. Go rebuilds it if its sources have changed.
pub(crate) fn vault() -> Result<PathBuf> {
    packages::ensure(&[GO])?;
    println!("building {} {}", VAULT.name, VAULT.version);
    let home = VAULT.home();
    VAULT.build(&home)?;
    Ok(home.join(VAULT.name))
}

impl Peer {
    fn home(&self) -> PathBuf {
        step::target_dir().join("peers").join(format!("{}-{}", self.name, self.version))
    }

    fn build(&self, home: &Path) -> Result {
        let peers = home.parent().ok_or("no folder above the programs' own")?;
        fs::create_dir_all(peers)?;
        // Only a complete file gets the name.
        let dir = tempfile::tempdir_in(peers)?;
        let built = dir.path().join("built");
        let mut go = Command::new("go");
        // Without the symbol table and debug information, which take a third of the linker's time.
        go.args(["install", "-ldflags=-s -w", self.package]);
        step::output(go.env("GOBIN", &built).current_dir(step::root().join("xtask").join(self.name)))?;
        if home.exists() {
            fs::remove_dir_all(home)?;
        }
        fs::rename(&built, home)?;
        Ok(())
    }
}
