//! A worker's coarse clock and its timers.
//!
//! Time moves in ticks of [`TICK_MS`]; reading it is a load. A connection has one timer for its whole life, and setting
//! its deadline is a store: the timing wheel holds it where an *earlier* deadline once was, and when that place comes
//! round the timer moves on to where its deadline is now. So a busy connection touches the wheel about once a timeout,
//! not twice a request, and an idle one not at all.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The clock's resolution. Timeouts are kept to within one of it, never early.
pub(crate) const TICK_MS: u64 = 50;
/// Places of the wheel, about 51 seconds; a later deadline takes several rounds.
const WHEEL_SLOTS: usize = 1024;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// Time as one worker sees it.
pub(crate) struct Clock {
    start: Instant,
    /// Milliseconds since `start`, plus one tick so that it is never zero.
    now_ms: Cell<u64>,
    /// The last tick whose slot was emptied.
    tick: Cell<u64>,
    wheel: RefCell<Vec<Vec<Rc<TimerCell>>>>,
    /// An empty list with capacity, swapped against the slot that is being emptied.
    spare: RefCell<Vec<Rc<TimerCell>>>,
    /// `Date: …` with its CRLF, of this second.
    date_line: RefCell<String>,
    date_second: Cell<u64>,
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
            now_ms: Cell::new(TICK_MS),
            tick: Cell::new(1),
            wheel: RefCell::new((0..WHEEL_SLOTS).map(|_| Vec::new()).collect()),
            spare: RefCell::default(),
            date_line: RefCell::default(),
            date_second: Cell::new(0),
        };
        clock.advance();
        clock
    }

    /// Milliseconds as of the last tick.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// `Date: …\r\n` as of the last tick.
    pub(crate) fn push_date_line(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.date_line.borrow().as_bytes());
    }

    /// Takes on the present time and wakes the tasks whose deadline has passed. Called every tick.
    pub(crate) fn advance(&self) {
        self.now_ms.set(self.start.elapsed().as_millis() as u64 + TICK_MS);
        let now_tick = self.now_ms.get() / TICK_MS;
        // After a pause longer than a round every slot is due once.
        let first = (self.tick.get() + 1).max(now_tick.saturating_sub(WHEEL_SLOTS as u64 - 1));
        for tick in first..=now_tick {
            self.empty_slot(tick, now_tick);
        }
        self.tick.set(now_tick.max(self.tick.get()));
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if self.date_second.replace(second) != second {
            *self.date_line.borrow_mut() = format!("Date: {}\r\n", httpdate::fmt_http_date(now));
        }
    }

    fn empty_slot(&self, tick: u64, now_tick: u64) {
        let mut due = self.spare.take();
        std::mem::swap(&mut due, &mut self.wheel.borrow_mut()[tick as usize % WHEEL_SLOTS]);
        for cell in due.drain(..) {
            let scheduled = cell.scheduled.get();
            if scheduled == 0 || scheduled > now_tick || scheduled as usize % WHEEL_SLOTS != tick as usize % WHEEL_SLOTS {
                continue;
            }
            cell.scheduled.set(0);
            if cell.deadline_ms.get() <= self.now_ms.get() {
                cell.wake();
            } else {
                self.schedule(&cell, now_tick);
            }
        }
        self.spare.replace(due);
    }

    fn schedule(&self, cell: &Rc<TimerCell>, now_tick: u64) {
        let deadline = cell.deadline_ms.get();
        if deadline == NEVER {
            return;
        }
        let tick = deadline.div_ceil(TICK_MS).clamp(now_tick + 1, now_tick + WHEEL_SLOTS as u64 - 1);
        if cell.scheduled.get() == 0 || tick < cell.scheduled.get() {
            cell.scheduled.set(tick);
            self.wheel.borrow_mut()[tick as usize % WHEEL_SLOTS].push(cell.clone());
        }
    }

    /// Wakes every task that has a deadline, so that it sees that the worker drains.
    pub(crate) fn wake_all(&self) {
        for cell in self.wheel.borrow().iter().flatten() {
            cell.wake();
        }
    }
}

impl TimerCell {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// One connection's deadline.
pub(crate) struct Timer(Rc<TimerCell>);

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer(Rc::new(TimerCell {
            deadline_ms: Cell::new(NEVER),
            scheduled: Cell::new(0),
            waker: RefCell::new(None),
        }))
    }

    /// Sets the deadline and who is woken then.
    #[inline]
    pub(crate) fn set(&self, clock: &Clock, deadline_ms: u64, cx: &Context<'_>) {
        self.0.deadline_ms.set(deadline_ms);
        let mut waker = self.0.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        if self.0.scheduled.get() == 0 || deadline_ms.div_ceil(TICK_MS) < self.0.scheduled.get() {
            clock.schedule(&self.0, clock.now_ms() / TICK_MS);
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
