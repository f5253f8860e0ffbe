//! How many connections the descriptor limit has room for, raising it as far as this process may.

use crate::error::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are of no connection: standard streams, epoll, listener, signals, and some to spare.
const OTHERS: u64 = 32;

/// As many as were asked for, or as there is room for.
pub(super) fn connections_max(asked: Option<usize>) -> Result<usize> {
    let limits = getrlimit(Resource::Nofile);
    let hard = limits.maximum.unwrap_or(u64::MAX);
    let needed = asked.map_or(hard, |asked| asked as u64 + OTHERS);
    if limits.current.unwrap_or(u64::MAX) < needed {
        // Above the hard limit only a privileged process may go; where this fails, what there is decides.
        let raised = Rlimit { current: Some(needed), maximum: Some(hard.max(needed)) };
        let _ = setrlimit(Resource::Nofile, raised);
    }
    let available = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if asked.is_some() && available < needed {
        return Err(Error::new(format!(
            "--connections-max {} needs {needed} file descriptors, and this process may have {available}; \
             raise the limit with `ulimit -n {needed}` or ask for fewer",
            needed - OTHERS
        )));
    }
    Ok(asked.unwrap_or(usize::try_from(available.saturating_sub(OTHERS)).unwrap_or(usize::MAX)))
}
