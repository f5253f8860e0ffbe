//! Merging of several configurations of one plugin, and the order of plugins: compares [`Chain::merge`] with a plain
//! model of APISIX's rules.
//!
//! The model consists of names and numbers. For each name the configuration of the strongest resource applies as a
//! whole; one with `_meta.disable` overrides weaker ones, and does not run. Higher priorities run first.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stillgate_plugin_api::{
    BodyArguments, CHAIN_ENTRIES_MAX, Chain, ChainEntry, Identity, Meta, Phase, Phases, Plugin, PluginLevel,
    PluginOrigin,
};
use stillgate_schema::Position;

/// From the weakest to the strongest.
const LEVELS: [PluginLevel; 5] = [
    PluginLevel::Service,
    PluginLevel::PluginConfig,
    PluginLevel::Route,
    PluginLevel::ConsumerGroup,
    PluginLevel::Consumer,
];

/// Names, each with its own priority and phase; two have the same priority.
const NAMES: [(&str, i32, Phase); 6] = [
    ("cors", 4000, Phase::HeaderFilter),
    ("key-auth", 2500, Phase::Rewrite),
    ("limit-count", 1002, Phase::Access),
    ("proxy-rewrite", 1008, Phase::Rewrite),
    ("twin", 1008, Phase::BeforeProxy),
    ("last", -3000, Phase::Log),
];

/// One configuration of a plugin.
#[derive(Debug, Clone)]
struct PluginUse {
    name: usize,
    disable: bool,
    priority: Option<i32>,
}

struct IdlePlugin;

impl Plugin for IdlePlugin {}

fn entry(level: PluginLevel, of: &PluginUse) -> Arc<ChainEntry> {
    let (name, priority, phase) = NAMES[of.name];
    let text = format!("{name} {level:?} {of:?}");
    Arc::new(ChainEntry {
        name,
        priority: of.priority.unwrap_or(priority),
        phases: Phases::of(&[phase]),
        authenticates: name == "key-auth",
        meta: Meta { disable: of.disable, priority: of.priority, ..Meta::default() },
        awaited: BodyArguments::default(),
        origin: PluginOrigin { level, id: "1".into() },
        at: Position { line: 1, column: 1 },
        identity: Identity::of(&[text.as_bytes()]),
        plugin: Box::new(IdlePlugin),
    })
}

/// The plugins of one resource: no name twice, in any order.
fn resource() -> impl Strategy<Value = Vec<PluginUse>> {
    let one = (
        0..NAMES.len(),
        any::<bool>(),
        prop_oneof![Just(None), (-2i32..5000).prop_map(Some), any::<i32>().prop_map(Some)],
    );
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let mut seen = BTreeSet::new();
        let configured = all.into_iter().map(|(name, disable, priority)| PluginUse { name, disable, priority });
        configured.filter(|of| seen.insert(of.name)).collect()
    })
}

/// Level and effective priority of the running plugins, by name.
fn model(resources: &[Vec<PluginUse>]) -> BTreeMap<&'static str, (PluginLevel, i32)> {
    let mut holds = BTreeMap::new();
    for (name, (text, own, _)) in NAMES.iter().enumerate() {
        let strongest = LEVELS
            .iter()
            .zip(resources)
            .rev()
            .find_map(|(level, all)| all.iter().find(|of| of.name == name).map(|of| (*level, of)));
        if let Some((level, of)) = strongest
            && !of.disable
        {
            holds.insert(*text, (level, of.priority.unwrap_or(*own)));
        }
    }
    holds
}

fn merged(resources: &[Vec<PluginUse>]) -> Chain {
    let lists = lists(resources);
    Chain::merge(lists.iter().map(|list| &list[..])).unwrap()
}

fn lists(resources: &[Vec<PluginUse>]) -> Vec<Vec<Arc<ChainEntry>>> {
    let of_level = |(level, all): (&PluginLevel, &Vec<PluginUse>)| all.iter().map(|of| entry(*level, of)).collect();
    LEVELS.iter().zip(resources).map(of_level).collect()
}

proptest! {
    #[test]
    fn the_strongest_resource_holds(resources in prop::collection::vec(resource(), 5)) {
        let chain = merged(&resources);
        let got: BTreeMap<_, _> =
            chain.entries().iter().map(|entry| (entry.name, (entry.origin.level, entry.priority))).collect();
        prop_assert_eq!(got.len(), chain.entries().len(), "a name is there twice");
        prop_assert_eq!(got, model(&resources));
    }

    #[test]
    fn higher_priorities_run_first_in_every_phase(resources in prop::collection::vec(resource(), 5)) {
        let chain = merged(&resources);
        // Equal priorities are ordered by name.
        let sorted = |list: &[&ChainEntry]| {
            let place = |entry: &ChainEntry| (Reverse(entry.priority), entry.name);
            list.windows(2).all(|pair| place(pair[0]) < place(pair[1]))
        };
        prop_assert!(sorted(&chain.entries().iter().map(|entry| &**entry).collect::<Vec<_>>()));
        for phase in Phase::ALL {
            let of_phase: Vec<_> = chain.of(phase).collect();
            prop_assert_eq!(chain.has(phase), !of_phase.is_empty());
            prop_assert!(sorted(&of_phase.iter().map(|(_, entry)| *entry).collect::<Vec<_>>()));
            for (at, entry) in &of_phase {
                prop_assert!(std::ptr::eq(&*chain.entries()[*at], *entry), "an index that points at another entry");
                prop_assert!(entry.phases.contains(phase));
            }
        }
        let all: usize = Phase::ALL.iter().map(|phase| chain.of(*phase).count()).sum();
        prop_assert_eq!(all, chain.entries().len(), "each has one phase here");
    }

    /// Maps have no order: however a resource is written, the same plugins run in the same order.
    #[test]
    fn the_order_of_writing_means_nothing(
        (resources, shuffled) in prop::collection::vec(resource(), 5).prop_flat_map(|resources| {
            let shuffled: Vec<_> = resources.iter().map(|all| Just(all.clone()).prop_shuffle()).collect();
            (Just(resources), shuffled)
        })
    ) {
        let (one, other) = (merged(&resources), merged(&shuffled));
        prop_assert_eq!(one.entries(), other.entries());
    }

    /// A consumer joins a merged chain: the result equals merging all five at once.
    #[test]
    fn a_consumer_joins_later(resources in prop::collection::vec(resource(), 5)) {
        let lists = lists(&resources);
        let of_route = Chain::merge(lists[..3].iter().map(|list| &list[..])).unwrap();
        let of_consumer = Chain::merge(lists[3..].iter().map(|list| &list[..])).unwrap();
        let joined = Chain::merge([of_route.entries(), &lists[3], &lists[4]]).unwrap();
        let all = merged(&resources);
        prop_assert_eq!(joined.entries(), all.entries());
        // If the consumer disables nothing, its two lists may be merged first.
        if resources[3..].iter().flatten().all(|of| !of.disable) {
            let at_once = Chain::merge([of_route.entries(), of_consumer.entries()]).unwrap();
            prop_assert_eq!(at_once.entries(), joined.entries());
        }
    }

    #[test]
    fn a_merged_chain_stays_as_it_is(resources in prop::collection::vec(resource(), 5)) {
        let chain = merged(&resources);
        let again = Chain::merge([chain.entries()]).unwrap();
        prop_assert_eq!(again.entries(), chain.entries());
    }
}

/// The limit counts running plugins: neither overridden nor disabled ones.
#[test]
fn a_chain_is_bounded() {
    let names: Vec<&'static str> = (0..=CHAIN_ENTRIES_MAX).map(|at| &*format!("plugin-{at}").leak()).collect();
    let list = |disabled: usize| -> Vec<Arc<ChainEntry>> {
        let entries = names.iter().enumerate().map(|(at, name)| {
            let of = PluginUse { name: 0, disable: at < disabled, priority: None };
            Arc::new(ChainEntry { name, ..Arc::into_inner(entry(PluginLevel::Route, &of)).unwrap() })
        });
        entries.collect()
    };
    assert_eq!(Chain::merge([&list(0)[..]]).unwrap_err().0, CHAIN_ENTRIES_MAX + 1);
    assert_eq!(Chain::merge([&list(1)[..]]).unwrap().entries().len(), CHAIN_ENTRIES_MAX);
    assert_eq!(Chain::merge([&list(1)[..], &list(1)]).unwrap().entries().len(), CHAIN_ENTRIES_MAX);
}
