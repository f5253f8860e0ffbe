//! Text with positions: YAML to a tree, `${ENV}` put in, and what is said of it.
//!
//! This room knows no key and no meaning. Every value knows its line and column, so that each finding is told where it
//! was made.

pub mod cuts;
pub mod diagnostic;
pub mod environment;
pub mod json;
pub mod layout;
pub mod locate;
pub mod nearest;
pub mod scalar;
pub mod tree;
