//! Processes that count in one table and are killed at any moment: nothing is admitted beyond the limit, at most one
//! request per killed process is lost, and no slot stays unusable.
//!
//! The test's executable starts itself again, with the table as its standard input.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_limits::{Limit, Limits};

/// The notes of a process that a test has started; without it this is not such a process.
const NOTES: &str = "STILLGATE_TEST_NOTES";
const KILLS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(300);
/// The limit that all share: too high to be reached before the last process is killed.
const SHARED: Limit = Limit { count: 1 << 30, window_ms: 3_600_000 };
/// The limit of keys that come and go all the time.
const PASSING: Limit = Limit { count: 3, window_ms: 5 };
/// Passing keys that a process adds between two requests to the shared limit.
const PASSING_PER_SHARED: u64 = 200;
/// Four buckets: most operations are additions and evictions.
const TABLE_BYTES: usize = 4_096 + 4 * 512;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn take_shared(limits: &Limits, limit: Limit) -> bool {
    let key = limits.hasher().part(b"shared").finish();
    limits.take_fixed(key, limit, 1, now_ms()).unwrap().admitted
}

fn take_passing(limits: &Limits, process: u32, number: u64) {
    let key = limits.hasher().part(&process.to_le_bytes()).part(&number.to_le_bytes()).finish();
    limits.take_fixed(key, PASSING, 1, now_ms()).unwrap();
}

/// In a process of its own: counts until it is killed, and notes its share of the shared limit.
#[test]
fn counting_process() {
    let Some(notes) = std::env::var_os(NOTES) else { return };
    let notes = File::create(notes).unwrap();
    let limits = Limits::open(io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
    let parent = std::os::unix::process::parent_id();
    let (mut given, mut passing) = (0u64, 0);
    while std::os::unix::process::parent_id() == parent {
        given += u64::from(take_shared(&limits, SHARED));
        notes.write_all_at(&given.to_le_bytes(), 0).unwrap();
        for _ in 0..PASSING_PER_SHARED {
            passing += 1;
            take_passing(&limits, std::process::id(), passing);
        }
    }
}

/// A process that counts until it is killed.
struct CountingProcess {
    child: Child,
    notes: PathBuf,
}

impl CountingProcess {
    fn start(limits: &Limits, folder: &Path, number: u64) -> CountingProcess {
        let notes = folder.join(number.to_string());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["two_processes::counting_process", "--exact", "--nocapture"]).env(NOTES, &notes);
        command.stdin(limits.as_fd().try_clone_to_owned().unwrap()).stdout(Stdio::null());
        CountingProcess { child: command.spawn().unwrap(), notes }
    }

    /// Its share of the shared limit, according to its notes.
    fn given(&self) -> u64 {
        let mut given = [0; 8];
        // The notes do not exist yet: it got nothing.
        let read = File::open(&self.notes).and_then(|notes| notes.read_exact_at(&mut given, 0));
        read.map_or(0, |()| u64::from_le_bytes(given))
    }

    fn kill(&mut self) -> u64 {
        assert_eq!(self.child.try_wait().unwrap(), None, "it ends by being killed only");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.given()
    }
}

impl Drop for CountingProcess {
    fn drop(&mut self) {
        // It has ended already unless a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn killed_at_any_moment_nobody_admits_more_or_is_held_up() {
    let (folder, limits) = (tempfile::tempdir().unwrap(), Limits::create(TABLE_BYTES).unwrap());
    let (mut given, mut passing) = (0, 0);
    let mut random = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(std::process::id());
    for number in 0..KILLS {
        let mut counting = CountingProcess::start(&limits, folder.path(), number);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let patience = Instant::now() + PATIENCE;
        let mut until = None;
        // This process counts in the same table all the time.
        while until.is_none_or(|until| Instant::now() < until) {
            passing += 1;
            take_passing(&limits, 0, passing);
            given += u64::from(passing % 100 == 0 && take_shared(&limits, SHARED));
            if until.is_none() && passing % 100 == 0 && counting.given() > 0 {
                until = Some(Instant::now() + Duration::from_micros(random % 20_000));
            }
            assert!(Instant::now() < patience, "process {number} does not count");
        }
        given += counting.kill();
    }
    let happened = limits.events();
    assert_eq!((happened.contended, happened.disturbed), (0, 0));
    // The rest of a limit that is above the sum of shares: each process may have counted one that it did not note.
    let spare = 10;
    let limit = Limit { count: given + KILLS + spare, ..SHARED };
    let left = (0..2 * limit.count).take_while(|_| take_shared(&limits, limit)).count() as u64;
    assert!((spare..=KILLS + spare).contains(&left), "{left} left of {}", limit.count);
    // Once claims are old, every slot is used again.
    let later_ms = now_ms() + 60_000;
    let fill =
        |number: u64| limits.take_fixed(limits.hasher().part(&number.to_le_bytes()).finish(), SHARED, 1, later_ms);
    assert!((0..2_000).all(|number| fill(number).unwrap().admitted));
    assert_eq!(limits.counters(later_ms), limits.counters_max());
    assert!(given > KILLS && happened.evicted > KILLS, "{given} {happened:?}");
}
