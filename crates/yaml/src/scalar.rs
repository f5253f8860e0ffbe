//! The meaning of a scalar's text by the core schema of YAML 1.2.2, section 10.3.2, and by lyaml 6.2.8, which APISIX
//! reads files with: there `yes`, `no`, `on` and `off` are booleans, `010` is 8, and `1_000` is 1000. (`1:30` is 90
//! there, and a text here.)
//!
//! Where a text is expected, `yes` and the like are texts, as in the core schema.
//!
//! Errors point into a text by the layout of its scalar in the file. The parser only reports where a scalar begins and
//! ends. Scalars with escapes, and quoted or plain ones in several lines, are not taken apart: errors in them are
//! reported at their beginning.
//!
//! Numbers beyond 64 bits and floats that are not numbers are kept apart, so that a reader can refuse them by name.

use crate::diagnostic::Position;
use saphyr_parser::{ScalarStyle, Span};
use std::rc::Rc;

/// One scalar, after substitution of `${ENV}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar {
    /// The text after substitution.
    pub text: Rc<str>,
    /// Its style of quoting.
    pub style: Style,
    /// The positions of its characters.
    pub layout: ScalarLayout,
}

/// The position of each character in the file, relative to the beginning of the scalar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScalarLayout {
    /// In one line, behind this many characters, without escapes.
    Line(u8),
    /// A `|` block: each line of the text is one of the file.
    Literal,
    /// A `>` block: bytes of the text before each line of the file that is not blank, and the line, the first being 0.
    Folded(Rc<[(usize, u32)]>),
    /// With escapes, in several lines, or with `${ENV}` substituted.
    Unknown,
}

/// The style of the scalar, which decides the possible meanings of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Bare: may be a number, a boolean or null.
    Plain,
    /// Quoted or a block: always text.
    Quoted,
    /// With `${ENV}` in it: a number where one is expected, text where text is expected. If either is possible, quotes
    /// make it text; they are not decisive, since within `{…}` and `[…]` a `${ENV}` requires them.
    Substituted {
        /// Whether it was quoted.
        quoted: bool,
    },
}

/// The meaning of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meaning<'a> {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// An integer that does not fit into 64 bits with a sign.
    HugeInt,
    /// Any other number.
    Float(f64),
    /// `.nan`, `.inf`, or a float too big for 64 bits.
    NotFinite,
    /// A text.
    Text(&'a str),
}

impl Scalar {
    /// The meaning of the text, by the rules of YAML 1.2.
    pub fn meaning(&self) -> Meaning<'_> {
        match self.style {
            Style::Quoted => Meaning::Text(&self.text),
            Style::Plain | Style::Substituted { .. } => meaning(&self.text),
        }
    }

    /// The position in the file of the byte of the text at `offset`, if known. `at` is the beginning of the scalar.
    pub fn position(&self, at: Position, offset: usize) -> Option<Position> {
        let before = self.text.get(..offset)?;
        let (line, begin) = match &self.layout {
            ScalarLayout::Line(skipped) => {
                return Some(Position { column: at.column + u32::from(*skipped) + chars(before), ..at });
            }
            ScalarLayout::Literal => {
                // Blank lines at the beginning are before the scalar's position, which is its first character.
                let blank = self.text.len() - self.text.trim_start_matches('\n').len();
                let lines = before.get(blank..)?.matches('\n').count() as u32;
                (lines, before.rfind('\n').map_or(0, |at| at + 1))
            }
            ScalarLayout::Folded(lines) => {
                let (begin, line) = *lines.iter().rev().find(|(begin, _)| *begin <= offset)?;
                (line, begin)
            }
            ScalarLayout::Unknown => return None,
        };
        Some(Position { line: at.line + line, column: at.column + chars(&before[begin..]) })
    }

    /// The text, if text is expected.
    pub fn as_text(&self) -> Option<&str> {
        match (self.style, self.meaning()) {
            (Style::Substituted { .. }, _) => Some(&self.text),
            (_, Meaning::Text(text)) => Some(text),
            (_, Meaning::Bool(_)) if lyaml_bool(&self.text).is_some() => Some(&self.text),
            _ => None,
        }
    }
}

fn chars(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}

fn meaning(text: &str) -> Meaning<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Null,
        "true" | "True" | "TRUE" => return Meaning::Bool(true),
        "false" | "False" | "FALSE" => return Meaning::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Meaning::NotFinite,
        _ => {}
    }
    if let Some(value) = lyaml_bool(text) {
        return Meaning::Bool(value);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Meaning::NotFinite;
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|c| c.is_digit(radix))
        {
            return i64::from_str_radix(digits, radix).map_or(Meaning::HugeInt, Meaning::Int);
        }
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Meaning::Text(text);
    }
    if unsigned.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        return whole(text, unsigned);
    }
    if !is_float(unsigned) {
        return Meaning::Text(text);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Meaning::Float(number),
        _ => Meaning::NotFinite,
    }
}

/// A number of digits, with `_` between them; octal behind a zero.
fn whole(text: &str, unsigned: &str) -> Meaning<'static> {
    let sign = if text.starts_with('-') { "-" } else { "" };
    let digits: String = unsigned.bytes().filter(|b| *b != b'_').map(char::from).collect();
    let is_octal = digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b < b'8');
    let radix = if is_octal { 8 } else { 10 };
    i64::from_str_radix(&format!("{sign}{digits}"), radix).map_or(Meaning::HugeInt, Meaning::Int)
}

/// The booleans of YAML 1.1 that are texts in YAML 1.2.
fn lyaml_bool(text: &str) -> Option<bool> {
    match text {
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_ok = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) && exponent_ok
}

/// Finds the layout of one scalar after the other, going through the text from beginning to end.
pub struct LayoutFinder<'a> {
    text: &'a str,
    /// The number of a line, from 1, and its beginning.
    line: usize,
    at: usize,
}

impl<'a> LayoutFinder<'a> {
    /// A finder for a text that is parsed from its beginning.
    pub fn new(text: &'a str) -> LayoutFinder<'a> {
        LayoutFinder { text, line: 1, at: 0 }
    }

    /// `span` is the scalar's, which does not begin before the previous one.
    pub fn layout(&mut self, value: &str, style: ScalarStyle, span: Span) -> ScalarLayout {
        let quotes = match style {
            ScalarStyle::Literal => return ScalarLayout::Literal,
            ScalarStyle::Folded => return self.folded(value, span),
            ScalarStyle::Plain => 0,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 1,
        };
        // If it is as long as its value, it has no escapes, since each escape is longer.
        let is_literal = span.start.line() == span.end.line() && span.len() == value.chars().count() + 2 * quotes;
        if is_literal { ScalarLayout::Line(quotes as u8) } else { ScalarLayout::Unknown }
    }

    /// Matches the lines of the block with the parts of its value.
    fn folded(&mut self, value: &str, span: Span) -> ScalarLayout {
        let (first, indent) = (span.start.line(), span.start.col());
        while self.line < first {
            let Some(end) = self.text[self.at..].find('\n') else { return ScalarLayout::Unknown };
            self.at += end + 1;
            self.line += 1;
        }
        let (mut lines, mut offset) = (Vec::new(), 0);
        for (number, line) in self.text[self.at..].lines().enumerate() {
            if offset == value.len() || first + number > span.end.line() {
                break;
            }
            // The indentation consists of spaces, so this is a character boundary.
            let Some(line) = line.get(indent..).filter(|line| !line.is_empty()) else { continue };
            let breaks = value[offset..].bytes().take_while(|byte| *byte == b'\n').count();
            let is_joined = offset > 0 && breaks == 0 && value[offset..].starts_with(' ');
            offset += if is_joined { 1 } else { breaks };
            if !value[offset..].starts_with(line) {
                return ScalarLayout::Unknown;
            }
            lines.push((offset, number as u32));
            offset += line.len();
        }
        ScalarLayout::Folded(lines.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings() {
        for (text, want) in [
            ("", Meaning::Null),
            ("~", Meaning::Null),
            ("True", Meaning::Bool(true)),
            ("yes", Meaning::Bool(true)),
            ("Off", Meaning::Bool(false)),
            ("yEs", Meaning::Text("yEs")),
            ("y", Meaning::Text("y")),
            ("0x1F", Meaning::Int(31)),
            ("0o17", Meaning::Int(15)),
            ("017", Meaning::Int(15)),
            ("-010", Meaning::Int(-8)),
            ("00", Meaning::Int(0)),
            ("08", Meaning::Int(8)),
            ("0_17", Meaning::Int(15)),
            ("07777777777777777777777", Meaning::HugeInt),
            ("-12", Meaning::Int(-12)),
            ("+12", Meaning::Int(12)),
            ("1_000", Meaning::Int(1000)),
            ("_1", Meaning::Text("_1")),
            ("1_000a", Meaning::Text("1_000a")),
            ("1:30", Meaning::Text("1:30")),
            ("99999999999999999999", Meaning::HugeInt),
            ("0xFFFFFFFFFFFFFFFFFF", Meaning::HugeInt),
            ("0x", Meaning::Text("0x")),
            ("1.5", Meaning::Float(1.5)),
            (".5", Meaning::Float(0.5)),
            ("5.", Meaning::Float(5.0)),
            ("1e3", Meaning::Float(1000.0)),
            ("1e999", Meaning::NotFinite),
            ("-.inf", Meaning::NotFinite),
            (".nan", Meaning::NotFinite),
            ("nan", Meaning::Text("nan")),
            ("inf", Meaning::Text("inf")),
            (".", Meaning::Text(".")),
            ("1.2.3", Meaning::Text("1.2.3")),
            ("127.0.0.1", Meaning::Text("127.0.0.1")),
            ("1e", Meaning::Text("1e")),
            ("-", Meaning::Text("-")),
            ("10:80", Meaning::Text("10:80")),
        ] {
            assert_eq!(meaning(text), want, "{text:?}");
        }
    }
}
