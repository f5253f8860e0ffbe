//! Resources: what a request reads or writes of them.

pub(crate) mod address;
mod merge;
pub(crate) mod plan;
mod precondition;
mod read;
pub(crate) mod references;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod view;
