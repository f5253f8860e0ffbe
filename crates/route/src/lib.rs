//! Compiles routes into an immutable matcher, and explains its decisions.
//!
//! Pure: no IO, no clock, no randomness. A configuration is parsed into [`RouteSpec`]s ([`PathPattern::parse`],
//! [`HostPattern::parse`], [`parse_method`], [`vars::Expr::parse`]) and compiled by [`Matcher::compile`];
//! [`Matcher::find`] then finds routes.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod body_path;
mod cache;
mod chunked_list;
mod compile;
pub mod condition;
mod explain;
pub mod expression;
mod fields;
mod function;
mod host;
mod layer;
pub mod lint;
mod matcher;
mod method;
mod params;
pub mod path;
mod pattern;
pub mod regex;
mod regex_like;
mod sample;
mod spec;
mod text;
mod tree;
mod values;
mod variable;
pub mod vars;

pub use address::AddressSet;
pub use body_path::{BodyPath, BodyStep};
pub use cache::{CACHE_KEY_BYTES_MAX, RouteCache};
pub use chunked_list::ChunkedList;
pub use compile::{CompileError, CompileErrorKind, PLACES_MAX, ROUTE_PLACES_MAX, fits};
pub use explain::{
    Candidate, Explanation, MISSED_MAX, PredicateValue, RULED_OUT_MAX, Reason, RoutePart, RouteVerdict, VarsVerdict,
};
pub use expression::{Expression, ExpressionError, ExpressionErrorKind};
pub use function::{Decide, FilterFunction, FunctionDecision, FunctionMessage, MessageLevel};
pub use host::{HOST_BYTES_MAX, HostError, HostPattern, canonical_host, split_port};
pub use matcher::{Match, Matcher, Scratch};
pub use method::{MethodError, MethodSet, parse_method};
pub use path::{NormalisedPath, PathError};
pub use pattern::{PARAMS_MAX, PATTERN_BYTES_MAX, PathPattern, PatternError, PatternErrorKind};
pub use regex_like::RegexLike;
pub use sample::SampleRequest;
pub use spec::{InvalidParts, RouteMatch, RouteSpec, UriRoute};
pub use stillgate_wire::Method;
pub use values::{ARGUMENTS_MAX, MatchRequest};
pub use variable::{
    HeaderName, Lookup, RECORDED, RECORDED_EARLY, SslVariable, Variable, VariableError, VariableErrorKind,
};
