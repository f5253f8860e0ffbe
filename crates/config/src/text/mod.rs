//! Text with positions: YAML to a tree, `${ENV}` put in, and what is said of it.
//!
//! This room knows no key and no meaning. Every value knows its line and column, so that each finding is told where it
//! was made.

pub(crate) mod cuts;
pub(crate) mod diagnostic;
pub(crate) mod environment;
pub(crate) mod layout;
pub(crate) mod locate;
pub(crate) mod nearest;
pub(crate) mod scalar;
pub(crate) mod tree;
