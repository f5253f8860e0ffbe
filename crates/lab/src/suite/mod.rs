//! Suites: tables of targets, cases and figures, in YAML, for `stillgate-lab measure FIGURES --suite FILE`.
//!
//! ```text
//!  file ──▶ targets × cases ──fill──▶ configurations, requests ──run──▶ rounds of a table (see `figures`)
//! ```
//!
//! [`file`] reads a suite; [`fill`] makes texts of its templates; [`run`] starts the targets of each case, checks that they
//! answer as expected, and measures their figures in the same rounds.

pub(crate) mod file;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

// Texts with placeholders in braces: `{name}` stands for a text of the suite, `{include FILE}` for a prepared file.

/// Texts by the names of their placeholders.
pub(crate) type Texts = BTreeMap<String, String>;

/// Texts may contain further placeholders, this deep.
const DEPTH_MAX: usize = 8;

/// Placeholders that a start fills in later; see `target::Spec::configuration`.
const OF_A_START: [&str; 7] = ["address", "admin", "dir", "metrics", "port", "upstream", "upstream_port"];

const INCLUDE: &str = "include ";

/// Fills in all placeholders but those of a start. Files are in `folder`, which is also `{files}`.
pub(crate) fn filled(template: &str, texts: &[&Texts], folder: &Path) -> Result<String> {
    let mut text = template.to_owned();
    for _ in 0..DEPTH_MAX {
        let (next, has_changed) = once(&text, texts, folder)?;
        if !has_changed {
            return Ok(next);
        }
        text = next;
    }
    Err(Error::new("its placeholders contain each other"))
}

/// Replaces each placeholder once; the first of `texts` that has it counts.
fn once(template: &str, texts: &[&Texts], folder: &Path) -> Result<(String, bool)> {
    let (mut text, mut rest, mut has_changed) = (String::with_capacity(template.len()), template, false);
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let name = behind.split_once('}').map(|(name, _)| name).filter(|name| is_name(name));
        let Some(name) = name else {
            text.push('{');
            rest = behind;
            continue;
        };
        rest = &behind[name.len() + 1..];
        if OF_A_START.contains(&name) {
            text.push_str(&format!("{{{name}}}"));
            continue;
        }
        has_changed = true;
        match (name.strip_prefix(INCLUDE), texts.iter().find_map(|texts| texts.get(name))) {
            (Some(file), _) => {
                let path = folder.join(file);
                let read = fs::read_to_string(&path);
                text.push_str(&read.map_err(|error| Error::new(format!("{{{name}}}: {}: {error}", path.display())))?);
            }
            (None, Some(of)) => text.push_str(of),
            (None, None) if name == "files" => text.push_str(&folder.to_string_lossy()),
            (None, None) => return Err(Error::new(format!("the suite has no text for {{{name}}}"))),
        }
    }
    text.push_str(rest);
    Ok((text, has_changed))
}

fn is_name(text: &str) -> bool {
    let is_word = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase()) && text.bytes().all(is_of_word);
    text.strip_prefix(INCLUDE).map_or_else(|| is_word(text), |file| !file.is_empty() && file.bytes().all(is_of_file))
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

fn is_of_file(byte: u8) -> bool {
    is_of_word(byte) || matches!(byte, b'.' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &str, expected: Result<&str, &str>) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("list"), "1, {a}").unwrap();
        let texts = |pairs: &[(&str, &str)]| -> Texts {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let (own, others) =
            (texts(&[("a", "A"), ("twice", "{a}{b}")]), texts(&[("a", "other"), ("b", "B"), ("c", "{c}")]));
        let text = filled(template, &[&own, &others], folder.path()).map_err(|error| error.to_string());
        assert_eq!(text.as_deref().map_err(String::as_str), expected, "{template}");
    }

    #[test]
    fn placeholders_are_filled_in() {
        check("server { listen {address}; x{1,3} {{a}} {twice}", Ok("server { listen {address}; x{1,3} {A} AB"));
        check("[{include list}]", Ok("[1, A]"));
        check("{", Ok("{"));
        check("{A} {_a} {a b} {}", Ok("{A} {_a} {a b} {}"));
    }

    #[test]
    fn what_cannot_be_filled_in_is_said() {
        check("{d}", Err("the suite has no text for {d}"));
        check("{c}", Err("its placeholders contain each other"));
        let folder = tempfile::tempdir().unwrap();
        let error = filled("{include no}", &[], folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("{include no}: ") && error.contains("No such file"), "{error}");
    }
}
