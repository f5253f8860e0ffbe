//! The routes that are served, as they are searched: each with its text in lower case.
//!
//! The list is made at the first search, once for each configuration; a route that is the same as before keeps its text. Routes
//! that are not served, because they are disabled or refused, are known from a datastore only: a file is refused as a whole, and
//! its disabled routes are not kept.

use memchr::memmem::Finder;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Write as _};
use std::sync::Arc;
use stillgate_admin::MASK;
use stillgate_config::secret_fields::{each_possible_secret, masked_expression};
use stillgate_config::{LoadedConfig, RejectedResource, Replacement, ResourceKind, Route, Target};
use stillgate_datastore::Documents;
use stillgate_live::traffic::RouteTraffic;
use stillgate_route::RouteMatch;

/// Maximum number of routes on one page.
pub(super) const PAGE_MAX: usize = 500;

/// Longest expression that is shown and searched, in characters.
const EXPRESSION_CHARS_MAX: usize = 2000;

/// The routes that are wanted, and in which order.
pub(super) struct RouteQuery {
    pub(super) search: String,
    pub(super) status: Option<RouteStatus>,
    /// `None`: the order of the configuration.
    pub(super) sort: Option<RouteSort>,
    pub(super) is_descending: bool,
    /// The page, numbered from 1, and its size.
    pub(super) page: (usize, usize),
    pub(super) sees_secrets: bool,
}

/// What routes are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteSort {
    Id,
    Requests,
    ClientErrors,
    Errors,
    P99,
    /// The share of the summed time of all requests.
    Time,
}

impl RouteSort {
    pub(super) const ALL: [(&str, RouteSort); 6] = [
        ("id", RouteSort::Id),
        ("requests", RouteSort::Requests),
        ("client_errors", RouteSort::ClientErrors),
        ("errors", RouteSort::Errors),
        ("p99", RouteSort::P99),
        ("time", RouteSort::Time),
    ];

    /// `None`: unknown.
    fn figure(self, traffic: Option<&RouteTraffic>) -> Option<f64> {
        let traffic = traffic?;
        match self {
            RouteSort::Id => None,
            RouteSort::Requests => Some(traffic.requests),
            RouteSort::ClientErrors => traffic.client_errors,
            RouteSort::Errors => traffic.errors,
            RouteSort::P99 => traffic.p99,
            RouteSort::Time => traffic.time_share,
        }
    }
}

/// A number with an order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TotalOrder(f64);

impl Eq for TotalOrder {}

impl PartialOrd for TotalOrder {
    fn partial_cmp(&self, other: &TotalOrder) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TotalOrder {
    fn cmp(&self, other: &TotalOrder) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Typical length of a route's text, so that it need not grow.
const TEXT_BYTES: usize = 128;

/// All routes of one configuration.
#[derive(Default)]
pub(super) struct RouteList {
    /// The configuration that it was made from.
    version: (u64, String),
    routes: Vec<ListedRoute>,
}

/// A route and its state.
pub(super) struct ListedRoute {
    id: Arc<str>,
    content: RouteContent,
    status: RouteStatus,
    /// The text that is searched.
    text: Arc<str>,
}

enum RouteContent {
    /// The route, with the line where it begins; 0: it has none.
    Served(Arc<Route>, u32),
    /// The document of a route that is not served.
    Left(Arc<str>),
}

/// The state of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteStatus {
    Served,
    /// Something else is served, or nothing.
    Rejected,
    /// `status: 0`.
    Off,
}

impl RouteStatus {
    pub(super) const ALL: [RouteStatus; 3] = [RouteStatus::Served, RouteStatus::Rejected, RouteStatus::Off];

    pub(super) fn name(self) -> &'static str {
        match self {
            RouteStatus::Served => "served",
            RouteStatus::Rejected => "rejected",
            RouteStatus::Off => "off",
        }
    }
}

impl RouteList {
    /// The list of a configuration; `former`: the list before it.
    pub(super) fn new(
        generation: u64,
        loaded: &LoadedConfig,
        documents: Option<&dyn Documents>,
        former: Option<&RouteList>,
    ) -> RouteList {
        let rejected: HashSet<&str> = rejected(loaded).map(|of| of.id.as_str()).collect();
        let known: HashMap<*const Route, &ListedRoute> = former.map_or_else(HashMap::new, |former| {
            let served = former.routes.iter().filter_map(|listed| match &listed.content {
                RouteContent::Served(route, _) => Some((Arc::as_ptr(route), listed)),
                RouteContent::Left(_) => None,
            });
            served.collect()
        });
        let config = &loaded.config;
        let lines = config.route_lines.iter().copied().chain(std::iter::repeat(0));
        let served = config.routes.iter().zip(lines).map(|(route, line)| {
            let is_rejected = rejected.contains(route.spec.id.as_str());
            let status = if is_rejected { RouteStatus::Rejected } else { RouteStatus::Served };
            let (id, text) = match known.get(&Arc::as_ptr(route)) {
                Some(known) => (known.id.clone(), known.text.clone()),
                None => (route.spec.id.as_str().into(), text_of_route(route)),
            };
            ListedRoute { id, content: RouteContent::Served(route.clone(), line), status, text }
        });
        let mut routes: Vec<ListedRoute> = served.collect();
        if let Some(documents) = documents {
            let others = unserved_routes(documents, &routes, &rejected);
            routes.extend(others);
        }
        RouteList { version: (generation, config.digest.clone()), routes }
    }

    /// Whether the list was made of this configuration.
    pub(super) fn is_of(&self, generation: u64, loaded: &LoadedConfig) -> bool {
        self.version.0 == generation && self.version.1 == loaded.config.digest
    }

    /// A page of the routes that a query finds, and the number of all of them. `traffic`: figures by route.
    pub(super) fn page(&self, query: &RouteQuery, traffic: &HashMap<Arc<str>, RouteTraffic>) -> Json {
        let search = query.search.trim().to_lowercase();
        let finder = Finder::new(&search);
        let is_found = |listed: &&ListedRoute| {
            query.status.is_none_or(|status| listed.status == status)
                && (search.is_empty() || finder.find(listed.text.as_bytes()).is_some())
        };
        let mut found: Vec<&ListedRoute> = self.routes.iter().filter(is_found).collect();
        if let Some(sort) = query.sort {
            let key = |listed: &&ListedRoute| sort.figure(traffic.get(&listed.id));
            match (sort, query.is_descending) {
                (RouteSort::Id, false) => found.sort_by(|a, b| a.id.cmp(&b.id)),
                (RouteSort::Id, true) => found.sort_by(|a, b| b.id.cmp(&a.id)),
                // What is unknown comes last in both directions.
                (_, is_descending) => found.sort_by_cached_key(|listed| {
                    let figure = key(listed);
                    let rank = if is_descending { -figure.unwrap_or(0.0) } else { figure.unwrap_or(0.0) };
                    (figure.is_none(), TotalOrder(rank))
                }),
            }
        }
        let (page, page_size) = query.page;
        let shown = found.iter().skip(page.saturating_sub(1).saturating_mul(page_size)).take(page_size);
        let list: Vec<Json> = shown.map(|listed| listed.summary(query.sees_secrets)).collect();
        json!({ "total": found.len(), "list": list })
    }

    /// A route by its id.
    pub(super) fn get(&self, id: &str) -> Option<&ListedRoute> {
        self.routes.iter().find(|listed| &*listed.id == id)
    }
}

impl ListedRoute {
    /// The entry of a route in a list.
    pub(super) fn summary(&self, sees_secrets: bool) -> Json {
        let mut summary = match &self.content {
            RouteContent::Served(route, _) => summary_of(route, sees_secrets),
            RouteContent::Left(document) => summary_of_document(&self.id, document, sees_secrets),
        };
        summary["status"] = json!(self.status.name());
        summary
    }

    /// The route, where it or its former version is served, and the line it begins in.
    pub(super) fn served_route(&self) -> Option<(&Route, u32)> {
        match &self.content {
            RouteContent::Served(route, line) => Some((route, *line)),
            RouteContent::Left(_) => None,
        }
    }
}

/// Routes that are not served as they were put.
pub(super) fn rejected(loaded: &LoadedConfig) -> impl Iterator<Item = &RejectedResource> {
    loaded.rejected.iter().filter(|of| of.kind == ResourceKind::Routes)
}

/// Routes of a datastore that are not served: disabled, or refused without a replacement.
fn unserved_routes(documents: &dyn Documents, served: &[ListedRoute], rejected: &HashSet<&str>) -> Vec<ListedRoute> {
    let known: HashSet<&str> = served.iter().map(|listed| &*listed.id).collect();
    let others = documents.list_below("routes/").into_iter().filter(|(key, _)| !known.contains(key.id()));
    let listed = others.filter_map(|(key, document)| {
        let status = match rejected.contains(key.id()) {
            true => RouteStatus::Rejected,
            false if is_off(&document.value) => RouteStatus::Off,
            // It has been written, and is about to be served.
            false => return None,
        };
        let text = text_of(&summary_of_document(key.id(), &document.value, false));
        Some(ListedRoute { id: key.id().into(), content: RouteContent::Left(document.value), status, text })
    });
    listed.collect()
}

fn is_off(document: &str) -> bool {
    let document: Json = serde_json::from_str(document).unwrap_or_default();
    document["status"] == 0
}

fn summary_of(route: &Route, sees_secrets: bool) -> Json {
    let (mut uris, mut hosts, mut methods, mut addresses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut expression = None;
    match &route.spec.takes {
        RouteMatch::Uri(uri) => {
            uris.extend(uri.paths.iter().map(ToString::to_string));
            hosts.extend(uri.hosts.iter().map(ToString::to_string));
            addresses.extend(uri.remote_addrs.iter().map(ToString::to_string));
            let named = uri.methods.to_string();
            methods.extend(named.split(", ").filter(|name| !name.is_empty()).map(str::to_owned));
        }
        RouteMatch::Expression(text) if sees_secrets => expression = Some(shortened(text.text())),
        RouteMatch::Expression(text) => expression = Some(shortened(&masked_expression(text, MASK))),
    }
    let plugins = route.chain.iter().flat_map(|chain| chain.entries()).map(|entry| entry.name);
    json!({
        "id": route.spec.id,
        "name": route.name.as_deref().unwrap_or_default(),
        "uris": uris,
        "hosts": hosts,
        "methods": methods,
        "remote_addrs": addresses,
        "expression": expression,
        "priority": route.spec.priority,
        "service": route.service_id,
        "upstream": upstream_of(route),
        "plugins": plugins.collect::<Vec<_>>(),
    })
}

fn shortened(expression: &str) -> String {
    expression.chars().take(EXPRESSION_CHARS_MAX).collect()
}

/// The upstream that a route names, itself or by its service. An upstream that is written inline has no name.
fn upstream_of(route: &Route) -> Option<&str> {
    let is_own = |key: &str| key.starts_with("routes/") || key.starts_with("services/");
    match &route.target {
        Target::Shared(key) => Some(&**key).filter(|key| !is_own(key)),
        Target::Own(_) | Target::Nowhere | Target::Unavailable(_) => None,
    }
}

/// Summary of a document that is not served. The document may be any JSON.
fn summary_of_document(id: &str, document: &str, sees_secrets: bool) -> Json {
    let mut document: Json = serde_json::from_str(document).unwrap_or_default();
    if !sees_secrets {
        each_possible_secret(ResourceKind::Routes.name(), &mut document, &mut |secret| MASK.clone_into(secret));
    }
    let texts = |one: &str, many: &str| -> Vec<String> {
        let one = document[one].as_str().into_iter();
        let many = document[many].as_array().into_iter().flatten().filter_map(Json::as_str);
        one.chain(many).map(str::to_owned).collect()
    };
    let plugins = document["plugins"].as_object().map(|plugins| plugins.keys().cloned().collect::<Vec<_>>());
    json!({
        "id": id,
        "name": document["name"].as_str().unwrap_or_default(),
        "uris": texts("uri", "uris"),
        "hosts": texts("host", "hosts"),
        "methods": texts("", "methods"),
        "remote_addrs": texts("remote_addr", "remote_addrs"),
        "expression": document["expression"].as_str(),
        "priority": document["priority"].as_i64().unwrap_or(0),
        "service": document["service_id"].as_str(),
        "upstream": document["upstream_id"].as_str(),
        "plugins": plugins.unwrap_or_default(),
    })
}

/// All text of a route that is searched, one item a line, as callers without access to secrets see it: what is hidden is not found
/// either. It is not made from the summary, since there may be very many routes.
fn text_of_route(route: &Route) -> Arc<str> {
    let mut text = String::with_capacity(TEXT_BYTES);
    let mut add = |part: &dyn Display| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{part}");
    };
    add(&route.spec.id);
    route.name.iter().for_each(|name| add(name));
    match &route.spec.takes {
        RouteMatch::Uri(uri) => {
            uri.paths.iter().for_each(|path| add(path));
            uri.hosts.iter().for_each(|host| add(host));
            add(&uri.methods);
            uri.remote_addrs.iter().for_each(|address| add(address));
        }
        RouteMatch::Expression(expression) => add(&shortened(&masked_expression(expression, MASK))),
    }
    route.service_id.iter().for_each(|service| add(service));
    upstream_of(route).iter().for_each(|upstream| add(upstream));
    route.chain.iter().flat_map(|chain| chain.entries()).for_each(|entry| add(&entry.name));
    text.make_ascii_lowercase();
    if text.is_ascii() { text.into() } else { text.to_lowercase().into() }
}

/// Search text of a route that is not served.
fn text_of(summary: &Json) -> Arc<str> {
    let mut text = String::new();
    let each = summary.as_object().into_iter().flatten().map(|(_, value)| value);
    for value in each {
        match value {
            Json::String(one) => text.push_str(one),
            Json::Array(many) => {
                many.iter().filter_map(Json::as_str).for_each(|one| {
                    // Writing to a String does not fail.
                    let _ = writeln!(text, "{one}");
                });
            }
            _ => {}
        }
        text.push('\n');
    }
    text.to_lowercase().into()
}

/// What is served in place of a rejected route, and why.
pub(super) fn refusal(loaded: &LoadedConfig, id: &str) -> Option<(String, Replacement)> {
    rejected(loaded).find(|of| of.id == id).map(|of| (of.reason.clone(), of.serving))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn loaded(routes: &str) -> LoadedConfig {
        let text = format!("upstreams: [{{id: u, nodes: {{\"127.0.0.1:81\": 1}}}}]\nroutes:\n{routes}");
        stillgate_config::load(&text, &|_| None).unwrap()
    }

    fn query(search: &str, page: (usize, usize)) -> RouteQuery {
        let search = search.to_owned();
        RouteQuery { search, status: None, sort: None, is_descending: false, page, sees_secrets: false }
    }

    fn page(list: &RouteList, search: &str, page: (usize, usize)) -> Json {
        list.page(&query(search, page), &HashMap::new())
    }

    #[test]
    fn routes_are_sorted_by_their_traffic() {
        let loaded = loaded(
            "  - {id: b, uri: /b, upstream_id: u}\n  - {id: quiet, uri: /q, upstream_id: u}\n  - {id: a, uri: /a, upstream_id: u}\n  - {id: c, uri: /c, upstream_id: u}\n",
        );
        let list = RouteList::new(1, &loaded, None, None);
        let traffic = |requests, p99, errors| RouteTraffic {
            requests,
            client_errors: Some(0.0),
            errors,
            timed: 1,
            p50: p99,
            p99,
            max: p99,
            time_share: None,
        };
        let known: HashMap<Arc<str>, RouteTraffic> = HashMap::from([
            ("a".into(), traffic(5.0, Some(0.2), Some(0.0))),
            ("b".into(), traffic(50.0, Some(0.01), Some(1.0))),
            ("c".into(), traffic(1.0, None, Some(0.5))),
        ]);
        let check = |sort, is_descending, expected: &[&str]| {
            let query = RouteQuery { sort: Some(sort), is_descending, ..query("", (1, 50)) };
            assert_eq!(ids(&list.page(&query, &known)), expected, "{sort:?}");
        };
        check(RouteSort::Id, false, &["a", "b", "c", "quiet"]);
        check(RouteSort::Id, true, &["quiet", "c", "b", "a"]);
        check(RouteSort::Requests, true, &["b", "a", "c", "quiet"]);
        check(RouteSort::Errors, true, &["b", "c", "a", "quiet"]);
        // Unknown figures come last, whichever way.
        check(RouteSort::P99, true, &["a", "b", "quiet", "c"]);
        check(RouteSort::P99, false, &["b", "a", "quiet", "c"]);
    }

    fn ids(page: &Json) -> Vec<&str> {
        page["list"].as_array().unwrap().iter().map(|route| route["id"].as_str().unwrap()).collect()
    }

    #[test]
    fn routes_are_found_by_anything() {
        let loaded = loaded(
            "  - {id: a, name: Orders, uri: /orders/*, host: Shop.example.com, methods: [GET, PUT], upstream_id: u}\n  \
             - {id: b, uris: [/users/:id, /people], upstream: {nodes: {\"127.0.0.1:82\": 1}}}\n  \
             - {id: c, expression: 'http.path ^= \"/Kong\"', upstream_id: u}\n  \
             - {id: d, uri: /off, status: 0, upstream_id: u}\n",
        );
        let list = RouteList::new(1, &loaded, None, None);
        let check =
            |search: &str, expected: &[&str]| assert_eq!(ids(&page(&list, search, (1, 50))), expected, "{search}");
        check("", &["a", "b", "c"]);
        check("ORDERS", &["a"]);
        check("shop.example", &["a"]);
        check("people", &["b"]);
        check("/kong", &["c"]);
        check("put", &["a"]);
        check("no such thing", &[]);
        let page = page(&list, "", (2, 2));
        assert_eq!((ids(&page), &page["total"]), (vec!["c"], &json!(3)));
        let a = list.get("a").unwrap().summary(false);
        assert_eq!(
            (&a["upstream"], &a["status"], &a["hosts"]),
            (&json!("u"), &json!("served"), &json!(["shop.example.com"]))
        );
        assert_eq!(list.get("b").unwrap().summary(false)["upstream"], Json::Null);
        assert_eq!(list.get("a").unwrap().served_route().map(|(_, line)| line), Some(3));
    }

    #[test]
    fn a_route_that_stays_keeps_its_text() {
        let one = loaded("  - {id: a, uri: /a, upstream_id: u}\n");
        let list = RouteList::new(1, &one, None, None);
        let next = RouteList::new(2, &one, None, Some(&list));
        assert!(Arc::ptr_eq(&list.routes[0].text, &next.routes[0].text));
        assert!(list.is_of(1, &one) && !list.is_of(2, &one) && next.is_of(2, &one));
    }

    /// The time it takes is printed, not judged.
    #[test]
    fn one_route_is_found_among_many() {
        let routes: String = (0..20_000)
            .map(|n| format!("  - {{id: r{n}, name: route-{n}, uri: /area-{n}/*, upstream_id: u}}\n"))
            .collect();
        let loaded = loaded(&routes);
        let began = Instant::now();
        let list = RouteList::new(1, &loaded, None, None);
        let made = began.elapsed();
        let began = Instant::now();
        let page = page(&list, "area-1999", (1, 50));
        println!("20,000 routes: listed in {made:?}, searched in {:?}", began.elapsed());
        assert_eq!(page["total"], 11);
    }
}
