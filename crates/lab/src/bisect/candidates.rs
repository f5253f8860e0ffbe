//! The candidates of a bisection in a row, from a good one to a bad one, with the prior belief about each: commits, or
//! versions that are already built.
//!
//! Histories branch; a row does not. On the line of first parents every merge is one step, which suits projects with
//! pull requests. Linearised, all commits are steps; then one measurement may lack a change that another branch already
//! had.
//!
//! Versions are a list of artefacts. An artefact is anything that the measuring command understands: a binary, a
//! package, a folder. It is never changed here.

use super::checkouts::BuildOutcome;
use super::measurement::CommandContext;
use crate::error::{Error, Result};
use crate::git::{self, git, short};
use crate::git::{default_cache, short_hash};
use crate::result::bisect::{Artefact, CommitRecord, MergeOrder, PathPrior};
use crate::target::sha256;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A longer row means a mistyped revision.
const COMMITS_MAX: usize = 20_000;

/// Separates the fields of a commit, and precedes each commit.
const FIELD: char = '\u{1f}';
const RECORD: char = '\u{1e}';

/// The row from `good` to `bad`, inclusive.
pub(crate) fn row_of_commits(
    top: &Path,
    good: &str,
    bad: &str,
    line: MergeOrder,
    prior_paths: &[PathPrior],
) -> Result<Vec<CommitRecord>> {
    let (first, last) = (git::commit(top, good)?, git::commit(top, bad)?);
    if first == last {
        return Err(format!("--good and --bad are the same commit, {}", short(&first)).into());
    }
    if git(top, &["merge-base", "--is-ancestor", &first, &last])?.is_err() {
        return Err(not_before(top, good, bad)?);
    }
    let mut words = vec!["log", "--reverse", "--format=%H%x1f%P%x1f%s", line_option(line)];
    let range = format!("{first}..{last}");
    words.push(&range);
    let log = git(top, &words)?.map_err(Error::new)?;
    let subject = git(top, &["log", "-1", "--format=%s", &first])?.map_err(Error::new)?;
    let mut commits =
        vec![CommitRecord { commit: first.clone(), subject, weight: 1.0, is_merge: false, artefact: None }];
    for (number, fields) in log.lines().map(|line| line.splitn(3, FIELD).collect::<Vec<_>>()).enumerate() {
        let [commit, parents, subject] = fields.as_slice() else { continue };
        if number == 0 && line == MergeOrder::FirstParent && parents.split(' ').next() != Some(first.as_str()) {
            return Err(Error::new(format!(
                "{good} is not on the line of first parents of {bad} ({} came in by a merge); bisect all commits with \
                 --merges linear, or choose a good commit from `git log --first-parent {bad}`",
                short(&first)
            )));
        }
        commits.push(CommitRecord {
            commit: (*commit).to_owned(),
            subject: (*subject).to_owned(),
            weight: 1.0,
            is_merge: parents.contains(' '),
            artefact: None,
        });
    }
    if commits.len() > COMMITS_MAX {
        return Err(format!("{} commits from {good} to {bad}; at most {COMMITS_MAX}", commits.len()).into());
    }
    if !prior_paths.is_empty() {
        weigh(&mut commits, &changed_files(top, &range, line)?, prior_paths);
    }
    Ok(commits)
}

fn line_option(line: MergeOrder) -> &'static str {
    match line {
        MergeOrder::FirstParent => "--first-parent",
        MergeOrder::Linear => "--topo-order",
    }
}

fn not_before(top: &Path, good: &str, bad: &str) -> Result<Error> {
    let shallow = git(top, &["rev-parse", "--is-shallow-repository"])?.is_ok_and(|answer| answer == "true");
    Ok(Error::new(match shallow {
        true => format!(
            "{good} is not known to be before {bad}: {} is a shallow clone; complete it by `git fetch --unshallow`",
            top.display()
        ),
        false => format!("{good} is not before {bad}; name an ancestor of {bad} as --good"),
    }))
}

/// The files that each commit changed; for a merge, those that differ from its first parent.
fn changed_files(top: &Path, range: &str, line: MergeOrder) -> Result<BTreeMap<String, Vec<String>>> {
    let words = [
        "-c",
        "core.quotePath=false",
        "log",
        "-m",
        "--first-parent",
        "--name-only",
        "--format=%x1e%H",
        line_option(line),
        range,
    ];
    // `--first-parent` would also leave out commits of a linear row; for the diff it is the right base.
    let words: Vec<&str> = match line {
        MergeOrder::FirstParent => words.to_vec(),
        MergeOrder::Linear => words
            .iter()
            .map(|word| if *word == "--first-parent" { "--diff-merges=first-parent" } else { word })
            .collect(),
    };
    let log = git(top, &words)?.map_err(Error::new)?;
    let records = log.split(RECORD).filter_map(|record| {
        let mut lines = record.lines();
        let commit = lines.next().filter(|commit| !commit.is_empty())?;
        Some((commit.to_owned(), lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()))
    });
    Ok(records.collect())
}

fn weigh(commits: &mut [CommitRecord], touched: &BTreeMap<String, Vec<String>>, prior_paths: &[PathPrior]) {
    for record in commits {
        let files = touched.get(&record.commit).map_or(&[][..], Vec::as_slice);
        let factors = prior_paths.iter().filter(|prior| files.iter().any(|file| is_in(file, &prior.path)));
        // Of several, the strongest counts: they are not independent evidence.
        let strongest = factors.map(|prior| prior.factor).max_by(f64::total_cmp);
        record.weight = strongest.unwrap_or(1.0);
    }
}

/// Whether a file is the path or is inside it.
fn is_in(file: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A larger list means a mistyped file name.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Where the measuring command runs, and where records are kept.
#[derive(Debug)]
pub(crate) struct Versions {
    folder: PathBuf,
    cache: PathBuf,
}

impl Versions {
    pub(crate) fn open(cache: Option<&Path>) -> Result<Versions> {
        let cache = cache.map_or_else(default_cache, |cache| Ok(cache.to_owned()))?.join("bisect");
        fs::create_dir_all(&cache)
            .and_then(|()| Ok(Versions { folder: std::env::current_dir()?, cache: fs::canonicalize(&cache)? }))
            .map_err(|error| {
                Error::new(format!("cannot make the cache {}: {error}; choose another with --cache", cache.display()))
            })
    }

    /// The default path of a bisection's record.
    pub(crate) fn record_path(&self, question: &str) -> PathBuf {
        self.cache.join(format!("versions-{}.json", short_hash(&[&self.folder.to_string_lossy(), question])))
    }

    /// A version for the measuring command.
    pub(crate) fn ready(&self, name: &str, artefact: &Artefact) -> BuildOutcome {
        let path = Path::new(&artefact.path);
        if !path.exists() {
            return BuildOutcome::Failed(format!("{} no longer exists", path.display()));
        }
        let environment = vec![("STILLGATE_VERSION", name.into()), ("STILLGATE_ARTEFACT", path.into())];
        BuildOutcome::There { place: CommandContext { folder: self.folder.clone(), environment }, reused: true }
    }
}

/// The row of a list, from `good` to `bad`, inclusive; by default the first and the last.
pub(crate) fn row_of_versions(list: &str, good: Option<&str>, bad: Option<&str>) -> Result<Vec<CommitRecord>> {
    let mut named = read(list)?;
    let mut names = BTreeSet::new();
    if let Some((twice, _)) = named.iter().find(|(name, _)| !names.insert(name.clone())) {
        return Err(Error::new(format!("--versions: {twice:?} is listed twice; give each its own name, as NAME=PATH")));
    }
    let place = |option: &str, name: &str| {
        named.iter().position(|(of, _)| of == name).ok_or_else(|| {
            let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
            Error::new(format!("{option} {name}: is not among the versions {}", names.join(", ")))
        })
    };
    let first = good.map_or(Ok(0), |name| place("--good", name))?;
    let last = bad.map_or(Ok(named.len().saturating_sub(1)), |name| place("--bad", name))?;
    if first >= last {
        return Err("--versions: the good version comes before the bad one; list at least two, oldest first".into());
    }
    named.truncate(last + 1);
    named.drain(first..).map(|(name, path)| record(name, &path)).collect()
}

fn record(commit: String, path: &str) -> Result<CommitRecord> {
    let missing = |why: std::io::Error| Error::new(format!("--versions: {commit}: {path}: {why}"));
    let full = fs::canonicalize(path).map_err(missing)?;
    let sha256 = sha256(&full);
    let artefact = Artefact { path: full.to_string_lossy().into_owned(), sha256 };
    let subject = path.to_owned();
    Ok(CommitRecord { commit, subject, weight: 1.0, is_merge: false, artefact: Some(artefact) })
}

/// Names and paths, from a file with one per line or from a comma-separated list.
fn read(list: &str) -> Result<Vec<(String, String)>> {
    if list.contains(',') || list.contains('=') && !Path::new(list).is_file() {
        return list.split(',').map(str::trim).map(in_list).collect();
    }
    let failed = |why: String| Error::new(format!("--versions {list}: {why}"));
    let length = fs::metadata(list).map_err(|error| failed(error.to_string()))?.len();
    if length > LIST_BYTES_MAX {
        return Err(failed(format!(
            "is larger than {} KiB; it must be a text with a name and a path per line",
            LIST_BYTES_MAX >> 10
        )));
    }
    let text = fs::read_to_string(list).map_err(|error| failed(error.to_string()))?;
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let folder = Path::new(list).parent().unwrap_or(Path::new(""));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let (name, path) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| failed(format!("line {number}: write a name and a path, not {line:?}")))?;
            // As the author of the file sees it.
            Ok((name.to_owned(), folder.join(path.trim()).to_string_lossy().into_owned()))
        })
        .collect()
}

/// `1.2=builds/server-1.2`, or a path; then the name is the path without its folder.
fn in_list(item: &str) -> Result<(String, String)> {
    if let Some((name, path)) = item.split_once('=') {
        return Ok((name.to_owned(), path.to_owned()));
    }
    match Path::new(item).file_name() {
        Some(name) => Ok((name.to_string_lossy().into_owned(), item.to_owned())),
        None => Err(Error::new(format!("--versions: {item:?} is not a path; write NAME=PATH,NAME=PATH"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_path_counts() {
        let commit = |name: &str| CommitRecord {
            commit: name.to_owned(),
            subject: String::new(),
            weight: 1.0,
            is_merge: false,
            artefact: None,
        };
        let mut commits = ["a", "b", "c", "d"].map(commit);
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let touched = BTreeMap::from([
            ("a".to_owned(), files(&["src/route/mod.rs", "docs/x.md"])),
            ("b".to_owned(), files(&["src/router.rs"])),
            ("c".to_owned(), files(&["docs/x.md"])),
        ]);
        let prior = |path: &str, factor| PathPrior { path: path.to_owned(), factor };
        weigh(&mut commits, &touched, &[prior("src/route/", 4.0), prior("docs", 0.1)]);
        assert_eq!(commits.map(|commit| commit.weight), [4.0, 1.0, 0.1, 1.0]);
    }

    #[test]
    fn lists_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        for name in ["a", "b 2", "c"] {
            fs::write(path(name), name).unwrap();
        }
        fs::write(path("list"), "# oldest first\n1.0 a\n\n1.1  b 2\n2.0 c\n").unwrap();
        let names = |list: &str, good, bad| -> Result<Vec<String>, String> {
            let row = row_of_versions(list, good, bad).map_err(|error| error.to_string())?;
            Ok(row.into_iter().map(|record| record.commit).collect())
        };
        let list = path("list");
        assert_eq!(names(&list, None, None).unwrap(), ["1.0", "1.1", "2.0"]);
        assert_eq!(names(&list, Some("1.1"), None).unwrap(), ["1.1", "2.0"]);
        assert_eq!(names(&format!("{},x={}", path("a"), path("c")), None, None).unwrap(), ["a", "x"]);
        let record = &row_of_versions(&list, None, None).unwrap()[1];
        assert_eq!(record.artefact.as_ref().unwrap().sha256.as_ref().unwrap().len(), 64);
        let check = |list: &str, good, bad, why: &str| {
            let error = names(list, good, bad).unwrap_err();
            assert!(error.contains(why), "{list}: {error}");
        };
        check(&list, Some("2.0"), Some("1.0"), "comes before");
        check(&list, Some("3"), None, "is not among the versions 1.0, 1.1, 2.0");
        check(&format!("{0},{0}", path("a")), None, None, "twice");
        check("a=/nowhere/a,b=/nowhere/b", None, None, "No such file");
        check("/nowhere/list", None, None, "No such file");
        fs::write(path("list"), "only-a-name").unwrap();
        check(&list, None, None, "line 1: write a name and a path");
    }
}
