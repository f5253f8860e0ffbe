//! Labels of resources that were removed from the configuration, kept until no request can add to their series.
//!
//! A request is counted under the Plan it began with, which may have left the configuration long ago. So what a Plan removes waits
//! until no worker holds that Plan or an older one. A subject that returns meanwhile is no longer waited for. Plans are numbered in
//! the order in which they are published.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use stillgate_proxy::SeriesSubject;

/// The most subjects that may wait. A request that lasts for hours holds up all that leave meanwhile. Beyond this number the oldest
/// are removed at once; if such a request is counted under one of them after all, its series stays until the process ends.
const LEAVING_MAX: usize = 100_000;

/// The waiting subjects.
#[derive(Debug, Default)]
pub(crate) struct WaitingSubjects {
    /// The newest Plan that contained the subject.
    last: HashMap<SeriesSubject, u64>,
    by_plan: BTreeMap<u64, BTreeSet<SeriesSubject>>,
}

impl WaitingSubjects {
    /// Records that Plan `plan` was the last one with these.
    pub(crate) fn add(&mut self, plan: u64, subjects: &BTreeSet<SeriesSubject>) {
        for subject in subjects {
            self.cancel(subject);
            self.last.insert(subject.clone(), plan);
            self.by_plan.entry(plan).or_default().insert(subject.clone());
        }
    }

    /// Handles that a Plan contains it again.
    pub(crate) fn cancel(&mut self, subject: &SeriesSubject) {
        if let Some(plan) = self.last.remove(subject)
            && let Some(subjects) = self.by_plan.get_mut(&plan)
        {
            subjects.remove(subject);
            if subjects.is_empty() {
                self.by_plan.remove(&plan);
            }
        }
    }

    /// Takes the subjects that may be removed, as all Plans before `oldest` are gone; `None`: only the current Plan is left.
    pub(crate) fn take(&mut self, oldest: Option<u64>) -> Vec<SeriesSubject> {
        let mut gone = Vec::new();
        while let Some(first) = self.by_plan.first_entry() {
            let is_over = oldest.is_none_or(|oldest| *first.key() < oldest);
            if !is_over && self.last.len() <= LEAVING_MAX {
                break;
            }
            for subject in first.remove() {
                self.last.remove(&subject);
                gone.push(subject);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_config::Label;

    fn values(names: &[&str]) -> BTreeSet<SeriesSubject> {
        names.iter().map(|name| SeriesSubject::new(&[Label::Route], &[name])).collect()
    }

    #[track_caller]
    fn check(leaving: &mut WaitingSubjects, oldest: Option<u64>, expected: &[&str]) {
        let taken: Vec<String> = leaving.take(oldest).into_iter().flat_map(|subject| subject.values).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn values_go_when_no_plan_is_left_that_had_them() {
        let mut leaving = WaitingSubjects::default();
        leaving.add(1, &values(&["a", "b"]));
        leaving.add(2, &values(&["c"]));
        check(&mut leaving, Some(1), &[]);
        check(&mut leaving, Some(2), &["a", "b"]);
        check(&mut leaving, None, &["c"]);
        check(&mut leaving, None, &[]);
    }

    #[test]
    fn what_comes_back_stays_and_may_leave_once_more() {
        let mut leaving = WaitingSubjects::default();
        leaving.add(1, &values(&["a"]));
        leaving.cancel(&SeriesSubject::new(&[Label::Route], &["a"]));
        check(&mut leaving, None, &[]);
        leaving.add(3, &values(&["a"]));
        check(&mut leaving, Some(3), &[]);
        check(&mut leaving, Some(4), &["a"]);
    }

    #[test]
    fn the_wait_is_bounded() {
        let mut leaving = WaitingSubjects::default();
        for plan in 1..=2 * LEAVING_MAX as u64 {
            leaving.add(plan, &values(&[&plan.to_string()]));
            let gone = leaving.take(Some(1));
            assert!(gone.len() <= 1 && leaving.last.len() <= LEAVING_MAX);
        }
    }
}
