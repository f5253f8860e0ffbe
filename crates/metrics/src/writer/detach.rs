//! Forgetting series: at the request of whoever looks after the life of series, between two epochs.
//!
//! A writer never takes a series' memory back: it only stops to find it. What is observed with the same labels from then
//! on gets a new record, a new life. Readers go on counting the old one until a tombstone says that it has ended.

use super::{Pages, Writer};
use crate::labels::Pairs;
use crate::segment::layout::{Head, RecordKind};
use crate::sync::Ordering::Relaxed;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Series of one request; more take the writer too long at a time.
pub(crate) const DETACH_MAX: usize = 512;

/// Where a writer finds what it is to forget: one request at a time.
#[derive(Debug, Default)]
pub(crate) struct DetachBox {
    /// Places of records, in words of the log.
    request: ArcSwapOption<Vec<u32>>,
    posted: AtomicU64,
    done: AtomicU64,
}

impl DetachBox {
    /// Leaves a request; false where the last one has not been taken yet.
    pub(crate) fn post(&self, places: Vec<u32>) -> bool {
        debug_assert!(places.len() <= DETACH_MAX);
        if self.is_pending() {
            return false;
        }
        self.request.store(Some(Arc::new(places)));
        self.posted.fetch_add(1, Ordering::Release);
        true
    }

    /// Whether the writer has not yet done what was asked last.
    pub(crate) fn is_pending(&self) -> bool {
        self.done.load(Ordering::Acquire) != self.posted.load(Ordering::Relaxed)
    }
}

impl Writer {
    /// Does what was asked since the last tick.
    #[inline]
    pub(super) fn take_requests(&mut self) {
        let inbox = &self.memory.detach;
        if inbox.posted.load(Ordering::Acquire) != inbox.done.load(Ordering::Relaxed) {
            self.detach();
        }
    }

    #[cold]
    fn detach(&mut self) {
        let memory = self.memory.clone();
        if let Some(places) = memory.detach.request.swap(None) {
            places.iter().for_each(|place| self.forget(*place));
            // Handles may be of series that are forgotten now.
            self.generation = (self.generation + 1) & (u32::MAX >> (super::FORM_BITS + 1));
        }
        memory.detach.done.store(memory.detach.posted.load(Ordering::Relaxed), Ordering::Release);
    }

    fn forget(&mut self, place: u32) {
        let at = place as usize;
        let Some(head) = self.segment.log().get(at).and_then(|word| Head::unpack(word.load(Relaxed))) else { return };
        let Some(local) = self.local_of(head.pack()).filter(|_| head.kind == RecordKind::Series) else { return };
        let Some((_, text)) = self.segment.series(at, head) else { return };
        let values: Vec<_> = Pairs::new(text).map(|(_, value)| value.into_owned().into_bytes()).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let hash = self.inner.hash(local.declared.id, &values);
        let memory = self.memory.clone();
        let pages = Pages { words: memory.index_words(), ready: memory.pages.ready() };
        // An overflow series is not in the index; it stays.
        self.index.remove(pages, hash as u32, place);
    }
}
