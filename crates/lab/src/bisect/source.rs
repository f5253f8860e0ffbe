//! The source of the measured things: commits, which are built, or versions that were built before.

use super::checkouts::{BuildOutcome, Checkouts};
use super::versions::Versions;
use crate::error::Result;
use crate::result::bisect::CommitRecord;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

#[derive(Debug)]
pub(crate) enum Source {
    Commits(Checkouts),
    Versions(Versions),
}

impl Source {
    /// Whether it is already built.
    pub(crate) fn is_built(&self, record: &CommitRecord) -> bool {
        match self {
            Source::Commits(checkouts) => checkouts.is_built(&record.commit),
            Source::Versions(_) => true,
        }
    }

    /// Prepares it for a measurement.
    pub(crate) fn build(&self, record: &CommitRecord, stop: &AtomicBool) -> Result<BuildOutcome> {
        match (self, &record.artefact) {
            (Source::Commits(checkouts), _) => checkouts.build(&record.commit, stop),
            (Source::Versions(versions), Some(artefact)) => Ok(versions.ready(&record.commit, artefact)),
            (Source::Versions(_), None) => Ok(BuildOutcome::Failed("no artefact is recorded".to_owned())),
        }
    }

    /// The default path of a bisection's record.
    pub(crate) fn record_path(&self, question: &str) -> PathBuf {
        match self {
            Source::Commits(checkouts) => checkouts.record_path(question),
            Source::Versions(versions) => versions.record_path(question),
        }
    }

    /// Removes what was built for them.
    pub(crate) fn tidy(&self, records: &[CommitRecord]) {
        if let Source::Commits(checkouts) = self {
            let built = records.iter().filter(|record| checkouts.is_built(&record.commit));
            built.for_each(|record| checkouts.remove(&record.commit));
        }
    }
}
