//! `GET /v1/lua/jit`: how LuaJIT has compiled the functions in Lua, over all workers.

use super::lua_profile;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use stillgate_lua::MEMORY_BYTES_MAX;
use stillgate_lua::jit::{self, CompileState, LineJit, TextFunction, TraceAbort, VmJitReport};

/// The whole answer. `shows_texts`: with the texts of functions, which may contain secrets.
pub(super) fn jit(shows_texts: bool) -> Json {
    let mut workers = jit::of_all_threads();
    workers.sort_by(|one, other| one.thread.cmp(&other.thread));
    let names: BTreeSet<&String> = workers.iter().flat_map(|worker| worker.stats.sources.keys()).collect();
    let totals = jit::totals();
    json!({
        "workers": workers.iter().map(worker).collect::<Vec<_>>(),
        "traces_total": totals.traces,
        "aborts_total": totals.aborts.iter().sum::<u64>(),
        "flushes_total": totals.flushes,
        "sources": names.into_iter().map(|name| source(name, &workers, shows_texts)).collect::<Vec<_>>(),
        "aborts": aborts(&workers),
        "last_profile": lua_profile::last_shares(),
    })
}

fn worker(VmJitReport { thread, memory_bytes, generation, is_compiling, stats }: &VmJitReport) -> Json {
    json!({
        "worker": thread,
        "memory_bytes": memory_bytes,
        "memory_bytes_max": MEMORY_BYTES_MAX,
        "generation": generation,
        "is_compiling": is_compiling,
        "traces": stats.traces,
        "flushes": stats.flushes,
        "machine_code_bytes": stats.machine_code_bytes,
        "lost": stats.lost,
    })
}

/// A text with its functions and lines. Workers become warm one by one: what is furthest on one counts.
fn source(name: &str, workers: &[VmJitReport], shows_texts: bool) -> Json {
    let loaded: Vec<&jit::LoadedText> = workers.iter().filter_map(|worker| worker.stats.sources.get(name)).collect();
    // Workers that have loaded the newest text know most about it; during a reload others still run an older one.
    let newest = loaded.iter().max_by_key(|source| source.generation).expect("the name is one of the sources'");
    let same: Vec<_> = loaded.iter().filter(|source| source.text == newest.text).collect();
    let function = |function: &TextFunction| {
        let states = same.iter().map(|source| source.state(function));
        let mut by_state: BTreeMap<&str, usize> = BTreeMap::new();
        states.clone().for_each(|state| *by_state.entry(state.name()).or_default() += 1);
        json!({
            "first_line": function.first_line,
            "last_line": function.last_line,
            "state": worst(states).name(),
            "workers": by_state,
        })
    };
    let mut marks: BTreeMap<u32, Vec<(&LineJit, CompileState)>> = BTreeMap::new();
    for ((_, number), line) in same.iter().flat_map(|source| &source.lines) {
        marks.entry(*number).or_default().push((line, line.state()));
    }
    // Lines with code that have no mark run in the interpreter, or never.
    let code = newest.functions.iter().filter(|function| function.first_line > 0).flat_map(|function| &function.lines);
    for number in code {
        marks.entry(*number).or_default();
    }
    let line = |(number, marks): (u32, Vec<(&LineJit, CompileState)>)| {
        let calls: BTreeSet<&String> = marks.iter().flat_map(|(line, _)| line.stitches.keys()).collect();
        json!({
            "line": number,
            "state": worst(marks.iter().map(|(_, state)| *state)).name(),
            "traces": marks.iter().map(|(line, _)| line.traces).sum::<u32>(),
            "calls": calls,
        })
    };
    json!({
        "source": name,
        "text": if shows_texts { &*newest.text } else { "" },
        "functions": newest.functions.iter().map(function).collect::<Vec<_>>(),
        "lines": marks.into_iter().map(line).collect::<Vec<_>>(),
    })
}

/// The state that needs attention first.
fn worst(states: impl Iterator<Item = CompileState>) -> CompileState {
    const BY_RANK: [CompileState; 4] =
        [CompileState::Blacklisted, CompileState::Stitched, CompileState::Compiled, CompileState::Interpreted];
    let rank = |state: &CompileState| BY_RANK.iter().position(|of| of == state);
    states.min_by_key(rank).unwrap_or(CompileState::Interpreted)
}

/// Aborts, the most frequent first.
fn aborts(workers: &[VmJitReport]) -> Vec<Json> {
    let mut counts: BTreeMap<&TraceAbort, u64> = BTreeMap::new();
    for (abort, count) in workers.iter().flat_map(|worker| &worker.stats.aborts) {
        *counts.entry(abort).or_default() += count;
    }
    let mut counts: Vec<(&TraceAbort, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let abort = |(abort, count): (&TraceAbort, u64)| {
        json!({
            "source": abort.source,
            "line": abort.line,
            "reason": abort.reason.name(),
            "instruction": abort.instruction,
            "called": abort.called,
            "within": abort.within,
            "text": abort.to_string(),
            "began": format!("{}:{}", abort.began_source, abort.began_line),
            "is_usual": abort.reason.is_harmless(),
            "count": count,
        })
    };
    counts.into_iter().map(abort).collect()
}
