//! How many connections the descriptor limit has room for, raising it as far as this process may.

use crate::error::{Error, Result};
use stillgate_rig::descriptors;

/// Descriptors that are of no connection: standard streams, epoll, listener, signals, and some to spare.
const OTHERS: u64 = 32;

/// As many as were asked for, or as there is room for.
pub(super) fn connections_max(asked: Option<usize>) -> Result<usize> {
    let needed = asked.map_or(descriptors::limit().hard, |asked| asked as u64 + OTHERS);
    descriptors::raise_to(needed);
    let available = descriptors::limit().current;
    if asked.is_some() && available < needed {
        return Err(Error::new(format!(
            "--connections-max {} needs {needed} file descriptors, and this process may have {available}; \
             raise the limit with `ulimit -n {needed}` or ask for fewer",
            needed - OTHERS
        )));
    }
    Ok(asked.unwrap_or(usize::try_from(available.saturating_sub(OTHERS)).unwrap_or(usize::MAX)))
}
