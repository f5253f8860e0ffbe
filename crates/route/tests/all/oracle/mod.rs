//! Shared by the property tests: random routes and requests, and two oracles that scan.
//!
//! Nothing here shares code with the matcher beyond the types it is given. Each test target uses a part.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod asked;
pub(crate) mod expressions;
pub(crate) mod fuzzed;
pub(crate) mod kong;
pub(crate) mod predicates;
pub(crate) mod random;
pub(crate) mod routes;
pub(crate) mod scan;
pub(crate) mod vars;
