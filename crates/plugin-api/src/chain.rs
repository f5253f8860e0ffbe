//! The plugins of a request, in the order in which they run.

use crate::flow::Flow;
use crate::meta::Filter;
use crate::phase::{Phase, Phases};
use crate::plugin::ChainEntry;
use crate::request::Request;
use std::fmt;
use std::sync::Arc;
use stillgate_route::Variable;

/// Most plugins of one chain: the skipped ones are a bit set in one integer.
pub const CHAIN_ENTRIES_MAX: usize = 64;

impl ChainEntry {
    /// What to wait for before its filter is evaluated; `None`: nothing.
    #[inline]
    pub fn before_filter(&self, request: &mut Request<'_>) -> Option<Flow> {
        request.await_arguments(self.awaited.by_filter.as_ref()?)
    }

    /// What to wait for before its plugin is called; `None`: nothing.
    #[inline]
    pub fn before_call(&self, request: &mut Request<'_>) -> Option<Flow> {
        request.await_arguments(self.awaited.by_plugin.as_ref()?)
    }
}

/// Plugins in the order in which they run in each phase.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Chain {
    entries: Box<[Arc<ChainEntry>]>,
    /// Disabled entries, for `explain`; requests never see them.
    left_out: Box<[Arc<ChainEntry>]>,
    phases: Phases,
    /// Indices of the entries that are called in each phase, as bits.
    of_phase: [u64; Phase::ALL.len()],
    /// Whether an entry has [`crate::Plugin::codes_content`].
    codes_content: bool,
    /// Indices of the entries with [`crate::Plugin::filters_responses`].
    filtering: u64,
    /// The entries whose `_meta.filter` may depend on values that are known only with the response.
    filtered_late: u64,
}

impl Chain {
    /// Merges lists of which later ones override earlier ones, plugin by plugin: those of service, plugin_config and
    /// route, or of a route's chain and a consumer. Entries with `_meta.disable` override others and are left out.
    ///
    /// # Errors
    ///
    /// If there are more than [`CHAIN_ENTRIES_MAX`] entries.
    pub fn merge<'a>(lists: impl IntoIterator<Item = &'a [Arc<ChainEntry>]>) -> Result<Chain, TooLong> {
        let mut entries: Vec<Arc<ChainEntry>> = Vec::new();
        for entry in lists.into_iter().flatten() {
            match entries.iter_mut().find(|earlier| earlier.name == entry.name) {
                Some(earlier) => *earlier = entry.clone(),
                None => entries.push(entry.clone()),
            }
        }
        Chain::of_all(entries)
    }

    /// All of these entries, even if several are of one plugin.
    ///
    /// # Errors
    ///
    /// As for [`Chain::merge`].
    pub fn of_all(mut entries: Vec<Arc<ChainEntry>>) -> Result<Chain, TooLong> {
        let mut left_out: Vec<Arc<ChainEntry>> = entries.extract_if(.., |entry| entry.meta.disable).collect();
        left_out.sort_by_key(|entry| entry.name);
        if entries.len() > CHAIN_ENTRIES_MAX {
            return Err(TooLong(entries.len()));
        }
        // Equal priorities are ordered by name, so that the order never depends on how a map was written.
        entries.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.name.cmp(b.name)));
        let phases = entries.iter().fold(Phases::NONE, |phases, entry| phases.or(entry.phases));
        let mut of_phase = [0; Phase::ALL.len()];
        for (at, entry) in entries.iter().enumerate() {
            entry.phases.iter().for_each(|phase| of_phase[phase as usize] |= 1 << at);
        }
        let codes_content = entries.iter().any(|entry| entry.plugin.codes_content());
        let places = |is_one: fn(&ChainEntry) -> bool| {
            entries.iter().enumerate().fold(0, |places, (at, entry)| places | u64::from(is_one(entry)) << at)
        };
        let filtering = places(|entry| entry.plugin.filters_responses());
        let filtered_late = places(|entry| entry.meta.filter.as_ref().is_some_and(is_late));
        let (entries, left_out) = (entries.into(), left_out.into());
        Ok(Chain { entries, left_out, phases, of_phase, codes_content, filtering, filtered_late })
    }

    /// Whether the chain is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether some plugin is called in a phase.
    #[inline]
    pub fn has(&self, phase: Phase) -> bool {
        self.phases.contains(phase)
    }

    /// The phases in which some plugin is called.
    #[inline]
    pub fn phases(&self) -> Phases {
        self.phases
    }

    /// Whether some plugin codes content for the client.
    #[inline]
    pub fn codes_content(&self) -> bool {
        self.codes_content
    }

    /// Whether some plugin may read or change the body of a node's response. `holds` says whether a plugin's
    /// `_meta.filter` does, if that is known before the request is forwarded.
    #[inline]
    pub fn filters_responses(&self, holds: impl FnMut(&ChainEntry) -> bool) -> bool {
        self.filtering != 0 && self.may_filter(holds)
    }

    #[cold]
    fn may_filter(&self, mut holds: impl FnMut(&ChainEntry) -> bool) -> bool {
        let mut filtering = self.entries.iter().enumerate().filter(|(at, _)| self.filtering >> at & 1 == 1);
        filtering.any(|(at, entry)| self.filtered_late >> at & 1 == 1 || holds(entry))
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[Arc<ChainEntry>] {
        &self.entries
    }

    /// [`crate::Plugin::wants_documents`] of any entry.
    pub fn wants_documents(&self) -> bool {
        self.entries.iter().any(|entry| entry.plugin.wants_documents())
    }

    /// [`crate::Plugin::prefers_names`] of any entry.
    pub fn prefers_names(&self) -> bool {
        self.entries.iter().any(|entry| entry.plugin.prefers_names())
    }

    /// Entries disabled by `_meta.disable`.
    pub fn left_out(&self) -> &[Arc<ChainEntry>] {
        &self.left_out
    }

    /// The entries of a phase, each with its index in the chain.
    #[inline]
    pub fn of(&self, phase: Phase) -> impl Iterator<Item = (usize, &ChainEntry)> {
        self.entries_from(phase, 0)
    }

    /// The entries of a phase from an index on.
    #[inline]
    pub fn entries_from(&self, phase: Phase, place: usize) -> impl Iterator<Item = (usize, &ChainEntry)> {
        // A chain may have as many entries as there are bits: the last of them has none behind it.
        let mut left = self.of_phase[phase as usize] & u64::MAX.checked_shl(place as u32).unwrap_or(0);
        std::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            self.entries.get(at).map(|entry| (at, &**entry))
        })
    }
}

/// Whether a filter uses a variable that may not be known before the request is forwarded.
fn is_late(filter: &Filter) -> bool {
    let mut is_late = false;
    filter.each_variable(&mut |variable| is_late |= Variable::parse(&variable.to_string()).as_ref() != Ok(variable));
    is_late
}

/// A chain has too many entries: this many, more than [`CHAIN_ENTRIES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} plugins would run here; the limit is {CHAIN_ENTRIES_MAX}", self.0)
    }
}
