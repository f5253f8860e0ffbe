//! Room for one descriptor a device.

use crate::error::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of no device: standard streams, epoll, back-ends' connections, signals, and some to spare.
const OTHERS: u64 = 64;

/// Raises the limit as far as this process may.
pub(super) fn make_room(devices: usize, back_ends: usize) -> Result {
    let needed = (devices + back_ends) as u64 + OTHERS;
    let limits = getrlimit(Resource::Nofile);
    let hard = limits.maximum.unwrap_or(u64::MAX);
    if limits.current.unwrap_or(u64::MAX) < needed {
        // Above the hard limit only a privileged process may go; where this fails, what there is decides.
        let raised = Rlimit { current: Some(needed), maximum: Some(hard.max(needed)) };
        let _ = setrlimit(Resource::Nofile, raised);
    }
    let available = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    match available >= needed {
        true => Ok(()),
        false => Err(Error::new(format!(
            "--count {devices} needs {needed} file descriptors, and this process may have {available}; \
             raise the limit with `ulimit -n {needed}`, or ask for fewer devices"
        ))),
    }
}
