//! The event loop of the thread: receives chunks from workers, sends batches, and handles ended deliveries.

use crate::batch::{Batches, EntryBatch, backoff};
use crate::delivery::{Delivery, DeliveryReport};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use stillgate_plugin::Identity;
use stillgate_plugin::outbox::{Chunk, DropReason, Entries, OutboxCounters, Outlet};
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
    lines: HashMap<Identity, OutletState>,
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
            lines: HashMap::new(),
            deliveries: JoinSet::new(),
            held_bytes: 0,
            ending: watch::Sender::new(false),
        }
    }

    /// Runs until all workers have ended, and their remaining entries are sent or lost.
    pub(crate) async fn run(mut self) {
        loop {
            let due = self.lines.values().filter_map(|line| line.batches.due()).min();
            let wake = due.unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                biased;
                Some(delivered) = self.deliveries.join_next() => self.delivered(delivered.ok()),
                chunk = self.chunks.recv() => match chunk {
                    Some((worker, chunk)) => self.take(worker, chunk),
                    None => break,
                },
                () = sleep_until(wake) => self.lines.retain(|_, line| !line.batches.is_idle_since(IDLE, Instant::now())),
            }
            self.deliver();
            self.publish_held();
        }
        self.flush().await;
    }

    /// Sends the remaining entries, within its time. All workers have ended.
    async fn flush(&mut self) {
        self.ending.send_replace(true);
        self.lines.values_mut().for_each(|line| line.batches.close());
        let deadline = Instant::now() + self.flush_timeout;
        self.deliver();
        while !self.deliveries.is_empty() {
            tokio::select! {
                Some(delivered) = self.deliveries.join_next() => self.delivered(delivered.ok()),
                () = sleep_until(deadline) => break,
            }
            self.deliver();
        }
        for line in self.lines.values_mut() {
            let lost = line.batches.abandon() + line.in_flight_entries;
            if lost > 0 {
                let outlet = &line.batches.outlet;
                self.counts.lose(outlet.plugin, DropReason::Ended, lost as u64);
                warn!(plugin = outlet.plugin, name = %outlet.name, entries = lost, "entries are lost: the process ends");
            }
        }
        self.deliveries.abort_all();
    }

    fn take(&mut self, worker: usize, mut chunk: Chunk) {
        let now = Instant::now();
        for (outlet, entry) in chunk.iter() {
            let line = self.lines.entry(outlet.identity).or_insert_with(|| OutletState::new(outlet, now));
            line.follow(outlet);
            let (room, before) = (HELD_BYTES_MAX.saturating_sub(self.held_bytes), line.batches.held_bytes());
            match line.batches.push(entry, room, now) {
                Ok(()) => self.held_bytes += line.batches.held_bytes() - before,
                Err(reason) => {
                    self.counts.lose(outlet.plugin, reason, 1);
                    let is_long = reason == DropReason::TooLarge;
                    line.report(1, if is_long { "an entry is too long" } else { "the receiver is too slow" });
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
        for (identity, line) in &mut self.lines {
            while line.batches.in_flight < line.delivery.at_once() {
                let Some(EntryBatch { entries, bytes }) = line.batches.next(now) else { break };
                line.batches.in_flight += 1;
                line.in_flight_entries += entries.len();
                let (identity, outlet) = (*identity, line.batches.outlet.clone());
                let (delivery, ending) = (line.delivery.clone(), self.ending.subscribe());
                self.deliveries.spawn(async move {
                    let count = entries.len();
                    let result = deliver(&outlet, &delivery, entries, ending).await;
                    FinishedDelivery { identity, entries: count, bytes, result }
                });
            }
        }
    }

    fn delivered(&mut self, delivered: Option<FinishedDelivery>) {
        // A delivery only ends by itself: a panic would be a bug, and its entries stay counted as waiting.
        let Some(FinishedDelivery { identity, entries, bytes, result }) = delivered else { return };
        let Some(line) = self.lines.get_mut(&identity) else { return };
        let before = line.batches.held_bytes();
        line.batches.done(entries, bytes);
        line.in_flight_entries -= entries;
        self.held_bytes -= before - line.batches.held_bytes();
        let plugin = line.batches.outlet.plugin;
        match result {
            Ok(DeliveryReport { bytes, too_large, refused }) => {
                // A receiver's number is not believed beyond the batch.
                let refused = refused.min(entries as u64 - too_large);
                self.counts.sent(plugin, entries as u64 - too_large - refused, bytes);
                for (lost, reason, why) in [
                    (too_large, DropReason::TooLarge, "too long for a datagram"),
                    (refused, DropReason::Refused, "the receiver took the batch without them"),
                ] {
                    if lost > 0 {
                        self.counts.lose(plugin, reason, lost);
                        line.report(lost, why);
                    }
                }
            }
            Err(error) => {
                let is_ending = *self.ending.borrow();
                let reason = if is_ending { DropReason::Ended } else { DropReason::Failed };
                self.counts.lose(plugin, reason, entries as u64);
                line.report(entries as u64, &error);
            }
        }
    }

    fn publish_held(&self) {
        for (plugin, _) in self.counts.iter() {
            let of_plugin = self.lines.values().filter(|line| line.batches.outlet.plugin == plugin);
            self.counts.set_held(plugin, of_plugin.map(|line| line.batches.held_bytes() as u64).sum());
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
