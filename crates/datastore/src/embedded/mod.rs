//! The embedded datastore: one file, nothing to install.
//!
//! ```text
//!  Transaction ─▶ conditions ─▶ documents + history + revision ─▶ fdatasync ─▶ Batch
//!                └──────────── one write transaction of redb ────────────┘
//! ```
//!
//! [`EmbeddedStore`] is synchronous and has one owner, which runs it in a thread of its own: every change waits for the
//! disk. It keeps no documents in memory; [`crate::Documents`] does that for readers.
//!
//! After [`CommitError::Unavailable`] the change may have been made or not: compare [`EmbeddedStore::revision`] with the
//! last batch, and take a [`EmbeddedStore::snapshot`] if it differs.

mod history;
mod open;
mod tables;
#[cfg(test)]
mod tests;

use crate::document::{Batch, Document, Event, Key, Snapshot};
use crate::transaction::{Author, CommitError, Condition, ReferenceCheck, Transaction, WRITES_MAX, Write};
pub use history::{BackError, Change, ChangeSummary, Edit, SUMMARY_KEYS_MAX, WayBack};
pub use open::{MAGIC, OpenError, OpenProblem};
use redb::{
    Database, Error, ReadTransaction, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata,
    WriteTransaction,
};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tables::{
    DOCUMENTS, EXPIRIES, LAST_GOOD, NEVER, NUMBERS, REVISION, StoredDocument, Tables, TablesView, key, stored,
};

/// Bytes of all values that one transaction writes.
pub const TRANSACTION_BYTES_MAX: usize = 8 << 20;

/// Bytes of all values that one change of many documents writes.
pub const MANY_BYTES_MAX: usize = 64 << 20;

/// Documents that one call of [`EmbeddedStore::expire`] deletes.
pub const EXPIRED_AT_ONCE_MAX: usize = 1000;

/// Bounds of the history. Both apply; every change removes entries beyond them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Changes.
    pub history_changes_max: u64,
    /// Age of a change.
    pub history_age_max: Duration,
}

/// An open store.
pub struct EmbeddedStore {
    path: PathBuf,
    open: Opener,
    /// `None` if a write failed, and the file could not be opened since.
    database: Option<Database>,
    bounds: HistoryBounds,
    revision: u64,
    next_expiry_ms: Option<u64>,
}

/// The store cannot be read, copied or closed; the text is the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub String);

/// Reopens the file. A seam for tests, which simulate disks that fail or lose power.
type Opener = Box<dyn Fn() -> Result<Database, OpenError> + Send>;

/// Why a change ends before its commit.
enum ChangeFailure {
    Refused(CommitError),
    Disk(Error),
}

impl EmbeddedStore {
    /// Opens the store at `path`; makes an empty one, readable by its owner only, if there is none.
    pub fn open(path: &Path, bounds: HistoryBounds) -> Result<EmbeddedStore, OpenError> {
        let again = path.to_owned();
        EmbeddedStore::open_by(path, Box::new(move || open::file(&again)), bounds)
    }

    /// Opens a copy of the store at `path`, which itself is not changed, for reading and for backups.
    pub fn open_copy(path: &Path) -> Result<EmbeddedStore, OpenError> {
        // Nothing is written, so the bounds of history are never applied.
        const BOUNDS: HistoryBounds = HistoryBounds { history_changes_max: u64::MAX, history_age_max: Duration::MAX };
        let again = path.to_owned();
        EmbeddedStore::open_by(path, Box::new(move || open::copy(&again)), BOUNDS)
    }

    /// Everything.
    pub fn snapshot(&self) -> Result<Snapshot, Unavailable> {
        self.read(|from| {
            let revision = revision(from)?;
            let mut documents = Vec::new();
            for row in from.open_table(DOCUMENTS)?.iter()? {
                let (key, row) = row?;
                let stored = StoredDocument::of_row(row.value());
                let stored = stored.ok_or_else(|| Error::Corrupted(format!("{} has no revision", key.value())))?;
                documents.push((tables::key(key.value())?, stored.document));
            }
            Ok(Snapshot { revision, documents })
        })
    }

    /// Revision of the last change; 0 if there was none.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Makes a change; it is on the disk when this returns. A transaction that only deletes missing documents is not a
    /// change: its batch has the current revision and no events.
    pub fn commit(&mut self, transaction: &Transaction, now: SystemTime) -> Result<Batch, CommitError> {
        check_size(&transaction.writes, WRITES_MAX, TRANSACTION_BYTES_MAX)?;
        self.commit_sized(transaction, now)
    }

    /// Like [`EmbeddedStore::commit`], for many documents, such as a replacement of everything: with any number of writes, and
    /// [`MANY_BYTES_MAX`].
    pub fn commit_many(&mut self, transaction: &Transaction, now: SystemTime) -> Result<Batch, CommitError> {
        check_size(&transaction.writes, usize::MAX, MANY_BYTES_MAX)?;
        self.commit_sized(transaction, now)
    }

    fn commit_sized(&mut self, transaction: &Transaction, now: SystemTime) -> Result<Batch, CommitError> {
        let now_ms = unix_ms(now);
        self.change(&transaction.author, now_ms, |change| {
            check_conditions(change, &transaction.conditions)?;
            check_unreferenced(change, &transaction.unreferenced)?;
            for write in &transaction.writes {
                match write {
                    Write::Delete { key } => change.delete(key)?,
                    Write::Put { key, value, ttl_seconds } => {
                        let expires_ms = ttl_seconds.map(|ttl| now_ms.saturating_add(ttl.saturating_mul(1000)));
                        change.put(key, value, expires_ms.unwrap_or(NEVER), None)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Deletes documents whose time to live is over, [`EXPIRED_AT_ONCE_MAX`] at most: call it until it returns `None`.
    pub fn expire(&mut self, now: SystemTime) -> Result<Option<Batch>, CommitError> {
        let now_ms = unix_ms(now);
        if self.next_expiry_ms.is_none_or(|next| next > now_ms) {
            return Ok(None);
        }
        let author = Author { name: "ttl".to_owned(), address: String::new(), action: "expire".to_owned() };
        let batch = self.change(&author, now_ms, |change| {
            let mut due = Vec::new();
            for row in change.tables.expiries.range(..(now_ms.saturating_add(1), ""))?.take(EXPIRED_AT_ONCE_MAX) {
                due.push(tables::key(row?.0.value().1)?);
            }
            due.iter().try_for_each(|key| Ok(change.delete(key)?))
        })?;
        Ok((!batch.events.is_empty()).then_some(batch))
    }

    /// The time when [`EmbeddedStore::expire`] has work to do next.
    pub fn next_expiry(&self) -> Option<SystemTime> {
        self.next_expiry_ms.map(|next| UNIX_EPOCH + Duration::from_millis(next))
    }

    /// The newest changes before revision `before` (`None`: all changes), newest first.
    pub fn history(&self, before: Option<u64>, count: usize) -> Result<Vec<ChangeSummary>, Unavailable> {
        self.read(|from| history::summaries(&TablesView::open(from)?, before, count))
    }

    /// One change with its values; `None` if it was pruned, or never made.
    pub fn change_at(&self, revision: u64) -> Result<Option<Change>, Unavailable> {
        self.read(|from| history::change(&TablesView::open(from)?, revision))
    }

    /// The effect of [`EmbeddedStore::roll_back`], for a check or a preview. It may have more writes than a transaction can
    /// have.
    pub fn way_back_to(&self, revision: u64, now: SystemTime) -> Result<WayBack, BackError> {
        let now_ms = unix_ms(now);
        let WayBack { writes, expired } = self.back_to(revision, now_ms)?;
        let writes = writes.into_iter().map(|(key, then)| history::as_write(key, then, now_ms));
        Ok(WayBack { writes: writes.collect(), expired })
    }

    /// Restores the documents of revision `to`, as one change: values, times to live, and the revisions that created
    /// the documents, on which the order of routes depends. `expected` is the revision it was planned at; it must still
    /// be the current one. If nothing differs, the batch has the current revision and no events.
    pub fn roll_back(&mut self, to: u64, expected: u64, author: &Author, now: SystemTime) -> Result<Batch, BackError> {
        if expected != self.revision {
            return Err(BackError::Moved { current: self.revision });
        }
        let now_ms = unix_ms(now);
        let writes = self.back_to(to, now_ms)?.writes;
        let batch = self.change(author, now_ms, |change| {
            writes.iter().try_for_each(|(key, then)| match then {
                None => Ok(change.delete(key)?),
                Some(StoredDocument { document, expires_ms }) => {
                    Ok(change.put(key, &document.value, *expires_ms, Some(document.created))?)
                }
            })
        });
        batch.map_err(BackError::Commit)
    }

    /// Keeps the value of a document that is served in place of a rejected one, or forgets it (`None`). This is not a
    /// change of the store and has no revision. Write it before the rejected value is committed: a crash in between is
    /// harmless then. Deleting the document forgets it, too.
    pub fn set_last_good(&mut self, values: &[(Key, Option<String>)]) -> Result<(), CommitError> {
        self.write(|change| {
            let mut last_good = change.tables.last_good;
            for (key, value) in values {
                match value {
                    Some(value) => drop(last_good.insert(key.as_str(), value.as_str())?),
                    None => drop(last_good.remove(key.as_str())?),
                }
            }
            Ok(((), !values.is_empty()))
        })
    }

    /// The values kept by [`EmbeddedStore::set_last_good`], in the order of keys.
    pub fn last_good(&self) -> Result<Vec<(Key, String)>, Unavailable> {
        self.read(|from| {
            let table = from.open_table(LAST_GOOD)?;
            let value = |row: Result<_, redb::StorageError>| {
                let (key, value): (redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &str>) = row?;
                Ok((tables::key(key.value())?, value.value().to_owned()))
            };
            table.iter()?.map(value).collect()
        })
    }

    /// Writes a consistent copy to `to`, readable by its owner only; an older file there is replaced when the copy is complete.
    /// To restore it, put it in the place of the store.
    pub fn backup(&self, to: &Path) -> Result<(), Unavailable> {
        let from = self.begin_read()?;
        open::write_backup(&from, &self.path, to).map_err(Unavailable)
    }

    /// Closes the file, so that another process can open it. Dropping does the same without reporting an error.
    pub fn close(self) -> Result<(), Unavailable> {
        let Some(database) = self.database else { return Ok(()) };
        database.close().map_err(|error| Unavailable(format!("{}: {error}", self.path.display())))
    }

    fn open_by(path: &Path, open: Opener, bounds: HistoryBounds) -> Result<EmbeddedStore, OpenError> {
        let path = path.to_owned();
        let mut store = EmbeddedStore { path, open, database: None, bounds, revision: 0, next_expiry_ms: None };
        store.database = Some(store.reopen()?);
        Ok(store)
    }

    /// Opens the file, and reads the values that are kept in memory.
    fn reopen(&mut self) -> Result<Database, OpenError> {
        let database = (self.open)()?;
        let read = || -> Result<_, Error> {
            let from = database.begin_read()?;
            Ok((revision(&from)?, next_expiry_ms(&from.open_table(EXPIRIES)?)?))
        };
        let fail = |error: Error| OpenError { path: self.path.clone(), problem: error.into() };
        (self.revision, self.next_expiry_ms) = read().map_err(fail)?;
        Ok(database)
    }

    fn begin_read(&self) -> Result<ReadTransaction, Unavailable> {
        let database = self.database.as_ref().ok_or_else(|| {
            Unavailable(format!("{}: a write failed; the next change tries to open it again", self.path.display()))
        })?;
        database.begin_read().map_err(|error| self.unreadable(&error.into()))
    }

    fn read<T>(&self, work: impl FnOnce(&ReadTransaction) -> Result<T, Error>) -> Result<T, Unavailable> {
        work(&self.begin_read()?).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &Error) -> Unavailable {
        Unavailable(format!("{}: {error}", self.path.display()))
    }

    fn back_to(&self, to: u64, now_ms: u64) -> Result<WayBack<(Key, history::Restored)>, BackError> {
        let unavailable = |Unavailable(why)| BackError::Commit(CommitError::Unavailable(why));
        let from = self.begin_read().map_err(unavailable)?;
        history::back_to(&TablesView::open(&from)?, self.revision, to, now_ms)
    }

    /// One revision, made by `work`.
    fn change(
        &mut self,
        author: &Author,
        now_ms: u64,
        work: impl FnOnce(&mut PendingRevision<'_>) -> Result<(), ChangeFailure>,
    ) -> Result<Batch, CommitError> {
        let bounds = self.bounds;
        let batch = self.write(|mut change| {
            work(&mut change)?;
            let batch = change.end(author, now_ms, &bounds)?;
            let is_changed = !batch.events.is_empty();
            Ok((batch, is_changed))
        })?;
        self.revision = batch.revision;
        Ok(batch)
    }

    /// One write transaction of redb, committed if `work` reports a change.
    fn write<T>(
        &mut self,
        work: impl FnOnce(PendingRevision<'_>) -> Result<(T, bool), ChangeFailure>,
    ) -> Result<T, CommitError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.reopen_later()?,
        };
        let attempt = || -> Result<_, ChangeFailure> {
            let transaction = database.begin_write()?;
            let (value, is_changed) = work(PendingRevision::begin(&transaction, self.revision)?)?;
            let next_expiry_ms = next_expiry_ms(&transaction.open_table(EXPIRIES)?)?;
            if is_changed {
                transaction.commit()?;
            } else {
                transaction.abort()?;
            }
            Ok((value, next_expiry_ms))
        };
        let result = match attempt() {
            Ok((value, next_expiry_ms)) => {
                self.next_expiry_ms = next_expiry_ms;
                Ok(value)
            }
            Err(ChangeFailure::Refused(error)) => Err(error),
            Err(ChangeFailure::Disk(error)) => {
                // The file must be closed before it is opened again.
                drop(database);
                return Err(self.recover(&error));
            }
        };
        self.database = Some(database);
        result
    }

    /// redb accepts no writes after a failed one, until the file is opened again. So that is done at once, which also
    /// shows whether the change was made. The change itself is not tried again: its author has to know.
    fn recover(&mut self, error: &Error) -> CommitError {
        let before = self.revision;
        let reopened = self.reopen().map(|database| self.database = Some(database));
        let path = self.path.display();
        CommitError::Unavailable(match reopened {
            Ok(()) if self.revision == before => format!("{path}: {error}; nothing was changed"),
            Ok(()) => {
                format!("{path}: {error}; the change was made, but a power failure may undo it: look at the disk")
            }
            Err(reopening) => format!(
                "{path}: {error}; the store could not be opened again, so whether the change was made is unknown until it \
                 can: {reopening}"
            ),
        })
    }

    /// Opens the file for a later change, if [`Self::recover`] failed.
    fn reopen_later(&mut self) -> Result<Database, CommitError> {
        let before = self.revision;
        let database = self.reopen().map_err(|error| CommitError::Unavailable(error.to_string()))?;
        if self.revision == before {
            return Ok(database);
        }
        self.database = Some(database);
        let path = self.path.display();
        Err(CommitError::Unavailable(format!(
            "{path}: the store is open again, and has the change that failed before; look at it, then try again"
        )))
    }
}

fn check_size(writes: &[Write], writes_max: usize, bytes_max: usize) -> Result<(), CommitError> {
    if !(1..=writes_max).contains(&writes.len()) {
        let count = writes.len();
        return Err(CommitError::TooLarge(format!("{count} writes; one transaction takes 1 to {writes_max}")));
    }
    let value_bytes = |write: &Write| match write {
        Write::Put { value, .. } => value.len(),
        Write::Delete { .. } => 0,
    };
    let bytes: usize = writes.iter().map(value_bytes).sum();
    if bytes > bytes_max {
        return Err(CommitError::TooLarge(format!("{bytes} bytes; one transaction takes at most {bytes_max}")));
    }
    let mut keys = HashSet::new();
    match writes.iter().find(|write| !keys.insert(write.key())) {
        Some(twice) => Err(CommitError::TooLarge(format!("{} is written twice; write it once", twice.key()))),
        None => Ok(()),
    }
}

fn check_conditions(change: &PendingRevision<'_>, conditions: &[(Key, Condition)]) -> Result<(), ChangeFailure> {
    for (key, condition) in conditions {
        let stored = tables::stored(&change.tables.documents, key.as_str())?;
        let modified = stored.map(|stored| stored.document.modified);
        let holds = match condition {
            Condition::Absent => modified.is_none(),
            Condition::Present => modified.is_some(),
            Condition::Modified(expected) => modified == Some(*expected),
        };
        if !holds {
            return Err(ChangeFailure::Refused(CommitError::Conflict { key: key.clone(), modified }));
        }
    }
    Ok(())
}

fn check_unreferenced(change: &PendingRevision<'_>, conditions: &[ReferenceCheck]) -> Result<(), ChangeFailure> {
    for condition in conditions {
        if let Some((key, modified)) = change.reference(condition)? {
            return Err(ChangeFailure::Refused(CommitError::Conflict { key, modified: Some(modified) }));
        }
    }
    Ok(())
}

fn revision(from: &ReadTransaction) -> Result<u64, Error> {
    let revision = from.open_table(NUMBERS)?.get(REVISION)?.map(|revision| revision.value());
    revision.ok_or_else(|| Error::Corrupted("it has no revision".to_owned()))
}

fn next_expiry_ms(expiries: &impl redb::ReadableTable<(u64, &'static str), ()>) -> Result<Option<u64>, Error> {
    Ok(expiries.first()?.map(|(next, _)| next.value().0))
}

/// A clock before 1970 is wrong, and counts as 1970.
fn unix_ms(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl<E: Into<Error>> From<E> for ChangeFailure {
    fn from(error: E) -> ChangeFailure {
        ChangeFailure::Disk(error.into())
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore")
            .field("path", &self.path)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

// One revision in the making: documents, their times to live, their history, all in one transaction of the file.
//
// It writes without checks: the caller checks conditions and bounds.

/// A revision that is not committed yet.
struct PendingRevision<'t> {
    tables: Tables<'t>,
    revision: u64,
    events: Vec<Event>,
}

impl<'t> PendingRevision<'t> {
    /// Begins the revision after `last`.
    fn begin(transaction: &'t WriteTransaction, last: u64) -> Result<PendingRevision<'t>, Error> {
        Ok(PendingRevision { tables: Tables::open(transaction)?, revision: last + 1, events: Vec::new() })
    }

    /// The first document that breaks a condition, with the revision that wrote it. History lists the few that were
    /// written since; if it does not reach back far enough, all documents below the path are checked.
    fn reference(&self, condition: &ReferenceCheck) -> Result<Option<(Key, u64)>, Error> {
        let mut expected = condition.since + 1;
        for row in self.tables.changes.range(expected..)? {
            let (revision, row) = row?;
            if revision.value() != expected {
                break;
            }
            expected += 1;
            let (_, _, keys) = row.value();
            for path in keys.split('\n').filter(|path| path.starts_with(&condition.below)) {
                let found = stored(&self.tables.documents, path)?.map(|found| found.document);
                if let Some(document) = found.filter(|document| condition.is_broken_by(document)) {
                    return Ok(Some((key(path)?, document.modified)));
                }
            }
        }
        if expected >= self.revision {
            return Ok(None);
        }
        for row in self.tables.documents.range(condition.below.as_str()..)? {
            let (path, row) = row?;
            if !path.value().starts_with(&condition.below) {
                break;
            }
            let found = StoredDocument::of_row(row.value()).map(|found| found.document);
            if let Some(document) = found.filter(|document| condition.is_broken_by(document)) {
                return Ok(Some((key(path.value())?, document.modified)));
            }
        }
        Ok(None)
    }

    /// Writes a document. `created` is for one that is restored from history; others keep theirs, or begin with this
    /// revision.
    fn put(&mut self, key: &Key, value: &str, expires_ms: u64, created: Option<u64>) -> Result<(), Error> {
        let before = stored(&self.tables.documents, key.as_str())?;
        let created = created.or(before.as_ref().map(|before| before.document.created)).unwrap_or(self.revision);
        let document = Document { value: value.into(), created, modified: self.revision };
        let after = StoredDocument { document: document.clone(), expires_ms };
        self.tables.documents.insert(key.as_str(), StoredDocument::row(Some(&after)))?;
        if expires_ms != NEVER {
            self.tables.expiries.insert((expires_ms, key.as_str()), ())?;
        }
        let is_kept = |before: &StoredDocument| before.expires_ms == expires_ms;
        if let Some(before) = before.as_ref().filter(|before| !is_kept(before)) {
            self.forget_expiry(key, before)?;
        }
        self.record(key, before.as_ref(), Some(document))
    }

    /// Deletes a document, and the last good value with it; without a document it does nothing.
    fn delete(&mut self, key: &Key) -> Result<(), Error> {
        let Some(before) = stored(&self.tables.documents, key.as_str())? else { return Ok(()) };
        self.tables.documents.remove(key.as_str())?;
        self.tables.last_good.remove(key.as_str())?;
        self.forget_expiry(key, &before)?;
        self.record(key, Some(&before), None)
    }

    /// Ends the revision; without a write there is none. The caller commits the transaction.
    fn end(mut self, author: &Author, now_ms: u64, bounds: &HistoryBounds) -> Result<Batch, Error> {
        if self.events.is_empty() {
            return Ok(Batch { revision: self.revision - 1, events: Vec::new() });
        }
        self.tables.numbers.insert(REVISION, self.revision)?;
        let author = serde_json::to_string(author).map_err(|error| Error::Io(error.into()))?;
        let keys: Vec<&str> = self.events.iter().map(|event| event.key.as_str()).collect();
        self.tables.changes.insert(self.revision, (now_ms, author.as_str(), keys.join("\n").as_str()))?;
        self.prune(now_ms, bounds)?;
        Ok(Batch { revision: self.revision, events: self.events })
    }

    fn record(&mut self, key: &Key, before: Option<&StoredDocument>, document: Option<Document>) -> Result<(), Error> {
        self.tables.edits.insert((key.as_str(), self.revision), StoredDocument::row(before))?;
        self.events.push(Event { key: key.clone(), document });
        Ok(())
    }

    fn forget_expiry(&mut self, key: &Key, stored: &StoredDocument) -> Result<(), Error> {
        if stored.expires_ms != NEVER {
            self.tables.expiries.remove((stored.expires_ms, key.as_str()))?;
        }
        Ok(())
    }

    /// Removes the oldest changes until both bounds hold.
    fn prune(&mut self, now_ms: u64, bounds: &HistoryBounds) -> Result<(), Error> {
        let age_ms = u64::try_from(bounds.history_age_max.as_millis()).unwrap_or(u64::MAX);
        loop {
            let Some((revision, unix_ms, keys)) = self.oldest()? else { return Ok(()) };
            let is_old = unix_ms.saturating_add(age_ms) < now_ms;
            if !is_old && self.tables.changes.len()? <= bounds.history_changes_max {
                return Ok(());
            }
            self.tables.changes.remove(revision)?;
            for key in keys.split('\n') {
                self.tables.edits.remove((key, revision))?;
            }
        }
    }

    /// Revision, time and keys of the oldest change.
    fn oldest(&self) -> Result<Option<(u64, u64, String)>, Error> {
        let oldest = self.tables.changes.first()?;
        Ok(oldest.map(|(revision, row)| {
            let (unix_ms, _, keys) = row.value();
            (revision.value(), unix_ms, keys.to_owned())
        }))
    }
}
