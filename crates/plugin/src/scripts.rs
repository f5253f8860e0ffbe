//! What texts in Lua become: the crate knows no Lua, so whoever makes a [`crate::Table`] brings this along.

use crate::Plugin;
use crate::chain::Origin;
use crate::own::{OwnFile, OwnPlugin};
use serde_json::Value as Json;
use std::fmt;
use stillgate_route::FilterFunction;

/// A plugin with a function in Lua before each of its phases: its text, the plugin and its name, what is configured, and where.
/// Refused with a message where the text is none of a function.
pub type Precede = fn(&str, Box<dyn Plugin>, &'static str, Json, &Origin) -> Result<Box<dyn Plugin>, String>;

/// What is made of texts in Lua.
#[derive(Clone, Copy)]
pub struct Scripts {
    /// `_meta.pre_function`
    pub precede: Precede,
    /// `filter_func` of the route of this id. Refused with a message where the text is none of a function.
    pub filter: fn(&str, &str) -> Result<FilterFunction, String>,
    /// A file's plugin. Refused with a message that names the file where it has none.
    pub plugin: fn(&OwnFile) -> Result<OwnPlugin, String>,
}

impl Scripts {
    /// There is no Lua: every text is refused.
    pub const NONE: Scripts = Scripts {
        precede: |_, _, _, _, _| Err(NO_LUA.to_owned()),
        filter: |_, _| Err(NO_LUA.to_owned()),
        plugin: |_| Err(NO_LUA.to_owned()),
    };
}

const NO_LUA: &str = "there is no Lua here";

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripts")
    }
}
