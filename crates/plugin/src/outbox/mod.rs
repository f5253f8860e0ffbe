//! What plugins send elsewhere: entries that a worker hands on, and what is to become of them.
//!
//! ```text
//!  worker ── Outbox ── Chunk ──▶ Post ──▶ the thread that sends ── Encode ──▶ Receiver
//!     └ counts what has no room                └ batches, tries again, counts what is lost
//! ```
//!
//! A worker writes an entry once, behind the others, and never waits: what has no room is counted and dropped. The sending is
//! done in the crate `logs`; here is what both sides know, and no IO.

mod counts;
mod receiver;

pub use counts::{Count, Counted, Counts, DropReason};
pub use receiver::{FileReceiver, HttpReceiver, Learn, Question, Receiver, Refused, SocketReceiver, Url};

use crate::definition::Identity;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A chunk this full is handed on.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// What one worker has handed on and the sender has not looked at yet.
pub const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What waits to be sent of one outlet, unless it has a bound of its own.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest entry.
pub const ENTRY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One configured plugin as a source of entries.
pub struct Outlet {
    /// The plugin's name.
    pub plugin: &'static str,
    /// What messages call it.
    pub name: String,
    /// What tells it from all others, before a reload and after.
    pub identity: Identity,
    /// When entries go.
    pub batching: Batching,
    /// Where they go.
    pub receiver: Receiver,
    /// As what they go.
    pub encode: Box<dyn Encode>,
    /// The sender has no room for more: workers need not write entries that would be dropped.
    is_full: AtomicBool,
    /// In place of that of `batching`, since the plugin's metadata can change it.
    pending_entries_max: AtomicUsize,
}

impl Outlet {
    /// An outlet with room.
    pub fn new(
        (plugin, name): (&'static str, String),
        identity: Identity,
        batching: Batching,
        receiver: Receiver,
        encode: Box<dyn Encode>,
    ) -> Outlet {
        let pending_entries_max = AtomicUsize::new(batching.pending_entries_max);
        let is_full = AtomicBool::new(false);
        Outlet { plugin, name, identity, batching, receiver, encode, is_full, pending_entries_max }
    }

    /// Whether the sender has no room.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Entries that wait at most.
    pub fn pending_entries_max(&self) -> usize {
        self.pending_entries_max.load(Ordering::Relaxed)
    }

    /// Sets that bound.
    #[inline]
    pub fn set_pending_entries_max(&self, entries: usize) {
        self.pending_entries_max.store(entries, Ordering::Relaxed);
    }

    /// Says whether the sender has room.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

/// Without what may be secret.
impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

/// When a batch is sent, and how often it is tried: APISIX's batch processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batching {
    /// So many entries are sent at once.
    pub entries_max: usize,
    /// A batch is sent that got no entry for so long.
    pub inactive_timeout: Duration,
    /// A batch is sent whose first entry is so old.
    pub buffer_duration: Duration,
    /// How often a batch is sent again that failed.
    pub retries_max: u32,
    /// How long the first of these waits; each one after it twice as long.
    pub retry_delay: Duration,
    /// Bytes that wait: what comes beyond them is lost.
    pub pending_bytes_max: usize,
    /// Entries that wait, likewise.
    pub pending_entries_max: usize,
}

/// Makes of entries what is sent. It runs on the sender's thread.
pub trait Encode: Send + Sync {
    /// An entry as it waits to be sent, of what a worker has written: what is to be decoded is decoded here, so that the bounds of
    /// what waits count what it becomes.
    fn unpack<'e>(&self, entry: &'e [u8]) -> Cow<'e, [u8]> {
        Cow::Borrowed(entry)
    }

    /// What an entry takes of what is sent, about: it is counted with that where it is more than the entry itself.
    fn sent_bytes(&self, entry: &[u8]) -> usize {
        entry.len()
    }

    /// Appends what is sent for these entries, of which there is at least one.
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>);
}

/// Entries, one behind the other.
#[derive(Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Entries {
    /// Adds one.
    pub fn push(&mut self, entry: &[u8]) {
        self.bytes.extend_from_slice(entry);
        self.ends.push(self.bytes.len());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// What all of them take.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Gives memory back that has no entry.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// What they take of memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| {
            let start = if index == 0 { 0 } else { self.ends[index - 1] };
            &self.bytes[start..self.ends[index]]
        })
    }
}

/// Entries of one worker on their way, of any outlets.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// Each with its outlet's place in `outlets`, and where it ends.
    entries: Vec<(usize, usize)>,
    outlets: Vec<Arc<Outlet>>,
    /// What the worker has on its way; less by this chunk once that is done with.
    queued: Arc<AtomicUsize>,
}

impl Chunk {
    /// Each entry with its outlet.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<Outlet>, &[u8])> {
        let mut start = 0;
        self.entries
            .iter()
            .map(move |&(outlet, end)| (&self.outlets[outlet], &self.bytes[std::mem::replace(&mut start, end)..end]))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sender has taken what was in it: its memory can be used again.
    pub fn clear(&mut self) {
        self.queued.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.bytes.clear();
        self.bytes.shrink_to(CHUNK_BYTES);
        self.entries.clear();
        self.outlets.clear();
    }

    fn outlet(&mut self, outlet: &Arc<Outlet>) -> usize {
        // Mostly the one before; a few routes take turns.
        let known = self.outlets.iter().rev().take(8).position(|known| Arc::ptr_eq(known, outlet));
        match known {
            Some(back) => self.outlets.len() - 1 - back,
            None => {
                self.outlets.push(outlet.clone());
                self.outlets.len() - 1
            }
        }
    }
}

/// The way to the sender. Neither waits.
pub trait Post: Send {
    /// Hands on a chunk, or gives it back where the sender is gone or has too many.
    fn post(&mut self, chunk: Chunk) -> Result<(), Chunk>;

    /// A chunk that was handed on before and is empty again.
    fn empty(&mut self) -> Option<Chunk>;
}

/// A worker's end.
pub struct Outbox {
    /// `None`: nothing is sent, and all is counted as lost.
    post: Option<Box<dyn Post>>,
    current: Chunk,
    queued: Arc<AtomicUsize>,
    counts: Arc<Counts>,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox { post: None, current: Chunk::default(), queued: Arc::default(), counts: Arc::new(Counts::new([])) }
    }
}

impl Outbox {
    /// With a way to the sender, and where losses are counted.
    pub fn new(post: Box<dyn Post>, counts: Arc<Counts>) -> Outbox {
        Outbox { post: Some(post), current: Chunk::default(), queued: Arc::default(), counts }
    }

    /// Adds the entry that `write` appends, or drops and counts it.
    pub fn push(&mut self, outlet: &Arc<Outlet>, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(reason) = self.no_room(outlet) else {
            let start = self.current.bytes.len();
            write(&mut self.current.bytes);
            let end = self.current.bytes.len();
            if end - start > ENTRY_BYTES_MAX {
                self.current.bytes.truncate(start);
                self.counts.lose(outlet.plugin, DropReason::TooLarge, 1);
                return;
            }
            let place = self.current.outlet(outlet);
            self.current.entries.push((place, end));
            if end >= CHUNK_BYTES {
                self.flush();
            }
            return;
        };
        self.counts.lose(outlet.plugin, reason, 1);
    }

    fn no_room(&self, outlet: &Outlet) -> Option<DropReason> {
        if outlet.is_full() {
            return Some(DropReason::Full);
        }
        let queued = self.queued.load(Ordering::Relaxed) + self.current.bytes.len();
        (self.post.is_none() || queued >= QUEUE_BYTES_MAX).then_some(DropReason::Queue)
    }

    /// Hands on what there is.
    pub fn flush(&mut self) {
        if self.current.is_empty() {
            return;
        }
        let next = self.post.as_mut().and_then(|post| post.empty()).unwrap_or_default();
        let mut chunk = std::mem::replace(&mut self.current, next);
        self.current.queued = Arc::default();
        chunk.queued = self.queued.clone();
        self.queued.fetch_add(chunk.bytes.len(), Ordering::Relaxed);
        let Some(post) = &mut self.post else { return };
        if let Err(mut lost) = post.post(chunk) {
            for (outlet, _) in lost.iter() {
                self.counts.lose(outlet.plugin, DropReason::Queue, 1);
            }
            lost.clear();
        }
    }
}

/// What is left is handed on.
impl Drop for Outbox {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver as Taken, SyncSender, TrySendError, sync_channel};

    struct Lines;

    impl Encode for Lines {
        fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
            entries.iter().for_each(|entry| out.extend_from_slice(entry));
        }
    }

    struct Channel(SyncSender<Chunk>);

    impl Post for Channel {
        fn post(&mut self, chunk: Chunk) -> Result<(), Chunk> {
            self.0.try_send(chunk).map_err(|error| match error {
                TrySendError::Full(chunk) | TrySendError::Disconnected(chunk) => chunk,
            })
        }

        fn empty(&mut self) -> Option<Chunk> {
            None
        }
    }

    const BATCHING: Batching = Batching {
        entries_max: 10,
        inactive_timeout: Duration::from_secs(1),
        buffer_duration: Duration::from_secs(1),
        retries_max: 0,
        retry_delay: Duration::ZERO,
        pending_bytes_max: PENDING_BYTES_MAX,
        pending_entries_max: usize::MAX,
    };

    fn outlet(plugin: &'static str) -> Arc<Outlet> {
        let receiver = Receiver::File(FileReceiver { path: "/dev/null".to_owned() });
        Arc::new(Outlet::new((plugin, String::new()), Identity(1), BATCHING, receiver, Box::new(Lines)))
    }

    fn outbox() -> (Outbox, Taken<Chunk>, Arc<Counts>) {
        let ((send, taken), counts) = (sync_channel(1000), Arc::new(Counts::new(["a", "b"])));
        (Outbox::new(Box::new(Channel(send)), counts.clone()), taken, counts)
    }

    fn dropped(counts: &Counts, plugin: &str, reason: DropReason) -> u64 {
        counts.iter().find(|(name, _)| *name == plugin).unwrap().1.dropped[reason as usize]
    }

    #[test]
    fn entries_keep_their_order_and_their_outlet() {
        let (mut outbox, taken, _) = outbox();
        let (a, b) = (outlet("a"), outlet("b"));
        for (outlet, text) in [(&a, "1"), (&b, ""), (&a, "22"), (&b, "3")] {
            outbox.push(outlet, |out| out.extend_from_slice(text.as_bytes()));
        }
        drop(outbox);
        let chunk = taken.recv().unwrap();
        let seen: Vec<_> = chunk.iter().map(|(outlet, entry)| (outlet.plugin, entry.to_vec())).collect();
        assert_eq!(seen, [("a", b"1".to_vec()), ("b", b"".to_vec()), ("a", b"22".to_vec()), ("b", b"3".to_vec())]);
        assert_eq!(chunk.outlets.len(), 2);
    }

    #[test]
    fn what_waits_is_bounded_and_what_has_no_room_is_counted() {
        let (mut outbox, taken, counts) = outbox();
        let (of, entry) = (outlet("a"), vec![b'x'; 10_000]);
        let mut pushed = 0;
        while dropped(&counts, "a", DropReason::Queue) < 10 {
            outbox.push(&of, |out| out.extend_from_slice(&entry));
            pushed += 1;
        }
        assert!(outbox.queued.load(Ordering::Relaxed) <= QUEUE_BYTES_MAX);
        let mut seen = 0;
        while let Ok(mut chunk) = taken.try_recv() {
            seen += chunk.len();
            chunk.clear();
        }
        outbox.flush();
        seen += taken.try_recv().map_or(0, |chunk| chunk.len());
        assert_eq!(seen + 10, pushed);
        outbox.push(&of, |out| out.extend_from_slice(&entry));
        assert_eq!(dropped(&counts, "a", DropReason::Queue), 10);
        outbox.push(&of, |out| out.resize(out.len() + ENTRY_BYTES_MAX + 1, 0));
        of.set_full(true);
        outbox.push(&of, |_| panic!("it need not be written"));
        assert_eq!(dropped(&counts, "a", DropReason::TooLarge), 1);
        assert_eq!(dropped(&counts, "a", DropReason::Full), 1);
        assert_eq!(dropped(&counts, "b", DropReason::Full), 0);
    }

    #[test]
    fn without_a_sender_all_is_counted() {
        let (mut outbox, taken, counts) = outbox();
        drop(taken);
        outbox.push(&outlet("b"), |out| out.push(1));
        drop(outbox);
        assert_eq!(dropped(&counts, "b", DropReason::Queue), 1);
    }
}
