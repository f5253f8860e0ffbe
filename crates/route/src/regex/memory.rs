//! State that one worker keeps between two searches of a group of regexes, and the results of the last one.

use regex_automata::hybrid::dfa::Cache;

/// Belongs to one worker and one place where a [`super::RegexGroup`] is searched; empty at first, filled by the first
/// search.
///
/// It may later be used with another group (of the next Plan); it then forgets everything of the first.
#[derive(Debug, Default)]
pub(crate) struct RegexMemory {
    /// The group that the rest belongs to; no group has the number 0.
    pub(super) group: u64,
    /// The cache of each automaton that is built while it is used.
    pub(super) caches: Vec<Option<Cache>>,
    /// The tally of each pattern. Zero except for those in `hits`.
    tallies: Vec<Tally>,
    hits: Vec<u32>,
    /// The number of values searched.
    values: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// The number of values that match.
    values: u32,
    /// The last value that matches, counted from 1.
    last: u32,
}

impl RegexMemory {
    /// Whether there are values, and all match the pattern.
    #[inline]
    pub(crate) fn all(&self, pattern: usize) -> bool {
        let matching = self.tallies[pattern].values;
        matching > 0 && matching == self.values
    }

    /// Whether a value matches the pattern.
    #[inline]
    pub(crate) fn any(&self, pattern: usize) -> bool {
        self.tallies[pattern].values > 0
    }

    /// The patterns that a value matches, in no order.
    #[inline]
    pub(crate) fn hits_any(&self) -> &[u32] {
        &self.hits
    }

    /// Heap memory, in bytes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let caches = self.caches.iter().flatten().map(Cache::memory_usage).sum::<usize>();
        caches + self.tallies.capacity() * size_of::<Tally>() + self.hits.capacity() * size_of::<u32>()
    }

    /// Prepares the memory for a group with this many patterns.
    pub(super) fn adopt(&mut self, group: u64, caches: Vec<Option<Cache>>, patterns: usize) {
        let (tallies, hits) = (vec![Tally::default(); patterns], Vec::with_capacity(patterns));
        *self = RegexMemory { group, caches, tallies, hits, values: 0 };
    }

    /// Forgets the results of the last search.
    pub(super) fn begin(&mut self) {
        for pattern in self.hits.drain(..) {
            self.tallies[pattern as usize] = Tally::default();
        }
        self.values = 0;
    }

    /// Goes on to the next value.
    pub(super) fn next_value(&mut self) {
        self.values += 1;
    }

    /// Records that the current value matches the pattern; `false` if that was known.
    #[inline]
    pub(super) fn hit(&mut self, pattern: u32) -> bool {
        let tally = &mut self.tallies[pattern as usize];
        if tally.last == self.values {
            return false;
        }
        if tally.values == 0 {
            self.hits.push(pattern);
        }
        tally.values += 1;
        tally.last = self.values;
        true
    }
}
