//! A certificate authority of our own, and what it has signed, as files.

#![allow(dead_code, reason = "not every test target uses all of it")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Signs certificates and keeps them in a folder: `ca.pem`, and `NAME.pem` with `NAME.key` of each.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let dir = tempfile::tempdir().expect("a temporary folder");
        // nginx's worker may run as another user.
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("open the folder");
        fs::write(dir.path().join("ca.pem"), issuer.pem()).expect("write");
        Authority { issuer, dir }
    }

    /// Issues a certificate for these names (or addresses), in `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, file);
        params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        fs::write(self.file(&format!("{file}.pem")), certificate.pem()).expect("write");
        let key_file = self.file(&format!("{file}.key"));
        fs::write(&key_file, key.serialize_pem()).expect("write");
        fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).expect("permissions");
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Its path as an argument.
    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}
