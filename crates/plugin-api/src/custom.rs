//! Custom plugins of operators: each is a file, which is read with the configuration that uses it.
//!
//! The crate reads no files and does not depend on Lua: it gets texts, and the creator of a [`crate::PluginTable`]
//! provides what compiles them, the [`Scripts`]. They also compile the other functions in Lua of a configuration.

use crate::definition::Compile;
use crate::identity::Identity;
use crate::phase::Phases;
use crate::plugin::{Plugin, PluginOrigin};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use stillgate_route::FilterFunction;
use stillgate_schema::{Json, Node};

/// A file with the text of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFile {
    /// Its path.
    pub path: PathBuf,
    /// The name that precedes line numbers in messages: the shortest end of the path that is unique.
    pub name: String,
    /// Its content.
    pub text: String,
    /// The folder of its modules: the configured one, or that of the file.
    pub folder: PathBuf,
}

impl PluginFile {
    /// Whether it is in a subfolder of the configured one. Such files are modules for plugins, and not plugins.
    pub fn is_module(&self) -> bool {
        self.path.parent() != Some(&*self.folder)
    }
}

/// Validates the metadata of a plugin, and returns it with its defaults.
pub type CheckMetadata = dyn Fn(Json) -> Result<Json, String> + Send + Sync;

/// Compiles a plugin from its configuration. Problems are reported to the sink.
pub type CompileCustom = dyn Fn(&Node, &mut Compile<'_>) -> Option<Box<dyn Plugin>> + Send + Sync;

/// A plugin from a file.
pub struct CustomPlugin {
    /// The file's path.
    pub path: PathBuf,
    /// Its name; see [`name_for_ever`].
    pub name: &'static str,
    /// Its priority in a chain: higher runs first.
    pub priority: i32,
    /// The phases in which it is called.
    pub phases: Phases,
    /// JSON Schema of its configuration.
    pub schema: Json,
    /// Digest of the file's text, of the modules that it requires, and of its `plugin_attr`: another text is another
    /// plugin.
    pub version: Identity,
    /// Parts of the file that have no effect.
    pub warnings: Vec<String>,
    /// Compiles one configuration, which is without `_meta`, its secrets resolved.
    pub compile: Box<CompileCustom>,
    /// `None`: the plugin has no metadata.
    pub check_metadata: Option<Box<CheckMetadata>>,
}

/// The plugins of some files.
#[derive(Clone, Default)]
pub struct CustomPlugins(Option<Arc<Shelf>>);

struct Shelf {
    plugins: Vec<CustomPlugin>,
    files: Identity,
    attributes: Arc<Json>,
}

impl CustomPlugins {
    /// No plugins.
    pub const NONE: CustomPlugins = CustomPlugins(None);

    /// Makes the plugins of files. `attributes`: the content of `plugin_attr`, by plugin. `is_taken`: whether a name is
    /// that of a built-in plugin.
    ///
    /// # Errors
    ///
    /// The problems, each with its file.
    pub fn new(
        files: &[PluginFile],
        attributes: &Arc<Json>,
        scripts: Scripts,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<CustomPlugins, Vec<String>> {
        let mut plugins: Vec<CustomPlugin> = Vec::with_capacity(files.len());
        let mut errors = Vec::new();
        for made in (scripts.plugins)(files, attributes) {
            match made {
                Err(why) => errors.push(why),
                Ok(CustomPlugin { name, path, .. }) if is_taken(name) => {
                    let path = path.display();
                    errors.push(format!("{path}: the plugin {name:?} is built in; give yours another name"));
                }
                Ok(CustomPlugin { name, path, .. }) if plugins.iter().any(|other| other.name == name) => {
                    errors.push(format!("{}: another file has a plugin {name:?}, too", path.display()));
                }
                Ok(plugin) => plugins.push(plugin),
            }
        }
        let shelf = Shelf { plugins, files: identity(files), attributes: attributes.clone() };
        if errors.is_empty() { Ok(CustomPlugins(Some(Arc::new(shelf)))) } else { Err(errors) }
    }

    /// All plugins.
    pub fn iter(&self) -> impl Iterator<Item = &CustomPlugin> {
        self.0.iter().flat_map(|shelf| &shelf.plugins)
    }

    /// The plugin with this name.
    pub fn find(&self, name: &str) -> Option<&CustomPlugin> {
        self.iter().find(|plugin| plugin.name == name)
    }

    /// Digest of their files; `None`: there are none.
    pub fn files(&self) -> Option<Identity> {
        self.0.as_ref().map(|shelf| shelf.files)
    }

    /// A digest of a configuration's text combined with these files, if there are any.
    pub fn combined_digest(&self, digest: &str) -> String {
        self.0.as_ref().map_or_else(|| digest.to_owned(), |shelf| combine_digests(shelf.files, digest))
    }
}

/// A digest of a configuration's text combined with that of files.
pub fn combine_digests(files: Identity, digest: &str) -> String {
    let half = |part: &str| Identity::of(&[part.as_bytes(), digest.as_bytes(), &files.0.to_le_bytes()]).0;
    format!("{:032x}{:032x}", half("first"), half("second"))
}

/// Digest of the names and texts of files.
pub fn identity(files: &[PluginFile]) -> Identity {
    let parts: Vec<&[u8]> =
        files.iter().flat_map(|file| [file.path.as_os_str().as_encoded_bytes(), file.text.as_bytes()]).collect();
    Identity::of(&parts)
}

/// Interns a name for the life of the process. Names of plugins are labels of metrics and keys of chains, which need
/// `'static` names for built-in plugins; this leaks a few bytes for each name that an operator ever gave.
pub fn name_for_ever(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.iter().find(|known| **known == name) {
        Some(known) => known,
        None => {
            names.push(Box::leak(name.into()));
            names[names.len() - 1]
        }
    }
}

/// Compares the files, including `plugin_attr`.
impl PartialEq for CustomPlugins {
    fn eq(&self, other: &CustomPlugins) -> bool {
        let attributes = |of: &CustomPlugins| of.0.as_ref().map(|shelf| shelf.attributes.clone());
        self.files() == other.files() && attributes(self) == attributes(other)
    }
}

impl fmt::Debug for CustomPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|plugin| plugin.name)).finish()
    }
}

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
