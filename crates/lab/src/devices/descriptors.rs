//! Room for one descriptor per device.

use crate::error::{Error, Result};
use stillgate_rig::descriptors;

/// Descriptors that no device uses: standard streams, epoll, connections of the back-end, signals, and some to spare.
const OTHERS: u64 = 64;

/// Raises the limit as far as this process may.
pub(super) fn make_room(devices: usize, back_ends: usize) -> Result {
    let needed = (devices + back_ends) as u64 + OTHERS;
    match descriptors::raise_to(needed) {
        true => Ok(()),
        false => Err(Error::new(format!(
            "--count {devices} needs {needed} file descriptors, and this process may have {}; \
             raise the limit with `ulimit -n {needed}`, or ask for fewer devices",
            descriptors::limit().current
        ))),
    }
}
