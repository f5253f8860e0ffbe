//! The TLS settings of all benches: one certificate (ECDSA, P-256), TLS 1.3, one cipher, one group.
//!
//! Servers and clients have preferences of their own; by default, one gateway would be measured with AES-128 and TLS 1.2 and
//! another with AES-256 and 1.3. The clients offer nothing else, and each gateway's choice is checked beforehand.

use crate::Result;
use crate::step;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const CIPHER: &str = "TLS_AES_256_GCM_SHA384";
const GROUP: &str = "X25519";

/// Makes the certificate that all gateways present: `certificate.pem`, `key.pem`, and both in `both.pem`.
pub(super) fn certificate(dir: &Path) -> Result {
    let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    command.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"]);
    step::output(command.arg(&key).arg("-out").arg(&certificate))?;
    fs::write(dir.join("both.pem"), [fs::read(&certificate)?, fs::read(&key)?].concat())?;
    Ok(())
}

/// Settings for clients with OpenSSL, in `OPENSSL_CONF`: most have no option for it.
pub(super) fn client_settings(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("openssl.cnf");
    fs::write(
        &path,
        format!(
            "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = default\n\
             [default]\nMinProtocol = TLSv1.3\nCiphersuites = {CIPHER}\nGroups = {GROUP}\n"
        ),
    )?;
    Ok(path)
}

/// Fails if a gateway negotiates anything else.
pub(super) fn check(address: SocketAddr, settings: &Path) -> Result {
    let mut command = Command::new("openssl");
    command.env("OPENSSL_CONF", settings).args(["s_client", "-brief", "-connect", &address.to_string()]);
    let (_, _, told) = step::capture(&mut command)?;
    let has = |name: &str, value: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name));
        line.is_some_and(|line| line.trim().starts_with(value))
    };
    let agreed = has("Protocol version:", "TLSv1.3") && has("Ciphersuite:", CIPHER) && has("Server Temp Key:", GROUP);
    if !agreed {
        return Err(format!("not TLS 1.3 with {CIPHER} and {GROUP}:\n{told}").into());
    }
    Ok(())
}
