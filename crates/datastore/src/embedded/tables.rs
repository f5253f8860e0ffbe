//! The tables of the file, and the rows in them.
//!
//! ```text
//!  numbers    name            ─▶ number: format, revision
//!  documents  key             ─▶ Row
//!  expiries   (unix ms, key)  ─▶ ()          one for each document with a time to live, the next one first
//!  changes    revision        ─▶ (unix ms, author as JSON, keys joined by '\n')
//!  edits      (key, revision) ─▶ Row before that revision; `NO_ROW` if there was no document
//!  last_good  key             ─▶ value
//! ```
//!
//! An edit keeps only the row before it. The row after it is kept by the next edit of the key, or is the present
//! document. So each value is stored once, and a change costs the size of the replaced value.

use crate::document::{Document, Key};
use redb::{Error, ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

/// (created, modified, time to live as unix ms or [`NEVER`], value).
pub(super) type Row = (u64, u64, u64, &'static str);

/// (unix ms, author as JSON, keys joined by `'\n'`, which no key contains).
pub(super) type ChangeRow = (u64, &'static str, &'static str);

pub(super) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
pub(super) const DOCUMENTS: TableDefinition<&str, Row> = TableDefinition::new("documents");
pub(super) const EXPIRIES: TableDefinition<(u64, &str), ()> = TableDefinition::new("expiries");
pub(super) const CHANGES: TableDefinition<u64, ChangeRow> = TableDefinition::new("changes");
pub(super) const EDITS: TableDefinition<(&str, u64), Row> = TableDefinition::new("edits");
pub(super) const LAST_GOOD: TableDefinition<&str, &str> = TableDefinition::new("last_good");

/// In `numbers`: the version of this format.
pub(super) const FORMAT: &str = "format";
/// In `numbers`: the revision of the last change.
pub(super) const REVISION: &str = "revision";

/// The time to live of a document that has none.
pub(super) const NEVER: u64 = 0;

/// Revisions begin at 1, so no document has this row.
const NO_ROW: (u64, u64, u64, &str) = (0, 0, NEVER, "");

/// A document with the data that only this datastore has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredDocument {
    pub(super) document: Document,
    /// Unix time in ms, or [`NEVER`].
    pub(super) expires_ms: u64,
}

impl StoredDocument {
    /// The document of a row; `None` for [`NO_ROW`].
    pub(super) fn of_row((created, modified, expires_ms, value): (u64, u64, u64, &str)) -> Option<StoredDocument> {
        (modified > 0)
            .then(|| StoredDocument { document: Document { value: value.into(), created, modified }, expires_ms })
    }

    /// The reverse of [`StoredDocument::of_row`].
    pub(super) fn row(stored: Option<&StoredDocument>) -> (u64, u64, u64, &str) {
        stored.map_or(NO_ROW, |StoredDocument { document, expires_ms }| {
            (document.created, document.modified, *expires_ms, &document.value)
        })
    }
}

/// All tables, open for one change.
pub(super) struct Tables<'t> {
    pub(super) numbers: Table<'t, &'static str, u64>,
    pub(super) documents: Table<'t, &'static str, Row>,
    pub(super) expiries: Table<'t, (u64, &'static str), ()>,
    pub(super) changes: Table<'t, u64, ChangeRow>,
    pub(super) edits: Table<'t, (&'static str, u64), Row>,
    pub(super) last_good: Table<'t, &'static str, &'static str>,
}

impl<'t> Tables<'t> {
    /// Opens all tables, and makes missing ones.
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Tables<'t>, Error> {
        Ok(Tables {
            numbers: transaction.open_table(NUMBERS)?,
            documents: transaction.open_table(DOCUMENTS)?,
            expiries: transaction.open_table(EXPIRIES)?,
            changes: transaction.open_table(CHANGES)?,
            edits: transaction.open_table(EDITS)?,
            last_good: transaction.open_table(LAST_GOOD)?,
        })
    }
}

/// The tables for queries about documents and history, at one revision.
pub(super) struct TablesView {
    pub(super) documents: ReadOnlyTable<&'static str, Row>,
    pub(super) changes: ReadOnlyTable<u64, ChangeRow>,
    pub(super) edits: ReadOnlyTable<(&'static str, u64), Row>,
}

impl TablesView {
    pub(super) fn open(transaction: &ReadTransaction) -> Result<TablesView, Error> {
        Ok(TablesView {
            documents: transaction.open_table(DOCUMENTS)?,
            changes: transaction.open_table(CHANGES)?,
            edits: transaction.open_table(EDITS)?,
        })
    }
}

/// The document under a key.
pub(super) fn stored(
    documents: &impl ReadableTable<&'static str, Row>,
    key: &str,
) -> Result<Option<StoredDocument>, Error> {
    Ok(documents.get(key)?.and_then(|row| StoredDocument::of_row(row.value())))
}

/// A key as it was written; a file that passed its checksums has no other text.
pub(super) fn key(text: &str) -> Result<Key, Error> {
    Key::parse(text).map_err(|error| Error::Corrupted(format!("the key {text:?}: {error}")))
}
