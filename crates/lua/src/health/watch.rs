//! The worker's end: receives LuaJIT's events, and publishes them after the run.

use super::reasons::{AbortReason, FNEW, given_up};
use super::{
    ABORTS, ABORTS_MAX, Abort, FLUSHES, FUNCTIONS_MAX, Health, LINES_MAX, PUBLISHED, PublishedState, TEXT_BYTES_MAX,
    TRACES, TextFunction,
};
use arc_swap::ArcSwap;
use mlua::{FromLuaMulti, Function as LuaFunction, Lua, Table};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

/// Number of texts loaded so far.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// The state of one VM.
pub(crate) struct VmWatch {
    heard: Rc<EventLog>,
    /// Table shared by the parts of the prelude.
    shared: Table,
    published: Option<Arc<PublishedState>>,
    generation: u64,
}

/// Events, as written by the functions that LuaJIT calls.
#[derive(Default)]
struct EventLog {
    health: RefCell<Health>,
    is_new: Cell<bool>,
}

/// The arguments of an abort from `health.lua`.
type AbortArguments = (String, u32, String, String, i64, i64, String, u32, u32, bool);

impl VmWatch {
    /// Registers the event handlers with the prelude.
    pub(crate) fn new(lua: &Lua, shared: &Table, generation: u64) -> mlua::Result<VmWatch> {
        let heard = Rc::new(EventLog::default());
        shared.set("fnew", FNEW)?;
        let numbers = lua.create_table()?;
        for number in given_up() {
            numbers.set(number, true)?;
        }
        shared.set("given_up", numbers)?;
        hear(lua, shared, &heard, "on_compiled", Health::compiled)?;
        hear(lua, shared, &heard, "on_compiled_line", Health::compiled_line)?;
        hear(lua, shared, &heard, "on_aborted", Health::aborted)?;
        hear(lua, shared, &heard, "on_flushed", Health::flushed)?;
        hear(lua, shared, &heard, "on_loaded_text", Health::loaded_text)?;
        hear(lua, shared, &heard, "on_loaded_function", Health::loaded_function)?;
        hear(lua, shared, &heard, "on_forgotten", Health::forgotten)?;
        Ok(VmWatch { heard, shared: shared.clone(), published: None, generation })
    }

    /// The current state.
    pub(crate) fn health(&self) -> Health {
        self.heard.health.borrow().clone()
    }

    /// Number of events so far.
    pub(crate) fn events(&self) -> u64 {
        let health = self.heard.health.borrow();
        health.traces + health.flushes + health.aborts.values().sum::<u64>() + health.lost
    }

    /// Starts counting how often lines run. This is slow, and keeps functions in the interpreter.
    pub(crate) fn count_lines(&self) -> mlua::Result<()> {
        self.shared.get::<LuaFunction>("count_lines")?.call(())
    }

    /// Stops counting, and returns the counts by `NAME:LINE`, and for calls by `NAME:LINE:CALLED`.
    pub(crate) fn counted_lines(&self) -> mlua::Result<HashMap<String, u64>> {
        let counts: HashMap<String, u64> = self.shared.get::<LuaFunction>("counted_lines")?.call(())?;
        Ok(counts.into_iter().map(|(line, count)| (name(line), count)).collect())
    }

    /// Publishes changes.
    #[inline]
    pub(crate) fn publish(&mut self, memory_bytes: usize) {
        if self.heard.is_new.replace(false) {
            self.publish_now();
        }
        if let Some(published) = &self.published {
            published.memory_bytes.store(memory_bytes as u64, Ordering::Relaxed);
        }
    }

    #[cold]
    fn publish_now(&mut self) {
        let health = Arc::new(self.heard.health.borrow().clone());
        let is_compiling = AtomicBool::new(self.is_compiling().unwrap_or(false));
        match &self.published {
            Some(published) => {
                published.health.store(health);
                published.is_compiling.store(is_compiling.into_inner(), Ordering::Relaxed);
            }
            None => {
                let thread = thread::current().name().unwrap_or_default().to_owned();
                let (generation, health, memory_bytes) = (self.generation, ArcSwap::new(health), AtomicU64::new(0));
                let published = Arc::new(PublishedState { thread, generation, memory_bytes, is_compiling, health });
                let mut all = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|other| other.strong_count() > 0);
                all.push(Arc::downgrade(&published));
                self.published = Some(published);
            }
        }
    }

    fn is_compiling(&self) -> mlua::Result<bool> {
        // It also returns the names of all optimisations that are on.
        self.shared.get::<Table>("jit")?.get::<LuaFunction>("status")?.call::<bool>(())
    }
}

fn hear<A: FromLuaMulti + 'static>(
    lua: &Lua,
    shared: &Table,
    heard: &Rc<EventLog>,
    name: &str,
    take: fn(&mut Health, A),
) -> mlua::Result<()> {
    let heard = Rc::clone(heard);
    let function = lua.create_function(move |_, said: A| {
        take(&mut heard.health.borrow_mut(), said);
        heard.is_new.set(true);
        Ok(())
    })?;
    shared.set(name, function)
}

/// LuaJIT prefixes a character that gives the type of the name.
fn name(chunk: String) -> String {
    chunk.strip_prefix('=').map(str::to_owned).unwrap_or(chunk)
}

impl Health {
    fn compiled(&mut self, code_bytes: u64) {
        TRACES.fetch_add(1, Ordering::Relaxed);
        self.traces += 1;
        self.machine_code_bytes += code_bytes;
    }

    /// `called` is empty unless the line leaves compiled code for it.
    fn compiled_line(&mut self, (chunk, first, line, called): (String, u32, u32, String)) {
        let Some(line) = self.line(&chunk, first, line) else { return };
        if called.is_empty() {
            line.traces += 1;
        } else {
            *line.stitches.entry(called).or_default() += 1;
        }
    }

    fn aborted(&mut self, said: AbortArguments) {
        let (source, line, within, called, reason, detail, began_source, began_first, began_line, is_given_up) = said;
        let reason = AbortReason::of(reason);
        ABORTS[reason.number()].fetch_add(1, Ordering::Relaxed);
        if is_given_up && let Some(line) = self.line(&began_source, began_first, began_line) {
            line.is_given_up = true;
        }
        let is_called = !within.is_empty() || reason.is_of_calls();
        let abort = Abort {
            source: name(source),
            line,
            within: name(within),
            called: if is_called { called } else { String::new() },
            reason,
            instruction: reason.instruction(detail),
            began_source: name(began_source),
            began_line,
        };
        if self.aborts.len() >= ABORTS_MAX && !self.aborts.contains_key(&abort) {
            self.lost += 1;
            return;
        }
        *self.aborts.entry(abort).or_default() += 1;
    }

    fn flushed(&mut self, (): ()) {
        FLUSHES.fetch_add(1, Ordering::Relaxed);
        self.flushes += 1;
        self.machine_code_bytes = 0;
        for source in self.sources.values_mut() {
            // Lines that were given up stay given up.
            source.lines.retain(|_, line| line.is_given_up);
            source.lines.values_mut().for_each(|line| (line.traces, line.stitches) = Default::default());
        }
    }

    fn loaded_text(&mut self, (chunk, text): (String, String)) {
        let bytes: usize = self.sources.values().map(|source| source.text.len()).sum();
        let name = name(chunk);
        self.forget_aborts(&name);
        let source = self.sources.entry(name).or_default();
        source.count += 1;
        source.generation = LOADED.fetch_add(1, Ordering::Relaxed);
        source.functions.clear();
        source.lines.clear();
        source.text = if bytes + text.len() <= TEXT_BYTES_MAX { text.into() } else { "".into() };
    }

    fn forgotten(&mut self, chunk: String) {
        let name = name(chunk);
        let Some(source) = self.sources.get_mut(&name) else { return };
        source.count -= 1;
        if source.count == 0 {
            self.sources.remove(&name);
            self.forget_aborts(&name);
        }
    }

    /// Drops aborts whose lines are those of an earlier text.
    fn forget_aborts(&mut self, name: &str) {
        self.aborts.retain(|abort, _| abort.source != name && abort.began_source != name);
    }

    fn loaded_function(&mut self, (chunk, first_line, last_line, mut lines): (String, u32, u32, Vec<u32>)) {
        let functions: usize = self.sources.values().map(|source| source.functions.len()).sum();
        let Some(source) = chunk.strip_prefix('=').and_then(|name| self.sources.get_mut(name)) else { return };
        if functions == FUNCTIONS_MAX {
            self.lost += 1;
            return;
        }
        lines.sort_unstable();
        lines.dedup();
        source.functions.push(TextFunction { first_line, last_line, lines });
        source.functions.sort_by_key(|function| (function.first_line, Reverse(function.last_line)));
    }

    /// A line of a program's text; `None`: it belongs to no program, or there are too many.
    fn line(&mut self, chunk: &str, first: u32, line: u32) -> Option<&mut super::LineHealth> {
        let lines: usize = self.sources.values().map(|source| source.lines.len()).sum();
        let source = self.sources.get_mut(chunk.strip_prefix('=')?)?;
        if lines >= LINES_MAX && !source.lines.contains_key(&(first, line)) {
            self.lost += 1;
            return None;
        }
        Some(source.lines.entry((first, line)).or_default())
    }
}
