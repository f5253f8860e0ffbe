//! Resources: what a request reads or writes of them.

pub(crate) mod address;
pub(crate) mod merge;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod references;
pub(crate) mod view;
