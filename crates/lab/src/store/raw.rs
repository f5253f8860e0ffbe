//! Raw data of measurements, next to the lines of a store: each a file named by the SHA-256 of its bytes.
//!
//! `STORE/MACHINE/raw/ab/abcdef…`, so that stores can still be merged by copying folders, and duplicates are stored
//! once. A measurement writes them to the folder in `STILLGATE_RAW`. During a night they are kept in a temporary
//! folder; files that no line refers to never reach the store. They are written before the lines, so a night that is
//! killed in between leaves files without a line, which the next night removes, and never a line without its files.

use super::{Contents, StoreLine, folder_of};
use crate::error::{Error, Result};
use crate::output;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The variable that names the folder for a command's raw data.
pub(crate) const VARIABLE: &str = "STILLGATE_RAW";

/// Name of each machine's folder of raw data.
const FOLDER: &str = "raw";

/// Larger raw data are not kept: histograms have some kilobytes, and a night has thousands of measurements.
pub(crate) const RAW_BYTES_MAX: u64 = 1 << 20;

/// A younger file may belong to a night that is about to write its lines.
const WAITING: Duration = Duration::from_secs(3600);

/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// Raw data of a running night.
#[derive(Debug)]
pub(crate) struct StagedData {
    folder: TempDir,
}

impl StagedData {
    pub(crate) fn new() -> Result<StagedData> {
        let folder =
            tempfile::tempdir().map_err(|error| Error::new(format!("cannot make a temporary folder: {error}")))?;
        Ok(StagedData { folder })
    }

    /// Path for the raw data of the next measurement.
    pub(crate) fn landing(&self) -> PathBuf {
        self.folder.path().join("landing")
    }

    /// Called before a measurement, because leftovers of a failed one must not count for another.
    pub(crate) fn clear(&self) -> Result {
        match fs::remove_file(self.landing()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::new(format!("{}: cannot be removed: {error}", self.landing().display())))
            }
            _ => Ok(()),
        }
    }

    /// Called after a measurement: the name of its raw data, if it left any that are not `is_unfit`.
    pub(crate) fn take(&self, is_unfit: impl Fn(&[u8]) -> bool) -> Result<Option<String>> {
        let landing = self.landing();
        let failed = |error: io::Error| Error::new(format!("{}: cannot be read: {error}", landing.display()));
        let Ok(file) = File::open(&landing) else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(RAW_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > RAW_BYTES_MAX {
            return Err(Error::new(format!(
                "a measurement left more than {} KiB in {VARIABLE}; leave histograms, not all requests",
                RAW_BYTES_MAX >> 10
            )));
        }
        if bytes.is_empty() || is_unfit(&bytes) {
            return Ok(None);
        }
        let name = name_of(&bytes);
        fs::rename(&landing, self.folder.path().join(&name)).map_err(failed)?;
        Ok(Some(name))
    }

    /// Moves the files that these lines refer to into the store.
    pub(crate) fn keep(&self, store: &Path, lines: &[StoreLine]) -> Result {
        for line in lines {
            for (name, _) in referred(line) {
                let path = path_of(store, &line.machine, name);
                let failed = |error: io::Error| Error::new(format!("{}: cannot be written: {error}", path.display()));
                if fs::read(&path).is_ok_and(|there| name_of(&there) == name) {
                    continue;
                }
                let bytes = fs::read(self.folder.path().join(name)).map_err(failed)?;
                fs::create_dir_all(path.parent().unwrap_or(store)).map_err(failed)?;
                output::replace_file(&path, &bytes).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Raw data and measured value, for each measurement that has raw data.
pub(crate) fn referred(line: &StoreLine) -> impl Iterator<Item = (&str, f64)> {
    let beside = line.beside.iter().map(|beside| (&beside.raw, &beside.values));
    let all = [(&line.raw, &line.values)].into_iter().chain(beside);
    all.flat_map(|(raw, values)| raw.iter().zip(values).filter_map(|(name, value)| Some((name.as_deref()?, *value))))
}

/// The raw data of this name, or what is wrong with them.
pub(crate) fn read(store: &Path, machine: &str, name: &str) -> Result<Vec<u8>, String> {
    if !is_name(name) {
        return Err(format!("{name:?} is not a name of raw data"));
    }
    let path = path_of(store, machine, name);
    let bytes = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("its raw data {name} are missing"),
        _ => format!("its raw data {name} cannot be read: {error}"),
    })?;
    if name_of(&bytes) == name { Ok(bytes) } else { Err(format!("its raw data {name} were changed or cut off")) }
}

/// Files that no line refers to, with their age if the clock knows it.
pub(crate) fn unreferred(store: &Path, contents: &Contents) -> Result<Vec<(PathBuf, Option<Duration>)>> {
    let mut known: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for line in &contents.lines {
        known.entry(folder_of(&line.machine)).or_default().extend(referred(line).map(|(name, _)| name));
    }
    let mut found = Vec::new();
    for machine in entries(store)? {
        let folder = machine.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let of_machine = known.get(&folder);
        for path in
            entries(&machine.join(FOLDER))?.iter().map(|part| entries(part)).collect::<Result<Vec<_>>>()?.concat()
        {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !of_machine.is_some_and(|known| known.contains(name.as_ref())) {
                let modified = fs::metadata(&path).and_then(|metadata| metadata.modified());
                found.push((path.clone(), modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok())));
            }
        }
    }
    Ok(found)
}

/// Removes the leftovers of killed nights. If a line could not be read, apparent leftovers may be its files: they are
/// kept.
pub(crate) fn sweep(store: &Path, contents: &Contents) -> Result {
    if !contents.left_out.is_empty() {
        return Ok(());
    }
    for (path, age) in unreferred(store, contents)? {
        if age.is_some_and(|age| age > WAITING) {
            fs::remove_file(&path)
                .map_err(|error| Error::new(format!("{}: cannot be removed: {error}", path.display())))?;
        }
    }
    Ok(())
}

/// `None` for a path that is not a folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: io::Error| Error::new(format!("{}: cannot be read: {error}", folder.display()));
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn path_of(store: &Path, machine: &str, name: &str) -> PathBuf {
    store.join(folder_of(machine)).join(FOLDER).join(name.get(..2).unwrap_or(name)).join(name)
}

fn name_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_name(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store;

    const MACHINE: &str = "box";

    /// A store with one line of two measurements, whose raw data are equal.
    fn store_with_raw_data(left: &[&str]) -> (TempDir, Vec<String>) {
        let (folder, staging) = (tempfile::tempdir().unwrap(), StagedData::new().unwrap());
        let taken = |text: &&str| {
            staging.clear().unwrap();
            fs::write(staging.landing(), text).unwrap();
            staging.take(|bytes| bytes == b"unfit").unwrap()
        };
        let names: Vec<Option<String>> = left.iter().map(taken).collect();
        // From a measurement that failed later, so no line refers to it.
        assert!(taken(&"failed").is_some());
        assert!(taken(&"unfit").is_none());
        let values = vec![1.0; left.len()];
        let mut line = StoreLine::new("p99", MACHINE, "2026-11-01T00:00:00Z".to_owned(), "abc", values);
        line.raw.clone_from(&names);
        staging.keep(folder.path(), std::slice::from_ref(&line)).unwrap();
        store::append(folder.path(), &[line]).unwrap();
        (folder, names.into_iter().flatten().collect())
    }

    fn files(store: &Path) -> usize {
        entries(&store.join(MACHINE).join(FOLDER)).unwrap().iter().map(|part| entries(part).unwrap().len()).sum()
    }

    #[test]
    fn what_lines_refer_to_is_kept_once_and_nothing_else() {
        let (store, names) = store_with_raw_data(&["one", "two", "one"]);
        assert_eq!((names.len(), files(store.path())), (3, 2));
        assert_eq!(read(store.path(), MACHINE, &names[1]).unwrap(), b"two");
        let contents = store::read(store.path()).unwrap();
        let measured: Vec<_> = referred(&contents.lines[0]).map(|(name, _)| name.to_owned()).collect();
        assert_eq!(measured, names);
        assert_eq!(unreferred(store.path(), &contents).unwrap(), []);
        assert_eq!(StagedData::new().unwrap().take(|_| false).unwrap(), None, "a measurement need not leave anything");
    }

    #[test]
    fn what_is_cut_changed_or_missing_is_said() {
        let (store, names) = store_with_raw_data(&["one"]);
        let path = path_of(store.path(), MACHINE, &names[0]);
        let check = |expected: &str| {
            let error = read(store.path(), MACHINE, &names[0]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        fs::write(&path, "on").unwrap();
        check("were changed or cut off");
        fs::write(&path, "eno").unwrap();
        check("were changed or cut off");
        fs::remove_file(&path).unwrap();
        check("are missing");
        assert!(read(store.path(), MACHINE, "../../secret").unwrap_err().contains("not a name"));
    }

    #[test]
    fn a_night_mends_what_was_cut_off() {
        let (store, names) = store_with_raw_data(&["one"]);
        let path = path_of(store.path(), MACHINE, &names[0]);
        fs::write(&path, "on").unwrap();
        let staging = StagedData::new().unwrap();
        fs::write(staging.landing(), "one").unwrap();
        staging.take(|_| false).unwrap();
        staging.keep(store.path(), &store::read(store.path()).unwrap().lines).unwrap();
        assert_eq!(read(store.path(), MACHINE, &names[0]).unwrap(), b"one");
    }

    #[test]
    fn what_a_killed_night_left_is_removed_when_it_is_old() {
        let (store, _) = store_with_raw_data(&["one"]);
        let left = path_of(store.path(), MACHINE, &name_of(b"left"));
        fs::create_dir_all(left.parent().unwrap()).unwrap();
        fs::write(&left, "left").unwrap();
        let mut contents = store::read(store.path()).unwrap();
        sweep(store.path(), &contents).unwrap();
        assert_eq!(files(store.path()), 2, "another night may be about to write its lines");
        File::open(&left).unwrap().set_modified(SystemTime::now() - 2 * WAITING).unwrap();
        contents.left_out.push("a line that was cut off".to_owned());
        sweep(store.path(), &contents).unwrap();
        assert_eq!(files(store.path()), 2, "it may belong to the line that cannot be read");
        contents.left_out.clear();
        sweep(store.path(), &contents).unwrap();
        assert_eq!(files(store.path()), 1);
    }

    #[test]
    fn too_much_is_refused() {
        let staging = StagedData::new().unwrap();
        fs::write(staging.landing(), vec![0; RAW_BYTES_MAX as usize + 1]).unwrap();
        assert!(staging.take(|_| false).unwrap_err().to_string().contains("more than 1024 KiB"));
    }
}
