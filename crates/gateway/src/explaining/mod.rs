//! Explains a request: which route takes it and why, and which plugins run. For `stillgate explain` and for the admin API.

pub(crate) mod chain;
pub(crate) mod explanation;
pub(crate) mod query;
pub(crate) mod request_head;
pub(crate) mod request_line;
