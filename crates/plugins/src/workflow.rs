//! `workflow`: the first rule whose case matches decides the action for a request.
//!
//! An action is another plugin's configuration, compiled as that plugin with an identity of its own, so that two limits
//! of one workflow count separately.

use crate::limit_conn::LimitConn;
use crate::limit_count::LimitCount;
use crate::rules::first;
use std::sync::Arc;
use stillgate_plugin_api::{Answer, Compile, Define, Filter, Flow, Identity, Phase, Phases, Plugin, Request};
use stillgate_route::Variable;
use stillgate_route::vars::Expr;
use stillgate_schema::kind::{NonEmptyList, list};
use stillgate_schema::{
    At, BodyVars, Definitions, Fault, Json, Kind, LocatedKind, Node, Path, Sink, Value, int, map, object, read,
};

object! {
    /// Runs the action of the first rule that matches.
    pub(crate) struct WorkflowKeys {
        /// The rules, in order.
        rules: Vec<WorkflowRuleKeys> = list(map()) => required;
    }
}

object! {
    /// A rule.
    pub(crate) struct WorkflowRuleKeys {
        /// Conditions as in `vars` of a route; without them the rule matches every request.
        case: At<Expr> = LocatedKind(NonEmptyList(BodyVars)) => optional;
        /// Pairs of an action's name and its configuration. The first one is run; the others have no effect.
        actions: At<Vec<ActionKeys>> = LocatedKind(list(ActionKind)) => required;
    }
}

object! {
    /// The answer of `return`.
    pub(crate) struct WorkflowReturnKeys {
        /// The status.
        code: u16 = int(200, 599) => required;
    }
}

/// An action as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ActionKeys {
    Return(u16),
    LimitCount(Box<<LimitCount as Define>::Keys>),
    LimitConn(Box<<LimitConn as Define>::Keys>),
}

/// The names of the actions.
const ACTIONS: [&str; 3] = ["return", LimitCount::NAME, LimitConn::NAME];

/// A list of an action's name and its configuration.
struct ActionKind;

impl Kind for ActionKind {
    type Out = ActionKeys;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<ActionKeys> {
        let (Value::List(items), known) = (&node.value, ACTIONS.join(" or ")) else { return bad(node, path, sink) };
        let [name, configuration] = &items[..] else { return bad(node, path, sink) };
        let Value::Scalar(name_of) = &name.value else { return bad(node, path, sink) };
        let within = path.index(1);
        match &*name_of.text {
            "return" => {
                let keys = read(&map::<WorkflowReturnKeys>(), configuration, &within, sink)?;
                Some(ActionKeys::Return(keys.code))
            }
            name if name == LimitCount::NAME => {
                let keys = read(&map::<<LimitCount as Define>::Keys>(), configuration, &within, sink)?;
                Some(ActionKeys::LimitCount(Box::new(keys)))
            }
            name if name == LimitConn::NAME => {
                let keys = read(&map::<<LimitConn as Define>::Keys>(), configuration, &within, sink)?;
                Some(ActionKeys::LimitConn(Box::new(keys)))
            }
            other => {
                let fault = Fault::new(format!("unsupported action: {other}")).hint(format!("write {known}"));
                sink.error(name.at, &path.index(0), fault);
                None
            }
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let action = |name: &str, keys: Json| serde_json::json!({"type": "array", "prefixItems": [{"const": name}, keys], "minItems": 2, "maxItems": 2});
        let keys = [
            action("return", definitions.object::<WorkflowReturnKeys>()),
            action(LimitCount::NAME, definitions.object::<<LimitCount as Define>::Keys>()),
            action(LimitConn::NAME, definitions.object::<<LimitConn as Define>::Keys>()),
        ];
        serde_json::json!({"title": "list of an action and its configuration", "anyOf": keys})
    }
}

fn bad<T>(node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
    stillgate_schema::report_expected("an action such as [return, {code: 403}]", node, path, sink);
    None
}

/// The plugin.
pub(crate) struct Workflow {
    rules: Box<[WorkflowRule]>,
}

struct WorkflowRule {
    case: Option<Filter>,
    /// `None`: the request continues.
    action: Option<WorkflowAction>,
}

enum WorkflowAction {
    Return(Answer),
    Limit(Box<dyn Plugin>),
}

impl Define for Workflow {
    type Keys = WorkflowKeys;
    const NAME: &'static str = "workflow";
    const PRIORITY: i32 = 1006;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: WorkflowKeys, cx: &mut Compile<'_>) -> Option<Workflow> {
        let list = cx.path.key("rules");
        let mut rules = Vec::with_capacity(keys.rules.len());
        for (index, rule) in keys.rules.into_iter().enumerate() {
            let path = list.index(index);
            let case = match rule.case {
                None => None,
                Some(At { at, value }) => match Filter::new(value) {
                    Ok(filter) => Some(filter),
                    Err(error) => {
                        cx.sink.error(at, &path.key("case"), Fault::new(error.to_string()));
                        return None;
                    }
                },
            };
            let At { at, value: actions } = rule.actions;
            if actions.len() > 1 {
                let fault = Fault::new("only the first action of a rule is run").hint("write a rule for each");
                cx.sink.warning(at, &path.key("actions"), fault);
            }
            let path = path.key("actions");
            let mut compiled = Vec::with_capacity(actions.len());
            for (place, action) in actions.into_iter().enumerate() {
                let within = path.index(place);
                compiled.push(compile_action(action, index, &within.index(1), cx)?);
            }
            rules.push(WorkflowRule { case, action: compiled.into_iter().next() });
        }
        Some(Workflow { rules: rules.into() })
    }
}

/// With the line end that APISIX appends to its JSON.
const REJECTED: &[u8] = b"{\"error_msg\":\"rejected by workflow\"}\n";

fn compile_action(action: ActionKeys, rule: usize, path: &Path<'_>, cx: &mut Compile<'_>) -> Option<WorkflowAction> {
    let identity = Identity::of(&[&cx.identity.0.to_le_bytes(), &(rule as u64).to_le_bytes()]);
    let Compile { at, origin, upstreams, .. } = *cx;
    let mut cx = Compile { path, at, origin, identity, upstreams, sink: cx.sink };
    Some(match action {
        ActionKeys::Return(status) => WorkflowAction::Return(Answer::shared(status, Arc::from(REJECTED))),
        ActionKeys::LimitCount(keys) => WorkflowAction::Limit(Box::new(LimitCount::compile(*keys, &mut cx)?)),
        ActionKeys::LimitConn(keys) => WorkflowAction::Limit(Box::new(LimitConn::compile(*keys, &mut cx)?)),
    })
}

impl Plugin for Workflow {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let applies = |rule: &WorkflowRule| match &rule.case {
            None => Ok(true),
            Some(case) => case.is_true(&request.facts, request),
        };
        let found = match first(&self.rules, applies) {
            Ok(found) => found,
            Err(_) => return Flow::Answer(Answer::page(400)),
        };
        match found.and_then(|(_, rule)| rule.action.as_ref()) {
            None => Flow::Continue,
            Some(WorkflowAction::Return(answer)) => Flow::Answer(answer.clone()),
            Some(WorkflowAction::Limit(limit)) => limit.access(request),
        }
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.rules.iter().filter_map(|rule| rule.case.as_ref()).for_each(|case| case.each_variable(visit));
        self.limits().for_each(|limit| limit.each_variable(visit));
    }

    fn reads_consumer(&self) -> bool {
        self.limits().any(Plugin::reads_consumer)
    }

    fn needs_limits(&self) -> bool {
        self.limits().any(Plugin::needs_limits)
    }
}

impl Workflow {
    fn limits(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.rules.iter().filter_map(|rule| match &rule.action {
            Some(WorkflowAction::Limit(limit)) => Some(&**limit),
            _ => None,
        })
    }
}
