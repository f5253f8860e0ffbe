//! The keys of `gateway.lua`: where plugins in Lua are.

use crate::keys::gateway::WHOLE_PATH;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{Kind, list, read};
use stillgate_schema::object;
use stillgate_schema::text::diagnostic::{Path, Sink};
use stillgate_schema::text::tree::{Node, Value};

object! {
    /// Plugins in Lua; [lua.md](lua.md#own-plugins) tells how they are written.
    pub struct LuaKeys: Eq {
        /// A file or folder, or a list of them, by whole paths: each file is a plugin, and so is each `*.lua` in a folder.
        path: Vec<PathBuf> = OneOrSeveral => default(Vec::new());
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
