//! The identity of a resource that is being compiled, for messages and digests.

use stillgate_schema::text::diagnostic::{Path, Position};
use stillgate_schema::text::tree::Node;

/// The identity of a resource.
#[derive(Clone, Copy)]
pub(crate) struct ResourceId<'a> {
    pub(crate) id: &'a str,
    pub(crate) at: Position,
    pub(crate) path: &'a Path<'a>,
    /// Its keys.
    pub(crate) node: &'a Node,
}
