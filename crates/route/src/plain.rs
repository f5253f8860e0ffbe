//! Predicates evaluated one by one, without an index: for explanations and captures.
//!
//! It reads values as the matcher does and uses the same tests; it is slow and may allocate. Regexes that it had to
//! compile are not kept: for a hundred thousand routes they would take more memory than the routes.

use crate::condition::{ConditionValue, Field, Predicate, Test};
use crate::fields::FieldSlots;
use crate::function::FunctionDecisions;
use crate::layer::passes;
use crate::match_request::MatchRequest;
use crate::values::Values;
use crate::{PathPattern, RouteSpec, Variable};

/// The values that were read of one request.
pub(crate) struct Plain<'p, 'r> {
    request: &'p MatchRequest<'r>,
    fields: FieldSlots,
    values: Values,
    decided: FunctionDecisions,
}

impl<'p, 'r> Plain<'p, 'r> {
    pub(crate) fn new(request: &'p MatchRequest<'r>) -> Plain<'p, 'r> {
        Plain::after(request, FunctionDecisions::default())
    }

    /// Continues after a search in which functions have decided, so that none is called again.
    pub(crate) fn after(request: &'p MatchRequest<'r>, decided: FunctionDecisions) -> Plain<'p, 'r> {
        Plain { request, fields: FieldSlots::default(), values: Values::default(), decided }
    }

    /// Whether the function of a route, whose other conditions hold, lets it take the request.
    pub(crate) fn admits(&mut self, spec: &RouteSpec) -> bool {
        self.decided.admits(spec, self.request.vars)
    }

    /// The values of a field as the predicate sees them; `pattern` is the path of the place, for its parameters.
    pub(crate) fn values(&mut self, predicate: &Predicate, pattern: Option<&PathPattern>) -> Vec<Vec<u8>> {
        if let Field::Variable(Variable::PathParam(name)) = &predicate.field {
            let value = pattern.and_then(|pattern| pattern.param(name, self.request.path.bytes()));
            return value.map(<[u8]>::to_vec).into_iter().collect();
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
