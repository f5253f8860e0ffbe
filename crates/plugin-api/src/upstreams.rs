//! Upstreams that a plugin's configuration refers to: shared ones, and those written in it.

use std::any::Any;
use std::sync::Arc;
use stillgate_schema::{At, Fault, Node, Path, Sink};

/// An upstream written in a plugin's configuration, as a handle for its compiler.
pub type OwnUpstream = Arc<dyn Any + Send + Sync>;

/// Upstreams that a configuration may refer to while it is compiled. Requests refer to an upstream by its key.
pub trait Upstreams {
    /// The key of one of `upstreams`; `None`: it does not exist or cannot be used, which has been reported.
    fn shared_key(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>>;

    /// Registers an upstream that is written in the configuration under this key; `None`: it is invalid, which has been
    /// reported.
    fn register_own(&self, key: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream>;
}

/// No upstreams.
pub struct NoUpstreams;

impl Upstreams for NoUpstreams {
    fn shared_key(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>> {
        sink.error(id.at, path, Fault::new(format!("there is no upstream with the id {:?}", id.value)));
        None
    }

    fn register_own(&self, _: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream> {
        sink.error(node.at, path, Fault::new("an upstream cannot be written here"));
        None
    }
}
