//! Finds probable mistakes in a list of valid routes: routes and parts of them that have no effect, and expressions
//! whose meaning differs from their appearance.
//!
//! Every finding is proven by implication between conditions, never sampled; where that cannot be decided, nothing is
//! reported. It takes near-linear time: candidates come from an index, and the number examined for one route is
//! bounded.

mod parts;
mod shadow;

use crate::condition::Condition;
use crate::layer::{condition_of, further_conditions};
use crate::{PathPattern, RouteMatch, RouteSpec, UriRoute};
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
                    RouteMatch::Expression(expression) => parts::why_never(expression.condition()),
                    RouteMatch::Uri(uri) => parts::why_never(&further_conditions(uri)),
                };
                add(FindingKind::NeverMatches { reason });
            }
            // A single predicate that always holds is the way to write a route for all requests.
            (Condition::True, Some(Condition::Is(_))) => {}
            (_, Some(written)) => parts::find(written, &mut add),
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
        (RouteMatch::Uri(first), RouteMatch::Uri(then)) if first.unread != then.unread => {
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
    let has_path = |path: &PathPattern| one.paths.iter().any(|own| own.says_the_same(path));
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
