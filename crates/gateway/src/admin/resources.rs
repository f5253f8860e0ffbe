//! The Admin API's access to its data: the datastore behind its keeper, and the tables of keys and plugins.
//!
//! Where resources come from the file, its documents are read when somebody asks for them, and dropped a minute later: they take as
//! much memory as the file, and few look at them.
//!
//! For a dry run it also tells which of the last requests a change would send to another route, or through other plugins.

use super::context::{PageContext, Question};
use crate::configuration::kept::{
    CommittedChange, FollowedRevision, Keeper, OpenStore, StoreCopy, StoreRequest, Trial, WriteFailure,
};
use crate::configuration::reload::ServedPlan;
use crate::configuration::source::{ConfigSource, plugins};
use serde_json::{Value as Json, json};
use std::future::Future;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use stillgate_admin::control::{Change, ChangeSummary, Edit, Pending};
use stillgate_admin::{Backup, Control, Outcome, Plugin, PluginSchema, Wait, WriteConsequences, WriteError};
use stillgate_config::secret_fields::each_possible_secret;
use stillgate_config::{AccessFormat, Config, DigestedText, Gateway, ResourceKind, Schemas, documents};
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_datastore::{Author, CommitError, Document, DocumentTable, Documents, Key, Snapshot, Transaction, Write};
use stillgate_plugin_api::CustomPlugins;
use stillgate_plugin_api::secrets::references_in;
use stillgate_replay::replay::{self, Comparison, RoutedConfig};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

/// Time between two looks whether the secrets of a write are there.
const FETCH_PAUSE: Duration = Duration::from_millis(10);

/// How long a write waits until it is served; then it is answered without the number of a configuration.
const SERVED_TIMEOUT: Duration = Duration::from_secs(10);

const NOT_SERVED_YET: &str = "stored, but not served within ten seconds; GET /v1/status may say why";
const SUCCESSOR_SERVES: &str = "stored; the gateway is being upgraded, and the new process serves it";
const NOT_FOLLOWED_YET: &str = "stored, but not read back from etcd within ten seconds; GET /v1/status says why";
const FROM_FILE: &str =
    "this gateway's resources come from its file; edit the file, or set gateway.config.source to store";

/// It is made once: it takes milliseconds, and most of a mebibyte.
static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::new(stillgate_plugins::TABLE));

/// The control side, as the Admin API sees it.
#[derive(Clone)]
pub(crate) struct ControlSide {
    api: PageContext,
    /// `None`: resources come from the file.
    kept: Option<OpenStore>,
}

impl ControlSide {
    pub(crate) fn new(api: PageContext) -> ControlSide {
        ControlSide { kept: api.kept.clone(), api }
    }

    /// Sends a request to the thread of the datastore.
    fn ask<T: Send + 'static>(
        &self,
        asked: impl FnOnce(oneshot::Sender<Result<T, WriteFailure>>) -> StoreRequest,
    ) -> impl Future<Output = Result<T, WriteError>> + Send + 'static {
        let (answer, answered) = oneshot::channel();
        let sent = match &self.kept {
            None => Err(WriteError::Unsupported(FROM_FILE.to_owned())),
            Some(kept) => {
                let busy = || WriteError::Unavailable("too many writes at once; try again".to_owned());
                kept.asks.try_send(asked(answer)).map_err(|_| busy())
            }
        };
        async move {
            sent?;
            let ending = || WriteError::Unavailable("the gateway is shutting down".to_owned());
            answered.await.map_err(|_| ending())?.map_err(failure)
        }
    }

    /// Like `ask`, for a transaction: the thread of the datastore gets it when the secrets that it refers to have been looked up.
    /// Other requests to the thread do not wait for a slow Vault.
    fn ask_with<T: Send + 'static>(
        &self,
        transaction: Transaction,
        asked: impl FnOnce(Transaction, oneshot::Sender<Result<T, WriteFailure>>) -> StoreRequest + Send + 'static,
    ) -> impl Future<Output = Result<T, WriteError>> + Send + 'static {
        let side = self.clone();
        async move {
            let documents = transaction.writes.iter().filter_map(Write::document);
            let references: Vec<String> = documents.flat_map(references_in).map(str::to_owned).collect();
            side.clone().await_secrets(references).await;
            side.ask(|answer| asked(transaction, answer)).await
        }
    }

    /// Waits until secrets have been looked up. Not on a thread for blocking work: there are few, and a Vault may take seconds.
    async fn await_secrets(self, references: Vec<String>) {
        while self.kept.as_ref().is_some_and(|kept| !kept.keeper.checker().has_fetched(&references)) {
            sleep(FETCH_PAUSE).await;
        }
    }

    /// The plugins of files that documents may have.
    fn custom_plugins(&self) -> CustomPlugins {
        self.kept.as_ref().map_or(CustomPlugins::NONE, |kept| kept.keeper.checker().custom_plugins().clone())
    }

    /// The answer to a write, once it has come as far as `wait` says.
    fn outcome(
        &self,
        written: impl Future<Output = Result<CommittedChange, WriteError>> + Send + 'static,
        wait: Wait,
    ) -> Pending<Result<Outcome, WriteError>> {
        let keeper = self.kept.as_ref().map(|kept| kept.keeper.clone());
        Box::pin(async move {
            let CommittedChange { revision, mut warnings } = written.await?;
            let generation = match (wait, keeper) {
                (Wait::Served, Some(keeper)) => {
                    wait_until_served(&keeper, revision).await.map_err(|why| warnings.push(why.to_owned()))
                }
                (Wait::Stored, Some(keeper)) => {
                    // An etcd is followed: the next request of this client must see what it wrote.
                    let is_known = |stored: &FollowedRevision| stored.revision.is_some_and(|known| known >= revision);
                    if timeout(SERVED_TIMEOUT, keeper.stored.subscribe().wait_for(is_known)).await.is_err() {
                        warnings.push(NOT_FOLLOWED_YET.to_owned());
                    }
                    Err(())
                }
                _ => Err(()),
            };
            Ok(Outcome { revision, generation: generation.ok(), warnings })
        })
    }
}

impl Control for ControlSide {
    fn documents(&self) -> Arc<dyn Documents> {
        match &self.kept {
            Some(kept) => kept.keeper.clone(),
            None => self.api.of_file.table.clone(),
        }
    }

    fn readable(&self) -> Pending<Result<(), String>> {
        let Some(kept) = &self.kept else { return Box::pin(self.api.of_file.clone().read(self.api.clone())) };
        let stored = kept.keeper.stored.borrow().clone();
        let known = match stored.revision {
            None => Err(format!("etcd has not been read yet: {}", stored.error().unwrap_or_default())),
            Some(_) => Ok(()),
        };
        Box::pin(async { known })
    }

    fn writable(&self) -> Result<(), String> {
        if self.kept.is_some() { Ok(()) } else { Err(FROM_FILE.to_owned()) }
    }

    fn writes_max(&self) -> usize {
        self.kept.as_ref().map_or(WRITES_MAX, |kept| kept.keeper.traits.writes_max)
    }

    fn write(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>> {
        self.outcome(
            self.ask_with(transaction, |transaction, answer| StoreRequest::Write(transaction, Instant::now(), answer)),
            wait,
        )
    }

    fn write_many(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>> {
        self.outcome(self.ask_with(transaction, StoreRequest::WriteMany), wait)
    }

    fn backup(&self) -> Pending<Result<Backup, WriteError>> {
        let asked = self.ask(StoreRequest::Backup);
        Box::pin(async move {
            let StoreCopy { file, size, path } = asked.await?;
            Ok(Backup { file, size, path })
        })
    }

    fn check(&self, transaction: Transaction) -> Pending<Result<WriteConsequences, WriteError>> {
        let tried = self.ask_with(transaction, StoreRequest::Try);
        let api = self.api.clone();
        Box::pin(async move {
            let (Trial { refusals, warnings, effects }, next) = tried.await?;
            if !refusals.is_empty() {
                return Err(WriteError::Invalid(refusals.join("; ")));
            }
            let recent_requests = match next {
                Some(next) => compared_requests(&api, next).await,
                None => Json::Null,
            };
            Ok(WriteConsequences { warnings, effects, recent_requests })
        })
    }

    fn fetch_secrets(&self, text: &[u8]) -> Pending<()> {
        let text = std::str::from_utf8(text).unwrap_or_default();
        Box::pin(self.clone().await_secrets(references_in(text).map(str::to_owned).collect()))
    }

    fn validate(&self, collection: &str, value: &Json) -> Result<(), String> {
        match &self.kept {
            Some(kept) => kept.keeper.validate(collection, value),
            None => Err(FROM_FILE.to_owned()),
        }
    }

    fn collection_schema(&self, collection: &str) -> Option<Json> {
        SCHEMAS.kind(ResourceKind::from_name(collection)?)
    }

    fn plugins(&self) -> Vec<Plugin> {
        let table = stillgate_plugins::TABLE;
        let of = |plugin: &stillgate_plugin_api::Descriptor| Plugin {
            name: plugin.name,
            priority: plugin.priority,
            is_auth: plugin.authenticates,
            is_http: true,
            is_stream: false,
        };
        let custom = self.custom_plugins();
        let of_custom = custom.iter().map(|plugin| Plugin {
            name: plugin.name,
            priority: plugin.priority,
            is_auth: false,
            is_http: true,
            is_stream: false,
        });
        let mut plugins: Vec<Plugin> = table.plugins.iter().map(of).chain(of_custom).collect();
        plugins.sort_by_key(|plugin| std::cmp::Reverse(plugin.priority));
        plugins
    }

    fn plugin_schema(&self, name: &str) -> Option<PluginSchema> {
        if let Some(custom) = self.custom_plugins().find(name) {
            return Some(PluginSchema { schema: custom.schema.clone(), consumer: None, metadata: None });
        }
        let schemas = SCHEMAS.plugin(name)?;
        Some(PluginSchema { schema: schemas.own, consumer: schemas.credential, metadata: schemas.metadata })
    }

    fn secrets(&self, collection: &str, value: &mut Json, each: &mut dyn FnMut(&mut String)) {
        each_possible_secret(collection, value, each);
    }

    fn history(&self, before: Option<u64>, count: usize) -> Pending<Result<Vec<ChangeSummary>, WriteError>> {
        Box::pin(self.ask(|answer| StoreRequest::History(before, count, answer)))
    }

    fn change(&self, revision: u64) -> Pending<Result<Option<Change>, WriteError>> {
        let asked = self.ask(|answer| StoreRequest::Change(revision, answer));
        let keeper = self.kept.as_ref().map(|kept| kept.keeper.clone());
        Box::pin(async move {
            let (Some(mut change), Some(keeper)) = (asked.await?, keeper) else { return Ok(None) };
            for Edit { key, before, after } in &mut change.edits {
                let in_plain = |text: &Arc<str>| keeper.text_in_plain(key, text);
                (*before, *after) = (before.as_ref().map(in_plain), after.as_ref().map(in_plain));
            }
            Ok(Some(change))
        })
    }

    fn writes_back_to(&self, revision: u64) -> Pending<Result<Vec<Write>, WriteError>> {
        Box::pin(self.ask(|answer| StoreRequest::BackTo(revision, answer)))
    }

    fn roll_back(&self, to: u64, author: Author, wait: Wait) -> Pending<Result<Outcome, WriteError>> {
        self.outcome(self.ask(|answer| StoreRequest::RollBack(to, author, answer)), wait)
    }
}

/// Waits until all workers serve a revision: the number of the configuration, or why the wait has ended.
async fn wait_until_served(keeper: &Keeper, revision: u64) -> Result<u64, &'static str> {
    let (mut served, mut is_leaving) = (keeper.served.subscribe(), keeper.is_leaving.subscribe());
    let reached = timeout(SERVED_TIMEOUT, served.wait_for(|served| served.revision >= revision));
    tokio::select! {
        biased;
        reached = reached => {
            let reached = reached.ok().and_then(Result::ok);
            reached.map(|served| served.generation).ok_or(NOT_SERVED_YET)
        }
        // This process publishes nothing any more, and may end soon.
        _ = is_leaving.wait_for(|is_leaving| *is_leaving) => Err(SUCCESSOR_SERVES),
    }
}

fn failure(failure: WriteFailure) -> WriteError {
    match failure {
        WriteFailure::Refused(why) | WriteFailure::Unreachable(why) => WriteError::Invalid(why),
        WriteFailure::Unsupported(why) => WriteError::Unsupported(why),
        WriteFailure::Commit(CommitError::Conflict { key, modified }) => WriteError::Conflict { key, modified },
        WriteFailure::Commit(CommitError::TooLarge(why)) => WriteError::Invalid(why),
        WriteFailure::Commit(CommitError::Unavailable(why)) => WriteError::Unavailable(why),
    }
}

/// Why the comparison is missing.
const NO_LOG: &str = "not known: gateway.access_log is off";
const NOT_JSON: &str = "not known: gateway.access_log does not write JSON";
const NOT_COMPILED: &str = "not known: the routes cannot be compiled";
const ENDING: &str = "not known: the gateway is shutting down";

/// The last requests with the served configuration and with `next`: the shape of `stillgate check --requests`, or a reason.
/// The documents of the file that is served.
#[derive(Default)]
pub(super) struct FileDocuments {
    table: Arc<DocumentTable>,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    /// Digest of the configuration that `table` is of; empty: it is of none.
    digest: String,
    /// Counts the uses.
    uses: u64,
    is_watched: bool,
}

/// Documents that nobody has asked for in this time are dropped.
const FILE_IDLE: Duration = Duration::from_secs(60);

impl FileDocuments {
    /// Reads the file, unless its documents are known.
    async fn read(self: Arc<Self>, api: PageContext) -> Result<(), String> {
        let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
        let Some(served) = api.ask(Question::Served).await else {
            return Err("the gateway is shutting down".to_owned());
        };
        let digest = served.loaded.config.digest.clone();
        if !self.is_known(&digest) {
            let (documents, source) = (self.clone(), api.source.clone());
            let read = spawn_blocking(move || {
                let read = documents.fill(&source, &digest);
                drop(place);
                read
            });
            read.await.unwrap_or_else(|_| Err("reading the file failed, which is a bug; see the log".to_owned()))?;
        }
        self.drop_when_idle(api.give_back);
        Ok(())
    }

    fn is_known(&self, digest: &str) -> bool {
        let mut state = self.lock();
        state.uses += 1;
        state.digest == digest
    }

    fn fill(&self, source: &ConfigSource, served: &str) -> Result<(), String> {
        let text = DigestedText::new(source.read().map_err(|error| error.to_string())?);
        if !served.starts_with(text.digest()) {
            let why = "the file has changed since the configuration that is served was read; GET /v1/status says why";
            return Err(why.to_owned());
        }
        let environment = |name: &str| std::env::var(name).ok();
        let (found, _) = documents(text.bytes(), &environment, plugins(), []);
        let documents = found.into_iter().enumerate().map(|(place, found)| {
            let place = place as u64 + 1;
            let value = found.document.to_string().into();
            (key_of(found.kind, &found.id), Document { value, created: place, modified: place })
        });
        self.table.replace(Snapshot { revision: 0, documents: documents.collect() });
        served.clone_into(&mut self.lock().digest);
        Ok(())
    }

    fn drop_when_idle(self: Arc<Self>, give_back: fn()) {
        let mut uses = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.is_watched, true) {
                return;
            }
            state.uses
        };
        tokio::spawn(async move {
            loop {
                sleep(FILE_IDLE).await;
                let mut state = self.lock();
                if state.uses == uses {
                    *state = FileState::default();
                    self.table.replace(Snapshot::default());
                    break give_back();
                }
                uses = state.uses;
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(kind: ResourceKind, id: &str) -> Key {
    match (kind, id.split_once('/')) {
        (ResourceKind::Credentials, Some((consumer, id))) => {
            Key::from_etcd_path(&format!("consumers/{consumer}/credentials/{id}"))
        }
        _ => Key::from_etcd_path(&format!("{}/{id}", kind.name())),
    }
}

async fn compared_requests(api: &PageContext, next: Config) -> Json {
    let Some(recent) = api.recent.clone() else { return reason(NO_LOG) };
    // A comparison takes as long as an explanation, and one runs at a time.
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some(served) = api.ask(Question::Served).await else { return reason(ENDING) };
    if let Some(why) = unrecorded_reason(&served.loaded.config.gateway) {
        return reason(why);
    }
    let compared = spawn_blocking(move || {
        let found = compare(&recent.copied(), &served, &next);
        drop(place);
        found
    });
    match compared.await {
        Ok(Some(found)) => json!(found),
        Ok(None) => reason(NOT_COMPILED),
        Err(error) => {
            warn!(%error, "admin API: comparing the last requests failed, which is a bug");
            reason("not known: a bug; see the log")
        }
    }
}

fn compare(lines: &[u8], served: &ServedPlan, next: &Config) -> Option<Comparison> {
    let matcher = served.plan.matcher_of(next).ok()?;
    let old = RoutedConfig { config: &served.loaded.config, matcher: served.plan.matcher() };
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Some(replay::run_lines(lines, old, RoutedConfig { config: next, matcher: &matcher }).without_queries())
}

/// Why requests are not recorded, if they are not.
fn unrecorded_reason(gateway: &Gateway) -> Option<&'static str> {
    match gateway.access_log.as_ref().map(|log| &log.format) {
        Some(AccessFormat::Json(_)) => None,
        Some(_) => Some(NOT_JSON),
        None => Some(NO_LOG),
    }
}

fn reason(why: &str) -> Json {
    json!({ "requests": 0, "reason": why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stillgate_config::secret_fields::{is_known_key, is_known_plugin};

    /// The keys in a schema, except names of plugins.
    fn add_keys(schema: &Json, keys: &mut BTreeSet<String>) {
        match schema {
            Json::Array(items) => items.iter().for_each(|item| add_keys(item, keys)),
            Json::Object(fields) => {
                for (name, field) in fields {
                    if name == "properties" {
                        keys.extend(field.as_object().into_iter().flatten().map(|(key, _)| key.clone()));
                    }
                    add_keys(field, keys);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn each_key_of_a_resource_is_open_or_withheld_from_viewers() {
        let table = stillgate_plugins::TABLE;
        let mut keys = BTreeSet::new();
        for kind in ResourceKind::all() {
            add_keys(&SCHEMAS.kind(kind).unwrap_or_default(), &mut keys);
        }
        for plugin in table.plugins {
            keys.remove(plugin.name);
            assert!(
                is_known_plugin(plugin.name),
                "put {} into crates/config/src/secret_fields/open_keys.rs",
                plugin.name
            );
        }
        assert!(keys.len() > 300, "{}", keys.len());
        let unknown: Vec<&String> = keys.iter().filter(|key| !is_known_key(key)).collect();
        assert!(unknown.is_empty(), "put these keys into crates/config/src/secret_fields/open_keys.rs: {unknown:?}");
    }
}
