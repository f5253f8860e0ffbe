//! The interface of the Admin API to the rest of the program.

use serde_json::Value as Json;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
pub use stillgate_datastore::embedded::{Change, ChangeSummary, Edit};
use stillgate_datastore::{Author, Documents, Key, Transaction, Write};

/// A future that can move between tasks.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The control side of a gateway, as its Admin API sees it.
///
/// A collection is named as in paths and keys (`routes`); credentials are the collection `credentials`, although their keys begin
/// with `consumers/`.
pub trait Control: Send + Sync + 'static {
    /// All documents, with secrets in plain text. They may change while a caller holds them.
    fn documents(&self) -> Arc<dyn Documents>;

    /// Waits until the documents are known; `Err`: why they are not.
    fn readable(&self) -> Pending<Result<(), String>>;

    /// Whether resources can be written here; `Err`: why not, for example because they come from a file.
    fn writable(&self) -> Result<(), String>;

    /// How many writes one request can make as one change.
    fn writes_max(&self) -> usize;

    /// Checks a transaction against the served configuration and commits it completely or not at all. `wait` determines when it
    /// returns.
    fn write(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>>;

    /// [`Control::write`] with up to [`Control::writes_max`] writes and many bytes, such as a replacement of everything; an error: the
    /// source cannot make this many in one change.
    fn write_many(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>>;

    /// A copy of the whole datastore, history included.
    fn backup(&self) -> Pending<Result<Backup, WriteError>>;

    /// Checks a transaction without committing it.
    fn check(&self, transaction: Transaction) -> Pending<Result<WriteConsequences, WriteError>>;

    /// Looks up the secrets that a text with documents refers to, all at the same time: checking the documents does not wait for
    /// them then, which would hold up a thread.
    fn fetch_secrets(&self, text: &[u8]) -> Pending<()>;

    /// Checks one document of a collection by itself, without its references; `Err`: its error.
    fn validate(&self, collection: &str, value: &Json) -> Result<(), String>;

    /// The JSON Schema of a collection's documents.
    fn collection_schema(&self, collection: &str) -> Option<Json>;

    /// All plugins by descending priority.
    fn plugins(&self) -> Vec<Plugin>;

    /// The JSON Schemas of a plugin: its configuration, its metadata, and a consumer's part.
    fn plugin_schema(&self, name: &str) -> Option<PluginSchema>;

    /// Calls `each` with every text of a document that may be a secret, some more than once; it may replace the text. Private keys
    /// of `ssls` need not be visited: answers never contain them.
    fn secrets(&self, collection: &str, value: &mut Json, each: &mut dyn FnMut(&mut String));

    /// The changes before a revision (`None`: the newest), newest first, without values.
    fn history(&self, before: Option<u64>, count: usize) -> Pending<Result<Vec<ChangeSummary>, WriteError>>;

    /// One change with its values; `None`: it is no longer kept.
    fn change(&self, revision: u64) -> Pending<Result<Option<Change>, WriteError>>;

    /// The writes that restore the state at a revision, for a dry run.
    fn writes_back_to(&self, revision: u64) -> Pending<Result<Vec<Write>, WriteError>>;

    /// Restores the state at a revision in one change, however many writes it takes.
    fn roll_back(&self, to: u64, author: Author, wait: Wait) -> Pending<Result<Outcome, WriteError>>;
}

/// A plugin in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// The name in `plugins:`.
    pub name: &'static str,
    /// Plugins with a higher priority run first.
    pub priority: i32,
    /// Whether it authenticates consumers, and so has a consumer's part.
    pub is_auth: bool,
    /// Whether it runs for routes.
    pub is_http: bool,
    /// Whether it runs for stream routes.
    pub is_stream: bool,
}

/// The schemas of one plugin.
#[derive(Debug, Clone, Default)]
pub struct PluginSchema {
    /// The schema of its configuration in a route, service and so on.
    pub schema: Json,
    /// The schema of the part in a consumer or credential, if it authenticates.
    pub consumer: Option<Json>,
    /// The schema of its `plugin_metadata`, if it has any.
    pub metadata: Option<Json>,
}

/// The condition for answering a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Every worker of this gateway serves it.
    Served,
    /// It is stored.
    Stored,
}

/// The result of a committed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The datastore's revision after the write.
    pub revision: u64,
    /// The generation of the served configuration that includes it; `None`: that was not waited for, or took too long.
    pub generation: Option<u64>,
    /// Warnings for the writer; the write is valid.
    pub warnings: Vec<String>,
}

/// A copy of the datastore.
#[derive(Debug)]
pub struct Backup {
    /// The file at its beginning. It has no name, and is deleted when it is closed.
    pub file: std::fs::File,
    /// The file's length in bytes.
    pub size: u64,
    /// The datastore's revision in the copy.
    pub path: PathBuf,
}

/// The consequences of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteConsequences {
    /// Warnings for the writer.
    pub warnings: Vec<String>,
    /// Resources whose meaning the write would change, or that it would cause to be rejected: the key, and the effect.
    pub effects: Vec<(Key, String)>,
    /// The recent requests that would take another route or pass other plugins.
    pub recent_requests: Json,
}

/// Why a write was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// A document is invalid: 400. The answer prefixes the text with "invalid configuration: ", unless the text begins with one of
    /// APISIX's own messages: `failed to check the configuration of plugin NAME err: …`, `failed to validate the 'vars' expression:
    /// …`, `failed to load 'filter_func' string: …`, `invalid plugins configuration: …`.
    Invalid(String),
    /// A condition does not hold: 412 if the client stated it.
    Conflict {
        /// The key of the condition.
        key: Key,
        /// The revision that wrote the document last; `None`: the document does not exist.
        modified: Option<u64>,
    },
    /// The source of this gateway does not support it: 501.
    Unsupported(String),
    /// Temporarily impossible: 503; the client should try again.
    Unavailable(String),
}
