//! Reads one text after the other in proportion to what changed between them.
//!
//! The lists of routes and of consumers are taken apart, for they are what grows and changes: a text in which nothing
//! but one of them differs is read by what differs. Each text gives exactly what
//! [`load`](crate::load) gives for it: whatever is in doubt, and every error, is left to `load`.
//!
//! ```text
//!  head    gateway: …            the same bytes as before, or all is read anew
//!          routes:
//!  items     - id: a …           cut at the dashes by `text::cuts`; those with the bytes of one before keep their route,
//!            - id: b …           the others are read, each below a `routes:` of its own, by `again`
//!  tail    upstreams: …          the same bytes as before, or all is read anew
//! ```
//!
//! Why a cut list means the same as the whole: `outline` accepts a list only where the parser itself found one route
//! at each cut and a key where the tail begins, so nothing (a quote, a bracket, a block) reaches over a cut; `again`
//! accepts an item only if it is one whole list of one route by itself. And nothing in an item refers to another: there
//! are no anchors, aliases or tags, and ids are compared.
//!
//! It costs the text's bytes once more in memory and 32 bytes per route or consumer.

mod again;
mod consumers;
mod difference;
mod items;
mod outline;

use crate::file::whole::CatalogState;
use crate::file::{finish, read, resolve, without_secrets};
use crate::model::Loaded;
use crate::resources::{PluginSet, Remembered, Told};
use crate::values::{SourceKind, digest};
use items::Item;
use outline::Listed;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_plugin::Identity;
use stillgate_plugin::own::{beside, identity};
use stillgate_schema::text::diagnostic::{Diagnostic, Errors, Sink};
use stillgate_schema::text::environment::Lookup;

/// Environment variables that are remembered; a file that uses more is read as a whole each time.
const VARIABLES_MAX: usize = 1000;

/// References to secrets that are remembered; likewise.
const REFERENCES_MAX: usize = 1000;

/// The text of a configuration with its digest, which takes longer to compute than a small change to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    bytes: Vec<u8>,
    digest: String,
}

impl Text {
    /// Computes the digest.
    pub fn new(bytes: Vec<u8>) -> Text {
        Text { digest: digest(&bytes), bytes }
    }

    /// As [`Config::digest`](crate::Config::digest) has it.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// What the digest is of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the texts of one configuration, and keeps the last good one for the next to be compared with.
pub struct Reader {
    /// Its secrets are remembered, as the environment is.
    plugins: PluginSet,
    secrets: Arc<Remembered>,
    /// Where the text that was read last, good or bad, has plugins of its own.
    own_paths: Vec<PathBuf>,
    kept: Option<Kept>,
    /// What the last good text asked for, while a later one is refused.
    put_aside: Option<Asked>,
}

/// The secrets and the files of plugins that a text needs.
struct Asked {
    secrets: Told,
    own_paths: Vec<PathBuf>,
}

/// What a text left behind that can be taken apart.
struct Kept {
    text: Text,
    loaded: Arc<Loaded>,
    known: CatalogState,
    /// What the text was told of the environment.
    variables: Variables,
    /// `None`: there is none that can be taken apart.
    consumers: Option<Listed>,
    /// Of routes.
    list: List,
    items: Vec<Item>,
    /// Warnings that are of no route.
    warnings: Vec<Diagnostic>,
    /// Keys and values that are of no route, as `tree::NODES_MAX` counts them.
    nodes: usize,
}

/// Where a list is in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List {
    /// Bytes before its first line, which is the one behind its key.
    head: usize,
    /// Its first line, from 1.
    line: u32,
    /// Blanks before each dash.
    column: usize,
    /// Bytes behind its last line.
    tail: usize,
}

type Variables = BTreeMap<String, Option<String>>;

impl Default for Reader {
    fn default() -> Self {
        Reader::new(PluginSet::default())
    }
}

impl Reader {
    /// Of texts with plugins.
    pub fn new(plugins: PluginSet) -> Reader {
        let secrets = Arc::new(Remembered::new(plugins.secrets, REFERENCES_MAX));
        Reader {
            plugins: PluginSet { secrets: secrets.clone(), ..plugins },
            secrets,
            own_paths: Vec::new(),
            kept: None,
            put_aside: None,
        }
    }

    /// Gives what [`load`](crate::load) gives for the text. Routes whose text did not change are the same as before, by
    /// [`Arc::ptr_eq`]. After an error the next text is compared with the last good one.
    pub fn load(&mut self, text: Text, environment: Lookup<'_>) -> Result<Arc<Loaded>, Errors> {
        let recorder = Recorder { environment, told: RefCell::default() };
        let environment = |name: &str| recorder.ask(name);
        let put_aside = self.put_aside.take();
        let was_refused = put_aside.is_some();
        if let Some(Asked { secrets, own_paths }) = put_aside {
            self.secrets.put_back(secrets);
            self.own_paths = own_paths;
        }
        let good = self.kept.is_some().then(|| self.asked());
        if let Some(kept) = &mut self.kept
            && kept.variables.iter().all(|(name, value)| environment(name) == *value)
            && self.secrets.is_unchanged()
            && has_current_files(&self.plugins, &self.own_paths, kept)
            && kept.read(&text, &environment).is_some()
        {
            kept.text = text;
            kept.variables = recorder.told.take();
            let loaded = kept.loaded.clone();
            if was_refused {
                self.tell_secrets_in_use(&loaded);
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

    fn asked(&self) -> Asked {
        Asked { secrets: self.secrets.copy(), own_paths: self.own_paths.clone() }
    }

    /// What was kept of other secrets may be forgotten, unless resources of a datastore use it.
    fn tell_secrets_in_use(&self, loaded: &Loaded) {
        if loaded.config.gateway.config.source == SourceKind::File {
            self.secrets.tell_in_use();
        }
    }

    fn load_whole(&mut self, text: Text, recorder: &Recorder<'_>) -> Result<Arc<Loaded>, Errors> {
        let environment = |name: &str| recorder.ask(name);
        let mut sink = Sink::default();
        let Some(written) = read(&text.bytes, &environment, &mut sink) else {
            return Err(without_secrets(sink.into_errors(), &text.bytes, &environment));
        };
        self.own_paths.clone_from(&written.file.gateway.lua.path);
        let outline = outline::Outline::of(&text.bytes, &written);
        let root = &written.tree.root;
        let (config, known) = resolve(written.file, text.digest.clone(), self.plugins.clone(), root, &mut sink);
        let loaded = finish(Some(config), sink);
        let loaded = Arc::new(loaded.map_err(|errors| without_secrets(errors, &text.bytes, &environment))?);
        self.tell_secrets_in_use(&loaded);
        let variables = recorder.told.take();
        let outline = outline.filter(|_| variables.len() <= VARIABLES_MAX && !self.secrets.is_full());
        self.kept = outline.and_then(|outline| outline.keep(text, loaded.clone(), known, variables));
        Ok(loaded)
    }

    /// The digest that a configuration of this text has, with plugins as they are in their files now.
    pub fn digest_of(&self, text: &str) -> String {
        match self.own_paths.is_empty() {
            true => text.to_owned(),
            false => beside(files(&self.plugins, &self.own_paths), text),
        }
    }

    /// Where the text that was read last has plugins of its own.
    pub fn own_paths(&self) -> &[PathBuf] {
        &self.own_paths
    }

    /// Whether all secrets are as they were when they were looked up last.
    pub fn has_current_secrets(&self) -> bool {
        self.secrets.is_unchanged()
    }

    /// References to secrets in the texts that were read, good or bad; of very many only the first.
    pub fn secret_references(&self) -> Vec<String> {
        self.secrets.references()
    }

    /// Whether the next text can be read by what differs from the last good one.
    pub fn is_incremental(&self) -> bool {
        self.kept.is_some()
    }
}

/// What there is at paths of plugins; of what cannot be read, why.
fn files(plugins: &PluginSet, paths: &[PathBuf]) -> Identity {
    match (plugins.own_files)(paths) {
        Ok(files) => identity(&files),
        Err(why) => Identity::of(&[why.as_bytes()]),
    }
}

/// Whether the plugins of files are as they were.
fn has_current_files(plugins: &PluginSet, paths: &[PathBuf], kept: &Kept) -> bool {
    let own = &kept.loaded.config.plugins.own;
    paths.is_empty() || own.files().is_some_and(|before| before == files(plugins, paths))
}

impl Kept {
    /// Takes over what a text says that differs in one list.
    fn read(&mut self, text: &Text, environment: Lookup<'_>) -> Option<()> {
        if let Some(next) = again::read(self, text, environment) {
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

/// Remembers what the environment says.
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

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.kept.as_ref().map(|kept| kept.items.len());
        f.debug_struct("Reader").field("items", &items).finish_non_exhaustive()
    }
}
