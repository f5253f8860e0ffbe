//! Secret texts, and the references to them in a configuration.
//!
//! A reference is a whole text: `$env://NAME`, `$env://NAME/KEY` (a key of the JSON object in that variable), or
//! `$secret://MANAGER/…`. It is resolved when the configuration is compiled, and a reference that cannot be resolved
//! refuses its resource: a plugin never sees the reference itself, which would be a well-known key.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_schema::text::scalar::{Scalar, ScalarLayout, Style};
use stillgate_schema::{Definitions, Entry, Fault, Json, Kind, Node, Path, Sink, Value};

/// A text that never appears in logs, explanations, metrics or panic messages.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<Box<str>>) -> Secret {
        Secret(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The type of a key whose value is a secret: a text that is not empty. Messages never show it.
pub struct SecretText;

/// A secret.
pub const SECRET: SecretText = SecretText;

impl Kind for SecretText {
    type Out = Secret;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Secret> {
        let text = match &node.value {
            Value::Scalar(scalar) => scalar.as_text(),
            _ => None,
        };
        let fault = match text {
            Some("") => Fault::new("a secret cannot be empty"),
            Some(text) => return Some(Secret::new(text)),
            None => Fault::new("expected a text").hint("write it in quotes, or as \"$env://NAME\""),
        };
        sink.error(node.at, path, fault);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "string", "minLength": 1})
    }
}

/// The type of a key that contains secrets, such as a map: messages show no text from it. If it is a text itself, by
/// mistake or not, that is secret as well.
pub struct VeiledKind<K>(pub K);

impl<K: Kind> Kind for VeiledKind<K> {
    type Out = K::Out;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<K::Out> {
        sink.with_hidden_scope(|sink| {
            hide_texts(node, sink);
            self.0.read(node, path, sink)
        })
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        self.0.schema(definitions)
    }

    fn show(&self, value: &K::Out) -> Json {
        self.0.show(value)
    }
}

fn hide_texts(node: &Node, sink: &mut Sink) {
    match &node.value {
        Value::Scalar(scalar) if is_reference(&scalar.text) => {}
        Value::Scalar(scalar) => sink.hide(&scalar.text),
        Value::List(items) => items.iter().for_each(|item| hide_texts(item, sink)),
        Value::Map(entries) => entries.iter().for_each(|entry| hide_texts(&entry.value, sink)),
        Value::Refused => {}
    }
}

/// Resolves references.
pub trait Secrets: Send + Sync {
    /// Resolves a reference, which begins with `$env://` or `$secret://`; an error says why that failed, with a hint.
    fn resolve(&self, reference: &str) -> Result<String, String>;

    /// A resolver in which references may name these managers; `None`: managers are not supported.
    fn with_managers(&self, _managers: &Managers) -> Option<Arc<dyn Secrets>> {
        None
    }

    /// Looks up what takes a while, for all of these references at the same time: resolving them does not wait then. A
    /// reference that cannot be looked up is left to [`Secrets::resolve`].
    fn fetch(&self, _references: &[String]) {}

    /// Begins what [`Secrets::fetch`] does, without waiting; `true`: nothing has to be waited for any more.
    fn has_fetched(&self, _references: &[String]) -> bool {
        true
    }

    /// Announces all references in use: values cached for others may be dropped.
    fn in_use(&self, _references: &[String]) {}
}

/// Secret managers by their id: that of `$secret://vault/ID/…`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Managers(pub HashMap<Box<str>, Arc<Manager>>);

/// A Vault server that holds secrets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Manager {
    /// Scheme and authority, and an optional path, without a slash at the end.
    pub uri: Box<str>,
    /// Prefix of each path: the mount of a key-value engine, and more.
    pub prefix: Box<str>,
    /// `X-Vault-Namespace`
    pub namespace: Option<Box<str>>,
    /// Version of the key-value engine.
    pub version: KvVersion,
    /// How to obtain a token.
    pub login: VaultLogin,
    /// Root certificates that replace the system's, in PEM.
    pub ca: Option<Box<str>>,
    /// Whether its certificate is verified.
    pub verify: bool,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Time after which cached values are read again.
    pub refresh: Duration,
}

/// The version of a Vault's key-value engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvVersion {
    /// Each write replaces the previous value.
    One,
    /// Previous values are kept as versions.
    Two,
}

/// How the gateway authenticates at a Vault.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VaultLogin {
    /// With a token.
    Token(Secret),
    /// With the token of a Kubernetes service account.
    Kubernetes {
        /// Mount path below `auth/`.
        mount: Box<str>,
        /// The Vault's role.
        role: Box<str>,
        /// File with the service account's token; read at each login, since Kubernetes renews it.
        jwt_file: PathBuf,
    },
    /// With an AppRole.
    AppRole {
        /// Mount path below `auth/`.
        mount: Box<str>,
        /// The role's id.
        role_id: Secret,
        /// Absent if the role is bound in another way.
        secret_id: Option<Secret>,
    },
}

/// Resolves nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn resolve(&self, _: &str) -> Result<String, String> {
        Err("secrets cannot be looked up here".to_owned())
    }
}

/// Prefixes of references. APISIX also accepts capitals.
const SCHEMES: [&str; 2] = ["$env://", "$secret://"];

/// Whether a text is a reference.
pub fn is_reference(text: &str) -> bool {
    let begins = |scheme: &&str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    SCHEMES.iter().any(begins)
}

/// Resolves the references in a node. A reference that cannot be resolved is reported, and its value left out as
/// refused.
pub fn substitute(node: &Node, secrets: &dyn Secrets, path: &Path<'_>, sink: &mut Sink) -> Node {
    let value = match &node.value {
        Value::Scalar(scalar) if is_reference(&scalar.text) => match secrets.resolve(&scalar.text) {
            Ok(text) => {
                sink.hide(&text);
                Value::Scalar(Scalar { text: Rc::from(text), style: Style::Quoted, layout: ScalarLayout::Unknown })
            }
            Err(why) => {
                let fault = Fault::new(format!("{}: {why}", scalar.text));
                sink.error(node.at, path, fault);
                Value::Refused
            }
        },
        Value::List(items) if items.iter().any(has_reference) => {
            let items = items.iter().enumerate();
            Value::List(items.map(|(at, item)| substitute(item, secrets, &path.index(at), sink)).collect())
        }
        Value::Map(entries) if entries.iter().any(|entry| has_reference(&entry.value)) => {
            let entries = entries.iter().map(|entry| {
                let value = substitute(&entry.value, secrets, &path.key(&entry.key), sink);
                Entry { key: entry.key.clone(), key_at: entry.key_at, value }
            });
            Value::Map(entries.collect())
        }
        other => other.clone(),
    };
    Node { at: node.at, value }
}

/// Calls `visit` with each text in a node that is not a reference.
pub fn each_text(node: &Node, visit: &mut dyn FnMut(&str)) {
    match &node.value {
        Value::Scalar(scalar) if !is_reference(&scalar.text) => visit(&scalar.text),
        Value::List(items) => items.iter().for_each(|item| each_text(item, visit)),
        Value::Map(entries) => entries.iter().for_each(|entry| each_text(&entry.value, visit)),
        Value::Scalar(_) | Value::Refused => {}
    }
}

/// Calls `visit` with each reference in a node.
pub fn each_reference(node: &Node, visit: &mut dyn FnMut(&str)) {
    match &node.value {
        Value::Scalar(scalar) if is_reference(&scalar.text) => visit(&scalar.text),
        Value::List(items) => items.iter().for_each(|item| each_reference(item, visit)),
        Value::Map(entries) => entries.iter().for_each(|entry| each_reference(&entry.value, visit)),
        Value::Scalar(_) | Value::Refused => {}
    }
}

/// What looks like a reference to a secret manager in a text that is not parsed yet, such as JSON: for [`Secrets::fetch`].
pub fn references_in(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | ',' | ']' | '}');
    text.match_indices(SCHEMES[1]).map(move |(at, _)| {
        let rest = &text[at..];
        &rest[..rest.find(ends).unwrap_or(rest.len())]
    })
}

fn has_reference(node: &Node) -> bool {
    match &node.value {
        Value::Scalar(scalar) => is_reference(&scalar.text),
        Value::List(items) => items.iter().any(has_reference),
        Value::Map(entries) => entries.iter().any(|entry| has_reference(&entry.value)),
        Value::Refused => false,
    }
}
