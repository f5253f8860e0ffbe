//! Objects of a configuration, read from a tree of YAML or JSON by one table of keys each.
//!
//! The readers, the JSON Schema and the reference all come from these tables. This crate does not know the keys
//! themselves. Nothing here does IO.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod description;
pub mod json;
pub mod kind;
pub mod lenient_json;
pub mod matching;
pub mod object;
pub mod partial_json;
pub mod quantity;
pub mod secret_texts;

pub use description::Definitions;
pub use kind::{At, Choice, Flag, Kind, LocatedKind, TEXT, Text, Then, int, list, read, report_expected, some, text};
pub use matching::{BodyVars, LateVars, METHOD, Vars, json_of};
pub use object::{Map, Object, map};
pub use serde_json::Value as Json;
/// The text that keys are read from.
pub use stillgate_yaml as text;
pub use text::budget::CompileBudget;
pub use text::diagnostic::{Fault, Path, Position, Sink};
pub use text::tree::{Entry, Node, Value};
