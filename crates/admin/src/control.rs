//! What the Admin API needs of the rest of the program.

use serde_json::Value as Json;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
pub use stillgate_datastore::embedded::{Change, ChangeSummary, Edit};
use stillgate_datastore::{Author, Documents, Key, Transaction, Write};

/// A future that may move between tasks.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The control side of a gateway, as its Admin API sees it.
///
/// A collection is named as in paths and keys (`routes`); credentials are the collection `credentials`, although their
/// keys begin with `consumers/`.
pub trait Control: Send + Sync + 'static {
    /// All documents, secrets in plain text. They change while a caller holds them.
    fn documents(&self) -> Arc<dyn Documents>;

    /// Whether the documents are known; `Err`: why they have not been read yet.
    fn readable(&self) -> Result<(), String>;

    /// Whether resources can be written here; `Err`: why not, for example because they come from a file.
    fn writable(&self) -> Result<(), String>;

    /// Checks a transaction against the served configuration and commits it, completely or not at all. When it answers
    /// depends on `wait`.
    fn write(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>>;

    /// [`Control::write`] for the replacement of everything, which may have more writes than a transaction; `Unsupported`: the
    /// source cannot make so many in one change.
    fn replace(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>>;

    /// A copy of the whole datastore, history included.
    fn backup(&self) -> Pending<Result<Backup, WriteError>>;

    /// Checks a transaction without committing it.
    fn check(&self, transaction: Transaction) -> Pending<Result<Checked, WriteError>>;

    /// Checks one document of a collection by itself, references aside; `Err`: what is wrong with it.
    fn validate(&self, collection: &str, value: &Json) -> Result<(), String>;

    /// The JSON Schema of a collection's documents.
    fn schema(&self, collection: &str) -> Option<Json>;

    /// All plugins, the highest priority first.
    fn plugins(&self) -> Vec<Plugin>;

    /// The JSON Schemas of a plugin: its configuration, its metadata, and a consumer's part.
    fn plugin_schema(&self, name: &str) -> Option<PluginSchema>;

    /// Calls `each` with every text of a document that may be a secret, which it may replace; with some more than once. Private
    /// keys of `ssls` need not be visited: answers never have them.
    fn secrets(&self, collection: &str, value: &mut Json, each: &mut dyn FnMut(&mut String));

    /// The changes before a revision (`None`: the newest), newest first, without values.
    fn history(&self, before: Option<u64>, count: usize) -> Pending<Result<Vec<ChangeSummary>, WriteError>>;

    /// One change with its values; `None`: it is not kept.
    fn change(&self, revision: u64) -> Pending<Result<Option<Change>, WriteError>>;

    /// The writes that lead back to what was stored at a revision, for a dry run.
    fn writes_back_to(&self, revision: u64) -> Pending<Result<Vec<Write>, WriteError>>;

    /// Goes back to what was stored at a revision, in one change, however many writes it takes.
    fn roll_back(&self, to: u64, author: Author, wait: Wait) -> Pending<Result<Outcome, WriteError>>;
}

/// One plugin, as lists show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// As in `plugins:`.
    pub name: &'static str,
    /// The higher runs first.
    pub priority: i32,
    /// Whether it authenticates consumers, so that it has a consumer's part.
    pub is_auth: bool,
    /// Whether it runs for routes.
    pub is_http: bool,
    /// Whether it runs for stream routes.
    pub is_stream: bool,
}

/// The schemas of one plugin.
#[derive(Debug, Clone, Default)]
pub struct PluginSchema {
    /// Of its configuration in a route, service and so on.
    pub schema: Json,
    /// Of a consumer's or credential's part, if it authenticates.
    pub consumer: Option<Json>,
    /// Of its `plugin_metadata`, if it has any.
    pub metadata: Option<Json>,
}

/// What a write waits for before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until every worker of this gateway serves it.
    Served,
    /// Until it is stored.
    Stored,
}

/// The result of a committed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Of the datastore, after it.
    pub revision: u64,
    /// Of the served configuration that includes it; `None`: that was not waited for, or took too long.
    pub generation: Option<u64>,
    /// Warnings for the writer; the write is valid.
    pub warnings: Vec<String>,
}

/// A copy of the datastore.
#[derive(Debug)]
pub struct Backup {
    /// At its beginning. It has no name, and goes when it is closed.
    pub file: std::fs::File,
    /// Of the file, in bytes.
    pub size: u64,
    /// Of the datastore that it is a copy of.
    pub path: PathBuf,
}

/// What a write would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Warnings for the writer.
    pub warnings: Vec<String>,
    /// Resources that the write would change in meaning, or have rejected: the key, and what would happen to it.
    pub effects: Vec<(Key, String)>,
    /// Which of the last requests would take another route, or go through other plugins.
    pub recent_requests: Json,
}

/// Why a write was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// A document is wrong: 400. The answer puts "invalid configuration: " before the text, unless the text begins as one of
    /// APISIX's own: `failed to check the configuration of plugin NAME err: …`, `failed to validate the 'vars' expression: …`,
    /// `failed to load 'filter_func' string: …`, `invalid plugins configuration: …`.
    Invalid(String),
    /// A condition does not hold: 412 if the client stated it.
    Conflict {
        /// Of this key.
        key: Key,
        /// The revision that wrote it last; `None`: there is no document.
        modified: Option<u64>,
    },
    /// The source of this gateway cannot do it: 501.
    Unsupported(String),
    /// Not now: 503, to be tried again.
    Unavailable(String),
}
