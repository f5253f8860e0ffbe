//! Writes a document as YAML that reads back as the same document.
//!
//! Block style, and plain words only where they cannot be anything but text: all other text is quoted as in JSON, which
//! is YAML.

use serde_json::Value as Json;

/// Words that YAML does not take for text.
const NOT_TEXT: [&str; 21] = [
    "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE", "yes", "Yes", "YES", "no", "No", "NO",
    "on", "On", "ON", "off", "Off", "OFF",
];

/// Writes a map with the value at its root.
pub fn write(root: &[(String, Json)]) -> String {
    let mut text = String::new();
    for (key, value) in root {
        entry(key, value, 0, &mut text);
    }
    text
}

fn entry(key: &str, value: &Json, indent: usize, text: &mut String) {
    pad(indent, text);
    text.push_str(&scalar_key(key));
    text.push(':');
    below(value, indent, text);
}

/// The value behind `key:`.
fn below(value: &Json, indent: usize, text: &mut String) {
    match value {
        Json::Object(fields) if !fields.is_empty() => {
            text.push('\n');
            fields.iter().for_each(|(key, value)| entry(key, value, indent + 2, text));
        }
        Json::Array(items) if !items.is_empty() => {
            text.push('\n');
            items.iter().for_each(|item| self::item(item, indent + 2, text));
        }
        Json::String(words) if is_block(words) => {
            text.push_str(" |\n");
            for line in words.lines() {
                pad(if line.is_empty() { 0 } else { indent + 2 }, text);
                text.push_str(&escaped(line));
                text.push('\n');
            }
        }
        value => {
            text.push(' ');
            text.push_str(&scalar(value));
            text.push('\n');
        }
    }
}

fn item(value: &Json, indent: usize, text: &mut String) {
    pad(indent, text);
    text.push('-');
    match value {
        Json::Object(fields) if !fields.is_empty() => {
            let mut lines = String::new();
            fields.iter().for_each(|(key, value)| entry(key, value, indent + 2, &mut lines));
            text.push(' ');
            text.push_str(lines.trim_start_matches(' '));
        }
        value => below(value, indent, text),
    }
}

fn pad(indent: usize, text: &mut String) {
    text.extend(std::iter::repeat_n(' ', indent));
}

/// Text of several lines, such as a certificate, in which nothing has to be escaped.
fn is_block(text: &str) -> bool {
    let is_plain = |line: &str| line.bytes().all(|byte| matches!(byte, b' '..=b'~')) && !line.ends_with(' ');
    text.ends_with('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n'])
        && text.lines().count() > 1
        && text.split('\n').all(is_plain)
}

fn scalar(value: &Json) -> String {
    match value {
        Json::String(text) if is_word(text) => text.clone(),
        Json::String(text) => quoted(&escaped(text)),
        Json::Object(_) => "{}".to_owned(),
        Json::Array(_) => "[]".to_owned(),
        value => value.to_string(),
    }
}

/// In a key only `${{` begins a variable; where there is one, every `${` is read as in values.
fn scalar_key(key: &str) -> String {
    match key {
        key if is_word(key) => key.to_owned(),
        key if key.contains("${{") => quoted(&escaped(key)),
        key => quoted(key),
    }
}

/// `${` would be taken for a variable of the environment.
fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            // What YAML does not take as it is, or takes for the end of a line.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn is_word(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'/')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/'))
        && !NOT_TEXT.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_is_plain_where_it_can_be() {
        let routes = json!([{"uri": "/a/*", "name": "a.b", "status": 0, "vars": [], "labels": {"a": "1", "b c": "null"},
            "upstream": {"nodes": [{"host": "a", "port": 80, "weight": 1}]}, "hosts": ["a.example", "${x}"]}]);
        let pem = json!([{"cert": "-----BEGIN-----\na\n\nb\n-----END-----\n", "odd": " a\nb\n"}]);
        let expected = r#"routes:
  - uri: "/a/*"
    name: a.b
    status: 0
    vars: []
    labels:
      a: "1"
      "b c": "null"
    upstream:
      nodes:
        - host: a
          port: 80
          weight: 1
    hosts:
      - a.example
      - "$${x}"
ssls:
  - cert: |
      -----BEGIN-----
      a

      b
      -----END-----
    odd: " a\nb\n"
"#;
        assert_eq!(write(&[("routes".to_owned(), routes), ("ssls".to_owned(), pem)]), expected);
    }
}
