//! A worker's coarse clock and its timers.
//!
//! Time is read once per turn of the event loop; reading it from the clock is a load. Timers and periodic work move in ticks of
//! [`TICK_MS`], which take place only if they have an effect (see `fleet::turns`). A connection has one timer for its whole life,
//! and setting its deadline is a store: the timing wheel holds it where an *earlier* deadline once was, and when that place comes
//! round the timer moves on to its current deadline. So a busy connection touches the wheel about once per timeout, not twice per
//! request, and an idle one not at all.

use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::yield_now;

/// The timers' resolution. Timeouts are kept to within one of it, never early.
pub(crate) const TICK_MS: u64 = 50;
/// Places of the wheel, about 51 seconds; a later deadline takes several rounds.
const WHEEL_SLOTS: usize = 1024;
/// Words of a map of the places.
const MAP_WORDS: usize = WHEEL_SLOTS / 64;
/// What the clock shows when it starts: anything from another process began before that.
const START_MS: u64 = 2 * 366 * 24 * 3600 * 1000;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Time as one worker sees it.
pub(crate) struct Clock {
    start: Instant,
    /// Milliseconds since `start`, and [`START_MS`].
    now_ms: Cell<u64>,
    /// How long after `start` the current turn began.
    turn: Cell<Duration>,
    /// The last tick whose slot was emptied.
    tick: Cell<u64>,
    /// The next tick whose slot contains something; `u64::MAX`: there is none.
    next: Cell<u64>,
    /// A bit for each slot: whether it may contain something.
    filled: [Cell<u64>; MAP_WORDS],
    wheel: RefCell<Vec<Vec<Rc<TimerCell>>>>,
    /// Timers in the wheel, dropped ones included.
    entries: Cell<usize>,
    /// An empty list with capacity, swapped against the slot that is being emptied.
    spare: RefCell<Vec<Rc<TimerCell>>>,
    /// Milliseconds since 1970, as of the last tick.
    now_unix_ms: Cell<u64>,
    /// `Date: …` with its CRLF, for the current second.
    date_line: RefCell<String>,
    date_second: Cell<u64>,
}

/// A place in the wheel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WheelPlace {
    slot: usize,
    entry: usize,
}

struct TimerCell {
    deadline_ms: Cell<u64>,
    /// The tick in whose slot the wheel holds it; zero: in none. An entry in any other slot is stale.
    scheduled: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let clock = Clock {
            start: Instant::now(),
            now_ms: Cell::new(START_MS),
            turn: Cell::default(),
            tick: Cell::new(START_MS / TICK_MS),
            next: Cell::new(u64::MAX),
            filled: Default::default(),
            wheel: RefCell::new((0..WHEEL_SLOTS).map(|_| Vec::new()).collect()),
            entries: Cell::new(0),
            spare: RefCell::default(),
            now_unix_ms: Cell::new(0),
            date_line: RefCell::default(),
            date_second: Cell::new(0),
        };
        clock.take_calendar();
        clock
    }

    /// Milliseconds as of this turn.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// When the last tick was due.
    pub(crate) fn tick_ms(&self) -> u64 {
        self.tick.get() * TICK_MS
    }

    /// When the next tick that a timer needs is due; `u64::MAX`: no timer needs one.
    #[inline]
    pub(crate) fn next_ms(&self) -> u64 {
        self.next.get().saturating_mul(TICK_MS)
    }

    /// How long the current turn has taken so far, to the nanosecond.
    #[inline]
    pub(crate) fn turn(&self) -> Duration {
        self.start.elapsed().saturating_sub(self.turn.get())
    }

    /// Milliseconds since 1970, as of the last tick.
    pub(crate) fn now_unix_ms(&self) -> u64 {
        self.now_unix_ms.get()
    }

    /// `Date: …\r\n` as of the last tick.
    pub(crate) fn push_date_line(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.date_line.borrow().as_bytes());
    }

    /// Updates the time; if it has moved to another tick, wakes the tasks whose deadline has passed, and returns true.
    #[inline]
    pub(crate) fn advance(&self) -> bool {
        let elapsed = self.start.elapsed();
        self.turn.set(elapsed);
        let has_ticked = self.advance_to(START_MS + elapsed.as_secs() * 1000 + u64::from(elapsed.subsec_millis()));
        if has_ticked {
            self.take_calendar();
        }
        has_ticked
    }

    fn take_calendar(&self) {
        let now = SystemTime::now();
        let unix_ms = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.now_unix_ms.set(unix_ms);
        let second = unix_ms / 1000;
        if self.date_second.replace(second) != second {
            *self.date_line.borrow_mut() = format!("Date: {}\r\n", httpdate::fmt_http_date(now));
        }
    }

    #[inline]
    fn advance_to(&self, now_ms: u64) -> bool {
        self.now_ms.set(now_ms);
        let has_ticked = now_ms >= (self.tick.get() + 1) * TICK_MS;
        if has_ticked {
            self.tick_to(now_ms / TICK_MS);
        }
        has_ticked
    }

    fn tick_to(&self, now_tick: u64) {
        // After a pause longer than a round every slot is due once.
        let first = (self.tick.get() + 1).max(now_tick.saturating_sub(WHEEL_SLOTS as u64 - 1));
        for tick in first..=now_tick {
            self.empty_slot(tick, now_tick);
        }
        self.tick.set(now_tick);
        self.next.set(self.next_filled());
    }

    /// The first tick after the current one whose slot may contain something.
    fn next_filled(&self) -> u64 {
        let first = (self.tick.get() + 1) as usize % WHEEL_SLOTS;
        // The word of the first slot once more at the end, for what is before it.
        for step in 0..=MAP_WORDS {
            let at = (first / 64 + step) % MAP_WORDS;
            let present = match step {
                0 => self.filled[at].get() >> (first % 64) << (first % 64),
                _ => self.filled[at].get(),
            };
            if present != 0 {
                let slot = at * 64 + present.trailing_zeros() as usize;
                return self.tick.get() + 1 + ((slot + WHEEL_SLOTS - first) % WHEEL_SLOTS) as u64;
            }
        }
        u64::MAX
    }

    /// Records whether a slot may contain something.
    #[inline]
    fn mark(&self, slot: usize, is_filled: bool) {
        let (word, bit) = (&self.filled[slot / 64], 1 << (slot % 64));
        word.set(if is_filled { word.get() | bit } else { word.get() & !bit });
    }

    fn empty_slot(&self, tick: u64, now_tick: u64) {
        let slot = tick as usize % WHEEL_SLOTS;
        self.mark(slot, false);
        let mut due = self.spare.take();
        std::mem::swap(&mut due, &mut self.wheel.borrow_mut()[slot]);
        self.entries.set(self.entries.get() - due.len());
        for cell in due.drain(..) {
            let scheduled = cell.scheduled.get();
            if scheduled == 0 || scheduled > now_tick || scheduled as usize % WHEEL_SLOTS != slot {
                continue;
            }
            cell.scheduled.set(0);
            if cell.deadline_ms.get() <= self.now_ms.get() {
                cell.wake();
            } else {
                // The slot being emptied is a whole round away; any later one that is due may still be visited by this
                // very advance, and its entries would be taken for stale.
                self.schedule(&cell, now_tick, tick + WHEEL_SLOTS as u64);
            }
        }
        self.spare.replace(due);
    }

    /// Files the timer under its deadline, between the next tick and `last_tick`.
    fn schedule(&self, cell: &Rc<TimerCell>, now_tick: u64, last_tick: u64) {
        let deadline = cell.deadline_ms.get();
        if deadline == NEVER {
            return;
        }
        let tick = deadline.div_ceil(TICK_MS).clamp(now_tick + 1, last_tick);
        if cell.scheduled.get() == 0 || tick < cell.scheduled.get() {
            cell.scheduled.set(tick);
            let slot = tick as usize % WHEEL_SLOTS;
            self.wheel.borrow_mut()[slot].push(cell.clone());
            self.mark(slot, true);
            self.next.set(self.next.get().min(tick));
            self.entries.set(self.entries.get() + 1);
        }
    }

    /// Timers in the wheel, those of closed connections included.
    pub(crate) fn entries(&self) -> usize {
        self.entries.get()
    }

    /// Output of `future`, if it completes before the deadline.
    pub(crate) async fn within<F: Future + Unpin>(
        &self,
        timer: &Timer,
        deadline_ms: u64,
        mut future: F,
    ) -> Option<F::Output> {
        poll_fn(|cx| {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
                return Poll::Ready(Some(output));
            }
            if self.now_ms() >= deadline_ms {
                return Poll::Ready(None);
            }
            timer.set(self, deadline_ms, cx);
            Poll::Pending
        })
        .await
    }

    /// Frees what dropped timers still occupy, without waiting for their slots to come round.
    pub(crate) fn sweep(&self) {
        let mut left = 0;
        for slot in self.wheel.borrow_mut().iter_mut() {
            slot.retain(|cell| cell.deadline_ms.get() != NEVER);
            slot.shrink_to_fit();
            left += slot.len();
        }
        self.entries.set(left);
        self.spare.take();
    }

    /// Wakes the next few tasks that have a deadline, and returns where to continue; `None`: there are no more. Timers may move
    /// between two calls, so that one pass need not visit all of them.
    pub(crate) fn wake_some(&self, from: WheelPlace, count: usize) -> Option<WheelPlace> {
        let wheel = self.wheel.borrow();
        let WheelPlace { mut slot, mut entry } = from;
        let mut left = count;
        while let Some(entries) = wheel.get(slot) {
            while let Some(cell) = entries.get(entry) {
                if left == 0 {
                    return Some(WheelPlace { slot, entry });
                }
                left -= usize::from(cell.wake());
                entry += 1;
            }
            (slot, entry) = (slot + 1, 0);
        }
        None
    }

    /// Wakes every task that has a deadline, so that it sees that the worker drains.
    pub(crate) fn wake_all(&self) {
        for cell in self.wheel.borrow().iter().flatten() {
            cell.wake();
        }
    }
}

impl TimerCell {
    /// Wakes the task; returns whether there was one.
    fn wake(&self) -> bool {
        let waker = self.waker.borrow();
        waker.iter().for_each(Waker::wake_by_ref);
        waker.is_some()
    }
}

/// One connection's deadline.
pub(crate) struct Timer(Rc<TimerCell>);

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer(Rc::new(TimerCell { deadline_ms: Cell::new(NEVER), scheduled: Cell::new(0), waker: RefCell::new(None) }))
    }

    /// Sets the deadline and the task to wake.
    #[inline]
    pub(crate) fn set(&self, clock: &Clock, deadline_ms: u64, cx: &Context<'_>) {
        self.0.deadline_ms.set(deadline_ms);
        let mut waker = self.0.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        if self.0.scheduled.get() == 0 || deadline_ms.div_ceil(TICK_MS) < self.0.scheduled.get() {
            let now_tick = clock.now_ms() / TICK_MS;
            clock.schedule(&self.0, now_tick, now_tick + WHEEL_SLOTS as u64 - 1);
        }
    }
}

impl Drop for Timer {
    /// The wheel drops its share when its slot comes round; the waker, which keeps the task's memory, goes now.
    fn drop(&mut self) {
        self.0.deadline_ms.set(NEVER);
        self.0.waker.borrow_mut().take();
    }
}

/// Wakes the task after the worker has looked for what else has come. A task that wakes itself at once is polled again before that,
/// up to 61 times by tokio's `LocalSet`: one that has much to do would hold all others up.
pub(crate) fn wake_after_others(cx: &mut Context<'_>) {
    // It hands the waker to the runtime, which wakes it after the event loop.
    let _ = pin!(yield_now()).poll(cx);
}

#[cfg(test)]
mod tests;
