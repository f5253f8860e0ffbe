//! Upstreams that a plugin's configuration leads to: those that others have too, and those that are written in it.

use std::any::Any;
use std::sync::Arc;
use stillgate_schema::{At, Fault, Node, Path, Sink};

/// What a plugin has of an upstream that is written in its configuration, for whoever has compiled it.
pub type OwnUpstream = Arc<dyn Any + Send + Sync>;

/// What a configuration may refer to while it is compiled. An upstream is known to requests by its key.
pub trait Upstreams {
    /// The key of one of `upstreams`; `None`: it is not there or cannot be used, which has been reported.
    fn named(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>>;

    /// One that is written in the configuration, which from here on has this key; `None`: it cannot be read, which has been
    /// reported.
    fn written(&self, key: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream>;
}

/// There is none.
pub struct NoUpstreams;

impl Upstreams for NoUpstreams {
    fn named(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>> {
        sink.error(id.at, path, Fault::new(format!("there is no upstream with the id {:?}", id.value)));
        None
    }

    fn written(&self, _: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream> {
        sink.error(node.at, path, Fault::new("no upstream can be written here"));
        None
    }
}
