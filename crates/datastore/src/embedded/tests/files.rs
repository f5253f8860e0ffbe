//! The file itself: permissions, refusals with their messages, formats, backups; and disks that fill up and lose power, at
//! every step of a commit. Acknowledged changes must always survive.

use super::super::open::{OpenProblem, builder, prepare};
use super::super::tables::{FORMAT, Tables};
use super::*;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, MutexGuard};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The error of opening, with FOLDER for the folder.
fn refusal(folder: &Path, name: &str) -> String {
    let error = EmbeddedStore::open(&folder.join(name), BOUNDS).unwrap_err();
    error.to_string().replace(folder.to_str().unwrap(), "FOLDER")
}

#[test]
fn only_the_owner_reads_the_file_and_nothing_else_is_left() {
    let Fixture { store, folder } = Fixture::new();
    assert_eq!(mode(&folder.path().join("config.redb")), 0o600);
    store.backup(&folder.path().join("backup.redb")).unwrap();
    assert_eq!(mode(&folder.path().join("backup.redb")), 0o600);
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["backup.redb", "config.redb"]);
}

#[test]
fn one_process_has_it_at_a_time() {
    let Fixture { store, folder } = Fixture::new();
    let expected = "FOLDER/config.redb: another process has the store open; stop that process, or name another file";
    assert_eq!(refusal(folder.path(), "config.redb"), expected);
    store.close().unwrap();
    EmbeddedStore::open(&folder.path().join("config.redb"), BOUNDS).unwrap();
}

#[test]
fn a_copy_is_read_and_the_file_stays_as_it_is() {
    let Fixture { mut store, folder } = Fixture::new();
    commit(&mut store, vec![put("routes/1", "a")]);
    let [path, crashed, empty, backup] =
        ["config.redb", "crashed.redb", "empty.redb", "backup.redb"].map(|name| folder.path().join(name));
    let refusal = |path: &Path| EmbeddedStore::open_copy(path).unwrap_err().problem;
    assert!(matches!(refusal(&path), OpenProblem::InUse));
    // Not closed, as after a crash: opening it requires writes.
    fs::copy(&path, &crashed).unwrap();
    let expected = values(&store);
    store.close().unwrap();
    for path in [path, crashed] {
        let before = fs::read(&path).unwrap();
        assert!(before.starts_with(&MAGIC));
        let copy = EmbeddedStore::open_copy(&path).unwrap();
        assert_eq!(values(&copy), expected);
        copy.backup(&backup).unwrap();
        copy.close().unwrap();
        assert!(fs::read(&path).unwrap() == before, "{}", path.display());
        assert_eq!(values(&EmbeddedStore::open(&backup, BOUNDS).unwrap()), expected);
    }
    File::create(&empty).unwrap();
    assert!(matches!(refusal(&empty), OpenProblem::Empty));
    assert!(matches!(refusal(folder.path()), OpenProblem::NotAStore));
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);
}

#[test]
fn a_refusal_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, expected: &str| assert_eq!(refusal(folder.path(), name), expected);
    check("a/b.redb", "FOLDER/a/b.redb: the folder FOLDER/a does not exist; create it, or name another");
    let not_a_store = "this is not a store of Stillgate; name another file, or move this one away";
    fs::write(folder.path().join("text"), "routes:\n- id: 1\n").unwrap();
    check("text", &format!("FOLDER/text: {not_a_store}"));
    File::create(folder.path().join("empty")).unwrap();
    check(
        "empty",
        "FOLDER/empty: the file is empty, so it is not a store; put a backup in its place, or remove it to begin with a new store",
    );
    assert_eq!(fs::metadata(folder.path().join("empty")).unwrap().len(), 0);
    fs::create_dir(folder.path().join("folder")).unwrap();
    check("folder", &format!("FOLDER/folder: {not_a_store}"));
    // A database of redb, but not a store.
    let other = redb::Database::create(folder.path().join("other")).unwrap();
    let transaction = other.begin_write().unwrap();
    transaction.open_table(redb::TableDefinition::<u64, u64>::new("other")).unwrap();
    transaction.commit().unwrap();
    drop(other);
    check("other", &format!("FOLDER/other: {not_a_store}"));
    let denied = OpenError {
        path: "/var/lib/stillgate/config.redb".into(),
        problem: std::io::Error::from_raw_os_error(rustix::io::Errno::ACCESS.raw_os_error()).into(),
    };
    assert_eq!(
        denied.to_string(),
        "/var/lib/stillgate/config.redb: Permission denied (os error 13); let the user that runs Stillgate write this \
         file and its folder"
    );
}

#[test]
fn damage_is_found_when_the_file_is_opened() {
    let Fixture { mut store, folder } = Fixture::new();
    for id in 0..200 {
        commit(&mut store, vec![put(&format!("routes/{id}"), &"x".repeat(500))]);
    }
    let expected = values(&store);
    store.close().unwrap();
    let path = folder.path().join("config.redb");
    let bytes = fs::read(&path).unwrap();
    let page_bytes = 4096;
    let mut damaged = 0;
    for page in 1..bytes.len() / page_bytes {
        let mut bytes = bytes.clone();
        bytes[page * page_bytes + 100..][..64].fill(0xAA);
        fs::write(&path, bytes).unwrap();
        match EmbeddedStore::open(&path, BOUNDS) {
            // The page was free.
            Ok(store) => assert_eq!(values(&store), expected, "page {page}"),
            Err(OpenError { problem: OpenProblem::Damaged(_), .. }) => damaged += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    assert!(damaged > 20, "{damaged}");
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let said = refusal(folder.path(), "config.redb");
    assert!(
        said.contains("the store is damaged (") && said.ends_with("put a backup in its place if you have one"),
        "{said}"
    );
}

#[test]
fn a_newer_format_is_refused_and_an_older_one_is_brought_up() {
    fn step(transaction: &redb::WriteTransaction) -> Result<(), redb::Error> {
        let mut tables = Tables::open(transaction)?;
        tables.last_good.insert("routes/1", "by a step")?;
        Ok(())
    }
    let Fixture { store, folder } = Fixture::new();
    let database = store.database.as_ref().unwrap();
    prepare(database, &[step, step]).unwrap();
    let format = database.begin_read().unwrap().open_table(NUMBERS).unwrap().get(FORMAT).unwrap().unwrap().value();
    assert_eq!((format, store.last_good().unwrap().len()), (3, 1));
    // It must not be called a second time.
    fn never(_: &redb::WriteTransaction) -> Result<(), redb::Error> {
        panic!("the format is known already")
    }
    prepare(database, &[never, never]).unwrap();
    store.close().unwrap();
    let expected = "FOLDER/config.redb: the store has format 3, this version of Stillgate knows formats up to 1; run the \
                    newer version, or use a backup made before the upgrade";
    assert_eq!(refusal(folder.path(), "config.redb"), expected);
}

#[test]
fn a_backup_opens_as_a_store() {
    let Fixture { mut store, folder } = Fixture::new();
    commit(&mut store, vec![put("routes/1", "a"), put_for("routes/2", "b", 60)]);
    commit(&mut store, vec![put("routes/1", "c")]);
    store.set_last_good(&[(key("routes/1"), Some("a".to_owned()))]).unwrap();
    let backup = folder.path().join("backup.redb");
    File::create(&backup).unwrap().write_all(b"an older backup").unwrap();
    store.backup(&backup).unwrap();
    commit(&mut store, vec![delete("routes/1")]);
    let mut copy = EmbeddedStore::open(&backup, BOUNDS).unwrap();
    let documents = vec![(key("routes/1"), document("c", 1, 2)), (key("routes/2"), document("b", 1, 1))];
    assert_eq!(copy.snapshot().unwrap(), Snapshot { revision: 2, documents });
    assert_eq!(copy.history(None, 9).unwrap(), store.history(Some(3), 9).unwrap());
    assert_eq!((copy.next_expiry(), copy.last_good().unwrap().len()), (Some(at(NOW + 60)), 1));
    copy.roll_back(1, 2, &author("ops"), now()).unwrap();
    assert_eq!(commit(&mut copy, vec![put("routes/9", "z")]).revision, 4);
    let refused = store.backup(&folder.path().join("config.redb")).unwrap_err().0;
    assert!(refused.ends_with("config.redb: this is the store itself; name another file"), "{refused}");
    let refused = store.backup(&folder.path().join("none/backup.redb")).unwrap_err().0;
    assert!(refused.ends_with("does not exist; create it, or name another"), "{refused}");
}

/// The unit that a disk writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// A disk with one file, and a cache that loses unsynced writes at a power failure.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Clone, Default)]
struct Content {
    synced: Vec<u8>,
    /// Includes the content of the cache.
    current: Vec<u8>,
    cache: Vec<Operation>,
    /// Operations until it fails; `None` if it works.
    left: Option<usize>,
    fault: Fault,
}

#[derive(Debug, Clone)]
enum Operation {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fault {
    /// Writes fail.
    #[default]
    Full,
    /// Nothing works.
    Dead,
}

impl Operation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Operation::Length(length) => bytes.resize(*length as usize, 0),
            Operation::Write(offset, written) => {
                let end = *offset as usize + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset as usize..end].copy_from_slice(written);
            }
        }
    }
}

impl Disk {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }

    /// A separate disk with the same content.
    fn copy(&self) -> Disk {
        Disk(Arc::new(Mutex::new(self.content().clone())))
    }

    fn fail_after(&self, operations: usize, fault: Fault) {
        let mut content = self.content();
        (content.left, content.fault) = (Some(operations), fault);
    }

    fn repair(&self) {
        self.content().left = None;
    }

    /// Any part of the unsynced writes has reached the disk: none, some sectors, most, or all.
    fn lose_power(&self, random: &mut Random) {
        let kept_per_cent = [0, 50, 95, 100][random.below(4) as usize];
        let mut content = self.content();
        let mut bytes = std::mem::take(&mut content.synced);
        for operation in std::mem::take(&mut content.cache) {
            match operation {
                Operation::Length(_) => operation.apply(&mut bytes),
                Operation::Write(offset, written) => {
                    for (sector, part) in written.chunks(SECTOR_BYTES).enumerate() {
                        if random.below(100) < kept_per_cent {
                            let offset = offset + (sector * SECTOR_BYTES) as u64;
                            Operation::Write(offset, part.to_vec()).apply(&mut bytes);
                        }
                    }
                }
            }
        }
        *content = Content { current: bytes.clone(), synced: bytes, ..Content::default() };
    }

    fn open(&self) -> Result<EmbeddedStore, OpenError> {
        let disk = self.clone();
        let open = move || {
            let fail = |problem| OpenError { path: "disk".into(), problem };
            let database = builder().create_with_backend(disk.clone());
            let database = database.map_err(|error| fail(OpenProblem::from(error)))?;
            prepare(&database, &[]).map_err(fail)?;
            Ok(database)
        };
        EmbeddedStore::open_by(Path::new("disk"), Box::new(open), BOUNDS)
    }
}

impl Content {
    fn step(&mut self, writes: bool) -> Result<(), io::Error> {
        if self.left == Some(0) && (writes || self.fault == Fault::Dead) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        if writes {
            self.left = self.left.map(|left| left - 1);
        }
        Ok(())
    }

    fn change(&mut self, operation: Operation) -> Result<(), io::Error> {
        let done = self.step(true);
        let operation = match operation {
            // A write that fails may have written a part.
            Operation::Write(offset, bytes) if done.is_err() => {
                Operation::Write(offset, bytes[..bytes.len() / 2].to_vec())
            }
            operation => operation,
        };
        if done.is_ok() || self.fault == Fault::Full && matches!(operation, Operation::Write(..)) {
            operation.apply(&mut self.current);
            self.cache.push(operation);
        }
        done
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        let mut content = self.content();
        content.step(false)?;
        Ok(content.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let mut content = self.content();
        content.step(false)?;
        let found = content.current.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(found.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        self.content().change(Operation::Length(length))
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut content = self.content();
        content.step(true)?;
        content.synced = content.current.clone();
        content.cache.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.content().change(Operation::Write(offset, data.to_vec()))
    }
}

/// xorshift: always the same sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// Writes of some keys, with values of many sizes.
    fn writes(&mut self) -> Vec<Write> {
        let count = 1 + self.below(4);
        let keys: BTreeMap<u64, u64> = (0..count).map(|_| (self.below(30), self.below(3000))).collect();
        let write = |(id, bytes): (u64, u64)| match bytes % 4 {
            0 => delete(&format!("routes/{id}")),
            _ => put(&format!("routes/{id}"), &"x".repeat(bytes as usize)),
        };
        keys.into_iter().map(write).collect()
    }
}

#[test]
fn what_was_acknowledged_survives_power_failures() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let disk = Disk::default();
    // States by revision.
    let mut states = vec![Vec::new()];
    disk.open().unwrap().close().unwrap();
    let mut cut_in_commit = 0;
    for cut in 0..300 {
        let mut store = disk.open().unwrap();
        disk.fail_after(random.below(120) as usize, Fault::Dead);
        // A change whose commit failed may exist or not.
        let mut pending = None;
        while pending.is_none() {
            let writes = random.writes();
            let mut state: BTreeMap<_, _> = states.last().unwrap().iter().cloned().collect();
            for write in &writes {
                match write {
                    Write::Put { key, value, .. } => drop(state.insert(key.to_string(), value.clone())),
                    Write::Delete { key } => drop(state.remove(key.as_str())),
                }
            }
            let state: Vec<(String, String)> = state.into_iter().collect();
            match store.commit(&transaction(writes), now()) {
                Ok(batch) if batch.events.is_empty() => {}
                Ok(batch) => {
                    states.push(state);
                    assert_eq!(batch.revision, states.len() as u64 - 1);
                }
                Err(error) => {
                    assert!(matches!(&error, CommitError::Unavailable(text) if text.contains("unknown")), "{error}");
                    pending = Some(state);
                }
            }
        }
        assert!(store.snapshot().is_err());
        drop(store);
        disk.lose_power(&mut random);
        let store = disk.open().unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        if store.revision() == states.len() as u64 {
            cut_in_commit += 1;
            states.extend(pending);
        }
        assert_eq!(store.revision(), states.len() as u64 - 1, "cut {cut}");
        assert_eq!(&values(&store), states.last().unwrap(), "cut {cut}");
        assert_eq!(store.history(None, 1).unwrap().first().map_or(0, |change| change.revision), store.revision());
    }
    assert!(states.len() > 300, "{}", states.len());
    // Some came between the disk and the answer: they exist without being acknowledged.
    assert!((1..200).contains(&cut_in_commit), "{cut_in_commit}");
}

#[test]
fn a_full_disk_loses_nothing_and_space_brings_the_store_back() {
    let full = Disk::default();
    let mut store = full.open().unwrap();
    commit(&mut store, vec![put("routes/1", "a")]);
    store.close().unwrap();
    let change = vec![put("routes/1", &"b".repeat(100_000)), put("routes/2", "c")];
    let (before, after) = ([("routes/1", 1)], [("routes/1", 100_000), ("routes/2", 1)]);
    let mut answers = BTreeMap::new();
    for operations in 0.. {
        let disk = full.copy();
        let mut store = disk.open().unwrap();
        disk.fail_after(operations, Fault::Full);
        let result = store.commit(&transaction(change.clone()), now());
        if let Ok(batch) = result {
            assert_eq!(batch.revision, 2);
            break;
        }
        let text = result.unwrap_err().to_string();
        let answer = ["nothing was changed", "a power failure may undo it", "is unknown until it can"];
        let answer = answer.into_iter().find(|answer| text.contains(answer)).unwrap_or_else(|| panic!("{text}"));
        *answers.entry(answer).or_insert(0) += 1;
        disk.repair();
        // Once there is space, it either continues from its former state, or reports that the change was made after
        // all.
        match store.commit(&transaction(vec![put("routes/3", "d")]), now()) {
            Ok(batch) => assert_eq!(batch.revision, 3 - u64::from(values(&store).len() == 2)),
            Err(error) => assert!(error.to_string().contains("has the change that failed before"), "{error}"),
        }
        let lengths = |store: &EmbeddedStore| -> Vec<(String, usize)> {
            let values = values(store).into_iter().map(|(key, value)| (key, value.len()));
            values.filter(|(key, _)| key != "routes/3").collect()
        };
        let is = |found: &[(String, usize)], expected: &[(&str, usize)]| {
            found.iter().map(|(key, length)| (key.as_str(), *length)).eq(expected.iter().copied())
        };
        let found = lengths(&store);
        assert!(is(&found, &before) || is(&found, &after), "{found:?}");
        commit(&mut store, vec![put("routes/4", "e")]);
        store.close().unwrap();
        disk.open().unwrap();
    }
    assert!(answers.values().sum::<i32>() > 3, "{answers:?}");
}
