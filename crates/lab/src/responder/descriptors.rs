//! The number of connections that the descriptor limit allows, after raising it as far as this process may.

use crate::error::{Error, Result};
use stillgate_rig::descriptors;

/// Descriptors other than connections: standard streams, epoll, listener, signals, and some to spare.
const OTHERS: u64 = 32;

/// The number requested, or as many as the limit allows.
pub(super) fn connections_max(asked: Option<usize>) -> Result<usize> {
    let needed = asked.map_or(descriptors::limit().hard, |asked| asked as u64 + OTHERS);
    descriptors::raise_to(needed);
    let available = descriptors::limit().current;
    if asked.is_some() && available < needed {
        return Err(Error::new(format!(
            "--connections-max {} needs {needed} file descriptors, and this process may have {available}; \
             raise the limit with `ulimit -n {needed}` or allow fewer",
            needed - OTHERS
        )));
    }
    Ok(asked.unwrap_or(usize::try_from(available.saturating_sub(OTHERS)).unwrap_or(usize::MAX)))
}
