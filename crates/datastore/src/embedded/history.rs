//! The history of changes with their authors, and rollbacks.
//!
//! Revisions of the file are contiguous: each has one change, until the oldest are pruned. So a revision can be restored as
//! long as the change after it is kept.

use super::tables::{ChangeRow, NEVER, StoredDocument, TablesView, key, stored};
use crate::document::Key;
use crate::transaction::{Author, CommitError, Write};
use redb::{Error, ReadableTable};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Keys that a summary lists. Only a rollback changes more at once.
pub const SUMMARY_KEYS_MAX: usize = crate::transaction::WRITES_MAX;

/// One revision, without values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeSummary {
    /// The revision it made.
    pub revision: u64,
    /// Its Unix time in milliseconds.
    pub unix_ms: u64,
    /// Its author.
    pub author: Author,
    /// The first [`SUMMARY_KEYS_MAX`] keys that it wrote or deleted.
    pub keys: Vec<Key>,
    /// The number of all keys.
    pub keys_total: usize,
}

/// One revision, with values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The revision it made.
    pub revision: u64,
    /// Its Unix time in milliseconds.
    pub unix_ms: u64,
    /// Its author.
    pub author: Author,
    /// One for each key that it wrote or deleted.
    pub edits: Vec<Edit>,
}

/// The effect of a revision on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The key.
    pub key: Key,
    /// The value before; `None` if there was no document.
    pub before: Option<Arc<str>>,
    /// The value after; `None` if it was deleted, or its time to live was over.
    pub after: Option<Arc<str>>,
}

/// Why a revision cannot be restored. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackError {
    /// History does not reach back to it.
    Pruned {
        /// The oldest revision that can be restored.
        oldest: u64,
    },
    /// It has not been made yet.
    Future {
        /// The current revision.
        current: u64,
    },
    /// The datastore was changed since the rollback was planned.
    Moved {
        /// The current revision.
        current: u64,
    },
    /// The datastore cannot be read or written.
    Commit(CommitError),
}

/// The document of a key at the revision that is restored; `None` if there was none.
pub(super) type Restored = Option<StoredDocument>;

/// The way back to a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayBack<T = Write> {
    /// In the order of keys.
    pub writes: Vec<T>,
    /// Documents of that revision that are not restored, since their time to live has ended. They were not meant to
    /// last, so they are not restored without one either.
    pub expired: Vec<Key>,
}

/// Changes before `before` (`None`: from the newest), newest first.
pub(super) fn summaries(view: &TablesView, before: Option<u64>, count: usize) -> Result<Vec<ChangeSummary>, Error> {
    let range = view.changes.range(..before.unwrap_or(u64::MAX))?.rev().take(count);
    let summary = |row: Result<_, redb::StorageError>| {
        let (revision, row): (redb::AccessGuard<'_, u64>, redb::AccessGuard<'_, ChangeRow>) = row?;
        let (unix_ms, author, keys) = row.value();
        Ok(ChangeSummary {
            revision: revision.value(),
            unix_ms,
            author: parse_author(author)?,
            keys: keys.split('\n').take(SUMMARY_KEYS_MAX).map(key).collect::<Result<_, _>>()?,
            keys_total: keys.split('\n').count(),
        })
    };
    range.map(summary).collect()
}

/// One change; `None` if it was pruned, or never made.
pub(super) fn change(view: &TablesView, revision: u64) -> Result<Option<Change>, Error> {
    let Some(row) = view.changes.get(revision)? else { return Ok(None) };
    let (unix_ms, author, keys) = row.value();
    let value = |stored: Option<StoredDocument>| stored.map(|stored| stored.document.value);
    let edit = |text: &str| {
        let before = before(view, text, revision)?;
        let next = view.edits.range((text, revision + 1)..=(text, u64::MAX))?.next().transpose()?;
        let after = match next {
            Some((_, row)) => StoredDocument::of_row(row.value()),
            None => stored(&view.documents, text)?,
        };
        Ok(Edit { key: key(text)?, before: value(before), after: value(after) })
    };
    let edits = keys.split('\n').map(edit).collect::<Result<_, Error>>()?;
    Ok(Some(Change { revision, unix_ms, author: parse_author(author)?, edits }))
}

/// The writes that restore revision `to`.
pub(super) fn back_to(
    view: &TablesView,
    current: u64,
    to: u64,
    now_ms: u64,
) -> Result<WayBack<(Key, Restored)>, BackError> {
    if to > current {
        return Err(BackError::Future { current });
    }
    let oldest = view.changes.first().map_err(Error::from)?.map_or(current, |(first, _)| first.value() - 1);
    if to < oldest {
        return Err(BackError::Pruned { oldest });
    }
    let mut at = BTreeMap::new();
    // From new to old: the last value kept for a key is that before its first edit after `to`.
    for row in view.changes.range(to + 1..).map_err(Error::from)?.rev() {
        let (revision, row) = row.map_err(Error::from)?;
        for text in row.value().2.split('\n') {
            at.insert(key(text)?, before(view, text, revision.value())?);
        }
    }
    let mut back = WayBack { writes: Vec::new(), expired: Vec::new() };
    for (key, mut then) in at {
        if then.take_if(|then| then.expires_ms != NEVER && then.expires_ms <= now_ms).is_some() {
            back.expired.push(key.clone());
        }
        if !is_same(then.as_ref(), stored(&view.documents, key.as_str())?.as_ref()) {
            back.writes.push((key, then));
        }
    }
    Ok(back)
}

/// Converts it to a [`Write`], for a check or a preview.
pub(super) fn as_write(key: Key, then: Restored, now_ms: u64) -> Write {
    match then {
        None => Write::Delete { key },
        Some(StoredDocument { document, expires_ms }) => {
            let left_seconds = expires_ms.saturating_sub(now_ms).div_ceil(1000);
            let ttl_seconds = (expires_ms != NEVER).then_some(left_seconds);
            Write::Put { key, value: document.value.as_ref().to_owned(), ttl_seconds }
        }
    }
}

fn before(view: &TablesView, key: &str, revision: u64) -> Result<Option<StoredDocument>, Error> {
    match view.edits.get((key, revision))? {
        Some(row) => Ok(StoredDocument::of_row(row.value())),
        None => Err(Error::Corrupted(format!("revision {revision} has no edit of {key}"))),
    }
}

/// Readers do not see the revision that wrote it last, so it is not compared.
fn is_same(one: Option<&StoredDocument>, other: Option<&StoredDocument>) -> bool {
    let parts = |stored: &StoredDocument| (stored.document.value.clone(), stored.document.created, stored.expires_ms);
    one.map(parts) == other.map(parts)
}

fn parse_author(json: &str) -> Result<Author, Error> {
    serde_json::from_str(json).map_err(|error| Error::Corrupted(format!("the author {json:?}: {error}")))
}

impl From<Error> for BackError {
    fn from(error: Error) -> BackError {
        BackError::Commit(CommitError::Unavailable(format!("the store cannot be read: {error}")))
    }
}

impl fmt::Display for BackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackError::Pruned { oldest } => write!(
                f,
                "the history goes back to revision {oldest}; use that or a later one, and raise gateway.config.history_changes \
                 and history_age to keep more"
            ),
            BackError::Future { current } => write!(f, "the newest revision is {current}; use an earlier one"),
            BackError::Moved { current } => {
                write!(f, "the store has changed meanwhile (revision {current}); look at the changes and try again")
            }
            BackError::Commit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BackError {}
