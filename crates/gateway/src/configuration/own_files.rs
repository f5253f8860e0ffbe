//! Plugins in Lua that `gateway.lua.path` names: files, and what is in folders.

use super::source::read_bounded;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use stillgate_plugin::OwnFile;

/// The longest file of a plugin.
const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Most files.
const FILES_MAX: usize = 256;

/// Reads the files, and those of the folders whose names end in `.lua`; each once, in the order of their paths.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<OwnFile>, String> {
    let files = files(paths)?;
    if files.len() > FILES_MAX {
        return Err(format!("there are {} files; at most {FILES_MAX} are read", files.len()));
    }
    files.iter().map(|file| read_one(file.clone(), name_among(file, &files))).collect()
}

/// The file's name, with as many folders before it as tell it from all others.
fn name_among(file: &Path, files: &BTreeSet<PathBuf>) -> String {
    let is_taken = |end: &Path| files.iter().any(|other| other != file && other.ends_with(end));
    let parts: Vec<&OsStr> = file.iter().collect();
    let ends = (0..parts.len()).rev().map(|from| parts[from..].iter().collect::<PathBuf>());
    let name = ends.into_iter().find(|end| !is_taken(end)).unwrap_or_else(|| file.to_owned());
    name.to_string_lossy().into_owned()
}

/// The files that are links: what they lead to may change.
pub(crate) fn links(paths: &[PathBuf]) -> Vec<PathBuf> {
    files(paths).unwrap_or_default().into_iter().filter(|file| file.is_symlink()).collect()
}

fn files(paths: &[PathBuf]) -> Result<BTreeSet<PathBuf>, String> {
    let mut files = BTreeSet::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(of_folder(path).map_err(|error| unreadable(path, &error))?),
            false => _ = files.insert(path.clone()),
        }
    }
    Ok(files)
}

fn of_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let file = entry?.path();
        // Editors keep their own copies under names that begin with a dot.
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && file.extension().is_some_and(|extension| extension == "lua") && file.is_file() {
            files.push(file);
        }
    }
    Ok(files)
}

fn read_one(path: PathBuf, name: String) -> Result<OwnFile, String> {
    let bytes = read_bounded(&path, FILE_BYTES_MAX).map_err(|error| unreadable(&path, &error))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("{} is longer than {FILE_BYTES_MAX} bytes", path.display()));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(OwnFile { path, name, text }),
        Err(_) => Err(format!("{} is not UTF-8", path.display())),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}
