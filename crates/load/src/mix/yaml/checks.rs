//! The `expect` of a request: statuses and a check of the body.

use super::variables::{Reader, listed};
use crate::mix::expect::{BodyCheck, Expect, STATUSES_WANTED, Statuses, status_range};
use crate::mix::template::{Escape, Template, Variable};
use regex::bytes::RegexBuilder;
use std::sync::Arc;
use stillgate_yaml::{Entry as Pair, Node, Value};

const BODY_CHECKS: &[&str] = &["equals", "contains", "matches"];

/// Largest automaton of a regex, to bound its memory.
const REGEX_BYTES_MAX: usize = 1 << 20;

pub(super) fn read(node: &Node, variables: &[Variable], reader: &mut Reader<'_>) -> Expect {
    let Some(map) = reader.map(node, &["status", "body"]) else { return Expect::default() };
    Expect {
        statuses: map.get("status").map(|node| statuses(node, reader)).unwrap_or_default(),
        body: map.get("body").and_then(|node| body(node, variables, reader)),
    }
}

fn statuses(node: &Node, reader: &mut Reader<'_>) -> Statuses {
    let mut statuses = Statuses::EMPTY;
    let items = match &node.value {
        Value::List(items) => items,
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        reader.wrong::<()>(node, "at least one status, like [200, 4xx]");
    }
    for item in items {
        let Some(text) = reader.text(item, STATUSES_WANTED) else { continue };
        match status_range(text) {
            Some((from, to)) => statuses.add(from, to),
            None => {
                reader.wrong::<()>(item, STATUSES_WANTED);
            }
        }
    }
    statuses
}

fn body(node: &Node, variables: &[Variable], reader: &mut Reader<'_>) -> Option<BodyCheck> {
    let map = reader.map(node, BODY_CHECKS)?;
    let [Pair { key, value, .. }] = map.present(BODY_CHECKS)[..] else {
        if map.has_unknown {
            return None;
        }
        let message = format!("a body has one check; write one of {}", listed(BODY_CHECKS));
        reader.findings.add(node.at, message);
        return None;
    };
    let text = reader.text(value, "a text")?;
    if &**key == "matches" {
        // In a regex `$` and braces have another meaning, so variables are not supported.
        return match RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build() {
            Ok(regex) => Some(BodyCheck::Matches(regex)),
            Err(regex::Error::CompiledTooBig(_)) => {
                reader
                    .findings
                    .add(value.at, "the regular expression needs too much memory; write smaller repetitions");
                None
            }
            Err(error) => {
                // The last line has the reason; those before draw the position.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                reader.findings.add(value.at, format!("not a regular expression: {reason}"));
                None
            }
        };
    }
    let want: Arc<[u8]> = match Template::parse(text, Escape::None, variables) {
        Ok(template) => match template.as_literal() {
            Some(literal) => literal.into(),
            None => {
                let message = "variables are not filled in in a check; write `$${` for the characters `${`";
                reader.findings.add(value.at, message);
                return None;
            }
        },
        Err(message) => {
            reader.findings.add(value.at, message);
            return None;
        }
    };
    Some(if &**key == "equals" { BodyCheck::Equals(want) } else { BodyCheck::Contains(want) })
}
