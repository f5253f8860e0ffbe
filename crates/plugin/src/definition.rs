//! What a plugin says of itself: its name, its place, its keys, and how its configuration is compiled.

use crate::Plugin;
use crate::chain::Origin;
use crate::consumers::Proof;
use crate::phase::Phases;
use crate::table::of_node;
use crate::upstreams::Upstreams;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;
use stillgate_schema::{Definitions, Kind, Node, Object, Path, Position, Sink, map, read};

/// A plugin's definition.
pub trait Define: Plugin + Sized {
    /// Its configuration. JSON Schema and documentation come from the same table.
    type Keys: Object;
    /// APISIX's name.
    const NAME: &'static str;
    /// Its place in a chain: higher first. APISIX's.
    const PRIORITY: i32;
    /// The phases that are called.
    const PHASES: Phases;

    /// Makes it from its keys: parses, builds indexes. Off the workers, once for each configuration. Problems go to
    /// `cx.sink`; `None` where it cannot be made.
    fn compile(keys: Self::Keys, cx: &mut Compile<'_>) -> Option<Self>;
}

/// A plugin that finds out who asks, by credentials of consumers.
pub trait Authenticate: Define {
    /// What a consumer, or one of its credentials, has under the plugin's name.
    type Credential: Object;

    /// What requests are checked against once the credential is found, such as a key for signatures. `()`: finding it is
    /// enough, and nothing is kept.
    type Proof: Send + Sync + 'static;

    /// What requests are looked up by, such as the key of key-auth. Two consumers cannot have the same.
    fn lookup(credential: &Self::Credential) -> &[u8];

    /// Makes the proof: parses keys, decodes secrets. Off the workers, once for each credential. Problems go to `cx.sink`;
    /// `None` where it cannot be made.
    fn proof(credential: Self::Credential, cx: &mut CompileCredential<'_>) -> Option<Self::Proof>;
}

/// What a credential is compiled with.
pub struct CompileCredential<'a> {
    /// Where problems go. It hides every text of the credential.
    pub sink: &'a mut Sink,
    /// The way to the credential in its document.
    pub path: &'a Path<'a>,
    /// Where it stands.
    pub at: Position,
}

/// What `plugin_metadata` has under the plugin's name.
pub trait Metadata: Define {
    /// Its keys.
    type Metadata: Object + Send + Sync + 'static;
}

/// What a configuration is compiled with.
pub struct Compile<'a> {
    /// Where problems go.
    pub sink: &'a mut Sink,
    /// The way to the configuration in its document.
    pub path: &'a Path<'a>,
    /// Where it stands.
    pub at: Position,
    /// The resource that it belongs to.
    pub origin: &'a Origin,
    /// What tells this configuration, in this resource, from all others, in this process and in the one that takes over: state
    /// that is to outlive a reload is kept under it. Another configuration has another identity.
    pub identity: Identity,
    /// The upstreams that it may lead to.
    pub upstreams: &'a dyn Upstreams,
}

/// Digest of a plugin's name, resource and configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u128);

impl Identity {
    /// Of parts, each with its length before it, so that no two lists of parts are one.
    pub fn of(parts: &[&[u8]]) -> Identity {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let bytes: [u8; 32] = digest.finalize().into();
        let half: [u8; 16] = std::array::from_fn(|at| bytes[at]);
        Identity(u128::from_le_bytes(half))
    }
}

type CompileFn = fn(&Node, &mut Compile<'_>) -> Option<Box<dyn Plugin>>;
type CredentialFn = fn(&Node, &Path<'_>, &mut Sink) -> Option<(Box<[u8]>, Option<Arc<Proof>>)>;
type MetadataFn = fn(&Node, &Path<'_>, &mut Sink) -> Option<Arc<dyn Any + Send + Sync>>;
type SchemaFn = fn(&mut Definitions) -> Json;

/// One line of the table of plugins: a [`Define`] without its type.
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
    /// Whether it finds out who asks: by credentials of its own, or by other plugins.
    pub authenticates: bool,
    /// The keys of a consumer's credential; `None`: there is none of this plugin.
    pub credential: Option<CredentialPart>,
    /// The keys of its metadata; `None`: it has none.
    pub metadata: Option<MetadataPart>,
    compile: CompileFn,
}

/// The part of a [`Descriptor`] that reads credentials.
#[derive(Clone, Copy)]
pub struct CredentialPart {
    /// Schema of the keys.
    pub schema: SchemaFn,
    /// Reads them, and gives what requests are looked up by, and what they are checked against.
    pub read: CredentialFn,
}

/// The part of a [`Descriptor`] that reads metadata.
#[derive(Clone, Copy)]
pub struct MetadataPart {
    /// Schema of the keys.
    pub schema: SchemaFn,
    /// Reads them.
    pub read: MetadataFn,
}

impl Descriptor {
    /// Of a plugin.
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

    /// Of a plugin that authenticates.
    pub const fn authenticates<P: Authenticate>(self) -> Descriptor {
        let part = CredentialPart {
            schema: |definitions| map::<P::Credential>().schema(definitions),
            read: |node, path, sink| {
                let credential = read(&map::<P::Credential>(), node, path, sink)?;
                let lookup = P::lookup(&credential).into();
                let value = P::proof(credential, &mut CompileCredential { sink, path, at: node.at })?;
                // A hundred thousand keys of key-auth need nothing here.
                let is_nothing = TypeId::of::<P::Proof>() == TypeId::of::<()>();
                let proof = || Arc::new(Proof::new(of_node(&[P::NAME.as_bytes()], node, path, sink), value));
                Some((lookup, (!is_nothing).then(proof)))
            },
        };
        Descriptor { authenticates: true, credential: Some(part), ..self }
    }

    /// Of a plugin that authenticates by others: [`Plugin::asks_for`].
    pub const fn authenticates_by_others(self) -> Descriptor {
        Descriptor { authenticates: true, ..self }
    }

    /// Of a plugin with metadata.
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

    /// Compiles one configuration. `node` is without `_meta`, its secrets put in.
    pub fn compile(&self, node: &Node, cx: &mut Compile<'_>) -> Option<Box<dyn Plugin>> {
        (self.compile)(node, cx)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What `plugin_metadata` says, by plugin.
///
/// A list, as it is looked into by requests, and few plugins have any.
#[derive(Default, Clone)]
pub struct MetadataTable(Vec<MetadataItem>);

/// What it says of one plugin.
#[derive(Clone)]
pub struct MetadataItem {
    /// The plugin's name.
    pub plugin: &'static str,
    /// Tells it from what was written before.
    pub identity: Identity,
    /// What the plugin has made of it.
    pub value: Arc<dyn Any + Send + Sync>,
    /// As it was written, its secrets put in, without the id.
    pub written: Arc<Json>,
}

impl MetadataTable {
    /// Takes that of a plugin away.
    pub fn remove(&mut self, plugin: &str) {
        self.0.retain(|item| item.plugin != plugin);
    }

    /// Sets that of a plugin.
    pub fn insert(&mut self, item: MetadataItem) {
        self.remove(item.plugin);
        self.0.push(item);
    }

    /// That of a plugin, as the plugin has it.
    #[inline]
    pub fn get<T: 'static>(&self, plugin: &str) -> Option<&T> {
        self.item(plugin)?.value.downcast_ref()
    }

    /// All of a plugin.
    #[inline]
    pub fn item(&self, plugin: &str) -> Option<&MetadataItem> {
        self.0.iter().find(|item| item.plugin == plugin)
    }
}

/// The same configuration, read once or twice.
impl PartialEq for MetadataTable {
    fn eq(&self, other: &MetadataTable) -> bool {
        let is_there = |item: &MetadataItem| other.item(item.plugin).is_some_and(|of| of.identity == item.identity);
        self.0.len() == other.0.len() && self.0.iter().all(is_there)
    }
}

impl fmt::Debug for MetadataTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|item| item.plugin)).finish()
    }
}
