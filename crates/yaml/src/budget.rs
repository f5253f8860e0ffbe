//! What compiling a document may cost.

use crate::diagnostic::Fault;
use std::cell::Cell;

/// What the regular expressions of a resource, and of all resources that are changed together, may still cost: a byte of
/// memory costs one, and so does a step of building an automaton, which takes some 30 ns.
///
/// A bound for each expression does not suffice: a resource has room for thousands.
#[derive(Debug)]
pub struct CompileBudget {
    resource: Cell<usize>,
    change: Cell<usize>,
}

impl CompileBudget {
    /// What the regular expressions of one resource may cost.
    pub const RESOURCE: usize = 16 << 20;

    /// A budget for resources that are changed together.
    pub const fn of_change(whole: usize) -> CompileBudget {
        CompileBudget { resource: Cell::new(CompileBudget::RESOURCE), change: Cell::new(whole) }
    }

    /// Another resource begins.
    pub fn begin_resource(&self) {
        self.resource.set(CompileBudget::RESOURCE);
    }

    /// The most that something may cost now.
    pub fn remaining(&self) -> usize {
        self.resource.get().min(self.change.get())
    }

    /// What is left for other resources.
    pub fn remaining_of_change(&self) -> usize {
        self.change.get()
    }

    /// Pays for an expression, or for several that are compiled together; the error says that they cost too much.
    pub fn pay(&self, cost: usize) -> Result<(), Fault> {
        let Some(resource) = self.resource.get().checked_sub(cost) else {
            let fault = Fault::new("the regular expressions of this resource are too large together");
            return Err(fault.hint("write fewer of them, or smaller repetitions"));
        };
        let Some(change) = self.change.get().checked_sub(cost) else {
            let fault = Fault::new("the regular expressions of all resources in this change are too large together");
            return Err(fault.hint("make it several changes, or write smaller repetitions"));
        };
        self.resource.set(resource);
        self.change.set(change);
        Ok(())
    }
}

/// Without a bound for all resources together: a whole file, or what a datastore has.
impl Default for CompileBudget {
    fn default() -> Self {
        CompileBudget::of_change(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_and_a_change_have_bounds() {
        let budget = CompileBudget::of_change(CompileBudget::RESOURCE * 3 / 2);
        let half = CompileBudget::RESOURCE / 2;
        assert_eq!((budget.pay(half), budget.pay(half)), (Ok(()), Ok(())));
        assert_eq!(budget.remaining(), 0);
        assert!(budget.pay(1).unwrap_err().message.contains("of this resource"));
        budget.begin_resource();
        assert_eq!((budget.remaining(), budget.pay(half), budget.remaining()), (half, Ok(()), 0));
        assert!(budget.pay(1).unwrap_err().message.contains("all resources in this change"));
    }
}
