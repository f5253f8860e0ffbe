//! The order of a device's connections.

use std::fmt;

/// Grows with each connection of a device, over all nodes; given by the directory. Below 2^53, so that every number type of
/// JSON and of Lua holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
