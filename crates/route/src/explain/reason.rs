//! Why a condition does not hold, in words: the predicate in it, its position, and the values that the request has
//! there.
//!
//! Where all parts must hold, the first that does not is reported; for alternatives, every one with its reason; for a
//! negation, what holds inside. All of it is bounded.

use super::list;
use crate::condition::{Condition, Field, FieldKind, Predicate, Test};
use crate::fields::variable_of;
use crate::params::UnindexedEvaluator;
use crate::{AddressSet, MatchRequest, PathPattern, RouteMatch, RouteSpec, UriRoute};
use std::fmt;

/// Most predicates reported in one reason.
pub(super) const PREDICATES_SHOWN_MAX: usize = 8;
/// Most values reported of one field.
const VALUES_SHOWN_MAX: usize = 4;
/// Longest value and longest predicate that are reported.
const VALUE_CHARS_MAX: usize = 80;
const PREDICATE_CHARS_MAX: usize = 160;

/// Why a place does not take a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The reason in words, for people.
    pub text: String,
    /// The predicates concerned, for programs; no more than a few.
    pub predicates: Vec<PredicateValue>,
}

/// A predicate and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredicateValue {
    /// The text as written.
    pub predicate: String,
    /// Line and column in the expression, from 1 and in characters; `None` outside of expressions.
    pub at: Option<(u32, u32)>,
    /// The field that it reads.
    pub field: String,
    /// The request's values of that field, as the predicate sees them; empty if the field is absent.
    pub values: Vec<String>,
    /// Whether that is known (see [`crate::Lookup::is_known`]).
    pub is_known: bool,
    /// The number of further values that are not listed.
    pub omitted: usize,
    /// Whether it holds; if it does, the condition negates it.
    pub holds: bool,
}

/// Less is nearer to holding: the share of a place's parts that fail, in thousandths.
pub(super) type Distance = u32;

/// Evaluates conditions and collects the reasons.
pub(super) struct ReasonCollector<'a, 'p, 'r> {
    evaluator: &'a mut UnindexedEvaluator<'p, 'r>,
    request: &'p MatchRequest<'r>,
    pub(super) predicates: Vec<PredicateValue>,
}

/// One condition as text: `what: fact`. Neighbours with the same fact are put together.
pub(super) struct ReasonLine {
    what: String,
    fact: String,
}

impl<'a, 'p, 'r> ReasonCollector<'a, 'p, 'r> {
    pub(super) fn new(
        evaluator: &'a mut UnindexedEvaluator<'p, 'r>,
        request: &'p MatchRequest<'r>,
    ) -> ReasonCollector<'a, 'p, 'r> {
        ReasonCollector { evaluator, request, predicates: Vec::new() }
    }

    /// `None` if everything holds, apart from host and path of a URI route.
    pub(super) fn distance(mut self, spec: &RouteSpec, path: u32) -> Option<Distance> {
        let (failing, all) = match &spec.takes {
            RouteMatch::Expression(expression) => self.count(expression.condition(), None),
            RouteMatch::Uri(uri) => {
                let methods = u32::from(!uri.methods.admits(self.request.method));
                let addresses = u32::from(!self.is_admitted(uri));
                let vars =
                    uri.vars.as_ref().map_or((0, 0), |vars| self.count(vars.condition(), uri.paths.get(path as usize)));
                let failing = methods + addresses + vars.0;
                let function = u32::from(failing == 0 && !self.evaluator.passes_filter(spec));
                // Its host and its path hold.
                (failing + function, 4 + vars.1 + u32::from(uri.function.is_some()))
            }
        };
        (failing > 0).then(|| failing * 1000 / all)
    }

    /// The first condition other than host and path that does not hold.
    pub(super) fn failing_reason(mut self, spec: &RouteSpec, path: u32) -> Option<Reason> {
        let uri = match &spec.takes {
            RouteMatch::Expression(expression) => {
                let ReasonLine { what, fact } = self.explain_failing(expression.condition(), None)?;
                return Some(Reason { text: join_fact(&what, &fact), predicates: self.predicates });
            }
            RouteMatch::Uri(uri) => uri,
        };
        let own = |predicate: String, field: Field, value: String, whose: &str| Reason {
            text: format!("{predicate}; {whose} {value}"),
            predicates: vec![PredicateValue {
                predicate,
                at: None,
                field: field.to_string(),
                values: vec![value],
                is_known: true,
                omitted: 0,
                holds: false,
            }],
        };
        if !uri.methods.admits(self.request.method) {
            let method = self.request.method.to_string();
            return Some(own(format!("methods are {}", uri.methods), Field::Method, method, "the request's is"));
        }
        if !self.is_admitted(uri) {
            let networks = format!("remote_addrs are {}", list(&uri.remote_addrs));
            return Some(own(networks, Field::SourceIp, self.request.client.to_string(), "the client is"));
        }
        let vars = uri.vars.as_ref();
        if let Some(line) = vars.and_then(|vars| self.explain_failing(vars.condition(), uri.paths.get(path as usize))) {
            return Some(Reason {
                text: format!("vars: {}", join_fact(&line.what, &line.fact)),
                predicates: self.predicates,
            });
        }
        let text = "filter_func does not let it take the request".to_owned();
        (!self.evaluator.passes_filter(spec)).then_some(Reason { text, predicates: Vec::new() })
    }

    fn is_admitted(&self, uri: &UriRoute) -> bool {
        uri.remote_addrs.is_empty() || AddressSet::new(&uri.remote_addrs).contains(self.request.client)
    }

    fn holds(&mut self, condition: &Condition, pattern: Option<&PathPattern>) -> bool {
        condition.holds(&mut |predicate| self.evaluator.holds(predicate, pattern))
    }

    /// Counts the parts that must all hold: how many of them fail, and how many there are.
    fn count(&mut self, condition: &Condition, pattern: Option<&PathPattern>) -> (u32, u32) {
        match condition {
            Condition::All(parts) => {
                parts.iter().fold((0, 0), |(failing, all), part| match failing > 0 && is_costly(part) {
                    // The distance of each alternative does not matter as much.
                    true => (failing + 1, all + 1),
                    false => {
                        let (more_failing, more) = self.count(part, pattern);
                        (failing + more_failing, all + more)
                    }
                })
            }
            part => (u32::from(!self.holds(part, pattern)), 1),
        }
    }

    fn explain_failing(&mut self, condition: &Condition, pattern: Option<&PathPattern>) -> Option<ReasonLine> {
        (!self.holds(condition, pattern)).then(|| self.explain(condition, false, pattern))
    }

    /// Explains why a condition has the value `value`, which is its value.
    fn explain(&mut self, condition: &Condition, value: bool, pattern: Option<&PathPattern>) -> ReasonLine {
        if let Some(predicate) = written_negation(condition) {
            return self.explain_predicate(predicate, value, pattern);
        }
        match condition {
            Condition::Is(predicate) => self.explain_predicate(predicate, value, pattern),
            Condition::Not(inner) => self.explain(inner, !value, pattern),
            // One part decides if one is enough for the value.
            Condition::All(parts) | Condition::Any(parts) => {
                let one_is_enough = matches!(condition, Condition::Any(_)) == value;
                match parts.iter().find(|part| self.holds(part, pattern) == value) {
                    Some(part) if one_is_enough || parts.len() == 1 => self.explain(part, value, pattern),
                    _ => self.explain_all(parts, value, pattern),
                }
            }
            Condition::True | Condition::False => {
                ReasonLine { what: String::new(), fact: format!("it always {}", if value { "holds" } else { "fails" }) }
            }
        }
    }

    /// Explains why all parts have the value `value`.
    fn explain_all(&mut self, parts: &[Condition], value: bool, pattern: Option<&PathPattern>) -> ReasonLine {
        let mut lines: Vec<ReasonLine> = Vec::new();
        let mut shown = 0;
        for part in parts {
            if self.predicates.len() >= PREDICATES_SHOWN_MAX {
                break;
            }
            shown += 1;
            let line = self.explain(part, value, pattern);
            match lines.last_mut() {
                Some(last) if last.fact == line.fact && !last.what.is_empty() => {
                    last.what = format!("{}, {}", last.what, line.what);
                }
                _ => lines.push(line),
            }
        }
        let mut items: Vec<String> = lines.iter().map(|line| join_fact(&line.what, &line.fact)).collect();
        if shown < parts.len() {
            items.push(format!("and {} more", parts.len() - shown));
        }
        let lead = if value { "all hold" } else { "none holds" };
        ReasonLine { what: String::new(), fact: format!("{lead}: {}", items.join("; ")) }
    }

    /// `holds` is about the predicate as written, which may itself be a negation.
    pub(super) fn explain_predicate(
        &mut self,
        predicate: &Predicate,
        holds: bool,
        pattern: Option<&PathPattern>,
    ) -> ReasonLine {
        let text = |value: &Vec<u8>| shortened(&String::from_utf8_lossy(value), VALUE_CHARS_MAX);
        let all = self.evaluator.values(predicate, pattern);
        let values: Vec<String> = all.iter().take(VALUES_SHOWN_MAX).map(text).collect();
        let omitted = all.len() - values.len();
        let source = shortened(&predicate.source.text, PREDICATE_CHARS_MAX);
        let mut what = match predicate.source.at {
            Some((line, column)) => format!("at {line}:{column}, {source}"),
            None => source.clone(),
        };
        if holds {
            what.push_str(" holds");
        }
        let field = match predicate.lower {
            true => format!("lower({})", predicate.field),
            false => predicate.field.to_string(),
        };
        let is_known = variable_of(&predicate.field).is_none_or(|variable| self.request.vars.is_known(variable));
        let fact = match is_known {
            true => format!("{field} is {}", shown(&values, omitted, predicate, holds)),
            false => format!("{field} is not given"),
        };
        self.predicates.push(PredicateValue {
            predicate: source,
            at: predicate.source.at,
            field,
            values,
            is_known,
            omitted,
            holds,
        });
        ReasonLine { what, fact }
    }
}

/// Whether evaluating it takes a regex, which may have to be compiled.
fn is_costly(condition: &Condition) -> bool {
    let mut has_regex = false;
    condition.each_predicate(&mut |predicate| has_regex |= matches!(predicate.test, Test::Regex(_)));
    has_regex
}

/// The predicate under a negation that belongs to the operator as written: `~=` and `!` of `vars`.
fn written_negation(condition: &Condition) -> Option<&Predicate> {
    let Condition::Not(inner) = condition else { return None };
    match &**inner {
        Condition::Is(predicate) if predicate.source.at.is_none() => Some(predicate),
        deeper => written_negation(deeper),
    }
}

fn shown(values: &[String], omitted: usize, predicate: &Predicate, holds: bool) -> String {
    let quoted = |value: &String| match predicate.field.kind() {
        FieldKind::Text => format!("{value:?}"),
        FieldKind::Int | FieldKind::Ip => value.clone(),
    };
    let mut shown = values.iter().map(quoted).collect::<Vec<_>>().join(", ");
    if omitted > 0 {
        shown.push_str(&format!(" and {omitted} more"));
    }
    match (values.len(), holds, predicate.any) {
        (0, ..) => "absent".to_owned(),
        (1, ..) | (_, true, true) => shown,
        (_, true, false) => format!("{shown}; all pass"),
        (_, false, true) => format!("{shown}; none passes"),
        (_, false, false) => format!("{shown}; not all pass"),
    }
}

fn join_fact(what: &str, fact: &str) -> String {
    if what.is_empty() { fact.to_owned() } else { format!("{what}: {fact}") }
}

pub(super) fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
