//! Reads successive texts in time proportional to their differences.
//!
//! The lists of routes and of consumers are split into items, since these grow and change: if only one of them differs, only its
//! differences are read. Each text gives exactly the result of [`load`](crate::load): every doubtful case and every error is left
//! to `load`.
//!
//! ```text
//!  head    gateway: …            the same bytes as before, or everything is read again
//!          routes:
//!  items     - id: a …           cut at the dashes by `text::cuts`; those with the bytes of one before keep their route,
//!            - id: b …           the others are read, each below a `routes:` of its own, by `update`
//!  tail    upstreams: …          the same bytes as before, or everything is read again
//! ```
//!
//! Why a split list means the same as the whole: `outline` accepts a list only if the parser itself found one route at each cut and
//! a key where the tail begins, so nothing (a quote, a bracket, a block) extends over a cut; `update` accepts an item only if it is
//! a whole list of one route by itself. And no item refers to another: there are no anchors, aliases or tags, and ids are compared.
//!
//! It costs the text's bytes once more in memory and 32 bytes per route or consumer.

mod consumers;
mod difference;
mod outline;
mod update;

use crate::file::whole::CatalogState;
use crate::file::{finish, read, resolve, without_secrets};
use crate::model::LoadedConfig;
use crate::resources::{PluginSet, RememberedSecrets, SecretHashes};
use crate::values::digest;
use outline::{Item, ListItems};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_plugin_api::Identity;
use stillgate_plugin_api::custom::{combine_digests, identity};
use stillgate_schema::text::diagnostic::{Diagnostic, Errors, Sink};
use stillgate_schema::text::environment::Lookup;

/// The most environment variables that are remembered; a file that uses more is read as a whole each time.
const VARIABLES_MAX: usize = 1000;

/// The most references to secrets that are remembered; likewise.
const REFERENCES_MAX: usize = 1000;

/// The text of a configuration with its digest. Computing the digest takes longer than reading a small change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestedText {
    bytes: Vec<u8>,
    digest: String,
}

impl DigestedText {
    /// Computes the digest.
    pub fn new(bytes: Vec<u8>) -> DigestedText {
        DigestedText { digest: digest(&bytes), bytes }
    }

    /// The digest in the form of [`Config::digest`](crate::Config::digest).
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The text.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the successive texts of one configuration, and keeps the last good one for comparison with the next.
pub struct IncrementalReader {
    /// Its lookups of secrets are remembered, like those of environment variables.
    plugins: PluginSet,
    secrets: Arc<RememberedSecrets>,
    /// The paths of plugins in the text that was read last, good or bad.
    plugin_paths: Vec<PathBuf>,
    kept: Option<SplitText>,
    /// The secrets used by the last good text, while a later one is refused.
    put_aside: Option<TextNeeds>,
}

/// The secrets and the plugin files that a text needs.
struct TextNeeds {
    secrets: SecretHashes,
    plugin_paths: Vec<PathBuf>,
}

/// The state kept of a text that can be split.
struct SplitText {
    text: DigestedText,
    loaded: Arc<LoadedConfig>,
    known: CatalogState,
    /// The environment variables that the text used.
    variables: Variables,
    /// `None`: no list can be split.
    consumers: Option<ListItems>,
    /// The list of routes.
    list: List,
    items: Vec<Item>,
    /// Warnings outside of routes.
    warnings: Vec<Diagnostic>,
    /// Number of keys and values outside of routes, as `tree::NODES_MAX` counts them.
    nodes: usize,
}

/// The position of a list in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List {
    /// Number of bytes before its first line, the one after its key.
    head: usize,
    /// Its first line, from 1.
    line: u32,
    /// Number of blanks before each dash.
    column: usize,
    /// Number of bytes after its last line.
    tail: usize,
}

type Variables = BTreeMap<String, Option<String>>;

impl Default for IncrementalReader {
    fn default() -> Self {
        IncrementalReader::new(PluginSet::default())
    }
}

impl IncrementalReader {
    /// Makes a reader for texts with plugins.
    pub fn new(plugins: PluginSet) -> IncrementalReader {
        let secrets = Arc::new(RememberedSecrets::new(plugins.secrets, REFERENCES_MAX));
        IncrementalReader {
            plugins: PluginSet { secrets: secrets.clone(), ..plugins },
            secrets,
            plugin_paths: Vec::new(),
            kept: None,
            put_aside: None,
        }
    }

    /// Reads the text with the same result as [`load`](crate::load). Routes with unchanged text are the same as before, by
    /// [`Arc::ptr_eq`]. After an error the next text is compared with the last good one.
    pub fn load(&mut self, text: DigestedText, environment: Lookup<'_>) -> Result<Arc<LoadedConfig>, Errors> {
        let recorder = Recorder { environment, told: RefCell::default() };
        let environment = |name: &str| recorder.ask(name);
        let put_aside = self.put_aside.take();
        let was_refused = put_aside.is_some();
        if let Some(TextNeeds { secrets, plugin_paths }) = put_aside {
            self.secrets.restore(secrets);
            self.plugin_paths = plugin_paths;
        }
        let good = self.kept.is_some().then(|| self.text_needs());
        if self.kept.is_some() {
            self.secrets.fetch_those_of(std::str::from_utf8(&text.bytes));
        }
        if let Some(kept) = &mut self.kept
            && kept.variables.iter().all(|(name, value)| environment(name) == *value)
            && self.secrets.is_unchanged()
            && has_current_files(&self.plugins, &self.plugin_paths, kept)
            && kept.read(&text, &environment).is_some()
        {
            kept.text = text;
            kept.variables = recorder.told.take();
            let loaded = kept.loaded.clone();
            if was_refused {
                self.report_secrets_in_use(&loaded);
            }
            self.kept.take_if(|kept| kept.variables.len() > VARIABLES_MAX || self.secrets.is_full());
            return Ok(loaded);
        }
        recorder.told.take();
        self.secrets.forget();
        let loaded = self.load_whole(text, &recorder);
        self.put_aside = good.filter(|_| loaded.is_err());
        loaded
    }

    fn text_needs(&self) -> TextNeeds {
        TextNeeds { secrets: self.secrets.copy(), plugin_paths: self.plugin_paths.clone() }
    }

    /// The values of other secrets may be forgotten, unless resources of a datastore use them.
    fn report_secrets_in_use(&self, loaded: &LoadedConfig) {
        if loaded.config.gateway.config.source.is_file() {
            self.secrets.report_in_use();
        }
    }

    fn load_whole(&mut self, text: DigestedText, recorder: &Recorder<'_>) -> Result<Arc<LoadedConfig>, Errors> {
        let environment = |name: &str| recorder.ask(name);
        let mut sink = Sink::default();
        let Some(written) = read(&text.bytes, &environment, &mut sink) else {
            return Err(without_secrets(sink.into_errors(), &text.bytes, &environment));
        };
        self.plugin_paths.clone_from(&written.file.gateway.lua.path);
        let outline = outline::Outline::of(&text.bytes, &written);
        let root = &written.tree.root;
        let (config, known) = resolve(written.file, text.digest.clone(), self.plugins.clone(), root, &mut sink);
        let loaded = finish(Some(config), sink);
        let loaded = Arc::new(loaded.map_err(|errors| without_secrets(errors, &text.bytes, &environment))?);
        self.report_secrets_in_use(&loaded);
        let variables = recorder.told.take();
        let outline = outline.filter(|_| variables.len() <= VARIABLES_MAX && !self.secrets.is_full());
        self.kept = outline.and_then(|outline| outline.keep(text, loaded.clone(), known, variables));
        Ok(loaded)
    }

    /// The digest of a configuration of this text with the current content of its plugin files.
    pub fn digest_of(&self, text: &str) -> String {
        match self.plugin_paths.is_empty() {
            true => text.to_owned(),
            false => combine_digests(files(&self.plugins, &self.plugin_paths), text),
        }
    }

    /// The paths of plugins in the text that was read last.
    pub fn plugin_paths(&self) -> &[PathBuf] {
        &self.plugin_paths
    }

    /// Whether all secrets are unchanged since they were last looked up.
    pub fn has_current_secrets(&self) -> bool {
        self.secrets.is_unchanged()
    }

    /// The references to secrets in the texts that were read, good or bad; if there are very many, only the first ones.
    pub fn secret_references(&self) -> Vec<String> {
        self.secrets.references()
    }

    /// Whether the next text can be read by its differences from the last good one.
    pub fn is_incremental(&self) -> bool {
        self.kept.is_some()
    }
}

/// The content at paths of plugins; the error for each one that cannot be read.
fn files(plugins: &PluginSet, paths: &[PathBuf]) -> Identity {
    match (plugins.plugin_files)(paths) {
        Ok(files) => identity(&files),
        Err(why) => Identity::of(&[why.as_bytes()]),
    }
}

/// Whether the plugin files are unchanged.
fn has_current_files(plugins: &PluginSet, paths: &[PathBuf], kept: &SplitText) -> bool {
    let custom = &kept.loaded.config.plugins.custom;
    paths.is_empty() || custom.files().is_some_and(|before| before == files(plugins, paths))
}

impl SplitText {
    /// Applies a text that differs in one list.
    fn read(&mut self, text: &DigestedText, environment: Lookup<'_>) -> Option<()> {
        if let Some(next) = update::read(self, text, environment) {
            let (before, after) = (lines_of(&self.items), lines_of(&next.items));
            if let Some(consumers) = &mut self.consumers {
                consumers.list.shift(&self.list, self.text.bytes.len(), text.bytes.len(), before, after);
            }
            self.known.named.extend(next.named);
            (self.items, self.warnings, self.loaded) = (next.items, next.warnings, Arc::new(next.loaded));
            return Some(());
        }
        let next = consumers::read(self, text, environment)?;
        let listed = self.consumers.as_mut()?;
        let (before, after) = (lines_of(&listed.items), lines_of(&next.items));
        self.list.shift(&listed.list, self.text.bytes.len(), text.bytes.len(), before, after);
        let nodes = |items: &[Item]| items.iter().map(|item| item.nodes as usize).sum::<usize>();
        self.nodes = self.nodes - nodes(&listed.items) + nodes(&next.items);
        (listed.items, self.warnings, self.loaded) = (next.items, next.warnings, Arc::new(next.loaded));
        Some(())
    }
}

fn lines_of(items: &[Item]) -> u32 {
    items.iter().map(|item| item.cut.lines).sum()
}

impl List {
    /// Another list has grown or shrunk.
    fn shift(&mut self, other: &List, old_bytes: usize, new_bytes: usize, old_lines: u32, new_lines: u32) {
        if other.line < self.line {
            self.head = self.head + new_bytes - old_bytes;
            self.line = self.line + new_lines - old_lines;
        } else {
            self.tail = self.tail + new_bytes - old_bytes;
        }
    }
}

/// Remembers the environment variables that are read.
struct Recorder<'a> {
    environment: Lookup<'a>,
    told: RefCell<Variables>,
}

impl Recorder<'_> {
    fn ask(&self, name: &str) -> Option<String> {
        let value = (self.environment)(name);
        self.told.borrow_mut().insert(name.to_owned(), value.clone());
        value
    }
}

impl fmt::Debug for IncrementalReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.kept.as_ref().map(|kept| kept.items.len());
        f.debug_struct("IncrementalReader").field("items", &items).finish_non_exhaustive()
    }
}
