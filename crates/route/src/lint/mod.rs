//! Finds probable mistakes in a list of valid routes: routes and parts of them that have no effect, and expressions
//! whose meaning differs from their appearance.
//!
//! Every finding is proven by implication between conditions, never sampled; where that cannot be decided, nothing is
//! reported. It takes near-linear time: candidates come from an index, and the number examined for one route is
//! bounded.

mod shadow;

use crate::condition::decided::{always, never};
use crate::condition::implies::implies;
use crate::condition::simplify::{as_literal, simplify};
use crate::condition::{Condition, Field, Predicate, Test};
use crate::layer::{condition_of, further_conditions};
use crate::{PathPattern, RouteMatch, RouteSpec, UriRoute, Variable};
use shadow::Shadow;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Most findings that are listed; the others are counted.
pub const FINDINGS_MAX: usize = 1000;

/// The findings in a list of routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lint {
    /// In the order of routes, no more than [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// The number of further findings.
    pub omitted: usize,
}

/// A probable mistake in a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Position of the route in the list.
    pub route: usize,
    /// Its id.
    pub id: String,
    /// The kind of mistake.
    pub kind: FindingKind,
}

/// Kinds of probable mistakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingKind {
    /// No request can satisfy the route.
    NeverMatches {
        /// The part that causes it.
        reason: String,
    },
    /// Every request that would satisfy the route is taken by others.
    Shadowed {
        /// The other routes, each with its id.
        by: Vec<(usize, String)>,
        /// Why these come first.
        reason: String,
    },
    /// Like [`FindingKind::Shadowed`], by a route with the same condition.
    SameButOrder {
        /// The other route.
        by: (usize, String),
        /// Why it comes first.
        reason: String,
    },
    /// An alternative of `||` that no request can satisfy.
    AlternativeNever {
        /// Line and column where it begins, in an expression.
        at: Option<(u32, u32)>,
        /// The part that causes it.
        reason: String,
    },
    /// A predicate that no request can satisfy.
    PartNever {
        /// Line and column, in an expression.
        at: Option<(u32, u32)>,
        /// The text as written.
        text: String,
        /// The reason, and a suggestion.
        reason: String,
    },
    /// A predicate that every request satisfies.
    PartAlways {
        /// Line and column, in an expression.
        at: Option<(u32, u32)>,
        /// The text as written.
        text: String,
        /// Why.
        reason: String,
    },
    /// A condition on the variable `uri`, which is decoded, with a percent-encoded byte.
    EncodedPath {
        /// The text as written.
        text: String,
        /// The byte as written.
        encoded: String,
    },
    /// `&&` and `||` side by side without parentheses.
    Mixed {
        /// Line and column of the operator.
        at: (u32, u32),
        /// The expression with the parentheses that it is read with.
        reading: String,
    },
}

/// Finds probable mistakes in a list of routes.
pub fn lint(specs: &[Arc<RouteSpec>]) -> Lint {
    let conditions: Vec<Condition> = specs.iter().map(|spec| condition_of(spec)).collect();
    let shadows = shadow::find(specs, &conditions);
    let mut lint = Lint::default();
    for (route, ((spec, condition), shadow)) in specs.iter().zip(&conditions).zip(shadows).enumerate() {
        let mut add = |kind| {
            if lint.findings.len() < FINDINGS_MAX {
                lint.findings.push(Finding { route, id: spec.id.clone(), kind });
            } else {
                lint.omitted += 1;
            }
        };
        if let RouteMatch::Expression(expression) = &spec.takes
            && !expression.mixed().is_empty()
        {
            let reading = with_parentheses(expression.condition());
            expression.mixed().iter().for_each(|&at| add(FindingKind::Mixed { at, reading: reading.clone() }));
        }
        let written = match &spec.takes {
            RouteMatch::Expression(expression) => Some(expression.condition()),
            RouteMatch::Uri(uri) => uri.vars.as_ref().map(|vars| vars.condition()),
        };
        match (condition, written) {
            (Condition::False, _) => {
                let reason = match &spec.takes {
                    RouteMatch::Expression(expression) => why_never(expression.condition()),
                    RouteMatch::Uri(uri) => why_never(&further_conditions(uri)),
                };
                add(FindingKind::NeverMatches { reason });
            }
            // A single predicate that always holds is the way to write a route for all requests.
            (Condition::True, Some(Condition::Is(_))) => {}
            (_, Some(written)) => find_in_parts(written, &mut add),
            _ => {}
        }
        match shadow {
            Some(Shadow { by, .. }) if by.is_empty() => {
                let reason = match has_alternatives(condition) {
                    true => "whichever alternatives are taken, two of its conditions exclude each other",
                    false => "two of its conditions exclude each other",
                };
                add(FindingKind::NeverMatches { reason: reason.to_owned() });
            }
            Some(Shadow { by, same }) => add(finding_kind(specs, route, &by, same)),
            None => {}
        }
    }
    lint
}

fn has_alternatives(condition: &Condition) -> bool {
    match condition {
        Condition::Any(_) => true,
        Condition::All(parts) => parts.iter().any(has_alternatives),
        Condition::Not(inner) => has_alternatives(inner),
        Condition::Is(_) | Condition::True | Condition::False => false,
    }
}

fn finding_kind(specs: &[Arc<RouteSpec>], route: usize, by: &[usize], same: bool) -> FindingKind {
    let named = |route: usize| (route, specs[route].id.clone());
    let why = |other: usize| why_first(&specs[other], &specs[route], same);
    match by {
        [only] if same => FindingKind::SameButOrder { by: named(*only), reason: why(*only) },
        _ => {
            let mut reasons: Vec<String> = by.iter().map(|other| why(*other)).collect();
            reasons.sort_unstable();
            reasons.dedup();
            let by = by.iter().map(|route| named(*route)).collect();
            FindingKind::Shadowed { by, reason: reasons.join("; ") }
        }
    }
}

fn why_first(first: &RouteSpec, then: &RouteSpec, same: bool) -> String {
    match (&first.takes, &then.takes) {
        (RouteMatch::Expression(_), RouteMatch::Uri(_)) => return "expressions come before uris".to_owned(),
        (RouteMatch::Uri(first), RouteMatch::Uri(then)) if first.invalid != then.invalid => {
            return "the match of the first could not be read in full, so it comes before all others".to_owned();
        }
        (RouteMatch::Uri(first), RouteMatch::Uri(then)) if !same && !has_all_pairs(first, then) => {
            return "the more specific host and path come first, then the higher priority, then the list".to_owned();
        }
        _ => {}
    }
    match first.priority == then.priority {
        true => "of the same priority the earlier in the list comes first".to_owned(),
        false => format!("priority {} comes before {}", first.priority, then.priority),
    }
}

/// Whether one route has all hosts and paths of another.
fn has_all_pairs(one: &UriRoute, other: &UriRoute) -> bool {
    let has_path = |path: &PathPattern| one.paths.iter().any(|own| own.eq_ignoring_names(path));
    one.hosts.is_empty() == other.hosts.is_empty()
        && other.hosts.iter().all(|host| one.hosts.contains(host))
        && other.paths.iter().all(has_path)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FindingKind as Kind;
        write!(f, "route \"{}\": ", self.id)?;
        match &self.kind {
            Kind::NeverMatches { reason } => write!(f, "takes no request: {reason}"),
            Kind::Shadowed { by, reason } => {
                write!(f, "takes no request, since ")?;
                write_ids(by, f)?;
                write!(f, " all of them first ({reason})")
            }
            Kind::SameButOrder { by: (_, by), reason } => {
                write!(f, "takes no request, since it matches the same requests as route \"{by}\" ({reason})")
            }
            Kind::AlternativeNever { at, reason } => {
                write!(f, "the alternative")?;
                write_at(" at ", *at, f)?;
                write!(f, " never holds: {reason}")
            }
            Kind::PartNever { at, text, reason } => {
                write!(f, "`{text}`")?;
                write_at(" at ", *at, f)?;
                write!(f, " never holds: {reason}")
            }
            Kind::PartAlways { at, text, reason } => {
                write!(f, "`{text}`")?;
                write_at(" at ", *at, f)?;
                write!(f, " always holds: {reason}")
            }
            Kind::EncodedPath { text, encoded } => write!(
                f,
                "`{text}`: uri is decoded, so \"{encoded}\" is found only where the client sends \"%25{}\"; write the character \
                 itself",
                &encoded[1..]
            ),
            Kind::Mixed { at, reading } => {
                write_at("at ", Some(*at), f)?;
                write!(f, " && and || are mixed, and || binds tighter; if this is meant, write {reading}")
            }
        }
    }
}

fn write_at(before: &str, at: Option<(u32, u32)>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    at.map_or(Ok(()), |(line, column)| write!(f, "{before}{line}:{column}"))
}

fn write_ids(by: &[(usize, String)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SHOWN_MAX: usize = 5;
    write!(f, "{}", if by.len() == 1 { "route " } else { "routes " })?;
    for (index, (_, id)) in by.iter().take(SHOWN_MAX).enumerate() {
        write!(f, "{}\"{id}\"", if index == 0 { "" } else { ", " })?;
    }
    match by.len().saturating_sub(SHOWN_MAX) {
        0 if by.len() == 1 => write!(f, " takes"),
        0 => write!(f, " take"),
        more => write!(f, " and {more} others take"),
    }
}

// Prints an expression with all the parentheses of its actual meaning.

/// The rest of a longer expression is not shown.
const SHOWN_BYTES_MAX: usize = 400;

/// The text of a condition as it was parsed, in backquotes, with parentheses around every chain in another.
fn with_parentheses(condition: &Condition) -> String {
    let mut out = "`".to_owned();
    match push(condition, false, &mut out) {
        Ok(()) => out.push('`'),
        Err(_) => {
            let end = (0..=SHOWN_BYTES_MAX).rev().find(|end| out.is_char_boundary(*end)).unwrap_or(0);
            out.truncate(end);
            out.push_str("…`");
        }
    }
    out
}

/// Fails where it becomes too long.
fn push(condition: &Condition, inside: bool, out: &mut String) -> std::fmt::Result {
    if out.len() > SHOWN_BYTES_MAX {
        return Err(std::fmt::Error);
    }
    let (parts, operator) = match condition {
        Condition::True => return out.write_str("true"),
        Condition::False => return out.write_str("false"),
        Condition::Is(predicate) => return out.write_str(&predicate.source.text),
        Condition::Not(inner) => {
            out.push_str("!(");
            push(inner, false, out)?;
            return out.write_str(")");
        }
        Condition::All(parts) => (parts, " && "),
        Condition::Any(parts) => (parts, " || "),
    };
    if inside {
        out.push('(');
    }
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push_str(operator);
        }
        push(part, true, out)?;
    }
    if inside {
        out.push(')');
    }
    Ok(())
}

/// Most predicates of one chain among which a contradiction is sought.
const COMPARED_MAX: usize = 64;
/// Most alternatives for which a reason is given why each cannot hold.
const REASONS_MAX: usize = 3;

/// Finds parts that are never or always true, in a condition that as a whole is neither.
fn find_in_parts(condition: &Condition, add: &mut dyn FnMut(FindingKind)) {
    match condition {
        Condition::True | Condition::False => {}
        Condition::Is(predicate) => find_decided(predicate, add),
        // Alternatives under a negation are not alternatives of the condition.
        Condition::Not(inner) => inner.each_predicate(&mut |predicate| find_decided(predicate, add)),
        Condition::All(parts) => parts.iter().for_each(|part| find_in_parts(part, add)),
        Condition::Any(parts) => {
            for part in parts {
                if as_literal(part).is_none() && simplify(part, false) == Condition::False {
                    add(FindingKind::AlternativeNever { at: begin(part), reason: why_never(part) });
                } else {
                    find_in_parts(part, add);
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
fn why_never(condition: &Condition) -> String {
    why(condition, false)
}

fn why(condition: &Condition, negated: bool) -> String {
    let is_false = |part: &Condition| simplify(part, negated) == Condition::False;
    match condition {
        Condition::Is(predicate) => {
            let reason = if negated { always(predicate) } else { never(predicate) };
            let because = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            format!("{} never holds{because}", predicate_text(predicate, negated))
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
                return format!("{} and {} exclude each other", predicate_text(p, *not_p), predicate_text(q, *not_q));
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
                let last =
                    alternatives.iter().filter_map(as_literal).map(|(q, not_q)| predicate_text(q, not_q)).next_back();
                let which = last.map_or_else(String::new, |last| format!(", the last of them {last}"));
                return format!("{} excludes every alternative of another part{which}", predicate_text(p, *not_p));
            }
        }
    }
    "its parts exclude each other".to_owned()
}

fn predicate_text(predicate: &Predicate, negated: bool) -> String {
    let text = &predicate.source.text;
    let text = if negated { format!("`!({text})`") } else { format!("`{text}`") };
    match predicate.source.at {
        Some((line, column)) => format!("{text} at {line}:{column}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;

    #[test]
    fn long_expressions_are_cut() {
        let check = |part: &str| {
            let text = [part; 100].join(" && ");
            let shown = with_parentheses(Expression::parse(&text).unwrap().condition());
            let inside = shown.strip_prefix('`').and_then(|shown| shown.strip_suffix("…`")).unwrap();
            assert!(text.starts_with(inside) && inside.len() <= SHOWN_BYTES_MAX, "{shown}");
        };
        check(r#"http.headers.x == "1""#);
        check(r#"http.headers.x == "ääääääääääääää""#);
    }
}
