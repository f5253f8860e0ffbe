//! The source of segments: the registry of this process, a shared folder, or both.

use super::directory::{Directory, DirectoryError, SegmentName};
use crate::reader::{Mount, Mounts};
use crate::registry::{Registry, SegmentStorage};
use crate::segment::{Segment, SegmentError};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A list may change while its segments are opened; after so many tries something else is wrong.
const LIST_TRIES: usize = 16;

/// The segments that a collector reads.
pub(super) enum SegmentSource {
    /// The segments of this process, and those that it has inherited.
    Own(Arc<Registry>),
    /// All segments of a folder; those of this process, if it writes there too, are not mapped twice.
    Folder(Folder),
}

pub(super) struct Folder {
    path: PathBuf,
    pub(super) registry: Option<Arc<Registry>>,
    /// Opened when it exists, with the identity of its file.
    directory: Option<(Directory, (u64, u64))>,
    generation: Option<u64>,
    open: HashMap<SegmentName, Arc<Segment>>,
    mounts: Mounts,
}

impl SegmentSource {
    pub(super) fn of(registry: Arc<Registry>) -> SegmentSource {
        match &registry.inner.place {
            SegmentStorage::Shared(directory) => {
                let path = directory.folder().to_owned();
                SegmentSource::Folder(Folder::new(path, Some(registry)))
            }
            _ => SegmentSource::Own(registry),
        }
    }

    pub(super) fn registry(&self) -> Option<&Arc<Registry>> {
        match self {
            SegmentSource::Own(registry) => Some(registry),
            SegmentSource::Folder(folder) => folder.registry.as_ref(),
        }
    }

    /// All segments; errors of unreadable ones are appended to `damaged`, each time the list changes.
    pub(super) fn mounts(&mut self, now_ms: u64, damaged: &mut Vec<SegmentError>) -> Result<Mounts, DirectoryError> {
        match self {
            SegmentSource::Own(registry) => Ok(registry.mounts()),
            SegmentSource::Folder(folder) => folder.mounts(now_ms, damaged),
        }
    }
}

impl Folder {
    pub(super) fn new(path: PathBuf, registry: Option<Arc<Registry>>) -> Folder {
        let (open, mounts) = (HashMap::new(), Mounts { version: 0, segments: Vec::new() });
        Folder { path, registry, directory: None, generation: None, open, mounts }
    }

    /// The folder's list, once it exists. It is opened again if the file was replaced.
    fn directory(&mut self) -> Result<&Directory, DirectoryError> {
        let is = identity(&self.path.join("directory"))?;
        let is_same = self.directory.as_ref().is_some_and(|(_, was)| *was == is);
        if !is_same {
            self.generation = None;
            self.directory = None;
            self.directory = Some((Directory::open(&self.path)?, is));
        }
        Ok(&self.directory.as_ref().expect("opened just now").0)
    }

    fn mounts(&mut self, now_ms: u64, damaged: &mut Vec<SegmentError>) -> Result<Mounts, DirectoryError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (generation, entries) = self.directory()?.entries();
            let is_new = self.generation != Some(generation);
            if is_new && !self.open_all(&entries, damaged, tries == LIST_TRIES) {
                continue;
            }
            let own = self.registry.as_ref().map(|registry| registry.process());
            let directory = self.directory()?;
            let is_alive =
                |entry: &SegmentName| own == Some(entry.process) || directory.is_alive(entry.process, now_ms);
            let alive: Vec<bool> = entries.iter().map(|entry| !entry.is_base() && is_alive(entry)).collect();
            let listed = entries.iter().zip(alive);
            let segments = listed.filter_map(|(entry, is_alive)| {
                self.open.get(entry).map(|segment| Mount { segment: segment.clone(), is_alive })
            });
            let segments: Vec<Mount> = segments.collect();
            let same =
                |(old, new): (&Mount, &Mount)| Arc::ptr_eq(&old.segment, &new.segment) && old.is_alive == new.is_alive;
            let is_same =
                segments.len() == self.mounts.segments.len() && self.mounts.segments.iter().zip(&segments).all(same);
            if !is_same {
                self.mounts = Mounts { version: self.mounts.version + 1, segments };
            }
            self.generation = Some(generation);
            return Ok(self.mounts.clone());
        }
    }

    /// Opens new segments and closes removed ones. False: a file is gone, so the list must have changed meanwhile.
    fn open_all(&mut self, entries: &[SegmentName], damaged: &mut Vec<SegmentError>, is_last_try: bool) -> bool {
        self.open.retain(|entry, _| entries.contains(entry));
        for entry in entries {
            if self.open.contains_key(entry) {
                continue;
            }
            let own = self.registry.as_ref().filter(|registry| registry.process() == entry.process);
            let segment = match own.and_then(|registry| registry.segment(entry.serial)) {
                Some(segment) => segment,
                None => match Segment::open(&entry.path(&self.path)) {
                    Ok(segment) => Arc::new(segment),
                    Err(SegmentError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound && !is_last_try => {
                        return false;
                    }
                    Err(error) => {
                        damaged.push(error);
                        continue;
                    }
                },
            };
            self.open.insert(*entry, segment);
        }
        true
    }
}

/// Identity of the file.
fn identity(path: &Path) -> Result<(u64, u64), DirectoryError> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino())),
        Err(error) => Err(DirectoryError::Io("open", path.to_owned(), error)),
    }
}
