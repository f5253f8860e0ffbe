//! The files of the repository that its rules apply to.
//!
//! It walks the folders itself: a copy without `.git` must pass the same checks.

use crate::Result;
use crate::step::root;
use std::fs;
use std::path::{Path, PathBuf};

/// Generated folders that are never committed, from the root.
const IGNORED: &[&str] = &["target", ".git", "fuzz/target", "fuzz/artifacts"];

/// One file: its path from the root, with `/`, and its content.
pub(crate) struct RepositoryFile {
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

impl RepositoryFile {
    /// The content, if it is text.
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// All files, in the order of their paths.
pub(crate) fn files() -> Result<Vec<RepositoryFile>> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if IGNORED.iter().any(|ignored| path == Path::new(ignored)) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                found.push(RepositoryFile {
                    bytes: fs::read(root.join(&path))?,
                    path: path.to_string_lossy().into_owned(),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}
