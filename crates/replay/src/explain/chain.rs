//! The plugins that an explained request passes, in the order they run, as text and as JSON.
//!
//! The gateway's own code decides which entries exist and what `_meta.filter` evaluates to; a filter that reads unknown values of
//! the request stays undecided. Only names and places of a configuration are shown: its values may be secrets.

use serde_json::{Value, json};
use std::sync::Arc;
use stillgate_config::{Config, Route};
use stillgate_plugin_api::{Chain, ChainEntry, Consumer, ConsumerRef, Phase};
use stillgate_route::{Lookup, MatchRequest, PredicateValue, Variable, VarsVerdict};

/// The plugins of one request.
#[derive(Debug, Default)]
pub struct ExplainedChain {
    runs: Vec<EntryRun>,
    /// Entries disabled by `_meta.disable`, or ignored.
    left_out: Vec<Arc<ChainEntry>>,
    /// Why the answer may be incomplete.
    pub notes: Vec<String>,
}

/// An entry, and whether it runs.
#[derive(Debug)]
struct EntryRun {
    entry: Arc<ChainEntry>,
    is_global: bool,
    /// The result of `_meta.filter`.
    filter: VarsVerdict,
}

/// The consumer of the request.
#[derive(Debug, Clone, Copy)]
enum Asker<'a> {
    /// This consumer.
    Is(&'a Consumer),
    /// No plugin identifies a consumer.
    Nobody,
    /// A plugin identifies the consumer, but none was specified.
    NotKnown,
}

/// The consumer with this name, if one was given. An error is a sentence for the user.
pub fn consumer<'a>(config: &'a Config, name: Option<&str>) -> Result<Option<&'a Consumer>, String> {
    let Some(name) = name else { return Ok(None) };
    let consumers = &config.plugins.consumers;
    let found: Option<ConsumerRef> = consumers.find_by_name(name);
    found.map(|found| Some(consumers.of(found))).ok_or_else(|| format!("there is no consumer {name:?}"))
}

/// For programs: the plugins that requests of a route pass, in the order they run, and the disabled ones. A consumer's own plugins
/// are not included.
pub fn of_route(config: &Config, route: &Route) -> (Value, Value) {
    let global = &*config.plugins.global;
    let empty = Chain::default();
    let own = route.chain.as_deref().unwrap_or(&empty);
    let runs = [(global, true), (own, false)].into_iter().flat_map(|(chain, is_global)| {
        chain.entries().iter().map(move |entry| {
            let mut shown = shown(entry, is_global);
            shown["is_conditional"] = json!(entry.meta.filter.is_some());
            shown
        })
    });
    let left_out = global.left_out().iter().chain(own.left_out()).map(left_out);
    (runs.collect(), left_out.collect())
}

impl ExplainedChain {
    /// The plugins of a request that `route` takes, from which it captures `params`, and that `consumer` makes.
    pub fn new(
        config: &Config,
        (route, params): (Option<&Route>, &[(String, String)]),
        consumer: Option<&Consumer>,
        request: &MatchRequest<'_>,
    ) -> ExplainedChain {
        let mut explained = ExplainedChain::default();
        let global = &*config.plugins.global;
        let of_route = route.and_then(|route| route.chain.as_deref());
        let entries = global.entries().iter().chain(of_route.iter().flat_map(|chain| chain.entries()));
        let authenticates = entries.clone().any(|entry| entry.authenticates);
        let asker = match consumer {
            _ if !authenticates => Asker::Nobody,
            Some(consumer) => Asker::Is(consumer),
            None => Asker::NotKnown,
        };
        explained.note(config, asker, consumer);
        let merged = explained.merged(of_route, asker);
        explained.left_out.extend(global.left_out().iter().chain(merged.left_out()).cloned());
        // Entries before the one that authenticates run without a consumer.
        let mut is_found = !authenticates;
        for (chain, is_global) in [(global, true), (&merged, false)] {
            for entry in chain.entries() {
                let is_early = is_global || entry.phases.contains(Phase::Rewrite);
                let asker = if is_early && !is_found { Asker::NotKnown } else { asker };
                let vars = Vars { of_request: request.vars, route, params, asker };
                let request = MatchRequest { vars: &vars, ..*request };
                let none = || VarsVerdict { holds: Some(true), predicates: Vec::new() };
                let filter = entry.meta.filter.as_ref().map_or_else(none, |filter| filter.explain(&request));
                explained.runs.push(EntryRun { entry: entry.clone(), is_global, filter });
                is_found |= entry.authenticates;
            }
        }
        explained
    }

    /// Whether a plugin may send the request to another upstream than the route's.
    pub fn may_split(&self) -> bool {
        self.runs.iter().any(|run| run.entry.name == "traffic-split" && run.filter.holds != Some(false))
    }

    fn note(&mut self, config: &Config, asker: Asker<'_>, consumer: Option<&Consumer>) {
        match (asker, consumer) {
            (Asker::Nobody, Some(consumer)) => self.notes.push(format!(
                "no plugin here authenticates, so the request is not that of consumer {:?}, whose plugins do not run",
                consumer.name
            )),
            (Asker::NotKnown, _) if config.plugins.consumers.iter().any(|consumer| !consumer.plugins.is_empty()) => {
                self.notes.push(
                    "a consumer's own plugins join these; name the consumer (--consumer, consumer=) to see them"
                        .to_owned(),
                );
            }
            _ => {}
        }
    }

    /// The route's chain merged with the consumer's plugins, as a worker merges them.
    fn merged(&mut self, of_route: Option<&Chain>, asker: Asker<'_>) -> Chain {
        let alone = of_route.cloned().unwrap_or_default();
        let Asker::Is(consumer) = asker else { return alone };
        self.left_out.extend(alone.left_out().iter().filter(|entry| !is_in(entry, &consumer.plugins)).cloned());
        Chain::merge([alone.entries(), &consumer.plugins]).unwrap_or_else(|too_long| {
            self.notes.push(format!("the request is answered 500: {too_long}"));
            alone
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if !self.runs.is_empty() {
            out.push_str("plugins, in each phase in this order:\n");
        }
        for EntryRun { entry, filter, .. } in &self.runs {
            let phases: Vec<&str> = entry.phases.iter().map(Phase::name).collect();
            let line = line_of(entry).map_or(String::new(), |line| format!("line {line}; "));
            let about = format!("{line}priority {}; {}", entry.priority, phases.join(", "));
            out.push_str(&format!("  {} of {} ({about})", entry.name, entry.origin));
            out.push_str(&match filter.holds {
                Some(true) => String::new(),
                Some(false) => format!(": skipped, since _meta.filter does not hold{}", facts(&filter.predicates)),
                None => format!(": not known whether _meta.filter holds{}", facts(&filter.predicates)),
            });
            out.push('\n');
        }
        for entry in &self.left_out {
            let line = line_of(entry).map_or(String::new(), |line| format!(" (line {line})"));
            out.push_str(&match entry.meta.is_ignored {
                true => format!(
                    "left out: {} of {}, which gateway.config.ignore_plugins ignores{line}\n",
                    entry.name, entry.origin
                ),
                false => format!("left out: {}, which {} disables{line}\n", entry.name, entry.origin),
            });
        }
        out
    }

    /// For programs: the entries that run, and those that do not.
    pub fn json(&self) -> (Value, Value) {
        let run = |run: &EntryRun| {
            let mut shown = shown(&run.entry, run.is_global);
            shown["runs"] = json!(run.filter.holds);
            shown["filter"] = run.filter.predicates.iter().map(shown_value).collect();
            shown
        };
        let runs: Vec<Value> = self.runs.iter().map(run).collect();
        (json!(runs), json!(self.left_out.iter().map(left_out).collect::<Vec<_>>()))
    }
}

fn shown(entry: &ChainEntry, is_global: bool) -> Value {
    json!({
        "name": entry.name,
        "chain": if is_global { "global" } else { "route" },
        "priority": entry.priority,
        "phases": entry.phases.iter().map(Phase::name).collect::<Vec<_>>(),
        "origin": origin(entry),
    })
}

fn left_out(entry: &Arc<ChainEntry>) -> Value {
    json!({"name": entry.name, "origin": origin(entry), "is_ignored": entry.meta.is_ignored})
}

fn is_in(entry: &ChainEntry, list: &[Arc<ChainEntry>]) -> bool {
    list.iter().any(|other| other.name == entry.name)
}

/// The line in the file; `None`: the entry comes from a store, where the resource is enough to find it.
fn line_of(entry: &ChainEntry) -> Option<u32> {
    Some(entry.at.line).filter(|line| *line > 0)
}

fn origin(entry: &ChainEntry) -> Value {
    let kind = entry.origin.level.name().replace(' ', "_");
    json!({"kind": kind, "id": entry.origin.id, "line": line_of(entry)})
}

fn shown_value(value: &PredicateValue) -> Value {
    json!({"field": value.field, "values": value.values, "known": value.is_known})
}

/// The request's values of the fields that a filter reads. The values they are compared with may be secret.
fn facts(values: &[PredicateValue]) -> String {
    let fact = |value: &PredicateValue| match (value.is_known, &value.values[..]) {
        (false, _) => value.field.clone(),
        (true, []) => format!("{} is absent", value.field),
        (true, values) => format!("{} is {}", value.field, quoted(values)),
    };
    let facts: Vec<String> = values.iter().map(fact).collect();
    if facts.is_empty() { String::new() } else { format!(": {}", facts.join("; ")) }
}

fn quoted(values: &[String]) -> String {
    values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ")
}

/// The variables of a request whose route is known.
struct Vars<'a> {
    of_request: &'a dyn Lookup,
    route: Option<&'a Route>,
    /// Names and values of the parameters that the route captures.
    params: &'a [(String, String)],
    asker: Asker<'a>,
}

impl Lookup for Vars<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let text = match (variable, self.asker) {
            (Variable::RouteId, _) => self.route.map(|route| route.spec.id.as_str()),
            (Variable::RouteParam(name), _) => {
                self.params.iter().find(|(param, _)| **param == **name).map(|(_, value)| value.as_str())
            }
            (Variable::RouteName, _) => self.route.and_then(|route| route.name.as_deref()),
            (Variable::ServiceName, _) => self.route.and_then(|route| route.service_name.as_deref()),
            (Variable::ServiceId, _) => self.route.and_then(|route| route.service_id.as_deref()),
            (Variable::ConsumerName, Asker::Is(consumer)) => Some(&*consumer.name),
            (Variable::ConsumerGroupId, Asker::Is(consumer)) => consumer.group.as_deref(),
            (Variable::ConsumerName | Variable::ConsumerGroupId | Variable::Status, _) => None,
            _ => return self.of_request.value(variable, buffer),
        };
        text.map(str::as_bytes)
    }

    fn is_known(&self, variable: &Variable) -> bool {
        match variable {
            Variable::Status
            | Variable::PostArg(_)
            | Variable::BodyArg(_)
            | Variable::Recorded(_)
            | Variable::SentHeader(_)
            | Variable::UpstreamHeader(_) => false,
            Variable::ConsumerName | Variable::ConsumerGroupId => !matches!(self.asker, Asker::NotKnown),
            _ => self.of_request.is_known(variable),
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.of_request.each_header(visit);
    }
}
