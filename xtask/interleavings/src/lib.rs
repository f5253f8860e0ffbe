//! Has tests only: the sources of two protocols with loom's atomics in place of std's.
