//! `traffic-label`: sets header fields of the request by rules, each of which may distribute its requests by weights.

use crate::header_edits::{HeaderEdits, Headers};
use crate::rules::first;
use crate::variable_texts::Groups;
use stillgate_plugin_api::{Answer, Compile, Define, Filter, Flow, PerWorker, Phase, Phases, Plugin, Request};
use stillgate_route::Variable;
use stillgate_route::vars::Expr;
use stillgate_schema::kind::{NonEmptyList, some};
use stillgate_schema::{At, BodyVars, Fault, LocatedKind, int, map, object};

object! {
    /// Sets header fields of requests by rules.
    pub(crate) struct TrafficLabelKeys {
        /// The rules. The first that matches is applied.
        rules: Vec<TrafficLabelRuleKeys> = some(map()) => required;
    }
}

object! {
    /// A rule.
    pub(crate) struct TrafficLabelRuleKeys {
        /// Conditions as in `vars` of a route; without them the rule matches every request.
        r#match: At<Expr> = LocatedKind(NonEmptyList(BodyVars)) => optional;
        /// The actions; one of them is applied to each request, in proportion to their weights.
        actions: Vec<TrafficLabelActionKeys> = some(map()) => required;
    }
}

object! {
    /// An action.
    pub(crate) struct TrafficLabelActionKeys {
        /// Header fields for the node, which replace those of the same names, with variables.
        set_headers: HeaderEdits = Headers::OfRequest => default(HeaderEdits::default());
        /// Its share of the rule's requests.
        weight: u32 = int(1, 1_000_000) => default(1);
    }
}

/// The plugin.
pub(crate) struct TrafficLabel {
    rules: Box<[LabelRule]>,
    own: PerWorker<Vec<Vec<i64>>>,
}

struct LabelRule {
    condition: Option<Filter>,
    actions: Box<[LabelAction]>,
}

struct LabelAction {
    fields: HeaderEdits,
    weight: i64,
}

impl Define for TrafficLabel {
    type Keys = TrafficLabelKeys;
    const NAME: &'static str = "traffic-label";
    const PRIORITY: i32 = 967;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: TrafficLabelKeys, cx: &mut Compile<'_>) -> Option<TrafficLabel> {
        let list = cx.path.key("rules");
        let mut rules = Vec::with_capacity(keys.rules.len());
        for (index, rule) in keys.rules.into_iter().enumerate() {
            let condition = match rule.r#match {
                None => None,
                Some(At { at, value }) => match Filter::new(value) {
                    Ok(filter) => Some(filter),
                    Err(error) => {
                        cx.sink.error(at, &list.index(index).key("match"), Fault::new(error.to_string()));
                        return None;
                    }
                },
            };
            let action =
                |keys: TrafficLabelActionKeys| LabelAction { fields: keys.set_headers, weight: keys.weight.into() };
            rules.push(LabelRule { condition, actions: rule.actions.into_iter().map(action).collect() });
        }
        Some(TrafficLabel { rules: rules.into(), own: PerWorker::new() })
    }
}

impl Plugin for TrafficLabel {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let applies = |rule: &LabelRule| match &rule.condition {
            None => Ok(true),
            Some(condition) => condition.is_true(&request.facts, request),
        };
        let (index, rule) = match first(&self.rules, applies) {
            Ok(Some(found)) => found,
            Ok(None) => return Flow::Continue,
            Err(_) => return Flow::Answer(Answer::page(400)),
        };
        let action = match &rule.actions[..] {
            [only] => only,
            actions => {
                let credits = || self.rules.iter().map(|rule| vec![0; rule.actions.len()]).collect::<Vec<_>>();
                &actions[self.own.with(credits, |credits| next(actions, &mut credits[index]))]
            }
        };
        match action.fields.apply(request, request.worker, &Groups::NONE) {
            Ok(()) => Flow::Continue,
            // A value from the request is not allowed in a head: the request is not forwarded.
            Err(_) => Flow::Answer(Answer::page(500)),
        }
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        for rule in &self.rules {
            rule.condition.iter().for_each(|condition| condition.each_variable(visit));
            rule.actions.iter().for_each(|action| action.fields.each_variable(visit));
        }
    }
}

/// Smooth weighted round-robin: each worker gives every action its share, and interleaves the actions evenly.
fn next(actions: &[LabelAction], credits: &mut [i64]) -> usize {
    let mut best = 0;
    let mut sum = 0;
    for (index, action) in actions.iter().enumerate() {
        credits[index] += action.weight;
        sum += action.weight;
        if credits[index] > credits[best] {
            best = index;
        }
    }
    credits[best] -= sum;
    best
}
