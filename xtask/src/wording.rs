//! Words and turns that comments, messages and pages avoid: those of translated English, which hide who does what.
//!
//! A machine sees words only. Whether a sentence is plain is for its readers to say.

use crate::Result;
use crate::tree;

/// Phrases, each with what to write in its place.
const PHRASES: &[(&[&str], &str)] = &[
    (&["anew"], "again"),
    (&["whom"], "a sentence with that person or thing as its subject"),
    (&["whoever"], "the name of the one who does it"),
    (&["told", "of"], "what is reported"),
    (&["in", "its", "stead"], "instead"),
    (&["midst"], "within"),
];

/// Openings of a documentation comment that begin a sentence whose noun is elsewhere.
const OPENINGS: &[&[&str]] = &[&["of"], &["that"], &["those"], &["who"], &["whom"], &["the", "same"], &["one", "that"]];

const BE: &[&str] = &["is", "are", "was", "were"];

/// Words after `is no` that make a comparison of it.
const COMPARISONS: &[&str] =
    &["longer", "more", "less", "fewer", "other", "better", "worse", "larger", "smaller", "later"];

/// Uses of the verb that have no plainer word: `${NAME}` stands for a variable, a release stands out.
const BEHIND_STAND: &[&str] = &["for", "out"];

/// This file has to contain what it forbids.
const EXEMPT: &str = "xtask/src/wording.rs";

/// Checks all sources and pages; reports every violation.
pub(crate) fn check() -> Result {
    let mut wrong = Vec::new();
    let mut lines = 0;
    for file in tree::files()? {
        let is_page = file.path.ends_with(".md");
        if (file.is_rust() || is_page) && file.path != EXEMPT {
            let found = violations(file.text().unwrap_or_default(), is_page);
            wrong.extend(found.into_iter().map(|(line, reason)| format!("{}:{line}: {reason}", file.path)));
            lines += file.text().unwrap_or_default().lines().count();
        }
    }
    if wrong.is_empty() {
        println!("{lines} lines use plain words");
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

/// The lines with a violation, and the reasons. Code blocks of pages are left out.
fn violations(text: &str, is_page: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_documentation = false;
    let mut is_block = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        is_block ^= is_page && line.starts_with("```");
        if is_block {
            continue;
        }
        let mut reasons: Vec<String> = sentences(line).iter().filter_map(|words| phrase(words)).collect();
        let documentation = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(comment) = documentation
            && !is_documentation
        {
            reasons.extend(opening(comment));
        }
        is_documentation = documentation.is_some();
        found.extend(reasons.into_iter().map(|reason| (index + 1, reason)));
    }
    found
}

/// The words between punctuation marks, in lower case. Names with `_` are one word.
fn sentences(line: &str) -> Vec<Vec<String>> {
    let is_mark = |char: char| !(char.is_alphanumeric() || matches!(char, ' ' | '_' | '-' | '\''));
    line.split(is_mark)
        .map(|part| part.split(' ').filter(|word| !word.is_empty()).map(str::to_lowercase).collect())
        .collect()
}

/// What is wrong with one of the phrases in these words.
fn phrase(words: &[String]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some((phrase, instead)) =
        PHRASES.iter().find(|(phrase, _)| words.windows(phrase.len()).any(|at| at == *phrase))
    {
        return Some(format!("`{}` is avoided; write {instead}", phrase.join(" ")));
    }
    for (at, word) in words.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| words[at]);
        let after = |ahead: usize| words.get(at + ahead).copied();
        let is_there = before(1) == "there" || before(2) == "there";
        if BE.contains(word)
            && after(1) == Some("no")
            && !is_there
            && after(2).is_some_and(|next| !COMPARISONS.contains(&next))
        {
            return Some(format!("`{word} no {}`: write `{word} not …`", after(2).unwrap_or_default()));
        }
        if matches!(*word, "stand" | "stands") && !after(1).is_some_and(|next| BEHIND_STAND.contains(&next)) {
            return Some(format!("`{word}` is avoided; write `is`, or the verb for what it does"));
        }
    }
    None
}

/// What is wrong with the first words of a documentation comment.
fn opening(comment: &str) -> Option<String> {
    let words: Vec<String> = comment.split_whitespace().take(2).map(str::to_lowercase).collect();
    let begins = |opening: &&&[&str]| words.len() >= opening.len() && opening.iter().zip(&words).all(|(a, b)| a == b);
    let opening = OPENINGS.iter().find(begins)?;
    Some(format!("a comment that begins with `{}` has its noun elsewhere; begin with the noun", opening.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[usize]) {
        let lines: Vec<usize> = violations(text, false).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn phrases_are_found_in_comments_and_messages() {
        check("// Built anew.\n// Asks WHOM it knows.", &[1, 2]);
        check("fn a() {\n    warn!(\"closed in the midst of it\");\n}", &[2]);
        check("// It was told of it.\n// It told it. Of course.\n// A renewed, told-of thing.", &[1]);
        check("fn makes_anew() {}", &[]);
    }

    #[test]
    fn a_noun_is_not_denied_with_no() {
        check("// It is no list.\n// These are no lists, `a` was no list.", &[1, 2, 2]);
        check("// It is no longer here; there is no list, and there really were no lists.", &[]);
        check("// It is not a list. No list is.", &[]);
    }

    #[test]
    fn things_do_not_stand() {
        check("// It stands here.\n// It may stand still.", &[1, 2]);
        check("// `$${` stands for `${`. It stands out. A standalone file, a bystander.", &[]);
    }

    #[test]
    fn documentation_begins_with_a_noun() {
        check("/// Of the list.\nstruct A;\n/// The same list.\nstruct B;\n//! Who runs.", &[1, 3, 5]);
        check("/// The length\n/// of the list. The same list.\nstruct A;", &[]);
        check("/// Office.\nstruct A;\n/// The sameness.\nstruct B;\n// Of the list, in code.", &[]);
    }

    #[test]
    fn code_blocks_of_pages_are_left_out() {
        let page = "Made anew.\n```\nmade anew\n```\nIt stands.\n";
        assert_eq!(violations(page, true).len(), 2);
        assert_eq!(violations(page, false).len(), 3);
    }
}
