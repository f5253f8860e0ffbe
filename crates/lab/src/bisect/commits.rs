//! The commits from a good one to a bad one in a row, with the prior belief about each.
//!
//! Histories branch; a row does not. On the line of first parents every merge is one step, which suits projects with
//! pull requests. Linearised, all commits are steps; then one measurement may lack a change that another branch already
//! had.

use crate::error::{Error, Result};
use crate::git::{self, git, short};
use crate::result::bisect::{CommitRecord, MergeOrder, PriorPath};
use std::collections::BTreeMap;
use std::path::Path;

/// A longer row means a mistyped revision.
const COMMITS_MAX: usize = 20_000;

/// Separates the fields of a commit, and precedes each commit.
const FIELD: char = '\u{1f}';
const RECORD: char = '\u{1e}';

/// The row from `good` to `bad`, inclusive.
pub(crate) fn row(
    top: &Path,
    good: &str,
    bad: &str,
    line: MergeOrder,
    prior_paths: &[PriorPath],
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
        weigh(&mut commits, &touched(top, &range, line)?, prior_paths);
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
fn touched(top: &Path, range: &str, line: MergeOrder) -> Result<BTreeMap<String, Vec<String>>> {
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

fn weigh(commits: &mut [CommitRecord], touched: &BTreeMap<String, Vec<String>>, prior_paths: &[PriorPath]) {
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
        let prior = |path: &str, factor| PriorPath { path: path.to_owned(), factor };
        weigh(&mut commits, &touched, &[prior("src/route/", 4.0), prior("docs", 0.1)]);
        assert_eq!(commits.map(|commit| commit.weight), [4.0, 1.0, 0.1, 1.0]);
    }
}
