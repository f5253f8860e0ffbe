//! Evaluates the `vars` of a route for a request whose parts are not all known, for example its response or its
//! consumer.
//!
//! The search treats unknown values as absent. Here they are kept apart: `vars` hold, do not hold, or are undecided
//! yet.

use super::reason::{PredicateValue, Why};
use crate::condition::Predicate;
use crate::fields::variable_of;
use crate::plain::Plain;
use crate::{MatchRequest, Matcher};

/// The value of a route's `vars`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VarsVerdict {
    /// `None` if it depends on unknown values.
    pub holds: Option<bool>,
    /// Predicates that decide it, no more than a few: those that do not hold, or those that read unknown values.
    pub predicates: Vec<PredicateValue>,
}

impl Matcher {
    /// The value of the `vars` of the route at this position; a route without `vars` holds.
    pub fn explain_vars(&self, route: usize, request: &MatchRequest<'_>) -> VarsVerdict {
        let spec = &self.specs[route];
        let Some(uri) = spec.uri() else { return VarsVerdict { holds: Some(true), predicates: Vec::new() } };
        let Some(vars) = &uri.vars else { return VarsVerdict { holds: Some(true), predicates: Vec::new() } };
        let pattern = uri.paths.first();
        let mut plain = Plain::new(request);
        let is_known = |predicate: &Predicate| {
            variable_of(&predicate.field).is_none_or(|variable| request.vars.is_known(variable))
        };
        let holds =
            vars.condition().known(&mut |predicate| is_known(predicate).then(|| plain.holds(predicate, pattern)));
        let predicates = match holds {
            Some(true) => Vec::new(),
            Some(false) => {
                let reason = Why::new(&mut plain, request).why_not(spec, 0);
                let predicates = reason.map_or_else(Vec::new, |reason| reason.predicates);
                predicates.into_iter().filter(|predicates| predicates.is_known).collect()
            }
            None => {
                let mut why = Why::new(&mut plain, request);
                vars.condition().each_predicate(&mut |predicate| {
                    if !is_known(predicate) && why.predicates.len() < super::reason::PREDICATES_SHOWN_MAX {
                        why.explain_predicate(predicate, false, pattern);
                    }
                });
                why.predicates
            }
        };
        VarsVerdict { holds, predicates }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vars::Expr;
    use crate::{
        Lookup, Method, MethodSet, NormalPath, PathPattern, RouteMatch, RouteSpec, Unread, UriRoute, Variable,
    };
    use std::sync::Arc;

    /// `http_a` is `1`, the status is unknown, and all else is absent.
    struct Vars;

    impl Lookup for Vars {
        fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            (*variable == Variable::parse("http_a").unwrap()).then_some(b"1")
        }

        fn is_known(&self, variable: &Variable) -> bool {
            *variable != Variable::Status
        }

        fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
            visit(b"a", b"1");
        }
    }

    #[test]
    fn what_is_not_known_decides_only_where_nothing_else_does() {
        let check = |vars: &str, expected: Option<bool>, predicates: &[&str]| {
            let vars = Some(Expr::parse_late(&serde_json::from_str(vars).unwrap()).unwrap());
            let uri = UriRoute {
                hosts: Vec::new(),
                paths: vec![PathPattern::parse("/*").unwrap()],
                methods: MethodSet::default(),
                remote_addrs: Vec::new(),
                vars,
                function: None,
                unread: Unread::default(),
            };
            let spec = RouteSpec { id: "r".into(), priority: 0, takes: RouteMatch::Uri(uri) };
            let matcher = Matcher::compile(vec![Arc::new(spec)]).unwrap();
            let path = NormalPath::ROOT;
            let client = [127, 0, 0, 1].into();
            let request = MatchRequest { method: Method::Get, host: b"", path, client, vars: &Vars };
            let known = matcher.explain_vars(0, &request);
            let fields: Vec<&str> = known.predicates.iter().map(|predicates| predicates.field.as_str()).collect();
            assert_eq!((known.holds, &fields[..]), (expected, predicates));
        };
        check(r#"[["http_a", "==", "1"]]"#, Some(true), &[]);
        check(r#"[["http_a", "==", "2"]]"#, Some(false), &["http_a"]);
        check(r#"[["status", "==", "200"]]"#, None, &["status"]);
        check(r#"[["status", "~=", "200"]]"#, None, &["status"]);
        check(r#"[["http_a", "==", "1"], ["status", "==", "200"]]"#, None, &["status"]);
        check(r#"[["status", "==", "200"], ["http_a", "==", "2"]]"#, Some(false), &[]);
        check(r#"["OR", ["status", "==", "200"], ["http_a", "==", "1"]]"#, Some(true), &[]);
        check(r#"["OR", ["status", "==", "200"], ["http_a", "==", "2"]]"#, None, &["status"]);
    }
}
