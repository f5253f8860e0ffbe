//! The event loop of the thread: receives chunks from workers, sends batches, and handles ended deliveries.

use crate::delivery::{Delivery, DeliveryReport};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use stillgate_plugin_api::Identity;
use stillgate_plugin_api::outbox::{Chunk, DropReason, ENTRY_BYTES_MAX, Entries, OutboxCounters, Outlet};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

/// Most bytes of waiting entries of all outlets together.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Losses of one outlet are reported at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The state of an outlet (connections, an open file) is dropped if it got no entry for this long.
const IDLE: Duration = Duration::from_secs(60);

/// The thread's state.
pub(crate) struct Sender {
    chunks: mpsc::Receiver<(usize, Chunk)>,
    empties: Vec<SyncSender<Chunk>>,
    counts: Arc<OutboxCounters>,
    flush_timeout: Duration,
    outlets: HashMap<Identity, OutletState>,
    deliveries: JoinSet<FinishedDelivery>,
    held_bytes: usize,
    /// Informs deliveries that the process ends, so that failures are not retried for long.
    ending: watch::Sender<bool>,
}

/// The state of one outlet.
struct OutletState {
    batches: Batches,
    delivery: Arc<Delivery>,
    in_flight_entries: usize,
    /// When losses were last reported, and how many came since.
    reported: Option<Instant>,
    unreported: u64,
}

/// An ended delivery.
struct FinishedDelivery {
    identity: Identity,
    entries: usize,
    /// The bytes that its entries were counted with.
    bytes: usize,
    /// The result, or the error.
    result: Result<DeliveryReport, String>,
}

impl Sender {
    pub(crate) fn new(
        chunks: mpsc::Receiver<(usize, Chunk)>,
        empties: Vec<SyncSender<Chunk>>,
        counts: Arc<OutboxCounters>,
        flush_timeout: Duration,
    ) -> Sender {
        Sender {
            chunks,
            empties,
            counts,
            flush_timeout,
            outlets: HashMap::new(),
            deliveries: JoinSet::new(),
            held_bytes: 0,
            ending: watch::Sender::new(false),
        }
    }

    /// Runs until all workers have ended, and their remaining entries are sent or lost.
    pub(crate) async fn run(mut self) {
        loop {
            let due = self.outlets.values().filter_map(|outlet_state| outlet_state.batches.due()).min();
            let wake = due.unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                biased;
                Some(delivered) = self.deliveries.join_next() => self.on_delivered(delivered.ok()),
                chunk = self.chunks.recv() => match chunk {
                    Some((worker, chunk)) => self.take(worker, chunk),
                    None => break,
                },
                () = sleep_until(wake) => self.outlets.retain(|_, outlet_state| !outlet_state.batches.is_idle_since(IDLE, Instant::now())),
            }
            self.deliver();
            self.publish_held();
        }
        self.flush().await;
    }

    /// Sends the remaining entries, within its time. All workers have ended.
    async fn flush(&mut self) {
        self.ending.send_replace(true);
        self.outlets.values_mut().for_each(|outlet_state| outlet_state.batches.close());
        let deadline = Instant::now() + self.flush_timeout;
        self.deliver();
        while !self.deliveries.is_empty() {
            tokio::select! {
                Some(delivered) = self.deliveries.join_next() => self.on_delivered(delivered.ok()),
                () = sleep_until(deadline) => break,
            }
            self.deliver();
        }
        for outlet_state in self.outlets.values_mut() {
            let lost = outlet_state.batches.abandon() + outlet_state.in_flight_entries;
            if lost > 0 {
                let outlet = &outlet_state.batches.outlet;
                self.counts.lose(outlet.plugin, DropReason::Ended, lost as u64);
                warn!(plugin = outlet.plugin, name = %outlet.name, entries = lost, "entries are lost: the process ends");
            }
        }
        self.deliveries.abort_all();
    }

    fn take(&mut self, worker: usize, mut chunk: Chunk) {
        let now = Instant::now();
        for (outlet, entry) in chunk.iter() {
            let outlet_state = self.outlets.entry(outlet.identity).or_insert_with(|| OutletState::new(outlet, now));
            outlet_state.follow(outlet);
            let (room, before) = (HELD_BYTES_MAX.saturating_sub(self.held_bytes), outlet_state.batches.held_bytes());
            match outlet_state.batches.push(entry, room, now) {
                Ok(()) => self.held_bytes += outlet_state.batches.held_bytes() - before,
                Err(reason) => {
                    self.counts.lose(outlet.plugin, reason, 1);
                    let is_long = reason == DropReason::TooLarge;
                    outlet_state.report(1, if is_long { "an entry is too long" } else { "the receiver is too slow" });
                }
            }
        }
        chunk.clear();
        if let Some(empties) = self.empties.get(worker) {
            // If enough chunks wait there already, this one is dropped.
            let _ = empties.try_send(chunk);
        }
    }

    /// Begins the deliveries that are due.
    fn deliver(&mut self) {
        let now = Instant::now();
        for (identity, outlet_state) in &mut self.outlets {
            while outlet_state.batches.in_flight < outlet_state.delivery.at_once() {
                let Some(EntryBatch { entries, bytes }) = outlet_state.batches.next(now) else { break };
                outlet_state.batches.in_flight += 1;
                outlet_state.in_flight_entries += entries.len();
                let (identity, outlet) = (*identity, outlet_state.batches.outlet.clone());
                let (delivery, ending) = (outlet_state.delivery.clone(), self.ending.subscribe());
                self.deliveries.spawn(async move {
                    let count = entries.len();
                    let result = deliver(&outlet, &delivery, entries, ending).await;
                    FinishedDelivery { identity, entries: count, bytes, result }
                });
            }
        }
    }

    fn on_delivered(&mut self, delivered: Option<FinishedDelivery>) {
        // A delivery only ends by itself: a panic would be a bug, and its entries stay counted as waiting.
        let Some(FinishedDelivery { identity, entries, bytes, result }) = delivered else { return };
        let Some(outlet_state) = self.outlets.get_mut(&identity) else { return };
        let before = outlet_state.batches.held_bytes();
        outlet_state.batches.on_delivery_end(entries, bytes);
        outlet_state.in_flight_entries -= entries;
        self.held_bytes -= before - outlet_state.batches.held_bytes();
        let plugin = outlet_state.batches.outlet.plugin;
        match result {
            Ok(DeliveryReport { bytes, too_large, refused }) => {
                // A receiver's number is not believed beyond the batch.
                let refused = refused.min(entries as u64 - too_large);
                self.counts.count_sent(plugin, entries as u64 - too_large - refused, bytes);
                for (lost, reason, why) in [
                    (too_large, DropReason::TooLarge, "too long for a datagram"),
                    (refused, DropReason::Refused, "the receiver took the batch without them"),
                ] {
                    if lost > 0 {
                        self.counts.lose(plugin, reason, lost);
                        outlet_state.report(lost, why);
                    }
                }
            }
            Err(error) => {
                let is_ending = *self.ending.borrow();
                let reason = if is_ending { DropReason::Ended } else { DropReason::Failed };
                self.counts.lose(plugin, reason, entries as u64);
                outlet_state.report(entries as u64, &error);
            }
        }
    }

    fn publish_held(&self) {
        for (plugin, _) in self.counts.iter() {
            let of_plugin = self.outlets.values().filter(|outlet_state| outlet_state.batches.outlet.plugin == plugin);
            self.counts.set_held(plugin, of_plugin.map(|outlet_state| outlet_state.batches.held_bytes() as u64).sum());
        }
    }
}

impl OutletState {
    fn new(outlet: &Arc<Outlet>, now: Instant) -> OutletState {
        OutletState {
            batches: Batches::new(outlet.clone(), now),
            delivery: Arc::new(Delivery::new(outlet)),
            in_flight_entries: 0,
            reported: None,
            unreported: 0,
        }
    }

    /// Handles that a reload has compiled an equal configuration again.
    fn follow(&mut self, outlet: &Arc<Outlet>) {
        if !Arc::ptr_eq(&self.batches.outlet, outlet) {
            outlet.set_full(self.batches.outlet.is_full());
            self.batches.outlet = outlet.clone();
        }
    }

    fn report(&mut self, lost: u64, why: &str) {
        self.unreported += lost;
        let now = Instant::now();
        if self.reported.is_none_or(|at| now >= at + REPORT_EVERY) {
            self.reported = Some(now);
            let outlet = &self.batches.outlet;
            let entries = std::mem::take(&mut self.unreported);
            warn!(plugin = outlet.plugin, name = %outlet.name, entries, "entries are lost: {why}");
        }
    }
}

/// Tries to deliver a batch as often as its outlet allows.
async fn deliver(
    outlet: &Outlet,
    delivery: &Delivery,
    entries: Entries,
    mut ending: watch::Receiver<bool>,
) -> Result<DeliveryReport, String> {
    let (payload, mut tries) = (delivery.payload(outlet, entries), 0);
    loop {
        let error = match delivery.run(outlet, &payload).await {
            Ok(arrived) => return Ok(arrived),
            Err(error) => error,
        };
        if tries >= outlet.batching.retries_max {
            return Err(error);
        }
        tokio::select! {
            () = sleep(backoff(outlet.batching.retry_delay, tries)) => {}
            // The remaining tries follow at once, while there is time.
            _ = ending.wait_for(|is_ending| *is_ending) => {}
        }
        tries += 1;
    }
}

// The entries of one outlet: collected into batches, which are sent when they are full or old enough.
//
// Entries are counted with the memory they take until they have arrived: decoded, and for as long as they are being
// sent. It does no IO; the time is an argument.

/// Size at which a batch is sent, even with few entries; the last entry may exceed it.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// An outlet that was full accepts entries again when this share of its bound is free.
const FREE_AGAIN: usize = 8;

/// Entries that are sent together.
#[derive(Default)]
pub(crate) struct EntryBatch {
    pub(crate) entries: Entries,
    /// The bytes that the entries are counted with.
    pub(crate) bytes: usize,
}

/// The batches of one outlet.
pub(crate) struct Batches {
    pub(crate) outlet: Arc<Outlet>,
    collecting: EntryBatch,
    /// When its first and its last entry came.
    first: Instant,
    last: Instant,
    waiting: VecDeque<EntryBatch>,
    /// Totals of all pending entries, including those being delivered.
    held_bytes: usize,
    held_entries: usize,
    /// Deliveries in progress.
    pub(crate) in_flight: usize,
}

impl Batches {
    pub(crate) fn new(outlet: Arc<Outlet>, now: Instant) -> Batches {
        Batches {
            outlet,
            collecting: EntryBatch::default(),
            first: now,
            last: now,
            waiting: VecDeque::new(),
            held_bytes: 0,
            held_entries: 0,
            in_flight: 0,
        }
    }

    /// Takes an entry of a worker; `room` is what is left for entries of all outlets.
    pub(crate) fn push(&mut self, entry: &[u8], room: usize, now: Instant) -> Result<(), DropReason> {
        // An entry that already does not fit need not be decoded.
        self.check_room(entry.len(), room)?;
        let outlet = self.outlet.clone();
        let entry = outlet.encode.unpack(entry);
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(DropReason::TooLarge);
        }
        let bytes = entry.len().max(outlet.encode.sent_bytes(&entry)) + ENTRY_OVERHEAD;
        self.check_room(bytes, room)?;
        if self.collecting.entries.is_empty() {
            self.first = now;
        }
        self.last = now;
        self.collecting.entries.push(&entry);
        self.collecting.bytes += bytes;
        self.held_bytes += bytes;
        self.held_entries += 1;
        let is_full = self.collecting.entries.len() >= outlet.batching.entries_max;
        if is_full || self.collecting.bytes >= BATCH_BYTES_MAX {
            self.close();
        }
        Ok(())
    }

    fn check_room(&self, bytes: usize, room: usize) -> Result<(), DropReason> {
        // An entry that never fits has no influence on the room for others.
        if bytes > self.outlet.batching.pending_bytes_max {
            return Err(DropReason::TooLarge);
        }
        let has_bytes = self.held_bytes + bytes <= self.outlet.batching.pending_bytes_max;
        let has_entries = self.held_entries < self.outlet.pending_entries_max();
        if !has_bytes || !has_entries {
            self.outlet.set_full(true);
        }
        if has_bytes && has_entries && bytes <= room { Ok(()) } else { Err(DropReason::Full) }
    }

    /// Closes the batch being collected, so that it is sent with the next delivery.
    pub(crate) fn close(&mut self) {
        if !self.collecting.entries.is_empty() {
            let mut batch = std::mem::take(&mut self.collecting);
            batch.entries.shrink();
            self.waiting.push_back(batch);
        }
    }

    /// When the batch being collected must be sent; `None` if it is empty.
    pub(crate) fn due(&self) -> Option<Instant> {
        let batching = &self.outlet.batching;
        let due = (self.last + batching.inactive_timeout).min(self.first + batching.buffer_duration);
        (!self.collecting.entries.is_empty()).then_some(due)
    }

    /// The next batch to deliver.
    pub(crate) fn next(&mut self, now: Instant) -> Option<EntryBatch> {
        if self.due().is_some_and(|due| due <= now) {
            self.close();
        }
        self.waiting.pop_front()
    }

    /// Records the end of a delivery of `entries`, counted with `bytes`, successful or not.
    pub(crate) fn on_delivery_end(&mut self, entries: usize, bytes: usize) {
        self.in_flight -= 1;
        self.held_bytes -= bytes;
        self.held_entries -= entries;
        let (bytes_max, entries_max) = (self.outlet.batching.pending_bytes_max, self.outlet.pending_entries_max());
        let has_room = |held: usize, max: usize| held <= max - max / FREE_AGAIN;
        if has_room(self.held_bytes, bytes_max) && has_room(self.held_entries, entries_max) {
            self.outlet.set_full(false);
        }
    }

    /// Gives up all waiting entries; returns their number.
    pub(crate) fn abandon(&mut self) -> usize {
        self.close();
        self.waiting.drain(..).map(|batch| batch.entries.len()).sum()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether nothing is left to do, and has not been for this long.
    pub(crate) fn is_idle_since(&self, time: Duration, now: Instant) -> bool {
        let is_idle = self.in_flight == 0 && self.waiting.is_empty() && self.collecting.entries.is_empty();
        is_idle && self.last + time <= now
    }
}

/// Memory that an entry takes besides its bytes.
const ENTRY_OVERHEAD: usize = size_of::<usize>();

/// The delay before the next try, after this many; each is twice as long as the one before.
pub(crate) fn backoff(first: Duration, tries: u32) -> Duration {
    const DELAY_MAX: Duration = Duration::from_secs(60);
    first.saturating_mul(1 << tries.min(16)).min(DELAY_MAX.max(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;
    use stillgate_plugin_api::Identity;
    use stillgate_plugin_api::outbox::{BatchPolicy, Encode, FileReceiver, Receiver};

    /// Entries become as many bytes as their first byte, and twice as many when sent.
    struct GrowingEncoder;

    impl Encode for GrowingEncoder {
        fn encode(&self, _: &Entries, _: &mut Vec<u8>) {}

        fn unpack<'e>(&self, entry: &'e [u8]) -> Cow<'e, [u8]> {
            entry.first().map_or(Cow::Borrowed(entry), |length| Cow::Owned(vec![0; usize::from(*length) << 16]))
        }

        fn sent_bytes(&self, entry: &[u8]) -> usize {
            2 * entry.len()
        }
    }

    struct EmptyEncoder;

    impl Encode for EmptyEncoder {
        fn encode(&self, _: &Entries, _: &mut Vec<u8>) {}
    }

    fn batches_of(pending_bytes_max: usize, encode: impl Encode + 'static) -> (Batches, Instant) {
        let batching = BatchPolicy {
            entries_max: 3,
            inactive_timeout: Duration::from_secs(5),
            buffer_duration: Duration::from_secs(8),
            retries_max: 0,
            retry_delay: Duration::ZERO,
            pending_bytes_max,
            pending_entries_max: usize::MAX,
        };
        let receiver = Receiver::File(FileReceiver { path: String::new() });
        let outlet = Outlet::new(("a", String::new()), Identity(1), batching, receiver, Box::new(encode));
        let now = Instant::now();
        (Batches::new(Arc::new(outlet), now), now)
    }

    fn batches(pending_bytes_max: usize) -> (Batches, Instant) {
        batches_of(pending_bytes_max, EmptyEncoder)
    }

    /// Returns whether the entry was accepted.
    fn push(batches: &mut Batches, entry: &[u8], now: Instant) -> bool {
        batches.push(entry, usize::MAX, now).is_ok()
    }

    #[test]
    fn a_batch_goes_when_it_is_full_or_old_enough() {
        let (mut batches, now) = batches(1000);
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(batches.due(), None);
        assert!(push(&mut batches, b"1", at(0)));
        assert_eq!(batches.due(), Some(at(5)));
        assert!(push(&mut batches, b"2", at(4)));
        assert_eq!(batches.due(), Some(at(8)));
        assert!(batches.next(at(7)).is_none());
        assert_eq!(batches.next(at(8)).unwrap().entries.len(), 2);
        for _ in 0..4 {
            assert!(push(&mut batches, b"3", at(9)));
        }
        assert_eq!(batches.next(at(9)).unwrap().entries.len(), 3);
        assert!(batches.next(at(9)).is_none());
        batches.close();
        assert_eq!(batches.next(at(9)).unwrap().entries.len(), 1);
        assert_eq!(batches.abandon(), 0);
    }

    #[test]
    fn what_waits_is_bounded_by_bytes() {
        let (mut batches, now) = batches(10 * (100 + ENTRY_OVERHEAD));
        let taken = (0..20).filter(|_| push(&mut batches, &[0; 100], now)).count();
        assert_eq!(taken, 10);
        assert!(batches.outlet.is_full());
        let first = batches.next(now).unwrap();
        batches.in_flight += 1;
        assert!(!push(&mut batches, &[0; 100], now), "what is being delivered counts");
        batches.on_delivery_end(first.entries.len(), first.bytes);
        assert!(!batches.outlet.is_full());
        assert!(push(&mut batches, &[0; 100], now));
        assert_eq!(batches.abandon(), 8);
    }

    #[test]
    fn what_waits_is_bounded_by_entries() {
        let (mut batches, now) = batches(usize::MAX);
        batches.outlet.set_pending_entries_max(4);
        assert_eq!((0..20).filter(|_| push(&mut batches, b"a", now)).count(), 4);
        batches.outlet.set_pending_entries_max(6);
        assert_eq!((0..20).filter(|_| push(&mut batches, b"a", now)).count(), 2);
    }

    #[test]
    fn entries_count_as_what_they_become() {
        const MIB: usize = 1024 * 1024;
        let (mut batches, now) = batches_of(16 * MIB, GrowingEncoder);
        // 1 MiB each, sent as 2 MiB.
        assert_eq!((0..1000).filter(|_| push(&mut batches, &[16], now)).count(), 7);
        assert!(batches.held_bytes() <= 16 * MIB && batches.held_bytes() > 14 * MIB, "{}", batches.held_bytes());
        let batch = batches.next(now).unwrap();
        assert_eq!((batch.entries.len(), batch.entries.bytes()), (2, 2 * MIB), "it goes at 4 MiB");
        batches.in_flight += 1;
        batches.on_delivery_end(batch.entries.len(), batch.bytes);
        assert!(push(&mut batches, &[16], now));
        assert_eq!(
            batches.push(&[65], usize::MAX, now),
            Err(DropReason::TooLarge),
            "it is longer than an entry may be"
        );
        assert_eq!(batches.push(&[16], MIB, now), Err(DropReason::Full), "all outlets together have no room");
    }

    #[test]
    fn an_entry_that_never_fits_leaves_room_for_others() {
        let (mut batches, now) = batches(200);
        assert_eq!(batches.push(&[b'a'; 300], usize::MAX, now), Err(DropReason::TooLarge));
        assert!(!batches.outlet.is_full());
        assert!(push(&mut batches, b"a", now));
    }

    #[test]
    fn each_try_waits_twice_as_long() {
        let wait = |tries| backoff(Duration::from_secs(1), tries).as_secs();
        assert_eq!([0, 1, 2, 5, 6, 40].map(wait), [1, 2, 4, 32, 60, 60]);
        assert_eq!(backoff(Duration::ZERO, 3), Duration::ZERO);
        assert_eq!(backoff(Duration::from_secs(100), 3), Duration::from_secs(100));
    }
}
