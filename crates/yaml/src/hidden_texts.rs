//! Texts that findings do not show: secrets, in every form in which a message may quote them.
//!
//! A secret by itself is looked for as a whole. Code and conditions are hidden word by word, because messages about them quote
//! parts: but only in findings at their own key, since others may use the same words.

use crate::diagnostic::{Diagnostic, Fault, shortened};
use std::collections::{HashMap, HashSet};

/// Replaces secret texts in a finding.
pub const HIDDEN: &str = "(hidden)";

/// Shorter texts are only covered as whole words, and shorter words are not covered.
const PART_BYTES_MIN: usize = 4;

/// Texts that no finding may show.
#[derive(Debug, Default)]
pub(crate) struct HiddenTexts {
    texts: Vec<HiddenText>,
    /// All texts, each with a NUL after it.
    joined: String,
    /// By its first bytes, which texts have a form of at least as many. A message has few of very many texts.
    beginnings: HashMap<[u8; PART_BYTES_MIN], Vec<usize>>,
    /// The texts with a shorter form.
    short: Vec<usize>,
    /// With the key that they belong to.
    words: Vec<(&'static str, HashSet<Box<str>>)>,
}

/// A text, and the other forms in which a message may quote it: escaped, shortened, or both.
#[derive(Debug)]
struct HiddenText {
    text: Box<str>,
    others: Vec<Box<str>>,
}

impl HiddenText {
    fn new(text: &str) -> HiddenText {
        let escaped = |text: &str| text.escape_debug().to_string();
        let short = shortened(text);
        let short = short.strip_suffix('…').unwrap_or(&short);
        let mut others: Vec<Box<str>> = Vec::new();
        for other in [escaped(text), short.to_owned(), escaped(short)] {
            if !other.is_empty() && other != text && !others.iter().any(|known| **known == other) {
                others.push(other.into());
            }
        }
        HiddenText { text: text.into(), others }
    }

    fn forms(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.text).chain(self.others.iter().map(|other| &**other))
    }
}

impl HiddenTexts {
    pub(crate) fn add(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let (number, hidden) = (self.texts.len(), HiddenText::new(text));
        for form in hidden.forms() {
            match form.as_bytes().first_chunk() {
                Some(beginning) => self.beginnings.entry(*beginning).or_default().push(number),
                None => self.short.push(number),
            }
        }
        self.joined.push_str(text);
        self.joined.push('\0');
        self.texts.push(hidden);
    }

    /// Adds the words of a text, and their parts, unless `is_shown` holds for them: findings at `key`, or below it, may quote a
    /// part of the text.
    pub(crate) fn add_words(&mut self, key: &'static str, text: &str, is_shown: &dyn Fn(&str) -> bool) {
        let is_hidden = |word: &&str| word.len() >= PART_BYTES_MIN && !is_shown(word);
        let words = words(text).filter(|word| !is_shown(word)).flat_map(|word| parts(word).chain([word]));
        let words = words.filter(is_hidden).map(Box::from);
        match self.words.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => known.extend(words),
            None => self.words.push((key, words.collect())),
        }
    }

    pub(crate) fn texts(&self) -> usize {
        self.texts.len()
    }

    pub(crate) fn truncate_texts(&mut self, count: usize) {
        for hidden in self.texts.drain(count.min(self.texts.len())..).rev() {
            self.joined.truncate(self.joined.len() - hidden.text.len() - 1);
            for beginning in hidden.forms().filter_map(|form| form.as_bytes().first_chunk()) {
                let Some(numbers) = self.beginnings.get_mut(beginning) else { continue };
                while numbers.pop_if(|number| *number >= count).is_some() {}
                if numbers.is_empty() {
                    self.beginnings.remove(beginning);
                }
            }
        }
        self.short.retain(|number| *number < count);
    }

    /// The texts of which a message may show a form, in their order.
    fn shown_in(&self, message: &str) -> Vec<&HiddenText> {
        let mut numbers = self.short.clone();
        for at in 0..message.len() {
            let rest = &message.as_bytes()[at..];
            let known = rest.first_chunk().and_then(|beginning| self.beginnings.get(beginning));
            let is_here = |number: &&usize| self.texts[**number].forms().any(|form| rest.starts_with(form.as_bytes()));
            numbers.extend(known.into_iter().flatten().filter(is_here));
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| &self.texts[number]).collect()
    }

    /// A finding without them. `path`: the key that it is about.
    pub(crate) fn cover(&self, path: &str, fault: Fault) -> Fault {
        let sets: Vec<&HashSet<Box<str>>> =
            self.words.iter().filter(|(key, _)| path.contains(key)).map(|(_, words)| words).collect();
        if self.texts.is_empty() && sets.is_empty() {
            return fault;
        }
        let cover = |text: String| {
            let text = self.shown_in(&text).into_iter().fold(text, cover);
            let text = match text.contains('…') {
                true => self.texts.iter().fold(text, |text, hidden| cover_cut(text, &hidden.text)),
                false => text,
            };
            let text = cover_quoted(&text, &self.joined);
            sets.iter().fold(text, |text, set| cover_words(&text, set))
        };
        // With carets below another place than the one that is meant, a line would mislead.
        let excerpt = fault.excerpt.filter(|excerpt| cover(excerpt.clone()) == *excerpt);
        Fault { message: cover(fault.message), hint: fault.hint.map(cover), excerpt }
    }

    /// A path without them: a value may be written where a key is wanted. Plain keys are shown.
    pub(crate) fn cover_path(&self, path: String) -> String {
        let Some(begin) = path.find("[\"") else { return path };
        let keys = self.shown_in(&path[begin..]).into_iter().fold(path[begin..].to_owned(), cover);
        path[..begin].to_owned() + &keys
    }

    /// Hides the texts of a finding that has its place.
    pub(crate) fn cover_diagnostic(&self, found: Diagnostic) -> Diagnostic {
        let Diagnostic { severity, path, line, column, message, hint, excerpt } = found;
        let Fault { message, hint, excerpt } = self.cover(&path, Fault { message, hint, excerpt });
        Diagnostic { severity, path: self.cover_path(path), line, column, message, hint, excerpt }
    }
}

/// The words of a text, as blanks, quotes and parentheses separate them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_between_words).filter(|word| !word.is_empty())
}

/// Their parts: letters and digits.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty())
}

fn is_between_words(c: char) -> bool {
    c.is_whitespace() || "\"'`()[]{},;=…".contains(c)
}

/// Covers words of a set, their parts, and such of which a message shows the beginning only.
fn cover_words(text: &str, set: &HashSet<Box<str>>) -> String {
    let is_cut = |behind: &str| behind.starts_with('…') || behind.starts_with("...");
    let is_hidden = |word: &str, behind: &str| {
        let bare = word.trim_end_matches(['.', ':']);
        let begins = |known: &str| bare.len() >= PART_BYTES_MIN && known.starts_with(bare);
        set.contains(word)
            || set.contains(bare)
            || (is_cut(behind) || word.ends_with("...")) && set.iter().any(|known| begins(known))
    };
    let whole = cover_hidden(text, is_between_words, is_hidden);
    cover_hidden(&whole, |c| !c.is_alphanumeric(), is_hidden)
}

/// A text in which the words that `is_hidden` holds for are covered; it is given what follows the word, too.
fn cover_hidden(text: &str, is_between: impl Fn(char) -> bool, is_hidden: impl Fn(&str, &str) -> bool) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let end = rest.find(&is_between).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        out.push_str(if !word.is_empty() && is_hidden(word, behind) { HIDDEN } else { word });
        let next = behind.find(|c| !is_between(c)).unwrap_or(behind.len());
        out.push_str(&behind[..next]);
        rest = &behind[next..];
    }
    out
}

/// Covers a hidden text in every form in which a message may quote it.
fn cover(text: String, hidden: &HiddenText) -> String {
    hidden.forms().fold(text, without)
}

/// Covers what a message quotes if it is a part of a hidden text: a parser quotes the part that it could not read.
/// `hidden`: all texts.
fn cover_quoted(text: &str, hidden: &str) -> String {
    let is_part = |quoted: &str| {
        let part = quoted.strip_suffix('…').unwrap_or(quoted);
        part.len() >= PART_BYTES_MIN && part != HIDDEN && hidden.contains(part)
    };
    let (mut out, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find(['"', '`']) {
        let quote = &rest[begin..=begin];
        let Some(length) = rest[begin + 1..].find(quote) else { break };
        let quoted = &rest[begin + 1..begin + 1 + length];
        out.push_str(&rest[..=begin]);
        rest = &rest[begin + 1..];
        // Otherwise the next mark may be the one that begins a quotation.
        if is_part(quoted) {
            out.push_str(HIDDEN);
            out.push_str(quote);
            rest = &rest[length + 1..];
        }
    }
    out + rest
}

/// Covers the beginning of a hidden text where a message cuts off a longer one that has it inside.
fn cover_cut(text: String, hidden: &str) -> String {
    let mut text = text;
    let mut from = text.len();
    while let Some(cut) = text[..from].rfind('…') {
        let ends = |end: usize| hidden.is_char_boundary(end) && text[..cut].ends_with(&hidden[..end]);
        let longest = (PART_BYTES_MIN..hidden.len().min(cut + 1)).rev().find(|end| ends(*end));
        if let Some(end) = longest {
            text.replace_range(cut - end..cut, HIDDEN);
            from = cut - end;
        } else {
            from = cut;
        }
    }
    text
}

/// Covers a hidden text. A short one is only covered if it is a whole word: within the message's own words it would
/// hide nothing.
fn without(text: String, hidden: &str) -> String {
    if !text.contains(hidden) {
        return text;
    }
    if hidden.len() >= PART_BYTES_MIN {
        return text.replace(hidden, HIDDEN);
    }
    let is_word = |at: usize| {
        let (before, behind) = (&text[..at], &text[at + hidden.len()..]);
        !before.ends_with(char::is_alphanumeric) && !behind.starts_with(char::is_alphanumeric)
    };
    let (mut out, mut copied) = (String::new(), 0);
    for (at, _) in text.match_indices(hidden).filter(|(at, _)| is_word(*at)) {
        out.push_str(&text[copied..at]);
        out.push_str(HIDDEN);
        copied = at + hidden.len();
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(hidden: &HiddenTexts, path: &str, message: &str, expected: &str) {
        assert_eq!(hidden.cover(path, Fault::new(message)).message, expected);
    }

    #[test]
    fn words_are_covered_at_their_own_key_only() {
        let mut hidden = HiddenTexts::default();
        hidden.add_words("vars", "http_key == S3CRET-1 && 'Bearer ab-cd-ef'", &|word| word == "http_key");
        check(
            &hidden,
            "vars[0]",
            "no operator; write [\"http_key\", \"==\", \"S3CRET-1\"]",
            "no operator; write [\"http_key\", \"==\", \"(hidden)\"]",
        );
        check(&hidden, "routes[3].vars", "found `S3CRET`: Bearer", "found `(hidden)`: (hidden)");
        check(&hidden, "vars", "found ab-cd-ef", "found (hidden)");
        check(&hidden, "vars", "found S3CRE… and S3CR...", "found (hidden)… and (hidden)");
        check(&hidden, "uri", "S3CRET-1", "S3CRET-1");
        let line = Fault { excerpt: Some("http_key == S3CRET-1\n   ^".to_owned()), ..Fault::new("wrong") };
        assert_eq!(hidden.cover("vars", line).excerpt, None);
    }

    #[test]
    fn texts_that_are_no_longer_hidden_leave_nothing_behind() {
        let mut hidden = HiddenTexts::default();
        hidden.add("first-secret");
        let message = "a, \"xéyé\", xéyézé and \"first-secret\"";
        for _ in 0..2 {
            ["a", "xéyézé", "x\n", "first-secret-2"].into_iter().for_each(|text| hidden.add(text));
            check(&hidden, "", message, "(hidden), \"(hidden)\", (hidden) and \"(hidden)\"");
            hidden.truncate_texts(1);
            check(&hidden, "", message, "a, \"xéyé\", xéyézé and \"(hidden)\"");
        }
        assert_eq!((hidden.texts(), &*hidden.joined, hidden.beginnings.len()), (1, "first-secret\0", 1));
        hidden.truncate_texts(0);
        assert!(hidden.joined.is_empty() && hidden.beginnings.is_empty() && hidden.short.is_empty());
    }

    #[test]
    fn a_part_of_a_text_is_covered_where_a_message_cuts_it_off() {
        let mut hidden = HiddenTexts::default();
        hidden.add("user:S3CRET-password");
        check(&hidden, "uri", "\"http://user:S3CRET-pass…\" is no", "\"http://(hidden)…\" is no");
        check(&hidden, "uri", "… http://user:S3CRET-password@a …", "… http://(hidden)@a …");
        check(&hidden, "uri", "use… of é…", "use… of é…");
        check(&hidden, "nodes", "\"S3CRET-password\" is not a port", "\"(hidden)\" is not a port");
        check(&hidden, "nodes", "\"a\", `:S3CRET` or \"b\"", "\"a\", `(hidden)` or \"b\"");
        check(&hidden, "nodes", "write \"host:port\"", "write \"host:port\"");
        let path = hidden.cover_path("headers[\"user:S3CRET-password\"].x".to_owned());
        assert_eq!(path, "headers[\"(hidden)\"].x");
    }
}
