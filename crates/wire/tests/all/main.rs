//! HTTP heads and framing: tables, properties, corpora.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod corpus;
mod properties;
mod proxy_protocol;
mod request_heads;
mod response_heads;
