//! Values as they are written: texts, numbers, addresses and networks.

use super::cursor::{is_blank, is_name};
use super::error::{ExpectedPart, ExpressionErrorKind as Kind, quoted};
use super::foreign;
use super::parse::{Parsed, Parser};
use super::predicate::{self, Operator};
use crate::condition::Field;
use ipnet::{IpNet, Ipv4Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// A value and its position, quotes included.
pub(super) struct SpannedLiteral {
    pub(super) value: LiteralValue,
    pub(super) span: Range<usize>,
}

/// A value of an expression.
#[derive(Debug, PartialEq)]
pub(super) enum LiteralValue {
    Text(String),
    Number(i64),
    /// IPv4 addresses are of that type however they were written.
    Address(IpAddr),
    /// No bit behind the prefix is set. IPv4 networks are of that type however they were written.
    Network(IpNet),
}

/// Why a text that looks like a number is not one.
struct NoNumber {
    is_address: bool,
    reason: &'static str,
    hint: Option<String>,
}

impl LiteralValue {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            LiteralValue::Text(_) => "text",
            LiteralValue::Number(_) => "number",
            LiteralValue::Address(_) => "address",
            LiteralValue::Network(_) => "network",
        }
    }
}

impl Parser<'_> {
    /// Reads the value to the right of an operator; `None` where it is invalid, which is reported, with the cursor
    /// behind it.
    pub(super) fn literal(
        &mut self,
        field: Option<&Field>,
        left: &str,
        operator: Operator,
    ) -> Parsed<Option<SpannedLiteral>> {
        let begin = self.cursor.at();
        let expected = predicate::wanted_part(field, operator).unwrap_or(ExpectedPart::Value);
        let value = if self.cursor.eat("\"") {
            self.text(begin)?
        } else if self.cursor.eat("r#\"") {
            let rest = self.cursor.rest();
            let Some(length) = rest.find("\"#") else {
                let hint = "a raw text ends with `\"#`".to_owned();
                return Err(self.lose_rest(begin..begin + 3, Kind::Unclosed { opened: "r#\"" }, Some(hint)));
            };
            self.cursor.go_to(begin + 3 + length + 2);
            Some(LiteralValue::Text(rest[..length].to_owned()))
        } else if begins_number(self.cursor.rest()) {
            self.number(expected, left)
        } else if let Some((content, length)) = foreign::quotes(self.cursor.rest()) {
            self.cursor.go_to(begin + length);
            let found = quoted(&self.cursor.text()[begin..begin + length]);
            let hint = match content.contains(['"', '\\']) {
                true => format!("write `r#\"{content}\"#`"),
                false => format!("write `\"{content}\"`"),
            };
            self.report(begin..begin + length, Kind::Expected { expected, found }, Some(hint));
            Some(LiteralValue::Text(content.to_owned()))
        } else {
            let hint = foreign::no_value(self.cursor.rest(), expected, left, operator);
            if matches!(self.cursor.peek(), Some('(' | ')' | '&' | '|') | None) {
                return Err(self.report_expected(expected, hint));
            }
            let (span, found) = self.found_word();
            self.cursor.go_to(span.end);
            self.report(span, Kind::Expected { expected, found }, hint);
            None
        };
        self.literal = begin..self.cursor.at();
        Ok(value.map(|value| SpannedLiteral { value, span: begin..self.cursor.at() }))
    }

    /// Reads a text behind its opening quote; `None` where an escape is wrong.
    fn text(&mut self, begin: usize) -> Parsed<Option<LiteralValue>> {
        let mut text = String::new();
        let mut is_right = true;
        loop {
            text.push_str(self.cursor.take_while(|c| !matches!(c, '"' | '\\')));
            if self.cursor.eat("\"") {
                return Ok(is_right.then_some(LiteralValue::Text(text)));
            }
            let at = self.cursor.at();
            let mut escape = self.cursor.rest().chars();
            match (escape.next(), escape.next()) {
                (Some(_), Some(c)) => {
                    self.cursor.go_to(at + 1 + c.len_utf8());
                    match unescaped(c) {
                        Some(c) => text.push(c),
                        None if is_right => {
                            is_right = false;
                            let hint = "escapes are `\\\"`, `\\\\`, `\\n`, `\\r` and `\\t`; in a raw text, `r#\"…\"#`, `\\` is itself";
                            let span = at..self.cursor.at();
                            let found = quoted(&self.cursor.text()[span.clone()]);
                            self.report(span, Kind::Escape { found }, Some(hint.to_owned()));
                        }
                        // One error of a text is enough: the others are likely of the same kind.
                        None => {}
                    }
                }
                _ => {
                    let hint = match self.cursor.text().trim_end().ends_with("\\\"") {
                        true => "the `\\\"` at the end is a quote within the text; a backslash is written `\\\\`",
                        false => "write `\"` where the text ends; a quote within it is written `\\\"`",
                    };
                    let kind = Kind::Unclosed { opened: "\"" };
                    return Err(self.lose_rest(begin..begin + 1, kind, Some(hint.to_owned())));
                }
            }
        }
    }

    /// Reads a text that begins like a number or an address. None of its characters may follow a value, so it is read
    /// as far as they go.
    fn number(&mut self, expected: ExpectedPart, left: &str) -> Option<LiteralValue> {
        let begin = self.cursor.at();
        let run = self.cursor.take_while(|c| is_name(c) || matches!(c, ':' | '/' | '%' | '-'));
        let parsed = if run.contains(':') || (run.contains('.') && !run.starts_with('-')) {
            address(run)
        } else {
            integer(run).map(LiteralValue::Number)
        };
        let no_number = match parsed {
            Ok(value) => return Some(value),
            Err(no_number) => no_number,
        };
        let found = quoted(run);
        let (kind, hint) = match expected {
            ExpectedPart::Text => (Kind::Expected { expected, found }, Some(format!("write `\"{run}\"`"))),
            _ if no_number.is_address => (Kind::Address { found, reason: no_number.reason }, no_number.hint),
            _ => {
                let range = run.split_once('-').filter(|(low, high)| integer(low).is_ok() && integer(high).is_ok());
                let hint = range.map(|(low, high)| format!("write `{left} >= {low} && {left} <= {high}`"));
                (Kind::Number { found, reason: no_number.reason }, hint.or(no_number.hint))
            }
        };
        self.report(begin..self.cursor.at(), kind, hint);
        None
    }
}

/// Whether a text begins like a number, an address or a network.
pub(super) fn begins_number(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_hexdigit).count();
    match text.as_bytes() {
        [b'0'..=b'9', ..] => true,
        [b'-', digit, ..] => digit.is_ascii_digit(),
        bytes => digits <= 4 && bytes.get(digits) == Some(&b':'),
    }
}

fn unescaped(c: char) -> Option<char> {
    match c {
        '"' | '\\' => Some(c),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        _ => None,
    }
}

/// The position in a literal, quotes included, of a position of its text.
pub(super) fn source_offset(literal: &str, offset: usize) -> usize {
    if literal.starts_with('r') {
        return "r#\"".len() + offset;
    }
    let quote = literal.chars().next().map_or(0, char::len_utf8);
    let (mut at, mut read) = (quote, 0);
    let mut chars = literal[quote..].chars();
    while read < offset {
        // Texts in other quotes have no escapes, but then an error was reported before.
        match chars.next() {
            Some('\\') => {
                at += 1 + chars.next().map_or(0, char::len_utf8);
                read += 1;
            }
            Some(c) => {
                at += c.len_utf8();
                read += c.len_utf8();
            }
            None => break,
        }
    }
    at
}

/// Decimal, hexadecimal behind `0x`, or octal behind `0`. Like in the reference, a number that begins with `0` and
/// contains an 8 or 9 is decimal.
fn integer(run: &str) -> Result<i64, NoNumber> {
    let no = |reason, hint: Option<String>| Err(NoNumber { is_address: false, reason, hint });
    let (sign, digits) = if let Some(digits) = run.strip_prefix('-') { ("-", digits) } else { ("", run) };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'0'..=b'7', ..] => (digits, 8),
        _ => (digits, 10),
    };
    if radix == 8 && digits.bytes().all(|b| b.is_ascii_digit()) && digits.contains(['8', '9']) {
        let hint = format!("without the 0 it is decimal: write `{sign}{}`", digits.trim_start_matches('0'));
        return no("a number that begins with 0 is octal", Some(hint));
    }
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        let hint = if let Some(hexadecimal) = digits.strip_prefix("0X") {
            Some(format!("write `{sign}0x{hexadecimal}`"))
        } else if let Some((whole, bits)) = digits.split_once('/') {
            Some(format!("a network has its whole address: write `{whole}.0.0.0/{bits}`"))
        } else if digits.contains('_') && digits.chars().all(|c| c == '_' || c.is_ascii_digit()) {
            Some(format!("write `{sign}{}`", digits.replace('_', "")))
        } else if radix == 10 && digits.contains(|c: char| c.is_ascii_alphabetic()) {
            Some("texts are in double quotes".to_owned())
        } else if let Some((whole, _)) = digits.split_once('.') {
            return no("numbers are whole", Some(format!("write `{sign}{whole}`")));
        } else {
            None
        };
        return no("numbers are decimal, hexadecimal like `0x1f`, or octal like `017`", hint);
    }
    // Parsed with its sign, so that the least number is valid.
    i64::from_str_radix(&format!("{sign}{digits}"), radix)
        .or_else(|_| no("it does not fit into 64 bits", Some("the largest is 9223372036854775807".to_owned())))
}

fn address(run: &str) -> Result<LiteralValue, NoNumber> {
    let no = |reason, hint: Option<String>| Err(NoNumber { is_address: true, reason, hint });
    let (host, bits) = run.split_once('/').map_or((run, None), |(host, bits)| (host, Some(bits)));
    let address: IpAddr = if host.contains(':') {
        match host.parse::<Ipv6Addr>() {
            Ok(address) if !host.contains('.') => address.into(),
            Ok(address) => {
                let hint = match address.to_canonical() {
                    IpAddr::V4(v4) => match bits.and_then(|bits| bits.parse::<u8>().ok()) {
                        Some(bits @ 96..=128) => format!("write `{v4}/{}`", bits - 96),
                        _ => format!("write `{v4}`"),
                    },
                    IpAddr::V6(_) => "write its last two groups in hexadecimal".to_owned(),
                };
                return no("IPv6 addresses are hexadecimal throughout", Some(hint));
            }
            Err(_) if host.contains('%') => return no("addresses have no zone", Some("leave `%…` out".to_owned())),
            Err(_) if host.contains('.') => {
                let hint = "ports are fields of their own: `net.src.port`, `net.dst.port`".to_owned();
                return no("it is neither an IPv4 nor an IPv6 address", Some(hint));
            }
            Err(_) => return no("IPv6 has eight groups of up to four hexadecimal digits, or `::` once", None),
        }
    } else {
        match host.parse::<Ipv4Addr>() {
            Ok(address) => address.into(),
            Err(_) => return no_ipv4(host),
        }
    };
    let Some(bits) = bits else { return Ok(LiteralValue::Address(address.to_canonical())) };
    let width_max = if address.is_ipv4() { 2 } else { 3 };
    let bits = match bits.parse::<u8>() {
        Ok(number) if bits.bytes().all(|b| b.is_ascii_digit()) && bits.len() <= width_max => number,
        _ if bits.contains('.') => {
            let ones = bits.parse::<Ipv4Addr>().map_or(24, |mask| mask.to_bits().leading_ones());
            return no("a network has the number of its bits", Some(format!("write `{host}/{ones}`")));
        }
        _ => return no("the bits after `/` are not a number", None),
    };
    let Ok(network) = IpNet::new(address, bits) else {
        return no(if address.is_ipv4() { "IPv4 has 32 bits" } else { "IPv6 has 128 bits" }, None);
    };
    if network.trunc() != network {
        let hint = format!("write `{}`, or `{address}/{}` for one address", network.trunc(), network.max_prefix_len());
        return no("bits after the prefix are set", Some(hint));
    }
    Ok(LiteralValue::Network(canonical(network)))
}

fn no_ipv4(host: &str) -> Result<LiteralValue, NoNumber> {
    let no = |is_address, reason, hint: Option<String>| Err(NoNumber { is_address, reason, hint });
    let parts: Vec<&str> = host.split('.').collect();
    if !parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())) {
        return no(true, "IPv4 is four numbers", Some("texts are in double quotes".to_owned()));
    }
    if parts.len() == 2 {
        return no(false, "numbers are whole", Some(format!("write `{}`", parts[0])));
    }
    if parts.len() != 4 {
        return no(true, "IPv4 is four numbers", None);
    }
    if parts.iter().any(|part| part.parse::<u8>().is_err()) {
        return no(true, "each of the four numbers is at most 255", None);
    }
    let plain: Vec<String> =
        parts.iter().filter_map(|part| part.parse::<u8>().ok()).map(|part| part.to_string()).collect();
    no(true, "some would read numbers with a 0 in front as octal", Some(format!("write `{}`", plain.join("."))))
}

/// An IPv4 network that is written as IPv6 becomes IPv4, since addresses of requests are.
fn canonical(network: IpNet) -> IpNet {
    match (network, network.addr().to_canonical()) {
        (IpNet::V6(v6), IpAddr::V4(v4)) if v6.prefix_len() >= 96 => {
            Ipv4Net::new(v4, v6.prefix_len() - 96).map_or(network, IpNet::V4)
        }
        _ => network,
    }
}

/// The length of a text up to a blank or a parenthesis.
pub(super) fn word_length(text: &str) -> usize {
    text.find(|c| is_blank(c) || matches!(c, '(' | ')')).unwrap_or(text.len())
}
