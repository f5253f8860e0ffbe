//! Compilers of texts in Lua: the crate does not depend on Lua, so the creator of a [`crate::PluginTable`] provides them.

use crate::custom::{CustomPlugin, PluginFile};
use crate::origin::PluginOrigin;
use crate::plugin::Plugin;
use serde_json::Value as Json;
use std::fmt;
use std::sync::Arc;
use stillgate_route::FilterFunction;

/// Wraps a plugin in a function in Lua that runs before each of its phases: the text, the plugin and its name, its
/// configuration, and its origin. Fails with a message if the text does not return a function.
pub type Precede = fn(&str, Box<dyn Plugin>, &'static str, Json, &PluginOrigin) -> Result<Box<dyn Plugin>, String>;

/// Makes plugins of files: [`Scripts::plugins`].
pub type MakePlugins = fn(&[PluginFile], &Arc<Json>) -> Vec<Result<CustomPlugin, String>>;

/// The compilers of texts in Lua.
#[derive(Clone, Copy)]
pub struct Scripts {
    /// `_meta.pre_function`
    pub precede: Precede,
    /// `filter_func` of the route with this id. Fails with a message if the text does not return a function.
    pub filter: fn(&str, &str) -> Result<FilterFunction, String>,
    /// The plugins of files, with the content of `plugin_attr`. A file without a plugin that no other file requires is
    /// an error that names it.
    pub plugins: MakePlugins,
}

impl Scripts {
    /// Without Lua: every text is refused.
    pub const NONE: Scripts = Scripts {
        precede: |_, _, _, _, _| Err(NO_LUA.to_owned()),
        filter: |_, _| Err(NO_LUA.to_owned()),
        plugins: |_, _| vec![Err(NO_LUA.to_owned())],
    };
}

const NO_LUA: &str = "Lua is not available here";

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripts")
    }
}
