//! `stillgate-lab bisect`: which commit changed a measurement, for people and for scripts.

use super::measure::{figure, is_more_better};
use crate::bisect::candidates::{self, Versions};
use crate::bisect::checkouts::{CheckoutSource, Checkouts, Patch};
use crate::bisect::{Bisection, Display, analysis};
use crate::command_line::{duration, own_arguments, percent, positive, probability, quoted_word};
use crate::error::{EXIT_INTERRUPTED, EXIT_USAGE, Error, Result, stop_flag};
use crate::history::count_change;
use crate::result::bisect::{
    Answer, Applied, BisectDesign, BisectEnd, BisectResult, BisectVerdict, CommitRecord, MergeOrder, PathPrior,
};
use crate::result::file::{self, ResultWriter};
use crate::result::{Experiment, ResultFile};
use crate::store::{self, StoreLine, StoreLocation};
use crate::{environment, git, output};
use clap::{Args, ValueEnum};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prior probability that nothing changed: users who bisect have seen something.
const PRIOR_NONE: f64 = 0.25;

/// Prior probability that several commits changed something.
const PRIOR_SEVERAL: f64 = 0.1;

/// `stillgate-lab bisect`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command of --measure runs in a worktree of a commit (STILLGATE_WORKTREE; STILLGATE_COMMIT is its name). The last number on its \
standard output is the measurement. Exit code 125: this commit cannot be measured; any other but 0: this try failed. A commit whose build fails, or whose measurement fails three times in a row, is skipped and listed; the answer may then be a range.

With --versions the command runs in the current folder; STILLGATE_VERSION and STILLGATE_ARTEFACT are the name of a version and its path.

Exit codes: 0 found; 1 nothing larger than --min-effect changed; 2 not decided within the budget; 3 the good or the bad commit \
cannot be measured; 64 an error; 130 interrupted. To continue a bisection that was stopped, run the same command again, with a \
larger --budget where that was used up.")]
pub(crate) struct Bisect {
    /// Repository
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    repo: PathBuf,
    /// A commit before the change; with versions, a name [default: the first]
    #[arg(long, value_name = "REV", required_unless_present = "versions")]
    good: Option<String>,
    /// A commit after it; with versions, a name [default: HEAD, or the last version]
    #[arg(long, value_name = "REV")]
    bad: Option<String>,
    /// Already built versions, oldest first, in place of commits: NAME=PATH,NAME=PATH or a file with lines `NAME PATH`
    #[arg(long, value_name = "LIST", conflicts_with_all = ["repo", "build", "apply", "merges", "prior_paths", "prior_instructions", "keep"])]
    versions: Option<String>,
    /// Command that measures a commit, run by the shell
    #[arg(long, value_name = "COMMAND", required_unless_present = "target")]
    measure: Option<String>,
    /// A server that the build produces, in place of a command: it is measured as by `stillgate-lab measure`
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["measure", "higher_is_better", "lower_is_better"])]
    target: Option<String>,
    /// What to measure of --target: cpu, throughput, p99, instructions or another figure of `stillgate-lab measure`
    #[arg(long, value_name = "FIGURE", value_parser = |text: &str| figure(text).map(|_| text.to_owned()), default_value = "cpu", requires = "target")]
    figure: String,
    /// Further arguments for `stillgate-lab measure`, for example --rate 2k
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true, requires = "target")]
    figure_args: Option<String>,
    /// Command that builds a commit, run once by the shell
    #[arg(long, value_name = "COMMAND")]
    build: Option<String>,
    /// Patch to apply to each commit before it is built; a commit to which it does not apply cannot be measured
    #[arg(long, value_name = "FILE")]
    apply: Option<PathBuf>,
    /// Less is better (the default)
    #[arg(long, conflicts_with = "higher_is_better")]
    lower_is_better: bool,
    /// More is better
    #[arg(long)]
    higher_is_better: bool,
    /// Probability at which an answer is given
    #[arg(long, value_name = "P", value_parser = probability, default_value = "0.95")]
    confidence: f64,
    /// Smallest change that counts
    #[arg(long, value_name = "SHARE", value_parser = percent, default_value = "1%")]
    min_effect: f64,
    /// Time for builds and measurements, over all runs if it was stopped in between
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2h")]
    budget: Duration,
    /// Maximum number of builds and measurements
    #[arg(long, value_name = "N", value_parser = positive, default_value = "10000")]
    max_tries: usize,
    /// A measurement that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    measure_limit: Duration,
    /// A build that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    build_limit: Duration,
    /// How merges are treated
    #[arg(long, value_enum, default_value_t = Merges::FirstParent)]
    merges: Merges,
    /// Make commits that touch a path more likely by a factor: crates/route=4
    #[arg(long, value_name = "PATH=FACTOR,…", value_delimiter = ',', value_parser = prior_path)]
    prior_paths: Vec<PathPrior>,
    /// Make commits likelier that changed a count, for example instructions, in a store of `nightly`
    #[arg(long, value_name = "STORE")]
    prior_instructions: Option<String>,
    /// Folder of the worktrees [default: in the user's cache]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Keep the worktrees for another bisection
    #[arg(long)]
    keep: bool,
    /// File for the result, saved after each measurement [default: in the cache until it is decided]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How merges are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Merges {
    /// One step on the line of first parents
    FirstParent,
    /// All commits are included, parents before children
    Linear,
}

pub(crate) fn run(arguments: &Bisect) -> Result<u8> {
    arguments.run().map_err(|error| error.exit(EXIT_USAGE))
}

impl Bisect {
    fn run(&self) -> Result<u8> {
        if self.min_effect <= 0.0 {
            return Err("--min-effect 0%: every commit changes something; write the smallest change that counts, for example 0.1%".into());
        }
        let (design, row, source, note) = self.subjects()?;
        let path = self.json.clone().unwrap_or_else(|| {
            let names: Vec<&str> = row.iter().map(|commit| commit.commit.as_str()).collect();
            source.record_path(&format!("{design:?} {names:?}"))
        });
        let writer = ResultWriter::open(&path)?;
        let display = Display::new();
        let mut result = match earlier(&path)? {
            Some(earlier) if earlier.design == design && earlier.commits == row => {
                display.note(&format!("continuing from {} with {} tries", path.display(), earlier.tries.len()));
                earlier
            }
            Some(_) => {
                return Err(Error::new(format!(
                    "{}: is the result of another bisection; name another file with --json",
                    path.display()
                )));
            }
            None => new_result(design, row),
        };
        if let Some(note) = note {
            display.note(&note);
        }
        let stop = stop_flag()?;
        let environment = environment::gather();
        let wrap = |result: &BisectResult| {
            ResultFile::new(own_arguments(), environment.clone(), Experiment::Bisect(Box::new(result.clone())))
        };
        let bisection = Bisection {
            source: &source,
            measure_limit: self.measure_limit,
            budget: self.budget,
            measurements_max: self.max_tries,
            stop: &stop,
        };
        bisection.run(&mut result, |result| writer.save(&wrap(result)), &display)?;
        drop(display);
        self.finish(&result, &source, &path)?;
        writer.finish(&wrap(&result))?;
        if self.json.is_none() && result.ended == Some(BisectEnd::Decided) {
            // It is at its default path, and there is nothing left to continue.
            let _ = std::fs::remove_file(&path);
        }
        Ok(exit_code(&result))
    }

    /// The commits or versions, their source, and notes about them.
    fn subjects(&self) -> Result<(BisectDesign, Vec<CommitRecord>, CheckoutSource, Option<String>)> {
        let cache = self.cache.as_deref();
        if let Some(list) = &self.versions {
            let row = candidates::row_of_versions(list, self.good.as_deref(), self.bad.as_deref())?;
            let ends = [&row[0].commit, &row[row.len() - 1].commit].map(String::clone);
            return Ok((self.design(ends, None), row, CheckoutSource::Versions(Versions::open(cache)?), None));
        }
        let top = PathBuf::from(git::top(&self.repo)?);
        let patch = self.apply.as_deref().map(Patch::open).transpose()?;
        let bad = self.bad.as_deref().unwrap_or("HEAD");
        let ends = [self.good.as_deref().unwrap_or_default(), bad].map(str::to_owned);
        let design = self.design(ends, patch.as_ref().map(|patch| patch.applied.clone()));
        let mut row = candidates::row_of_commits(&top, &design.good, &design.bad, design.line, &design.prior_paths)?;
        if let Some(store) = &self.prior_instructions {
            let contents = store::read(&StoreLocation::open(store, &self.repo, cache)?.folder)?;
            let known = weigh_by_counts(&mut row, &contents.lines, self.min_effect);
            eprintln!("{known} of {} commits were counted", row.len());
        }
        let checkouts = Checkouts::open(&top, cache, self.build.as_deref(), patch, self.build_limit)?;
        Ok((design, row, CheckoutSource::Commits(checkouts), git::uncommitted(&top)?))
    }

    fn finish(&self, result: &BisectResult, source: &CheckoutSource, path: &Path) -> Result {
        if path != Path::new(output::STANDARD_OUTPUT) {
            output::show(analysis::report(result))?;
        }
        match result.ended {
            Some(BisectEnd::Decided | BisectEnd::Void) if !self.keep => source.tidy(&result.commits),
            Some(BisectEnd::Interrupted) => {
                eprintln!("stillgate-lab: run the same command again to continue from {}", path.display());
            }
            Some(BisectEnd::Budget) => {
                eprintln!(
                    "stillgate-lab: run the same command with a larger --budget or --max-tries to continue from {}",
                    path.display()
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn design(&self, [good, bad]: [String; 2], apply: Option<Applied>) -> BisectDesign {
        BisectDesign {
            measure: self.measurement(),
            build: self.build.clone(),
            apply,
            versions: self.versions.clone(),
            good,
            bad,
            line: match self.merges {
                Merges::FirstParent => MergeOrder::FirstParent,
                Merges::Linear => MergeOrder::Linear,
            },
            higher_is_better: self.higher_is_better && !self.lower_is_better
                || self.target.is_some() && is_more_better(&self.figure),
            confidence: self.confidence,
            min_effect: self.min_effect,
            prior_none: PRIOR_NONE,
            prior_several: PRIOR_SEVERAL,
            prior_paths: self.prior_paths.clone(),
            prior_counts: self.prior_instructions.clone(),
        }
    }

    /// The command; for a server, the command that measures it.
    fn measurement(&self) -> String {
        let words = self.figure_args.as_ref().map(|words| format!(" {words}")).unwrap_or_default();
        let of_target = self.target.as_ref().map(|target| {
            format!("\"$STILLGATE_LAB\" measure {} {}{words}", quoted_word(&self.figure), quoted_word(target))
        });
        self.measure.clone().or(of_target).unwrap_or_default()
    }
}

/// The bisection in a file, stopped or decided.
fn earlier(path: &Path) -> Result<Option<BisectResult>> {
    if !path.is_file() {
        return Ok(None);
    }
    match file::read(path)?.experiment {
        Experiment::Bisect(result) => Ok(Some(*result)),
        _ => {
            Err(Error::new(format!("{}: contains the result of another experiment; name another file", path.display())))
        }
    }
}

fn new_result(design: BisectDesign, commits: Vec<CommitRecord>) -> BisectResult {
    let mut result = BisectResult { answer: Answer::unknown(&design), design, commits, tries: Vec::new(), ended: None };
    result.answer = analysis::answer(&result);
    result
}

fn exit_code(result: &BisectResult) -> u8 {
    match (result.answer.verdict, result.ended) {
        (_, Some(BisectEnd::Interrupted)) => EXIT_INTERRUPTED,
        (BisectVerdict::Found, _) => 0,
        (BisectVerdict::None, _) => 1,
        (BisectVerdict::Undecided, _) => 2,
        (BisectVerdict::Void, _) => 3,
    }
}

/// `crates/route=4`.
fn prior_path(text: &str) -> Result<PathPrior, String> {
    const SHAPE: &str = "write a path and a factor above 0: crates/route=4";
    let (path, factor) = text.rsplit_once('=').ok_or(SHAPE)?;
    match factor.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() && !path.is_empty() => {
            Ok(PathPrior { path: path.to_owned(), factor })
        }
        _ => Err(SHAPE.to_owned()),
    }
}

// Priors from counted instructions: a commit that changed a count is more likely to have changed a time.
//
// Only more likely: in the third reference text the slow commit executes hardly more instructions, and a commit that
// executes fewer may be slower. So counts never make a commit unlikely.

/// How much likelier a change of a count makes the commit that made it.
const FACTOR: f64 = 10.0;

/// A series by name, machine, command and unit: counts of another command are a different series.
type Key<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);

/// Weighs the commits of a row by their counts; returns how many commits have one.
pub(crate) fn weigh_by_counts(commits: &mut [CommitRecord], lines: &[StoreLine], min_effect: f64) -> usize {
    let places: HashMap<&str, usize> =
        commits.iter().enumerate().map(|(place, record)| (record.commit.as_str(), place)).collect();
    // By place; later lines about the same commit replace earlier ones.
    let mut series: BTreeMap<Key<'_>, BTreeMap<usize, &[f64]>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.counted.is_some()) {
        if let Some(place) = places.get(line.commit.as_str()) {
            let key = (line.series.as_str(), line.machine.as_str(), line.measure.as_deref(), line.unit.as_deref());
            series.entry(key).or_default().insert(*place, &line.values);
        }
    }
    let mut factors = vec![1.0_f64; commits.len()];
    for counts in series.values() {
        let counted: Vec<(&usize, &&[f64])> = counts.iter().collect();
        for pair in counted.windows(2) {
            let [(from, before), (to, after)] = pair else { continue };
            if count_change(before, after, min_effect).is_some() {
                // One of them made the change; which one was not counted.
                let each = FACTOR / (*to - *from) as f64;
                factors[*from + 1..=**to].iter_mut().for_each(|factor| *factor = factor.max(each));
            }
        }
    }
    let known: usize = places.values().filter(|place| series.values().any(|counts| counts.contains_key(place))).count();
    commits.iter_mut().zip(factors).for_each(|(record, factor)| record.weight *= factor);
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CountedCommit;

    #[test]
    fn a_commit_that_changed_a_count_is_likelier() {
        let record = |number: usize| CommitRecord {
            commit: format!("c{number}"),
            subject: String::new(),
            weight: if number == 2 { 0.5 } else { 1.0 },
            is_merge: false,
            artefact: None,
        };
        let line = |series: &str, number: usize, count: f64| {
            let mut line = StoreLine::new(series, "m", String::new(), &format!("c{number}"), vec![count]);
            line.counted =
                Some(CountedCommit { place: 1, committed: String::new(), subject: String::new(), same_as: None });
            line
        };
        let mut lines: Vec<StoreLine> =
            (0..8).map(|number| line("a", number, if number < 2 { 100.0 } else { 105.0 })).collect();
        // The other series changed between 3 and 7; a scattering series is not a count; one commit is not in the row.
        lines.extend([line("b", 3, 50.0), line("b", 7, 40.0), line("c", 90, 1.0)]);
        lines.push(StoreLine { counted: None, ..line("d", 4, 1.0) });
        lines.push(StoreLine { counted: None, ..line("d", 5, 9.0) });
        let mut commits: Vec<CommitRecord> = (0..9).map(record).collect();
        assert_eq!(weigh_by_counts(&mut commits, &lines, 0.01), 8);
        let weights: Vec<f64> = commits.iter().map(|record| record.weight).collect();
        assert_eq!(weights, [1.0, 1.0, 5.0, 1.0, 2.5, 2.5, 2.5, 2.5, 1.0]);
    }
}
