//! Resolves `require` between files, and makes modules of them.
//!
//! The required names must be literals in a file's text, so that the files of a plugin are known before anything runs:
//! a change of one of them is another version of the plugin. A name can refer only to files that were read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use stillgate_lua::Module;
use stillgate_plugin_api::Identity;
use stillgate_plugin_api::custom::PluginFile;
use stillgate_schema::Json;

/// The prefix under which APISIX's own plugins are required, and those of operators with `extra_lua_path`.
const OF_APISIX: &str = "apisix.plugins.";

/// All files of a configuration.
pub(super) struct Files<'f> {
    files: &'f [PluginFile],
    by_path: HashMap<&'f Path, &'f PluginFile>,
    /// In the order of their files.
    folders: Vec<&'f Path>,
    attributes: &'f Arc<Json>,
    of_attributes: String,
    made: HashMap<&'f Path, ModuleLoad<'f>>,
}

enum ModuleLoad<'f> {
    /// The modules that it requires are being made.
    Begun,
    Done(Sources<'f>),
}

/// A file, and all that it requires, directly or not.
#[derive(Clone)]
pub(super) struct Sources<'f> {
    pub(super) module: Arc<Module>,
    pub(super) version: Identity,
    /// Each file once.
    pub(super) files: Vec<&'f PluginFile>,
}

impl<'f> Files<'f> {
    pub(super) fn new(files: &'f [PluginFile], attributes: &'f Arc<Json>) -> Files<'f> {
        let by_path = files.iter().map(|file| (&*file.path, file)).collect();
        let mut folders: Vec<&Path> = files.iter().map(|file| &*file.folder).collect();
        folders.dedup();
        Files { files, by_path, folders, attributes, of_attributes: attributes.to_string(), made: HashMap::new() }
    }

    /// The module of a file, and those of the files that it requires.
    pub(super) fn sources(&mut self, file: &'f PluginFile) -> Result<Sources<'f>, String> {
        match self.made.get(&*file.path) {
            Some(ModuleLoad::Done(sources)) => return Ok(sources.clone()),
            Some(ModuleLoad::Begun) => {
                return Err(format!("{}: it is required by a module that it requires", file.path.display()));
            }
            None => self.made.insert(&file.path, ModuleLoad::Begun),
        };
        let (mut requires, mut files) = (Vec::new(), Vec::new());
        let mut parts = vec![file.path.as_os_str().as_encoded_bytes().to_vec(), file.text.clone().into_bytes()];
        parts.push(self.of_attributes.clone().into_bytes());
        for name in required_names(&file.text) {
            let Some(other) = self.find(name, file) else { continue };
            let sources = self.sources(other)?;
            parts.push(sources.version.0.to_le_bytes().to_vec());
            files.extend(sources.files);
            requires.push((name.to_owned(), sources.module));
        }
        files.push(file);
        files.sort_unstable_by_key(|file| &file.path);
        files.dedup_by_key(|file| &file.path);
        let version = Identity::of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let module = reuse_or_make(version, || {
            Module::with(file.name.clone(), file.text.clone(), requires, self.attributes.clone())
        });
        let sources = Sources { module, version, files };
        self.made.insert(&file.path, ModuleLoad::Done(sources.clone()));
        Ok(sources)
    }

    /// Whether another file requires this one.
    pub(super) fn is_required(&self, file: &PluginFile) -> bool {
        self.files.iter().any(|by| {
            by.path != file.path
                && required_names(&by.text).any(|name| self.find(name, by).is_some_and(|found| found.path == file.path))
        })
    }

    /// The file that `require` finds for a name: in the folder of the requiring file, or in another configured one.
    fn find(&self, name: &str, by: &PluginFile) -> Option<&'f PluginFile> {
        let inner = name.strip_prefix(OF_APISIX);
        [Some(name), inner].into_iter().flatten().find_map(|name| {
            let path = relative(name)?;
            let folders = std::iter::once(&*by.folder).chain(self.folders.iter().copied());
            folders.into_iter().find_map(|folder| {
                let [of_name, of_folder] = [path.with_extension("lua"), path.join("init.lua")];
                let known = |end: PathBuf| self.by_path.get(&*folder.join(end)).copied();
                known(of_name).or_else(|| known(of_folder))
            })
        })
    }
}

/// The module of a file, with those of these files that it requires: for `stillgate lua check`.
pub fn module_of(file: &PluginFile, files: &[PluginFile]) -> Result<Arc<Module>, String> {
    let attributes = Arc::new(Json::Object(serde_json::Map::new()));
    let own = files.iter().find(|other| other.path == file.path).unwrap_or(file);
    Files::new(files, &attributes).sources(own).map(|sources| sources.module)
}

/// Possible paths of the files that a text requires, from the folder of its file.
pub fn required_paths(text: &str) -> Vec<PathBuf> {
    let paths = required_names(text).flat_map(|name| [Some(name), name.strip_prefix(OF_APISIX)]);
    let paths = paths.flatten().filter_map(relative);
    paths.flat_map(|path| [path.with_extension("lua"), path.join("init.lua")]).collect()
}

/// `a.b` as a path, without an extension. `None`: it is not a module name.
fn relative(name: &str) -> Option<PathBuf> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.split('.').all(is_part).then(|| name.split('.').collect())
}

/// The names that a text requires: `require("NAME")`, `require "NAME"`, `pcall(require, "NAME")`.
fn required_names(text: &str) -> impl Iterator<Item = &str> {
    const REQUIRE: &str = "require";
    text.match_indices(REQUIRE).filter_map(|(at, _)| {
        let behind = text[at + REQUIRE.len()..].trim_start_matches([' ', '\t', '\r', '\n', '(', ',']);
        let quote = behind.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        behind[1..].split_once(quote).map(|(name, _)| name)
    })
}

/// The version of a file that workers may have loaded already: its state is kept if the file is unchanged.
fn reuse_or_make(version: Identity, make: impl FnOnce() -> Arc<Module>) -> Arc<Module> {
    static KNOWN: Mutex<Option<HashMap<u128, Weak<Module>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    known.retain(|_, module| module.strong_count() > 0);
    if let Some(module) = known.get(&version.0).and_then(Weak::upgrade) {
        return module;
    }
    let module = make();
    known.insert(version.0, Arc::downgrade(&module));
    module
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(folder: &str, path: &str, text: &str) -> PluginFile {
        let path = Path::new(folder).join(path);
        PluginFile { name: path.display().to_string(), path, text: text.to_owned(), folder: folder.into() }
    }

    #[test]
    fn names_are_found_in_texts() {
        let text = "local a = require('a') local b=require \"b.c\" pcall(require, 'd') require(\n \"e\") require(name) require";
        assert_eq!(required_names(text).collect::<Vec<_>>(), ["a", "b.c", "d", "e"]);
        for name in ["", ".", "..", "../a", "a..b", "/etc/passwd", "a/b", "a.", ".a", "a\0", "ä"] {
            assert_eq!(relative(name), None, "{name}");
        }
    }

    #[test]
    fn a_name_leads_to_files_that_were_read() {
        let own = file("/p", "own.lua", "");
        let files = [
            file("/o", "util.lua", ""),
            file("/o", "other.lua", ""),
            own.clone(),
            file("/p", "util.lua", ""),
            file("/p", "lib/text.lua", ""),
            file("/p", "own/init.lua", ""),
        ];
        let attributes = Arc::new(json!({}));
        let files = Files::new(&files, &attributes);
        let found = |name: &str| files.find(name, &own).map(|file| file.path.display().to_string());
        for (name, expected) in [
            ("util", Some("/p/util.lua")),
            ("lib.text", Some("/p/lib/text.lua")),
            ("own", Some("/p/own.lua")),
            ("apisix.plugins.util", Some("/p/util.lua")),
            ("other", Some("/o/other.lua")),
            ("text", None),
            ("lib", None),
            ("lib/text", None),
            ("..o.util", None),
            ("apisix.core", None),
        ] {
            assert_eq!(found(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_version_changes_with_what_is_required() {
        let attributes = Arc::new(json!({}));
        let version = |util: &str, unused: &str, attributes: &Arc<Json>| {
            let files = [
                file("/p", "own.lua", "require('lib.a') require('util')"),
                file("/p", "lib/a.lua", "require('util')"),
                file("/p", "util.lua", util),
                file("/p", "unused.lua", unused),
            ];
            let mut known = Files::new(&files, attributes);
            let sources = known.sources(&files[0]).unwrap();
            assert_eq!(sources.files.len(), 3);
            sources.version
        };
        let first = version("return 1", "", &attributes);
        assert_eq!(version("return 1", "-- changed", &attributes), first);
        assert_ne!(version("return 2", "", &attributes), first);
        assert_ne!(version("return 1", "", &Arc::new(json!({"own": {}}))), first);
    }

    #[test]
    fn modules_that_require_each_other_are_refused() {
        let attributes = Arc::new(json!({}));
        let files = [file("/p", "a.lua", "require('b')"), file("/p", "b.lua", "require('a')")];
        let why = Files::new(&files, &attributes).sources(&files[0]).err().unwrap();
        assert_eq!(why, "/p/a.lua: it is required by a module that it requires");
    }
}
