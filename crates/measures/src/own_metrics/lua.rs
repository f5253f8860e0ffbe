//! The metrics of LuaJIT's compiler on the workers.

use super::{OwnMetrics, now_unix_ms};
use stillgate_config::Measure;
use stillgate_lua::health::{self, AbortReason, CompileState, Totals};

/// The recorded totals.
#[derive(Debug, Default)]
pub(super) struct RecordedLua(Option<Totals>);

impl OwnMetrics {
    /// Records them if a worker has run functions.
    pub fn report_lua(&mut self) {
        let workers = health::of_all_threads();
        if workers.is_empty() && self.counted.lua.0.is_none() {
            return;
        }
        let now = health::totals();
        let before = self.counted.lua.0.replace(now.clone());
        let of = |measure| self.declared(measure).cloned();
        let (traces, aborts, flushes) = (of(Measure::LuaTraces), of(Measure::LuaAborts), of(Measure::LuaFlushes));
        let (code, functions) = (of(Measure::LuaMachineCode), of(Measure::LuaFunctions));
        let since_ms = self.since_ms();
        let writer = &mut self.writer;
        writer.tick(now_unix_ms());
        let since = |of: fn(&Totals) -> u64| of(&now) - before.as_ref().map_or(0, of);
        // Fails only if there was no memory for the series, which the writer has counted; likewise below.
        for (family, amount) in [(&traces, since(|all| all.traces)), (&flushes, since(|all| all.flushes))] {
            if let Some(family) = family {
                let handle = writer.series_since(family, &[], since_ms);
                let _ = writer.add(handle, amount);
            }
        }
        if let Some(family) = &aborts {
            // Reasons that have never occurred have no series: there are three dozen.
            for reason in AbortReason::all().filter(|reason| now.aborts[reason.number()] > 0) {
                let at = reason.number();
                let handle = writer.series_since(family, &[reason.name().as_bytes()], since_ms);
                let _ = writer.add(handle, now.aborts[at] - before.as_ref().map_or(0, |before| before.aborts[at]));
            }
        }
        if let Some(family) = &code {
            let handle = writer.series(family, &[]);
            let bytes: u64 = workers.iter().map(|worker| worker.health.machine_code_bytes).sum();
            let _ = writer.set(handle, bytes as f64);
        }
        if let Some(family) = &functions {
            for state in CompileState::ALL {
                let count: usize = workers.iter().map(|worker| worker.health.functions_in(state)).sum();
                let handle = writer.series(family, &[state.name().as_bytes()]);
                let _ = writer.set(handle, count as f64);
            }
        }
        writer.tick(now_unix_ms());
    }
}
