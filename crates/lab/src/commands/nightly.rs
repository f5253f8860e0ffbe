//! `stillgate-lab nightly`: one night of a suite, kept in a store.

use crate::atomic_file;
use crate::bisect::checkouts::Checkouts;
use crate::cli::EXIT_USAGE;
use crate::cli::typed::seed_of_clock;
use crate::cli::values::duration;
use crate::environment;
use crate::error::{Error, Result};
use crate::git::{self, git, short};
use crate::nightly::analysis::{Verdict, judge};
use crate::nightly::run::{Night, Side, side};
use crate::nightly::{suite, words};
use crate::report;
use crate::stdout;
use crate::stop::{EXIT_INTERRUPTED, stop_flag};
use crate::store::place::Place;
use crate::store::{self, Line};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_stats::Random;

/// `stillgate-lab nightly`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each series is measured ten times in turn on today's commit, on the newest other one in the store (yesterday), and on the release; \
what seems to have changed, forty times more. Of all that is called changed in a night, at most 1% is expected to be false; if \
nothing changed, at most 1% of nights have an alarm.

STILLGATE_SUITE is the suite's folder and STILLGATE_LAB this program, in the environment of what measures.

Exit codes: 0 nothing is worse; 1 something is; 2 undecided: a difference of 5% could have been missed; 3 nothing could be compared; \
64 an error; 130 interrupted.")]
pub(crate) struct Nightly {
    /// What is measured, in YAML
    #[arg(long, value_name = "FILE")]
    suite: PathBuf,
    /// Where nights are kept: a folder, or git:BRANCH for a branch of the repository
    #[arg(long, value_name = "FOLDER")]
    store: String,
    /// Repository
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    repo: PathBuf,
    /// Today's commit
    #[arg(long, value_name = "REV", default_value = "HEAD")]
    commit: String,
    /// The release; without it, only yesterday's commit is compared with
    #[arg(long, value_name = "REV")]
    release: Option<String>,
    /// What this machine is called in the store [default: its host name]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// A measurement that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    measure_limit: Duration,
    /// A build that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    build_limit: Duration,
    /// Where worktrees are [default: the user's cache]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Seed of the random order of measurements [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A copy of the report, in Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// The report as a page, with a plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Nightly) -> Result<u8> {
    arguments.run().map_err(|error| if error.exit == EXIT_INTERRUPTED { error } else { error.exit(EXIT_USAGE) })
}

impl Nightly {
    fn run(&self) -> Result<u8> {
        let suite = suite::read(&self.suite)?;
        let folder = std::fs::canonicalize(&self.suite).ok().and_then(|suite| Some(suite.parent()?.to_owned()));
        let top = PathBuf::from(git::top(&self.repo)?);
        let machine = self.machine.clone().unwrap_or_else(host_name);
        let checkouts = Checkouts::open(&top, self.cache.as_deref(), suite.build.as_deref(), None, self.build_limit)?;
        let store = Place::open(&self.store, &self.repo, self.cache.as_deref())?;
        let stop = stop_flag()?;
        let mut sides: Vec<Side> = Vec::new();
        for (role, commit) in self.commits(&top, &store.folder, &machine)? {
            // A commit beside itself says nothing of a change.
            if sides.iter().all(|side| side.commit != commit) {
                eprintln!("building {role}, {}", short(&commit));
                let mut side = side(role, commit, &checkouts, &stop)?;
                // What a suite has beside it, such as configurations, is of today for all commits.
                side.place.environment.extend(folder.iter().map(|folder| ("STILLGATE_SUITE", folder.into())));
                sides.push(side);
            }
        }
        let at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let night = Night { sides: &sides, limit: self.measure_limit, machine: &machine, at: &at, stop: &stop };
        let (lines, failed) = night.measure(&suite, &mut Random::new(self.seed.unwrap_or_else(seed_of_clock)))?;
        store::append(&store.folder, &lines)?;
        if !lines.is_empty() {
            store.keep(&format!("Measure {} on {machine}", short(&sides[0].commit)))?;
        }
        let judged = judge(&lines.iter().collect::<Vec<&Line>>());
        let machine = environment::gather();
        let text = words::markdown(&sides[0].commit, &judged, &failed, &machine);
        stdout::show(&text)?;
        let page = self.html.as_ref().map(|path| (path, report::night(&sides[0].commit, &judged, &failed, &machine)));
        let text = self.markdown.as_ref().map(|path| (path, text));
        for (path, text) in text.into_iter().chain(page) {
            atomic_file::replace(path, text.as_bytes())
                .map_err(|error| Error::new(format!("{}: cannot be written: {error}", path.display())))?;
        }
        let is = |verdict| judged.iter().any(|one| one.verdict == verdict);
        Ok(match judged.is_empty() {
            true => 3,
            false if is(Verdict::Worse) => 1,
            false if is(Verdict::Undecided) || !failed.is_empty() => 2,
            false => 0,
        })
    }

    /// Today's commit, then those that it is compared with.
    fn commits(&self, top: &Path, store: &Path, machine: &str) -> Result<Vec<(&'static str, String)>> {
        let mut commits = vec![("today", git::commit(top, &self.commit)?)];
        if let Some(release) = &self.release {
            commits.push(("release", git::commit(top, release)?));
        }
        if store.is_dir() {
            let contents = store::read(store)?;
            let newest =
                contents.lines.iter().rev().find(|line| line.machine == machine && line.commit != commits[0].1);
            // It may be gone since: a branch was rewritten.
            if let Some(line) = newest
                && git(top, &["cat-file", "-e", &format!("{}^{{commit}}", line.commit)])?.is_ok()
            {
                commits.push(("yesterday", line.commit.clone()));
            }
        }
        Ok(commits)
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("machine").to_owned()
}
