//! Evaluates requests against a configuration without sending any: which route takes a request and why, and which recorded requests
//! change their route or plugins between two configurations.
//!
//! For `stillgate explain`, `check --requests`, `lua check --requests` and the admin API.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

/// Explains a request: which route takes it and why, and which plugins run. For `stillgate explain` and for the admin API.
pub mod explain {
    pub mod chain;
    pub mod explanation;
    pub mod query;
    pub mod request_head;
}
pub mod replay;
