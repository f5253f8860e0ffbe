//! Each plugin without a gateway: its effect on requests and responses, and the configurations that it refuses.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod access;
mod apisix_keys;
mod auth;
mod behaviour;
mod cors;
mod documents;
mod harness;
mod key_auth;
mod limit_count;
mod logs;
mod proxy_rewrite;
mod response_rewrite;
