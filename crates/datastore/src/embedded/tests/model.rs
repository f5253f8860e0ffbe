//! Random use of a store against a model that keeps every state in memory.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A document with the second at which it expires.
type Living = (Document, Option<u64>);

/// The bound of the store's history.
const HISTORY_CHANGES_MAX: u64 = 12;

/// The number of a key, and its new value with a time to live in seconds; `None` to delete it.
type NumberedWrite = (u8, Option<(u8, Option<u64>)>);

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<(u8, Condition)>, Vec<NumberedWrite>),
    Pass(u64),
    Back(u64),
    LastGood(u8, Option<u8>),
    Reopen,
    Restore,
}

#[derive(Default)]
struct Model {
    /// States by revision; the last one is the present.
    states: Vec<BTreeMap<Key, Living>>,
    last_good: BTreeMap<Key, String>,
}

impl Model {
    fn now(&self) -> &BTreeMap<Key, Living> {
        &self.states[self.states.len() - 1]
    }

    fn revision(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    /// The batch of a change to this state; the state is kept if it changed anything.
    fn change(&mut self, state: BTreeMap<Key, Living>, writes: &[Key]) -> Batch {
        let is_written = |key: &&Key| self.now().contains_key(*key) || state.contains_key(*key);
        let event = |key: &Key| Event { key: key.clone(), document: state.get(key).map(|living| living.0.clone()) };
        let events: Vec<Event> = writes.iter().filter(is_written).map(event).collect();
        if !events.is_empty() {
            let is_gone = |key: &Key| self.now().contains_key(key) && !state.contains_key(key);
            let gone: Vec<&Key> = writes.iter().filter(|key| is_gone(key)).collect();
            gone.into_iter().for_each(|key| drop(self.last_good.remove(key)));
            self.states.push(state);
        }
        Batch { revision: self.revision(), events }
    }

    fn commit(&mut self, step: &[(u8, Condition)], writes: &[Write], second: u64) -> Result<Batch, CommitError> {
        for (id, condition) in step {
            let modified = self.now().get(&numbered(*id)).map(|living| living.0.modified);
            let holds = match condition {
                Condition::Absent => modified.is_none(),
                Condition::Present => modified.is_some(),
                Condition::Modified(revision) => modified == Some(*revision),
            };
            if !holds {
                return Err(CommitError::Conflict { key: numbered(*id), modified });
            }
        }
        let (mut state, revision) = (self.now().clone(), self.revision() + 1);
        for write in writes {
            match write {
                Write::Delete { key } => drop(state.remove(key)),
                Write::Put { key, value, ttl_seconds } => {
                    let created = state.get(key).map_or(revision, |living| living.0.created);
                    let living = (document(value, created, revision), ttl_seconds.map(|ttl| second + ttl));
                    state.insert(key.clone(), living);
                }
            }
        }
        let keys: Vec<Key> = writes.iter().map(|write| write.key().clone()).collect();
        Ok(self.change(state, &keys))
    }

    fn expire(&mut self, second: u64) -> Option<Batch> {
        let mut state = self.now().clone();
        let mut due: Vec<(u64, Key)> = Vec::new();
        due.extend(state.iter().filter_map(|(key, living)| living.1.map(|expiry| (expiry, key.clone()))));
        due.retain(|(expiry, _)| *expiry <= second);
        due.sort();
        due.iter().for_each(|(_, key)| drop(state.remove(key)));
        let keys: Vec<Key> = due.into_iter().map(|(_, key)| key).collect();
        (!keys.is_empty()).then(|| self.change(state, &keys))
    }

    fn roll_back(&mut self, to: u64, second: u64) -> Result<Batch, BackError> {
        let current = self.revision();
        if to > current {
            return Err(BackError::Future { current });
        }
        let oldest = current.saturating_sub(HISTORY_CHANGES_MAX);
        if to < oldest {
            return Err(BackError::Pruned { oldest });
        }
        let mut state = self.states[to as usize].clone();
        // Only keys that changed since can differ: an expired document that still exists stays until it is deleted.
        let touched = |key: &Key| self.states[to as usize..].iter().any(|state| state.get(key) != self.now().get(key));
        let all: std::collections::BTreeSet<Key> = self.now().keys().chain(state.keys()).cloned().collect();
        let mut keys = Vec::new();
        for key in all {
            let is_over = |living: &Living| living.1.is_some_and(|expiry| expiry <= second);
            if touched(&key) && state.get(&key).is_some_and(is_over) {
                state.remove(&key);
            }
            let parts = |living: &Living| (living.0.value.clone(), living.0.created, living.1);
            let present = self.now().get(&key);
            if state.get(&key).map(parts) == present.map(parts) {
                // Unchanged, with its revision.
                present.map(|living| state.insert(key.clone(), living.clone()));
            } else {
                state.entry(key.clone()).and_modify(|living| living.0.modified = current + 1);
                keys.push(key);
            }
        }
        Ok(self.change(state, &keys))
    }

    fn check(&self, store: &EmbeddedStore) {
        let documents = self.now().iter().map(|(key, living)| (key.clone(), living.0.clone())).collect();
        assert_eq!(store.snapshot().unwrap(), Snapshot { revision: self.revision(), documents });
        assert_eq!(store.revision(), self.revision());
        let expiries = self.now().values().filter_map(|living| living.1);
        assert_eq!(store.next_expiry(), expiries.min().map(at));
        let last_good: Vec<_> = self.last_good.clone().into_iter().collect();
        assert_eq!(store.last_good().unwrap(), last_good);
        let history = store.history(None, 100).unwrap();
        let kept = self.revision().min(HISTORY_CHANGES_MAX);
        let revisions = (self.revision() - kept + 1..=self.revision()).rev();
        assert!(history.iter().map(|change| change.revision).eq(revisions));
        for summary in history {
            let value =
                |revision: u64, key: &Key| self.states[revision as usize].get(key).map(|living| living.0.value.clone());
            for edit in store.change_at(summary.revision).unwrap().unwrap().edits {
                assert_eq!(edit.before, value(summary.revision - 1, &edit.key));
                assert_eq!(edit.after, value(summary.revision, &edit.key));
            }
        }
    }
}

fn numbered(id: u8) -> Key {
    key(&format!("routes/{id}"))
}

fn writes(step: &[NumberedWrite]) -> Vec<Write> {
    let unique: BTreeMap<u8, _> = step.iter().copied().collect();
    let write = |(id, put): NumberedWrite| match put {
        None => Write::Delete { key: numbered(id) },
        Some((value, ttl_seconds)) => Write::Put { key: numbered(id), value: value.to_string(), ttl_seconds },
    };
    unique.into_iter().map(write).collect()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0u8..8;
    let condition =
        prop_oneof![Just(Condition::Absent), Just(Condition::Present), (1u64..30).prop_map(Condition::Modified)];
    let put = (0u8..4, proptest::option::weighted(0.3, 0u64..40));
    let writes = proptest::collection::vec((id.clone(), proptest::option::weighted(0.7, put)), 1..5);
    let commit = (proptest::collection::vec((id.clone(), condition), 0..2), writes);
    let step = prop_oneof![
        8 => commit.prop_map(|(conditions, writes)| Step::Commit(conditions, writes)),
        3 => (0u64..30).prop_map(Step::Pass),
        2 => (0u64..20).prop_map(Step::Back),
        1 => (id, proptest::option::of(0u8..4)).prop_map(|(id, value)| Step::LastGood(id, value)),
        1 => Just(Step::Reopen),
        1 => Just(Step::Restore),
    ];
    proptest::collection::vec(step, 1..40)
}

fn check(steps: &[Step]) {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("config.redb"), folder.path().join("copy.redb"));
    let bounds =
        HistoryBounds { history_changes_max: HISTORY_CHANGES_MAX, history_age_max: Duration::from_secs(1 << 30) };
    let mut store = EmbeddedStore::open(&path, bounds).unwrap();
    let mut model = Model { states: vec![BTreeMap::new()], ..Model::default() };
    let mut second = NOW;
    for step in steps {
        match step {
            Step::Commit(conditions, step) => {
                let writes = writes(step);
                let expected = model.commit(conditions, &writes, second);
                let conditions = conditions.iter().map(|(id, condition)| (numbered(*id), *condition)).collect();
                let transaction = Transaction { conditions, ..transaction(writes) };
                assert_eq!(store.commit(&transaction, at(second)), expected);
            }
            Step::Pass(seconds) => {
                second += seconds;
                assert_eq!(store.expire(at(second)).unwrap(), model.expire(second));
            }
            Step::Back(revisions) => {
                // Sometimes a revision that does not exist yet.
                let to = (model.revision() + 1).saturating_sub(*revisions);
                let current = model.revision();
                let expected = model.roll_back(to, second);
                let writes = store.way_back_to(to, at(second)).map(|back| back.writes.len());
                assert_eq!(writes, expected.as_ref().map(|batch| batch.events.len()).map_err(Clone::clone));
                assert_eq!(store.roll_back(to, current, &author("ops"), at(second)), expected);
            }
            Step::LastGood(id, value) => {
                let value = value.map(|value| value.to_string());
                match value.clone() {
                    Some(value) => drop(model.last_good.insert(numbered(*id), value)),
                    None => drop(model.last_good.remove(&numbered(*id))),
                }
                store.set_last_good(&[(numbered(*id), value)]).unwrap();
            }
            Step::Reopen => {
                store.close().unwrap();
                store = EmbeddedStore::open(&path, bounds).unwrap();
            }
            Step::Restore => {
                store.backup(&copy).unwrap();
                store.close().unwrap();
                std::fs::rename(&copy, &path).unwrap();
                store = EmbeddedStore::open(&path, bounds).unwrap();
            }
        }
        model.check(&store);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_like_its_model(steps in steps()) {
        check(&steps);
    }
}
