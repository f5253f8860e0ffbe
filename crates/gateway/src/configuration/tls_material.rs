//! Certificates and keys from the file system, for the configuration that names them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_config::{Config, Diagnostic, Severity};
use stillgate_files::read_bounded;
use stillgate_tls::rustls::pki_types::UnixTime;
use stillgate_tls::{FILE_BYTES_MAX, Files, Inputs, Material, Problem, TlsFindings, TlsProblems, files_of};

/// The protocols that clients are offered (RFC 7301), the best first.
const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];
/// The protocols that nodes are offered.
const UPSTREAM_ALPN: &[&[u8]] = &[b"http/1.1"];

/// Loads everything that `config` needs for TLS; unchanged parts of `previous` are kept.
pub(crate) fn load(config: &Config, previous: Option<&Material>) -> Result<(Arc<Material>, Vec<Problem>), TlsProblems> {
    Material::load(config, &inputs(previous)).map(|(material, warnings)| (Arc::new(material), warnings))
}

/// Does what [`load`] does for a datastore, whose resources change one by one: what `previous` has for an unchanged resource stays in
/// use while its files cannot be loaded.
pub(crate) fn load_keeping_unchanged(
    config: &Config,
    previous: Option<&Material>,
) -> Result<(Arc<Material>, TlsFindings), TlsProblems> {
    let loaded = Material::load_keeping_unchanged(config, &inputs(previous));
    loaded.map(|(material, findings)| (Arc::new(material), findings))
}

/// Reads the material again beside what is served with `served`: what cannot be used any more stays as it was, and the reason is
/// reported.
pub(crate) fn renew(config: &Config, served: &Material) -> (Arc<Material>, Vec<Problem>) {
    let (material, problems) = Material::renew(config, &inputs(Some(served)));
    (Arc::new(material), problems)
}

fn inputs(previous: Option<&Material>) -> Inputs<'_> {
    // With a clock before 1970 every certificate is not yet valid, and is reported as that.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(now);
    Inputs { files: &System, previous, now, alpn: ALPN, upstream_alpn: UPSTREAM_ALPN }
}

/// The files whose change is a change of the configuration.
pub(crate) fn files(config: &Config) -> BTreeSet<PathBuf> {
    files_of(config)
}

/// A problem as a finding about the configuration file.
pub(crate) fn diagnostic(problem: Problem, severity: Severity) -> Diagnostic {
    let Problem { path, message, hint } = problem;
    Diagnostic { severity, path, line: 0, column: 0, message, hint, excerpt: None }
}

/// The file system.
struct System;

impl Files for System {
    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        read_bounded(file, FILE_BYTES_MAX)
    }

    fn is_readable_by_all(&self, file: &Path) -> bool {
        const OTHERS_READ: u32 = 0o004;
        fs::metadata(file).is_ok_and(|metadata| metadata.mode() & OTHERS_READ != 0)
    }

    fn system_roots(&self) -> io::Result<Vec<Vec<u8>>> {
        let found = rustls_native_certs::load_native_certs();
        match found.errors.into_iter().next() {
            // Where some could be read, a broken one among them is up to the system's administrator.
            Some(error) if found.certs.is_empty() => Err(io::Error::other(error)),
            _ => Ok(found.certs.into_iter().map(|certificate| certificate.to_vec()).collect()),
        }
    }
}
