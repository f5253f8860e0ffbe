//! Text with variables in it: `/items/${id}`.
//!
//! Cut into pieces once, so that filling it in is copying. The escaping that a variable's value needs in its place (in
//! a request target, in a JSON string) is part of the piece.

use std::io::Write;
use stillgate_stats::Random;

/// Text with variables in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Template {
    pub(super) pieces: Vec<Piece>,
}

/// A part of a template. Two literals never follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Constant bytes.
    Literal(Vec<u8>),
    /// The escaped value of the variable of this index.
    Variable(usize, Escape),
}

/// The escaping of a value in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Escape {
    /// Nothing.
    None,
    /// Percent-encodes bytes that cannot be in a request target; delimiters stay, so that a value may be a whole path.
    Target,
    /// Escapes as inside the quotes of a JSON string (RFC 8259 section 7).
    Json,
}

impl Template {
    /// Text without variables; `${` has no special meaning in it.
    pub(super) fn literal(text: impl Into<Vec<u8>>) -> Template {
        let mut template = Template::default();
        template.push_literal(&text.into());
        template
    }

    /// Cuts `text` at its `${name}`; `$${` means `${`. The error is a message.
    pub(super) fn parse(text: &str, escape: Escape, variables: &[Variable]) -> Result<Template, String> {
        let mut template = Template::default();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            if let Some(before) = before.strip_suffix('$') {
                template.push_literal(before.as_bytes());
                template.push_literal(b"${");
                rest = after;
                continue;
            }
            template.push_literal(before.as_bytes());
            let Some(end) = after.find('}') else {
                return Err("`${` without `}`; close it, or write `$${` for the characters themselves".to_owned());
            };
            let name = &after[..end];
            let Some(index) = variables.iter().position(|variable| variable.name == name) else {
                return Err(undefined(name, variables));
            };
            template.pieces.push(Piece::Variable(index, escape));
            rest = &after[end + 1..];
        }
        template.push_literal(rest.as_bytes());
        Ok(template)
    }

    pub(super) fn push_literal(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Literal(literal)) => literal.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Literal(bytes.to_vec())),
        }
    }

    /// Appends another template.
    pub(super) fn append(&mut self, other: &Template) {
        for piece in &other.pieces {
            match piece {
                Piece::Literal(literal) => self.push_literal(literal),
                variable => self.pieces.push(variable.clone()),
            }
        }
    }

    /// The whole text, if it has no variables.
    pub(super) fn as_literal(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            [] => Some(&[]),
            [Piece::Literal(literal)] => Some(literal),
            _ => None,
        }
    }

    /// The indices of its variables, in order, with repetitions.
    pub(super) fn variables(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Variable(index, _) => Some(*index),
        })
    }
}

impl Escape {
    /// Appends the escaped value.
    pub(super) fn push(self, out: &mut Vec<u8>, value: &[u8]) {
        match self {
            Escape::None => out.extend_from_slice(value),
            Escape::Target => value.iter().for_each(|&byte| match in_target(byte) {
                true => out.push(byte),
                false => out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
            }),
            Escape::Json => value.iter().for_each(|&byte| match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                0..=0x1f => {
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
                }
                _ => out.push(byte),
            }),
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Whether a byte may be in a request target: visible, and not `#`, because nothing after that is sent.
pub(super) fn in_target(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'`' | b'#')
}

fn undefined(name: &str, variables: &[Variable]) -> String {
    let name_shown = super::errors::quoted(name);
    match stillgate_yaml::diagnostic::nearest(name, variables.iter().map(|variable| variable.name.as_str())) {
        Some(known) => format!("no variable is called {name_shown}; did you mean `${{{known}}}`?"),
        None => format!(
            "no variable is called {name_shown}; define it under `variables`, or write `$${{` for the characters `${{`"
        ),
    }
}

// The value of `${name}`: a source of values, drawn again for each request.

/// A named source of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) source: ValueSource,
}

/// A source of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueSource {
    /// A whole number of the range, both ends included, each as likely.
    Range(i64, i64),
    /// The numbers from this one on, each once over all threads.
    Counter(u64),
    /// One of the values, each as likely. At least one.
    Values(Vec<Box<[u8]>>),
    /// A random UUID (version 4).
    Uuid,
    /// A number of random hexadecimal digits.
    Hex(usize),
}

/// Most digits of [`ValueSource::Hex`].
pub(super) const HEX_DIGITS_MAX: usize = 4096;

impl ValueSource {
    /// Whether its values are JSON numbers.
    pub(super) fn is_number(&self) -> bool {
        matches!(self, ValueSource::Range(..) | ValueSource::Counter(_))
    }

    /// The number, counted from one, of the first value that `allowed` refuses, if any.
    pub(super) fn refused_by(&self, allowed: impl Fn(&[u8]) -> bool) -> Option<usize> {
        match self {
            ValueSource::Values(values) => values.iter().position(|value| !allowed(value)).map(|index| index + 1),
            // Digits, hyphens and letters.
            _ => None,
        }
    }

    /// Appends the next value. `counter` is this thread's next number, `step` the number of threads.
    pub(super) fn draw(&self, random: &mut Random, counter: &mut u64, step: u64, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        match self {
            ValueSource::Range(from, to) => {
                let width = to.abs_diff(*from);
                let offset = if width == u64::MAX { random.next_u64() } else { random.below(width + 1) };
                let _ = write!(out, "{}", from.wrapping_add_unsigned(offset));
            }
            ValueSource::Counter(_) => {
                let _ = write!(out, "{counter}");
                *counter = counter.wrapping_add(step);
            }
            ValueSource::Values(values) => {
                let index = random.below(values.len() as u64) as usize;
                out.extend_from_slice(&values[index]);
            }
            ValueSource::Uuid => {
                // RFC 9562 section 5.4: the version's four bits, then the variant's two.
                let high = random.next_u64() & !0xf000 | 0x4000;
                let low = random.next_u64() & !(0b11 << 62) | 0b10 << 62;
                let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
                let _ = write!(out, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff);
            }
            ValueSource::Hex(digits) => {
                let mut left = *digits;
                while left > 0 {
                    let mut bits = random.next_u64();
                    for _ in 0..left.min(16) {
                        out.push(b"0123456789abcdef"[(bits & 15) as usize]);
                        bits >>= 4;
                        left -= 1;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::template::ValueSource;
    use proptest::prelude::*;

    fn variables() -> Vec<Variable> {
        ["id", "user"].map(|name| Variable { name: name.to_owned(), source: ValueSource::Uuid }).into()
    }

    /// In the result, `<0>` represents the variable of that index.
    fn check(text: &str, want: Result<&str, &str>) {
        let got = Template::parse(text, Escape::None, &variables()).map(|template| {
            let mut shown = String::new();
            for piece in template.pieces {
                match piece {
                    Piece::Literal(literal) => shown.push_str(&String::from_utf8(literal).unwrap()),
                    Piece::Variable(index, _) => shown.push_str(&format!("<{index}>")),
                }
            }
            shown
        });
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{text}");
    }

    #[test]
    fn cuts_at_variables() {
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("/a/${id}", "/a/<0>"),
            ("${id}${user}x${id}", "<0><1>x<0>"),
            ("$${id}", "${id}"),
            ("$$${id}", "$${id}"),
            ("$${${id}", "${<0>"),
            ("$id {id} $", "$id {id} $"),
            ("100$", "100$"),
        ] {
            check(text, Ok(want));
        }
        for (text, want) in [
            ("a${id", "`${` without `}`; close it, or write `$${` for the characters themselves"),
            ("${use}", "no variable is called \"use\"; did you mean `${user}`?"),
            ("${}", "no variable is called \"\"; define it under `variables`, or write `$${` for the characters `${`"),
            ("${ id }", "no variable is called \" id \"; did you mean `${id}`?"),
        ] {
            check(text, Err(want));
        }
    }

    #[test]
    fn values_are_made_safe() {
        let value = "a b/c?d=e&f%20\"\\\n#ü";
        for (escape, want) in [
            (Escape::None, value),
            (Escape::Target, "a%20b/c?d=e&f%20%22%5C%0A%23%C3%BC"),
            (Escape::Json, "a b/c?d=e&f%20\\\"\\\\\\u000A#ü"),
        ] {
            let mut out = Vec::new();
            escape.push(&mut out, value.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }

    proptest! {
        #[test]
        fn any_text_escaped_is_itself(text in "[$\\{\\}a-c]{0,20}") {
            let template = Template::parse(&text.replace("${", "$${"), Escape::None, &[]).unwrap();
            prop_assert_eq!(template.as_literal(), Some(text.as_bytes()));
        }

        #[test]
        fn json_strings_read_back(text in "\\PC*|[\\x00-\\x7f]*") {
            let mut out = b"\"".to_vec();
            Escape::Json.push(&mut out, text.as_bytes());
            out.push(b'"');
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }
}

#[cfg(test)]
mod variable_tests {
    use super::*;
    use std::collections::HashSet;

    fn drawn(source: &ValueSource, seed: u64, times: usize) -> Vec<String> {
        let (mut random, mut counter) = (Random::new(seed), 0);
        if let ValueSource::Counter(start) = source {
            counter = *start;
        }
        let mut draw = || {
            let mut out = Vec::new();
            source.draw(&mut random, &mut counter, 3, &mut out);
            String::from_utf8(out).unwrap()
        };
        (0..times).map(|_| draw()).collect()
    }

    #[test]
    fn ranges_reach_both_ends_and_no_further() {
        let seen: HashSet<String> = drawn(&ValueSource::Range(-1, 2), 7, 200).into_iter().collect();
        assert_eq!(seen, ["-1", "0", "1", "2"].map(str::to_owned).into());
        assert_eq!(drawn(&ValueSource::Range(5, 5), 7, 2), ["5", "5"]);
        for value in drawn(&ValueSource::Range(i64::MIN, i64::MAX), 7, 100) {
            value.parse::<i64>().unwrap();
        }
        let half: HashSet<bool> =
            drawn(&ValueSource::Range(0, i64::MAX), 7, 100).iter().map(|v| v.len() == 19).collect();
        assert!(half.contains(&true));
    }

    #[test]
    fn counters_step_by_the_threads() {
        assert_eq!(drawn(&ValueSource::Counter(10), 7, 3), ["10", "13", "16"]);
    }

    #[test]
    fn uuids_and_digits_have_their_form() {
        let form = regex::Regex::new("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$").unwrap();
        let uuids = drawn(&ValueSource::Uuid, 7, 1000);
        assert!(uuids.iter().all(|uuid| form.is_match(uuid)), "{uuids:?}");
        assert_eq!(uuids.iter().collect::<HashSet<_>>().len(), 1000);
        for digits in [1, 16, 17, 100] {
            let value = &drawn(&ValueSource::Hex(digits), 7, 1)[0];
            assert!(value.len() == digits && value.bytes().all(|b| b"0123456789abcdef".contains(&b)), "{value}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let values = ValueSource::Values(["a", "b", "c"].map(|v| v.as_bytes().into()).into());
        for source in [ValueSource::Range(0, 1_000_000), values, ValueSource::Uuid, ValueSource::Hex(8)] {
            assert_eq!(drawn(&source, 1, 50), drawn(&source, 1, 50));
            assert_ne!(drawn(&source, 1, 50), drawn(&source, 2, 50), "{source:?}");
        }
    }
}
