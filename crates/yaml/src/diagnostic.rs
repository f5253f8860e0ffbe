//! Errors and warnings of a configuration file, with their places.
//!
//! All findings of a file are gathered, sorted by position and bounded in number, so that the same file always gives
//! the same report. How a report reaches a person (colour, JSON) is the caller's business.

use crate::budget::CompileBudget;
pub use crate::hidden_texts::HIDDEN;
use crate::hidden_texts::HiddenTexts;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Findings kept per severity; the rest is counted.
pub const DIAGNOSTICS_MAX: usize = 100;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Whether the file can still be used.
    pub severity: Severity,
    /// The key concerned, as `routes[3].uri`; empty for the file as a whole.
    pub path: String,
    /// From 1; 0 if the finding has no place in the text.
    pub line: u32,
    /// From 1, in characters; 0 if the finding has no place in the text.
    pub column: u32,
    /// The error, and the expected value.
    pub message: String,
    /// A suggestion.
    pub hint: Option<String>,
    /// The line of the error with carets below it, if the value has a language of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is used.
    Warning,
}

/// Why a file is refused: at least one error, and the warnings besides, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// The file's name, if there is one.
    pub file: Option<String>,
    /// Sorted by position.
    pub diagnostics: Vec<Diagnostic>,
    /// The number of findings beyond [`DIAGNOSTICS_MAX`].
    pub omitted: usize,
}

impl Diagnostic {
    /// The finding as one line that begins with `file:line:column`, and below it the excerpt, if there is one.
    pub fn in_file(&self, file: Option<&str>) -> String {
        match file {
            Some(file) if self.line == 0 => format!("{file}: {self}"),
            Some(file) => format!("{file}:{self}"),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.line, self.column)?;
        }
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        match &self.excerpt {
            Some(excerpt) => write!(f, "\n{excerpt}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.diagnostics.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&diagnostic.in_file(self.file.as_deref()))?;
        }
        match self.omitted {
            0 => Ok(()),
            n => write!(f, "\nand {n} more"),
        }
    }
}

impl std::error::Error for Errors {}

/// A place in the text. Lines and columns count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

impl Position {
    /// The file as a whole.
    pub const NOWHERE: Position = Position { line: 0, column: 0 };
}

/// The path from the root to a value. It lives on the stack and is written out only for a finding.
#[derive(Debug, Clone, Copy)]
pub enum Path<'a> {
    /// The document itself.
    Root,
    /// A key of a map.
    Key(&'a Path<'a>, &'a str),
    /// An item of a list, from 0.
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    /// The path to a key of this value.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }

    /// The path to an item of this value.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
            Path::Key(parent, key) => {
                let bare = key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '<'));
                match (bare && !key.is_empty(), parent) {
                    (true, Path::Root) => write!(f, "{}", shortened(key)),
                    (true, _) => write!(f, "{parent}.{}", shortened(key)),
                    (false, _) => write!(f, "{parent}[{:?}]", shortened(key)),
                }
            }
        }
    }
}

/// A finding before its place is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The error.
    pub message: String,
    /// A suggestion.
    pub hint: Option<String>,
    /// See [`Diagnostic::excerpt`].
    pub excerpt: Option<String>,
}

impl Fault {
    /// A fault without a hint.
    pub fn new(message: impl Into<String>) -> Fault {
        Fault { message: message.into(), hint: None, excerpt: None }
    }

    /// Adds a suggestion.
    pub fn hint(self, hint: impl Into<String>) -> Fault {
        Fault { hint: Some(hint.into()), ..self }
    }
}

impl<T: Into<String>> From<T> for Fault {
    fn from(message: T) -> Fault {
        Fault::new(message)
    }
}

/// Guesses made for one file; comparing with all known words is the largest cost in a file full of errors.
const GUESSES_MAX: usize = 2 * DIAGNOSTICS_MAX;

/// Gathers findings.
#[derive(Debug, Default)]
pub struct Sink {
    errors: BoundedDiagnostics,
    warnings: BoundedDiagnostics,
    guesses: usize,
    hidden: HiddenTexts,
    /// Scopes in which any text may be a secret, even the name of a key.
    hidden_scopes: usize,
    /// Kinds and ids of references; `None` if they are not collected.
    references: Option<Vec<(&'static str, String)>>,
    is_alone: bool,
    /// Ids, by kind, of resources outside of the file, and of resources that cannot be read, which has been reported.
    elsewhere: HashMap<&'static str, HashSet<String>>,
    /// Kinds whose resources are unknown, which has been reported.
    unread: Vec<&'static str>,
    /// Kinds and ids of resources that exist and cannot be used.
    unusable: Arc<HashSet<(&'static str, String)>>,
    /// Messages that were given and must not be repeated.
    said: Vec<&'static str>,
    /// Whether unknown keys cause warnings only, if their object allows it.
    passes_unknown: bool,
    /// Whether this is within an object for which other programs know more keys.
    is_open: bool,
    budget: Rc<CompileBudget>,
}

impl Sink {
    /// A sink for one resource among others; its references are collected.
    pub fn of_one() -> Sink {
        Sink { references: Some(Vec::new()), ..Sink::default() }
    }

    /// A sink for a single resource: missing references are not errors.
    pub fn for_single_resource() -> Sink {
        Sink { is_alone: true, ..Sink::default() }
    }

    /// Pays for what it compiles from this budget.
    pub fn paying_from(self, budget: &Rc<CompileBudget>) -> Sink {
        Sink { budget: budget.clone(), ..self }
    }

    /// What compiling may still cost.
    pub fn budget(&self) -> Rc<CompileBudget> {
        self.budget.clone()
    }

    /// Also allows references to these resources, by kind and id.
    pub fn with_references(mut self, elsewhere: impl IntoIterator<Item = (&'static str, String)>) -> Sink {
        for (kind, id) in elsewhere {
            self.elsewhere.entry(kind).or_default().insert(id);
        }
        self
    }

    /// Notes that these resources, by kind and id, exist and cannot be used.
    pub fn with_unusable(self, unusable: &Arc<HashSet<(&'static str, String)>>) -> Sink {
        Sink { unusable: unusable.clone(), ..self }
    }

    /// The errors of this resource have been reported; that others miss it is a consequence, and is not reported.
    pub fn excuse(&mut self, kind: &'static str, id: &str) {
        self.elsewhere.entry(kind).or_default().insert(id.to_owned());
    }

    /// Like [`Sink::excuse`], for all resources of a kind.
    pub fn excuse_all(&mut self, kind: &'static str) {
        self.unread.push(kind);
    }

    /// Accepts unknown keys of plugins with a warning: other programs write the resource, and know more keys.
    pub fn passing_unknown(self) -> Sink {
        Sink { passes_unknown: true, ..self }
    }

    /// Calls `then`, within which unknown keys may pass.
    pub fn allowing_unknown<R>(&mut self, then: impl FnOnce(&mut Sink) -> R) -> R {
        let before = std::mem::replace(&mut self.is_open, self.passes_unknown);
        let result = then(self);
        self.is_open = before;
        result
    }

    /// Reports something that other programs may know: an error in a file, or a warning where it may be meant for
    /// others.
    pub fn foreign(&mut self, at: Position, path: &Path<'_>, fault: Fault) {
        match self.is_open {
            true => self.warning(at, path, fault),
            false => self.error(at, path, fault),
        }
    }

    /// Whether this message was not given before.
    pub fn mark_said(&mut self, what: &'static str) -> bool {
        let is_first = !self.said.contains(&what);
        if is_first {
            self.said.push(what);
        }
        is_first
    }

    /// Whether a referenced resource may be missing here.
    pub fn may_miss(&self, kind: &str, id: &str) -> bool {
        self.is_alone || self.unread.contains(&kind) || self.elsewhere.get(kind).is_some_and(|ids| ids.contains(id))
    }

    /// Whether a resource exists and cannot be used.
    pub fn is_unusable(&self, kind: &'static str, id: &str) -> bool {
        !self.unusable.is_empty() && self.unusable.contains(&(kind, id.to_owned()))
    }

    /// Notes a reference to a resource, which may be missing.
    pub fn refers(&mut self, kind: &'static str, id: &str) {
        if let Some(references) = &mut self.references {
            references.push((kind, id.to_owned()));
        }
    }

    /// The references that were collected.
    pub fn take_references(&mut self) -> Vec<(&'static str, String)> {
        self.references.take().unwrap_or_default()
    }

    /// No finding from here on shows this text.
    pub fn hide(&mut self, text: &str) {
        self.hidden.add(text);
    }

    /// No finding at this key, or below it, shows a word of this text, unless `is_shown` holds for the word.
    pub fn hide_words(&mut self, key: &'static str, text: &str, is_shown: &dyn Fn(&str) -> bool) {
        self.hidden.add_words(key, text, is_shown);
    }

    /// A finding of another sink without what this one hides.
    pub fn cover(&self, found: Diagnostic) -> Diagnostic {
        self.hidden.cover_diagnostic(found)
    }

    /// Calls `then`, within which any text may be a secret, even the name of a key; texts that it hides are not hidden
    /// afterwards.
    pub fn with_hidden_scope<R>(&mut self, then: impl FnOnce(&mut Sink) -> R) -> R {
        let before = self.hidden.texts();
        self.hidden_scopes += 1;
        let result = then(self);
        self.hidden_scopes -= 1;
        self.hidden.truncate_texts(before);
        result
    }

    /// Whether any text may be a secret here, even the name of a key.
    pub fn is_hiding(&self) -> bool {
        self.hidden_scopes > 0
    }

    /// Adds a guess at the intended word to the fault, if there is one.
    pub fn guess<'a>(&mut self, fault: Fault, word: &str, known: impl IntoIterator<Item = &'a str>) -> Fault {
        self.guesses += 1;
        match self.guesses <= GUESSES_MAX {
            true => match nearest(word, known) {
                Some(known) => fault.hint(format!("did you mean {known:?}?")),
                None => fault,
            },
            false => fault,
        }
    }

    /// Reports an error.
    pub fn error(&mut self, at: Position, path: &Path<'_>, fault: impl Into<Fault>) {
        // Hiding texts in a finding takes time in proportion to the document.
        if !self.errors.leaves_out(at) {
            let found = self.without_hidden(Severity::Error, at, path, fault.into());
            self.errors.push(found);
        }
    }

    /// Reports a warning.
    pub fn warning(&mut self, at: Position, path: &Path<'_>, fault: impl Into<Fault>) {
        if !self.warnings.leaves_out(at) {
            let found = self.without_hidden(Severity::Warning, at, path, fault.into());
            self.warnings.push(found);
        }
    }

    fn without_hidden(&self, severity: Severity, at: Position, path: &Path<'_>, fault: Fault) -> Diagnostic {
        let path = path.to_string();
        let fault = self.hidden.cover(&path, fault);
        Diagnostic { path: self.hidden.cover_path(path), ..diagnostic(severity, at, &Path::Root, fault) }
    }

    /// Removes the errors found since `errors` was taken, to find them again in another reading of the same text.
    pub(crate) fn go_back_to(&mut self, errors: BoundedDiagnostics) {
        self.errors = errors;
    }

    /// The errors so far.
    pub(crate) fn errors_so_far(&self) -> BoundedDiagnostics {
        self.errors.clone()
    }

    /// Whether there was an error.
    pub fn has_errors(&self) -> bool {
        !self.errors.kept.is_empty()
    }

    /// Whether there was an error at a key of the document, or below it.
    pub fn has_errors_in(&self, key: &str) -> bool {
        let is_in =
            |path: &str| path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        self.errors.kept.iter().any(|error| is_in(&error.path))
    }

    /// The number of errors so far.
    pub fn errors(&self) -> usize {
        self.errors.kept.len() + self.errors.omitted
    }

    /// The number of warnings so far.
    pub fn warnings(&self) -> usize {
        self.warnings.kept.len() + self.warnings.omitted
    }

    /// The warnings of a file that has no errors, with a last one about those that were left out.
    pub fn into_warnings(mut self) -> Vec<Diagnostic> {
        self.warnings.settle();
        if self.warnings.omitted > 0 {
            let more = format!("and {} more warnings", self.warnings.omitted);
            let last = diagnostic(Severity::Warning, Position::NOWHERE, &Path::Root, more.into());
            self.warnings.kept.push(last);
        }
        self.warnings.kept
    }

    /// All findings.
    pub fn into_errors(mut self) -> Errors {
        self.errors.settle();
        self.warnings.settle();
        let omitted = self.errors.omitted + self.warnings.omitted;
        let mut diagnostics = self.errors.kept;
        diagnostics.append(&mut self.warnings.kept);
        diagnostics.sort_by_key(|d| (d.line, d.column));
        Errors { file: None, diagnostics, omitted }
    }
}

fn diagnostic(severity: Severity, at: Position, path: &Path<'_>, fault: Fault) -> Diagnostic {
    Diagnostic {
        severity,
        path: path.to_string(),
        line: at.line,
        column: at.column,
        message: one_line(fault.message),
        hint: fault.hint.map(one_line),
        excerpt: fault.excerpt,
    }
}

/// A message may quote the file or an environment variable: it is bounded, and without line breaks or escape sequences.
fn one_line(message: String) -> String {
    const MESSAGE_CHARS_MAX: usize = 1000;
    if message.len() <= MESSAGE_CHARS_MAX && !message.contains(char::is_control) {
        return message;
    }
    shortened_to(&message, MESSAGE_CHARS_MAX)
}

/// The first [`DIAGNOSTICS_MAX`] findings by position, regardless of their number and order.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoundedDiagnostics {
    kept: Vec<Diagnostic>,
    /// Line and column of the last of [`DIAGNOSTICS_MAX`] findings, once there were more. One that is not before it is left out.
    last: Option<(u32, u32)>,
    omitted: usize,
}

impl BoundedDiagnostics {
    /// Whether a finding at this place is left out; it is counted then.
    fn leaves_out(&mut self, at: Position) -> bool {
        let is_out = self.last.is_some_and(|last| (at.line, at.column) >= last);
        self.omitted += usize::from(is_out);
        is_out
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        self.kept.push(diagnostic);
        if self.kept.len() >= 2 * DIAGNOSTICS_MAX {
            self.settle();
        }
    }

    fn settle(&mut self) {
        // Stable: findings at one place keep their order.
        self.kept.sort_by_key(|d| (d.line, d.column));
        self.omitted += self.kept.len().saturating_sub(DIAGNOSTICS_MAX);
        self.kept.truncate(DIAGNOSTICS_MAX);
        if self.omitted > 0 {
            self.last = self.kept.last().map(|last| (last.line, last.column));
        }
    }
}

/// Text of the file for a message: bounded, on one line, and without the login of a URL or an address.
pub fn shortened(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 60;
    shortened_to(&without_login(text), SHOWN_CHARS_MAX)
}

/// The user name and password of a URL or an address. Whatever is before the last `@` may be a part of a password.
pub fn login_of(text: &str) -> Option<&str> {
    login_range(text).map(|range| &text[range])
}

fn login_range(text: &str) -> Option<Range<usize>> {
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let scheme = text.find("://").filter(|end| text[..*end].bytes().all(is_of_scheme));
    let begin = scheme.map_or(0, |end| end + "://".len());
    let end = begin + text[begin..].rfind('@')?;
    let login = &text[begin..end];
    // Without a scheme: `user:password@host`. An email address has no colon but that of `mailto:`, and prose has blanks.
    let is_login = login.contains(':') && !login.starts_with("mailto:") && !login.contains(char::is_whitespace);
    (scheme.is_some() || is_login).then_some(begin..end)
}

fn shortened_to(text: &str, chars_max: usize) -> String {
    let mut out: String = text.chars().take(chars_max).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        out.push('…');
    }
    out
}

fn without_login(text: &str) -> Cow<'_, str> {
    match login_range(text) {
        Some(Range { start, end }) => Cow::Owned(format!("{}{HIDDEN}{}", &text[..start], &text[end..])),
        None => Cow::Borrowed(text),
    }
}

// The known word that an unknown one was probably meant to be.

/// The known word with the fewest edits, if they are few for the word's length; among several the first by
/// alphabet. Case, `-` for `_`, and blanks around it are ignored.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 80;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let fold = |word: &str| word.trim().to_ascii_lowercase().replace('-', "_");
    let word = fold(word);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| {
            // A word without a common character is not a guess.
            *distance < candidate.len() && *distance <= candidate.len().max(word.len()).div_ceil(3)
        })
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_logins() {
        let check = |text: &str, expected: &str| assert_eq!(shortened(text), expected);
        check("http://root:S3CRET@h:1/a", "http://(hidden)@h:1/a");
        check("redis://S3CRET@h", "redis://(hidden)@h");
        check("http://root:S3/?#@CRET two@h", "http://(hidden)@h");
        check("root:S3CRET@h:1", "(hidden)@h:1");
        check(&format!("http://root:{}@h:1", "S3CRET".repeat(20)), "http://(hidden)@h:1");
        for open in ["http://h:1/a", "admin@example.com", "mailto:admin@example.com", "a: b@c", "@a", ""] {
            check(open, open);
        }
    }

    #[test]
    fn finds_what_was_meant() {
        let known = ["uri", "uris", "upstream", "upstream_id", "methods", "priority"];
        for (word, want) in [
            ("url", Some("uri")),
            ("upstreamid", Some("upstream_id")),
            ("upstream-id", Some("upstream_id")),
            ("Methods", Some("methods")),
            ("method", Some("methods")),
            (" priority ", Some("priority")),
            ("priorty", Some("priority")),
            ("priroity", Some("priority")),
            ("zzz", None),
            ("", None),
            ("u", None),
            ("completely_different", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word}");
        }
    }
}
