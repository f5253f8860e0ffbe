//! Which values of labels come and go with a Plan.
//!
//! Series whose label values no configuration contains any more are useless. Some things have one label, such as a route; others
//! are named by several together: a node that left an upstream may belong to another, but what was measured of it there has ended.
//! Only the differences from the previous Plan are compared, since a configuration may have fifty thousand routes and change many
//! times a second.

use super::metrics::{MetricsPlan, node_label, upstream_path};
use super::routes::PlanDifference;
use super::{Plan, PlanUpstream, PlanUpstreams};
use std::collections::BTreeSet;
use std::sync::Arc;
use stillgate_config::{Label, Route};

/// The subject of series: a thing with the values of the labels that name it, one per label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesSubject {
    /// One label, or several that name the thing only together.
    pub labels: &'static [Label],
    /// The values in the same order.
    pub values: Vec<String>,
}

impl SeriesSubject {
    /// Makes the subject that has these values of these labels.
    pub fn new(labels: &'static [Label], values: &[&str]) -> SeriesSubject {
        SeriesSubject { labels, values: values.iter().map(|value| (*value).to_owned()).collect() }
    }
}

/// Differences between a Plan and the previous one.
#[derive(Debug, Default)]
pub struct SeriesChanges {
    /// Subjects that the previous Plan did not have.
    pub arrived: BTreeSet<SeriesSubject>,
    /// Subjects that this Plan no longer has.
    pub left: BTreeSet<SeriesSubject>,
}

impl SeriesChanges {
    /// Computes the changes of `plan`, whose routes differ by `difference`. Without a previous Plan there is nothing to report:
    /// nothing has been recorded.
    pub(super) fn new(plan: &Plan, previous: Option<&Plan>, difference: &PlanDifference) -> SeriesChanges {
        let Some(previous) = previous else { return SeriesChanges::default() };
        let SeriesChanges { mut arrived, mut left } = match (plan.metrics(), previous.metrics()) {
            (None, None) => SeriesChanges::default(),
            (Some(new), Some(old))
                if old.node_is_ip == new.node_is_ip && plan.routes.named == previous.routes.named =>
            {
                differing_subjects(plan, previous, new, difference)
            }
            // The labels themselves have changed.
            (new, old) => SeriesChanges {
                arrived: new.map(|metrics| all_subjects(plan, metrics)).unwrap_or_default(),
                left: old.map(|metrics| all_subjects(previous, metrics)).unwrap_or_default(),
            },
        };
        if plan.metrics.is_some() {
            add_stream_routes(plan, previous, &mut arrived);
            add_stream_routes(previous, plan, &mut left);
            add_consumers(plan, previous, &mut arrived);
            add_consumers(previous, plan, &mut left);
            add_listeners(plan, previous, &mut arrived);
            add_listeners(previous, plan, &mut left);
        }
        let stay: Vec<_> = arrived.intersection(&left).cloned().collect();
        for value in &stay {
            arrived.remove(value);
            left.remove(value);
        }
        let differing = difference.arrived.iter().chain(&difference.left);
        let has_names =
            plan.routes.named || previous.routes.named || differing.into_iter().any(|of| of.prefers_names());
        remove_subjects_of(&mut arrived, previous, has_names);
        remove_subjects_of(&mut left, plan, has_names);
        // If the whole has left, so have its parts.
        let wholes: BTreeSet<SeriesSubject> =
            left.iter().filter(|subject| subject.labels.len() == 1).cloned().collect();
        left.retain(|subject| {
            let whole = SeriesSubject { labels: &subject.labels[..1], values: subject.values[..1].to_vec() };
            subject.labels.len() == 1 || !wholes.contains(&whole)
        });
        SeriesChanges { arrived, left }
    }
}

/// All subjects of a Plan.
fn all_subjects(plan: &Plan, metrics: &MetricsPlan) -> BTreeSet<SeriesSubject> {
    let mut values = BTreeSet::new();
    let mut add = |labels: &'static [Label], of: &[&str]| {
        values.insert(SeriesSubject::new(labels, of));
    };
    plan.routes.iter().for_each(|route| visit_route_subjects(&route.route, plan.routes.named, &mut add));
    plan.upstreams.iter().for_each(|upstream| visit_upstream_subjects(upstream, metrics, &mut add));
    values
}

/// Subjects only in one and only in the other Plan; some may also occur elsewhere in the other.
fn differing_subjects(
    plan: &Plan,
    previous: &Plan,
    metrics: &MetricsPlan,
    difference: &PlanDifference,
) -> SeriesChanges {
    let side = |routes: &[Arc<Route>], upstreams: &PlanUpstreams, others: &PlanUpstreams| {
        let mut values = BTreeSet::new();
        let mut add = |labels: &'static [Label], of: &[&str]| {
            values.insert(SeriesSubject::new(labels, of));
        };
        routes.iter().for_each(|route| visit_route_subjects(route, plan.routes.named, &mut add));
        if !std::ptr::eq(upstreams, others) {
            for (slot, upstream) in upstreams.slots().iter().enumerate() {
                let is_there =
                    |upstream: &Arc<PlanUpstream>| others.get(slot).is_some_and(|other| Arc::ptr_eq(other, upstream));
                if let Some(upstream) = upstream.as_ref().filter(|upstream| !is_there(upstream)) {
                    visit_upstream_subjects(upstream, metrics, &mut add);
                }
            }
        }
        values
    };
    SeriesChanges {
        arrived: side(&difference.arrived, &plan.upstreams, &previous.upstreams),
        left: side(&difference.left, &previous.upstreams, &plan.upstreams),
    }
}

/// The ids of stream routes that only `plan` has.
fn add_stream_routes(plan: &Plan, other: &Plan, values: &mut BTreeSet<SeriesSubject>) {
    if Arc::ptr_eq(&plan.stream_routes, &other.stream_routes) {
        return;
    }
    let there: BTreeSet<&str> = other.stream_routes.iter().map(|of| of.route.id.as_str()).collect();
    let ids = plan.stream_routes.iter().map(|of| of.route.id.as_str()).filter(|id| !there.contains(id));
    values.extend(ids.map(|id| SeriesSubject::new(&[Label::StreamRoute], &[id])));
}

/// The names of consumers that only `plan` has.
fn add_consumers(plan: &Plan, other: &Plan, values: &mut BTreeSet<SeriesSubject>) {
    if Arc::ptr_eq(&plan.consumers, &other.consumers) {
        return;
    }
    let names = plan.consumers.iter().map(|of| &*of.name).filter(|name| other.consumers.find_by_name(name).is_none());
    values.extend(names.map(|name| SeriesSubject::new(&[Label::Consumer], &[name])));
}

/// The addresses that only `plan` listens on.
fn add_listeners(plan: &Plan, other: &Plan, values: &mut BTreeSet<SeriesSubject>) {
    let addresses = plan.listening.iter().filter(|address| !other.listening.contains(address));
    values.extend(addresses.map(|address| SeriesSubject::new(&[Label::Listener], &[&address.to_string()])));
}

/// Removes the subjects of a Plan. All routes and upstreams are looked at, but only if there is something to be found.
fn remove_subjects_of(values: &mut BTreeSet<SeriesSubject>, plan: &Plan, has_names: bool) {
    let Some(metrics) = plan.metrics() else { return };
    let has = |values: &BTreeSet<SeriesSubject>, of: fn(&[Label]) -> bool| values.iter().any(|each| of(each.labels));
    // A route's id occurs in one place only, which has been looked at; its name may be shared with others.
    if has_names && has(values, |labels| labels[0] == Label::Route) {
        for route in plan.routes.iter() {
            visit_route_subjects(&route.route, plan.routes.named, &mut |labels, of| {
                values.remove(&SeriesSubject::new(labels, of));
            });
        }
    }
    if has(values, |labels| labels == [Label::Service]) {
        let mut last = None;
        for service in plan.routes.iter().filter_map(|route| route.route.labels(plan.routes.named).1) {
            if last != Some(service) {
                values.remove(&SeriesSubject::new(&[Label::Service], &[service]));
                last = Some(service);
            }
        }
    }
    let is_of_upstream =
        |labels: &[Label]| matches!(labels[0], Label::Upstream | Label::Node | Label::Name | Label::Ip);
    if has(values, is_of_upstream) {
        for upstream in plan.upstreams.iter() {
            visit_upstream_subjects(upstream, metrics, &mut |labels, of| {
                values.remove(&SeriesSubject::new(labels, of));
            });
        }
    }
}

fn visit_route_subjects(route: &Route, named: bool, visit: &mut dyn FnMut(&'static [Label], &[&str])) {
    let (name, service) = route.labels(named);
    visit(&[Label::Route], &[name]);
    // A route that changes its service remains, but not under its former service.
    visit(&[Label::Route, Label::Service], &[name, service.unwrap_or_default()]);
    if let Some(service) = service {
        visit(&[Label::Service], &[service]);
    }
}

fn visit_upstream_subjects(
    upstream: &PlanUpstream,
    metrics: &MetricsPlan,
    visit: &mut dyn FnMut(&'static [Label], &[&str]),
) {
    let key = &upstream.definition.key;
    let path = upstream_path(key);
    visit(&[Label::Upstream], &[key]);
    if metrics.node_is_ip {
        visit(&[Label::Name], &[&path]);
    }
    let mut text = String::new();
    for endpoint in &upstream.endpoints {
        let node = node_label(endpoint, metrics.node_is_ip, &mut text);
        visit(&[Label::Node], &[node]);
        match metrics.node_is_ip {
            true => {
                visit(&[Label::Ip], &[node]);
                if metrics.health_of(&upstream.definition).is_some() {
                    visit(&[Label::Name, Label::Ip, Label::Port], &[&path, node, &endpoint.address.port().to_string()]);
                }
            }
            false => visit(&[Label::Upstream, Label::Node], &[key, node]),
        }
    }
}
