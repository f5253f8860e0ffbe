//! One revision in the making: documents, their times to live, their history, all in one transaction of the file.
//!
//! It writes without checks: the caller checks conditions and bounds.

use super::HistoryBounds;
use super::tables::{NEVER, REVISION, StoredDocument, Tables, key, stored};
use crate::document::{Batch, Document, Event};
use crate::key::Key;
use crate::transaction::{Author, ReferenceCheck};
use redb::{Error, ReadableTable, ReadableTableMetadata, WriteTransaction};

/// A revision that is not committed yet.
pub(super) struct PendingRevision<'t> {
    pub(super) tables: Tables<'t>,
    revision: u64,
    events: Vec<Event>,
}

impl<'t> PendingRevision<'t> {
    /// Begins the revision after `last`.
    pub(super) fn begin(transaction: &'t WriteTransaction, last: u64) -> Result<PendingRevision<'t>, Error> {
        Ok(PendingRevision { tables: Tables::open(transaction)?, revision: last + 1, events: Vec::new() })
    }

    /// The first document that breaks a condition, with the revision that wrote it. History lists the few that were
    /// written since; if it does not reach back far enough, all documents below the path are checked.
    pub(super) fn reference(&self, condition: &ReferenceCheck) -> Result<Option<(Key, u64)>, Error> {
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
    pub(super) fn put(&mut self, key: &Key, value: &str, expires_ms: u64, created: Option<u64>) -> Result<(), Error> {
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
    pub(super) fn delete(&mut self, key: &Key) -> Result<(), Error> {
        let Some(before) = stored(&self.tables.documents, key.as_str())? else { return Ok(()) };
        self.tables.documents.remove(key.as_str())?;
        self.tables.last_good.remove(key.as_str())?;
        self.forget_expiry(key, &before)?;
        self.record(key, Some(&before), None)
    }

    /// Ends the revision; without a write there is none. The caller commits the transaction.
    pub(super) fn end(mut self, author: &Author, now_ms: u64, bounds: &HistoryBounds) -> Result<Batch, Error> {
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
