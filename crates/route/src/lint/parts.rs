//! Finds the parts of a route's condition that are never or always true, and names the cause.

use super::FindingKind;
use crate::Variable;
use crate::condition::decided::{always, never};
use crate::condition::implies::implies;
use crate::condition::simplify::{as_literal, simplify};
use crate::condition::{Condition, Field, Predicate, Test};

/// Most predicates of one chain among which a contradiction is sought.
const COMPARED_MAX: usize = 64;
/// Most alternatives for which a reason is given why each cannot hold.
const REASONS_MAX: usize = 3;

/// Finds parts that are never or always true, in a condition that as a whole is neither.
pub(super) fn find(condition: &Condition, add: &mut dyn FnMut(FindingKind)) {
    match condition {
        Condition::True | Condition::False => {}
        Condition::Is(predicate) => find_decided(predicate, add),
        // Alternatives under a negation are not alternatives of the condition.
        Condition::Not(inner) => inner.each_predicate(&mut |predicate| find_decided(predicate, add)),
        Condition::All(parts) => parts.iter().for_each(|part| find(part, add)),
        Condition::Any(parts) => {
            for part in parts {
                if as_literal(part).is_none() && simplify(part, false) == Condition::False {
                    add(FindingKind::AlternativeNever { at: begin(part), reason: why_never(part) });
                } else {
                    find(part, add);
                }
            }
        }
    }
}

fn find_decided(predicate: &Predicate, add: &mut dyn FnMut(FindingKind)) {
    let (at, text) = (predicate.source.at, &predicate.source.text);
    if let Some(reason) = never(predicate) {
        add(FindingKind::PartNever { at, text: text.to_string(), reason });
    } else if let Some(reason) = always(predicate) {
        add(FindingKind::PartAlways { at, text: text.to_string(), reason });
    } else if let Some(encoded) = encoded_part(predicate) {
        add(FindingKind::EncodedPath { text: text.to_string(), encoded });
    }
}

/// A percent-encoded byte that is compared with the variable `uri`, which is decoded.
fn encoded_part(predicate: &Predicate) -> Option<String> {
    if predicate.field != Field::Variable(Variable::Uri) {
        return None;
    }
    let text = match &predicate.test {
        Test::Equal(text) | Test::NotEqual(text) => &**text,
        Test::Regex(pattern) => pattern.source().as_bytes(),
        _ => return None,
    };
    let is_encoded = |three: &&[u8]| three[0] == b'%' && three[1..].iter().all(u8::is_ascii_hexdigit);
    text.windows(3).find(is_encoded).map(|three| String::from_utf8_lossy(three).into_owned())
}

fn begin(condition: &Condition) -> Option<(u32, u32)> {
    let mut at = None;
    condition.each_predicate(&mut |predicate| at = at.or(predicate.source.at));
    at
}

/// Why a condition that simplifies to false cannot hold.
pub(super) fn why_never(condition: &Condition) -> String {
    why(condition, false)
}

fn why(condition: &Condition, negated: bool) -> String {
    let is_false = |part: &Condition| simplify(part, negated) == Condition::False;
    match condition {
        Condition::Is(predicate) => {
            let reason = if negated { always(predicate) } else { never(predicate) };
            let because = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            format!("{} never holds{because}", named(predicate, negated))
        }
        Condition::Not(inner) => why(inner, !negated),
        Condition::All(parts) if negated => why_none(parts, negated),
        Condition::Any(parts) if !negated => why_none(parts, negated),
        Condition::All(parts) | Condition::Any(parts) => match parts.iter().find(|part| is_false(part)) {
            Some(part) => why(part, negated),
            None => contradiction(parts, negated),
        },
        Condition::True | Condition::False => "it says so".to_owned(),
    }
}

fn why_none(alternatives: &[Condition], negated: bool) -> String {
    let reasons: Vec<String> = alternatives.iter().take(REASONS_MAX).map(|part| why(part, negated)).collect();
    let more = if alternatives.len() > REASONS_MAX { "; …" } else { "" };
    reasons.join("; ") + more
}

/// Names two predicates of a chain that exclude each other.
fn contradiction(parts: &[Condition], negated: bool) -> String {
    let simplified: Vec<Condition> = parts.iter().map(|part| simplify(part, negated)).collect();
    let inner = |part: &'_ Condition| match part {
        Condition::All(inner) => inner.clone(),
        other => vec![other.clone()],
    };
    let flat: Vec<Condition> = simplified.iter().flat_map(inner).collect();
    let literals: Vec<_> = flat.iter().filter_map(as_literal).take(COMPARED_MAX).collect();
    for (index, (q, not_q)) in literals.iter().enumerate() {
        for (p, not_p) in &literals[..index] {
            if implies(p, *not_p, q, !*not_q) {
                return format!("{} and {} exclude each other", named(p, *not_p), named(q, *not_q));
            }
        }
    }
    // One of them may exclude all alternatives of another part.
    for (p, not_p) in &literals {
        let is = Condition::Is((*p).clone());
        let literal = if *not_p { Condition::Not(Box::new(is)) } else { is };
        let excludes = |part: &Condition| {
            simplify(&Condition::All(vec![literal.clone(), part.clone()]), false) == Condition::False
        };
        let alternatives = flat.iter().filter_map(|part| match part {
            Condition::Any(alternatives) if alternatives.len() <= COMPARED_MAX => Some(alternatives),
            _ => None,
        });
        for alternatives in alternatives {
            if alternatives.iter().all(excludes) {
                let last = alternatives.iter().filter_map(as_literal).map(|(q, not_q)| named(q, not_q)).next_back();
                let which = last.map_or_else(String::new, |last| format!(", the last of them {last}"));
                return format!("{} excludes every alternative of another part{which}", named(p, *not_p));
            }
        }
    }
    "its parts exclude each other".to_owned()
}

fn named(predicate: &Predicate, negated: bool) -> String {
    let text = &predicate.source.text;
    let text = if negated { format!("`!({text})`") } else { format!("`{text}`") };
    match predicate.source.at {
        Some((line, column)) => format!("{text} at {line}:{column}"),
        None => text,
    }
}
