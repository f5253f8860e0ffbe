//! What was typed, as result files keep it and as a shell takes it.
//!
//! A result file is sent around and published, so what opens a door is taken out of it; the command it shows can be typed again
//! with one's own. Secrets in a URL's query, in a file that is named, or in the command of a target stay: who writes them
//! there publishes them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Stands for what was taken out.
const REDACTED: &str = "…";

/// Header fields whose values open doors, in lower case.
const SECRET_FIELDS: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"];

/// Options of `load` that give a header field or a body.
const HEADER: [&str; 2] = ["--header", "-H"];
const BODY: &str = "--body";

/// Option of `devices` that gives a key.
const KEY: &str = "--key";

/// Flags without a value that may stand before `H` in one word.
const FLAGS_BEFORE: &str = "qk";

/// The arguments of this process, its name left out. What is not text is in no argument that is understood.
pub(crate) fn typed() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Milliseconds: short enough to be typed again.
pub(crate) fn seed_of_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Words as a shell would need them.
pub(crate) fn quoted(words: &[String]) -> String {
    words.iter().map(|word| quoted_word(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell would need it.
pub(crate) fn quoted_word(word: &str) -> String {
    let safe = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+".contains(character);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The same words without what opens doors. Done twice it is as done once.
pub(crate) fn redacted(words: Vec<String>) -> Vec<String> {
    let mut out = Vec::new();
    // What the word before it says the next one is.
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

/// An option and its value in one word.
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

/// Where `H` stands in `-H`, `-HName: value`, `-qH`.
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

/// A file that is named is not in the arguments.
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
