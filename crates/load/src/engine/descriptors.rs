//! File descriptors: raises their limit for a run, or reports a clear error before it begins.

use super::sources::LoadError;
use stillgate_rig::{descriptors, proc};

/// Descriptors of each thread besides its connections: epoll and its scheduler statistics.
const PER_THREAD: u64 = 2;

/// Files that the process opens meanwhile: results, the display.
const RESERVE: u64 = 64;

/// Raises this process's own limit as far as a run needs it and the system allows; not further, because programs started
/// later inherit it, and some walk through all of it.
pub(super) fn provide(connections: usize, threads: usize) -> Result<(), LoadError> {
    let needed = (connections as u64)
        .saturating_add(threads as u64 * PER_THREAD)
        .saturating_add(RESERVE)
        .saturating_add(open_now());
    match descriptors::raise_to(needed) {
        true => Ok(()),
        false => Err(LoadError::Descriptors { needed, limit: descriptors::limit().hard }),
    }
}

fn open_now() -> u64 {
    // Without /proc, the reserve has to do.
    proc::descriptors("self").map_or(0, |count| count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_are_refused_with_the_figures() {
        let Err(LoadError::Descriptors { needed, limit }) = provide(usize::MAX / 2, 1) else {
            // A machine without any limit.
            return;
        };
        assert!(needed > limit);
        let message = LoadError::Descriptors { needed, limit }.to_string();
        assert!(message.contains(&format!("ulimit -n {needed}")), "{message}");
        assert!(provide(10, 2).is_ok());
    }
}
