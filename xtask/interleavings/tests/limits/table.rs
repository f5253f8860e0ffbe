//! Checks the protocol under every order of loads and stores that the memory model allows, within loom's bounds.
//!
//! Each model is as small as possible while it can still fail: two threads, two slots, one to three operations each.

use crate::bucket::*;
use crate::key::CounterKey;
use crate::sync::Ordering;
use crate::window::{AlignedWindow, Limit};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

/// How often a thread is preempted at most. With three (`LOOM_MAX_PREEMPTIONS=3`) some models take minutes.
const PREEMPTIONS_MAX: usize = 2;
const NOW_MS: u64 = 1_000_000;
const WINDOW_MS: u64 = 1_000;

type Small = Bucket<2>;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.check(model);
}

fn key(number: u64) -> CounterKey {
    CounterKey([number, number])
}

fn life(now_ms: u64) -> ValidEnds {
    ValidEnds { now_ms, end_max_ms: u64::MAX }
}

/// Like `Limits::take_fixed`, for a cost of 1.
fn take(bucket: &Small, key: CounterKey, count: u64, now_ms: u64) -> Result<bool, BucketContention> {
    let limit = Limit { count, window_ms: WINDOW_MS };
    loop {
        let Some(found) = bucket.find(key, life(now_ms))? else {
            let added = bucket.add(key, now_ms + WINDOW_MS, life(now_ms));
            assert!(!added.is_disturbed);
            if !added.is_there {
                return Err(BucketContention);
            }
            continue;
        };
        let verdict = limit.decide_fixed(found.count(), 1, found.end_ms, now_ms);
        if verdict.count == found.count() || bucket.try_set_count(found, verdict.count) {
            return Ok(verdict.taken.admitted);
        }
    }
}

/// Two threads take tokens of `key(1)`; returns how many each got, and the bucket afterwards.
fn race(
    prepare: fn(&Small),
    one: fn(&Small) -> usize,
    other: fn(&Small) -> usize,
    judge: impl Fn(usize, &Small) + Sync + Send + 'static,
) {
    race_in(prepare, one, other, judge);
}

/// Like the above, in a bucket with this many slots.
fn race_in<const WAYS: usize>(
    prepare: fn(&Bucket<WAYS>),
    one: fn(&Bucket<WAYS>) -> usize,
    other: fn(&Bucket<WAYS>) -> usize,
    judge: impl Fn(usize, &Bucket<WAYS>) + Sync + Send + 'static,
) {
    explore(move || {
        let bucket = Arc::new(Bucket::<WAYS>::new());
        prepare(&bucket);
        let theirs = bucket.clone();
        let thread = thread::spawn(move || other(&theirs));
        let admitted = one(&bucket);
        let admitted = admitted + thread.join().unwrap();
        judge(admitted, &bucket);
    });
}

fn admitted(bucket: &Small, number: u64, count: u64, now_ms: u64) -> usize {
    usize::from(take(bucket, key(number), count, now_ms).unwrap())
}

#[test]
fn of_one_counter_exactly_the_count_is_admitted() {
    race(
        |bucket| assert_eq!(admitted(bucket, 1, 3, NOW_MS), 1),
        |bucket| admitted(bucket, 1, 3, NOW_MS) + admitted(bucket, 1, 3, NOW_MS),
        |bucket| admitted(bucket, 1, 3, NOW_MS) + admitted(bucket, 1, 3, NOW_MS),
        |admitted, _| assert_eq!(admitted, 2),
    );
}

#[test]
fn two_first_requests_meet_in_one_counter() {
    race(
        |_| {},
        |bucket| admitted(bucket, 1, 1, NOW_MS),
        |bucket| admitted(bucket, 1, 1, NOW_MS),
        |admitted, bucket| {
            assert_eq!(admitted, 1);
            assert_eq!(bucket.count_running(NOW_MS), 1);
            // No slot stays claimed.
            assert!((0..2).all(|way| !bucket.members().is_claimed(way)));
        },
    );
}

#[test]
fn a_new_window_begins_once() {
    race(
        |bucket| assert_eq!(admitted(bucket, 1, 1, NOW_MS), 1),
        |bucket| admitted(bucket, 1, 1, NOW_MS + WINDOW_MS + 1),
        |bucket| admitted(bucket, 1, 1, NOW_MS + WINDOW_MS + 2),
        |admitted, bucket| {
            assert_eq!(admitted, 1);
            assert_eq!(bucket.members().shown_slots().count(), 1);
        },
    );
}

#[test]
fn a_clock_that_is_behind_does_not_open_a_window_twice() {
    // The other thread still is in the first window, in which one is left: it gets that, or is in the second window.
    race(
        |bucket| assert_eq!(admitted(bucket, 1, 2, NOW_MS), 1),
        |bucket| (0..3).map(|_| admitted(bucket, 1, 2, NOW_MS + WINDOW_MS + 1)).sum(),
        |bucket| admitted(bucket, 1, 2, NOW_MS + WINDOW_MS),
        |admitted, bucket| {
            assert!((2..=3).contains(&admitted), "{admitted}");
            assert_eq!(bucket.members().shown_slots().count(), 1);
        },
    );
}

#[test]
fn nothing_is_counted_for_a_key_that_has_taken_the_slot() {
    // Both slots are taken. One thread adds a key in the place of the one that the other thread uses for counting.
    race(
        |bucket| {
            assert_eq!(admitted(bucket, 1, 2, NOW_MS), 1);
            assert_eq!(admitted(bucket, 2, 2, NOW_MS + 1), 1);
        },
        |bucket| {
            admitted(bucket, 3, 2, NOW_MS + 2);
            0
        },
        |bucket| {
            admitted(bucket, 2, 2, NOW_MS + 2);
            match bucket.find(key(1), life(NOW_MS + 2)).unwrap() {
                Some(found) => usize::from(bucket.try_set_count(found, 2)),
                None => 0,
            }
        },
        |_, bucket| {
            let count = |number| bucket.find(key(number), life(NOW_MS + 2)).unwrap().map(CounterSnapshot::count);
            assert_eq!((count(1), count(2), count(3)), (None, Some(2), Some(1)));
        },
    );
}

#[test]
fn different_keys_come_at_once() {
    race(
        |_| {},
        |bucket| admitted(bucket, 1, 1, NOW_MS),
        |bucket| admitted(bucket, 2, 1, NOW_MS),
        |admitted, bucket| {
            assert_eq!(admitted, 2);
            assert_eq!(bucket.count_running(NOW_MS), 2);
        },
    );
}

#[test]
fn who_is_killed_while_adding_holds_up_nobody() {
    // What a killed thread leaves: a claim, and a tally that is partly written.
    race(
        |bucket| {
            assert!(bucket.try_change_members(Members(0), Members(0).with_claim(0, NOW_MS)));
            bucket.slots[0].tally.store(1 << COUNT_BITS, Ordering::Release);
        },
        // With so few slots one thread can find the other slot claimed, too.
        |bucket| take(bucket, key(1), 1, NOW_MS).map_or(0, usize::from),
        |bucket| take(bucket, key(1), 1, NOW_MS).map_or(0, usize::from),
        |first, bucket| {
            assert_eq!(first, 1);
            // The slot is used again once claims are old.
            let later = NOW_MS + 60_000;
            assert_eq!(admitted(bucket, 1, 1, later) + admitted(bucket, 2, 1, later), 2);
            assert_eq!(bucket.count_running(later), 2);
        },
    );
}

/// Like `Limits::take_sliding`, for a cost of 1.
fn slide<const WAYS: usize>(
    bucket: &Bucket<WAYS>,
    key: CounterKey,
    count: u64,
    now_ms: u64,
) -> Result<bool, BucketContention> {
    let limit = Limit { count, window_ms: WINDOW_MS };
    let at = AlignedWindow::new(WINDOW_MS, now_ms);
    let (present, past) = (key.of_window(at.number), key.of_window(at.number - 1));
    loop {
        let found = bucket.find(present, life(now_ms))?;
        let previous = bucket.find(past, life(now_ms))?.map_or(0, |found| found.count());
        let count = found.map_or(0, |found| found.count());
        let verdict = limit.decide_sliding(at, previous, count, 1);
        match found {
            _ if verdict.count == count => return Ok(verdict.taken.admitted),
            Some(found) if bucket.try_set_count(found, verdict.count) => return Ok(verdict.taken.admitted),
            Some(_) => {}
            None => {
                let added = bucket.add(present, at.end_ms, life(now_ms));
                if !added.is_there && !added.is_disturbed {
                    return Err(BucketContention);
                }
            }
        }
    }
}

fn slid<const WAYS: usize>(bucket: &Bucket<WAYS>, number: u64, count: u64, now_ms: u64) -> usize {
    usize::from(slide(bucket, key(number), count, now_ms).unwrap())
}

/// The counts of the window at `now_ms` and of the previous one.
fn counted<const WAYS: usize>(bucket: &Bucket<WAYS>, number: u64, now_ms: u64) -> [u64; 2] {
    let at = AlignedWindow::new(WINDOW_MS, now_ms).number;
    [at, at - 1]
        .map(|at| bucket.find(key(number).of_window(at), life(now_ms)).unwrap().map_or(0, CounterSnapshot::count))
}

#[test]
fn two_first_requests_meet_in_one_sliding_window() {
    race(
        |_| {},
        |bucket| slid(bucket, 1, 1, NOW_MS),
        |bucket| slid(bucket, 1, 1, NOW_MS),
        |admitted, bucket| {
            assert_eq!(admitted, 1);
            assert_eq!(counted(bucket, 1, NOW_MS), [1, 0]);
            assert!((0..2).all(|way| !bucket.members().is_claimed(way)));
        },
    );
}

#[test]
fn of_a_sliding_window_exactly_the_count_is_admitted() {
    race(
        |bucket| assert_eq!(slid(bucket, 1, 3, NOW_MS), 1),
        |bucket| slid(bucket, 1, 3, NOW_MS) + slid(bucket, 1, 3, NOW_MS),
        |bucket| slid(bucket, 1, 3, NOW_MS) + slid(bucket, 1, 3, NOW_MS),
        |admitted, bucket| {
            assert_eq!(admitted, 2);
            assert_eq!(counted(bucket, 1, NOW_MS), [3, 0]);
        },
    );
}

/// In the middle of the next window a full one has half its weight. With a third slot: while one thread adds the new window's
/// counter, the other finds no free slot except that of the previous window.
#[test]
fn a_window_before_weighs_for_both() {
    const MIDDLE_MS: u64 = NOW_MS + WINDOW_MS + WINDOW_MS / 2;
    race_in::<3>(
        |bucket| assert_eq!(slid(bucket, 1, 2, NOW_MS) + slid(bucket, 1, 2, NOW_MS), 2),
        |bucket| slid(bucket, 1, 2, MIDDLE_MS),
        |bucket| slid(bucket, 1, 2, MIDDLE_MS),
        |admitted, bucket| {
            assert_eq!(admitted, 1);
            assert_eq!(counted(bucket, 1, MIDDLE_MS), [1, 2]);
        },
    );
}

/// One thread still is in the previous window. Each admission is counted once, in its own window.
#[test]
fn a_clock_that_is_behind_counts_in_the_window_before() {
    const LATER_MS: u64 = NOW_MS + WINDOW_MS + WINDOW_MS / 2;
    race(
        |bucket| assert_eq!(slid(bucket, 1, 2, NOW_MS), 1),
        |bucket| slid(bucket, 1, 2, LATER_MS) + slid(bucket, 1, 2, LATER_MS),
        |bucket| slid(bucket, 1, 2, NOW_MS + WINDOW_MS - 1),
        |admitted, bucket| {
            let [present, past] = counted(bucket, 1, LATER_MS);
            assert_eq!(past, 2, "there is room for it in its own window");
            // The second request of the other thread sees a previous window that is full, or one that is half full.
            assert!((1..=2).contains(&present), "{present}");
            assert_eq!(1 + admitted as u64, present + past);
        },
    );
}
