//! Requests to a writer, which it executes between two epochs: to forget series, or to move to another segment.
//!
//! A writer never frees a series' memory: it only stops finding it. Later observations with the same labels get a new
//! record, a new life. Readers keep counting the old one until a tombstone ends it. Memory of ended series is freed by
//! leaving the whole segment, when most of its series have ended.

use super::{Pages, RecordIndex, Writer};
use crate::labels::LabelPairs;
use crate::protocol;
use crate::segment::layout::{CLOSED, RecordHead, RecordKind};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;
use crate::writer::memory::WriterMemory;
use arc_swap::ArcSwapOption;
use std::sync::Arc;

/// Most series of one request; more would take the writer too long at a time.
pub(crate) const FORGET_MAX: usize = 512;

/// A request to a writer.
#[derive(Debug)]
pub(crate) enum WriterRequest {
    /// Forget these series, given by the positions of their records in words of the log.
    Forget(Vec<u32>),
    /// Move to this new memory.
    Move(Arc<WriterMemory>),
}

/// A writer's inbox, which holds one request at a time.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    request: ArcSwapOption<WriterRequest>,
    posted: AtomicU64,
    done: AtomicU64,
}

impl Inbox {
    /// Posts a request; false if the last one has not been taken yet.
    pub(crate) fn post(&self, request: WriterRequest) -> bool {
        if self.is_pending() {
            return false;
        }
        self.request.store(Some(Arc::new(request)));
        protocol::ask(&self.posted);
        true
    }

    /// Whether the writer has not yet executed the last request.
    pub(crate) fn is_pending(&self) -> bool {
        protocol::is_pending(&self.posted, &self.done)
    }
}

impl Writer {
    /// Executes the request posted since the last tick.
    #[inline]
    pub(super) fn take_requests(&mut self) {
        let inbox = &self.memory.inbox;
        if protocol::is_asked(&inbox.posted, &inbox.done) {
            self.do_request();
        }
    }

    #[cold]
    fn do_request(&mut self) {
        let memory = self.memory.clone();
        let inbox = &memory.inbox;
        match inbox.request.swap(None).as_deref() {
            Some(WriterRequest::Forget(places)) => places.iter().for_each(|place| self.forget(*place)),
            Some(WriterRequest::Move(to)) => self.move_to(to.clone()),
            None => {}
        }
        // Handles may refer to series that are forgotten now.
        self.generation = (self.generation + 1) & (u32::MAX >> (super::FORM_BITS + 1));
        protocol::finish(&inbox.posted, &inbox.done);
    }

    /// Leaves the segment as it is and begins another, in which everything is new.
    pub(crate) fn move_to(&mut self, memory: Arc<WriterMemory>) {
        memory.pages.use_up_to(1);
        self.segment.own_header().closed.store(CLOSED, crate::sync::Ordering::Release);
        self.segment = memory.segment.clone();
        self.memory = memory;
        self.index = RecordIndex::new();
        self.locals.clear();
        self.numbers.clear();
        self.epoch = 1;
        self.generation = (self.generation + 1) & (u32::MAX >> (super::FORM_BITS + 1));
        (self.log_used, self.reserve, self.series, self.reserved_series) = (0, 0, 0, 0);
    }

    fn forget(&mut self, place: u32) {
        let at = place as usize;
        let Some(head) = self.segment.own_log().get(at).and_then(|word| RecordHead::unpack(word.load(Relaxed))) else {
            return;
        };
        let Some(local) = self.local_of(head.pack()).filter(|_| head.kind == RecordKind::Series) else { return };
        let Some((_, text)) = self.segment.series(at, head) else { return };
        let values: Vec<_> = LabelPairs::new(text).map(|(_, value)| value.into_owned().into_bytes()).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let hash = self.inner.hash(local.declared.id, &values);
        let memory = self.memory.clone();
        let pages = Pages { words: memory.index_words(), ready: memory.pages.ready() };
        self.index.remove(pages, hash as u32, place);
        self.forget_overflow(place);
    }
}
