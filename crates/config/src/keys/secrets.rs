//! The keys of `secrets`: the managers that references such as `$secret://vault/1/jack/key` name.
//!
//! APISIX's keys for a Vault, and what a Vault in production needs besides: logins that give a token, versions of the engine,
//! roots for TLS.

use crate::keys::nodes::parse_authority;
use crate::keys::shared::resource;
use std::path::PathBuf;
use std::time::Duration;
use stillgate_plugin_api::Secret;
use stillgate_plugin_api::secrets::{KvVersion, SECRET};
use stillgate_schema::kind::{At, Choice, Flag, LocatedKind, TEXT, Text, text};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// Bytes of `uri`, `prefix`, `namespace` and an id.
const TEXT_BYTES_MAX: usize = 1024;
const TIMEOUT: DurationRange = span(Duration::from_millis(100), Duration::from_secs(60));
const REFRESH: DurationRange = span(Duration::from_secs(1), Duration::from_secs(24 * 3600));

resource! {
    /// A secret manager; see [secrets.md](secrets.md) for references to it.
    pub(crate) struct SecretManagerKeys {
        /// `vault/` and a name, as in references: `vault/1` for `$secret://vault/1/PATH/KEY`.
        id: At<String> = LocatedKind(MANAGER_ID) => required;
    }
    shared desc, labels, times;
    {
        /// Vault's URL: `http` or `https`, host, port, and the path prefix of a proxy in front, if any. `/v1/` is
        /// appended.
        uri: String = URI => required;
        /// Mount of the key-value engine, and the common prefix of all paths below it.
        prefix: String = VAULT_PATH => required;
        /// Vault token. Set this or `auth`.
        token: At<Secret> = LocatedKind(SECRET) => optional;
        /// Vault namespace.
        namespace: String = VAULT_PATH => optional;
        /// Not in APISIX. The version of the key-value engine: 1 or 2.
        kv_version: KvVersion = VERSION => default(KvVersion::One);
        /// Not in APISIX. How to obtain a token. Set this or `token`.
        auth: VaultAuthKeys = map::<VaultAuthKeys>() => optional;
        /// Whether to verify Vault's certificate with `https`.
        ssl_verify: bool = Flag => default(true);
        /// Not in APISIX. Root CAs for Vault (PEM), instead of the system's.
        ca: String = TEXT => optional;
        /// Per request.
        timeout: Duration = TIMEOUT => default(Duration::from_secs(5));
        /// Not in APISIX. Interval at which secrets are read again; a change takes effect like a reload.
        refresh: Duration = REFRESH => default(Duration::from_secs(300));
        any_of {
            "the key \"token\" is missing": token | auth;
        }
    }
}

object! {
    /// How the gateway logs in to Vault.
    pub(crate) struct VaultAuthKeys {
        /// `kubernetes` or `approle`.
        method: VaultMethod = METHOD => required;
        /// Mount path of the method under `auth/`. Default: the method's name.
        mount: String = VAULT_PATH => optional;
        /// Vault role, for `kubernetes`.
        role: String = TEXT => optional;
        /// The file with the service account's token, for `kubernetes`.
        jwt_file: PathBuf = JWT_FILE => default(PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token"));
        /// The id of the role, for `approle`.
        role_id: Secret = SECRET => optional;
        /// The secret id, for `approle`; omit it if the role does not need one.
        secret_id: Secret = SECRET => optional;
    }
}

/// How to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VaultMethod {
    Kubernetes,
    AppRole,
}

const METHOD: Choice<VaultMethod> = Choice {
    words: &[("kubernetes", VaultMethod::Kubernetes), ("approle", VaultMethod::AppRole)],
    unbuilt: &["aws", "cert", "jwt", "ldap", "userpass"],
};

const VERSION: Choice<KvVersion> = Choice { words: &[("1", KvVersion::One), ("2", KvVersion::Two)], unbuilt: &[] };

const MANAGER_ID: Text<String> = text("the id of a secret manager", |text| {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let name = text.strip_prefix("vault/").filter(|name| !name.is_empty() && name.len() <= 64);
    if name.is_some_and(|name| name.bytes().all(is_word)) {
        return Ok(text.to_owned());
    }
    let fault = Fault::new(format!("{:?} is not the id of a secret manager", shortened(text)));
    Err(fault.hint("write \"vault/1\"; other managers are not supported"))
});

const URI: Text<String> = text("a URL", |text| {
    let fault = |message: &str| Fault::new(format!("{:?}: {message}", shortened(text)));
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let hint = "write it like \"https://vault.example:8200\" or \"https://vault.example/vault\"";
    if text.contains('@') {
        // Not shown: it may have a password in it.
        return Err(Fault::new("a login cannot be in the URL of a Vault").hint("write it under `token` or `auth`"));
    }
    let Some(rest) = rest else { return Err(fault("not an http or https URL").hint(hint)) };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_part = |part: &str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
        !matches!(part, "" | "." | "..") && part.bytes().all(is_good)
    };
    let path = path.trim_end_matches('/');
    if !(path.is_empty() || path.split('/').all(is_part)) || text.len() > TEXT_BYTES_MAX {
        return Err(fault("only a host, a port and a path are allowed").hint(hint));
    }
    parse_authority(authority)?;
    Ok(text.trim_end_matches('/').to_owned())
});

const VAULT_PATH: Text<String> =
    text("a path of a Vault", |text| {
        let path = text.trim_matches('/');
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_good = path.split('/').all(is_part) && !path.contains(|c: char| c.is_control() || c == '?');
        match is_good && path.len() <= TEXT_BYTES_MAX {
            true => Ok(path.to_owned()),
            false => Err(Fault::new(format!("{:?} is not a path of a Vault", shortened(text)))
                .hint("write it like \"kv/apisix\"")),
        }
    });

const JWT_FILE: Text<PathBuf> = text("a file", |text| match text.starts_with('/') {
    true => Ok(PathBuf::from(text)),
    false => Err(Fault::new(format!("{:?} is not an absolute path", shortened(text)))),
});
