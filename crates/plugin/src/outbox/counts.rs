//! Counters of log entries.

use std::sync::atomic::{AtomicU64, Ordering};

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
    pub fn sent(&self, plugin: &str, entries: u64, bytes: u64) {
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
