//! Text to validated configuration, every key defined once.

mod model;

pub use model::*;
