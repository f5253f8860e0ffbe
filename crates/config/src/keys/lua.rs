//! The keys of `gateway.lua`: where plugins in Lua are.

use crate::keys::files::WHOLE_PATH;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{Kind, list, read};
use stillgate_schema::text::diagnostic::{Path, Sink};
use stillgate_schema::text::tree::{Node, Value};
use stillgate_schema::{expected, json_of, object};

object! {
    /// Plugins in Lua; [lua.md](lua.md#own-plugins) tells how they are written.
    pub struct LuaKeys: Eq {
        /// A file or folder, or a list of them, by whole paths: each file is a plugin, and so is each `*.lua` in a folder, unless it
        /// is a module that another one requires.
        path: Vec<PathBuf> = OneOrSeveral => default(Vec::new());
        /// By names of plugins, what `plugin_attr` of `apisix.plugin` gives them.
        plugin_attr: Arc<Json> = Attributes => default(Arc::new(json!({})));
    }
}

/// Maps by names, of any values.
struct Attributes;

impl Kind for Attributes {
    type Out = Arc<Json>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<Json>> {
        let Value::Map(entries) = &node.value else {
            expected("a map of plugins", node, path, sink);
            return None;
        };
        if let Some(entry) = entries.iter().find(|entry| !matches!(entry.value.value, Value::Map(_))) {
            expected("a map", &entry.value, &path.key(&entry.key), sink);
            return None;
        }
        json_of(node, path, sink).map(Arc::new)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": "object"}})
    }

    fn show(&self, value: &Arc<Json>) -> Json {
        Json::clone(value)
    }
}

/// A path, or a list of them.
struct OneOrSeveral;

impl Kind for OneOrSeveral {
    type Out = Vec<PathBuf>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<PathBuf>> {
        match &node.value {
            Value::List(_) => read(&list(WHOLE_PATH), node, path, sink),
            _ => Some(vec![read(&WHOLE_PATH, node, path, sink)?]),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        json!({"anyOf": [WHOLE_PATH.schema(definitions), list(WHOLE_PATH).schema(definitions)]})
    }

    fn show(&self, value: &Vec<PathBuf>) -> Json {
        json!(value)
    }
}
