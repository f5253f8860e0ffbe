//! A worker's turns: what it does whenever its event loop wakes, and what wakes it when nothing arrives.
//!
//! ```text
//!  woken ─▶ the time is read ─▶ a tick, if one is due ─▶ tasks ─▶ the alarm is set, if it must ring earlier ─▶ sleep
//! ```
//!
//! Ticks take place in turns that have another cause. By itself a worker wakes for the next timer, a moment after something was
//! recorded, and once per second: a wake-up costs more than what is done in it.

use crate::basics::clock::TICK_MS;
use crate::connection::stream::Stream;
use crate::exchange::Exchange;
use crate::plan::snapshot::Snapshot;
use crate::worker::Worker;
use std::future::poll_fn;
use std::io;
use std::panic::resume_unwind;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, LocalSet};

/// How long lines of the access log may wait for others.
const FLUSH_MS: u64 = 2 * TICK_MS;
/// Time between two checks of the pools and of memory.
const CHORES_MS: u64 = 1_000;
/// Connections that must have been closed before their memory is returned.
const GIVE_BACK_CONNECTIONS: u64 = 1000;
/// Bytes of buffers that must have been freed before they are returned: 512 streams of HTTP/2 that wait at the same time
/// hold as many, over few connections.
const GIVE_BACK_BYTES: usize = 32 * 1024 * 1024;
/// Timers of closed connections that may wait for their place in the wheel to come round.
const TIMERS_SPARE_MAX: u64 = 4096;
/// Buffers that an idle worker keeps.
const BUFFERS_KEPT_IDLE: usize = 8;

/// Runs the worker's tasks until `life`, one of them, has ended.
pub(crate) fn run(
    runtime: &Runtime,
    tasks: &LocalSet,
    worker: &Rc<Worker>,
    life: JoinHandle<io::Result<()>>,
) -> io::Result<()> {
    // The metrics have their first series before anything arrives.
    worker.tick();
    let listening = worker.clone();
    tasks.spawn_local(async move { listening.turns.listen().await });
    // Within it, tasks that a tick wakes are run in the same turn.
    let mut turn = pin!(tasks.run_until(poll_fn(|_| {
        worker.begin_turn();
        Poll::<()>::Pending
    })));
    runtime.block_on(poll_fn(|cx| {
        // It never completes.
        let _ = turn.as_mut().poll(cx);
        worker.end_turn();
        if life.is_finished() { Poll::Ready(()) } else { Poll::Pending }
    }));
    match runtime.block_on(life) {
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // Nothing cancels it.
        Err(_) => Ok(()),
        Ok(result) => result,
    }
}

impl Worker {
    fn begin_turn(&self) {
        let has_ticked = self.clock.advance();
        if self.clock.now_ms() >= self.turns.rings_ms.get() {
            self.turns.rings_ms.set(u64::MAX);
        }
        if has_ticked {
            self.tick();
        }
    }

    /// Makes sure that there is another turn in time.
    fn end_turn(&self) {
        self.report_turn();
        let turns = &self.turns;
        let told_ms = if turns.is_untold.get() { self.clock.tick_ms() + FLUSH_MS } else { u64::MAX };
        let next_ms = turns.chores_ms.get().min(told_ms).min(self.clock.next_ms());
        if next_ms >= turns.rings_ms.get() {
            return;
        }
        turns.rings_ms.set(next_ms);
        if let Err(error) = turns.ring_in(next_ms.saturating_sub(self.clock.now_ms())) {
            // Only a bug makes it fail: the timer exists and the time is valid. Anything that arrives still causes a turn.
            tracing::error!(%error, "a worker's alarm cannot be set");
        }
    }

    fn tick(&self) {
        // Work is due at the beginning of a tick, however late that is noticed.
        let (now_ms, turns) = (self.clock.tick_ms(), &self.turns);
        let is_time_for_chores = now_ms >= turns.chores_ms.get();
        if is_time_for_chores || turns.is_untold.get() {
            self.tick_metrics(is_time_for_chores);
        }
        if now_ms >= turns.flushed_ms.get() + FLUSH_MS {
            turns.flushed_ms.set(now_ms);
            turns.is_untold.set(false);
            self.flush_log();
        }
        if is_time_for_chores {
            turns.chores_ms.set(now_ms + CHORES_MS);
            if self.telling.slow.get() {
                self.slowest.note_wait();
            }
            self.do_chores(now_ms, &self.snapshot());
        }
    }

    fn do_chores(&self, now_ms: u64, snapshot: &Snapshot) {
        for upstream in snapshot.upstreams.iter() {
            let mut state = upstream.state.borrow_mut();
            if state.idle() > 0 {
                state.expire(now_ms, Stream::is_dead);
            }
        }
        self.troubles.report(now_ms);
        self.routes.borrow_mut().tick(&snapshot.plan, &self.counters);
        self.return_memory();
    }

    /// Returns memory after a burst: what idle connections and their requests used is not kept for ever.
    fn return_memory(&self) {
        if self.counters.requests_in_flight.get() == 0 {
            Exchange::keep(BUFFERS_KEPT_IDLE);
            self.buffers.shrink(BUFFERS_KEPT_IDLE);
        }
        let open = self.counters.connections_open.get();
        // Each has a timer, and so have UDP sessions and HTTP/2 requests.
        let timers = open + self.counters.udp_sessions_open.get() + self.streams.get();
        if self.clock.entries() as u64 > 2 * timers + TIMERS_SPARE_MAX {
            self.clock.sweep();
        }
        let peak = &self.turns.peak;
        peak.set(peak.get().max(open));
        let is_quiet = self.counters.requests_in_flight.get() == 0;
        // While it serves requests, it allocates, and the allocator returns memory by itself.
        if is_quiet && (self.buffers.take_freed(GIVE_BACK_BYTES) || peak.get() - open >= GIVE_BACK_CONNECTIONS) {
            peak.set(open);
            self.clock.sweep();
            (self.give_back)();
        }
    }
}
