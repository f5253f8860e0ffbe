//! The keys of `gateway.admin`: the admin address, and who may use it.

use crate::keys::files::PEM;
use crate::values::{ApiKeyRole, Pem};
use ipnet::IpNet;
use serde_json::Value as Json;
use std::net::SocketAddr;
use stillgate_plugin_api::Secret;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{ADDRESS, Choice, Kind, SecretHolder, Text, list, text};
use stillgate_schema::matching::{NETWORK, OWN_NAME};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::text::diagnostic::{Fault, Path, Sink};
use stillgate_schema::text::tree::Node;
use stillgate_schema::text::tree::within;

/// What the holder of the short form of a key is called.
pub const SHORT_KEY_NAME: &str = "admin";

object! {
    /// The admin address: Admin API, status, dashboard.
    pub struct Admin {
        /// Listen address: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
        /// An `admin` key, sent as `X-API-KEY`; shorthand for one entry of `keys`.
        key: Secret = ADMIN_KEY => optional;
        /// Keys with their roles. Without `key` and `keys`, loopback can read everything but secrets; with
        /// `source: store`, the gateway creates a key for writes.
        keys: Vec<AdminKey> = SecretHolder(list(map::<AdminKey>())) => default(Vec::new());
        /// Networks that may connect; all others get 403. Default: loopback only.
        allow: Vec<IpNet> = list(NETWORK) => optional;
        /// Host names accepted over loopback without a key, besides `localhost`, IP addresses and the machine's own
        /// name. Any other `Host` gets 403, so that web pages cannot reach the API through a browser (DNS rebinding).
        hosts: Vec<String> = list(OWN_NAME) => default(Vec::new());
        /// TLS for this address; plain HTTP if absent.
        tls: AdminTls = map::<AdminTls>() => optional;
    }
}

object! {
    /// A key of the Admin API.
    pub struct AdminKey {
        /// Name of the key's holder in the audit log and history.
        name: String = NAME => required;
        /// Sent as `X-API-KEY`.
        key: Secret = ADMIN_KEY => required;
        /// `admin` can read and write; `viewer` can read all but secrets.
        role: ApiKeyRole = ROLE => default(ApiKeyRole::Admin);
    }
}

object! {
    /// TLS of the admin address, of the device API, or between nodes.
    pub struct AdminTls {
        /// The certificate, followed by its chain: PEM, or a PEM file.
        cert: Pem = PEM => required;
        /// Its private key, unencrypted: PEM, or a PEM file.
        key: Pem = PEM => required;
        /// Clients (between nodes: both sides) must present a certificate that chains to one of these: PEM, or a PEM
        /// file. It does not replace API keys.
        client_ca: Pem = PEM => optional;
    }
}

/// `gateway.admin`, no two keys of which have one name or are the same.
pub(crate) struct AdminSection;

impl Kind for AdminSection {
    type Out = Admin;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Admin> {
        let admin = map::<Admin>().read(node, path, sink)?;
        check_keys(admin.key.as_ref(), &admin.keys, node, path, sink);
        warn_of_published_keys(&admin, node, path, sink);
        Some(admin)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        map::<Admin>().schema(definitions)
    }
}

/// Reports keys that have one name, or are the same.
pub(crate) fn check_keys(short: Option<&Secret>, listed: &[AdminKey], node: &Node, path: &Path<'_>, sink: &mut Sink) {
    let short = short.map(|key| (SHORT_KEY_NAME, key, None));
    let listed = listed.iter().enumerate().map(|(index, key)| (key.name.as_str(), &key.key, Some(index)));
    let keys: Vec<_> = short.into_iter().chain(listed).collect();
    let list = path.key("keys");
    for (place, (name, key, index)) in keys.iter().enumerate() {
        // The short form comes first, so it is never the second one.
        let Some(index) = *index else { continue };
        let mut report = |field: &str, fault: Fault| {
            let at = within(node, &format!("keys[{index}].{field}"));
            sink.error(at, &list.index(index).key(field), fault);
        };
        let before = &keys[..place];
        if before.iter().any(|(other, ..)| other == name) {
            let fault = Fault::new(format!("another key has the name {name:?}"));
            report("name", fault.hint("give each its own, so that the audit log tells them apart"));
        }
        if let Some((other, ..)) = before.iter().find(|(_, other, _)| other.reveal() == key.reveal()) {
            let fault = Fault::new(format!("this is also the key of {other:?}"));
            report("key", fault.hint("give each holder another key"));
        }
    }
}

/// The keys in APISIX's `config-default.yaml` of earlier versions: an admin's and a viewer's. Scanners try them.
const PUBLISHED_KEYS: [&str; 2] = ["edd1c9f034335f136f87ad84b625c8f1", "4054f7cf07e344346cd3f287985e76a2"];

fn warn_of_published_keys(admin: &Admin, node: &Node, path: &Path<'_>, sink: &mut Sink) {
    let is_published = |key: &Secret| PUBLISHED_KEYS.contains(&key.reveal());
    let fault = || {
        let fault = Fault::new("this is APISIX's published default key, which scanners try");
        fault.hint("write a long random text, for example from `openssl rand -hex 32`")
    };
    if admin.key.as_ref().is_some_and(is_published) {
        sink.warning(within(node, "key"), &path.key("key"), fault());
    }
    let list = path.key("keys");
    for (index, _) in admin.keys.iter().enumerate().filter(|(_, of)| is_published(&of.key)) {
        sink.warning(within(node, &format!("keys[{index}].key")), &list.index(index).key("key"), fault());
    }
}

const ROLE: Choice<ApiKeyRole> =
    Choice { words: &[("admin", ApiKeyRole::Admin), ("viewer", ApiKeyRole::Viewer)], unbuilt: &[] };

const NAME: Text<String> = text("a name", |text| {
    let is_good = (1..=64).contains(&text.len()) && !text.contains(char::is_control);
    is_good.then(|| text.to_owned()).ok_or_else(|| Fault::new("a name has 1 to 64 bytes, and no control characters"))
});

pub(crate) const ADMIN_KEY: Text<Secret> = text("a key", |text| match text {
    "" => Err(Fault::new("an empty key protects nothing").hint("write a long random text, or remove the key")),
    _ if !text.bytes().all(|b| b.is_ascii_graphic()) => {
        Err(Fault::new("a key is sent in a header").hint("use printable ASCII without spaces"))
    }
    _ => Ok(Secret::new(text)),
})
.secret();
