//! A disk without space, and a file that may not grow: changes are refused with a message, nothing is lost, and space
//! makes the store work again without a restart.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds};
use stillgate_datastore::{Author, CommitError, Key, Transaction, Write};

/// The folder of tests that run in a process of their own; without it they do nothing.
const FOLDER: &str = "STILLGATE_TEST_FULL";

const BOUNDS: HistoryBounds = HistoryBounds { history_changes_max: 1000, history_age_max: Duration::from_secs(3600) };

/// Bytes of the tmpfs.
const TMPFS_BYTES: usize = 2 << 20;

/// Bytes of the file of a store that may not grow.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// More commits than fit into either.
const COMMITS_MAX: usize = 1000;

/// Runs a test of this file in a process of its own, through `script` if there is one, with folder and bytes as
/// arguments.
fn run(test: &str, script: Option<&str>) {
    let folder = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let mut command = match script {
        None => Command::new(this),
        Some(script) => {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script]).arg(this);
            command.arg(folder.path()).arg(TMPFS_BYTES.to_string());
            command
        }
    };
    let test = format!("full_disk::{test}");
    command.args([&test, "--exact", "--nocapture"]).env(FOLDER, folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn commit(store: &mut EmbeddedStore, number: usize) -> Result<u64, CommitError> {
    let key = Key::parse(&format!("routes/{number}")).unwrap();
    let writes = vec![Write::Put { key, value: "x".repeat(5000), ttl_seconds: None }];
    let transaction =
        Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author: Author::default() };
    store.commit(&transaction, SystemTime::now()).map(|batch| batch.revision)
}

/// Commits until the space is used up, then makes space.
fn check(path: &Path, mut store: EmbeddedStore, expected: &str, make_space: impl FnOnce()) {
    let failed = (0..COMMITS_MAX).find_map(|number| commit(&mut store, number).err().map(|error| (number, error)));
    let (number, error) = failed.unwrap();
    let text = error.to_string();
    assert!(matches!(error, CommitError::Unavailable(_)) && text.contains(expected), "{text}");
    assert!(number > 10, "{number}");
    println!("{text}");
    // Again and again, without damage.
    for _ in 0..3 {
        assert!(matches!(commit(&mut store, number), Err(CommitError::Unavailable(_))));
    }
    make_space();
    assert_eq!(commit(&mut store, number).unwrap(), number as u64 + 1);
    let check = |store: &EmbeddedStore| {
        let documents = store.snapshot().unwrap().documents;
        assert_eq!(documents.len(), number + 1);
        assert!(documents.iter().all(|(_, document)| document.value.len() == 5000));
    };
    check(&store);
    store.close().unwrap();
    check(&EmbeddedStore::open(path, BOUNDS).unwrap());
}

#[test]
fn a_file_that_may_not_grow() {
    run("on_a_limited_file", None);
}

#[test]
fn a_full_tmpfs() {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if is_root {
        let script = "this=\"$0\" && mount -t tmpfs -o size=\"$2\" none \"$1\" && shift 2 && exec \"$this\" \"$@\"";
        run("on_a_full_tmpfs", Some(script));
    } else {
        eprintln!("skipped: mounting a small tmpfs needs root");
    }
}

/// In a process of its own.
#[test]
fn on_a_limited_file() {
    let Some(folder) = folder() else { return };
    // A handler, so that the signal does not end the process; the write fails instead.
    signal_hook::flag::register(rustix::process::Signal::XFSZ.as_raw(), Arc::new(AtomicBool::new(false))).unwrap();
    let path = folder.join("config.redb");
    let store = EmbeddedStore::open(&path, BOUNDS).unwrap();
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(FILE_BYTES_MAX), ..before }).unwrap();
    check(&path, store, "File too large", || setrlimit(Resource::Fsize, before).unwrap());
}

/// In a process and a mount namespace of its own.
#[test]
fn on_a_full_tmpfs() {
    let Some(folder) = folder() else { return };
    let path = folder.join("config.redb");
    let filler = folder.join("filler");
    let store = EmbeddedStore::open(&path, BOUNDS).unwrap();
    fs::write(&filler, vec![1; TMPFS_BYTES / 2]).unwrap();
    check(&path, store, "No space left on device", || fs::remove_file(&filler).unwrap());
}
