//! Reads one text after the other in proportion to what changed between them.
//!
//! Only the list of routes is taken apart, for it is what grows and changes. Each text gives exactly what
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
//! It costs the text's bytes once more in memory and 32 bytes per route.

mod again;
mod items;
mod outline;

use crate::reading::{Loaded, finish, read, resolve};
use crate::resolve::{PluginSet, Shared};
use crate::values::digest;
use items::Item;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use stillgate_schema::text::diagnostic::{Diagnostic, Errors, Sink};
use stillgate_schema::text::environment::Lookup;

/// Environment variables that are remembered; a file that uses more is read as a whole each time.
const VARIABLES_MAX: usize = 1000;

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
#[derive(Default)]
pub struct Reader {
    plugins: PluginSet,
    kept: Option<Kept>,
}

/// What a text left behind that can be taken apart.
struct Kept {
    text: Text,
    loaded: Arc<Loaded>,
    shared: Shared,
    /// What the text was told of the environment.
    variables: Variables,
    list: List,
    items: Vec<Item>,
    /// Warnings that are of no item.
    warnings: Vec<Diagnostic>,
    /// Keys and values that are of no item, as `tree::NODES_MAX` counts them.
    nodes: usize,
}

/// Where the list of routes is in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct List {
    /// Bytes before its first line, which is the one behind `routes:`.
    head: usize,
    /// Its first line, from 1.
    line: u32,
    /// Blanks before each dash.
    column: usize,
    /// Bytes behind its last line.
    tail: usize,
}

type Variables = BTreeMap<String, Option<String>>;

impl Reader {
    /// Of texts with plugins.
    pub fn new(plugins: PluginSet) -> Reader {
        Reader { plugins, kept: None }
    }

    /// Gives what [`load`](crate::load) gives for the text. Routes whose text did not change are the same as before, by
    /// [`Arc::ptr_eq`], unless their upstream moved in the list; then their `spec` is. After an error the next text is
    /// compared with the last good one.
    pub fn load(&mut self, text: Text, environment: Lookup<'_>) -> Result<Arc<Loaded>, Errors> {
        let recorder = Recorder { environment, told: RefCell::default() };
        let environment = |name: &str| recorder.ask(name);
        if let Some(kept) = &mut self.kept
            && kept.variables.iter().all(|(name, value)| environment(name) == *value)
            && let Some(next) = again::read(kept, &text, &environment)
        {
            kept.take(next, text);
            kept.variables = recorder.told.take();
            let loaded = kept.loaded.clone();
            self.kept.take_if(|kept| kept.variables.len() > VARIABLES_MAX);
            return Ok(loaded);
        }
        recorder.told.take();
        let mut sink = Sink::default();
        let Some(written) = read(&text.bytes, &environment, &mut sink) else {
            return Err(sink.into_errors());
        };
        let outline = outline::Outline::of(&text.bytes, &written);
        let at = written.tree.root.at;
        let (config, shared) = resolve(written.file, text.digest.clone(), self.plugins.clone(), at, &mut sink);
        let loaded = Arc::new(finish(Some(config), sink)?);
        let variables = recorder.told.take();
        let outline = outline.filter(|_| variables.len() <= VARIABLES_MAX);
        self.kept = outline.and_then(|outline| outline.keep(text, loaded.clone(), shared, variables));
        Ok(loaded)
    }

    /// Whether the next text can be read by what differs from the last good one.
    pub fn is_incremental(&self) -> bool {
        self.kept.is_some()
    }
}

impl Kept {
    fn take(&mut self, next: again::Next, text: Text) {
        let again::Next { loaded, items, warnings } = next;
        self.text = text;
        self.loaded = Arc::new(loaded);
        self.items = items;
        self.warnings = warnings;
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
