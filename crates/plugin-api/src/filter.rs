//! Conditions in the language of `vars`, on a request with its matched route: `_meta.filter`, and `vars` of plugins.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use stillgate_route::lint::{FindingKind, lint};
use stillgate_route::vars::Expr;
use stillgate_route::{
    CompileError, Lookup, MatchRequest, Matcher, MethodSet, NormalPath, PathError, PathPattern, RouteMatch, RouteSpec,
    Scratch, Unread, UriRoute, Variable, VarsVerdict, condition::Field,
};

use crate::facts::Facts;

/// A compiled condition. It is a matcher of one route that matches every path, so that a condition means the same
/// everywhere.
pub struct Filter(Matcher);

thread_local! {
    /// Workers are threads: each has one, whatever the number of filters.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Filter {
    /// Compiles a condition.
    pub fn new(condition: Expr) -> Result<Filter, CompileError> {
        let path = PathPattern::parse("/*").expect("a path that takes everything");
        let uri = UriRoute {
            hosts: Vec::new(),
            paths: vec![path],
            methods: MethodSet::default(),
            remote_addrs: Vec::new(),
            vars: Some(condition),
            function: None,
            unread: Unread::default(),
        };
        let spec = RouteSpec { id: "filter".into(), priority: 0, takes: RouteMatch::Uri(uri) };
        Matcher::compile(vec![Arc::new(spec)]).map(Filter).map_err(|mut errors| errors.swap_remove(0))
    }

    /// Whether the condition holds. `vars` resolves variables for the request of `facts`. If it cannot be evaluated (a
    /// query with too many arguments) it counts as holding, as in APISIX: a plugin that guards is not skipped by a
    /// broken request.
    pub fn holds(&self, facts: &Facts<'_>, vars: &dyn Lookup) -> bool {
        self.is_true(facts, vars).unwrap_or(true)
    }

    /// Whether it holds: for rules that select an action.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be evaluated: then neither answer is the safe one, and the request is refused. This is so
    /// where the answer depends on whether `%2F` in the path is a slash.
    pub fn is_true(&self, facts: &Facts<'_>, vars: &dyn Lookup) -> Result<bool, PathError> {
        let path = facts.path.unwrap_or(NormalPath::ROOT);
        let request = MatchRequest { method: facts.request.method, host: facts.host, path, client: facts.client, vars };
        SCRATCH.with_borrow_mut(|scratch| self.0.find(&request, scratch).map(|found| found.is_some()))
    }

    /// Calls `visit` with the variables that it uses.
    pub fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        for spec in self.0.specs().iter() {
            let RouteMatch::Uri(UriRoute { vars: Some(condition), .. }) = &spec.takes else { continue };
            condition.condition().each_predicate(&mut |predicate| {
                if let Field::Variable(variable) = &predicate.field {
                    visit(variable);
                }
            });
        }
    }

    /// Evaluates it for a hypothetical request, some parts of which may be unknown.
    pub fn explain(&self, request: &MatchRequest<'_>) -> VarsVerdict {
        self.0.explain_vars(0, request)
    }

    /// Whether no request can satisfy it.
    pub fn never_holds(&self) -> bool {
        let specs: Vec<Arc<RouteSpec>> = self.0.specs().iter().cloned().collect();
        lint(&specs).findings.iter().any(|finding| matches!(finding.kind, FindingKind::NeverMatches { .. }))
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
    }
}
