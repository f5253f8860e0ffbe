//! Errors of a mix: all at once, each with its place and a suggestion.

use std::fmt;
use stillgate_yaml::diagnostic::Errors;
use stillgate_yaml::{Position, Sink};

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its place; `None` if it is not about a place in a file.
    pub at: Option<Position>,
    /// The error, and a suggestion.
    pub message: String,
}

/// All errors of a mix; at least one. `Display` gives a line each,
/// `FILE:LINE:COLUMN: what; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixErrors {
    /// The file, or another source of the requests.
    pub origin: String,
    /// In the order of the file; at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// The number of further findings.
    pub more: usize,
}

/// More errors than this are not listed, as they would hardly be read.
pub const FINDINGS_MAX: usize = 50;

impl fmt::Display for MixErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Finding { at, message }) in self.findings.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match at {
                Some(Position { line, column }) => write!(f, "{}:{line}:{column}: {message}", self.origin)?,
                None => write!(f, "{}: {message}", self.origin)?,
            }
        }
        if self.more > 0 {
            write!(f, "\n{}: {} more errors", self.origin, self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for MixErrors {}

/// The place of a value, in a form that its reader knows cheaply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// Not in a file.
    Nowhere,
    At(Position),
    /// From this byte of the text on; converted to a position only for an error.
    Byte(usize),
}

impl From<Position> for Location {
    fn from(at: Position) -> Location {
        Location::At(at)
    }
}

/// Gathers findings while a file is read.
#[derive(Debug, Default)]
pub(super) struct Findings {
    found: Vec<(Location, String)>,
    more: usize,
}

impl Findings {
    pub(super) fn add(&mut self, at: impl Into<Location>, message: impl Into<String>) {
        if self.found.len() < FINDINGS_MAX {
            self.found.push((at.into(), message.into()));
        } else {
            self.more += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Appends the findings of another.
    pub(super) fn append(&mut self, other: Findings) {
        self.more += other.more;
        for (at, message) in other.found {
            self.add(at, message);
        }
    }

    /// Appends the findings of the YAML parser.
    pub(super) fn append_yaml(&mut self, found: Sink) {
        let Errors { diagnostics, omitted, .. } = found.into_errors();
        self.more += omitted;
        for found in diagnostics {
            let hint = found.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            self.add(Position { line: found.line, column: found.column }, found.message + &hint);
        }
    }

    /// `Ok` without findings.
    pub(super) fn into_result(self, origin: &str, text: &str) -> Result<(), MixErrors> {
        if self.is_empty() { Ok(()) } else { Err(self.into_errors(origin, text)) }
    }

    /// At least one error. `text` is the text of the file, for places that are bytes of it.
    pub(super) fn into_errors(self, origin: &str, text: &str) -> MixErrors {
        let finding = |(at, message)| match at {
            Location::Nowhere => Finding { at: None, message },
            Location::At(at) => Finding { at: Some(at), message },
            Location::Byte(byte) => Finding { at: Some(position(text, byte)), message },
        };
        let mut findings: Vec<Finding> = self.found.into_iter().map(finding).collect();
        findings.sort_by_key(|finding| finding.at);
        MixErrors { origin: origin.to_owned(), findings, more: self.more }
    }
}

/// The position of a byte of the text.
fn position(text: &str, byte: usize) -> Position {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    // Characters begin with any byte but 10xxxxxx.
    let characters = before[line_start..].iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    let from_one = |count: usize| u32::try_from(count + 1).unwrap_or(u32::MAX);
    let lines = before.iter().filter(|&&byte| byte == b'\n').count();
    Position { line: from_one(lines), column: from_one(characters) }
}

/// Quoted for a message: escaped, and in full up to a length.
pub(super) fn quoted(text: &str) -> String {
    const CHARACTERS_MAX: usize = 60;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("\"{}…\"", text[..end].escape_debug()),
        None => format!("\"{}\"", text.escape_debug()),
    }
}
