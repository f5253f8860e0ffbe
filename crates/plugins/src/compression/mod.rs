//! `gzip`, `brotli` and `zstd`: compress responses for clients that take it.
//!
//! Which responses is the same for all three ([`Policy`]); what differs are the encoders. The bytes of a body go on as soon as
//! they can, behind all other filters: an encoder is flushed where the node has nothing more for now, so that a response is never held back for its
//! coding.

mod accept;
mod brotli;
mod filter;
mod gzip;
mod policy;
mod zstd;

pub(crate) use brotli::Brotli;
pub(crate) use gzip::Gzip;
pub(crate) use zstd::Zstd;
