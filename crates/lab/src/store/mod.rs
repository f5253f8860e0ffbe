//! The store: the measurements of every night, in append-only text files.
//!
//! `STORE/MACHINE/YYYY-MM.jsonl`, one JSON object per line, so that stores of several machines are merged by copying
//! folders, and those of one machine by concatenating files: a duplicate line counts once. A line that is cut off (the
//! machine lost power) is left out and reported; the next one begins on a line of its own. Everything else, for example
//! an index, can be derived from it. Raw data of measurements are stored next to it ([`raw`]).
//!
//! A store is in a folder, or on a separate branch of the repository (`git:bench`), so that it travels with the
//! repository and is in no commit of the code.
//!
//! The branch begins without a parent. It is checked out in a worktree in the user's cache; each night is a commit.
//! Pushing it is left to the user.

pub(crate) mod raw;

use crate::error::{Error, Result};
use crate::git::{self, git};
use crate::git::{default_cache, short_hash};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// The layout this program writes. Fields are only ever added; if one changes its meaning this is raised.
const SCHEMA_VERSION: u64 = 1;

/// Extension of the files of a store.
const EXTENSION: &str = "jsonl";

/// A larger file is not read: a month of a hundred series has a few megabytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// One series of one night.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreLine {
    /// See [`SCHEMA_VERSION`].
    pub(crate) schema_version: u64,
    /// When it was measured, RFC 3339, UTC.
    pub(crate) at: String,
    /// Name of the machine.
    pub(crate) machine: String,
    /// Name of the series.
    pub(crate) series: String,
    /// The command that measures it, for a bisection.
    #[serde(default)]
    pub(crate) measure: Option<String>,
    /// The command that builds a commit.
    #[serde(default)]
    pub(crate) build: Option<String>,
    /// Whether more is better.
    #[serde(default)]
    pub(crate) higher_is_better: bool,
    /// The commit of that day.
    pub(crate) commit: String,
    /// Its measurements, in order.
    pub(crate) values: Vec<f64>,
    /// The names of their raw data; empty if none has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) raw: Vec<Option<String>>,
    /// Unit of all values, as `bisect` reads units; `None` for plain numbers, and in lines of versions that read no
    /// units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<String>,
    /// How many of them belong to the first look.
    #[serde(default)]
    pub(crate) first_look: usize,
    /// The looks after the first one. `None`: one second look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) later: Option<LaterLooks>,
    /// Why a required look is missing, or the first one is shorter than it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cut_short: Option<EarlyEnd>,
    /// The difference that must not be missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) margin: Option<f64>,
    /// For a count without scatter, the commit's position. Such lines may come in any order of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<CountedCommit>,
    /// The commits measured in alternation with it, with equally many measurements.
    #[serde(default)]
    pub(crate) beside: Vec<PairedCommit>,
}

/// A commit that was measured in alternation with another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PairedCommit {
    /// `release` or `yesterday`.
    pub(crate) role: String,
    /// Its full name.
    pub(crate) commit: String,
    /// Its measurements, in order.
    pub(crate) values: Vec<f64>,
    /// The names of their raw data; empty if none has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) raw: Vec<Option<String>>,
}

/// The inputs of the decision about later looks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LaterLooks {
    /// This many measurements after the first look are the second; all others are the third.
    pub(crate) second_look: usize,
    /// Number of comparisons of the whole night.
    pub(crate) comparisons: usize,
}

/// What ended a night early. Neither reason depends on the measurements, so missing looks cause no false alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EarlyEnd {
    /// The look would not have ended within the time of the night.
    Budget,
    /// Ctrl-C.
    Interrupted,
}

/// A commit that was counted by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CountedCommit {
    /// Its number along first parents; the first commit of all has 1.
    pub(crate) place: u64,
    /// When it was committed, RFC 3339.
    pub(crate) committed: String,
    /// The first line of its message.
    pub(crate) subject: String,
    /// It was not counted itself: everything that matters is as in this commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) same_as: Option<String>,
}

/// All lines of a store, and messages about unreadable ones.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// By time.
    pub(crate) lines: Vec<StoreLine>,
    /// Messages.
    pub(crate) left_out: Vec<String>,
}

/// Appends lines to the file of their machine and month.
pub(crate) fn append(store: &Path, lines: &[StoreLine]) -> Result {
    for line in lines {
        let month = line.at.get(..7).unwrap_or("unknown");
        let folder = store.join(folder_of(&line.machine));
        let path = folder.join(format!("{month}.{EXTENSION}"));
        let failed = |error: io::Error| Error::new(format!("{}: cannot be written: {error}", path.display()));
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut file = File::options().read(true).append(true).create(true).open(&path).map_err(failed)?;
        let mut text = serde_json::to_string(line).map_err(|error| Error::new(error.to_string()))?;
        if is_cut_off(&mut file).map_err(failed)? {
            text.insert(0, '\n');
        }
        text.push('\n');
        // In one write, so that another program appending at the same time does not come in between.
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

/// Everything in a store, of any version.
pub(crate) fn read(store: &Path) -> Result<Contents> {
    let mut contents = Contents::default();
    let mut seen = BTreeSet::new();
    for path in files(store)? {
        let shown = path.display().to_string();
        let failed = |error: io::Error| Error::new(format!("{shown}: cannot be read: {error}"));
        if fs::metadata(&path).map_err(failed)?.len() > FILE_BYTES_MAX {
            return Err(Error::new(format!("{shown}: is larger than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        let bytes = fs::read(&path).map_err(failed)?;
        for (number, text) in String::from_utf8_lossy(&bytes).lines().enumerate() {
            if text.trim().is_empty() || !seen.insert(text.to_owned()) {
                continue;
            }
            match line(text) {
                Ok(line) => contents.lines.push(line),
                Err(why) => contents.left_out.push(format!("{shown}:{}: {why}", number + 1)),
            }
        }
    }
    contents.lines.sort_by(|a, b| (&a.at, &a.series).cmp(&(&b.at, &b.series)));
    Ok(contents)
}

fn line(text: &str) -> Result<StoreLine, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| match error.is_eof() {
        true => "it was cut off and is left out".to_owned(),
        false => format!("it is not JSON ({error})"),
    })?;
    match value["schema_version"].as_u64() {
        Some(version) if version > SCHEMA_VERSION => {
            return Err(format!("its schema version is {version}; use a newer stillgate-lab to see it"));
        }
        Some(1..) => {}
        _ => return Err("it has no \"schema_version\"".to_owned()),
    }
    let line: StoreLine =
        serde_json::from_value(value).map_err(|error| format!("it is not a line of a store ({error})"))?;
    let all = line.beside.iter().map(|beside| &beside.values).chain([&line.values]);
    let sound = |values: &Vec<f64>| !values.is_empty() && values.iter().all(|value| value.is_finite() && *value > 0.0);
    if !all.into_iter().all(sound) {
        return Err("a measurement is a number above 0".to_owned());
    }
    let beside = line.beside.iter().map(|beside| (&beside.raw, &beside.values));
    let fits = |(raw, values): (&Vec<_>, &Vec<f64>)| raw.is_empty() || raw.len() == values.len();
    let fit = beside.chain([(&line.raw, &line.values)]).all(fits);
    if fit { Ok(line) } else { Err("not every measurement has a place for its raw data".to_owned()) }
}

fn files(store: &Path) -> Result<Vec<PathBuf>> {
    let failed = |folder: &Path, error: io::Error| {
        Error::new(format!("{}: cannot be read: {error}; a store is a folder that `nightly` fills", folder.display()))
    };
    let mut files = Vec::new();
    for machine in fs::read_dir(store).map_err(|error| failed(store, error))? {
        let machine = machine.map_err(|error| failed(store, error))?.path();
        if !machine.is_dir() {
            continue;
        }
        for file in fs::read_dir(&machine).map_err(|error| failed(&machine, error))? {
            let file = file.map_err(|error| failed(&machine, error))?.path();
            if file.extension().is_some_and(|extension| extension == EXTENSION) {
                files.push(file);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file ends in the middle of a line.
fn is_cut_off(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != [b'\n'])
}

/// A machine's name as the name of a folder.
fn folder_of(machine: &str) -> String {
    let safe: String =
        machine.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    if safe.trim_matches('.').is_empty() { "machine".to_owned() } else { safe }
}

/// Units that times and sizes are converted to.
const CONVERTED: [&str; 2] = ["us", "B"];

impl StoreLine {
    /// Whether the values of both are in the same unit. Older versions stored numbers as they were printed, which is
    /// equal for units that are not converted.
    pub(crate) fn is_in_unit_of(&self, other: &StoreLine) -> bool {
        let as_printed = |unit: &str| !CONVERTED.iter().any(|converted| unit.split('/').next() == Some(*converted));
        match (self.unit.as_deref(), other.unit.as_deref()) {
            (None, Some(unit)) | (Some(unit), None) => as_printed(unit),
            (a, b) => a == b,
        }
    }

    /// With this version's layout.
    pub(crate) fn new(series: &str, machine: &str, at: String, commit: &str, values: Vec<f64>) -> StoreLine {
        StoreLine {
            schema_version: SCHEMA_VERSION,
            at,
            machine: machine.to_owned(),
            series: series.to_owned(),
            measure: None,
            build: None,
            higher_is_better: false,
            commit: commit.to_owned(),
            first_look: values.len(),
            later: None,
            cut_short: None,
            margin: None,
            counted: None,
            values,
            unit: None,
            raw: Vec::new(),
            beside: Vec::new(),
        }
    }
}

/// Prefix of a branch in place of a folder.
const BRANCH: &str = "git:";

/// The committer if git has none configured, as for a machine's service.
const NAME: &str = "user.name=stillgate-lab";
const EMAIL: &str = "user.email=stillgate-lab@localhost";

/// A store that can be read and appended to.
#[derive(Debug)]
pub(crate) struct StoreLocation {
    pub(crate) folder: PathBuf,
    is_branch: bool,
}

impl StoreLocation {
    /// `text` is a folder or `git:BRANCH`; `repo` any folder of the repository, `cache` the folder of worktrees.
    pub(crate) fn open(text: &str, repo: &Path, cache: Option<&Path>) -> Result<StoreLocation> {
        let Some(branch) = text.strip_prefix(BRANCH) else {
            return Ok(StoreLocation { folder: PathBuf::from(text), is_branch: false });
        };
        let failed = |why: String| Error::new(format!("--store {text}: {}", why.trim()));
        let done = |folder: &Path, words: &[&str]| git(folder, words)?.map_err(failed);
        done(repo, &["check-ref-format", "--branch", branch])?;
        let top = PathBuf::from(git::top(repo)?);
        let cache = cache.map_or_else(default_cache, |cache| Ok(cache.to_owned()))?;
        let cache = std::path::absolute(&cache).map_err(|error| failed(error.to_string()))?;
        let folder = cache.join("stores").join(short_hash(&[&top.to_string_lossy(), branch]));
        let shown = folder.to_string_lossy();
        let reference = format!("refs/heads/{branch}");
        let (is_there, is_checked_out) =
            (git(&top, &["rev-parse", "--verify", "--quiet", &reference])?.is_ok(), folder.join(".git").exists());
        if is_there && is_checked_out {
            // Others may have added to it.
            done(&folder, &["reset", "--hard", "--quiet"])?;
        } else if is_there {
            done(&top, &["worktree", "add", "--force", "--quiet", &shown, branch])?;
        } else if !is_checked_out {
            done(&top, &["worktree", "add", "--force", "--detach", "--no-checkout", "--quiet", &shown, "HEAD"])?;
            done(&folder, &["checkout", "--quiet", "--orphan", branch])?;
            // Files of the code's commit are not part of it.
            done(&folder, &["read-tree", "--empty"])?;
            done(&folder, &["clean", "--force", "-d", "-x", "--quiet"])?;
        }
        Ok(StoreLocation { folder, is_branch: true })
    }

    /// Commits the appended lines.
    pub(crate) fn keep(&self, message: &str) -> Result {
        if !self.is_branch {
            return Ok(());
        }
        let done = |words: &[&str]| {
            git(&self.folder, words)?.map_err(|why| {
                Error::new(format!("{}: the night cannot be committed: {}", self.folder.display(), why.trim()))
            })
        };
        done(&["add", "--all"])?;
        let is_known = git(&self.folder, &["config", "user.email"])?.is_ok();
        let who: &[&str] = if is_known { &[] } else { &["-c", NAME, "-c", EMAIL] };
        done(&[who, &["commit", "--quiet", "--message", message]].concat()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &str, at: &str, value: f64) -> StoreLine {
        StoreLine::new("proxy", machine, at.to_owned(), "abc", vec![value, value + 1.0])
    }

    #[test]
    fn what_is_appended_comes_back_in_order_of_time() {
        let store = tempfile::tempdir().unwrap();
        let lines = [line("a/b", "2026-11-02T00:00:00Z", 2.0), line("c", "2026-10-31T00:00:00Z", 0.1 + 0.2)];
        append(store.path(), &lines).unwrap();
        append(store.path(), &[line("c", "2026-11-01T00:00:00Z", 1.0)]).unwrap();
        assert!(store.path().join("a-b/2026-11.jsonl").is_file() && store.path().join("c/2026-10.jsonl").is_file());
        let contents = read(store.path()).unwrap();
        let values: Vec<f64> = contents.lines.iter().map(|line| line.values[0]).collect();
        assert_eq!((values, contents.left_out), (vec![0.1 + 0.2, 1.0, 2.0], vec![]));
    }

    #[test]
    fn values_of_another_unit_are_others() {
        let check = |a: Option<&str>, b: Option<&str>, expected: bool| {
            let of = |unit: Option<&str>| StoreLine { unit: unit.map(str::to_owned), ..line("m", "", 1.0) };
            assert_eq!(of(a).is_in_unit_of(&of(b)), expected, "{a:?} {b:?}");
            assert_eq!(of(b).is_in_unit_of(&of(a)), expected, "{a:?} {b:?}");
        };
        check(None, None, true);
        check(Some("us"), Some("us"), true);
        check(Some("us"), Some("B"), false);
        check(Some("instructions"), None, true);
        check(Some("us"), None, false);
        check(Some("B/s"), None, false);
    }

    #[test]
    fn a_line_that_is_cut_off_loses_only_itself() {
        let store = tempfile::tempdir().unwrap();
        append(store.path(), &[line("m", "2026-11-01T00:00:00Z", 1.0), line("m", "2026-11-02T00:00:00Z", 2.0)])
            .unwrap();
        let path = store.path().join("m/2026-11.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        for cut in 1..60 {
            fs::write(&path, &text[..text.len() - cut]).unwrap();
            append(store.path(), &[line("m", "2026-11-03T00:00:00Z", 3.0)]).unwrap();
            let contents = read(store.path()).unwrap();
            // Only the end of the line is missing: nothing is lost.
            let lost = usize::from(cut > 1);
            assert_eq!((contents.lines.len(), contents.left_out.len()), (3 - lost, lost), "{cut}");
        }
    }

    #[test]
    fn other_versions_and_machines() {
        let store = tempfile::tempdir().unwrap();
        append(store.path(), &[line("m", "2026-11-01T00:00:00Z", 1.0)]).unwrap();
        let path = store.path().join("m/2026-11.jsonl");
        let first = fs::read_to_string(&path).unwrap();
        // The first version's smallest line, a later one's, a duplicate, and an invalid one.
        let least =
            r#"{"schema_version":1,"at":"2026-11-02T00:00:00Z","machine":"m","series":"s","commit":"d","values":[2]}"#;
        let later = least.replace("\"schema_version\":1", "\"schema_version\":9");
        let negative = least.replace("[2]", "[-2]");
        fs::write(&path, format!("{first}{first}{least}\n{later}\n{negative}\n[]\nnonsense\n")).unwrap();
        append(store.path(), &[line("n", "2026-11-01T00:00:00Z", 1.0)]).unwrap();
        let contents = read(store.path()).unwrap();
        assert_eq!(contents.lines.len(), 3, "{contents:?}");
        for why in ["use a newer", "above 0", "no \"schema_version\"", "not JSON"] {
            assert!(contents.left_out.iter().any(|line| line.contains(why)), "{why}: {:?}", contents.left_out);
        }
        assert!(read(Path::new("/no/such/store")).unwrap_err().to_string().contains("a folder that `nightly` fills"));
    }
}
