//! Captures of the found route's path and regexes, computed only when needed.

use crate::condition::Test;
use crate::match_request::MatchRequest;
use crate::matcher::{Match, Matcher};
use crate::plain::Plain;
use crate::{Expression, RouteMatch};

impl Matcher {
    /// The value of `uri_param_NAME`: for a URI route, the part of the path that `:NAME` or `*NAME` matches; for an
    /// expression, the named group of its regexes; if several have it, the last that matched.
    pub fn param<'a>(
        &'a self,
        found: Match,
        request: &MatchRequest<'a>,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        match &self.specs[found.route].takes {
            RouteMatch::Uri(uri) => uri.paths[found.path].param(name, request.path.bytes()),
            RouteMatch::Expression(expression) => group(expression, request, name, buffer),
        }
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
    let mut plain = Plain::new(request);
    let mut is_found = false;
    expression.condition().holds(&mut |predicate| {
        let Test::Regex(pattern) = &predicate.test else { return plain.holds(predicate, None) };
        // Like the reference: value after value, up to the one that decides; a field without values does not hold.
        let mut holds = false;
        for value in plain.values(predicate, None) {
            holds = pattern.captures(&value, &mut |_, group, text| {
                if group == Some(name) {
                    is_found = true;
                    out.clear();
                    out.extend_from_slice(text);
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
