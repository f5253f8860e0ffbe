//! `gzip`, `brotli` and `zstd`: compress responses for clients that accept it.
//!
//! All three compress the same responses ([`Policy`]); only the encoders differ. The bytes of a body are sent as soon
//! as possible, behind all other filters: an encoder is flushed when the node has no more for now, so that a response
//! is never held back for its coding.

mod accept;
mod brotli;
mod filter;
mod gzip;
mod policy;
mod zstd;

pub(crate) use brotli::Brotli;
pub(crate) use gzip::Gzip;
pub(crate) use zstd::Zstd;
