//! The keys of `gateway.acme`, which say who issues the certificates of the entries of `ssls` with `acme: true`.
//!
//! How certificates are ordered is the business of the gateway; which entries want one, of `resolve::ssls`.

use crate::keys::files::{FILE, PEM};
use crate::keys::nodes::parse_authority;
use crate::values::{AcmeChallenge, HmacKey};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_schema::kind::{Choice, Flag, Text, Then, text};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// Names of one certificate; what Let's Encrypt allows.
pub const ACME_NAMES_MAX: usize = 100;
/// The longest `gateway.acme.directory`.
const DIRECTORY_BYTES_MAX: usize = 2048;
/// The longest `gateway.acme.email` and `gateway.acme.eab.kid`.
const CONTACT_BYTES_MAX: usize = 320;
/// The longest `gateway.acme.eab.hmac_key`.
const HMAC_KEY_BYTES_MAX: usize = 1024;
/// Bytes of the server's name in the name of its folder; the digest that follows distinguishes servers.
const FOLDER_HOST_BYTES_MAX: usize = 100;
/// Bytes of the digest in the folder's name.
const FOLDER_DIGEST_CHARS: usize = 16;

/// Let's Encrypt's production server.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

const RENEW_BEFORE: DurationRange = span(Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600));

object! {
    /// Certificates ordered from an ACME server (RFC 8555) for entries of `ssls` with `acme: true`; see
    /// [acme.md](acme.md).
    pub struct Acme {
        /// The server's directory: an `https` URL. Default: Let's Encrypt's.
        directory: String = DIRECTORY => default(LETS_ENCRYPT.to_owned());
        /// Contact address for the issuer, for example about expiring certificates.
        email: String = EMAIL => optional;
        /// Directory for the account, certificates and their keys. The gateway creates it and needs write access;
        /// several gateways can share one.
        storage: PathBuf = FILE => required;
        /// Must be `true`: you agree to the terms of service of the server that `directory` names.
        agree_terms: bool = AGREED => required;
        /// How to prove control of a name to the server: `http-01` on port 80, or `tls-alpn-01` on port 443.
        challenge: AcmeChallenge = CHALLENGE => default(AcmeChallenge::Http01);
        /// Root CAs for the ACME server's certificate, instead of the system's: PEM, or a PEM file.
        ca: crate::values::Pem = PEM => optional;
        /// An existing account with the issuer, to which the ACME account is bound.
        eab: AcmeEab = map::<AcmeEab>() => optional;
        /// How long before expiry a certificate is renewed, at most two thirds of its lifetime. Default: a third, or
        /// when the server suggests.
        renew_before: Duration = RENEW_BEFORE => optional;
    }
}

object! {
    /// External account binding (RFC 8555 section 7.3.4): credentials from the issuer.
    pub struct AcmeEab {
        /// Key identifier.
        kid: String = KID => required;
        /// The HMAC key, in base64url.
        hmac_key: HmacKey = HMAC_KEY => required;
    }
}

const CHALLENGE: Choice<AcmeChallenge> = Choice {
    words: &[("http-01", AcmeChallenge::Http01), ("tls-alpn-01", AcmeChallenge::TlsAlpn01)],
    unbuilt: &["dns-01"],
};

const AGREED: Then<Flag, bool> = Then {
    kind: Flag,
    make: |agreed, node, path, sink| {
        if !agreed {
            let fault = Fault::new("no server issues certificates to who does not agree to its terms of service");
            sink.error(node.at, path, fault.hint("read them, and write `true` or remove gateway.acme"));
        }
        agreed.then_some(true)
    },
};

const DIRECTORY: Text<String> = text("a URL", |text| {
    let rest = text.strip_prefix("https://").unwrap_or(text);
    let authority = rest.split_once("://").map_or(rest, |(_, rest)| rest).split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        // Not quoted: there may be a password in it.
        let fault = Fault::new("the URL of an ACME server cannot contain a user name or password");
        return Err(fault.hint("write what comes after the @ only"));
    }
    let fault = |message: &str| Fault::new(format!("{:?}: {message}", shortened(text)));
    if !text.starts_with("https://") {
        return Err(fault("not an https URL").hint("write it like \"https://acme.example/directory\""));
    }
    parse_authority(authority)?;
    // Of RFC 3986 section 2, but for brackets, and for a fragment, which no server ever sees.
    let is_of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?@!$&'()*+,;=%".contains(&byte);
    let is_path = rest[authority.len()..].bytes().all(is_of_path);
    if !is_path || text.len() > DIRECTORY_BYTES_MAX {
        return Err(fault("not a URL").hint("write it like \"https://acme.example/directory\""));
    }
    Ok(text.to_owned())
})
.shown();

const EMAIL: Text<String> = text("an email address", |text| {
    let is_good = text.len() <= CONTACT_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'?' | b':' | b'<' | b'>'))
        && text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'));
    match is_good {
        true => Ok(text.to_owned()),
        false => {
            let fault = Fault::new(format!("{:?} is not an email address", shortened(text)));
            Err(fault.hint("write one like \"admin@example.com\", without \"mailto:\""))
        }
    }
});

const KID: Text<String> = text("a key's identifier", |text| {
    match (1..=CONTACT_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new("not an identifier").hint("copy it from what the issuer gave you, without spaces")),
    }
});

/// Never quoted: it is a secret.
const HMAC_KEY: Text<HmacKey> = text("a key in Base64", |text| {
    let key = text.trim_end_matches('=');
    let is_alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_good = (1..=HMAC_KEY_BYTES_MAX).contains(&key.len()) && key.len() % 4 != 1 && key.bytes().all(is_alphabet);
    match is_good {
        true => Ok(HmacKey(key.to_owned())),
        false => {
            let fault = Fault::new("not a key in Base64 as for URLs (A-Z, a-z, 0-9, \"-\" and \"_\")");
            Err(fault.hint("copy the HMAC key from what the issuer gave you"))
        }
    }
})
.secret();

impl Acme {
    /// Where everything of this server is kept, whose account and certificates are of no use with another: named by its
    /// host, for people, and by a digest of its URL.
    pub fn folder(&self) -> PathBuf {
        let rest = self.directory.strip_prefix("https://").unwrap_or(&self.directory);
        let host = rest.split('/').next().unwrap_or_default();
        let as_name = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let host: String = host.chars().take(FOLDER_HOST_BYTES_MAX).map(as_name).collect();
        let digest = crate::values::digest(self.directory.as_bytes());
        self.storage.join(format!("{host}-{}", &digest[..FOLDER_DIGEST_CHARS]))
    }

    /// Where the certificate of the entry with this id is kept, with its key in the same file, so that nobody ever
    /// reads the one without the other.
    pub fn certificate_file(&self, id: &str) -> PathBuf {
        self.certificates().join(format!("{id}.pem"))
    }

    /// The folder of the certificates.
    pub fn certificates(&self) -> PathBuf {
        self.folder().join("certificates")
    }

    /// The account's file.
    pub fn account_file(&self) -> PathBuf {
        self.folder().join("account.json")
    }

    /// The roots' file, where it is one.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca.as_ref().and_then(|ca| ca.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(directory: &str) -> Result<Acme, String> {
        let text =
            format!("gateway: {{acme: {{directory: {directory:?}, storage: /s, agree_terms: true}}}}\nroutes: []\n");
        match crate::load(text, &|_| None) {
            Ok(loaded) => Ok(loaded.config.gateway.acme.clone().expect("it is there")),
            Err(errors) => Err(errors.to_string()),
        }
    }

    #[test]
    fn each_server_has_a_folder_of_its_own() {
        let folder = |directory: &str| parsed(directory).unwrap().folder().display().to_string();
        let production = folder("https://acme-v02.api.letsencrypt.org/directory");
        assert!(production.starts_with("/s/acme-v02.api.letsencrypt.org-"), "{production}");
        assert_ne!(production, folder("https://acme-staging-v02.api.letsencrypt.org/directory"));
        assert_ne!(folder("https://acme.example/a"), folder("https://acme.example/b"));
        assert!(folder("https://[::1]:14000/dir").starts_with("/s/---1--14000-"));
        assert_eq!(folder(&format!("https://{}.example/", "a.".repeat(60) + "a")).len(), "/s/".len() + 100 + 1 + 16);
    }

    #[test]
    fn a_directory_is_a_url_that_requests_can_be_made_to() {
        let check = |directory: &str, expected: &str| {
            let error = parsed(directory).err().unwrap_or_default();
            assert_eq!(error.is_empty(), expected.is_empty(), "{directory}: {error}");
            assert!(error.contains(expected), "{directory}: {error}");
        };
        for good in
            ["https://acme.example", "https://acme.example?x=1", "https://127.0.0.1:14000/dir", "https://[::1]/a:b@c"]
        {
            check(good, "");
        }
        check("https://<your-id>.example/dir", "<your-id>.example");
        check("https://[::1/dir", "no closing bracket");
        check("https://[::g]/dir", "not an IPv6 address");
        check("https://a.example:99999/dir", "not a port");
        check("https:///dir", "gateway.acme.directory");
        check("https://a.example/<dir>", "not a URL");
        check("https://a.example/[dir]", "not a URL");
        check("https://a.example/dir#here", "not a URL");
        for login in ["https://me:secret@a.example/dir", "http://me:secret@a.example/dir", "me:secret@a.example"] {
            check(login, "cannot contain a user name or password");
            assert!(!parsed(login).err().unwrap_or_default().contains("secret"), "{login}");
        }
    }
}
