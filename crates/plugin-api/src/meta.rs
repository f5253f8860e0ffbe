//! `_meta`: the keys that every plugin has.

use crate::filter::Filter;
use std::sync::Arc;
use stillgate_route::vars::Expr;
use stillgate_schema::{
    At, BodyVars, Definitions, Fault, Flag, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, expected, int, json_of,
    object,
};

/// The parsed `_meta`.
#[derive(Debug, Default)]
pub struct Meta {
    /// The plugin is left out, and so is the configuration that it overrides.
    pub disable: bool,
    /// The plugin is left out because the operator ignores it: its configuration was not read.
    pub is_ignored: bool,
    /// Replaces the plugin's body when it answers with a status of 400 or more.
    pub error_response: Option<Arc<[u8]>>,
    /// The priority in a chain, instead of the plugin's own.
    pub priority: Option<i32>,
    /// The plugin runs if this holds, or cannot be evaluated.
    pub filter: Option<Filter>,
    /// A text in Lua whose function runs before each phase.
    pub pre_function: Option<At<String>>,
}

object! {
    /// The keys of `_meta`, for every plugin.
    pub struct MetaKeys {
        /// The plugin does not run, nor does one of the same name whose place it takes.
        disable: bool = Flag => default(false);
        /// The body in place of the plugin's own where it answers with 400 or above: a text, or an object that is sent as
        /// JSON.
        error_response: Arc<[u8]> = ErrorResponse => optional;
        /// The place in the chain in place of the plugin's own: higher first.
        priority: i32 = int(i32::MIN as i64, i32::MAX as i64) => optional;
        /// Conditions as in `vars` of a route: the plugin runs where they hold.
        filter: At<Expr> = LocatedKind(BodyVars) => optional;
        /// A text in Lua that returns a function, which is called with `conf` and `ctx` before each phase of the plugin.
        pre_function: At<String> = LocatedKind(TEXT) => optional;
        closed: true;
    }
}

/// A text or an object.
struct ErrorResponse;

impl Kind for ErrorResponse {
    type Out = Arc<[u8]>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<[u8]>> {
        match json_of(node, path, sink) {
            Some(Json::String(text)) => Some(text.into_bytes().into()),
            // APISIX ends its JSON answers like this.
            Some(object @ Json::Object(_)) => Some(format!("{object}\n").into_bytes().into()),
            _ => {
                expected("a text or an object", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": ["string", "object"]})
    }
}

impl MetaKeys {
    /// Parses the values of the keys.
    pub fn into_meta(self, path: &Path<'_>, sink: &mut Sink) -> Option<Meta> {
        let filter = match self.filter {
            None => None,
            Some(At { at, value }) => match Filter::new(value) {
                Ok(filter) => Some(filter),
                Err(error) => {
                    sink.error(at, &path.key("filter"), Fault::new(error.to_string()));
                    return None;
                }
            },
        };
        let MetaKeys { disable, error_response, priority, pre_function, .. } = self;
        Some(Meta { disable, is_ignored: false, error_response, priority, filter, pre_function })
    }
}
