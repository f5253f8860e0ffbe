//! `_meta`: the keys that every plugin has.
//!
//! Its `filter`, like `vars` of plugins, is a condition in the language of `vars`, on a request with its matched route.

use crate::facts::Facts;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use stillgate_route::condition::Field;
use stillgate_route::lint::{FindingKind, lint};
use stillgate_route::vars::Expr;
use stillgate_route::{
    CompileError, InvalidParts, Lookup, MatchRequest, Matcher, MethodSet, NormalisedPath, PathError, PathPattern,
    RouteMatch, RouteSpec, Scratch, UriRoute, Variable, VarsVerdict,
};
use stillgate_schema::{
    At, BodyVars, Definitions, Fault, Flag, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, int, json_of, object,
    report_expected,
};

/// The parsed `_meta`.
#[derive(Debug, Default)]
pub struct Meta {
    /// The plugin is left out, and so is the configuration that it overrides.
    pub disable: bool,
    /// The plugin is left out because the operator ignores it: its configuration was not read.
    pub is_ignored: bool,
    /// Replaces the plugin's body when it answers with a status of 400 or more.
    pub error_response: Option<Arc<[u8]>>,
    /// The priority in a chain, instead of the plugin's own.
    pub priority: Option<i32>,
    /// The plugin runs if this holds, or cannot be evaluated.
    pub filter: Option<Filter>,
    /// A text in Lua whose function runs before each phase.
    pub pre_function: Option<At<String>>,
}

object! {
    /// The keys of `_meta`, for every plugin.
    pub struct MetaKeys {
        /// The plugin does not run, nor does one of the same name whose place it takes.
        disable: bool = Flag => default(false);
        /// The body in place of the plugin's own where it answers with 400 or above: a text, or an object that is sent as
        /// JSON.
        error_response: Arc<[u8]> = ErrorResponse => optional;
        /// The place in the chain in place of the plugin's own: higher first.
        priority: i32 = int(i32::MIN as i64, i32::MAX as i64) => optional;
        /// Conditions as in `vars` of a route: the plugin runs where they hold.
        filter: At<Expr> = LocatedKind(BodyVars) => optional;
        /// A text in Lua that returns a function, which is called with `conf` and `ctx` before each phase of the plugin.
        pre_function: At<String> = LocatedKind(TEXT) => optional;
        closed: true;
    }
}

/// A text or an object.
struct ErrorResponse;

impl Kind for ErrorResponse {
    type Out = Arc<[u8]>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<[u8]>> {
        match json_of(node, path, sink) {
            Some(Json::String(text)) => Some(text.into_bytes().into()),
            // APISIX ends its JSON answers like this.
            Some(object @ Json::Object(_)) => Some(format!("{object}\n").into_bytes().into()),
            _ => {
                report_expected("a text or an object", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": ["string", "object"]})
    }
}

impl MetaKeys {
    /// Parses the values of the keys.
    pub fn into_meta(self, path: &Path<'_>, sink: &mut Sink) -> Option<Meta> {
        let filter = match self.filter {
            None => None,
            Some(At { at, value }) => match Filter::new(value) {
                Ok(filter) => Some(filter),
                Err(error) => {
                    sink.error(at, &path.key("filter"), Fault::new(error.to_string()));
                    return None;
                }
            },
        };
        let MetaKeys { disable, error_response, priority, pre_function, .. } = self;
        Some(Meta { disable, is_ignored: false, error_response, priority, filter, pre_function })
    }
}

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
            invalid: InvalidParts::default(),
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
        let path = facts.path.unwrap_or(NormalisedPath::ROOT);
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
