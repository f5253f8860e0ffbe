//! The families about functions in Lua, which both dialects have.

use super::FamilyKind::{Counter, Gauge};
use super::Label::{Reason, State};
use super::tables::of_process;
use super::{FamilySpec, Measure};
use stillgate_metrics::Merge::Sum;

/// The families about LuaJIT.
pub(super) const LUA: &[FamilySpec] = &[
    of_process(
        Measure::LuaTraces,
        "stillgate_lua_traces_total",
        "",
        Counter,
        &[],
        "Pieces of machine code that LuaJIT has made of functions in Lua.",
    ),
    of_process(
        Measure::LuaAborts,
        "stillgate_lua_aborts_total",
        "",
        Counter,
        &[Reason],
        "Times that LuaJIT began to compile and stopped, by the reason. Some are usual while functions become warm.",
    ),
    of_process(
        Measure::LuaFlushes,
        "stillgate_lua_flushes_total",
        "",
        Counter,
        &[],
        "Times that LuaJIT threw away all machine code of a worker.",
    ),
    of_process(
        Measure::LuaMachineCode,
        "stillgate_lua_machine_code_bytes",
        "bytes",
        Gauge(Sum),
        &[],
        "Machine code that LuaJIT has made, of all workers.",
    ),
    of_process(
        Measure::LuaFunctions,
        "stillgate_lua_functions",
        "",
        Gauge(Sum),
        &[State],
        "Functions in Lua by what has become of them, of all workers: `compiled`, `stitched`, `interpreted`, `blacklisted`.",
    ),
];
