//! Parts of the tests of plugins that ask others.

mod breaker;
mod mirror;
mod opa;
