//! Log entries that plugins send: a worker passes them on, with instructions for the sender.
//!
//! ```text
//!  worker ── Outbox ── Chunk ──▶ Post ──▶ the thread that sends ── Encode ──▶ Receiver
//!     └ counts what has no room                └ batches, tries again, counts what is lost
//! ```
//!
//! A worker appends an entry to its chunk, and never waits: entries without room are counted and dropped. The crate
//! `logs` sends them; this module has the definitions for both sides, and no IO.

mod receiver;

use crate::identity::Identity;
pub use receiver::{FileReceiver, HttpReceiver, Learn, Question, Receiver, Refused, SocketReceiver, Url};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A chunk with so many bytes is passed on.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Most bytes that one worker has passed on and the sender has not handled yet.
pub const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most bytes that wait to be sent for one outlet, unless it has a limit of its own.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest entry.
pub const ENTRY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One configured plugin as a source of entries.
pub struct Outlet {
    /// The plugin's name.
    pub plugin: &'static str,
    /// Its name in messages.
    pub name: String,
    /// Identifies it across reloads.
    pub identity: Identity,
    /// When entries are sent.
    pub batching: BatchPolicy,
    /// Their destination.
    pub receiver: Receiver,
    /// Their encoding.
    pub encode: Box<dyn Encode>,
    /// The sender's queue is full: workers need not write entries that would be dropped.
    is_full: AtomicBool,
    /// Overrides the value of `batching`, since the plugin's metadata can change it.
    pending_entries_max: AtomicUsize,
}

impl Outlet {
    /// Creates an outlet whose queue is not full.
    pub fn new(
        (plugin, name): (&'static str, String),
        identity: Identity,
        batching: BatchPolicy,
        receiver: Receiver,
        encode: Box<dyn Encode>,
    ) -> Outlet {
        let pending_entries_max = AtomicUsize::new(batching.pending_entries_max);
        let is_full = AtomicBool::new(false);
        Outlet { plugin, name, identity, batching, receiver, encode, is_full, pending_entries_max }
    }

    /// Whether the sender's queue is full.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Most entries that wait.
    pub fn pending_entries_max(&self) -> usize {
        self.pending_entries_max.load(Ordering::Relaxed)
    }

    /// Sets that limit.
    #[inline]
    pub fn set_pending_entries_max(&self, entries: usize) {
        self.pending_entries_max.store(entries, Ordering::Relaxed);
    }

    /// Sets whether the sender's queue is full.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

/// Omits values that may be secret.
impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

/// When a batch is sent, and how often it is retried: APISIX's batch processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchPolicy {
    /// Number of entries that are sent at once.
    pub entries_max: usize,
    /// A batch is sent when it got no entry for so long.
    pub inactive_timeout: Duration,
    /// A batch is sent when its first entry is so old.
    pub buffer_duration: Duration,
    /// Number of retries of a failed batch.
    pub retries_max: u32,
    /// Delay of the first retry; doubled for each further one.
    pub retry_delay: Duration,
    /// Most bytes that wait: further entries are lost.
    pub pending_bytes_max: usize,
    /// Most entries that wait: further entries are lost.
    pub pending_entries_max: usize,
}

/// Encodes entries for sending. It runs on the sender's thread.
pub trait Encode: Send + Sync {
    /// Converts an entry from a worker to the form in which it waits: it is decoded here, so that the limits of the
    /// queue count its decoded size.
    fn unpack<'e>(&self, entry: &'e [u8]) -> Cow<'e, [u8]> {
        Cow::Borrowed(entry)
    }

    /// Approximate bytes of an entry in the message: used for the limits if it is more than the entry itself.
    fn sent_bytes(&self, entry: &[u8]) -> usize {
        entry.len()
    }

    /// Appends the message for these entries, of which there is at least one.
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>);
}

/// Concatenated entries.
#[derive(Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Entries {
    /// Appends an entry.
    pub fn push(&mut self, entry: &[u8]) {
        self.bytes.extend_from_slice(entry);
        self.ends.push(self.bytes.len());
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Total bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Frees unused memory.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| {
            let start = if index == 0 { 0 } else { self.ends[index - 1] };
            &self.bytes[start..self.ends[index]]
        })
    }
}

/// Entries of one worker on their way to the sender, of any outlets.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// The index of each entry's outlet in `outlets`, and the entry's end.
    entries: Vec<(usize, usize)>,
    outlets: Vec<Arc<Outlet>>,
    /// Number of the worker's bytes on their way; reduced by this chunk when it is done.
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

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Called when the sender has taken the entries: its memory can be reused.
    pub fn clear(&mut self) {
        self.queued.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.bytes.clear();
        self.bytes.shrink_to(CHUNK_BYTES);
        self.entries.clear();
        self.outlets.clear();
    }

    fn outlet(&mut self, outlet: &Arc<Outlet>) -> usize {
        // Usually it is the last outlet; a few routes take turns.
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

/// The channel to the sender. Its methods never block.
pub trait Post: Send {
    /// Passes a chunk on, or returns it if the sender has ended or its queue is full.
    fn post(&mut self, chunk: Chunk) -> Result<(), Chunk>;

    /// An emptied chunk for reuse.
    fn empty(&mut self) -> Option<Chunk>;
}

/// A worker's end of the channel.
pub struct Outbox {
    /// `None`: all entries are dropped and counted as lost.
    post: Option<Box<dyn Post>>,
    current: Chunk,
    queued: Arc<AtomicUsize>,
    counts: Arc<OutboxCounters>,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            post: None,
            current: Chunk::default(),
            queued: Arc::default(),
            counts: Arc::new(OutboxCounters::new([])),
        }
    }
}

impl Outbox {
    /// Creates an outbox with a channel to the sender, and the counters of lost entries.
    pub fn new(post: Box<dyn Post>, counts: Arc<OutboxCounters>) -> Outbox {
        Outbox { post: Some(post), current: Chunk::default(), queued: Arc::default(), counts }
    }

    /// Appends the entry that `write` writes, or drops and counts it.
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

    /// Passes the current chunk on.
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

/// Passes the last chunk on.
impl Drop for Outbox {
    fn drop(&mut self) {
        self.flush();
    }
}

// Counters of log entries.

/// The reason why an entry was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The sender does not keep up with the worker.
    Queue,
    /// The receiver does not keep up with the sender.
    Full,
    /// All attempts failed.
    Failed,
    /// It is longer than the limit.
    TooLarge,
    /// The process ended before the receiver took it.
    Ended,
    /// The receiver accepted the batch, and reported that it refused this entry.
    Refused,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = 6;
    /// All reasons.
    pub const ALL: [DropReason; DropReason::COUNT] = [
        DropReason::Queue,
        DropReason::Full,
        DropReason::Failed,
        DropReason::TooLarge,
        DropReason::Ended,
        DropReason::Refused,
    ];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Queue => "queue",
            DropReason::Full => "full",
            DropReason::Failed => "failed",
            DropReason::TooLarge => "too_large",
            DropReason::Ended => "ended",
            DropReason::Refused => "refused",
        }
    }
}

/// Counters of entries, by plugin. Shared by workers, which write only when an entry is lost, and the sender.
#[derive(Debug)]
pub struct OutboxCounters(Box<[(&'static str, OutboxCounter)]>);

/// Counters of one plugin.
#[derive(Debug, Default)]
pub struct OutboxCounter {
    dropped: [AtomicU64; DropReason::COUNT],
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    held_bytes: AtomicU64,
}

impl OutboxCounters {
    /// Creates the counters of these plugins.
    pub fn new(plugins: impl IntoIterator<Item = &'static str>) -> OutboxCounters {
        OutboxCounters(plugins.into_iter().map(|plugin| (plugin, OutboxCounter::default())).collect())
    }

    fn of(&self, plugin: &str) -> Option<&OutboxCounter> {
        self.0.iter().find(|(name, _)| *name == plugin).map(|(_, count)| count)
    }

    /// Counts lost entries.
    pub fn lose(&self, plugin: &str, reason: DropReason, entries: u64) {
        if let Some(count) = self.of(plugin) {
            count.dropped[reason as usize].fetch_add(entries, Ordering::Relaxed);
        }
    }

    /// Counts delivered entries, and the bytes of their batches.
    pub fn count_sent(&self, plugin: &str, entries: u64, bytes: u64) {
        if let Some(count) = self.of(plugin) {
            count.sent.fetch_add(entries, Ordering::Relaxed);
            count.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Sets the number of bytes that the sender holds.
    pub fn set_held(&self, plugin: &str, bytes: u64) {
        if let Some(count) = self.of(plugin) {
            count.held_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Every plugin with its counters.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, OutboxTotals)> {
        self.0.iter().map(|(plugin, count)| {
            let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
            let counted = OutboxTotals {
                dropped: std::array::from_fn(|reason| read(&count.dropped[reason])),
                sent: read(&count.sent),
                sent_bytes: read(&count.sent_bytes),
                held_bytes: read(&count.held_bytes),
            };
            (*plugin, counted)
        })
    }
}

/// Values of the counters of one plugin.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OutboxTotals {
    /// Lost entries, indexed by [`DropReason`].
    pub dropped: [u64; DropReason::COUNT],
    /// Delivered entries.
    pub sent: u64,
    /// Bytes of the delivered batches.
    pub sent_bytes: u64,
    /// Bytes that wait to be sent, now.
    pub held_bytes: u64,
}

impl OutboxTotals {
    /// Whether there were any entries.
    pub fn is_used(&self) -> bool {
        *self != OutboxTotals::default()
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

    const BATCHING: BatchPolicy = BatchPolicy {
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

    fn outbox() -> (Outbox, Taken<Chunk>, Arc<OutboxCounters>) {
        let ((send, taken), counts) = (sync_channel(1000), Arc::new(OutboxCounters::new(["a", "b"])));
        (Outbox::new(Box::new(Channel(send)), counts.clone()), taken, counts)
    }

    fn dropped(counts: &OutboxCounters, plugin: &str, reason: DropReason) -> u64 {
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
