//! `kill -9` while a store is written: every acknowledged change exists, complete, and the store opens.
//!
//! ```text
//! cargo test -p stillgate-datastore --test all kill::
//! STILLGATE_TEST_KILLS=1000 cargo test -p stillgate-datastore --test all kill::
//! ```

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds};
use stillgate_datastore::{Author, Condition, Key, Snapshot, Transaction, Write};

/// The store of the test that runs in a process of its own; without it the test does nothing.
const STORE: &str = "STILLGATE_TEST_STORE";

/// How often it is killed.
const KILLS: &str = "STILLGATE_TEST_KILLS";
const KILLS_DEFAULT: u64 = 20;

/// Printed before each revision that the store has acknowledged.
const ACKNOWLEDGED: &str = "acknowledged ";

const BOUNDS: HistoryBounds = HistoryBounds { history_changes_max: 50, history_age_max: Duration::from_secs(3600) };

/// Values are larger than a page now and then.
const VALUE_BYTES_MAX: u64 = 9000;

/// Documents come and go in a round of this many revisions.
const ROUND: u64 = 40;

/// The writes of revision `revision`, on top of those before it.
fn writes(revision: u64) -> Vec<Write> {
    let key = |text: String| Key::parse(&text).unwrap();
    let value = |salt: u64| format!("{revision} {}", "x".repeat((revision * 7919 * salt % VALUE_BYTES_MAX) as usize));
    let put = |text: String, salt| Write::Put { key: key(text), value: value(salt), ttl_seconds: None };
    let place = revision % ROUND;
    let one = match revision / ROUND % 2 {
        0 => put(format!("routes/{place}"), 3),
        _ => Write::Delete { key: key(format!("routes/{place}")) },
    };
    vec![put("upstreams/1".to_owned(), 1), put(format!("services/{place}"), 2), one]
}

/// The documents of a store after this many revisions.
fn expected(revision: u64) -> Vec<(Key, String)> {
    let mut all = std::collections::BTreeMap::new();
    for revision in 1..=revision {
        for write in writes(revision) {
            match write {
                Write::Put { key, value, .. } => drop(all.insert(key, value)),
                Write::Delete { key } => drop(all.remove(&key)),
            }
        }
    }
    all.into_iter().collect()
}

/// In a process of its own: commits until it is killed.
#[test]
fn committing_process() {
    let Some(path) = std::env::var_os(STORE).map(PathBuf::from) else { return };
    let mut store = EmbeddedStore::open(&path, BOUNDS).unwrap();
    let parent = std::os::unix::process::parent_id();
    let mut output = std::io::stdout();
    while std::os::unix::process::parent_id() == parent {
        let revision = store.revision() + 1;
        let present = if revision == 1 { Condition::Absent } else { Condition::Modified(revision - 1) };
        let conditions = vec![(Key::parse("upstreams/1").unwrap(), present)];
        let transaction =
            Transaction { conditions, unreferenced: Vec::new(), writes: writes(revision), author: Author::default() };
        let batch = store.commit(&transaction, SystemTime::now()).unwrap();
        writeln!(output, "{ACKNOWLEDGED}{}", batch.revision).unwrap();
    }
}

/// A process that commits until it is killed.
struct CommittingProcess {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The last revision that it printed.
    acknowledged: u64,
}

impl CommittingProcess {
    fn start(path: &Path) -> CommittingProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["kill::committing_process", "--exact", "--nocapture"]).env(STORE, path);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        CommittingProcess { child, lines, acknowledged: 0 }
    }

    /// Reads one line; `false` at the end.
    fn read(&mut self) -> bool {
        let mut line = String::new();
        let bytes = self.lines.read_line(&mut line).unwrap();
        // The test runner prints lines of its own, and the last one may be cut off.
        if let Some(revision) = line.strip_prefix(ACKNOWLEDGED).filter(|_| line.ends_with('\n')) {
            self.acknowledged = revision.trim_end().parse().unwrap();
        }
        bytes > 0
    }

    /// Kills it; returns the last revision it acknowledged.
    fn kill(&mut self) -> u64 {
        assert_eq!(self.child.try_wait().unwrap(), None, "it ends by being killed only");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while self.read() {}
        self.acknowledged
    }
}

impl Drop for CommittingProcess {
    fn drop(&mut self) {
        // It has ended already unless a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.redb");
    let kills = std::env::var(KILLS).map_or(KILLS_DEFAULT, |kills| kills.parse().unwrap());
    let mut random = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(std::process::id());
    let (mut revision, mut unacknowledged) = (0, 0);
    for kill in 0..kills {
        let mut committing = CommittingProcess::start(&path);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The first ones are killed while the store is created.
        let wanted = if kill % 4 == 0 { 0 } else { revision + 1 + random % 20 };
        while committing.acknowledged < wanted && committing.read() {}
        let until = Instant::now() + Duration::from_micros(random % 5000);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let acknowledged = committing.kill().max(revision);
        let store = EmbeddedStore::open(&path, BOUNDS).unwrap();
        assert!((acknowledged..=acknowledged + 1).contains(&store.revision()), "{acknowledged}, {}", store.revision());
        revision = store.revision();
        unacknowledged += revision - acknowledged;
        let Snapshot { revision: at, documents } = store.snapshot().unwrap();
        let found = documents.into_iter().map(|(key, document)| (key, document.value.to_string()));
        assert_eq!((at, found.collect::<Vec<_>>()), (revision, expected(revision)));
        let history = store.history(None, usize::MAX).unwrap();
        let kept = (revision.saturating_sub(BOUNDS.history_changes_max) + 1..=revision).rev();
        assert!(history.iter().map(|change| change.revision).eq(kept));
    }
    println!("{kills} kills, {revision} revisions; {unacknowledged} kills came between the disk and the answer");
}
