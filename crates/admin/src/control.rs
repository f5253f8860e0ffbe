//! What the Admin API needs of the rest of the program.

use serde_json::Value as Json;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use stillgate_datastore::{Documents, Key, Transaction};

/// A future that may move between tasks.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The control side of a gateway, as its Admin API sees it.
pub trait Control: Send + Sync + 'static {
    /// All documents, secrets in plain text; they change under the caller's eyes.
    fn documents(&self) -> Arc<Documents>;

    /// Whether resources can be written here; `Err`: why not, as where they come from a file.
    fn writable(&self) -> Result<(), String>;

    /// Checks a transaction against what is served, and makes it. It is made whole or not at all, and answers as `wait` says.
    fn write(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>>;

    /// Checks a transaction, and makes nothing of it.
    fn check(&self, transaction: Transaction) -> Pending<Result<Checked, WriteError>>;

    /// Checks one document of a collection by itself, as `schema/validate/{kind}` does; `Err`: what is wrong.
    fn validate(&self, collection: &str, value: &Json) -> Result<(), String>;

    /// The JSON Schema of a collection's documents, by its name (`routes`).
    fn schema(&self, collection: &str) -> Option<Json>;

    /// The plugins with their priorities, the highest first.
    fn plugins(&self) -> Vec<(&'static str, i32)>;

    /// The JSON Schema of a plugin: of its configuration, its metadata, and a consumer's part.
    fn plugin_schema(&self, name: &str) -> Option<PluginSchema>;

    /// The changes before a revision (`None`: the newest), newest first, without values; `Err`: there is no history, and why.
    fn history(&self, before: Option<u64>, count: usize) -> Pending<Result<Vec<Json>, WriteError>>;

    /// One change with what each key had before and has after it; `None`: it is not kept.
    fn change(&self, revision: u64) -> Pending<Result<Option<Json>, WriteError>>;

    /// The writes that lead back to what was stored at a revision.
    fn writes_back_to(&self, revision: u64) -> Pending<Result<Vec<stillgate_datastore::Write>, WriteError>>;
}

/// The schemas of one plugin.
#[derive(Debug, Clone, Default)]
pub struct PluginSchema {
    /// Of its configuration in a route, service and so on.
    pub schema: Json,
    /// Of a consumer's or credential's part, where it authenticates.
    pub consumer: Option<Json>,
    /// Of `plugin_metadata`, where it has any.
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

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Of the datastore, after it.
    pub revision: u64,
    /// Of the configuration that is served, and has it; `None`: that was not waited for, or took too long.
    pub generation: Option<u64>,
    /// What the writer should know; nothing is wrong with it.
    pub warnings: Vec<String>,
}

/// What a write would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// What the writer should know.
    pub warnings: Vec<String>,
    /// Resources that would mean something else, or be rejected, by it: the key and what would become of it.
    pub effects: Vec<(Key, String)>,
}

/// Why a write was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// The document is wrong: 400.
    Invalid(String),
    /// A condition does not hold: 412 where the client stated it.
    Conflict {
        /// Of this key.
        key: Key,
        /// The revision that wrote it last; `None`: there is no such document.
        modified: Option<u64>,
    },
    /// The source of this gateway has no such thing: 501.
    Unsupported(String),
    /// Not now: 503, to be tried again.
    Unavailable(String),
}
