//! What is logged of requests, and where.

use std::path::PathBuf;
pub use stillgate_plugin::record::AccessValue;

/// `gateway.access_log`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// Where lines go.
    pub destination: LogDestination,
    /// How a line looks.
    pub format: AccessFormat,
}

/// Where a log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// A file that is appended to, and reopened on SIGUSR1.
    File(PathBuf),
}

/// The shape of an access log line.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// One JSON object a line with these fields, in this order.
    Json(Vec<AccessField>),
}

/// One field of a JSON access log line.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessField {
    /// The JSON key.
    pub name: String,
    /// Where its value comes from.
    pub value: AccessValue,
}
