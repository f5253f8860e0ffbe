//! Random numbers for plugins, from one generator for each worker.
//!
//! ChaCha with 256 bits of the system's randomness, so that ids of several workers and processes do not collide:
//! smaller states would after some billions of ids.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use std::cell::RefCell;

thread_local! {
    /// Workers are threads.
    static GENERATOR: RefCell<StdRng> = RefCell::new(rand::make_rng());
}

/// An array of random bytes.
pub(crate) fn bytes<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    GENERATOR.with_borrow_mut(|generator| generator.fill_bytes(&mut bytes));
    bytes
}

/// A number from 0 to `end`, exclusive; `end` is not 0.
pub(crate) fn below(end: u64) -> u64 {
    GENERATOR.with_borrow_mut(|generator| generator.random_range(0..end))
}

/// A number from 0 to 1, exclusive.
pub(crate) fn share() -> f64 {
    GENERATOR.with_borrow_mut(|generator| generator.random())
}
