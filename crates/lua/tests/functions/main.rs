//! Functions and their requests: what they can call, what they cannot, and how they are stopped.

#![allow(clippy::unwrap_used)]

mod absent;
mod api;
mod bounds;
mod fake;
mod jit;
mod jwt;
mod modules;
mod plugins;
mod redis;
mod requests;
