//! Plugins in Lua that `gateway.lua.path` names: files, and the contents of folders. Subfolders have modules that they require.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use stillgate_files::read_bounded;
use stillgate_plugin_api::PluginFile;

/// The longest file of a plugin.
const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Most files.
const FILES_MAX: usize = 256;
/// Maximum depth of nested folders.
const DEPTH_MAX: usize = 8;
/// Maximum number of subfolders.
const FOLDERS_MAX: usize = 256;

/// Files, each with the folder where it was found.
type Files = BTreeMap<PathBuf, PathBuf>;

/// Reads the files, and those of the folders whose names end in `.lua`; each once, in the order of their paths.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<PluginFile>, String> {
    let files = files(paths)?;
    if files.len() > FILES_MAX {
        return Err(format!("there are {} files; at most {FILES_MAX} are read", files.len()));
    }
    files.iter().map(|(file, folder)| read_one(file.clone(), folder.clone(), name_among(file, &files))).collect()
}

/// The file's name, with as many parent folders as it takes to distinguish it from all others.
fn name_among(file: &Path, files: &Files) -> String {
    let is_taken = |end: &Path| files.keys().any(|other| other != file && other.ends_with(end));
    let parts: Vec<&OsStr> = file.iter().collect();
    let ends = (0..parts.len()).rev().map(|from| parts[from..].iter().collect::<PathBuf>());
    let name = ends.into_iter().find(|end| !is_taken(end)).unwrap_or_else(|| file.to_owned());
    name.to_string_lossy().into_owned()
}

/// Paths to watch besides the configured ones: files that are links, since their targets may change, and subfolders.
pub(crate) fn others(paths: &[PathBuf]) -> Vec<PathBuf> {
    let links = files(paths).unwrap_or_default().into_keys().filter(|file| file.is_symlink());
    let below = paths
        .iter()
        .filter(|path| path.is_dir())
        .flat_map(|path| folders(path).unwrap_or_default().into_iter().skip(1));
    links.chain(below).collect()
}

fn files(paths: &[PathBuf]) -> Result<Files, String> {
    let mut files = Files::new();
    for path in paths {
        if !path.is_dir() {
            files.insert(path.clone(), path.parent().unwrap_or(path).to_owned());
            continue;
        }
        for folder in folders(path)? {
            let found = of_folder(&folder).map_err(|error| unreadable(&folder, &error))?;
            for file in found {
                // If two named paths lead to the same file, the one nearer to the file is used.
                match files.get(&file) {
                    Some(known) if known.starts_with(path) => {}
                    _ => _ = files.insert(file, path.clone()),
                }
            }
        }
    }
    Ok(files)
}

/// A folder and its subfolders. Links are not followed: everything found stays within the folder.
fn folders(top: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![top.to_owned()];
    let mut at = 0;
    while let Some(folder) = found.get(at).cloned() {
        at += 1;
        let depth = folder.components().count() - top.components().count();
        let below = entries(&folder).map_err(|error| unreadable(&folder, &error))?;
        let below = below.into_iter().filter(|path| path.is_dir() && !path.is_symlink());
        if depth < DEPTH_MAX {
            found.extend(below);
        }
        if found.len() > FOLDERS_MAX {
            return Err(format!("below {} are more than {FOLDERS_MAX} folders", top.display()));
        }
    }
    Ok(found)
}

fn of_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_lua = |file: &Path| file.extension().is_some_and(|extension| extension == "lua") && file.is_file();
    Ok(entries(folder)?.into_iter().filter(|file| is_lua(file)).collect())
}

/// The entries of a folder. Editors keep their own copies under names that begin with a dot.
fn entries(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let paths = folder.read_dir()?.map(|entry| entry.map(|entry| entry.path()));
    paths.filter(|path| !path.as_ref().is_ok_and(|path| is_hidden(path))).collect()
}

fn read_one(path: PathBuf, folder: PathBuf, name: String) -> Result<PluginFile, String> {
    let bytes = read_bounded(&path, FILE_BYTES_MAX).map_err(|error| unreadable(&path, &error))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("{} is longer than {FILE_BYTES_MAX} bytes", path.display()));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(PluginFile { path, name, text, folder }),
        Err(_) => Err(format!("{} is not UTF-8", path.display())),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}
