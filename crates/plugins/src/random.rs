//! Random numbers for plugins, from a generator of each worker's own.
//!
//! ChaCha with 256 bits of the system's randomness, so that ids of several workers and processes do not meet: the states of
//! smaller generators do at some billions of ids.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use std::cell::RefCell;

thread_local! {
    /// Workers are threads.
    static GENERATOR: RefCell<StdRng> = RefCell::new(rand::make_rng());
}

/// So many random bytes.
pub(crate) fn bytes<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    GENERATOR.with_borrow_mut(|generator| generator.fill_bytes(&mut bytes));
    bytes
}

/// From 0 to `end`, without `end`, which is not 0.
pub(crate) fn below(end: u64) -> u64 {
    GENERATOR.with_borrow_mut(|generator| generator.random_range(0..end))
}

/// From 0 to 1, without 1.
pub(crate) fn share() -> f64 {
    GENERATOR.with_borrow_mut(|generator| generator.random())
}
