//! The clock's own time, slots and alarms.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Advances the clock to so many milliseconds after its start.
fn to(clock: &Clock, ms: u64) {
    clock.advance_to(START_MS + ms);
}

fn now(clock: &Clock) -> u64 {
    clock.now_ms() - START_MS
}

/// A timer, and how often its task was woken.
struct Task {
    timer: Timer,
    woken: Arc<Woken>,
}

impl Task {
    fn new() -> Task {
        Task { timer: Timer::new(), woken: Arc::default() }
    }

    fn set(&self, clock: &Clock, deadline_ms: u64) {
        self.timer.set(clock, START_MS + deadline_ms, &Context::from_waker(&self.woken.clone().into()));
    }

    fn woken(&self) -> u32 {
        self.woken.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_deadline_that_moves_on_does_not_touch_the_wheel() {
    let clock = Clock::new();
    to(&clock, 1_000);
    let task = Task::new();
    for second in 1..=5 {
        to(&clock, second * 1_000);
        task.set(&clock, (second + 10) * 1_000);
    }
    assert_eq!(clock.wheel.borrow().iter().flatten().count(), 1);
    to(&clock, 14_999);
    assert_eq!(task.woken(), 0);
    to(&clock, 15_000);
    assert_eq!(task.woken(), 1);
}

#[test]
fn an_earlier_deadline_is_kept_too() {
    let clock = Clock::new();
    let task = Task::new();
    task.set(&clock, 40_000);
    task.set(&clock, 2_000);
    to(&clock, 2_000);
    assert_eq!(task.woken(), 1);
    task.set(&clock, 200_000);
    to(&clock, 199_950);
    assert_eq!(task.woken(), 1);
    to(&clock, 200_000);
    assert_eq!(task.woken(), 2);
}

#[test]
fn a_dropped_timer_leaves_the_wheel_and_lets_its_task_go() {
    let clock = Clock::new();
    let task = Task::new();
    task.set(&clock, 1_000);
    let woken = task.woken.clone();
    drop(task);
    assert_eq!(Arc::strong_count(&woken), 1);
    to(&clock, 60_000);
    assert_eq!(clock.wheel.borrow().iter().flatten().count(), 0);
}

#[test]
fn a_late_tick_loses_no_timer() {
    for pause in [50, 100, 150, 200, 1_000, 60_000, 200_000] {
        let clock = Clock::new();
        let task = Task::new();
        task.set(&clock, 10_000);
        to(&clock, 9_950);
        task.set(&clock, 9_950 + 60_000);
        to(&clock, 9_950 + pause);
        while now(&clock) < 9_950 + 60_000 {
            assert_eq!(task.woken(), 0);
            to(&clock, now(&clock) + TICK_MS);
        }
        assert_eq!(task.woken(), 1, "paused for {pause} ms");
    }
}

#[test]
fn everybody_is_woken_a_few_at_a_time() {
    let clock = Clock::new();
    let tasks: Vec<Task> = (0..100).map(|_| Task::new()).collect();
    for (at, task) in tasks.iter().enumerate() {
        task.set(&clock, 100 + at as u64 / 10 * 5_000);
    }
    drop(Task::new());
    let woken = || tasks.iter().map(Task::woken).sum::<u32>();
    let (mut cursor, mut turns) = (Some(WheelPlace::default()), 0);
    while let Some(from) = cursor {
        assert_eq!(woken(), turns * 7);
        cursor = clock.wake_some(from, 7);
        turns += 1;
    }
    assert!(tasks.iter().all(|task| task.woken() == 1));
    assert_eq!(turns, 100u32.div_ceil(7));
}

#[test]
fn a_sweep_leaves_the_living() {
    let clock = Clock::new();
    let (gone, stays) = (Task::new(), Task::new());
    gone.set(&clock, 1_000);
    stays.set(&clock, 1_000);
    drop(gone);
    clock.sweep();
    assert_eq!(clock.entries(), 1);
    to(&clock, 1_000);
    assert_eq!((stays.woken(), clock.entries()), (1, 0));
}

#[test]
fn nobody_is_needed_before_the_first_timer() {
    let clock = Clock::new();
    assert_eq!(clock.next_ms(), u64::MAX);
    let task = Task::new();
    task.set(&clock, 10_010);
    assert_eq!(clock.next_ms(), START_MS + 10_050);
    task.set(&clock, 3_000);
    assert_eq!(clock.next_ms(), START_MS + 3_000);
    assert!(!clock.advance_to(START_MS + TICK_MS - 1), "a tick only at its time");
    assert!(clock.advance_to(START_MS + TICK_MS));
    // The place in the wheel stays where it was, and is skipped when its time comes.
    task.set(&clock, 100_000);
    to(&clock, 3_000);
    assert_eq!(task.woken(), 0);
    while clock.next_ms() < START_MS + 100_000 {
        clock.advance_to(clock.next_ms());
    }
    to(&clock, 100_000);
    assert_eq!((task.woken(), clock.next_ms()), (1, u64::MAX));
}

proptest! {
    /// A task that sleeps until the next needed tick misses no deadline, whatever was set when.
    #[test]
    fn woken_in_time_by_the_ticks_that_are_needed(sets in prop::collection::vec((0u64..5_000, 0u64..150_000), 1..60)) {
        let clock = Clock::new();
        let mut tasks: Vec<(Task, u64)> = Vec::new();
        let mut sets = sets.into_iter().scan(0, |at, (pause, after)| { *at += pause; Some((*at, after)) }).peekable();
        loop {
            let needed = clock.next_ms();
            let set = sets.peek().map_or(u64::MAX, |(at, _)| START_MS + at);
            if needed.min(set) == u64::MAX {
                break;
            }
            clock.advance_to(needed.min(set));
            for (task, due) in &tasks {
                let is_woken = task.woken() > 0;
                prop_assert!(is_woken || now(&clock) < due + TICK_MS, "late: {due} at {}", now(&clock));
                prop_assert!(!is_woken || now(&clock) >= *due, "early: {due} at {}", now(&clock));
            }
            if set <= needed {
                let (at, after) = sets.next().expect("it was there");
                let task = Task::new();
                task.set(&clock, at + after);
                tasks.push((task, at + after));
            }
        }
        prop_assert!(tasks.iter().all(|(task, _)| task.woken() == 1));
    }

    /// Whatever deadlines are set when, and however irregularly time passes: no task is woken before its deadline unless the
    /// deadline was moved, and every task is woken by the first look at the clock a tick after it.
    #[test]
    fn woken_in_time(steps in prop::collection::vec((0u64..3_000, prop::option::weighted(0.1, 1u64..120_000)), 1..200)) {
        let clock = Clock::new();
        let task = Task::new();
        let mut now = now(&clock);
        let mut deadline = None;
        for (pause, set) in steps {
            now += pause;
            let before = task.woken();
            to(&clock, now);
            if let Some(due) = deadline {
                if now >= due + TICK_MS {
                    prop_assert!(task.woken() > before, "late: {due} at {now}");
                    deadline = None;
                } else if now < due {
                    prop_assert_eq!(task.woken(), before, "early: {} at {}", due, now);
                } else if task.woken() > before {
                    deadline = None;
                }
            }
            if let Some(after) = set {
                deadline = Some(now + after);
                task.set(&clock, now + after);
            }
        }
    }
}

/// What has come to a socket is seen after a few polls of another task, not after 61.
#[test]
fn a_task_with_much_to_do_lets_the_event_loop_run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let polls = tokio::task::LocalSet::new().block_on(&runtime, async {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        let received = tokio::task::spawn_local(async move { socket.recv(&mut [0]).await });
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            if received.is_finished() {
                return Poll::Ready(());
            }
            wake_after_others(cx);
            Poll::Pending
        })
        .await;
        polls
    });
    assert!(polls < 20, "{polls}");
}
