//! Lookups that wait to the end for an address family that was not answered.
//!
//! They run beside the usual lookups of their names, whose answers are used at once and asked for again in time. So
//! thousands of names with a silent family wait for each other here only. The first that asked is the next.

use super::lookup::{FirstAnswer, Graces, LookupAnswer, NameServers};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::task::{Id, JoinError, JoinSet};

/// Patient lookups under way at once.
pub(super) const PATIENT_MAX: usize = 128;

/// Names that wait for a patient lookup, and the lookups under way. Dropping it ends them. The caller adds no name that
/// waits already, so there are at most as many as names in use.
#[derive(Debug, Default)]
pub(super) struct PatientLookups {
    waiting: VecDeque<Arc<str>>,
    lookups: JoinSet<Option<LookupAnswer>>,
    /// The name that each task looks up.
    tasks: HashMap<Id, Arc<str>>,
}

impl PatientLookups {
    /// Whether no name waits and no lookup is under way.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.tasks.is_empty()
    }

    /// Queues a name.
    pub(super) fn queue(&mut self, name: Arc<str>) {
        self.waiting.push_back(name);
    }

    /// Forgets names that wait and are not in use any more. A lookup under way ends later, with a name not in use.
    pub(super) fn retain(&mut self, is_used: impl Fn(&str) -> bool) {
        self.waiting.retain(|name| is_used(name));
    }

    /// Begins what there is room for.
    pub(super) fn begin(&mut self, servers: &NameServers) {
        while self.tasks.len() < PATIENT_MAX
            && let Some(name) = self.waiting.pop_front()
        {
            let lookup = servers.clone().lookup(name.clone(), Graces::TO_THE_END, FirstAnswer::default());
            let task = self.lookups.spawn(async move { lookup.await.ok() });
            self.tasks.insert(task.id(), name);
        }
    }

    /// Waits for a lookup to end, and returns its name and answer; `None` if none is under way. Cancel-safe.
    pub(super) async fn next_end(&mut self) -> Option<(Arc<str>, Option<LookupAnswer>)> {
        let ended = self.lookups.join_next_with_id().await?;
        self.end(ended)
    }

    /// Returns the name and answer of a lookup that has ended already, if there is one.
    pub(super) fn try_next_end(&mut self) -> Option<(Arc<str>, Option<LookupAnswer>)> {
        let ended = self.lookups.try_join_next_with_id()?;
        self.end(ended)
    }

    fn end(
        &mut self,
        ended: Result<(Id, Option<LookupAnswer>), JoinError>,
    ) -> Option<(Arc<str>, Option<LookupAnswer>)> {
        let (id, answer) = ended.unwrap_or_else(|error| (error.id(), None));
        Some((self.tasks.remove(&id)?, answer))
    }
}
