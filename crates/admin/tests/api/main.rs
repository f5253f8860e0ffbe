//! The Admin API over a datastore in memory: requests and responses.

#![allow(clippy::unwrap_used)]

mod access;
mod apisix;
mod audit;
mod beyond;
mod client;
mod configs;
mod control;
mod hostile;
mod references;
mod table;
