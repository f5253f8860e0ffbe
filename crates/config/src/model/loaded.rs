//! The result of a source: a configuration, and the resources that are not served as they were put.

use super::{Config, Origin, ResourceKind};
use std::fmt;
use stillgate_schema::text::diagnostic::Diagnostic;

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Warnings for its authors, in the order of the file.
    pub warnings: Vec<Diagnostic>,
    /// Warnings about the file next to a datastore; empty if everything comes from the file.
    pub warnings_beside: Vec<Diagnostic>,
    /// Resources that are not served as they were put. Always empty for a file, which is refused as a whole.
    pub rejected: Vec<RejectedResource>,
}

/// A resource that is not served as it was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedResource {
    /// Its kind.
    pub kind: ResourceKind,
    /// Unique within its kind.
    pub id: String,
    /// Its errors.
    pub reason: String,
    /// Its origin.
    pub origin: Origin,
    /// Its replacement.
    pub serving: Replacement,
}

/// The replacement of a rejected resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// The last valid version.
    Previous,
    /// Requests that it would take, or that need it, are answered with 503.
    Unavailable,
    /// Nothing: the requests that it would have taken are unknown.
    Nothing,
}

/// The name in the status.
impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Replacement::Previous => "previous",
            Replacement::Unavailable => "503",
            Replacement::Nothing => "nothing",
        })
    }
}
