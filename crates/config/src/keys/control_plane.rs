//! The keys of `gateway.config` and `gateway.data_encryption`: where resources come from, and how they are kept there.

use crate::keys::files::{FOLDER, PEM, WHOLE_PATH};
use crate::keys::nodes::parse_authority;
use crate::values::{Pem, RejectedGlobalRule, SourceKind};
use std::path::PathBuf;
use std::time::Duration;
use stillgate_plugin_api::Secret;
use stillgate_plugin_api::secrets::SECRET;
use stillgate_schema::kind::{Choice, Flag, TEXT, Text, int, list, some, text};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// Bytes of the keys of AES-128 and AES-256, which APISIX's `keyring` takes.
pub const KEYRING_KEY_BYTES: [usize; 2] = [16, 32];

const HISTORY_CHANGES_MAX: i64 = 1_000_000;
const HISTORY_AGE: DurationRange = span(Duration::from_secs(60), Duration::from_secs(10 * 365 * 24 * 3600));
const TIMEOUT: DurationRange = span(Duration::from_millis(100), Duration::from_secs(60));

object! {
    /// Where the resources come from. The `gateway:` section always comes from the file.
    pub struct ConfigSourceKeys {
        /// `file`: this file; `store`: an embedded store that the Admin API writes; `etcd`: etcd, in APISIX's layout.
        source: SourceKind = SOURCE => default(SourceKind::File);
        /// For `source: store`: the store's file. It is created if it does not exist.
        store: PathBuf = WHOLE_PATH.shown() => default(PathBuf::from("/var/lib/stillgate/config.redb"));
        /// For `source: store`: how many changes are kept for history and rollback.
        history_changes: usize = int(1, HISTORY_CHANGES_MAX) => default(10_000);
        /// For `source: store`: how long changes are kept.
        history_age: Duration = HISTORY_AGE => default(Duration::from_secs(90 * 24 * 3600));
        /// For `source: etcd`: the connection to etcd.
        etcd: EtcdKeys = map::<EtcdKeys>() => optional;
        /// For `source: store` and `etcd`: the folders whose files resources can reference as `$secret://file/PATH`.
        /// Anyone who can write resources can read all of them, because plugins can send secrets anywhere. (Resources
        /// in this file can use any file.)
        secret_folders: Vec<PathBuf> = list(FOLDER.shown()) => default(vec![PathBuf::from("/run/secrets"), PathBuf::from("/var/run/secrets")]);
        /// What to do if a global rule is invalid and has no previous version: `deny` answers every request with 503,
        /// `ignore` skips the rule. (A file with such a rule is rejected as a whole.)
        rejected_global_rule: RejectedGlobalRule = REJECTED_GLOBAL_RULE => default(RejectedGlobalRule::Deny);
        /// Plugins to skip wherever they are configured, such as an unsupported logger. Only plugins that neither
        /// reject nor modify requests can be ignored; see [control-plane.md](control-plane.md#ignored-plugins).
        ignore_plugins: Vec<String> = list(TEXT) => default(Vec::new());
    }
}

object! {
    /// The connection to etcd, and the prefix of the resources.
    pub struct EtcdKeys {
        /// Members of the cluster, tried one after another.
        endpoints: Vec<String> = some(ENDPOINT) => required;
        /// The prefix of all keys: `/apisix` in `/apisix/routes/1`.
        prefix: String = PREFIX => default("/apisix".to_owned());
        /// The user name, if etcd requires one.
        user: String = TEXT => optional;
        /// The user's password.
        password: Secret = SECRET => optional;
        /// TLS for `https` endpoints.
        tls: EtcdTls = map::<EtcdTls>() => nested;
        /// Per request; does not apply to watches.
        timeout: Duration = TIMEOUT => default(Duration::from_secs(5));
        /// File that stores the last configuration read, which is served if etcd is unreachable at startup. Without it,
        /// requests then get 503.
        snapshot: PathBuf = WHOLE_PATH => optional;
    }
}

object! {
    /// TLS to etcd.
    pub struct EtcdTls {
        /// CA certificates to trust instead of the system's: PEM, or a PEM file.
        ca: Pem = PEM => optional;
        /// The client certificate to present to etcd: PEM, or a PEM file.
        cert: Pem = PEM => optional;
        /// The private key of `cert`: PEM, or a PEM file.
        key: Pem = PEM => optional;
        /// Whether etcd's certificate is verified.
        verify: bool = Flag => default(true);
    }
}

object! {
    /// Encryption of credentials and private keys in a store or in etcd, as in APISIX.
    pub struct DataEncryption {
        /// Keys of 16 bytes (AES-128) or 32 bytes (AES-256). The first one encrypts, all of them decrypt. Without a key, nothing is encrypted. (APISIX's default keys are public.)
        keyring: Vec<Secret> = list(KEYRING_KEY) => default(Vec::new());
    }
}

const SOURCE: Choice<SourceKind> = Choice { words: SourceKind::ALL, unbuilt: &[] };

impl ConfigSourceKeys {
    /// What the source needs and does not have.
    pub(crate) fn missing_need(&self) -> Option<SourceNeed> {
        let fault = || Fault::new("nothing says where etcd is").hint("add gateway.config.etcd with its endpoints");
        let is_missing = self.source == SourceKind::Etcd && self.etcd.is_none();
        is_missing.then(|| SourceNeed { key: "gateway.config.etcd", fault: fault() })
    }

    /// Whether only the Admin API changes the resources.
    pub(crate) fn is_changed_by_admin_alone(&self) -> bool {
        self.source == SourceKind::Store
    }

    /// The prefix of all keys in the datastore; may be empty.
    pub fn key_prefix(&self) -> &str {
        let etcd = self.etcd.as_ref().filter(|_| self.source == SourceKind::Etcd);
        etcd.map_or("", |etcd| &etcd.prefix)
    }
}

/// A section that a source needs.
pub(crate) struct SourceNeed {
    pub(crate) key: &'static str,
    pub(crate) fault: Fault,
}

const REJECTED_GLOBAL_RULE: Choice<RejectedGlobalRule> =
    Choice { words: &[("deny", RejectedGlobalRule::Deny), ("ignore", RejectedGlobalRule::Ignore)], unbuilt: &[] };

const KEYRING_KEY: Text<Secret> = text("a key of 16 or 32 bytes", |text| match text.len() {
    bytes if KEYRING_KEY_BYTES.contains(&bytes) => Ok(Secret::new(text)),
    bytes => Err(Fault::new(format!("a key has 16 or 32 bytes, and this one {bytes}"))),
})
.secret();

const ENDPOINT: Text<String> = text("a URL", |text| {
    let fault = |message: &str| Fault::new(format!("{:?}: {message}", shortened(text)));
    let hint = "write it like \"http://127.0.0.1:2379\"";
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else { return Err(fault("not an http or https URL").hint(hint)) };
    let rest = rest.trim_end_matches('/');
    if rest.contains(['/', '?', '#', '@']) {
        return Err(fault("only a host and a port are allowed").hint(hint));
    }
    parse_authority(rest)?;
    Ok(text.trim_end_matches('/').to_owned())
});

const PREFIX: Text<String> = text("a prefix of keys", |text| {
    let path = text.trim_end_matches('/');
    let is_good =
        path.starts_with('/') && !path.contains("//") && !path.contains(char::is_control) && path.len() <= 256;
    match is_good {
        true => Ok(path.to_owned()),
        false => {
            Err(Fault::new(format!("{:?} is not a prefix of keys", shortened(text))).hint("write it like \"/apisix\""))
        }
    }
});
