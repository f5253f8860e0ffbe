//! `traffic-split`: the first rule that matches chooses the upstream of a request, by weights.

use crate::rules::{any_is_true, first};
use std::sync::Arc;
use stillgate_plugin_api::plugin::OwnUpstream;
use stillgate_plugin_api::{
    Answer, Compile, Define, Filter, Flow, PerWorker, Phase, Phases, Plugin, PluginLevel, Request,
};
use stillgate_route::Variable;
use stillgate_route::vars::Expr;
use stillgate_schema::kind::list;
use stillgate_schema::{
    At, BodyVars, Definitions, Fault, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Value, int, map, object,
    report_expected,
};

/// Most rules of one configuration: a request may have to evaluate each.
const RULES_MAX: usize = 1000;
/// Most upstreams of a rule; APISIX's limit.
const UPSTREAMS_MAX: usize = 20;
/// The greatest weight.
const WEIGHT_MAX: i64 = 1_000_000_000;

object! {
    /// Chooses the upstream of requests by rules and weights.
    pub(crate) struct TrafficSplitKeys {
        /// The rules, at most 1000. The first that matches is applied.
        rules: At<Vec<TrafficSplitRuleKeys>> = LocatedKind(list(map())) => optional;
    }
}

object! {
    /// A rule.
    pub(crate) struct TrafficSplitRuleKeys {
        /// When the rule matches: if one of these does. Without them it matches every request.
        r#match: Vec<TrafficSplitMatchKeys> = list(map::<TrafficSplitMatchKeys>()) => default(Vec::new());
        /// The upstreams of its requests, 1 to 20; the default is the upstream of the route.
        weighted_upstreams: At<Vec<WeightedUpstreamKeys>> = LocatedKind(list(map())) => optional;
    }
}

object! {
    /// Conditions that must hold together.
    pub(crate) struct TrafficSplitMatchKeys {
        /// Conditions as in `vars` of a route.
        vars: At<Expr> = LocatedKind(BodyVars) => required;
    }
}

object! {
    /// An upstream and its share. With neither `upstream_id` nor `upstream` it is that of the route.
    pub(crate) struct WeightedUpstreamKeys {
        /// The id of one of `upstreams`.
        upstream_id: At<String> = LocatedKind(TEXT.or_number()) => optional;
        /// An upstream written here, with the keys of any other. Its default timeouts are 15 s.
        upstream: At<Node> = LocatedKind(UpstreamKind) => optional;
        /// Its share of the rule's requests; 0: none, as long as another has one.
        weight: u32 = int(0, WEIGHT_MAX) => default(1);
    }
}

/// The type of an upstream written here. Plugins do not interpret its keys.
struct UpstreamKind;

impl Kind for UpstreamKind {
    type Out = Node;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Node> {
        if matches!(node.value, Value::Map(_)) {
            return Some(node.clone());
        }
        report_expected("an upstream such as {nodes: {\"127.0.0.1:8080\": 1}}", node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"$ref": "#/$defs/Upstream"})
    }
}

/// The plugin.
pub(crate) struct TrafficSplit {
    rules: Box<[SplitRule]>,
    own: PerWorker<Vec<Vec<i64>>>,
    /// The upstreams that are written in it.
    written: Box<[OwnUpstream]>,
}

struct SplitRule {
    /// Conditions, of which one must hold; empty: every request matches.
    cases: Box<[Filter]>,
    shares: Box<[Share]>,
}

struct Share {
    /// The key of the upstream; `None`: that of the route.
    upstream: Option<Arc<str>>,
    weight: i64,
}

impl Define for TrafficSplit {
    type Keys = TrafficSplitKeys;
    const NAME: &'static str = "traffic-split";
    const PRIORITY: i32 = 966;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: TrafficSplitKeys, cx: &mut Compile<'_>) -> Option<TrafficSplit> {
        let list = cx.path.key("rules");
        let At { at, value: keys } = keys.rules.unwrap_or(At { at: cx.at, value: Vec::new() });
        if keys.len() > RULES_MAX {
            let fault = Fault::new(format!("{} rules are too many; at most {RULES_MAX} can be here", keys.len()));
            cx.sink.error(at, &list, fault.hint("put rules together, or use several routes"));
            return None;
        }
        let (mut rules, mut written) = (Vec::with_capacity(keys.len()), Vec::new());
        for (index, rule) in keys.into_iter().enumerate() {
            let path = list.index(index);
            let cases = cases(rule.r#match, &path.key("match"), cx.sink)?;
            let shares = match rule.weighted_upstreams {
                None => vec![Share { upstream: None, weight: 1 }],
                Some(keys) => shares(keys, index, &path.key("weighted_upstreams"), cx, &mut written)?,
            };
            rules.push(SplitRule { cases, shares: shares.into() });
        }
        Some(TrafficSplit { rules: rules.into(), own: PerWorker::new(), written: written.into() })
    }
}

fn cases(keys: Vec<TrafficSplitMatchKeys>, path: &Path<'_>, sink: &mut Sink) -> Option<Box<[Filter]>> {
    let mut cases = Vec::with_capacity(keys.len());
    for (index, keys) in keys.into_iter().enumerate() {
        let At { at, value } = keys.vars;
        match Filter::new(value) {
            Ok(filter) => cases.push(filter),
            Err(error) => {
                sink.error(at, &path.index(index).key("vars"), Fault::new(error.to_string()));
                return None;
            }
        }
    }
    Some(cases.into())
}

/// The shares of a rule; the upstreams that are written in it are appended to `written`.
fn shares(
    At { at, value: keys }: At<Vec<WeightedUpstreamKeys>>,
    rule: usize,
    path: &Path<'_>,
    cx: &mut Compile<'_>,
    written: &mut Vec<OwnUpstream>,
) -> Option<Vec<Share>> {
    if !(1..=UPSTREAMS_MAX).contains(&keys.len()) {
        let fault = Fault::new(format!("a rule has 1 to {UPSTREAMS_MAX} upstreams, not {}", keys.len()));
        cx.sink.error(at, path, fault);
        return None;
    }
    let mut shares: Vec<Share> = Vec::with_capacity(keys.len());
    for (index, keys) in keys.into_iter().enumerate() {
        let path = path.index(index);
        let upstream = match (keys.upstream_id, keys.upstream) {
            (None, None) => None,
            (Some(id), inline) => {
                if let Some(inline) = inline {
                    let fault = Fault::new("has no effect beside upstream_id").hint("remove one of them");
                    cx.sink.warning(inline.at, &path.key("upstream"), fault);
                }
                Some(cx.upstreams.shared_key(&id, &path.key("upstream_id"), cx.sink)?)
            }
            (None, Some(inline)) => {
                let key = own_key(cx, rule, index);
                written.push(cx.upstreams.register_own(&key, &inline.value, &path.key("upstream"), cx.sink)?);
                Some(key)
            }
        };
        let weight = i64::from(keys.weight);
        // If an upstream is listed twice, the last weight counts, as in APISIX.
        match shares.iter_mut().find(|share| share.upstream == upstream) {
            Some(share) => share.weight = weight,
            None => shares.push(Share { upstream, weight }),
        }
    }
    // As in APISIX, they share evenly then.
    if shares.iter().all(|share| share.weight == 0) {
        shares.iter_mut().for_each(|share| share.weight = 1);
    }
    Some(shares)
}

/// The key of an upstream written here, unlike that of any other resource.
fn own_key(cx: &Compile<'_>, rule: usize, index: usize) -> Arc<str> {
    let list = match cx.origin.level {
        PluginLevel::GlobalRule => "global_rules",
        PluginLevel::Service => "services",
        PluginLevel::PluginConfig => "plugin_configs",
        PluginLevel::Route => "routes",
        PluginLevel::ConsumerGroup => "consumer_groups",
        PluginLevel::Consumer => "consumers",
        PluginLevel::Metadata => "plugin_metadata",
    };
    format!("{list}/{}/traffic-split/{rule}/{index}", cx.origin.id).into()
}

impl Plugin for TrafficSplit {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let applies = |rule: &SplitRule| match &rule.cases[..] {
            [] => Ok(true),
            cases => any_is_true(cases, request),
        };
        let (index, rule) = match first(&self.rules, applies) {
            Ok(Some(found)) => found,
            Ok(None) => return Flow::Continue,
            Err(_) => return Flow::Answer(Answer::page(400)),
        };
        let share = match &rule.shares[..] {
            [only] => only,
            shares => {
                let credits = || self.rules.iter().map(|rule| vec![0; rule.shares.len()]).collect::<Vec<_>>();
                &shares[self.own.with(credits, |credits| next(shares, &mut credits[index]))]
            }
        };
        request.settled.choose_upstream(share.upstream.as_deref());
        Flow::Continue
    }

    fn own_upstreams(&self) -> &[OwnUpstream] {
        &self.written
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.rules.iter().flat_map(|rule| &rule.cases).for_each(|case| case.each_variable(visit));
    }
}

/// Smooth weighted round-robin: each worker gives every upstream its share, and interleaves the upstreams evenly.
fn next(shares: &[Share], credits: &mut [i64]) -> usize {
    let (mut best, mut sum) = (None, 0);
    for (index, share) in shares.iter().enumerate().filter(|(_, share)| share.weight > 0) {
        credits[index] += share.weight;
        sum += share.weight;
        if best.is_none_or(|best: usize| credits[index] > credits[best]) {
            best = Some(index);
        }
    }
    let best = best.unwrap_or_default();
    credits[best] -= sum;
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(weights: &[i64], requests: usize) -> Vec<usize> {
        let shares: Vec<Share> = weights.iter().map(|weight| Share { upstream: None, weight: *weight }).collect();
        let (mut credits, mut counts) = (vec![0; shares.len()], vec![0; shares.len()]);
        (0..requests).for_each(|_| counts[next(&shares, &mut credits)] += 1);
        counts
    }

    #[test]
    fn each_upstream_gets_its_share_exactly() {
        assert_eq!(counts(&[1, 9], 1000), [100, 900]);
        assert_eq!(counts(&[3, 0, 2], 50), [30, 0, 20]);
        assert_eq!(counts(&[0, 0, 7], 5), [0, 0, 5]);
    }

    #[test]
    fn the_greatest_weights_do_not_overflow() {
        assert_eq!(counts(&[WEIGHT_MAX; UPSTREAMS_MAX], 10 * UPSTREAMS_MAX), [10; UPSTREAMS_MAX]);
    }
}
