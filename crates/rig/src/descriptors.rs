//! The limit of file descriptors, raised as far as this process may.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that this process may have: now, and at the most without privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The soft limit.
    pub current: u64,
    /// The hard limit.
    pub hard: u64,
}

/// The present limit; what is unlimited is the largest number.
pub fn limit() -> Limit {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    Limit { current: current.unwrap_or(u64::MAX), hard: maximum.unwrap_or(u64::MAX) }
}

/// Raises the limit to what is needed, and no further, because programs started later inherit it, and some walk through all of
/// it. Returns whether there are so many now.
pub fn raise_to(needed: u64) -> bool {
    let Limit { current, hard } = limit();
    if current < needed {
        // Only a privileged process may exceed the hard limit; if this fails, the current limit decides.
        let raised = Rlimit { current: Some(needed), maximum: Some(hard.max(needed)) };
        let _ = setrlimit(Resource::Nofile, raised);
    }
    limit().current >= needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_system_allows() {
        let Limit { current, .. } = limit();
        assert!(raise_to(current.min(1024)));
        assert_eq!(limit().current, current, "what suffices is left as it is");
        // More than any kernel has.
        assert!(!raise_to(u64::MAX / 2) || limit().hard == u64::MAX);
    }
}
