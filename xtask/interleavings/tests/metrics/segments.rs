//! Checks the protocol under every order of loads and stores that the memory model allows, within loom's bounds.
//!
//! Each model is as small as possible while it can still fail: a writer and a reader, two or three changes.

use crate::protocol::*;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

// If a thread loads a word before it stores to it, loom 0.7 misses that another thread's load came before: such threads run on the
// model's own thread, which runs first, and the other one is spawned.

/// How often a thread is preempted at most; errors show with two or three.
const PREEMPTIONS_MAX: usize = 3;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.check(model);
}

fn words<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

#[test]
fn a_committed_record_is_whole() {
    struct Log {
        committed: AtomicU64,
        words: [AtomicU64; 4],
    }
    explore(|| {
        let log = Arc::new(Log { committed: AtomicU64::new(0), words: words() });
        let writing = log.clone();
        let writer = thread::spawn(move || {
            for record in [0, 2] {
                writing.words[record].store(1, Ordering::Relaxed);
                writing.words[record + 1].store(1, Ordering::Relaxed);
                commit(&writing.committed, record as u64 + 2);
            }
        });
        for _ in 0..2 {
            let committed = committed(&log.committed) as usize;
            assert!(log.words[..committed].iter().all(|word| word.load(Ordering::Relaxed) == 1));
        }
        writer.join().unwrap();
        assert_eq!(committed(&log.committed), 4);
    });
}

/// A segment with one series, and the reader's state.
struct Series {
    of_writer: AtomicU32,
    of_series: AtomicU32,
    value: AtomicU64,
    committed: AtomicU64,
}

impl Series {
    fn new() -> Arc<Series> {
        let (of_writer, of_series) = (AtomicU32::new(1), AtomicU32::new(0));
        Arc::new(Series { of_writer, of_series, value: AtomicU64::new(0), committed: AtomicU64::new(0) })
    }

    fn change(&self, epoch: u32, value: u64) {
        self.value.store(value, Ordering::Relaxed);
        mark_changed(&self.of_series, epoch);
    }

    /// Like the reader's refresh: the writer's epoch first, then new series, then changed ones.
    fn scan(&self, since: &mut u32, is_known: &mut bool, seen: &mut u64) {
        let epoch = epoch(&self.of_writer);
        let before = *seen;
        if !*is_known {
            *is_known = committed(&self.committed) > 0;
            if *is_known {
                *seen = self.value.load(Ordering::Relaxed);
            }
        } else if has_changed(&self.of_series, *since) {
            see_changes();
            *seen = self.value.load(Ordering::Relaxed);
        }
        assert!(*seen >= before, "a counter stepped back");
        *since = epoch;
    }
}

#[test]
fn no_change_is_missed() {
    explore(|| {
        let series = Series::new();
        commit(&series.committed, 1);
        let writing = series.clone();
        let writer = thread::spawn(move || {
            writing.change(1, 1);
            advance(&writing.of_writer, 2);
            writing.change(2, 2);
        });
        let (mut since, mut is_known, mut seen) = (0, true, 0);
        for _ in 0..2 {
            series.scan(&mut since, &mut is_known, &mut seen);
        }
        writer.join().unwrap();
        series.scan(&mut since, &mut is_known, &mut seen);
        assert_eq!(seen, 2);
    });
}

#[test]
fn no_change_is_missed_though_the_epoch_goes_on_without_one() {
    explore(|| {
        let series = Series::new();
        commit(&series.committed, 1);
        let writing = series.clone();
        let writer = thread::spawn(move || {
            writing.change(1, 1);
            advance(&writing.of_writer, 2);
            advance(&writing.of_writer, 3);
        });
        let (mut since, mut is_known, mut seen) = (0, true, 0);
        for _ in 0..2 {
            series.scan(&mut since, &mut is_known, &mut seen);
        }
        writer.join().unwrap();
        series.scan(&mut since, &mut is_known, &mut seen);
        assert_eq!(seen, 1);
    });
}

#[test]
fn no_change_of_a_new_series_is_missed() {
    explore(|| {
        let series = Series::new();
        let writing = series.clone();
        let writer = thread::spawn(move || {
            mark_changed(&writing.of_series, 1);
            commit(&writing.committed, 1);
            writing.change(1, 1);
            advance(&writing.of_writer, 2);
            writing.change(2, 2);
        });
        let (mut since, mut is_known, mut seen) = (0, false, 0);
        for _ in 0..2 {
            series.scan(&mut since, &mut is_known, &mut seen);
        }
        writer.join().unwrap();
        series.scan(&mut since, &mut is_known, &mut seen);
        assert_eq!((is_known, seen), (true, 2));
    });
}

#[test]
fn who_sees_the_epoch_sees_the_value() {
    explore(|| {
        let series = Series::new();
        let writing = series.clone();
        let writer = thread::spawn(move || writing.change(1, 1));
        if has_changed(&series.of_series, 1) {
            see_changes();
            assert_eq!(series.value.load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
    });
}

#[test]
fn words_that_belong_together_are_never_of_two_minds() {
    struct Both {
        sequence: AtomicU64,
        words: [AtomicU64; 2],
    }
    explore(|| {
        let both = Arc::new(Both { sequence: AtomicU64::new(0), words: words() });
        let writing = both.clone();
        let writer = thread::spawn(move || {
            for value in 1..=2 {
                write(&writing.sequence, || {
                    writing.words[0].store(value, Ordering::Relaxed);
                    writing.words[1].store(value, Ordering::Relaxed);
                });
            }
        });
        let mut seen = [0; 2];
        let look = |seen: &mut [u64; 2]| {
            read(&both.sequence, 2, || *seen = [0, 1].map(|word| both.words[word].load(Ordering::Relaxed)))
        };
        if look(&mut seen) == ReadOutcome::Whole {
            assert_eq!(seen[0], seen[1]);
        }
        writer.join().unwrap();
        assert_eq!(look(&mut seen), ReadOutcome::Whole, "nobody changes it any more");
        assert_eq!(seen, [2; 2]);
    });
}

struct Inbox {
    asked: AtomicU64,
    done: AtomicU64,
    request: AtomicU64,
    old_record: AtomicU64,
}

impl Inbox {
    fn new() -> Arc<Inbox> {
        let [asked, done, request, old_record] = words();
        Arc::new(Inbox { asked, done, request, old_record })
    }

    fn post(&self) {
        self.request.store(7, Ordering::Relaxed);
        ask(&self.asked);
    }

    /// A writer that counts and runs its errand now and then. Later counts go to another record.
    fn count(&self) -> u64 {
        let mut counted = 0;
        for _ in 0..2 {
            if self.done.load(Ordering::Relaxed) == 0 {
                counted += 1;
                self.old_record.store(counted, Ordering::Relaxed);
            }
            if is_asked(&self.asked, &self.done) {
                assert_eq!(self.request.load(Ordering::Relaxed), 7);
                finish(&self.asked, &self.done);
            }
        }
        counted
    }

    /// The content of the old record once it cannot change any more.
    fn last(&self) -> Option<u64> {
        (!is_pending(&self.asked, &self.done)).then(|| self.old_record.load(Ordering::Relaxed))
    }
}

#[test]
fn an_errand_is_known_when_it_is_run() {
    explore(|| {
        let inbox = Inbox::new();
        let asking = inbox.clone();
        let asker = thread::spawn(move || {
            asking.post();
            asking.last()
        });
        let counted = inbox.count();
        assert!(asker.join().unwrap().is_none_or(|last| last == counted));
    });
}

#[test]
fn what_an_errand_forgot_does_not_change_any_more() {
    explore(|| {
        let inbox = Inbox::new();
        inbox.post();
        let asking = inbox.clone();
        let asker = thread::spawn(move || asking.last());
        let counted = inbox.count();
        assert!(asker.join().unwrap().is_none_or(|last| last == counted));
    });
}

#[test]
fn a_table_is_seen_before_or_after_a_change() {
    struct List {
        turns: AtomicU64,
        tables: [[AtomicU64; 2]; 2],
    }
    explore(|| {
        let list = Arc::new(List { turns: AtomicU64::new(0), tables: [words(), words()] });
        let looking = list.clone();
        let reader = thread::spawn(move || {
            let mut seen = [0; 2];
            let turn = read_current(&looking.turns, |table| {
                seen = [0, 1].map(|word| looking.tables[table][word].load(Ordering::Relaxed));
            });
            assert_eq!(seen, [turn; 2]);
        });
        for value in 1..=2 {
            turn_over(&list.turns, |table| {
                list.tables[table].iter().for_each(|word| word.store(value, Ordering::Relaxed));
            });
        }
        reader.join().unwrap();
    });
}

const FOLD: u64 = 1;
const EXACT: u64 = 2;
const OTHER: u64 = 3;

/// A writer's log of single words, committed one by one.
struct Notes {
    committed: AtomicU64,
    words: [AtomicU64; 2],
}

impl Notes {
    fn new() -> Notes {
        Notes { committed: AtomicU64::new(0), words: words() }
    }

    fn write(&self, notes: &[u64]) {
        for (index, note) in notes.iter().enumerate() {
            self.words[index].store(*note, Ordering::Relaxed);
            commit(&self.committed, index as u64 + 1);
        }
    }

    /// Makes a series, like a writer that has seen this policy.
    fn make(&self, policy: CollapseState) {
        match policy.generation {
            0 => self.write(&[EXACT]),
            _ => self.write(&[FOLD, OTHER]),
        }
    }

    fn read(&self) -> Vec<u64> {
        let committed = committed(&self.committed) as usize;
        self.words[..committed].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

#[test]
fn who_reads_what_was_made_under_a_policy_has_read_the_fold() {
    struct World {
        policy: AtomicU64,
        notes: [Notes; 2],
    }
    explore(|| {
        let world = Arc::new(World { policy: AtomicU64::new(0), notes: [Notes::new(), Notes::new()] });
        let collapsing = world.clone();
        let first = thread::spawn(move || {
            collapsing.notes[0]
                .make(collapse(&collapsing.policy, CollapseState::default(), 1).unwrap_or_else(|now| now));
        });
        let following = world.clone();
        let second = thread::spawn(move || following.notes[1].make(policy(&following.policy)));
        // In the worst order: the log with the decision comes first.
        let logs = [world.notes[0].read(), world.notes[1].read()];
        let knows = logs.iter().flatten().any(|note| *note == FOLD);
        for log in &logs {
            let other = log.iter().position(|note| *note == OTHER);
            assert!(other.is_none() || knows, "a series of others and no fold: {logs:?}");
            let fold = log.iter().position(|note| *note == FOLD);
            let exact = log.iter().rposition(|note| *note == EXACT);
            assert!(fold.is_none_or(|fold| exact.is_none_or(|exact| exact < fold)), "behind its fold: {logs:?}");
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn a_fold_names_all_labels_that_have_collapsed_before() {
    struct World {
        policy: AtomicU64,
        ever: AtomicU32,
    }
    explore(|| {
        let before = CollapseState { collapsed: 0b01, generation: 1 };
        let world = Arc::new(World { policy: AtomicU64::new(0), ever: AtomicU32::new(0) });
        assert_eq!(collapse(&world.policy, CollapseState::default(), 0b01), Ok(before));
        let opening = world.clone();
        let collector = thread::spawn(move || reopen(&opening.policy, &opening.ever, before));
        let collapsing = world.clone();
        let writer = thread::spawn(move || {
            let seen = policy(&collapsing.policy);
            let _ = collapse(&collapsing.policy, seen, 0b10);
        });
        let seen = policy(&world.policy);
        let expected = if seen.generation == 1 { 0b01 } else { 0b11 };
        assert_eq!(ever_collapsed(&world.ever, seen) & expected, expected, "{seen:?}");
        collector.join().unwrap();
        writer.join().unwrap();
    });
}
