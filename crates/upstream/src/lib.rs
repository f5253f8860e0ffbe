//! Balancing, connection pools, set-aside nodes, name resolution.
