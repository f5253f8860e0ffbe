//! The metrics of the table of limits.

use super::process_metrics::LimitFacts;
use super::process_stats::now_unix_ms;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stillgate_limits::{Limits, TableEvents};

/// Counters that are scanned per second on average: a larger table is scanned less often.
const COUNTERS_PER_SECOND: usize = 1 << 19;

/// Reads the table now and then.
pub struct LimitsReader {
    table: Arc<OnceLock<Arc<Limits>>>,
    /// The totals of the previous process.
    before: Option<TableEvents>,
    counters: usize,
    /// When the counters are scanned next.
    due: Instant,
}

impl LimitsReader {
    /// Reads a table that an earlier process may have used.
    pub fn new(table: Arc<OnceLock<Arc<Limits>>>) -> LimitsReader {
        let before = table.get().map(|table| table.events());
        LimitsReader { table, before, counters: 0, due: Instant::now() }
    }

    /// Returns the current figures.
    pub fn read(&mut self) -> LimitFacts {
        let Some(table) = self.table.get() else { return LimitFacts::default() };
        let now = Instant::now();
        if now >= self.due {
            self.counters = table.counters(now_unix_ms());
            self.due = now + Duration::from_secs((table.counters_max() / COUNTERS_PER_SECOND) as u64);
        }
        let (happened, before) = (table.events(), self.before);
        let since = |of: fn(&TableEvents) -> u64| of(&happened).saturating_sub(before.as_ref().map_or(0, of));
        LimitFacts {
            counters: self.counters,
            evicted: since(|happened| happened.evicted),
            contended: since(|happened| happened.contended),
        }
    }
}
