//! Opens the file, makes a new one, converts an older one to the present format, and copies a whole store, history
//! included, into a file that opens as a store of its own.
//!
//! redb writes its magic number last, so an interrupted creation leaves a file that it refuses later. Therefore a new
//! store is made under another name, and renamed when it is complete. Nothing here repairs files: redb recovers from a
//! crash when it opens a file, and if it cannot, that is reported.
//!
//! A store is copied table by table and not byte by byte: the copy is as small as its content, and was closed properly, so
//! no recovery is needed when it is opened. Commits wait meanwhile, since the store has one owner.

use super::tables::{CHANGES, DOCUMENTS, EDITS, EXPIRIES, FORMAT, LAST_GOOD, NUMBERS, REVISION, Tables};
use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, Error, Key, ReadTransaction, ReadableTable, StorageError, TableDefinition,
    TableError, TableHandle as _, Value, WriteTransaction,
};
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Memory that redb may use for pages of the file. The gateway keeps documents in memory itself and reads the file at
/// the start, so a cache for more than one change is useless.
const CACHE_BYTES_MAX: usize = 1 << 20;

/// The beginning of every store's file: redb's magic number.
pub const MAGIC: [u8; 9] = *b"redb\x1a\n\xa9\r\n";

/// Only readable by the owner: it holds credentials.
const FILE_MODE: u32 = 0o600;

/// Each converts format n + 1 to n + 2. All necessary ones run in one transaction.
const STEPS: &[FormatMigration] = &[];

/// One change of the format.
type FormatMigration = fn(&WriteTransaction) -> Result<(), Error>;

/// Why a store cannot be opened.
#[derive(Debug)]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub problem: OpenProblem,
}

/// Problems with the file of a store.
#[derive(Debug)]
pub enum OpenProblem {
    /// Its folder does not exist.
    NoFolder,
    /// The user of this process may not read or write it, or the file system is read-only.
    Denied(io::Error),
    /// Another process, or another part of this one, has it open.
    InUse,
    /// It is another kind of file.
    NotAStore,
    /// It has no content: it was cut off, or another program made it. Our stores are never empty, see [`create`].
    Empty,
    /// Its content is damaged; the text describes it.
    Damaged(String),
    /// A newer version of Stillgate wrote it.
    Newer {
        /// Its format.
        found: u64,
        /// The newest format that this version supports.
        known: u64,
    },
    /// The disk failed, or is full.
    Disk(Error),
}

/// Opens the store at `path`, or makes an empty one.
pub(super) fn file(path: &Path) -> Result<Database, OpenError> {
    let fail = |problem| OpenError { path: path.to_owned(), problem };
    match OpenOptions::new().read(true).write(true).mode(FILE_MODE).open(path) {
        Ok(file) => {
            // redb would make a new database of it, and the store's content would silently be lost.
            if file.metadata().map_err(|error| fail(error.into()))?.len() == 0 {
                return Err(fail(OpenProblem::Empty));
            }
            let database = backend(file).map_err(fail)?;
            prepare(&database, STEPS).map_err(fail)?;
            Ok(database)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path).map_err(fail),
        Err(error) => Err(fail(error.into())),
    }
}

/// A copy of the store at `path`, in a file without a name: opening may write (a recovery, another format), but not to
/// the store. redb can also open a file only for reading, but then recovers nothing and verifies no checksums.
pub(super) fn copy(path: &Path) -> Result<Database, OpenError> {
    let fail = |problem| OpenError { path: path.to_owned(), problem };
    let database = backend(open_copy(path).map_err(fail)?).map_err(fail)?;
    prepare(&database, STEPS).map_err(fail)?;
    Ok(database)
}

fn open_copy(path: &Path) -> Result<File, OpenProblem> {
    // Before it is opened: a FIFO would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(OpenProblem::NotAStore);
    }
    let mut file = File::open(path)?;
    // A process that writes to the file has locked it, and no process can open it while it is copied.
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenProblem::InUse),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    let mut copy = || {
        let mut copy = tempfile::tempfile()?;
        io::copy(&mut file, &mut copy).map(|bytes| (copy, bytes))
    };
    match copy() {
        // redb would make a store of an empty file.
        Ok((_, 0)) => Err(OpenProblem::Empty),
        Ok((copy, _)) => Ok(copy),
        Err(error) => {
            let why = format!("cannot copy it to {}: {error}", std::env::temp_dir().display());
            Err(OpenProblem::Disk(Error::Io(io::Error::new(error.kind(), why))))
        }
    }
}

/// A database of redb in a file that is empty or has one.
fn backend(file: File) -> Result<Database, OpenProblem> {
    let backend = FileBackend::new(file)?;
    Ok(builder().create_with_backend(backend)?)
}

/// The builder for all files. Every open verifies the checksums of all pages, as is necessary after a crash anyway: 0.2
/// s for 60,000 routes. So damage is found while an operator is present, not months later during a change.
pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES_MAX).set_check_integrity_on_open(true);
    builder
}

/// A file without a final name yet, readable by its owner only, in the folder of `path`.
fn partial(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut prefix = name.to_owned();
    prefix.push(".");
    tempfile::Builder::new().prefix(&prefix).suffix(".partial").tempfile_in(folder(path))
}

/// Makes a new name in the folder of `path` survive a power failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder(path))?.sync_all()
}

/// Makes the tables in a new database, or converts those of an older one to the present format.
pub(super) fn prepare(database: &Database, steps: &[FormatMigration]) -> Result<(), OpenProblem> {
    let known = 1 + steps.len() as u64;
    let transaction = database.begin_write().map_err(Error::from)?;
    let found = match transaction.list_tables().map_err(Error::from)?.next() {
        None => 0,
        Some(_) => format(&transaction)?,
    };
    if found == known {
        return Ok(transaction.abort().map_err(Error::from)?);
    }
    if found > known {
        return Err(OpenProblem::Newer { found, known });
    }
    if found > 0 {
        for step in steps.iter().skip(found as usize - 1) {
            step(&transaction)?;
        }
    }
    {
        let mut tables = Tables::open(&transaction)?;
        tables.numbers.insert(FORMAT, known).map_err(Error::from)?;
        if found == 0 {
            tables.numbers.insert(REVISION, 0).map_err(Error::from)?;
        }
    }
    Ok(transaction.commit().map_err(Error::from)?)
}

fn format(transaction: &WriteTransaction) -> Result<u64, OpenProblem> {
    // Opening for writing would make the table; a database with other tables but not this one is not ours.
    if !transaction.list_tables().map_err(Error::from)?.any(|table| table.name() == NUMBERS.name()) {
        return Err(OpenProblem::NotAStore);
    }
    let numbers = match transaction.open_table(NUMBERS) {
        Ok(numbers) => numbers,
        Err(TableError::Storage(error)) => return Err(OpenProblem::from(error)),
        Err(_) => return Err(OpenProblem::NotAStore),
    };
    let format = numbers.get(FORMAT).map_err(Error::from)?.map(|format| format.value());
    format.filter(|format| *format > 0).ok_or(OpenProblem::NotAStore)
}

fn create(path: &Path) -> Result<Database, OpenProblem> {
    let file = partial(path)?;
    // The kernel sees both as one open file, so redb's lock outlives the other handle.
    let database = backend(file.as_file().try_clone()?)?;
    prepare(&database, STEPS)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Err(OpenProblem::InUse),
        Err(error) => return Err(error.error.into()),
    }
    sync_folder(path)?;
    Ok(database)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl From<io::Error> for OpenProblem {
    fn from(error: io::Error) -> OpenProblem {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => OpenProblem::NoFolder,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => OpenProblem::Denied(error),
            io::ErrorKind::IsADirectory | io::ErrorKind::InvalidData => OpenProblem::NotAStore,
            // A page of the file is beyond its end.
            io::ErrorKind::UnexpectedEof => OpenProblem::Damaged("it is too short".to_owned()),
            _ => OpenProblem::Disk(Error::Io(error)),
        }
    }
}

impl From<DatabaseError> for OpenProblem {
    fn from(error: DatabaseError) -> OpenProblem {
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => OpenProblem::InUse,
            DatabaseError::Storage(error) => error.into(),
            error => OpenProblem::Disk(error.into()),
        }
    }
}

impl From<StorageError> for OpenProblem {
    fn from(error: StorageError) -> OpenProblem {
        Error::from(error).into()
    }
}

impl From<Error> for OpenProblem {
    fn from(error: Error) -> OpenProblem {
        match error {
            Error::Io(error) => error.into(),
            Error::Corrupted(why) => OpenProblem::Damaged(why),
            error => OpenProblem::Disk(error),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.problem {
            OpenProblem::NoFolder => {
                write!(f, "the folder {} does not exist; create it, or name another", folder(&self.path).display())
            }
            OpenProblem::Denied(error) => {
                write!(f, "{error}; let the user that runs Stillgate write this file and its folder")
            }
            OpenProblem::InUse => {
                f.write_str("another process has the store open; stop that process, or name another file")
            }
            OpenProblem::NotAStore => {
                f.write_str("this is not a store of Stillgate; name another file, or move this one away")
            }
            OpenProblem::Empty => f.write_str(
                "the file is empty, so it is not a store; put a backup in its place, or remove it to begin with a new store",
            ),
            OpenProblem::Damaged(why) => {
                write!(f, "the store is damaged ({why}); move it away, and put a backup in its place if you have one")
            }
            OpenProblem::Newer { found, known } => write!(
                f,
                "the store has format {found}, this version of Stillgate knows formats up to {known}; run the newer \
                 version, or use a backup made before the upgrade"
            ),
            OpenProblem::Disk(error) => write!(f, "{error}; free space or repair the disk, then try again"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Writes the copy to a file next to `to`, then renames it to `to`.
pub(super) fn write_backup(from: &ReadTransaction, store: &Path, to: &Path) -> Result<(), String> {
    if is_same_file(store, to) {
        return Err(format!("{}: this is the store itself; name another file", to.display()));
    }
    let fail = |problem| OpenError { path: to.to_owned(), problem }.to_string();
    let file = partial(to).map_err(|error| fail(error.into()))?;
    let handle = file.as_file().try_clone().map_err(|error| fail(error.into()))?;
    let mut database = backend(handle).map_err(fail)?;
    let transaction = database.begin_write().map_err(|error| fail(Error::from(error).into()))?;
    copy_all(from, &transaction).map_err(|error| fail(error.into()))?;
    transaction.commit().map_err(|error| fail(Error::from(error).into()))?;
    // A large transaction doubles a file to be sure of its space.
    database.compact().map_err(|error| fail(Error::from(error).into()))?;
    database.close().map_err(|error| fail(error.into()))?;
    let sync = || -> io::Result<()> {
        file.as_file().sync_all()?;
        file.persist(to).map_err(|error| error.error)?;
        sync_folder(to)
    };
    sync().map_err(|error| fail(error.into()))
}

fn copy_all(from: &ReadTransaction, to: &WriteTransaction) -> Result<(), Error> {
    copy_table(from, to, NUMBERS)?;
    copy_table(from, to, DOCUMENTS)?;
    copy_table(from, to, EXPIRIES)?;
    copy_table(from, to, CHANGES)?;
    copy_table(from, to, EDITS)?;
    copy_table(from, to, LAST_GOOD)
}

fn copy_table<K: Key, V: Value>(
    from: &ReadTransaction,
    to: &WriteTransaction,
    table: TableDefinition<'_, K, V>,
) -> Result<(), Error> {
    let (from, mut to) = (from.open_table(table)?, to.open_table(table)?);
    for row in from.iter()? {
        let (key, value) = row?;
        to.insert(key.value(), value.value())?;
    }
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}
