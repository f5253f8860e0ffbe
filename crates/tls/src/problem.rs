//! Problems with certificates and keys, for the person who has to fix them.

use std::fmt;
use std::path::Path;

/// Problems of one kind that are kept; the rest is counted.
const PROBLEMS_MAX: usize = 100;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key of the configuration, such as `ssls["shop"].cert`.
    pub path: String,
    /// The file, if there is one, and the error.
    pub message: String,
    /// Suggestion for fixing it.
    pub hint: Option<String>,
}

/// Why a configuration cannot be used: at least one error, and the warnings beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsProblems {
    /// Errors that have to be fixed.
    pub errors: Vec<Problem>,
    /// Findings that would not refuse the configuration.
    pub warnings: Vec<Problem>,
}

/// Findings about certificates and keys that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFindings {
    /// Warnings for the operator.
    pub warnings: Vec<Problem>,
    /// Why parts that are in use could not be loaded again; they stay in use.
    pub kept: Vec<Problem>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for TlsProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index > 0 { "\n" } else { "" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for TlsProblems {}

/// Gathers problems.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    errors: BoundedProblems,
    warnings: BoundedProblems,
    /// Why parts in use could not be loaded again; they are kept.
    kept: BoundedProblems,
}

/// The first [`PROBLEMS_MAX`].
#[derive(Debug, Default)]
struct BoundedProblems {
    kept: Vec<Problem>,
    omitted: usize,
}

/// A key of the configuration that a problem is about, and its file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfigLocation<'a> {
    /// See [`Problem::path`].
    pub(crate) path: &'a str,
    pub(crate) file: Option<&'a Path>,
}

impl Problems {
    pub(crate) fn error(&mut self, place: ConfigLocation<'_>, message: impl fmt::Display, hint: impl Into<String>) {
        self.errors.push(problem(place, message, hint.into()));
    }

    pub(crate) fn warning(&mut self, place: ConfigLocation<'_>, message: impl fmt::Display, hint: impl Into<String>) {
        self.warnings.push(problem(place, message, hint.into()));
    }

    /// Repeats earlier warnings about something that did not change.
    pub(crate) fn warn_again(&mut self, warnings: &[Problem]) {
        warnings.iter().for_each(|warning| self.warnings.push(warning.clone()));
    }

    /// Adds all of these to `outer`, which takes their place, and returns the warnings.
    pub(crate) fn warnings_into(&mut self, outer: Problems) -> Vec<Problem> {
        let these = std::mem::replace(self, outer);
        let warnings = these.warnings.kept.clone();
        self.append(these);
        warnings
    }

    /// Makes the errors reasons for keeping what is in use.
    pub(crate) fn downgrade_errors(&mut self) {
        let errors = std::mem::take(&mut self.errors);
        errors.kept.into_iter().for_each(|error| self.kept.push(error));
        self.kept.omitted += errors.omitted;
    }

    /// Puts the problems found `before` in front of these.
    pub(crate) fn prepend(&mut self, before: Problems) {
        let these = std::mem::replace(self, before);
        self.append(these);
    }

    fn append(&mut self, other: Problems) {
        other.errors.kept.into_iter().for_each(|error| self.errors.push(error));
        other.warnings.kept.into_iter().for_each(|warning| self.warnings.push(warning));
        other.kept.kept.into_iter().for_each(|problem| self.kept.push(problem));
        self.kept.omitted += other.kept.omitted;
        self.errors.omitted += other.errors.omitted;
        self.warnings.omitted += other.warnings.omitted;
    }

    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.kept.is_empty()
    }

    /// Returns the findings, or the refusal if there are errors.
    pub(crate) fn findings(mut self) -> Result<TlsFindings, TlsProblems> {
        let kept = std::mem::take(&mut self.kept).finish();
        self.finish().map(|warnings| TlsFindings { warnings, kept })
    }

    /// Returns the warnings, or the refusal if there are errors.
    pub(crate) fn finish(self) -> Result<Vec<Problem>, TlsProblems> {
        let warnings = self.warnings.finish();
        match self.errors.finish() {
            errors if errors.is_empty() => Ok(warnings),
            errors => Err(TlsProblems { errors, warnings }),
        }
    }
}

impl BoundedProblems {
    fn push(&mut self, problem: Problem) {
        match self.kept.len() < PROBLEMS_MAX {
            true => self.kept.push(problem),
            false => self.omitted += 1,
        }
    }

    fn finish(mut self) -> Vec<Problem> {
        if self.omitted > 0 {
            let message = format!("and {} more problems with certificates and keys", self.omitted);
            self.kept.push(Problem { path: "ssls".to_owned(), message, hint: None });
        }
        self.kept
    }
}

fn problem(place: ConfigLocation<'_>, message: impl fmt::Display, hint: String) -> Problem {
    let message = match place.file {
        Some(file) => format!("{}: {message}", file.display()),
        None => message.to_string(),
    };
    // Names of files and in certificates are somebody else's text; it must not leave its line.
    let clean = |text: String| text.replace(char::is_control, "\u{fffd}");
    Problem { path: place.path.to_owned(), message: clean(message), hint: Some(clean(hint)) }
}
