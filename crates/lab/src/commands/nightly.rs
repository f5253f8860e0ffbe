//! `stillgate-lab nightly`: one night of a suite, kept in a store.

use crate::bisect::checkouts::Checkouts;
use crate::command_line::{duration, percent, seed_of_clock};
use crate::display::Progress;
use crate::error::{EXIT_INTERRUPTED, EXIT_USAGE, Error, Result, stop_flag};
use crate::git::{self, git, short};
use crate::nightly::analysis::{self, CommitCounts, NightReport, judge_night};
use crate::nightly::counts::{Sweep, row_of_night};
use crate::nightly::suite::{self, EachCommit};
use crate::nightly::{Night, Side, side};
use crate::store::raw::{self, StagedData};
use crate::store::{self, Contents, StoreLine, StoreLocation};
use crate::{environment, history, output, report};
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use stillgate_rig::proc::machine;
use stillgate_stats::Random;

/// `stillgate-lab nightly`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each series is measured ten times in turn on today's commit, on the newest other one in the store (yesterday), and on the release; series that seem to have changed, 25 times more, and those that remain in doubt, a hundred times more. Of all changes reported in a night, at most 1% are expected to be false; if \
nothing changed, at most 1% of nights have an alarm.

What the suite counts of each commit is counted once on every commit since the last night, of a long row on --commits evenly spread \
ones and then between those that differ.

STILLGATE_SUITE is the suite's folder and STILLGATE_LAB this program, in the environment of what measures; what a measurement writes \
to the file STILLGATE_RAW, as `measure` does with its histograms, is kept with it.

Exit codes: 0 nothing is worse; 1 something is; 2 undecided: a difference of 5% could have been missed; 3 nothing could be compared; \
64 an error; 130 interrupted, keeping the measurements so far.")]
pub(crate) struct Nightly {
    /// The suite to measure, in YAML
    #[arg(long, value_name = "FILE")]
    suite: PathBuf,
    /// The store of nights: a folder, or git:BRANCH for a branch of the repository
    #[arg(long, value_name = "FOLDER")]
    store: String,
    /// Repository
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    repo: PathBuf,
    /// Today's commit
    #[arg(long, value_name = "REV", default_value = "HEAD")]
    commit: String,
    /// The release; by default only yesterday's commit is compared with
    #[arg(long, value_name = "REV")]
    release: Option<String>,
    /// Count each commit from here on [default: from the newest counted one]
    #[arg(long, value_name = "REV")]
    since: Option<String>,
    /// Maximum number of commits to count, and as many again between those that differ
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(2..=2000))]
    commits: u16,
    /// Measure no series in time, only count
    #[arg(long)]
    counts_only: bool,
    /// Smallest change of a count
    #[arg(long, value_name = "SHARE", value_parser = percent, default_value = "1%")]
    min_effect: f64,
    /// Name of this machine in the store [default: its host name]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// A measurement that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    measure_limit: Duration,
    /// Time for builds and measurements: a later look that would not end within it is skipped; counts come on top
    /// [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// A build that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    build_limit: Duration,
    /// Folder of the worktrees [default: in the user's cache]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Seed of the random order of measurements [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// File for a copy of the report, in Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// File for the report as a page, with a plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Nightly) -> Result<u8> {
    arguments.run().map_err(|error| if error.exit == EXIT_INTERRUPTED { error } else { error.exit(EXIT_USAGE) })
}

impl Nightly {
    fn run(&self) -> Result<u8> {
        let end = self.budget.map(|budget| Instant::now() + budget);
        let suite = suite::read(&self.suite)?;
        let folder = std::fs::canonicalize(&self.suite).ok().and_then(|suite| Some(suite.parent()?.to_owned()));
        let top = PathBuf::from(git::top(&self.repo)?);
        let machine = self.machine.clone().unwrap_or_else(host_name);
        let environment = folder.iter().map(|folder| ("STILLGATE_SUITE", folder.into())).collect::<Vec<_>>();
        let checkouts = |build: Option<&str>| {
            let mut checkouts = Checkouts::open(&top, self.cache.as_deref(), build, None, self.build_limit)?;
            // The files beside a suite, for example configurations, are today's for all commits.
            checkouts.environment.clone_from(&environment);
            Ok::<_, Error>(checkouts)
        };
        let store = StoreLocation::open(&self.store, &self.repo, self.cache.as_deref())?;
        let contents = if store.folder.is_dir() { store::read(&store.folder)? } else { Contents::default() };
        raw::sweep(&store.folder, &contents)?;
        let before = contents.lines;
        let stop = stop_flag()?;
        let at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let today = git::commit(&top, &self.commit)?;
        let mut report =
            NightReport { commit: today.clone(), machine: environment::gather(), ..NightReport::default() };
        if !suite.series.is_empty() && !self.counts_only {
            let staging = StagedData::new()?;
            let (mut sides, not_built) =
                self.sides(&top, &before, &machine, &checkouts(suite.build.as_deref())?, &stop)?;
            for side in &mut sides {
                side.place.environment.push((raw::VARIABLE, staging.landing().into()));
            }
            let (machine, at, limit) = (machine.as_str(), at.as_str(), self.measure_limit);
            let night = Night { sides: &sides, limit, end, machine, at, staging: &staging, stop: &stop };
            let mut measured = night.measure(&suite, &mut Random::new(self.seed.unwrap_or_else(seed_of_clock)))?;
            staging.keep(&store.folder, &measured.lines)?;
            store::append(&store.folder, &measured.lines)?;
            report.judged = judge_night(&measured.lines.iter().collect::<Vec<&StoreLine>>(), &before);
            report.failed = not_built;
            report.failed.append(&mut measured.failed);
            if measured.is_interrupted {
                if !measured.lines.is_empty() {
                    store.keep(&format!("Measure {} on {machine}, interrupted", short(&today)))?;
                }
                self.show(&report)?;
                return Err(interrupted(&measured.lines));
            }
        }
        if let Some(each) = &suite.each_commit {
            let checkouts = checkouts(each.build.as_deref())?;
            let sweep = Sweep {
                top: &top,
                checkouts: &checkouts,
                machine: &machine,
                at: &at,
                limit: self.measure_limit,
                commits_max: self.commits.into(),
                min_effect: self.min_effect,
                stop: &stop,
            };
            report.counts = Some(self.counts(&sweep, each, &today, before, &store.folder)?);
        }
        store.keep(&format!("Measure {} on {machine}", short(&today)))?;
        self.show(&report)?;
        Ok(report.exit_code())
    }

    fn show(&self, report: &NightReport) -> Result {
        let text = analysis::markdown(report);
        output::show(&text)?;
        let page = self.html.as_ref().map(|path| (path, report::night(report)));
        let text = self.markdown.as_ref().map(|path| (path, text));
        for (path, text) in text.into_iter().chain(page) {
            output::replace_file(path, text.as_bytes())
                .map_err(|error| Error::new(format!("{}: cannot be written: {error}", path.display())))?;
        }
        Ok(())
    }

    /// The commits to compare, built, today's first; and those whose build failed.
    fn sides(
        &self,
        top: &Path,
        before: &[StoreLine],
        machine: &str,
        checkouts: &Checkouts,
        stop: &AtomicBool,
    ) -> Result<(Vec<Side>, Vec<String>)> {
        let (mut sides, mut not_built): (Vec<Side>, Vec<String>) = (Vec::new(), Vec::new());
        let mut commits = self.commits(top, before, machine)?;
        // A commit compared with itself says nothing about a change.
        let mut seen = BTreeSet::new();
        commits.retain(|(_, commit)| seen.insert(commit.clone()));
        let mut progress = Progress::new("builds", commits.len() as u64);
        for (role, commit) in commits {
            progress.step(&format!("{role}, {}", short(&commit)));
            match side(role, commit, checkouts, stop)? {
                Ok(side) => sides.push(side),
                Err(why) if sides.is_empty() => return Err(Error::new(why)),
                Err(why) => not_built.push(why),
            }
        }
        Ok((sides, not_built))
    }

    /// Also counts the release if it is an ancestor of the row.
    fn counts(
        &self,
        sweep: &Sweep<'_>,
        each: &EachCommit,
        today: &str,
        before: Vec<StoreLine>,
        store: &Path,
    ) -> Result<CommitCounts> {
        let row = row_of_night(sweep.top, self.since.as_deref(), today, &before, sweep.machine)?;
        let mut rows = vec![row];
        if let Some(release) = &self.release {
            let release = git::commit(sweep.top, release)?;
            let is_before = git(sweep.top, &["merge-base", "--is-ancestor", &release, today])?.is_ok();
            if is_before && rows[0].commits().all(|commit| commit != release) {
                rows.insert(0, row_of_night(sweep.top, Some(&release), &release, &before, sweep.machine)?);
            }
        }
        let (mut lines, mut failed) = (before, Vec::new());
        for row in &rows {
            let mut new = Vec::new();
            let kept = sweep.run(each, row, &lines, |lines| {
                new.extend_from_slice(lines);
                store::append(store, lines)
            });
            failed.extend(kept?);
            lines.extend(new);
        }
        let commits: BTreeSet<&str> = rows.iter().flat_map(|row| row.commits()).collect();
        lines.retain(|line| {
            line.counted.is_some() && line.machine == sweep.machine && commits.contains(line.commit.as_str())
        });
        Ok(CommitCounts { series: history::series(&lines, self.min_effect), failed })
    }

    /// Today's commit, then those that it is compared with.
    fn commits(&self, top: &Path, before: &[StoreLine], machine: &str) -> Result<Vec<(&'static str, String)>> {
        let mut commits = vec![("today", git::commit(top, &self.commit)?)];
        if let Some(release) = &self.release {
            commits.push(("release", git::commit(top, release)?));
        }
        let is_other =
            |line: &&StoreLine| line.counted.is_none() && line.machine == machine && line.commit != commits[0].1;
        // It may no longer exist, if a branch was rewritten.
        if let Some(line) = before.iter().rev().find(is_other)
            && git(top, &["cat-file", "-e", &format!("{}^{{commit}}", line.commit)])?.is_ok()
        {
            commits.push(("yesterday", line.commit.clone()));
        }
        Ok(commits)
    }
}

fn interrupted(kept: &[StoreLine]) -> Error {
    let rounds = kept.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let said = match rounds {
        0 => "interrupted in the first round; nothing of this night is kept".to_owned(),
        _ => format!("interrupted; kept {} series with up to {rounds} rounds, counted nothing", kept.len()),
    };
    Error::new(said).exit(EXIT_INTERRUPTED)
}

fn host_name() -> String {
    machine::text("sys/kernel/hostname").unwrap_or_else(|| "machine".to_owned())
}
