//! Hands the metrics over to the successor process, and takes over those of predecessors.
//!
//! The successor receives the segments themselves, as unnamed files, and reads them beside its own while the process
//! that writes them keeps counting. When that process has ended, the successor folds its segments, as processes that
//! share a folder do. It hands everything that it took over on to its own successor: several generations may run at a
//! time.
//!
//! With a shared folder nothing is handed over: the successor finds everything there.

use super::{Registry, RegistryCore, SegmentStorage, Writers, lock};
use crate::reader::Mount;
use crate::segment::{Segment, SegmentError, SegmentProcess};
use crate::shared::directory::exists;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Registry {
    /// The memory of everything that this process exposes, for [`Registry::inherit`] of its successor; empty if they
    /// share a folder. From here on the writers keep the memory that they have, series do not end, and for a gauge
    /// merged by its last value, the successor's value counts once it has set one.
    pub fn hand_over(&self) -> io::Result<Vec<OwnedFd>> {
        // Under the lock, so that a segment is either handed over or not made.
        let writers = lock(&self.inner.writers);
        let own = writers.memories.iter().map(|memory| &memory.segment);
        let segments = own.chain(writers.inherited.iter().map(|mount| &mount.segment));
        let files = match self.inner.place {
            SegmentStorage::Shared(_) => Vec::new(),
            _ => segments.filter_map(|segment| segment.file()).collect::<io::Result<_>>()?,
        };
        self.inner.is_handed_over.store(true, Ordering::Release);
        Ok(files)
    }

    /// Cancels [`Registry::hand_over`] when the successor has failed.
    pub fn keep(&self) {
        self.inner.is_handed_over.store(false, Ordering::Release);
    }

    /// Takes over the segments that another process has handed over; must be called before anything is read. Files that
    /// cannot be read are skipped, and their errors returned.
    pub fn inherit(&self, files: Vec<OwnedFd>) -> Vec<SegmentError> {
        let mut writers = lock(&self.inner.writers);
        let mut refused = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            let called = PathBuf::from(format!("inherited segment {number}"));
            let segment = match Segment::inherit(file, &called) {
                Ok(segment) => segment,
                Err(error) => {
                    refused.push(error);
                    continue;
                }
            };
            let is_known = writers.inherited.iter().any(|mount| mount.segment.entry() == segment.entry());
            match is_known || segment.process == self.process() {
                true => refused.push(SegmentError::Twice(called)),
                false => writers.inherited.push(Mount { segment: Arc::new(segment), is_alive: true }),
            }
        }
        writers.version += 1;
        refused
    }

    /// Processes that were alive at the last check, and are not any more. Asking the system takes time, so the lock is
    /// not held meanwhile: the caller has the lowest priority.
    pub(super) fn ended_meanwhile(&self) -> Vec<SegmentProcess> {
        let mut processes: Vec<SegmentProcess> = Vec::new();
        for mount in lock(&self.inner.writers).inherited.iter().filter(|mount| mount.is_alive) {
            if !processes.contains(&mount.segment.process) {
                processes.push(mount.segment.process);
            }
        }
        processes.retain(|process| !exists(*process));
        processes
    }
}

impl RegistryCore {
    /// Whether another process carries on the metrics.
    #[inline]
    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Replaces inherited segments by their totals, in one step for all readers.
    pub(crate) fn replace_inherited(&self, gone: &[Arc<Segment>], by: Option<Arc<Segment>>) {
        let mut writers = lock(&self.writers);
        writers.inherited.retain(|mount| !gone.iter().any(|segment| Arc::ptr_eq(segment, &mount.segment)));
        // Totals, without values that are true only of a live process.
        writers.inherited.extend(by.map(|segment| Mount { segment, is_alive: false }));
        writers.version += 1;
    }
}

impl Writers {
    /// Marks these processes as ended.
    pub(super) fn note_ended(&mut self, ended: &[SegmentProcess]) {
        for mount in &mut self.inherited {
            if mount.is_alive && ended.contains(&mount.segment.process) {
                mount.is_alive = false;
                self.version += 1;
            }
        }
    }
}
