//! Captures of the found route's path and regexes, computed only when needed.

use crate::condition::{ConditionValue, Field, Predicate, Test};
use crate::fields::FieldSlots;
use crate::function::FunctionDecisions;
use crate::layer::passes;
use crate::matcher::{Match, Matcher};
use crate::path::{self, NormalisedPath};
use crate::values::{MatchRequest, Values};
use crate::{Expression, PathPattern, RouteMatch, RouteSpec, Variable};

impl Matcher {
    /// The value of `uri_param_NAME`: for a URI route, the part of the path that `:NAME` or `*NAME` matches; for an
    /// expression, the named group of its regexes; if several have it, the last that matched. What comes from the path is
    /// decoded, and `%2F` is a slash that separates segments, as nodes read it.
    pub fn param<'a>(
        &'a self,
        found: Match,
        request: &MatchRequest<'a>,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        if request.path.ambiguous().is_some() {
            return self.param_with_slashes_decoded(found, request, name, buffer);
        }
        match &self.specs[found.route].takes {
            RouteMatch::Uri(uri) => {
                let value = uri.paths[found.path].param(name, request.path.bytes())?;
                Some(path::decode(value, buffer))
            }
            RouteMatch::Expression(expression) => group(expression, request, name, buffer),
        }
    }

    /// [`Matcher::param`] of a path with `%2F`.
    #[cold]
    fn param_with_slashes_decoded<'a>(
        &self,
        found: Match,
        request: &MatchRequest<'_>,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let mut read = Vec::new();
        let other = NormalisedPath::from_normalised(request.path.with_slashes_decoded(&mut read), None);
        let mut value = Vec::new();
        let value = self.param(found, &MatchRequest { path: other, ..*request }, name, &mut value)?;
        buffer.clear();
        buffer.extend_from_slice(value);
        Some(buffer)
    }

    /// Names and values of everything that the route captured, for people.
    pub fn params(&self, found: Match, request: &MatchRequest<'_>) -> Vec<(String, Vec<u8>)> {
        let names: Vec<String> = match &self.specs[found.route].takes {
            RouteMatch::Uri(uri) => uri.paths[found.path].names().iter().map(ToString::to_string).collect(),
            RouteMatch::Expression(expression) => group_names(expression),
        };
        let value = |name: &String| self.param(found, request, name, &mut Vec::new()).map(<[u8]>::to_vec);
        names.into_iter().filter_map(|name| value(&name).map(|value| (name, value))).collect()
    }
}

fn group_names(expression: &Expression) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    expression.condition().each_predicate(&mut |predicate| {
        if let Test::Regex(pattern) = &predicate.test {
            names.extend(pattern.names().iter().map(ToString::to_string));
        }
    });
    names.sort();
    names.dedup();
    names
}

/// Evaluates the expression from the left, as the search did, and keeps what its regexes captured under that name.
fn group<'a>(
    expression: &Expression,
    request: &MatchRequest<'_>,
    name: &str,
    out: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    let mut has_name = false;
    expression.condition().each_predicate(&mut |predicate| {
        has_name |=
            matches!(&predicate.test, Test::Regex(pattern) if pattern.names().iter().any(|known| **known == *name));
    });
    if !has_name {
        return None;
    }
    let mut evaluator = UnindexedEvaluator::new(request);
    let mut is_found = false;
    expression.condition().holds(&mut |predicate| {
        let Test::Regex(pattern) = &predicate.test else { return evaluator.holds(predicate, None) };
        // Like the reference: value after value, up to the one that decides; a field without values does not hold.
        let mut holds = false;
        for value in evaluator.values(predicate, None) {
            holds = pattern.captures(&value, &mut |_, group, text| {
                if group == Some(name) {
                    is_found = true;
                    out.clear();
                    match predicate.field {
                        Field::Path | Field::Segment(_) | Field::Segments(..) => path::push_as_text(text, out),
                        _ => out.extend_from_slice(text),
                    }
                }
            });
            if holds == predicate.any {
                break;
            }
        }
        holds
    });
    is_found.then_some(out)
}

// Predicates evaluated one by one, without an index: for explanations and captures.
//
// It reads values as the matcher does and uses the same tests; it is slow and may allocate. Regexes that it had to
// compile are not kept: for a hundred thousand routes they would take more memory than the routes.

/// Evaluates predicates of one request, and keeps the values that it has read.
pub(crate) struct UnindexedEvaluator<'p, 'r> {
    request: &'p MatchRequest<'r>,
    fields: FieldSlots,
    values: Values,
    decided: FunctionDecisions,
}

impl<'p, 'r> UnindexedEvaluator<'p, 'r> {
    pub(crate) fn new(request: &'p MatchRequest<'r>) -> UnindexedEvaluator<'p, 'r> {
        UnindexedEvaluator::with_decisions(request, FunctionDecisions::default())
    }

    /// Continues after a search in which functions have decided, so that none is called again.
    pub(crate) fn with_decisions(
        request: &'p MatchRequest<'r>,
        decided: FunctionDecisions,
    ) -> UnindexedEvaluator<'p, 'r> {
        UnindexedEvaluator { request, fields: FieldSlots::default(), values: Values::default(), decided }
    }

    /// Whether the function of a route, whose other conditions hold, lets it take the request.
    pub(crate) fn passes_filter(&mut self, spec: &RouteSpec) -> bool {
        self.decided.passes_filter(spec, self.request.vars)
    }

    /// The values of a field as the predicate sees them; `pattern` is the path of the place, for its parameters.
    pub(crate) fn values(&mut self, predicate: &Predicate, pattern: Option<&PathPattern>) -> Vec<Vec<u8>> {
        if let Field::Variable(Variable::PathParam(name)) = &predicate.field {
            let value = pattern.and_then(|pattern| pattern.param(name, self.request.path.bytes()));
            return value.map(|value| path::decode_but_slashes(value, &mut Vec::new()).to_vec()).into_iter().collect();
        }
        let known = self.fields.len();
        let slot = self.fields.slot(&predicate.field, predicate.lower);
        if known == 0 || self.fields.len() > known {
            // Values that were read before the slot existed may not have filled it.
            self.values.begin(&self.fields);
        }
        let first = self.values.first(slot, &self.fields, self.request);
        self.values.chain(first).map(<[u8]>::to_vec).collect()
    }

    /// Whether a predicate holds.
    pub(crate) fn holds(&mut self, predicate: &Predicate, pattern: Option<&PathPattern>) -> bool {
        let texts = self.values(predicate, pattern);
        if let Test::Regex(regex) = &predicate.test {
            let mut results = texts.iter().map(|text| regex.is_match_once(text));
            return if predicate.any { results.any(|is| is) } else { !texts.is_empty() && results.all(|is| is) };
        }
        let kind = predicate.field.kind();
        passes(texts.iter().filter_map(|text| ConditionValue::read(kind, text)), predicate)
    }
}
