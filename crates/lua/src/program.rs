//! A program: the functions of one configuration, compiled on each worker that runs them.

use crate::module::{Module, PHASES};
use crate::vm;
use serde_json::Value as Json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the functions of a program are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// As a plugin: they may answer, by `ngx.exit` and similar functions, or by returning a status and a body like
    /// APISIX's plugins.
    Plugin,
    /// As a condition: the first return value decides; it holds unless that is `nil` or `false`.
    Condition,
    /// As a condition whose function gets the request's variables instead of `conf`.
    Filter,
}

/// The functions of one configuration. It is created once, off the workers; the workers' compiled copies are dropped
/// with it.
#[derive(Debug)]
pub struct Program {
    /// Unique in this process.
    pub(crate) id: u64,
    /// The name that precedes line numbers in messages.
    pub(crate) name: String,
    /// Texts that each return a function.
    pub(crate) sources: Vec<String>,
    /// The argument `conf` of the functions.
    pub(crate) conf: Json,
    pub(crate) kind: CallKind,
    /// Instead of sources, the plugin whose functions they are: a part for each phase.
    pub(crate) module: Option<Arc<Module>>,
}

/// Number of programs that were dropped.
static GONE: AtomicU64 = AtomicU64::new(0);

/// Number of dropped programs: when it grows, a VM can forget some.
#[inline]
pub(crate) fn gone() -> u64 {
    GONE.load(Ordering::Acquire)
}

impl Drop for Program {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Release);
    }
}

/// Reserves numbers for a program: one for each part.
fn next_id(parts: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(parts as u64, Ordering::Relaxed)
}

impl Program {
    /// Creates a program from sources that [`check`] accepts.
    pub fn new(name: String, sources: Vec<String>, conf: Json, kind: CallKind) -> Arc<Program> {
        Arc::new(Program { id: next_id(1), name, sources, conf, kind, module: None })
    }

    /// The file whose functions it has.
    pub fn module(&self) -> Option<&Arc<Module>> {
        self.module.as_ref()
    }

    /// Creates a program from a plugin's file and a configuration that its schema accepts. It has a part for each of
    /// [`PHASES`].
    pub fn of_module(name: String, module: Arc<Module>, conf: Json) -> Arc<Program> {
        let (id, sources) = (next_id(PHASES.len()), Vec::new());
        Arc::new(Program { id, name, sources, conf, kind: CallKind::Plugin, module: Some(module) })
    }
}

/// Checks that a text is a chunk that returns a function; the error is APISIX's. The text is run for that, with the
/// memory and time limits of functions.
pub fn check(source: &str) -> Result<(), String> {
    vm::check(source)
}
