//! Handing the metrics over to a process that follows, and taking over those of one that went before.
//!
//! The successor is given the segments themselves, as files without a name, and reads them beside its own while the process
//! that writes them goes on counting. When that has ended the successor folds them, as the processes that share a folder
//! do. What it has taken over it hands on in its turn: there may be several generations at a time.
//!
//! With a shared folder there is nothing to hand over: the successor finds everything there.

use super::{Inner, Registry, SegmentStorage, Writers, lock};
use crate::reader::Mount;
use crate::segment::{Process, Segment, SegmentError};
use crate::shared::directory::exists;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Registry {
    /// The memory of everything that this process exposes, for [`Registry::inherit`] of the process that carries it on;
    /// nothing where they share a folder. From here on the writers go on in the memory they have, no series ends, and of a
    /// gauge of which the last value counts it is the successor's that does, where it has set one.
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

    /// There is no successor after all: everything is as it was before [`Registry::hand_over`].
    pub fn keep(&self) {
        self.inner.is_handed_over.store(false, Ordering::Release);
    }

    /// Takes over what another process has handed over; to be called before anything is read. What cannot be read is told
    /// and left out, whatever it is.
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

    /// Processes that were last known to live, and do not. Asking the system takes its time, so nobody is kept from the lock
    /// meanwhile: who asks is of the lowest priority.
    pub(super) fn ended_meanwhile(&self) -> Vec<Process> {
        let mut processes: Vec<Process> = Vec::new();
        for mount in lock(&self.inner.writers).inherited.iter().filter(|mount| mount.is_alive) {
            if !processes.contains(&mount.segment.process) {
                processes.push(mount.segment.process);
            }
        }
        processes.retain(|process| !exists(*process));
        processes
    }
}

impl Inner {
    /// Whether another process carries the metrics on.
    #[inline]
    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Puts the totals of inherited segments in their place, in one step for all readers.
    pub(crate) fn replace_inherited(&self, gone: &[Arc<Segment>], by: Option<Arc<Segment>>) {
        let mut writers = lock(&self.writers);
        writers.inherited.retain(|mount| !gone.iter().any(|segment| Arc::ptr_eq(segment, &mount.segment)));
        // Totals, and nothing that is true of a process.
        writers.inherited.extend(by.map(|segment| Mount { segment, is_alive: false }));
        writers.version += 1;
    }
}

impl Writers {
    /// These processes have ended.
    pub(super) fn note_ended(&mut self, ended: &[Process]) {
        for mount in &mut self.inherited {
            if mount.is_alive && ended.contains(&mount.segment.process) {
                mount.is_alive = false;
                self.version += 1;
            }
        }
    }
}
