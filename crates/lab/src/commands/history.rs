//! `stillgate-lab history`: what changed when, from a store of nightly measurements.

use crate::command_line::percent;
use crate::error::{Error, Result};
use crate::store::{self, StoreLocation};
use crate::{history, output, report};
use clap::Args;
use std::path::{Path, PathBuf};

/// Exit code if a series changed.
const EXIT_CHANGED: u8 = 1;

/// `stillgate-lab history`.
#[derive(Debug, Args)]
#[command(after_help = "\
A change is found by E-divisive with permutation tests at 1%, on the ratio of each night's commit to the release measured in the same night. Counts do not scatter: each difference of --min-effect between two commits is a change.

Exit codes: 0 nothing changed; 1 something did; 2 the store cannot be read.")]
pub(crate) struct History {
    /// The store that `nightly` fills: a folder, or git:BRANCH of --repo
    #[arg(long, value_name = "FOLDER")]
    store: String,
    /// Series to show, by name; all by default
    #[arg(long, value_name = "NAME")]
    series: Vec<String>,
    /// Repository, to name the commits between two nights
    #[arg(long, value_name = "FOLDER")]
    repo: Option<PathBuf>,
    /// Smallest change of a count
    #[arg(long, value_name = "SHARE", value_parser = percent, default_value = "1%")]
    min_effect: f64,
    /// A page with a plot of each series
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

/// Returns 0 if no series changed, 1 if one did.
pub(crate) fn run(arguments: &History) -> Result<u8> {
    let repo = arguments.repo.as_deref();
    let place = StoreLocation::open(&arguments.store, repo.unwrap_or(Path::new(".")), None)?;
    let contents = store::read(&place.folder)?;
    for line in &contents.left_out {
        eprintln!("stillgate-lab: {line}");
    }
    let mut all = history::series(&contents.lines, arguments.min_effect);
    for name in &arguments.series {
        if !all.iter().any(|series| series.name == *name) {
            let mut names: Vec<&str> = all.iter().map(|series| series.name.as_str()).collect();
            names.dedup();
            return Err(Error::new(format!("--series {name}: is not in the store; it has {}", names.join(", "))));
        }
    }
    if !arguments.series.is_empty() {
        all.retain(|series| arguments.series.contains(&series.name));
    }
    output::show(history::report(&all, repo)?)?;
    if let Some(path) = &arguments.html {
        let page = report::history(&all, repo)?;
        output::replace_file(path, page.as_bytes())
            .map_err(|error| Error::new(format!("{}: the page cannot be written: {error}", path.display())))?;
    }
    Ok(if all.iter().any(|series| !series.changes.is_empty()) { EXIT_CHANGED } else { 0 })
}
