//! Decides a follower's next step: list or watch, from which revision, which events to send, how long to wait. Without
//! IO.
//!
//! ```text
//!  Nothing ─ listed ─▶ At(revision) ─ batch, progress ─▶ At(later)
//!     ▲                   │
//!     └─── needs a list ──┘   any other failure: watch again from At
//! ```
//!
//! After a failure, the documents at the last position show whether etcd still has the history that was followed: a cluster
//! that is made again with the same members, from nothing or from a backup, has the same identity, and may be at a later
//! revision.
//!
//! A watch begins at the revision that is known already and not at the next one, so this revision comes again, and is
//! dropped here. See [`super::Etcd::watch`] for the reason.

use super::digest::DocumentsDigest;
use super::error::EtcdError;
use super::watch::WatchStart;
use crate::document::{Batch, Snapshot};
use std::time::Duration;

/// The first pause after a failure; it doubles until [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Events of a follower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerEvent {
    /// Everything, replacing all earlier events.
    Snapshot(Snapshot),
    /// Changes since the previous event.
    Batch(Batch),
    /// etcd cannot be followed, or takes no writes. Sent again when the reason changes.
    Lost {
        /// The reason on one line.
        reason: String,
    },
    /// etcd is followed again, and nothing was missed.
    Back,
    /// Nothing has changed, and etcd is at this revision.
    Heard {
        /// The revision of all of etcd, which other prefixes also increase.
        revision: u64,
    },
}

/// The state of a follower.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// The revision up to which all events were sent, and its cluster. `None` if a list is needed.
    at: Option<(u64, u64)>,
    /// The documents at that revision.
    documents: DocumentsDigest,
    /// Failures since the last good connection.
    failures: u32,
    /// The last reason sent.
    lost: Option<String>,
}

impl Follower {
    /// Where to go on after a failure. `None` to list.
    pub(crate) fn position(&self) -> Option<(WatchStart, &DocumentsDigest)> {
        let (after, cluster) = self.at?;
        Some((WatchStart { after, cluster, keys: None }, &self.documents))
    }

    /// Handles a complete list.
    pub(crate) fn listed(&mut self, snapshot: Snapshot, cluster: u64) -> FollowerEvent {
        self.at = Some((snapshot.revision, cluster));
        self.documents = self.documents.empty();
        snapshot.documents.iter().for_each(|(key, document)| self.documents.put(key, document));
        FollowerEvent::Snapshot(snapshot)
    }

    /// Handles that a watch has begun.
    pub(crate) fn on_watch_begun(&mut self) -> Option<FollowerEvent> {
        self.failures = 0;
        self.lost.take().map(|_| FollowerEvent::Back)
    }

    /// Handles that etcd takes no writes.
    pub(crate) fn on_writes_refused(&mut self, reason: String) -> Option<FollowerEvent> {
        self.lost = Some(reason.clone());
        Some(FollowerEvent::Lost { reason })
    }

    /// Handles a batch of a watch; `None` if it is known.
    pub(crate) fn batch(&mut self, batch: Batch) -> Option<FollowerEvent> {
        if !self.advance(batch.revision) {
            return None;
        }
        self.documents.apply(&batch);
        Some(FollowerEvent::Batch(batch))
    }

    /// Handles that a watch has delivered everything up to this revision.
    pub(crate) fn progress(&mut self, revision: u64) {
        self.advance(revision);
    }

    /// Handles a failure. `random` is from 0 to 1, so that gateways do not all come back at once.
    pub(crate) fn on_failure(&mut self, error: &EtcdError, random: f64) -> (Option<FollowerEvent>, Duration) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = pause.mul_f64(0.5 + random / 2.0);
        if self.at.is_some() && error.needs_list() {
            // This is not a failure for the receiver: the list follows at once.
            self.at = None;
            return (None, PAUSE_MIN.mul_f64(0.5 + random / 2.0));
        }
        let reason = error.to_string();
        if self.lost.as_ref() == Some(&reason) {
            return (None, pause);
        }
        self.lost = Some(reason.clone());
        (Some(FollowerEvent::Lost { reason }), pause)
    }

    fn advance(&mut self, revision: u64) -> bool {
        match &mut self.at {
            Some((at, _)) if *at < revision => {
                *at = revision;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Document, DocumentTable, Documents as _, Event, Key};
    use proptest::prelude::*;

    /// etcd from a follower's point of view: a history, and the oldest revision of it that is kept.
    #[derive(Default)]
    struct Model {
        /// By revision, from 2 on: 1 is etcd's first, which is empty.
        history: Vec<Batch>,
        compacted: u64,
        cluster: u64,
    }

    #[derive(Debug, Clone)]
    enum Action {
        /// Each key is written, or deleted.
        Write(Vec<(u8, bool)>),
        /// Keeps this many revisions.
        Compact(u8),
        /// The follower does one step: it lists, begins to watch, or takes a batch.
        Step,
        /// The watch sends this many of the previous batches again.
        Repeat(u8),
        /// The watch reports its progress.
        Progress,
        /// The connection breaks.
        Break,
        /// Replaces etcd by another, empty one.
        Replace,
        /// Restores etcd from a backup that has this many revisions less, with the same identity, and makes these changes until it is
        /// at a later revision than before.
        Restore(u8, Vec<(u8, bool)>),
    }

    impl Model {
        fn revision(&self) -> u64 {
            1 + self.history.len() as u64
        }

        fn write(&mut self, changes: &[(u8, bool)]) {
            let revision = self.revision() + 1;
            let now = self.list();
            let key = |number: u8| Key::parse(&format!("routes/{number}")).unwrap();
            let event = |(number, is_put): &(u8, bool)| {
                let key = key(*number);
                let old = now.documents.iter().find(|(known, _)| *known == key).map(|(_, document)| document.created);
                let created = old.unwrap_or(revision);
                let document = Document { value: format!("{revision}").into(), created, modified: revision };
                (*is_put || old.is_some()).then_some(Event { key, document: is_put.then_some(document) })
            };
            let mut events: Vec<Event> = changes.iter().filter_map(event).collect();
            events.sort_by(|a, b| a.key.cmp(&b.key));
            events.dedup_by(|a, b| a.key == b.key);
            if !events.is_empty() {
                self.history.push(Batch { revision, events });
            }
        }

        fn list(&self) -> Snapshot {
            let documents = DocumentTable::default();
            self.history.iter().for_each(|batch| documents.apply(batch));
            Snapshot { revision: self.revision(), ..documents.snapshot() }
        }

        /// Like etcd before 3.4.36: deletions in the oldest revision that it keeps are lost.
        fn after(
            &self,
            start: u64,
            cluster: u64,
            documents: Option<&DocumentsDigest>,
        ) -> Result<Vec<Batch>, EtcdError> {
            if cluster != self.cluster || start > self.revision() {
                return Err(EtcdError::Replaced { why: String::new() });
            }
            if start < self.compacted {
                return Err(EtcdError::Compacted { oldest: Some(self.compacted) });
            }
            if let Some(documents) = documents {
                let then = DocumentTable::default();
                self.history.iter().filter(|batch| batch.revision <= start).for_each(|batch| then.apply(batch));
                let mut found = documents.empty();
                then.snapshot().documents.iter().for_each(|(key, document)| found.put(key, document));
                if !found.is_same(documents) {
                    return Err(EtcdError::Replaced { why: String::new() });
                }
            }
            let mut batches: Vec<Batch> =
                self.history.iter().filter(|batch| batch.revision >= start).cloned().collect();
            for batch in batches.iter_mut().filter(|batch| batch.revision == self.compacted) {
                batch.events.retain(|event| event.document.is_some());
            }
            Ok(batches)
        }
    }

    /// A follower with its reader's state.
    #[derive(Default)]
    struct FollowerReader {
        follower: Follower,
        documents: DocumentTable,
        /// The watch's position in the history, if there is a watch.
        watch: Option<usize>,
        /// The list and the watch after it are one step to etcd.
        has_just_listed: bool,
        batches: Vec<u64>,
    }

    impl FollowerReader {
        fn take(&mut self, told: Option<FollowerEvent>) {
            match told {
                Some(FollowerEvent::Snapshot(snapshot)) => {
                    self.documents.replace(snapshot);
                    self.batches.clear();
                }
                Some(FollowerEvent::Batch(batch)) => {
                    assert!(batch.revision > self.documents.revision(), "told again, or out of order");
                    self.batches.push(batch.revision);
                    self.documents.apply(&batch);
                }
                Some(FollowerEvent::Lost { .. } | FollowerEvent::Back | FollowerEvent::Heard { .. }) | None => {}
            }
        }

        fn fail(&mut self, error: &EtcdError) {
            self.watch = None;
            self.has_just_listed = false;
            let (told, _) = self.follower.on_failure(error, 0.5);
            self.take(told);
        }

        /// Returns whether there was anything to do.
        fn step(&mut self, model: &Model) -> bool {
            let Some(position) = self.watch else {
                let known = if self.has_just_listed {
                    self.follower.at.map(|(revision, cluster)| (revision, cluster, None))
                } else {
                    let position = self.follower.position();
                    position.map(|(at, documents)| (at.after, at.cluster, Some(documents.clone())))
                };
                let Some((at, cluster, documents)) = known else {
                    let told = self.follower.listed(model.list(), model.cluster);
                    self.take(Some(told));
                    self.has_just_listed = true;
                    return true;
                };
                match model.after(at, cluster, documents.as_ref()) {
                    Err(error) => self.fail(&error),
                    Ok(batches) => {
                        self.has_just_listed = false;
                        self.watch = Some(model.history.len() - batches.len());
                        let told = self.follower.on_watch_begun();
                        self.take(told);
                        // etcd first sends these, without the lost deletions.
                        for batch in batches {
                            self.deliver(batch);
                        }
                        self.watch = Some(model.history.len());
                    }
                }
                return true;
            };
            let Some(batch) = model.history.get(position) else { return false };
            self.watch = Some(position + 1);
            self.deliver(batch.clone());
            true
        }

        fn deliver(&mut self, batch: Batch) {
            let told = self.follower.batch(batch);
            self.take(told);
        }

        fn act(&mut self, model: &mut Model, action: &Action) {
            let broken = || EtcdError::Unreachable { endpoint: String::new(), why: "broken".to_owned(), is_sent: true };
            match action {
                Action::Write(changes) => model.write(changes),
                Action::Compact(kept) => {
                    let to = model.revision().saturating_sub(u64::from(*kept));
                    model.compacted = model.compacted.max(to);
                }
                Action::Step => drop(self.step(model)),
                Action::Repeat(count) => {
                    let position = self.watch.unwrap_or_default();
                    let from = position.saturating_sub(usize::from(*count));
                    for batch in &model.history[from..position] {
                        self.deliver(batch.clone());
                    }
                }
                Action::Progress => {
                    if let Some(position) = self.watch {
                        self.follower.progress(1 + position as u64);
                    }
                }
                Action::Break => self.fail(&broken()),
                Action::Replace => {
                    *model = Model { cluster: model.cluster + 1, ..Model::default() };
                    self.fail(&broken());
                }
                Action::Restore(lost, changes) => {
                    let before = model.revision();
                    let kept = model.history.len().saturating_sub(usize::from(*lost));
                    model.history.truncate(kept);
                    model.compacted = model.compacted.min(model.revision());
                    model.write(changes);
                    // With values that the revision does not tell: another program wrote them.
                    while model.revision() <= before {
                        model.write(&[(9, true)]);
                    }
                    for event in model.history[kept..].iter_mut().flat_map(|batch| &mut batch.events) {
                        event.document =
                            event.document.take().map(|document| Document { value: "restored".into(), ..document });
                    }
                    self.fail(&broken());
                }
            }
        }
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let action = prop_oneof![
            6 => prop::collection::vec((0..4u8, any::<bool>()), 1..4).prop_map(Action::Write),
            2 => (0..4u8).prop_map(Action::Compact),
            8 => Just(Action::Step),
            1 => (0..4u8).prop_map(Action::Repeat),
            1 => Just(Action::Progress),
            3 => Just(Action::Break),
            1 => Just(Action::Replace),
            2 => (0..6u8, prop::collection::vec((0..4u8, any::<bool>()), 0..4))
                .prop_map(|(lost, changes)| Action::Restore(lost, changes)),
        ];
        prop::collection::vec(action, 0..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// After any sequence of actions, the reader has the same documents as a fresh list.
        #[test]
        fn a_follower_ends_with_what_a_list_has(actions in actions()) {
            let (mut model, mut reader) = (Model::default(), FollowerReader::default());
            for action in &actions {
                reader.act(&mut model, action);
            }
            let mut steps = 0;
            while reader.step(&model) {
                steps += 1;
                prop_assert!(steps < 200, "it does not come to rest");
            }
            prop_assert_eq!(reader.documents.snapshot().documents, model.list().documents);
            let expected = model.history.iter().map(|batch| batch.revision);
            let expected: Vec<u64> = expected.filter(|revision| reader.batches.first().is_some_and(|first| revision >= first)).collect();
            prop_assert_eq!(reader.batches, expected, "each revision once, none left out");
        }
    }

    #[test]
    fn a_loss_is_reported_once_for_each_reason_and_pauses_grow() {
        let mut follower = Follower::default();
        let error =
            |why: &str| EtcdError::Unreachable { endpoint: "http://e".to_owned(), why: why.to_owned(), is_sent: false };
        let lost = |why: &str| Some(FollowerEvent::Lost { reason: format!("etcd at http://e: {why}") });
        assert_eq!(follower.on_failure(&error("a"), 1.0), (lost("a"), PAUSE_MIN));
        assert_eq!(follower.on_failure(&error("a"), 0.0), (None, PAUSE_MIN));
        assert_eq!(follower.on_failure(&error("b"), 1.0), (lost("b"), PAUSE_MIN * 4));
        for _ in 0..100 {
            follower.on_failure(&error("b"), 1.0);
        }
        assert_eq!(follower.on_failure(&error("b"), 1.0), (None, PAUSE_MAX));
        follower.listed(Snapshot { revision: 5, documents: Vec::new() }, 1);
        assert_eq!((follower.on_watch_begun(), follower.on_watch_begun()), (Some(FollowerEvent::Back), None));
        assert_eq!(follower.on_failure(&EtcdError::Compacted { oldest: None }, 1.0), (None, PAUSE_MIN));
        assert!(follower.position().is_none());
    }
}
