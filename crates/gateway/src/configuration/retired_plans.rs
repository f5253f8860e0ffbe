//! Keeps replaced Plans until no request needs them, and what is to be freed then.
//!
//! The last worker to hold a Plan would have to free it, which takes milliseconds where there are many routes. So each replaced
//! Plan is held here too, and dropped once nothing else has it.

use std::collections::VecDeque;
use std::sync::Arc;
use stillgate_config::LoadedConfig;
use stillgate_proxy::Plan;

/// Replaced Plans watched for the end of the requests that hold them; beyond it the oldest is left to the worker that holds
/// it. It is those requests that keep their memory, so this bounds a list of pointers, and how long looking through it takes.
const RETIRED_MAX: usize = 1 << 16;

/// Replaced Plans, numbered in the order in which they were published.
#[derive(Debug, Default)]
pub(crate) struct RetiredPlans {
    /// The oldest first.
    plans: VecDeque<(u64, Arc<Plan>)>,
    count: u64,
}

/// Garbage that nothing uses any more.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    plans: Vec<Arc<Plan>>,
    /// Configurations that were replaced.
    pub(crate) configs: Vec<Arc<LoadedConfig>>,
}

impl Garbage {
    pub(crate) fn is_empty(&self) -> bool {
        self.plans.is_empty() && self.configs.is_empty()
    }
}

impl RetiredPlans {
    /// A Plan has been replaced; returns its number.
    pub(crate) fn push(&mut self, plan: Arc<Plan>) -> u64 {
        self.count += 1;
        self.plans.push_back((self.count, plan));
        self.count
    }

    /// The number of the oldest one that is still held; `None`: none is.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.plans.front().map(|(number, _)| *number)
    }

    /// Finds those that no worker holds any more.
    pub(crate) fn sort_out(&mut self, garbage: &mut Garbage) {
        self.plans.retain(|(_, plan)| {
            let is_held = Arc::strong_count(plan) > 1;
            if !is_held {
                garbage.plans.push(plan.clone());
            }
            is_held
        });
        while self.plans.len() > RETIRED_MAX {
            self.plans.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn plans_go_when_their_last_request_has() {
        let config = stillgate_config::load("routes: []\n", &|_| None).unwrap().config;
        let plan = |generation| Arc::new(Plan::build(generation, &config, &HashMap::new(), None, None, None).unwrap());
        let (mut retired, mut garbage) = (RetiredPlans::default(), Garbage::default());
        let (first, second) = (plan(1), plan(2));
        assert_eq!([retired.push(first.clone()), retired.push(second.clone()), retired.push(plan(3))], [1, 2, 3]);
        retired.sort_out(&mut garbage);
        assert_eq!((retired.oldest(), garbage.plans.len()), (Some(1), 1));
        drop(second);
        retired.sort_out(&mut garbage);
        assert_eq!((retired.oldest(), garbage.plans.len()), (Some(1), 2));
        drop(first);
        retired.sort_out(&mut garbage);
        assert_eq!((retired.oldest(), garbage.plans.len()), (None, 3));
    }
}
