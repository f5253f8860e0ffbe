//! The plugins of a request, in the order they run.

use crate::Plugin;
use crate::arguments::Arguments;
use crate::definition::Identity;
use crate::filter::Filter;
use crate::flow::Flow;
use crate::meta::Meta;
use crate::phase::{Phase, Phases};
use crate::request::Request;
use std::fmt;
use std::sync::Arc;
use stillgate_route::Variable;
use stillgate_schema::Position;

/// Most plugins of one chain, since the set of those that are skipped is a number of as many bits.
pub const CHAIN_ENTRIES_MAX: usize = 64;

/// Where a plugin's configuration is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// What kind of resource it belongs to.
    pub level: Level,
    /// The resource's id.
    pub id: Box<str>,
}

/// The kinds of resources that have plugins. The later takes the place of the earlier, plugin by plugin; global rules stand
/// apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// `global_rules`
    GlobalRule,
    /// `services`
    Service,
    /// `plugin_configs`
    PluginConfig,
    /// `routes`
    Route,
    /// `consumer_groups`
    ConsumerGroup,
    /// `consumers`
    Consumer,
    /// `plugin_metadata`
    Metadata,
}

impl Level {
    /// As it is called in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Level::GlobalRule => "global rule",
            Level::Service => "service",
            Level::PluginConfig => "plugin config",
            Level::Route => "route",
            Level::ConsumerGroup => "consumer group",
            Level::Consumer => "consumer",
            Level::Metadata => "plugin metadata",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.level.name(), self.id)
    }
}

/// One plugin with one configuration, compiled where it is defined and shared by every chain it is in.
pub struct Entry {
    /// The plugin's name.
    pub name: &'static str,
    /// `_meta.priority`, or the plugin's own.
    pub priority: i32,
    /// The phases that are called.
    pub phases: Phases,
    /// Whether it finds out who asks.
    pub authenticates: bool,
    /// What holds for every plugin.
    pub meta: Meta,
    /// What is waited for before it is called.
    pub awaited: Awaited,
    /// The resource that it is written in.
    pub origin: Origin,
    /// Where in the file.
    pub at: Position,
    /// Of all that is configured, `_meta` and what secrets stand for included.
    pub identity: Identity,
    /// The plugin.
    pub plugin: Box<dyn Plugin>,
}

/// Arguments of the body that somebody asks for.
#[derive(Debug, Default)]
pub struct Awaited {
    /// The filter.
    pub by_filter: Option<Arguments>,
    /// The plugin.
    pub by_plugin: Option<Arguments>,
}

impl Entry {
    /// What is to be waited for before its filter is asked; `None`: nothing.
    #[inline]
    pub fn before_filter(&self, request: &mut Request<'_>) -> Option<Flow> {
        request.await_arguments(self.awaited.by_filter.as_ref()?)
    }

    /// The same before its plugin is called.
    #[inline]
    pub fn before_call(&self, request: &mut Request<'_>) -> Option<Flow> {
        request.await_arguments(self.awaited.by_plugin.as_ref()?)
    }
}

/// Without the configuration, which may hold secrets.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.origin)
    }
}

/// The same configuration in the same resource, compiled once or twice.
impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.identity == other.identity
    }
}

/// Plugins in the order they run in each phase.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Chain {
    entries: Box<[Arc<Entry>]>,
    /// For whoever explains; no request comes across them.
    left_out: Box<[Arc<Entry>]>,
    phases: Phases,
    /// The places of those that are called in each phase, as bits.
    of_phase: [u64; Phase::ALL.len()],
    /// Whether one has [`crate::Plugin::codes_content`].
    codes_content: bool,
    /// The places of those with [`crate::Plugin::filters_responses`].
    filtering: u64,
    /// Of these, those whose `_meta.filter` may depend on what is known with the response only.
    filtered_late: u64,
}

impl Chain {
    /// Of lists of which the later take the place of the earlier, plugin by plugin: those of service, plugin_config and route, or of
    /// a route's chain and a consumer. Entries with `_meta.disable` take the place of others and are left out.
    ///
    /// # Errors
    ///
    /// With more than [`CHAIN_ENTRIES_MAX`] entries.
    pub fn merge<'a>(lists: impl IntoIterator<Item = &'a [Arc<Entry>]>) -> Result<Chain, TooLong> {
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        for entry in lists.into_iter().flatten() {
            match entries.iter_mut().find(|earlier| earlier.name == entry.name) {
                Some(earlier) => *earlier = entry.clone(),
                None => entries.push(entry.clone()),
            }
        }
        let mut left_out: Vec<Arc<Entry>> = entries.extract_if(.., |entry| entry.meta.disable).collect();
        left_out.sort_by_key(|entry| entry.name);
        if entries.len() > CHAIN_ENTRIES_MAX {
            return Err(TooLong(entries.len()));
        }
        // By name where priorities are the same, so that the order never depends on how a map was written.
        entries.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.name.cmp(b.name)));
        let phases = entries.iter().fold(Phases::NONE, |phases, entry| phases.or(entry.phases));
        let mut of_phase = [0; Phase::ALL.len()];
        for (at, entry) in entries.iter().enumerate() {
            entry.phases.iter().for_each(|phase| of_phase[phase as usize] |= 1 << at);
        }
        let codes_content = entries.iter().any(|entry| entry.plugin.codes_content());
        let places = |is_one: fn(&Entry) -> bool| {
            entries.iter().enumerate().fold(0, |places, (at, entry)| places | u64::from(is_one(entry)) << at)
        };
        let filtering = places(|entry| entry.plugin.filters_responses());
        let filtered_late = places(|entry| entry.meta.filter.as_ref().is_some_and(is_late));
        let (entries, left_out) = (entries.into(), left_out.into());
        Ok(Chain { entries, left_out, phases, of_phase, codes_content, filtering, filtered_late })
    }

    /// Whether there is no plugin.
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

    /// Whether some plugin may read or change the body of a node's response. `holds` says whether a plugin's `_meta.filter` does,
    /// where that is known before the node is asked.
    #[inline]
    pub fn filters_responses(&self, holds: impl FnMut(&Entry) -> bool) -> bool {
        self.filtering != 0 && self.may_filter(holds)
    }

    #[cold]
    fn may_filter(&self, mut holds: impl FnMut(&Entry) -> bool) -> bool {
        let mut filtering = self.entries.iter().enumerate().filter(|(at, _)| self.filtering >> at & 1 == 1);
        filtering.any(|(at, entry)| self.filtered_late >> at & 1 == 1 || holds(entry))
    }

    /// All of them, in order.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// [`crate::Plugin::wants_documents`] of one of them.
    pub fn wants_documents(&self) -> bool {
        self.entries.iter().any(|entry| entry.plugin.wants_documents())
    }

    /// [`crate::Plugin::prefers_names`] of one of them.
    pub fn prefers_names(&self) -> bool {
        self.entries.iter().any(|entry| entry.plugin.prefers_names())
    }

    /// Those that `_meta.disable` leaves out.
    pub fn left_out(&self) -> &[Arc<Entry>] {
        &self.left_out
    }

    /// Those of a phase, each with its place in the chain.
    #[inline]
    pub fn of(&self, phase: Phase) -> impl Iterator<Item = (usize, &Entry)> {
        self.of_from(phase, 0)
    }

    /// The same from a place on.
    #[inline]
    pub fn of_from(&self, phase: Phase, place: usize) -> impl Iterator<Item = (usize, &Entry)> {
        // A chain may have as many places as there are bits: the last of them has none behind it.
        let mut left = self.of_phase[phase as usize] & u64::MAX.checked_shl(place as u32).unwrap_or(0);
        std::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            self.entries.get(at).map(|entry| (at, &**entry))
        })
    }
}

/// Whether a filter asks for a variable that may not be known before the node is asked.
fn is_late(filter: &Filter) -> bool {
    let mut is_late = false;
    filter.each_variable(&mut |variable| is_late |= Variable::parse(&variable.to_string()).as_ref() != Ok(variable));
    is_late
}

/// A chain has more than [`CHAIN_ENTRIES_MAX`] entries: this many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} plugins come together here; at most {CHAIN_ENTRIES_MAX} can", self.0)
    }
}
