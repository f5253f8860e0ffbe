//! The format and destination of the access log.

use std::path::PathBuf;
pub use stillgate_plugin_api::record::AccessValue;

/// `gateway.access_log`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// The destination of lines.
    pub destination: LogDestination,
    /// The format of a line.
    pub format: AccessFormat,
}

/// The destination of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// A file that is appended to, and reopened on SIGUSR1.
    File(PathBuf),
}

/// The format of an access log line.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// One JSON object per line with these fields, in this order.
    Json(Vec<AccessField>),
}

/// One field of a JSON access log line.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessField {
    /// The JSON key.
    pub name: String,
    /// The source of its value.
    pub value: AccessValue,
}
