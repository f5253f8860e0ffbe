//! The command line: as result files keep it and as a shell takes it, and kinds of values that several commands take
//! (durations, counts, rates, shares, lists of CPUs, header fields).
//!
//! A result file is sent around and published, so credentials are removed from it; the command that it shows can be
//! typed again with the reader's own. Secrets in a URL's query, in a named file, or in a target's command remain:
//! they are published by being there.
//!
//! Each parser of a value is for clap's `value_parser` and its message shows how to write the value. Lists of plain
//! values need none: `#[arg(value_delimiter = ',', value_parser = count)]` on a `Vec` is enough.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
pub(crate) fn own_arguments() -> Vec<String> {
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
            Some(redacted_header)
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
            return format!("{option}={}", redacted_header(value));
        }
        if option == BODY {
            return format!("{option}={}", body(value));
        }
        if option == KEY {
            return format!("{option}={REDACTED}");
        }
    }
    match header_flag(word) {
        Some(at) if at + 1 < word.len() => format!("{}{}", &word[..=at], redacted_header(&word[at + 1..])),
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

fn redacted_header(field: &str) -> String {
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

/// Longest duration of an experiment.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Most requests per second of a generator.
const RATE_MAX: f64 = 10e6;

/// Highest CPU number in a list.
const CPU_MAX: usize = 4095;

/// `500ms`, `10s`, `1.5m`, `100us`, `1h`; a number without unit is refused, except 0.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("m", 60.0), ("h", 3600.0)];
    const SHAPE: &str = "write a number and its unit: 500ms, 10s, 2m";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    // Comes last, because three of the others end in `s`.
    let unit = UNITS.iter().chain([&("s", 1.0)]).find_map(|(unit, s)| Some((text.strip_suffix(unit)?, *s)));
    let Some((number, unit_s)) = unit else { return Err(SHAPE.to_owned()) };
    let seconds = decimal(number).ok_or(SHAPE)? * unit_s;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err("more than 30 days".to_owned()),
    }
}

/// `50`, `1k`, `100k`, `1M`.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    const SHAPE: &str = "write a whole number: 50, 10k, 1M";
    let value = scaled(text).ok_or(SHAPE)?;
    // Above this, not every whole number is representable as floating point.
    const WHOLE_MAX: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
    match value.fract() == 0.0 && value <= WHOLE_MAX {
        true => Ok(value as u64),
        false => Err(SHAPE.to_owned()),
    }
}

/// A count above zero that fits a `usize`.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match count(text)? {
        0 => Err("at least 1".to_owned()),
        count => usize::try_from(count).map_err(|_| "too large".to_owned()),
    }
}

/// Requests per second: `0.5`, `2000`, `20k`; above zero.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    const SHAPE: &str = "write requests per second: 0.5, 2000, 20k";
    match scaled(text).ok_or(SHAPE)? {
        0.0 => Err("a rate is above zero; leave it out for a closed loop".to_owned()),
        rate if rate > RATE_MAX => Err(format!("at most {RATE_MAX} requests per second")),
        rate => Ok(rate),
    }
}

/// `5%` is 0.05; the sign is required because a bare number would be ambiguous.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("write the sign, too: 5%, 0.1%")?;
    match decimal(number.trim_end()) {
        Some(percent) if percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("write a share from 0% to 100%".to_owned()),
    }
}

/// A probability strictly between 0 and 1.
pub(crate) fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if 0.0 < value && value < 1.0 => Ok(value),
        _ => Err("write a probability between 0 and 1: 0.01".to_owned()),
    }
}

/// CPUs by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

/// `0`, `0,2`, `0-3,8`: in the order written, each once.
pub(crate) fn cpus(text: &str) -> Result<Cpus, String> {
    const SHAPE: &str = "write numbers of CPUs: 0,1 or 0-3";
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| SHAPE)?;
        let last: usize = last.trim().parse().map_err(|_| SHAPE)?;
        if first > last || last > CPU_MAX {
            return Err(format!("\"{part}\": {SHAPE}"));
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("{cpu} is named twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(Cpus(cpus))
}

/// A header field: name and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) String, pub(crate) String);

/// `Name: value`.
pub(crate) fn header(text: &str) -> Result<Header, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match text.split_once(':') {
        Some((name, value))
            if !name.is_empty() && name.bytes().all(is_token) && !value.contains(['\r', '\n', '\0']) =>
        {
            Ok(Header(name.to_owned(), value.trim().to_owned()))
        }
        _ => Err("write a header field as \"Name: value\"".to_owned()),
    }
}

/// A decimal number, optionally followed by `k` or `M`.
fn scaled(text: &str) -> Option<f64> {
    match text.as_bytes().last()? {
        b'k' | b'K' => Some(decimal(&text[..text.len() - 1])? * 1e3),
        b'M' => Some(decimal(&text[..text.len() - 1])? * 1e6),
        _ => decimal(text),
    }
}

/// Digits with at most one point: no sign, no exponent, no `NaN`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && text != ".";
    let value: f64 = plain.then(|| text.parse().ok())??;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

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

    fn check<T: PartialEq + Debug>(parse: fn(&str) -> Result<T, String>, good: &[(&str, T)], bad: &[&str]) {
        for (text, value) in good {
            assert_eq!(parse(text).as_ref(), Ok(value), "{text}");
        }
        for text in bad {
            assert!(parse(text).is_err(), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn durations() {
        let ms = Duration::from_millis;
        let good = [("500ms", ms(500)), ("10s", ms(10_000)), ("1.5m", ms(90_000)), ("2h", ms(7_200_000)), ("0", ms(0))];
        check(duration, &good, &["", "5", "s", "-1s", "NaNs", "infs", "1e3s", "10 s", "1d", ".s", "1000h", "1.2.3s"]);
        check(duration, &[("50us", Duration::from_micros(50)), ("0s", ms(0)), ("7ns", Duration::from_nanos(7))], &[]);
    }

    #[test]
    fn counts_and_rates() {
        check(
            count,
            &[("0", 0), ("50", 50), ("1k", 1000), ("1.5k", 1500), ("1M", 1_000_000)],
            &["", "k", "1.5", "-1", "1G"],
        );
        check(count, &[], &["NaN", "inf", "1e6", "99999999999999999999", "1,000", "0x10"]);
        check(positive, &[("1", 1)], &["0", "0k", "x"]);
        check(rate, &[("0.5", 0.5), ("20k", 20_000.0)], &["0", "0.0", "-5", "NaN", "inf", "1e400", "fast", "", "11M"]);
    }

    #[test]
    fn shares() {
        check(
            percent,
            &[("5%", 0.05), ("0%", 0.0), ("100%", 1.0), ("0.1%", 0.001)],
            &["5", "101%", "-1%", "%", "NaN%"],
        );
    }

    #[test]
    fn cpu_lists() {
        let good = [("0", Cpus(vec![0])), ("1,0", Cpus(vec![1, 0])), ("0-2,5", Cpus(vec![0, 1, 2, 5]))];
        check(cpus, &good, &["", ",", "a", "3-1", "0,0", "0-1,1", "-1", "0-99999999999"]);
    }

    #[test]
    fn header_fields() {
        let field = |name: &str, value: &str| Header(name.to_owned(), value.to_owned());
        check(header, &[("A: b", field("A", "b")), ("x-a:b:c ", field("x-a", "b:c")), ("A:", field("A", ""))], &[]);
        check(header, &[], &["", ":", ": b", "A b: c", "A", "A: b\r\nC: d"]);
    }
}
