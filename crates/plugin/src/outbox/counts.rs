//! What became of entries.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why an entry was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The sender does not keep up with the worker.
    Queue,
    /// The receiver does not keep up with the sender.
    Full,
    /// It was tried as often as it may be.
    Failed,
    /// It is longer than an entry may be.
    TooLarge,
    /// The process ended before the receiver took it.
    Ended,
    /// The receiver took the batch, and said that it did not take this entry.
    Refused,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All of them.
    pub const ALL: [DropReason; DropReason::COUNT] = [
        DropReason::Queue,
        DropReason::Full,
        DropReason::Failed,
        DropReason::TooLarge,
        DropReason::Ended,
        DropReason::Refused,
    ];

    /// As metrics show it.
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

/// What became of entries so far, by plugin. Shared by workers, which write only where something is lost, and the sender.
#[derive(Debug)]
pub struct Counts(Box<[(&'static str, Count)]>);

/// What became of the entries of one plugin.
#[derive(Debug, Default)]
pub struct Count {
    dropped: [AtomicU64; DropReason::COUNT],
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    held_bytes: AtomicU64,
}

impl Counts {
    /// For these plugins.
    pub fn new(plugins: impl IntoIterator<Item = &'static str>) -> Counts {
        Counts(plugins.into_iter().map(|plugin| (plugin, Count::default())).collect())
    }

    fn of(&self, plugin: &str) -> Option<&Count> {
        self.0.iter().find(|(name, _)| *name == plugin).map(|(_, count)| count)
    }

    /// So many entries are lost.
    pub fn lose(&self, plugin: &str, reason: DropReason, entries: u64) {
        if let Some(count) = self.of(plugin) {
            count.dropped[reason as usize].fetch_add(entries, Ordering::Relaxed);
        }
    }

    /// So many entries have arrived, in so many bytes.
    pub fn sent(&self, plugin: &str, entries: u64, bytes: u64) {
        if let Some(count) = self.of(plugin) {
            count.sent.fetch_add(entries, Ordering::Relaxed);
            count.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The sender holds so many bytes.
    pub fn set_held(&self, plugin: &str, bytes: u64) {
        if let Some(count) = self.of(plugin) {
            count.held_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Every plugin with what became of its entries.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Counted)> {
        self.0.iter().map(|(plugin, count)| {
            let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
            let counted = Counted {
                dropped: std::array::from_fn(|reason| read(&count.dropped[reason])),
                sent: read(&count.sent),
                sent_bytes: read(&count.sent_bytes),
                held_bytes: read(&count.held_bytes),
            };
            (*plugin, counted)
        })
    }
}

/// What became of the entries of one plugin so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// By [`DropReason`].
    pub dropped: [u64; DropReason::COUNT],
    /// Entries that have arrived.
    pub sent: u64,
    /// Bytes that they were sent in.
    pub sent_bytes: u64,
    /// Bytes that wait to be sent, now.
    pub held_bytes: u64,
}

impl Counted {
    /// Whether there was any entry.
    pub fn is_used(&self) -> bool {
        *self != Counted::default()
    }
}
