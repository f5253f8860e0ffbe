//! Tests of nodes that find each other in Redis, and of the calls between them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod directory;
mod double;
mod peers;
mod processes;
