//! Routes in place of the one that takes everything, some of which have a mark to be changed while the target runs.
//!
//! ```text
//!  /service-7/v1            never changes
//!  /changing-8/v00000000    the digits are overwritten by those of a change
//! ```

use serde::{Deserialize, Serialize};

/// The beginning of a path with a mark; the number of its route follows, then `/v` and [`MARK_DIGITS`] digits.
pub(crate) const CHANGING: &str = "/changing-";

/// Digits of a mark.
pub(crate) const MARK_DIGITS: usize = 8;

/// Two of this many routes have a mark: one of each kind of condition.
const CHANGING_OF: usize = 10;

/// The routes of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoutePlan {
    pub(crate) count: usize,
    /// Whether every second one of stillgate is an expression.
    pub(crate) expressions: bool,
}

impl RoutePlan {
    /// The prefixes of the paths that they take.
    pub(crate) fn prefixes(self) -> impl Iterator<Item = String> {
        (0..self.count).map(|number| match is_changing(number) {
            true => changed(&number.to_string(), 0),
            false => format!("/service-{number}/v1"),
        })
    }

    /// Paths that are taken whatever changes, one for each route without a mark.
    pub(crate) fn fixed_paths(self) -> Vec<String> {
        (0..self.count).filter(|number| !is_changing(*number)).map(|number| format!("/service-{number}/v1/x")).collect()
    }

    /// The routes of a configuration that is shown to a reader.
    pub(crate) fn shown(self) -> RoutePlan {
        RoutePlan { count: self.count.min(CHANGING_OF), ..self }
    }
}

/// The prefix of a route with a mark since this change.
pub(crate) fn changed(route: &str, change: u64) -> String {
    format!("{CHANGING}{route}/v{change:0MARK_DIGITS$}")
}

fn is_changing(number: usize) -> bool {
    number % CHANGING_OF >= CHANGING_OF - 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_ten_have_a_mark() {
        let plan = RoutePlan { count: 20, expressions: false };
        let prefixes: Vec<String> = plan.prefixes().collect();
        assert_eq!((prefixes[7].as_str(), prefixes[8].as_str()), ("/service-7/v1", "/changing-8/v00000000"));
        assert_eq!((prefixes.len(), plan.fixed_paths().len()), (20, 16));
        assert_eq!(plan.fixed_paths()[0], "/service-0/v1/x");
        assert_eq!(changed("8", 12), "/changing-8/v00000012");
    }
}
