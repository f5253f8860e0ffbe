//! What a source gives: a configuration, and what of its resources is not served as it was put.

use super::{Config, Kind, Origin};
use std::fmt;
use stillgate_schema::text::diagnostic::Diagnostic;

/// A configuration that can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// What its authors should know, in the order of the file.
    pub warnings: Vec<Diagnostic>,
    /// The same of the file beside a datastore; empty where all comes from the file.
    pub warnings_beside: Vec<Diagnostic>,
    /// Resources that are not served as they were put. Of a file always none: it is refused whole.
    pub rejected: Vec<Rejected>,
}

/// A resource that is not served as it was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// What it is.
    pub kind: Kind,
    /// Unique among its kind.
    pub id: String,
    /// What is wrong with it.
    pub reason: String,
    /// Where it comes from.
    pub origin: Origin,
    /// What is served in its place.
    pub serving: Serving,
}

/// What is served in the place of a rejected resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// The last one that was right.
    Previous,
    /// What it takes, or what refers to it, is answered 503.
    Unavailable,
    /// Nothing: what it would have taken cannot be told.
    Nothing,
}

/// As the status shows it.
impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Serving::Previous => "previous",
            Serving::Unavailable => "503",
            Serving::Nothing => "nothing",
        })
    }
}
