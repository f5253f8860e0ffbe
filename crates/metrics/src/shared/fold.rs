//! Folding: the counts of processes that have ended become one base segment, so that they are never lost and never grow in
//! number.
//!
//! It is done by reading: a reader over the dead segments and the old base gives each series' merged value, which a writer
//! puts into the next base. One change of the folder's list then replaces the former by the latter. Gauges and infos are
//! left out: what they said was true of a process that is no more.

use super::directory::{Directory, DirectoryError, Entry};
use crate::declared::Declared;
use crate::labels::Pairs;
use crate::reader::{Mount, Mounts, Reader, ReaderOptions};
use crate::registry::{Options, Place, Registry, RegistryError};
use crate::segment::{Segment, SegmentError};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Room of a base beyond what was read: declarations and reserves.
const SLACK_BYTES: usize = 4 << 20;

/// What was folded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Folded {
    /// Segments that were replaced.
    pub(crate) segments: usize,
    /// Series in the new base.
    pub(crate) series: usize,
}

/// Why the dead were not folded. Nothing has changed then: they go on to be counted as they are.
#[derive(Debug)]
pub(crate) enum FoldError {
    Directory(DirectoryError),
    Segment(SegmentError),
    Base(RegistryError),
    Remove(io::Error),
}

impl fmt::Display for FoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FoldError::Directory(error) => error.fmt(f),
            FoldError::Segment(error) => error.fmt(f),
            FoldError::Base(error) => write!(f, "cannot write the totals of ended processes: {error}"),
            FoldError::Remove(error) => write!(f, "cannot remove the segment of an ended process: {error}"),
        }
    }
}

/// Folds the segments of all processes that have ended, if there are any. `options` are those of the folding process.
pub(crate) fn fold(directory: &Directory, options: &Options, now_ms: u64) -> Result<Folded, FoldError> {
    let own = options.process;
    let is_dead =
        |entry: &Entry| !entry.is_base() && entry.process != own && !directory.is_alive(entry.process, now_ms);
    if !directory.entries().1.iter().any(is_dead) {
        return Ok(Folded::default());
    }
    let lock = directory.lock().map_err(FoldError::Directory)?;
    let (generation, entries) = directory.entries();
    let (replaced, mut kept): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.is_base() || is_dead(entry));
    if !replaced.iter().any(is_dead) {
        return Ok(Folded::default());
    }
    let segments = replaced.iter().map(|entry| Segment::open(&entry.path(directory.folder())));
    let segments = segments.collect::<Result<Vec<Segment>, SegmentError>>().map_err(FoldError::Segment)?;
    let bytes = segments.iter().map(|segment| segment.committed() * 8).sum::<usize>();
    let mount = |segment| Mount { segment: Arc::new(segment), is_alive: false };
    let mounts = Mounts { version: 1, segments: segments.into_iter().map(mount).collect() };
    let mut reader = Reader::new(ReaderOptions::default());
    reader.refresh(&mounts, now_ms);

    // No generation comes twice, so neither does the name; a file of this name is of somebody who was killed right here.
    let base = Entry::base(generation + 1);
    let path = base.path(directory.folder());
    remove(&path).map_err(FoldError::Remove)?;
    // The time is that of now: a series may have begun later than this process did.
    let options = Options { memory_bytes: 3 * bytes + SLACK_BYTES, shared: None, now_ms, ..options.clone() };
    let series = write_base(&mut reader, Options { process: base.process, ..options }, &path, base.serial)
        .map_err(FoldError::Base)?;
    kept.push(base);
    directory.replace(&lock, &kept).map_err(FoldError::Directory)?;
    for entry in &replaced {
        remove(&entry.path(directory.folder())).map_err(FoldError::Remove)?;
    }
    sweep(directory, &kept, now_ms).map_err(FoldError::Remove)?;
    Ok(Folded { segments: replaced.len(), series })
}

/// Removes segments that nobody lists: their processes were killed while they made them, or removed them. The caller holds
/// the lock.
fn sweep(directory: &Directory, listed: &[Entry], now_ms: u64) -> io::Result<()> {
    for file in std::fs::read_dir(directory.folder())? {
        let Some(entry) = Entry::of_file(&file?.file_name().to_string_lossy()) else { continue };
        // One that lives may be just making it; bases are made under the lock.
        let is_wanted = listed.contains(&entry) || (!entry.is_base() && directory.is_alive(entry.process, now_ms));
        if !is_wanted {
            remove(&entry.path(directory.folder()))?;
        }
    }
    Ok(())
}

fn write_base(
    reader: &mut Reader,
    options: Options,
    path: &std::path::Path,
    serial: u64,
) -> Result<usize, RegistryError> {
    let registry = Registry::inline(options, Place::File(path.to_owned()), serial)?;
    let mut writer = registry.writer()?;
    let mut declared: HashMap<String, Option<Arc<Declared>>> = HashMap::new();
    let mut series = 0;
    reader.each(|family, labels, created_ms, value| {
        // Series of one family may differ in their labels' names: each such set is a declaration.
        let names: Vec<String> = Pairs::new(labels).map(|(name, _)| name.to_owned()).collect();
        let key = format!("{} {}", family.name, names.join(","));
        let known = declared.entry(key).or_insert_with(|| {
            let family = crate::family::Family { labels: names, ..family.clone() };
            registry.declare(family).ok()
        });
        let Some(known) = known else { return };
        let values: Vec<_> = Pairs::new(labels).map(|(_, value)| value).collect();
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
        writer.restore(known, &values, created_ms, value);
        series += 1;
    });
    Ok(series)
}

fn remove(path: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
