//! The keys of `gateway.debug`: what lets operators look inside a running process.

use serde_json::{Value as Json, json};
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{Flag, Kind};
use stillgate_schema::object;
use stillgate_schema::quantity::{Size, size};
use stillgate_schema::text::diagnostic::{Path, Sink};
use stillgate_schema::text::tree::{Node, Value};

object! {
    /// Looking inside the running process; [profiling.md](profiling.md) tells how.
    pub struct Debug: Copy, Eq {
        /// Whether profiles can be taken at the admin address, below `/debug/pprof/`.
        pprof: bool = Flag => default(false);
        /// Whether the slowest requests of each minute are kept, for `/v1/slow`.
        slow: bool = Flag => default(false);
        /// Memory that is allocated between two samples of the heap profile, on average; `off`: none are taken.
        heap: Option<usize> = HeapSampling(size(16 * 1024, 1 << 30)) => default(None);
    }
}

/// `off` or a size.
struct HeapSampling(Size);

impl Kind for HeapSampling {
    type Out = Option<usize>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Option<usize>> {
        match &node.value {
            Value::Scalar(scalar) if &*scalar.text == "off" => Some(None),
            _ => self.0.read(node, path, sink).map(Some),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        json!({"anyOf": [{"enum": ["off"]}, self.0.schema(definitions)]})
    }

    fn show(&self, value: &Option<usize>) -> Json {
        value.map_or(json!("off"), |bytes| self.0.show(&bytes))
    }
}
