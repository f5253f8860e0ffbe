//! Folding: the counts of ended processes become one base segment, so that they are never lost and their number never
//! grows.
//!
//! A reader over all segments finds the records of the dead and of the old base that still count, and these are added
//! up in the next base. One change of the list (the folder's, or that of inherited segments) then replaces the former
//! by the latter. Gauges and infos are left out: they were true of a process that has ended.

use super::directory::{Directory, DirectoryError, SegmentName};
use super::rotation::Base;
use crate::reader::{Mount, Mounts, Reader, ReaderOptions};
use crate::registry::{Registry, RegistryError, RegistryOptions, SegmentStorage};
use crate::segment::{Segment, SegmentError};
use crate::writer::memory::WriterMemory;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The result of folding.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldSummary {
    /// Segments that were replaced.
    pub(crate) segments: usize,
    /// Records that were added to the new base.
    pub(crate) series: usize,
    /// Segments that could not be read, or not in full.
    pub(crate) damaged: usize,
}

/// The reason why the dead were not folded. Nothing has changed then: they are still counted as they are.
#[derive(Debug)]
pub(crate) enum FoldError {
    Directory(DirectoryError),
    Base(RegistryError),
    Remove(io::Error),
}

impl fmt::Display for FoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FoldError::Directory(error) => error.fmt(f),
            FoldError::Base(error) => write!(f, "cannot write the totals of ended processes: {error}"),
            FoldError::Remove(error) => write!(f, "cannot remove the segment of an ended process: {error}"),
        }
    }
}

/// Folds the segments of all ended processes, if there are any. `options` are those of the folding process.
pub(crate) fn fold(directory: &Directory, options: &RegistryOptions, now_ms: u64) -> Result<FoldSummary, FoldError> {
    let own = options.process;
    let is_dead =
        |entry: &SegmentName| !entry.is_base() && entry.process != own && !directory.is_alive(entry.process, now_ms);
    if !directory.entries().1.iter().any(is_dead) {
        return Ok(FoldSummary::default());
    }
    let lock = directory.lock().map_err(FoldError::Directory)?;
    let (generation, entries) = directory.entries();
    let (replaced, mut kept): (Vec<SegmentName>, Vec<SegmentName>) =
        entries.into_iter().partition(|entry| entry.is_base() || is_dead(entry));
    if !replaced.iter().any(is_dead) {
        return Ok(FoldSummary::default());
    }
    // All are read, as tombstones of dead processes' series are in segments of the living; only the dead's records are
    // added.
    let mut segments = Vec::new();
    let mut damaged = Vec::new();
    for entry in replaced.iter().chain(&kept) {
        match Segment::open(&entry.path(directory.folder())) {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(SegmentError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => damaged.push(*entry),
        }
    }
    let mount = |segment: Arc<Segment>| Mount { is_alive: !replaced.contains(&segment.entry()), segment };
    let mounts = Mounts { version: 1, segments: segments.into_iter().map(mount).collect() };

    // A generation never occurs twice, so neither does the name; an existing file of this name is of a process that was
    // killed right here.
    let base = SegmentName::base(generation + 1);
    let path = base.path(directory.folder());
    remove(&path).map_err(FoldError::Remove)?;
    let totals = add_up(&mounts, base, SegmentStorage::File(path.clone()), options, now_ms).map_err(|error| {
        // The unfinished file is useless, and takes scarce room; if removing fails, it is swept later.
        let _ = remove(&path);
        FoldError::Base(error)
    })?;
    damaged.extend(totals.damaged);
    damaged.retain(|entry| replaced.contains(entry));
    kept.push(base);
    directory.replace(&lock, &kept).map_err(FoldError::Directory)?;
    for entry in &replaced {
        let path = entry.path(directory.folder());
        // Segments that could not be read in full are left for inspection.
        let done = match damaged.contains(entry) {
            true => std::fs::rename(&path, path.with_extension("damaged")),
            false => remove(&path),
        };
        done.map_err(FoldError::Remove)?;
    }
    sweep(directory, &kept, now_ms).map_err(FoldError::Remove)?;
    Ok(FoldSummary { segments: replaced.len(), series: totals.series, damaged: damaged.len() })
}

/// Folds inherited segments of ended processes, if there are any.
pub(crate) fn fold_inherited(registry: &Registry, now_ms: u64) -> Result<FoldSummary, FoldError> {
    let mounts = registry.mounts();
    let ended = || mounts.segments.iter().filter(|mount| !mount.is_alive);
    // The result of earlier folding is in a segment of this process.
    if ended().all(|mount| mount.segment.process == registry.process()) {
        return Ok(FoldSummary::default());
    }
    let base = SegmentName { process: registry.process(), serial: registry.inner.reserve_serial() };
    let options = &registry.inner.options;
    let totals = add_up(&mounts, base, SegmentStorage::Unnamed, options, now_ms).map_err(FoldError::Base)?;
    let replaced: Vec<Arc<Segment>> = ended().map(|mount| mount.segment.clone()).collect();
    registry.inner.replace_inherited(&replaced, totals.memory.map(|memory| memory.segment.clone()));
    // The reader reports damage, as it has met it too; no file is left to inspect.
    Ok(FoldSummary { segments: replaced.len(), series: totals.series, damaged: 0 })
}

/// Removes segments that are not in the list: their processes were killed while they made or removed them. The caller
/// holds the lock.
fn sweep(directory: &Directory, listed: &[SegmentName], now_ms: u64) -> io::Result<()> {
    for file in std::fs::read_dir(directory.folder())? {
        let Some(entry) = SegmentName::of_file(&file?.file_name().to_string_lossy()) else { continue };
        // A live process may be just making it; bases are made under the lock.
        let is_wanted = listed.contains(&entry) || (!entry.is_base() && directory.is_alive(entry.process, now_ms));
        if !is_wanted {
            remove(&entry.path(directory.folder()))?;
        }
    }
    Ok(())
}

/// The sum of several segments.
struct Totals {
    /// `None`: nothing counted any more.
    memory: Option<Arc<WriterMemory>>,
    series: usize,
    /// Damaged segments among all that were read.
    damaged: Vec<SegmentName>,
}

/// Adds up what counts in the segments of ended processes into a base; those of the living are read along.
fn add_up(
    mounts: &Mounts,
    base: SegmentName,
    place: SegmentStorage,
    options: &RegistryOptions,
    now_ms: u64,
) -> Result<Totals, RegistryError> {
    let mut reader = Reader::new(ReaderOptions::default());
    let refreshed = reader.refresh(mounts, now_ms);
    let ended = || mounts.segments.iter().filter(|mount| !mount.is_alive).map(|mount| &mount.segment);
    let bytes = ended().map(|segment| segment.committed() * 8).sum();
    let options = RegistryOptions { process: base.process, ..options.clone() };
    let mut totals = Base::new(&options, place, base.serial, bytes, now_ms)?;
    for from in ended() {
        reader.records(from.process, from.serial, |record| totals.add(&record, &reader));
    }
    let (memory, series) = totals.finish()?;
    let damaged = refreshed.damaged.iter().map(|at| SegmentName { process: at.process, serial: at.serial });
    Ok(Totals { memory, series, damaged: damaged.collect() })
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
