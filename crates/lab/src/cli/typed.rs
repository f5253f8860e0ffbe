//! The arguments as result files keep them and as a shell takes them.
//!
//! A result file is sent around and published, so credentials are removed from it; the command that it shows can be
//! typed again with the reader's own. Secrets in a URL's query, in a named file, or in a target's command remain:
//! they are published by being there.

use std::time::{SystemTime, UNIX_EPOCH};

/// Replaces what was removed.
const REDACTED: &str = "…";

/// Header fields whose values are credentials, in lower case.
const SECRET_FIELDS: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"];

/// Options of `load` that contain a header field or a body.
const HEADER: [&str; 2] = ["--header", "-H"];
const BODY: &str = "--body";

/// Option of `devices` that contains a key.
const KEY: &str = "--key";

/// Flags without a value that may precede `H` in one word.
const FLAGS_BEFORE: &str = "qk";

/// The arguments of this process without its name. Arguments that are not text are refused elsewhere.
pub(crate) fn typed() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Milliseconds: short enough to be typed again.
pub(crate) fn seed_of_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Quotes words for a shell.
pub(crate) fn quoted(words: &[String]) -> String {
    words.iter().map(|word| quoted_word(word)).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
pub(crate) fn quoted_word(word: &str) -> String {
    let safe = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+".contains(character);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Removes credentials from words. Idempotent.
pub(crate) fn redacted(words: Vec<String>) -> Vec<String> {
    let mut out = Vec::new();
    // Set by the word before: the meaning of the next one.
    let mut hide: Option<fn(&str) -> String> = None;
    for word in words {
        if let Some(hide) = hide.take() {
            out.push(hide(&word));
            continue;
        }
        hide = if HEADER.contains(&word.as_str()) || ends_in_header_flag(&word) {
            Some(header)
        } else if word == KEY {
            Some(|_| REDACTED.to_owned())
        } else {
            (word == BODY).then_some(body)
        };
        out.push(within(&word));
    }
    out
}

/// Redacts an option and its value in one word.
fn within(word: &str) -> String {
    if let Some((option, value)) = word.split_once('=') {
        if option == HEADER[0] {
            return format!("{option}={}", header(value));
        }
        if option == BODY {
            return format!("{option}={}", body(value));
        }
        if option == KEY {
            return format!("{option}={REDACTED}");
        }
    }
    match header_flag(word) {
        Some(at) if at + 1 < word.len() => format!("{}{}", &word[..=at], header(&word[at + 1..])),
        _ => word.to_owned(),
    }
}

fn ends_in_header_flag(word: &str) -> bool {
    header_flag(word).is_some_and(|at| at + 1 == word.len())
}

/// The index of `H` in `-H`, `-HName: value`, `-qH`.
fn header_flag(word: &str) -> Option<usize> {
    let flags = word.strip_prefix('-').filter(|flags| !flags.starts_with('-'))?;
    let at = flags.find('H')?;
    flags[..at].chars().all(|flag| FLAGS_BEFORE.contains(flag)).then_some(at + 1)
}

fn header(field: &str) -> String {
    let (name, _) = field.split_once(':').unwrap_or((field, ""));
    match SECRET_FIELDS.contains(&name.trim().to_ascii_lowercase().as_str()) {
        true => format!("{name}: {REDACTED}"),
        false => field.to_owned(),
    }
}

/// A named file is not part of the arguments.
fn body(value: &str) -> String {
    if value.starts_with('@') { value.to_owned() } else { REDACTED.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_doors_is_taken_out() {
        let check = |typed: &[&str], kept: &[&str]| {
            let typed: Vec<String> = typed.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(redacted(typed.clone()), kept, "{typed:?}");
            assert_eq!(redacted(redacted(typed.clone())), kept, "{typed:?}");
        };
        check(&["load", "http://a/", "-d", "1s"], &["load", "http://a/", "-d", "1s"]);
        check(&["-H", "Authorization: Bearer abc"], &["-H", "Authorization: …"]);
        check(&["-H", "cookie:a=b", "-H", "Accept: text/html"], &["-H", "cookie: …", "-H", "Accept: text/html"]);
        check(&["--header", "X-API-Key: k"], &["--header", "X-API-Key: …"]);
        check(&["--header=Proxy-Authorization: Basic eA=="], &["--header=Proxy-Authorization: …"]);
        check(&["-HSet-Cookie: a=b"], &["-HSet-Cookie: …"]);
        check(&["-qH", "Cookie: a", "-qHCookie: a"], &["-qH", "Cookie: …", "-qHCookie: …"]);
        check(&["--body", "pin=1234", "--body=pin=1234"], &["--body", "…", "--body=…"]);
        check(&["--body", "@order.json"], &["--body", "@order.json"]);
        check(&["--key", "secret", "--key=secret"], &["--key", "…", "--key=…"]);
        // Values of other options.
        check(&["-XH", "--args", "-H --body x"], &["-XH", "--args", "-H --body x"]);
        check(&["-H"], &["-H"]);
    }

    #[test]
    fn commands_can_be_typed_again() {
        let words = ["tail", "--start", "gw -c 'x y'", "", "--series=1k,10k"].map(str::to_owned);
        assert_eq!(quoted(&words), "tail --start 'gw -c '\\''x y'\\''' '' --series=1k,10k");
    }
}
