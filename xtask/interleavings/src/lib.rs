//! Contains only tests: the sources of two protocols with loom's atomics in place of std's.
