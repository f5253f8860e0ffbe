//! Random predicates of Kong's language, with values that requests may well have.

use super::asked::{ADDRESSES, ARGUMENTS, HOSTS, NAMES, PORTS, SEGMENTS, text};
use super::random::Random;
use std::net::IpAddr;

const TEXT_FIELDS: &[&str] = &["http.method", "http.host", "http.path", "http.path", "net.protocol", "tls.sni"];
const INT_FIELDS: &[&str] = &["net.src.port", "net.dst.port", "http.path.segments.len"];
const IP_FIELDS: &[&str] = &["net.src.ip", "net.dst.ip"];

/// The common properties of a family of predicates.
#[derive(Clone)]
pub(super) struct Likeness {
    kind: &'static str,
    operator: &'static str,
    /// Field and functions around it, if all predicates test the same.
    lhs: Option<(String, String)>,
}

impl Likeness {
    pub(super) fn random(random: &mut Random) -> Likeness {
        const KINDS: &[&str] = &[
            "http.headers.",
            "http.headers.",
            "http.queries.",
            "http.queries.",
            "http.path",
            "http.path",
            "http.host",
            "http.method",
            "tls.sni",
            "http.path.segments.",
            "net.",
        ];
        let kind = random.pick(KINDS);
        let operator = random.pick(&["==", "==", "==", "^=", "^=", "^=", "~"]);
        let lhs = random.one_in(2).then(|| {
            let field = field_of(random, kind);
            // If there may be several values, half of the time one of them is enough.
            let lhs = match kind.ends_with('.') && random.one_in(2) {
                true => format!("any({field})"),
                false => functions(random, &field, &["lower", "any"]),
            };
            (field, lhs)
        });
        Likeness { kind, operator, lhs }
    }

    /// All test the same field.
    pub(super) fn of(field: &str, lhs: &str, operator: &'static str) -> Likeness {
        Likeness { kind: "", operator, lhs: Some((field.to_owned(), lhs.to_owned())) }
    }

    pub(super) fn predicate(&self, random: &mut Random) -> String {
        match (self.kind, self.operator, &self.lhs) {
            ("net.", "==", _) => int_predicate(random),
            ("net.", ..) => ip_predicate(random),
            (_, operator, Some((field, lhs))) => text_test(random, field, lhs, operator),
            (kind, operator, None) => {
                let field = field_of(random, kind);
                let lhs = functions(random, &field, &["lower", "any"]);
                text_test(random, &field, &lhs, operator)
            }
        }
    }
}

fn field_of(random: &mut Random, kind: &str) -> String {
    match kind {
        "http.headers." => format!("{kind}{}", random.pick(NAMES).replace('-', "_")),
        "http.queries." => format!("{kind}{}", random.pick(ARGUMENTS)),
        "http.path.segments." => format!("{kind}{}", random.below(3)),
        plain => plain.to_owned(),
    }
}

pub(super) fn text_predicate(random: &mut Random) -> String {
    let field = text_field(random);
    let operator = random.pick(&["==", "==", "==", "!=", "^=", "^=", "=^", "contains", "~"]);
    let lhs = functions(random, &field, &["lower", "any"]);
    text_test(random, &field, &lhs, operator)
}

/// A test of a field, whose side `lhs` is.
fn text_test(random: &mut Random, field: &str, lhs: &str, operator: &str) -> String {
    let literal = match operator {
        "~" => regex(random, field),
        operator => {
            let text = literal(random, field);
            match operator {
                "^=" => prefix(random, &text),
                "=^" => text.chars().rev().take(random.below(4)).collect::<Vec<_>>().into_iter().rev().collect(),
                "contains" => text.chars().skip(random.below(2)).take(random.below(3) + 1).collect(),
                _ => text,
            }
        }
    };
    format!("{lhs}{}{}", spaced(random, operator), quoted(random, &literal))
}

fn text_field(random: &mut Random) -> String {
    match random.below(8) {
        0 | 1 => {
            let name = random.pick(NAMES).replace('-', "_");
            format!("http.headers.{}", if random.one_in(8) { name.to_uppercase() } else { name })
        }
        2 | 3 => format!("http.queries.{}", random.pick(ARGUMENTS)),
        4 => {
            let first = random.below(4);
            match random.below(3) {
                0 => format!("http.path.segments.{first}_{}", first + 1 + random.below(2)),
                _ => format!("http.path.segments.{first}"),
            }
        }
        _ => random.pick(TEXT_FIELDS).to_owned(),
    }
}

/// A text that the field may well have.
fn literal(random: &mut Random, field: &str) -> String {
    if random.one_in(20) {
        return text(random).to_owned();
    }
    match field {
        "http.method" => random.pick(&["GET", "POST", "PUT", "get", "BREW", "PATCH"]).to_owned(),
        "http.host" | "tls.sni" => random.pick(HOSTS).to_owned(),
        "net.protocol" => random.pick(&["http", "https", "tcp"]).to_owned(),
        "http.path" => {
            let segments = (0..random.below(3)).map(|_| format!("/{}", random.pick(SEGMENTS)));
            let path: String = segments.collect();
            if path.is_empty() || random.one_in(4) { path + "/" } else { path }
        }
        _ if field.starts_with("http.path.segments.") => match field.contains('_') {
            true => format!("{}/{}", random.pick(SEGMENTS), random.pick(SEGMENTS)),
            false => random.pick(SEGMENTS).to_owned(),
        },
        _ if field.starts_with("http.queries.") && random.one_in(10) => "a\0b".to_owned(),
        _ => text(random).to_owned(),
    }
}

/// A start of a text; hardly ever an empty one, which would leave no request to the routes behind.
fn prefix(random: &mut Random, text: &str) -> String {
    if text.is_empty() && !random.one_in(8) {
        return random.pick(&["a", "b", "A", "1"]).to_owned();
    }
    let cut = random.pick(&[0, 0, 0, 1, 2, 8]);
    text.chars().take(text.chars().count().saturating_sub(cut).max(1)).collect()
}

/// A regex that compiles.
fn regex(random: &mut Random, field: &str) -> String {
    const WHOLE: &[&str] = &[
        "",
        ".",
        "^",
        "$",
        "^$",
        r"^\d+$",
        r"^\w+$",
        r"\pL",
        r"^[a-z]+$",
        "(?i)^ab",
        "(?i:STRASSE|ä)",
        r"\bab\b",
        "^.{2}$",
        "[[:alpha:]]{2,}",
        "(a|b)+c?",
        "[^a-z]",
        "a.*b",
        "x*?",
        "(?s)a.b",
        "(?m)^a$",
        r"\x00",
        "日.",
        "[äÄ]",
        r"^\S+\s\S+$",
        "(?:a|ab)(?:c|)",
        "^(?:a|b|ab|v1)$",
        r"\.com$",
        r"^[a-d]\.",
        "(?x) a  b # ab",
    ];
    const CAPTURING: &[&str] = &[
        "^(?<first>[^/]*)(?<rest>.*)$",
        "^(?<first>.)(?<first_again>.)?",
        "(?P<a>a)|(?P<b>b)",
        "(?<x>a)(?<y>b)?",
        "(?:(?<x>a)|(?<y>b)|.)*",
        "^/(?<first>[^/]+)(/(?<second>[^/]+))?",
        r"^(?<id>\d+)$|(?<word>\w+)",
        "(?<host>[a-z]+)(?<rest>\\.[a-z]+)*$",
    ];
    loop {
        let text = match random.below(4) {
            0 => random.pick(WHOLE).to_owned(),
            1 => random.pick(CAPTURING).to_owned(),
            _ => {
                let mut text = if random.one_in(2) { "^".to_owned() } else { String::new() };
                for at in 0..random.below(4) + 1 {
                    match random.below(6) {
                        0 => text.push_str(random.pick(&[".*", r"\d+", "[a-c]", r"\w", ".", "[^/]+", r"\p{Lu}", "x?"])),
                        1 => text.push_str(&format!("(?<n{at}>{})", regex::escape(&literal(random, field)))),
                        2 => {
                            text.push_str(&format!("(?:{}|{})", random.pick(SEGMENTS), random.pick(&["a", "b+", "/"])))
                        }
                        3 => text.push_str(random.pick(&["/", "a", "b", "[/]"])),
                        _ => text.push_str(&regex::escape(&literal(random, field))),
                    }
                }
                if random.one_in(3) { text + "$" } else { text }
            }
        };
        if regex::Regex::new(&text).is_ok() {
            return text;
        }
    }
}

pub(super) fn int_predicate(random: &mut Random) -> String {
    let field = random.pick(INT_FIELDS);
    let operator = random.pick(&["==", "==", "!=", "<", "<=", ">", ">="]);
    let number: i64 = match random.below(12) {
        0 => random.pick(&[-1, -8, i64::MAX, -i64::MAX, 1 << 32]),
        1..=3 => i64::from(random.pick(PORTS)) + random.pick(&[-1, 0, 1]),
        _ if field == "http.path.segments.len" => random.below(6) as i64,
        _ => random.pick(PORTS).into(),
    };
    let (sign, digits) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
    let digits = match random.below(6) {
        0 => format!("0x{digits:x}"),
        1 => format!("0x0{digits:X}"),
        2 => format!("0{digits:o}"),
        // Not octal: eight and nine are not octal digits, and the reference then reads it as decimal.
        3 if digits >= 8 && digits.to_string().starts_with(['8', '9']) => format!("0{digits}"),
        _ => digits.to_string(),
    };
    let lhs = functions(random, field, &["any"]);
    format!("{lhs}{}{sign}{digits}", spaced(random, operator))
}

pub(super) fn ip_predicate(random: &mut Random) -> String {
    let lhs_field = random.pick(IP_FIELDS);
    let lhs = functions(random, lhs_field, &["any"]);
    let address: IpAddr = random.pick(ADDRESSES).parse().unwrap();
    if random.one_in(2) {
        let operator = random.pick(&["==", "==", "!="]);
        return format!("{lhs}{}{}", spaced(random, operator), address_text(random, address));
    }
    let operator = random.pick(&["in", "in", "not in"]);
    let bits = match address {
        IpAddr::V4(_) => random.pick(&[0, 1, 7, 8, 9, 15, 16, 24, 31, 32]),
        IpAddr::V6(_) => random.pick(&[0, 8, 16, 32, 48, 64, 127, 128]),
    };
    let network = ipnet::IpNet::new(address, bits).unwrap().network();
    format!("{lhs}{}{}/{bits}", spaced(random, operator), address_text(random, network))
}

/// A spelling of an address.
fn address_text(random: &mut Random, address: IpAddr) -> String {
    match (address, random.below(3)) {
        (IpAddr::V6(address), 0) => address.segments().map(|segment| format!("{segment:04X}")).join(":"),
        (IpAddr::V6(address), 1) => address.segments().map(|segment| format!("{segment:x}")).join(":"),
        _ => address.to_string(),
    }
}

/// A field inside of functions, in any nesting.
fn functions(random: &mut Random, field: &str, names: &[&str]) -> String {
    let mut text = field.to_owned();
    let count = random.pick(&[0, 0, 0, 1, 1, 2, 3]);
    for _ in 0..count {
        let name = random.pick(names);
        text = match random.below(4) {
            0 => format!("{name} ( {text} )"),
            1 => format!("{name}(\n{text})"),
            _ => format!("{name}({text})"),
        };
    }
    text
}

/// An operator with blanks around it; words need no blank behind them, but one before.
fn spaced(random: &mut Random, operator: &str) -> String {
    let word = operator.as_bytes()[0].is_ascii_alphabetic();
    let before = if word { random.pick(&[" ", "  ", "\t"]) } else { random.pick(&["", " ", " ", "\n"]) };
    let after = random.pick(&["", " ", " ", "\r\n\t"]);
    format!("{before}{operator}{after}")
}

/// A text as a literal: raw where it can be, else with its escapes.
fn quoted(random: &mut Random, text: &str) -> String {
    let in_raw = !text.contains("\"#");
    // A quote at the end would be read as the end.
    if in_raw && !text.ends_with('"') && random.one_in(2) {
        return format!("r#\"{text}\"#");
    }
    let mut literal = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\t' if random.one_in(2) => literal.push_str("\\t"),
            other => literal.push(other),
        }
    }
    literal + "\""
}
