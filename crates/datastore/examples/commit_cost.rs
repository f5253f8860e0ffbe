//! Measures the cost of a commit on this disk, compared with the fdatasync it requires, and the cost of an open and a
//! backup.
//!
//! ```text
//! cargo run --release --example commit_cost -p stillgate-datastore -- FOLDER [COMMITS [DOCUMENTS]]
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds};
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_datastore::{Author, Key, Transaction, Write};

const COMMITS: usize = 1000;
const DOCUMENTS: usize = 60_000;

/// Bytes of a value: a route with a few plugins.
const VALUE_BYTES: usize = 600;

/// Bytes that a small commit of the store writes, rounded up: the plain file writes as many before each fdatasync.
const PLAIN_WRITE_BYTES: usize = 32 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("name a folder on the disk to measure")?);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (commits, documents) = (number(COMMITS)?, number(DOCUMENTS)?);
    let folder = tempfile::Builder::new().prefix("commit-cost").tempdir_in(folder)?;
    print("fdatasync of a plain file", &mut plain(folder.path(), commits)?);

    let path = folder.path().join("config.redb");
    let bounds = HistoryBounds { history_changes_max: 10_000, history_age_max: Duration::from_secs(90 * 86_400) };
    let mut store = EmbeddedStore::open(&path, bounds)?;
    print("commit, empty store", &mut commit(&mut store, commits, 1000)?);
    let began = Instant::now();
    fill(&mut store, documents)?;
    println!("{documents} documents written in {:.1?}, {WRITES_MAX} a commit", began.elapsed());
    print("commit, full store", &mut commit(&mut store, commits, documents)?);

    println!("memory of this process: {}", own_memory()?);

    let began = Instant::now();
    let snapshot = store.snapshot()?;
    println!("snapshot of {} documents: {:.1?}", snapshot.documents.len(), began.elapsed());
    let began = Instant::now();
    store.backup(&folder.path().join("backup.redb"))?;
    println!("backup: {:.1?}, {} bytes", began.elapsed(), fs::metadata(folder.path().join("backup.redb"))?.len());
    // A file as a kill leaves it: its bytes while the store is open.
    let killed = folder.path().join("killed.redb");
    fs::copy(&path, &killed)?;
    let began = Instant::now();
    store.close()?;
    println!("close: {:.1?}, {} bytes", began.elapsed(), fs::metadata(&path)?.len());
    for (what, path) in [("open after a close", &path), ("open after a kill", &killed)] {
        let began = Instant::now();
        EmbeddedStore::open(path, bounds)?;
        println!("{what}: {:.1?}", began.elapsed());
    }
    Ok(())
}

fn plain(folder: &Path, count: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let file = File::create(folder.join("plain"))?;
    let bytes = vec![b'x'; PLAIN_WRITE_BYTES];
    let slots = 64;
    // Overwrites, like most commits of the store.
    (0..slots).try_for_each(|slot| file.write_all_at(&bytes, slot * PLAIN_WRITE_BYTES as u64))?;
    file.sync_all()?;
    let write = |turn: usize| {
        let began = Instant::now();
        file.write_all_at(&bytes, (turn as u64 % slots) * PLAIN_WRITE_BYTES as u64)?;
        file.sync_data()?;
        Ok(began.elapsed())
    };
    (0..count).map(write).collect()
}

fn commit(store: &mut EmbeddedStore, count: usize, documents: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let write = |turn: usize| {
        // A prime steps through all documents without order.
        let transaction = transaction(vec![put(turn * 7919 % documents, turn)?]);
        let began = Instant::now();
        store.commit(&transaction, SystemTime::now())?;
        Ok(began.elapsed())
    };
    (0..count).map(write).collect()
}

fn fill(store: &mut EmbeddedStore, documents: usize) -> Result<(), Box<dyn Error>> {
    let all: Vec<usize> = (0..documents).collect();
    for part in all.chunks(WRITES_MAX) {
        let writes = part.iter().map(|&document| put(document, 0)).collect::<Result<_, _>>()?;
        store.commit(&transaction(writes), SystemTime::now())?;
    }
    Ok(())
}

fn put(document: usize, turn: usize) -> Result<Write, Box<dyn Error>> {
    let key = Key::parse(&format!("routes/{document:06}"))?;
    let value = format!("{{\"turn\":{turn},\"x\":\"{}\"}}", "x".repeat(VALUE_BYTES));
    Ok(Write::Put { key, value, ttl_seconds: None })
}

fn transaction(writes: Vec<Write>) -> Transaction {
    Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author: Author::default() }
}

/// Memory without pages of files.
fn own_memory() -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    Ok(line.ok_or("the kernel does not say RssAnon")?.trim().to_owned())
}

fn print(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |per_cent: usize| times.get(times.len() * per_cent / 100).copied().unwrap_or_default();
    println!("{what}: median {:.0?}, p99 {:.0?} of {}", at(50), at(99), times.len());
}
