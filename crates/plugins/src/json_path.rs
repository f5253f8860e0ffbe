//! JSONPath, as APISIX's library reads it: `groups`, `$.orgs..team`, `$.users[?(@.id > 3)]['a']`.
//!
//! Look-ups support names, indexes, `*` and `..`. Filters, scripts, slices and unions are only recognised; inside them
//! only brackets and quotes are parsed.

use serde_json::Value as Json;

/// A path for looking values up.
pub(crate) struct JsonPath(Box<[JsonStep]>);

enum JsonStep {
    /// A key of an object; digits are also an index of a list.
    Name(Box<str>),
    /// An index of a list, from 0.
    Index(usize),
    /// `*`
    Each,
    /// `..`: the value, and everything inside it.
    Below,
}

/// Most values that one look-up visits.
const LOOKS_MAX: u32 = 10_000;

/// The look-up would visit too many values, so its result is unknown.
#[derive(Debug)]
pub(crate) struct TooLarge;

impl JsonPath {
    /// Parses a path for look-ups; `None`: it is invalid or not supported.
    pub(crate) fn parse(text: &str) -> Option<JsonPath> {
        let text = text.trim_matches(BLANKS);
        if !is_json_path(text) {
            return None;
        }
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix("..") {
                steps.push(JsonStep::Below);
                rest = behind;
            } else if let Some(behind) = rest.strip_prefix('.') {
                rest = behind;
            }
            let behind = skip_name(rest).or_else(|| skip_subscript(rest))?;
            steps.push(step(rest[..rest.len() - behind.len()].trim_matches(BLANKS))?);
            rest = behind;
        }
        Some(JsonPath(steps.into()))
    }

    /// All values that it selects, except `null`.
    pub(crate) fn all<'j>(&self, json: &'j Json) -> Result<Vec<&'j Json>, TooLarge> {
        let (mut looks, mut found) = (LOOKS_MAX, Vec::new());
        match collect(json, &self.0, &mut looks, &mut found) {
            Some(()) => Ok(found),
            None => Err(TooLarge),
        }
    }
}

fn step(text: &str) -> Option<JsonStep> {
    let Some(inner) = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) else {
        return Some(if text == "*" { JsonStep::Each } else { JsonStep::Name(text.into()) });
    };
    let inner = inner.trim_matches(BLANKS);
    let unquoted = |quote: char| inner.strip_prefix(quote)?.strip_suffix(quote);
    match unquoted('\'').or_else(|| unquoted('"')) {
        Some(name) => (!name.contains(['\'', '"', '\\'])).then(|| JsonStep::Name(name.into())),
        None if inner == "*" => Some(JsonStep::Each),
        None => inner.parse().ok().map(JsonStep::Index),
    }
}

/// Adds what the steps select; `None`: it would visit too many values.
fn collect<'j>(json: &'j Json, steps: &[JsonStep], looks: &mut u32, found: &mut Vec<&'j Json>) -> Option<()> {
    *looks = looks.checked_sub(1)?;
    let Some((step, behind)) = steps.split_first() else {
        found.extend(Some(json).filter(|value| !value.is_null()));
        return Some(());
    };
    let mut inside = |steps: &[JsonStep], looks: &mut u32| match json {
        Json::Array(items) => items.iter().try_for_each(|item| collect(item, steps, looks, found)),
        Json::Object(entries) => entries.values().try_for_each(|value| collect(value, steps, looks, found)),
        _ => Some(()),
    };
    let selected = match step {
        JsonStep::Each => return inside(behind, looks),
        JsonStep::Below => {
            inside(steps, looks)?;
            Some(json)
        }
        JsonStep::Index(at) => json.as_array().and_then(|items| items.get(*at)),
        JsonStep::Name(name) => match json {
            Json::Array(items) => name.parse::<usize>().ok().and_then(|at| items.get(at)),
            other => other.get(&**name),
        },
    };
    selected.map_or(Some(()), |value| collect(value, behind, looks, found))
}

/// Whether a text is a JSONPath.
pub(crate) fn is_json_path(text: &str) -> bool {
    let text = text.trim_matches(BLANKS);
    let begun = text.strip_prefix('$').or_else(|| skip_subscript(text)).or_else(|| skip_name(text));
    let Some(mut rest) = begun else { return false };
    while !rest.is_empty() {
        let step = match (rest.strip_prefix(".."), rest.strip_prefix('.')) {
            (Some(behind), _) => skip_name(behind).or_else(|| skip_subscript(behind)),
            (None, Some(behind)) => skip_name(behind),
            (None, None) => skip_subscript(rest),
        };
        match step {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    true
}

const BLANKS: [char; 3] = [' ', '\t', '\n'];

/// Skips a name, an index or `*`; returns the rest.
fn skip_name(text: &str) -> Option<&str> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let signs = usize::from(text.starts_with(['+', '-']));
    let length = match text.bytes().next()? {
        b'*' => 1,
        byte if byte.is_ascii_alphabetic() || byte == b'_' => {
            text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
        }
        _ => match digits(&text[signs..]) {
            0 => return None,
            digits => signs + digits,
        },
    };
    Some(text[length..].trim_start_matches(BLANKS))
}

/// Skips `[…]`; returns the rest.
fn skip_subscript(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[')?;
    let (mut open, mut quote, mut is_escaped) = (Vec::new(), None, false);
    for (at, byte) in inner.bytes().enumerate() {
        match (quote, byte) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), b'\\') => is_escaped = true,
            (Some(of), byte) if of == byte => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'(') => open.push(b')'),
            (None, b'[') => open.push(b']'),
            (None, b']') if open.is_empty() => return is_selector(&inner[..at]).then(|| &inner[at + 1..]),
            (None, b')' | b']') if open.pop() != Some(byte) => return None,
            (None, _) => {}
        }
    }
    None
}

fn is_selector(inner: &str) -> bool {
    let inner = inner.trim_matches(BLANKS);
    let is_number = |text: &str| text.parse::<i64>().is_ok();
    let is_item = |item: &str| {
        let item = item.trim_matches(BLANKS);
        let is_quoted = item.len() > 1 && item.starts_with(['\'', '"']) && item.ends_with(['\'', '"']);
        let parts = item.split(':').map(|part| part.trim_matches(BLANKS));
        is_quoted
            || is_number(item)
            || (2..4).contains(&parts.clone().count()) && parts.clone().all(|part| part.is_empty() || is_number(part))
    };
    match inner.as_bytes().first() {
        None => false,
        Some(b'?' | b'(') => inner.len() > 1,
        Some(b'\'' | b'"') => true,
        Some(b'*') => inner.len() == 1,
        Some(_) => inner.split(',').all(is_item),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_looked_up() {
        let json = json!({
            "team": "a", "null": null, "c d": 1,
            "orgs": {"apache": {"team": ["x", {"y": 2}]}, "api7": {"team": "b"}},
        });
        let check = |path: &str, expected: Json| {
            assert_eq!(json!(JsonPath::parse(path).unwrap().all(&json).unwrap()), expected, "{path}");
        };
        check("team", json!(["a"]));
        check("$.orgs.api7.team", json!(["b"]));
        check("$.orgs..team", json!([["x", {"y": 2}], "b"]));
        check("$..y", json!([2]));
        check("orgs.*.team[0]", json!(["x"]));
        check("$.orgs['apache'].team.1[\"y\"]", json!([2]));
        check("['c d']", json!([1]));
        check("$.null", json!([]));
        check("$..z", json!([]));
        check("$.team.x", json!([]));
        check("$", json!([json]));
        for path in ["", "a..", "$..b[?(@.x)]", "$[1:2]", "[1,2]", "$['a','b']", "$[-1]", "$[(@.length-1)]"] {
            assert!(JsonPath::parse(path).is_none(), "{path}");
        }
        let deep = (0..100).fold(json!({}), |inner, _| json!({"a": inner, "b": 1}));
        assert!(JsonPath::parse("$..a..a..a..a..z").unwrap().all(&deep).is_err());
    }

    #[test]
    fn paths() {
        let good = [
            "groups",
            "team.name",
            "$",
            "$.orgs..team",
            "$..*",
            "$.a[0].b[-1:]['c d',\"e]\"][*]",
            "$..book[?(@.price < 10 && @['x'] == ')')]",
            "$[(@.length-1)]",
            "$.0",
            "[1,2]",
            " a ",
        ];
        for text in good {
            assert!(is_json_path(text), "{text}");
        }
        let bad = [
            "",
            "$..([invalid",
            "$.",
            "$..",
            "a..",
            ".a",
            "$a b",
            "$[",
            "$[]",
            "$[a]",
            "$[?]",
            "$[(a]",
            "$['a]",
            "a-b",
            "$.a[1)",
        ];
        for text in bad {
            assert!(!is_json_path(text), "{text}");
        }
    }
}
