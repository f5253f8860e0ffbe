//! What is run: the functions of one configuration, compiled on each worker that runs them.

use crate::module::{Module, PHASES};
use crate::vm;
use serde_json::Value as Json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the functions of a program are called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They may answer: by `ngx.exit` and its like, or by returning a status and a body as APISIX's plugins do.
    Plugin,
    /// What the first returns decides: it holds unless that is `nil` or `false`.
    Condition,
    /// The same for a function that gets the request's variables in place of `conf`.
    Filter,
}

/// The functions of one configuration. It is made once, off the workers; what workers have made of it goes with it.
#[derive(Debug)]
pub struct Program {
    /// Tells it from every other in this process.
    pub(crate) id: u64,
    /// What stands before a line's number in messages.
    pub(crate) name: String,
    /// Each returns a function.
    pub(crate) sources: Vec<String>,
    /// What functions get as `conf`.
    pub(crate) conf: Json,
    pub(crate) kind: Kind,
    /// In place of sources, the plugin whose functions they are: a part for each phase.
    pub(crate) module: Option<Arc<Module>>,
}

/// Programs that are no more.
static GONE: AtomicU64 = AtomicU64::new(0);

/// How many there are of those: when it grows, a VM has something to forget.
#[inline]
pub(crate) fn gone() -> u64 {
    GONE.load(Ordering::Acquire)
}

impl Drop for Program {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Release);
    }
}

/// Numbers that have been given to programs: one for each part.
fn next_id(parts: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(parts as u64, Ordering::Relaxed)
}

impl Program {
    /// Of sources that [`check`] takes.
    pub fn new(name: String, sources: Vec<String>, conf: Json, kind: Kind) -> Arc<Program> {
        Arc::new(Program { id: next_id(1), name, sources, conf, kind, module: None })
    }

    /// The file whose functions it has.
    pub fn module(&self) -> Option<&Arc<Module>> {
        self.module.as_ref()
    }

    /// Of a plugin's file with a configuration that its schema takes. It has a part for each of [`PHASES`].
    pub fn of_module(name: String, module: Arc<Module>, conf: Json) -> Arc<Program> {
        let (id, sources) = (next_id(PHASES.len()), Vec::new());
        Arc::new(Program { id, name, sources, conf, kind: Kind::Plugin, module: Some(module) })
    }
}

/// Whether a text is a chunk that returns a function; the error is APISIX's. It is run for that, within the bounds of memory
/// and time that hold for functions.
pub fn check(source: &str) -> Result<(), String> {
    vm::check(source)
}
