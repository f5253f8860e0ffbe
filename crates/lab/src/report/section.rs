//! The part of the page of each kind of experiment: its verdict, its entries in the contents, its body.
//!
//! A verdict has a word and a mark as well as its colour, for readers who do not see colours.

use super::escape::{ShortText, Text};
use crate::error::{Error, Result};
use crate::result::ResultFile;
use crate::result::histogram;
use hdrhistogram::Histogram;

/// A result file as it was given.
pub(crate) struct ReportInput {
    /// Its name, without folders.
    pub(crate) name: String,
    /// SHA-256 of its bytes, if they can be read again.
    pub(crate) sha256: Option<String>,
    /// Figures in it that do not follow from its raw data.
    pub(crate) differences: usize,
    /// Whether sentences were compared, too; those of another version are not.
    pub(crate) words_compared: bool,
    /// With the analysis that its raw data give: headlines of a page never come from figures typed into the file.
    pub(crate) result: ResultFile,
}

/// The style of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Worse,
    Better,
    Same,
    Undecided,
    Void,
    /// Nothing to judge.
    Plain,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Worse => "worse",
            Tone::Better => "better",
            Tone::Same => "same",
            Tone::Undecided => "undecided",
            Tone::Void => "void",
            Tone::Plain => "plain",
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Tone::Worse => "▲",
            Tone::Better => "▼",
            Tone::Same => "=",
            Tone::Undecided => "?",
            Tone::Void => "✕",
            Tone::Plain => "•",
        }
    }
}

/// A word on a coloured ground, with its mark.
pub(crate) fn chip(tone: Tone, word: &str) -> String {
    let (class, mark) = (tone.class(), tone.mark());
    format!("<span class=\"chip {class}\"><span aria-hidden=\"true\">{mark}</span> {}</span>", ShortText(word))
}

/// A line of the contents.
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) name: String,
    /// 0 is a result file.
    pub(crate) level: usize,
    pub(crate) tone: Tone,
}

/// One result file's part of the page.
pub(crate) struct Section {
    pub(crate) tone: Tone,
    /// The verdict in a word.
    pub(crate) word: &'static str,
    /// The verdict in one sentence.
    pub(crate) sentence: String,
    /// Further sentences of the verdict.
    pub(crate) details: String,
    /// The kind of the experiment and its subjects.
    pub(crate) title: String,
    pub(crate) entries: Vec<Entry>,
    /// Below a heading of the second level.
    pub(crate) body: String,
}

impl Section {
    /// Adds to the contents.
    pub(crate) fn enter(&mut self, id: &str, name: impl Into<String>, level: usize, tone: Tone) {
        self.entries.push(Entry { id: id.to_owned(), name: name.into(), level, tone });
    }

    /// Adds a heading of the third level with what is under it.
    pub(crate) fn part(&mut self, id: &str, name: &str, markup: &str) {
        self.enter(id, name, 1, Tone::Plain);
        let name = Text(name);
        self.body.push_str(&format!(
            "<section class=\"part\" aria-labelledby=\"{id}\"><h3 id=\"{id}\">{name}</h3>\n{markup}</section>\n"
        ));
    }
}

/// Folded on screen and open on paper.
pub(crate) fn folded(summary: &str, markup: &str) -> String {
    format!("<details class=\"more\"><summary>{}</summary>\n{markup}</details>\n", Text(summary))
}

/// The first line of a text; the full text, which may be the log of a program, is folded.
pub(crate) fn in_short(text: &str) -> String {
    match text.trim_end().split_once('\n') {
        None => Text(text.trim_end()).to_string(),
        Some((first, _)) => {
            format!("{}{}", Text(first), folded("Its output", &format!("<pre>{}</pre>", Text(text.trim_end()))))
        }
    }
}

/// All requests of several runs together, in nanoseconds.
pub(crate) fn together<'a>(what: &str, encoded: impl IntoIterator<Item = &'a String>) -> Result<Histogram<u64>> {
    let decoded: Result<Vec<_>> = encoded.into_iter().map(|text| histogram::decode(text)).collect();
    decoded.and_then(|all| histogram::merge(&all)).map_err(|error| Error::context(error, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_the_first_line_is_shown() {
        assert_eq!(in_short("no valgrind <here>\n"), "no valgrind &lt;here&gt;");
        let log = format!("it ended:\n{}", "==7== Illegal instruction\n".repeat(60));
        let shown = in_short(&log);
        let (first, folded) = shown.split_once("<details").unwrap();
        assert_eq!((first, folded.matches("==7==").count()), ("it ended:", 60));
    }
}
