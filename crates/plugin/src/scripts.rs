//! What texts in Lua become: the crate knows no Lua, so whoever makes a [`crate::Table`] brings this along.

use crate::Plugin;
use crate::chain::Origin;
use crate::own::{OwnFile, OwnPlugin};
use serde_json::Value as Json;
use std::fmt;
use std::sync::Arc;
use stillgate_route::FilterFunction;

/// A plugin with a function in Lua before each of its phases: its text, the plugin and its name, what is configured, and where.
/// Refused with a message where the text is none of a function.
pub type Precede = fn(&str, Box<dyn Plugin>, &'static str, Json, &Origin) -> Result<Box<dyn Plugin>, String>;

/// Makes plugins of files: [`Scripts::plugins`].
pub type MakePlugins = fn(&[OwnFile], &Arc<Json>) -> Vec<Result<OwnPlugin, String>>;

/// What is made of texts in Lua.
#[derive(Clone, Copy)]
pub struct Scripts {
    /// `_meta.pre_function`
    pub precede: Precede,
    /// `filter_func` of the route of this id. Refused with a message where the text is none of a function.
    pub filter: fn(&str, &str) -> Result<FilterFunction, String>,
    /// The plugins of files, with what `plugin_attr` says. A file that has none and that no other requires is refused with a
    /// message that names it.
    pub plugins: MakePlugins,
}

impl Scripts {
    /// There is no Lua: every text is refused.
    pub const NONE: Scripts = Scripts {
        precede: |_, _, _, _, _| Err(NO_LUA.to_owned()),
        filter: |_, _| Err(NO_LUA.to_owned()),
        plugins: |_, _| vec![Err(NO_LUA.to_owned())],
    };
}

const NO_LUA: &str = "there is no Lua here";

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripts")
    }
}
