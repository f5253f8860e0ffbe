//! Which route takes a request, with the lines of its file, its plugins and its upstream; as text and as JSON. Only this file
//! knows both formats, for the command and for the admin API.
//!
//! It names the request fields that routes read, by the names of variables: an explanation needs them, and a log that is
//! replayed must contain them.

use super::chain::ExplainedChain;
use super::request_head::{Buffers, RequestHead};
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use stillgate_admin::MASK;
use stillgate_config::secret_fields::{is_secret_field, masked_expression};
use stillgate_config::{Config, Host, Route, Target, Upstream};
use stillgate_plugin_api::Consumer;
use stillgate_proxy::Plan;
use stillgate_route::condition::{Condition, Field};
use stillgate_route::path::PathError;
use stillgate_route::{
    Candidate, Explanation, PredicateValue, Reason, RouteMatch, RoutePart, RouteSpec, RouteVerdict, Variable,
};

/// The outcome of a request.
pub struct ExplainedRequest<'a> {
    config: &'a Config,
    /// An error: a path that cannot be routed. The gateway answers such a request with 400.
    explained: Result<(Explanation, ExplainedChain), PathError>,
    /// Why the answer may be incomplete.
    notes: Vec<String>,
}

/// The longest expression in the JSON form; the file has the rest.
const EXPRESSION_CHARS_MAX: usize = 2000;

impl<'a> ExplainedRequest<'a> {
    /// Queries the plan, which was built from `config`. `route`: the id of a route to describe in any case. `consumer`: the
    /// consumer that makes the request.
    pub fn new(
        plan: &Plan,
        config: &'a Config,
        head: &RequestHead,
        route: Option<&str>,
        consumer: Option<&Consumer>,
    ) -> ExplainedRequest<'a> {
        let explain = |request: &stillgate_route::MatchRequest<'_>| {
            let explanation = plan.matcher().explain(request, route)?;
            let chosen = explanation.chosen.as_ref().map(|chosen| &*config.routes[chosen.route]);
            let chain = ExplainedChain::new(config, (chosen, &explanation.params), consumer, request);
            Ok((explanation, chain))
        };
        let mut notes = notes(config, head);
        let mut explained = head.with_request(&mut Buffers::default(), explain).and_then(|explained| explained);
        if let Ok((_, chain)) = &mut explained {
            notes.append(&mut chain.notes);
        }
        ExplainedRequest { config, explained, notes }
    }

    /// The line in the file; `None`: the route comes from a store.
    fn line_of(&self, candidate: &Candidate) -> Option<u32> {
        Some(self.config.route_lines[candidate.route]).filter(|line| *line > 0)
    }

    /// The upstream of its requests, or why there is none.
    fn upstream_of(&self, candidate: &Candidate) -> Result<&Upstream, &str> {
        upstream(self.config, &self.config.routes[candidate.route].target)
    }

    /// For people.
    pub fn text(&self) -> String {
        let (explanation, chain) = match &self.explained {
            Ok(explained) => explained,
            Err(error) => return format!("no route is sought; the request is answered 400: {error}\n"),
        };
        let notes = self.notes.iter().map(|note| format!("note: {note}\n"));
        let value = |candidate: &Candidate| {
            let line = self.line_of(candidate).map_or(String::new(), |line| format!("line {line}; "));
            format!("{:?} ({line}{})", candidate.id, candidate.part)
        };
        let mut out = String::new();
        match &explanation.chosen {
            Some(chosen) => {
                let upstream = self.upstream_of(chosen);
                out.push_str(&format!("route {} takes the request\n", value(chosen)));
                for (name, value) in &explanation.params {
                    out.push_str(&format!("  {name} = {value:?}\n"));
                }
                out.push_str(&match upstream {
                    _ if explanation.has_failed_function => "its filter_func fails, so it is answered 500\n".to_owned(),
                    Ok(upstream) => {
                        let split = if chain.may_split() { "; traffic-split may send it elsewhere" } else { "" };
                        format!("it goes to upstream {:?}: {}{split}\n", upstream.key, nodes(upstream).join(", "))
                    }
                    Err(reason) => format!("it is answered 503: {reason}\n"),
                });
            }
            None => out.push_str("no route takes the request; it is answered 404\n"),
        }
        out.push_str(&chain.text());
        if !explanation.ruled_out.is_empty() {
            out.push_str("better placed, but ruled out:\n");
        }
        for (candidate, reason) in &explanation.ruled_out {
            out.push_str(&format!("  {}: {reason}\n", value(candidate)));
        }
        if explanation.omitted > 0 {
            let omitted = explanation.omitted;
            out.push_str(&format!("  and {omitted} more, which failed by more; ask for one by its id\n"));
        }
        if !explanation.missed.is_empty() {
            out.push_str("same path, other hosts:\n");
        }
        for (candidate, reason) in &explanation.missed {
            out.push_str(&format!("  {}: {reason}\n", value(candidate)));
        }
        if explanation.missed_omitted > 0 {
            out.push_str(&format!("  and {} more\n", explanation.missed_omitted));
        }
        if let Some((id, verdict)) = &explanation.asked {
            out.push_str(&format!("route {id:?} {}\n", verdict_text(verdict)));
        }
        out.extend(notes);
        out
    }

    /// For programs. `sees_secrets`: whether the values in conditions are shown even if they may be secret.
    pub fn json(&self, sees_secrets: bool) -> Value {
        let (explanation, chain) = match &self.explained {
            Ok(explained) => explained,
            Err(error) => return json!({"status": 400, "reason": error.to_string()}),
        };
        let params: Map<String, Value> =
            explanation.params.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let (plugins, left_out) = chain.json();
        let status = match explanation.chosen {
            None => Some(404),
            Some(_) => explanation.has_failed_function.then_some(500),
        };
        let mut answer = json!({
            "status": status,
            "route": explanation.chosen.as_ref().map(|chosen| self.route_json(chosen, sees_secrets)),
            "params": params,
            "upstream": explanation.chosen.as_ref().map(|chosen| {
                upstream_of(self.config, &self.config.routes[chosen.route].target)
            }),
            "plugins": plugins,
            "plugins_left_out": left_out,
            "ruled_out": self.reasons_json(&explanation.ruled_out, sees_secrets),
            "omitted": explanation.omitted,
            "missed": self.reasons_json(&explanation.missed, sees_secrets),
            "missed_omitted": explanation.missed_omitted,
            "notes": self.notes,
            "asked": explanation.asked.as_ref().map(|(id, verdict)| {
                json!({
                    "id": id,
                    "verdict": verdict_text(verdict),
                    "predicates": match verdict {
                        RouteVerdict::RuledOut(reason) => predicates_json(reason),
                        _ => Vec::new(),
                    },
                })
            }),
        });
        if !sees_secrets {
            hide_conditions(&mut answer);
        }
        answer
    }

    fn reasons_json(&self, candidates: &[(Candidate, Reason)], sees_secrets: bool) -> Vec<Value> {
        let value = |(candidate, reason): &(Candidate, Reason)| {
            json!({
                "route": self.route_json(candidate, sees_secrets),
                "reason": reason.text,
                "predicates": predicates_json(reason),
            })
        };
        candidates.iter().map(value).collect()
    }

    fn route_json(&self, candidate: &Candidate, sees_secrets: bool) -> Value {
        let mut route = json!({"id": candidate.id, "line": self.line_of(candidate)});
        match &candidate.part {
            RoutePart::Expression { text } => {
                let masked = match &self.config.routes[candidate.route].spec.takes {
                    RouteMatch::Expression(expression) if !sees_secrets => Some(masked_expression(expression, MASK)),
                    _ => None,
                };
                route["expression"] = json!(shortened(masked.as_ref().unwrap_or(text)));
            }
            RoutePart::Uri { host, path, .. } => {
                route["host"] = json!(host);
                route["path"] = json!(path);
            }
        }
        route
    }
}

/// For programs: the upstream of a target, or why there is none.
pub fn upstream_of(config: &Config, target: &Target) -> Value {
    match upstream(config, target) {
        Ok(upstream) => json!({"id": upstream.key, "nodes": nodes(upstream)}),
        Err(reason) => json!({"unavailable": reason}),
    }
}

fn upstream<'a>(config: &'a Config, target: &'a Target) -> Result<&'a Upstream, &'a str> {
    match target {
        Target::Own(upstream) => Ok(upstream),
        Target::Nowhere => Err("the route has no upstream: requests that no plugin answers get 503"),
        Target::Unavailable(reason) => Err(reason),
        Target::Shared(key) => {
            let found = config.upstreams.iter().find(|upstream| *upstream.key == **key);
            found.map(|upstream| &**upstream).ok_or("its upstream is gone")
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(EXPRESSION_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Values of the request that routes read but that are unknown, or that differ for this gateway.
fn notes(config: &Config, head: &RequestHead) -> Vec<String> {
    let mut notes = Vec::new();
    for variable in head.not_known() {
        let reads = |route: &&Arc<Route>| {
            let mut reads = false;
            each_field(&route.spec, &mut |field| reads |= variable_of(field).as_ref() == Some(&variable));
            reads
        };
        let (field, whose) = match variable {
            Variable::RemotePort => ("net.src.port", "client"),
            Variable::ServerAddr => ("net.dst.ip", "server"),
            _ => ("net.dst.port", "server"),
        };
        if let Some(routes) = counted(config.routes.iter().filter(reads).count(), "route") {
            let read = if routes.starts_with("1 ") { "reads" } else { "read" };
            notes.push(format!(
                "{routes} {read} {field}, which is not given, so the answer may be wrong; give the {whose} as IP:PORT"
            ));
        }
    }
    notes
}

/// Line and column count from 1 within the expression, and are null outside of expressions. Without a value, the field is absent or
/// unknown.
fn predicates_json(reason: &Reason) -> Vec<Value> {
    let value = |value: &PredicateValue| {
        json!({
            "line": value.at.map(|(line, _)| line),
            "column": value.at.map(|(_, column)| column),
            "predicate": value.predicate,
            "field": value.field,
            "values": value.values,
            "known": value.is_known,
            "omitted": value.omitted,
            "holds": value.holds,
        })
    };
    reason.predicates.iter().map(value).collect()
}

/// Masks conditions on possible secrets in the explanation of each route.
fn hide_conditions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(hide_conditions),
        Value::Object(fields) => {
            let predicates = fields.get_mut("predicates").and_then(Value::as_array_mut).into_iter().flatten();
            let is_secret = |value: &&mut Value| value["field"].as_str().is_some_and(is_secret_field);
            let hidden: Vec<Value> = predicates.filter(is_secret).map(|value| value["predicate"].take()).collect();
            for name in ["reason", "verdict"] {
                if let Some(Value::String(text)) = fields.get_mut(name) {
                    let hide = |text: String, condition: &str| text.replace(condition, MASK);
                    *text = hidden.iter().filter_map(Value::as_str).fold(std::mem::take(text), hide);
                }
            }
            fields.values_mut().for_each(hide_conditions);
        }
        _ => {}
    }
}

fn verdict_text(verdict: &RouteVerdict) -> String {
    match verdict {
        RouteVerdict::Unknown => "does not exist, or has `status: 0`".to_owned(),
        RouteVerdict::Chosen => "takes the request".to_owned(),
        RouteVerdict::Host(why) | RouteVerdict::Path(why) => format!("cannot take it: {why}"),
        RouteVerdict::RuledOut(reason) => format!("cannot take it: {reason}"),
        RouteVerdict::Later(why) => format!("could take it, but comes later: {why}"),
    }
}

/// The nodes that can be chosen, as `host:port`.
fn nodes(upstream: &Upstream) -> Vec<String> {
    let usable = upstream.nodes.iter().filter(|node| node.weight > 0);
    let named: Vec<String> = usable
        .map(|node| match &node.host {
            Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]:{}", node.port),
            Host::Ip(IpAddr::V4(ip)) => format!("{ip}:{}", node.port),
            Host::Name(name) => format!("{name}:{}", node.port),
        })
        .collect();
    match named.is_empty() {
        true => vec!["no node; it is answered 503".to_owned()],
        false => named,
    }
}

/// A count in words; `None` if it is zero.
pub fn counted(count: usize, what: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        many => Some(format!("{many} {what}s")),
    }
}

/// Calls `visit` with every field that a route reads, possibly more than once.
pub(crate) fn each_field(spec: &RouteSpec, visit: &mut dyn FnMut(&Field)) {
    let mut of_condition = |condition: &Condition| condition.each_predicate(&mut |predicate| visit(&predicate.field));
    match &spec.takes {
        RouteMatch::Expression(expression) => of_condition(expression.condition()),
        RouteMatch::Uri(uri) => {
            uri.vars.iter().for_each(|vars| of_condition(vars.condition()));
            if !uri.hosts.is_empty() {
                visit(&Field::Host);
            }
            if !uri.methods.is_empty() {
                visit(&Field::Method);
            }
            if !uri.remote_addrs.is_empty() {
                visit(&Field::SourceIp);
            }
        }
    }
}

/// The variable that a field is, or is part of; `None` for the path, which every request has.
pub(crate) fn variable_of(field: &Field) -> Option<Variable> {
    Some(match field {
        Field::Path | Field::Segment(_) | Field::Segments(..) | Field::SegmentCount => return None,
        Field::Method => Variable::RequestMethod,
        Field::Host => Variable::Host,
        Field::Header(name) => Variable::Header(name.clone()),
        Field::Query(_) => Variable::Args,
        Field::Protocol => Variable::Scheme,
        Field::SourceIp => Variable::RemoteAddr,
        Field::SourcePort => Variable::RemotePort,
        Field::DestinationIp => Variable::ServerAddr,
        Field::DestinationPort => Variable::ServerPort,
        Field::Sni => Variable::SslServerName,
        Field::Variable(variable) => variable.clone(),
    })
}
