//! The file itself: permissions, refusals with their messages, formats, backups.

use super::super::open::prepare;
use super::super::tables::{FORMAT, Tables};
use super::*;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

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
