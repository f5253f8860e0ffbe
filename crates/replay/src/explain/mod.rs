//! Explains a request: which route takes it and why, and which plugins run. For `stillgate explain` and for the admin API.

pub mod chain;
pub mod explanation;
pub mod query;
pub mod request_head;
