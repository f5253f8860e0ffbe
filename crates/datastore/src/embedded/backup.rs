//! A copy of the whole store, history included, that opens as a store of its own.
//!
//! Copied table by table and not byte by byte: the copy is as small as its content, and was closed properly, so no
//! recovery is needed when it is opened. Commits wait meanwhile, since the store has one owner.

use super::open;
use super::tables::{CHANGES, DOCUMENTS, EDITS, EXPIRIES, LAST_GOOD, NUMBERS};
use redb::{Error, Key, ReadTransaction, ReadableTable, TableDefinition, Value, WriteTransaction};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Writes the copy to a file next to `to`, then renames it to `to`.
pub(super) fn write(from: &ReadTransaction, store: &Path, to: &Path) -> Result<(), String> {
    if is_same_file(store, to) {
        return Err(format!("{}: this is the store itself; name another file", to.display()));
    }
    let fail = |problem| open::OpenError { path: to.to_owned(), problem }.to_string();
    let file = open::partial(to).map_err(|error| fail(error.into()))?;
    let handle = file.as_file().try_clone().map_err(|error| fail(error.into()))?;
    let mut database = open::backend(handle).map_err(fail)?;
    let transaction = database.begin_write().map_err(|error| fail(Error::from(error).into()))?;
    copy_all(from, &transaction).map_err(|error| fail(error.into()))?;
    transaction.commit().map_err(|error| fail(Error::from(error).into()))?;
    // A large transaction doubles a file to be sure of its space.
    database.compact().map_err(|error| fail(Error::from(error).into()))?;
    database.close().map_err(|error| fail(error.into()))?;
    let sync = || -> io::Result<()> {
        file.as_file().sync_all()?;
        file.persist(to).map_err(|error| error.error)?;
        open::sync_folder(to)
    };
    sync().map_err(|error| fail(error.into()))
}

fn copy_all(from: &ReadTransaction, to: &WriteTransaction) -> Result<(), Error> {
    copy(from, to, NUMBERS)?;
    copy(from, to, DOCUMENTS)?;
    copy(from, to, EXPIRIES)?;
    copy(from, to, CHANGES)?;
    copy(from, to, EDITS)?;
    copy(from, to, LAST_GOOD)
}

fn copy<K: Key, V: Value>(
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
