//! A plugin's definition: its name, its priority, its keys, and how its configuration is compiled,
//! with the upstreams that it may refer to.

use crate::consumers::CredentialVerifier;
use crate::identity::{Identity, of_node};
use crate::phase::Phases;
use crate::plugin::{OwnUpstream, Plugin, PluginOrigin};
use serde_json::Value as Json;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;
use stillgate_schema::{At, Definitions, Fault, Kind, Node, Object, Path, Position, Sink, map, read};

/// A plugin's definition.
pub trait Define: Plugin + Sized {
    /// Its configuration. JSON Schema and documentation come from the same table.
    type Keys: Object;
    /// APISIX's name of the plugin.
    const NAME: &'static str;
    /// Its priority in a chain, APISIX's: higher runs first.
    const PRIORITY: i32;
    /// The phases in which it is called.
    const PHASES: Phases;

    /// Compiles the plugin from its keys: parses, builds indexes. Runs off the workers, once for each configuration.
    /// Problems are reported to `cx.sink`; `None` if it cannot be compiled.
    fn compile(keys: Self::Keys, cx: &mut Compile<'_>) -> Option<Self>;
}

/// A plugin that authenticates clients by credentials of consumers.
pub trait Authenticate: Define {
    /// The keys under the plugin's name in a consumer, or in one of its credentials.
    type Credential: Object;

    /// What requests are verified against once the credential is found, such as a key for signatures. `()`: finding it
    /// is enough, and nothing is kept.
    type Verifier: Send + Sync + 'static;

    /// The look-up key of requests, such as the key of key-auth. It must be unique among consumers.
    fn lookup(credential: &Self::Credential) -> &[u8];

    /// Compiles the verifier: parses keys, decodes secrets. Runs off the workers, once for each credential. Problems are
    /// reported to `cx.sink`; `None` if it cannot be compiled.
    fn verifier(credential: Self::Credential, cx: &mut CompileCredential<'_>) -> Option<Self::Verifier>;
}

/// Context for compiling a credential.
pub struct CompileCredential<'a> {
    /// Collects problems. It hides every text of the credential.
    pub sink: &'a mut Sink,
    /// Path of the credential in its document.
    pub path: &'a Path<'a>,
    /// Its position.
    pub at: Position,
}

/// A plugin with keys in `plugin_metadata`.
pub trait Metadata: Define {
    /// Its keys.
    type Metadata: Object + Send + Sync + 'static;
}

/// Context for compiling a configuration.
pub struct Compile<'a> {
    /// Collects problems.
    pub sink: &'a mut Sink,
    /// Path of the configuration in its document.
    pub path: &'a Path<'a>,
    /// Its position.
    pub at: Position,
    /// The resource that contains it.
    pub origin: &'a PluginOrigin,
    /// Identifies this configuration in this resource, in this process and in its successor: state that outlives a
    /// reload is stored under it. Another configuration has another identity.
    pub identity: Identity,
    /// The upstreams that it may refer to.
    pub upstreams: &'a dyn Upstreams,
}

type CompileFn = fn(&Node, &mut Compile<'_>) -> Option<Box<dyn Plugin>>;
type CredentialFn = fn(&Node, &Path<'_>, &mut Sink) -> Option<(Box<[u8]>, Option<Arc<CredentialVerifier>>)>;
type MetadataFn = fn(&Node, &Path<'_>, &mut Sink) -> Option<Arc<dyn Any + Send + Sync>>;
type SchemaFn = fn(&mut Definitions) -> Json;

/// One row of the table of plugins: a [`Define`] without its type.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// [`Define::NAME`]
    pub name: &'static str,
    /// [`Define::PRIORITY`]
    pub priority: i32,
    /// [`Define::PHASES`]
    pub phases: Phases,
    /// Schema of its keys.
    pub schema: SchemaFn,
    /// Whether it authenticates clients: by credentials of its own, or through other plugins.
    pub authenticates: bool,
    /// Schema of a consumer's credential; `None`: the plugin has none.
    pub credential: Option<CredentialPart>,
    /// Schema of its metadata; `None`: it has none.
    pub metadata: Option<MetadataPart>,
    compile: CompileFn,
}

/// The part of a [`Descriptor`] that reads credentials.
#[derive(Clone, Copy)]
pub struct CredentialPart {
    /// Schema of the keys.
    pub schema: SchemaFn,
    /// Parses them, and returns the look-up key and the verifier.
    pub read: CredentialFn,
}

/// The part of a [`Descriptor`] that reads metadata.
#[derive(Clone, Copy)]
pub struct MetadataPart {
    /// Schema of the keys.
    pub schema: SchemaFn,
    /// Parses them.
    pub read: MetadataFn,
}

impl Descriptor {
    /// The row of a plugin.
    pub const fn of<P: Define>() -> Descriptor {
        Descriptor {
            name: P::NAME,
            priority: P::PRIORITY,
            phases: P::PHASES,
            schema: |definitions| map::<P::Keys>().schema(definitions),
            authenticates: false,
            credential: None,
            metadata: None,
            compile: |node, cx| {
                let keys = read(&map::<P::Keys>(), node, cx.path, cx.sink)?;
                P::compile(keys, cx).map(|plugin| Box::new(plugin) as Box<dyn Plugin>)
            },
        }
    }

    /// Adds the part of a plugin that authenticates.
    pub const fn authenticates<P: Authenticate>(self) -> Descriptor {
        let part = CredentialPart {
            schema: |definitions| map::<P::Credential>().schema(definitions),
            read: |node, path, sink| {
                let credential = read(&map::<P::Credential>(), node, path, sink)?;
                let lookup = P::lookup(&credential).into();
                let value = P::verifier(credential, &mut CompileCredential { sink, path, at: node.at })?;
                // Saves memory for a hundred thousand keys of key-auth.
                let is_nothing = TypeId::of::<P::Verifier>() == TypeId::of::<()>();
                let verifier =
                    || Arc::new(CredentialVerifier::new(of_node(&[P::NAME.as_bytes()], node, path, sink), value));
                Some((lookup, (!is_nothing).then(verifier)))
            },
        };
        Descriptor { authenticates: true, credential: Some(part), ..self }
    }

    /// Marks a plugin that authenticates through others: [`Plugin::asks_for`].
    pub const fn authenticates_by_others(self) -> Descriptor {
        Descriptor { authenticates: true, ..self }
    }

    /// Adds the part of a plugin with metadata.
    pub const fn with_metadata<P: Metadata>(self) -> Descriptor {
        let part = MetadataPart {
            schema: |definitions| map::<P::Metadata>().schema(definitions),
            read: |node, path, sink| {
                let metadata = read(&map::<P::Metadata>(), node, path, sink)?;
                Some(Arc::new(metadata))
            },
        };
        Descriptor { metadata: Some(part), ..self }
    }

    /// Compiles one configuration. `node` is without `_meta`, its secrets resolved.
    pub fn compile(&self, node: &Node, cx: &mut Compile<'_>) -> Option<Box<dyn Plugin>> {
        (self.compile)(node, cx)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Upstreams that a configuration may refer to while it is compiled. Requests refer to an upstream by its key.
pub trait Upstreams {
    /// The key of one of `upstreams`; `None`: it does not exist or cannot be used, which has been reported.
    fn shared_key(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>>;

    /// Registers an upstream that is written in the configuration under this key; `None`: it is invalid, which has been
    /// reported.
    fn register_own(&self, key: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream>;
}

/// No upstreams.
pub struct NoUpstreams;

impl Upstreams for NoUpstreams {
    fn shared_key(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>> {
        sink.error(id.at, path, Fault::new(format!("there is no upstream with the id {:?}", id.value)));
        None
    }

    fn register_own(&self, _: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream> {
        sink.error(node.at, path, Fault::new("an upstream cannot be written here"));
        None
    }
}
