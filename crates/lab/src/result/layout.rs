//! Lays out compact JSON so that people and `diff` can read it, and large lists of numbers stay small.
//!
//! A list or object without nested ones is one line; any other has a line for each of its entries. A time series thus
//! has one line per point, where usual pretty-printing has nine, and half the bytes. Values and their order are
//! unchanged.

/// Spaces per level.
const INDENT: usize = 1;

/// Compact JSON, laid out, with a line feed at its end.
pub(crate) fn indent(compact: &str) -> String {
    let bytes = compact.as_bytes();
    let mut out = String::with_capacity(compact.len() + compact.len() / 4);
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at);
                out.push_str(&compact[at..end]);
                at = end;
                continue;
            }
            b'{' | b'[' => match flat_end(bytes, at) {
                Some(end) => {
                    push_flat(&mut out, &compact[at..end]);
                    at = end;
                    continue;
                }
                None => {
                    depth += 1;
                    out.push(char::from(bytes[at]));
                    new_line(&mut out, depth);
                }
            },
            b'}' | b']' => {
                depth -= 1;
                new_line(&mut out, depth);
                out.push(char::from(bytes[at]));
            }
            b',' => {
                out.push(',');
                new_line(&mut out, depth);
            }
            b':' => out.push_str(": "),
            other => out.push(char::from(other)),
        }
        at += 1;
    }
    out.push('\n');
    out
}

/// The index after the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(at + 1)
}

/// The index after the list or object that begins at `start`, if it has no nested one.
fn flat_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at),
            b'{' | b'[' => return None,
            b'}' | b']' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// Adds a space after each comma and colon outside strings.
fn push_flat(out: &mut String, flat: &str) {
    let bytes = flat.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = if bytes[at] == b'"' { string_end(bytes, at) } else { at + 1 };
        out.push_str(&flat[at..end]);
        if matches!(bytes[at], b',' | b':') {
            out.push(' ');
        }
        at = end;
    }
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', depth * INDENT));
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn only_what_holds_others_takes_lines() {
        let check = |value: Value, expect: Expect| expect.assert_eq(&indent(&value.to_string()));
        check(
            json!({}),
            expect![[r#"
            {}
        "#]],
        );
        check(
            json!({ "a": [1, -2.5e-7, null], "b": { "c": "},{\"[", "d": [{ "e": true, "f": "\\" }, { "e": [] }] }, "ü": "ß, : x" }),
            expect![[r#"
                {
                 "a": [1, -2.5e-7, null],
                 "b": {
                  "c": "},{\"[",
                  "d": [
                   {"e": true, "f": "\\"},
                   {
                    "e": []
                   }
                  ]
                 },
                 "ü": "ß, : x"
                }
            "#]],
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[\\PC\\\\\"{}\\[\\],:]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-z\"\\\\{]{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_says_the_same(value in any_json()) {
            let laid_out = indent(&value.to_string());
            prop_assert_eq!(serde_json::from_str::<Value>(&laid_out).unwrap(), value);
        }
    }
}
