//! The work that regexes may cause for one request.
//!
//! An automaton that is built while it is used takes a step a byte once it has the states that texts lead to. A text that was made
//! for it leads to a new state with every byte, and each costs as much as the regex is large. So building is counted, by the
//! memory of what was built; what is beyond the bound leaves the request undecided, and it is refused.

use regex_automata::hybrid::dfa::Cache;
use std::cell::Cell;

/// Most work for one request, in steps of about a nanosecond.
const STEPS_MAX: usize = 25_000_000;
/// Steps that one byte of new states takes: 165 MB of them were built in a second.
const STEPS_PER_BUILT_BYTE: usize = 6;
/// Steps for each byte of a text and each state of a regex, where no automaton is used.
const STEPS_PER_BYTE_AND_STATE: usize = 4;
/// States that are built for the first bytes of a text count as nothing: after a reload all of them are new, for every automaton of
/// a large configuration.
pub(super) const FREE_BYTES: usize = 256;

/// What is left of it.
#[derive(Debug)]
pub struct RegexWork {
    /// 0: more would have been needed.
    steps_left: Cell<usize>,
}

impl Default for RegexWork {
    fn default() -> RegexWork {
        RegexWork::of_steps(STEPS_MAX)
    }
}

/// The growth of a cache, from one time on.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheGrowth {
    bytes: usize,
    clears: usize,
}

impl RegexWork {
    /// So many steps of about a nanosecond.
    pub fn of_steps(steps: usize) -> RegexWork {
        RegexWork { steps_left: Cell::new(steps.saturating_add(1)) }
    }

    /// Steps that are left.
    pub fn steps_left(&self) -> usize {
        self.steps_left.get().saturating_sub(1)
    }

    /// Whether a search was given up: nothing that was found since the beginning counts.
    #[inline]
    pub(crate) fn is_exhausted(&self) -> bool {
        self.steps_left.get() == 0
    }

    /// Pays for a search without an automaton; `false`: it is too much.
    pub(super) fn pay_for_search(&self, text_bytes: usize, states: usize) -> bool {
        self.pay(text_bytes.saturating_mul(states).saturating_mul(STEPS_PER_BYTE_AND_STATE))
    }

    /// Pays for what was built in a cache, which is emptied at `capacity_bytes`; `false`: it is too much. Until a cache is full for the
    /// first time nothing is paid: after a reload ordinary texts have to build it.
    #[inline]
    pub(super) fn pay_for_growth(&self, cache: &Cache, capacity_bytes: usize, since: &mut CacheGrowth) -> bool {
        let now = CacheGrowth::of(cache);
        if now.clears == 0 {
            *since = now;
            return true;
        }
        let built = match now.clears - since.clears {
            0 => now.bytes - since.bytes.min(now.bytes),
            times => (capacity_bytes.saturating_sub(since.bytes)).saturating_add(now.bytes).saturating_mul(times),
        };
        *since = now;
        built == 0 || self.pay(built.saturating_mul(STEPS_PER_BUILT_BYTE))
    }

    /// Pays for anything; `false`: it is too much.
    pub(super) fn pay(&self, steps: usize) -> bool {
        let left = self.steps_left.get().saturating_sub(steps);
        self.steps_left.set(left);
        left > 0
    }
}

impl CacheGrowth {
    #[inline]
    pub(super) fn of(cache: &Cache) -> CacheGrowth {
        CacheGrowth { bytes: cache.memory_usage(), clears: cache.clear_count() }
    }
}
