//! Compiles routes into an immutable matcher; explains what it decides.
//!
//! Pure: no IO, no clock, no randomness. A configuration is parsed into [`RouteSpec`]s ([`PathPattern::parse`],
//! [`HostPattern::parse`], [`parse_method`], [`vars::Expr::parse`]), compiled by [`Matcher::compile`] and asked by
//! [`Matcher::find`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod compile;
pub mod condition;
mod explain;
mod expression;
mod host;
mod matcher;
mod method;
pub mod path;
mod pattern;
pub mod regex;
mod spec;
mod table;
mod tree;
mod variable;
pub mod vars;

pub use address::AddressSet;
pub use compile::{CompileError, CompileErrorKind, PLACES_MAX};
pub use expression::Expression;
pub use explain::{Candidate, Explanation, Verdict};
pub use host::{HOST_BYTES_MAX, HostError, HostPattern, canonical_host};
pub use matcher::{Match, Matcher, Request, Scratch};
pub use method::{MethodError, MethodSet, parse_method};
pub use path::{NormalPath, PathError};
pub use pattern::{PARAMS_MAX, PATTERN_BYTES_MAX, PathPattern, PatternError, PatternErrorKind};
pub use spec::{RouteSpec, Takes, UriRoute};
pub use stillgate_wire::Method;
pub use variable::{HeaderName, Lookup, Variable, VariableError, VariableErrorKind};
