//! Where the plugins of the result are written, so that the same ones apply as in Kong.
//!
//! In Kong, of several configurations of one plugin the closest counts: consumer, consumer group, route, service, then
//! the global one. Here global rules run besides the others and before them, so a global plugin of Kong becomes part
//! of a `plugin_config` that all routes name. Routes whose service or which themselves have the plugin name a
//! `plugin_config` without it. Only loggers and the like that are configured nowhere else become global rules.
//!
//! Authentication, refusals and changes of requests depend on several plugins and on the route, and are written into
//! each route.

use crate::kong_file::{KongFile, Plugin, Scope};
use crate::names::Ids;
use crate::plugins::{
    Auth, Chain, Limit, LimitedRequests, Rewrite, Translation, TranslationContext, admits_anonymous, auth_chain,
    is_guard, may_lack_consumer, translate,
};
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A plugin and what it becomes.
pub(crate) struct PlacedPlugin<'a> {
    pub(crate) plugin: &'a Plugin,
    pub(crate) translated: Translation,
}

/// All enabled plugins by where they apply.
pub(crate) struct Placement<'a> {
    global: Vec<PlacedPlugin<'a>>,
    services: HashMap<usize, Vec<PlacedPlugin<'a>>>,
    routes: HashMap<usize, Vec<PlacedPlugin<'a>>>,
    consumers: HashMap<usize, Vec<PlacedPlugin<'a>>>,
    groups: HashMap<usize, Vec<PlacedPlugin<'a>>>,
    /// Plugins of a consumer or group on some route or service only.
    mixed: HashMap<Client, Vec<PlacedPlugin<'a>>>,
    /// Plugins for TCP, TLS and UDP only.
    for_streams: Vec<&'a Plugin>,
    /// Names that have a plugin of one consumer, group, route or service.
    elsewhere: HashSet<&'a str>,
    /// How many plugins of each name there are.
    counts: HashMap<&'a str, usize>,
    /// How each limit by consumer is used: with consumers, and without.
    limits: HashMap<*const Plugin, LimitUse>,
    /// Sets of names that some route's `plugin_config` lacks, with its id.
    variants: BTreeMap<BTreeSet<&'a str>, String>,
}

/// Whose plugins are added when they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    Consumer(usize),
    Group(usize),
}

#[derive(Debug, Clone, Copy, Default)]
struct LimitUse {
    authenticated: bool,
    /// Whether a route with authentication lets some requests pass without a consumer.
    may_lack_consumer: bool,
    may_lack_service: bool,
}

impl LimitUse {
    fn requests(self) -> LimitedRequests {
        let LimitUse { authenticated, may_lack_consumer, may_lack_service } = self;
        LimitedRequests { has_consumer: authenticated, may_lack_consumer, may_lack_service }
    }
}

/// What applies to a route, the closest configuration of each plugin.
pub(crate) struct Effective<'a, 'p> {
    all: Vec<(Tier, &'p PlacedPlugin<'a>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Route,
    Service,
    Global,
}

impl<'a> Placement<'a> {
    /// Translates all plugins of a file. `routes`: the service of each route.
    pub(crate) fn of(file: &'a KongFile, cx: &TranslationContext<'_>) -> Placement<'a> {
        let mut placement = Placement {
            global: Vec::new(),
            services: HashMap::new(),
            routes: HashMap::new(),
            consumers: HashMap::new(),
            groups: HashMap::new(),
            mixed: HashMap::new(),
            for_streams: Vec::new(),
            elsewhere: HashSet::new(),
            counts: HashMap::new(),
            limits: HashMap::new(),
            variants: BTreeMap::new(),
        };
        let mut known = HashSet::new();
        for plugin in &file.plugins {
            if plugin.object.flag("enabled") == Some(false) {
                plugin.object.changed("the plugin is disabled; it is left out");
                continue;
            }
            if plugin.is_for_streams {
                plugin
                    .object
                    .changed("the plugin is for TCP, TLS and UDP only, for which no plugins run here; it is left out");
                placement.for_streams.push(plugin);
                continue;
            }
            if !plugin.is_of_unknown_scope && !known.insert((plugin.scope, &plugin.name)) {
                plugin.object.changed("the same plugin is there twice; this one is left out");
                continue;
            }
            let placed = PlacedPlugin { plugin, translated: translate(plugin, cx) };
            placement.put(placed);
        }
        placement.count_uses(file);
        placement
    }

    fn put(&mut self, placed: PlacedPlugin<'a>) {
        let Scope { route, service, consumer, group } = placed.plugin.scope;
        *self.counts.entry(&placed.plugin.name).or_default() += 1;
        if placed.plugin.scope != Scope::default() {
            self.elsewhere.insert(&placed.plugin.name);
        }
        let list = match (route, service, consumer, group) {
            (None, None, None, None) => &mut self.global,
            (None, None, Some(consumer), None) => self.consumers.entry(consumer).or_default(),
            (None, None, None, Some(group)) => self.groups.entry(group).or_default(),
            (Some(route), _, None, None) => self.routes.entry(route).or_default(),
            (None, Some(service), None, None) => self.services.entry(service).or_default(),
            (_, _, Some(consumer), None) => self.mixed.entry(Client::Consumer(consumer)).or_default(),
            (_, _, None, Some(group)) => self.mixed.entry(Client::Group(group)).or_default(),
            (_, _, Some(_), Some(_)) => {
                placed
                    .plugin
                    .object
                    .changed("a plugin of a consumer and a group at once is not imported; it is left out");
                return;
            }
        };
        list.push(placed);
    }

    /// Looks at each route: which limits it uses, and which global plugins it lacks.
    fn count_uses(&mut self, file: &KongFile) {
        let (mut limits, mut variants) = (HashMap::<*const Plugin, LimitUse>::new(), BTreeMap::new());
        let mut ids = Ids::default();
        for (index, route) in file.routes.iter().enumerate() {
            let effective = self.effective(index, route.service);
            for placed in effective.limits() {
                let uses = limits.entry(std::ptr::from_ref(placed.plugin)).or_default();
                uses.authenticated |= effective.is_authenticated();
                uses.may_lack_consumer |= effective.may_lack_consumer();
                uses.may_lack_service |= route.service.is_none();
            }
            let masked = self.masked(index, route.service);
            if !variants.contains_key(&masked) && self.in_config(&masked).next().is_some() {
                let names: Vec<&str> = masked.iter().copied().collect();
                let wanted =
                    if names.is_empty() { "global".to_owned() } else { format!("global-without-{}", names.join("-")) };
                variants.insert(masked, ids.id(&wanted));
            }
        }
        (self.limits, self.variants) = (limits, variants);
    }

    /// What applies to a route.
    pub(crate) fn effective<'p>(&'p self, route: usize, service: Option<usize>) -> Effective<'a, 'p> {
        let mut all: Vec<(Tier, &PlacedPlugin<'a>)> = Vec::new();
        let tiers = [
            (Tier::Route, self.routes.get(&route)),
            (Tier::Service, service.and_then(|service| self.services.get(&service))),
            (Tier::Global, Some(&self.global)),
        ];
        for (tier, list) in tiers {
            for placed in list.into_iter().flatten() {
                // What must be closed wherever it may apply is not replaced by others.
                if placed.plugin.is_of_unknown_scope
                    || !all.iter().any(|(_, known)| known.plugin.name == placed.plugin.name)
                {
                    all.push((tier, placed));
                }
            }
        }
        Effective { all }
    }

    /// Global plugins that a route or its service replaces.
    fn masked(&self, route: usize, service: Option<usize>) -> BTreeSet<&'a str> {
        let closer = [self.routes.get(&route), service.and_then(|service| self.services.get(&service))];
        let names: HashSet<&str> = closer.into_iter().flatten().flatten().map(|placed| &*placed.plugin.name).collect();
        self.global.iter().map(|placed| &*placed.plugin.name).filter(|name| names.contains(name)).collect()
    }

    /// Global plugins of a `plugin_config` without some.
    fn in_config(&self, masked: &BTreeSet<&str>) -> impl Iterator<Item = &PlacedPlugin<'a>> {
        self.global.iter().filter(|placed| {
            let is_written =
                matches!(placed.translated, Translation::Plain(_) | Translation::Observer(_) | Translation::Limit(_));
            is_written && !masked.contains(&*placed.plugin.name) && !self.is_rule(placed)
        })
    }

    /// Whether a global plugin can be a global rule.
    fn is_rule(&self, placed: &PlacedPlugin<'_>) -> bool {
        matches!(placed.translated, Translation::Observer(_)) && !self.elsewhere.contains(&*placed.plugin.name)
    }

    /// The lists `global_rules` and `plugin_configs`. `has_routes`: there are routes for requests.
    pub(crate) fn shared(&self, has_routes: bool) -> (Vec<Json>, Vec<Json>) {
        let mut rules = Map::new();
        if has_routes {
            // Kong sets or removes them on every route. Global rules run first, so that routes can set them.
            rules.insert(
                "proxy-rewrite".to_owned(),
                json!({"headers": {"remove": ["X-Forwarded-Path", "X-Forwarded-Prefix"]}}),
            );
        }
        for placed in self.global.iter().filter(|placed| self.is_rule(placed)) {
            if let Translation::Observer(chain) = &placed.translated {
                rules.extend(chain.iter().map(|(name, keys)| ((*name).to_owned(), keys.clone())));
            }
        }
        for placed in &self.global {
            if matches!(placed.translated, Translation::Observer(_)) && !self.is_rule(placed) {
                placed.plugin.object.changed("the plugin does not see requests without a route here, because a route, service or consumer has one of its own");
            }
        }
        let config = |(masked, id): (&BTreeSet<&str>, &String)| {
            let mut plugins = Map::new();
            for placed in self.in_config(masked) {
                plugins.extend(self.tier_chain(placed, "global", self.variants.len() > 1));
            }
            json!({"id": id, "plugins": plugins})
        };
        let configs = self.variants.iter().map(config).collect();
        let rules = if rules.is_empty() { Vec::new() } else { vec![json!({"id": "global", "plugins": rules})] };
        (rules, configs)
    }

    /// The plugins of a service.
    pub(crate) fn of_service(&self, index: usize, id: &str) -> Map<String, Json> {
        let placed = self.services.get(&index).into_iter().flatten();
        placed.flat_map(|placed| self.tier_chain(placed, id, false)).collect()
    }

    /// What a plugin is in a place that several routes share.
    fn tier_chain(&self, placed: &PlacedPlugin<'_>, tier: &str, is_copied: bool) -> Vec<(String, Json)> {
        match &placed.translated {
            Translation::Plain(chain) | Translation::Observer(chain) => {
                chain.iter().map(|(name, keys)| ((*name).to_owned(), keys.clone())).collect()
            }
            Translation::Limit(limit) => {
                let uses = self.limits.get(&std::ptr::from_ref(placed.plugin)).copied().unwrap_or_default();
                let group = is_copied.then(|| group_name(tier, uses.authenticated));
                if is_copied && !limit.can_share() {
                    placed.plugin.object.changed("with several periods, requests are counted apart where the result has the plugin in several places");
                }
                vec![("limit-count".to_owned(), limit.keys(uses.requests(), group.as_deref()))]
            }
            _ => Vec::new(),
        }
    }

    /// The plugins for streams only that apply to a route.
    pub(crate) fn for_streams(&self, route: usize, service: Option<usize>) -> impl Iterator<Item = &Plugin> {
        let applies = move |plugin: &&&Plugin| {
            plugin.scope.route.is_none_or(|own| own == route)
                && plugin.scope.service.is_none_or(|own| Some(own) == service)
        };
        self.for_streams.iter().filter(applies).copied()
    }

    fn count(&self, name: &str) -> usize {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// The `plugin_config` of a route.
    pub(crate) fn config_of(&self, route: usize, service: Option<usize>) -> Option<&str> {
        self.variants.get(&self.masked(route, service)).map(String::as_str)
    }

    /// The plugins that a route needs itself. `service_id`: for the names of counters.
    pub(crate) fn of_route(&self, route: usize, service: Option<(usize, &str)>) -> Map<String, Json> {
        let effective = self.effective(route, service.map(|(index, _)| index));
        let mut plugins = Map::new();
        plugins.extend(effective.auth_chain().into_iter().map(|(name, keys)| (name.to_owned(), keys)));
        let is_authenticated = effective.is_authenticated();
        let requests = LimitedRequests {
            has_consumer: is_authenticated,
            may_lack_consumer: effective.may_lack_consumer(),
            may_lack_service: service.is_none(),
        };
        for (tier, placed) in &effective.all {
            match (&placed.translated, tier) {
                (Translation::Plain(chain) | Translation::Observer(chain), Tier::Route) => {
                    plugins.extend(chain.iter().map(|(name, keys)| ((*name).to_owned(), keys.clone())));
                }
                (Translation::Limit(limit), Tier::Route) => {
                    plugins.insert("limit-count".to_owned(), limit.keys(requests, None));
                }
                (Translation::Limit(limit), Tier::Service | Tier::Global) => {
                    let tier = match (tier, service) {
                        (Tier::Service, Some((_, id))) => id,
                        _ => "global",
                    };
                    plugins.extend(self.limit_of(placed, limit, requests, tier));
                }
                _ => {}
            }
        }
        if effective.admits_anonymous() {
            let labels = plugins.remove(LABELS).or_else(|| effective.labels());
            let mut labels = labels.unwrap_or_else(|| json!({}));
            labels["headers"][ANONYMOUS_HEADER] = format!("${ANONYMOUS_LABEL}").into();
            plugins.insert(LABELS.to_owned(), labels);
        }
        self.disable_replaced(route, service.map(|(index, _)| index), &mut plugins);
        plugins
    }

    /// A limit by consumer that other routes count by consumer, for a route that knows none.
    fn limit_of(
        &self,
        placed: &PlacedPlugin<'_>,
        limit: &Limit,
        requests: LimitedRequests,
        tier: &str,
    ) -> Option<(String, Json)> {
        let uses = self.limits.get(&std::ptr::from_ref(placed.plugin))?;
        if requests.has_consumer || !limit.is_by_consumer() || !uses.authenticated {
            return None;
        }
        if !limit.can_share() {
            placed.plugin.object.changed(
                "with several periods, requests without a consumer are counted by address for each route apart",
            );
        }
        Some(("limit-count".to_owned(), limit.keys(requests, Some(&group_name(tier, false)))))
    }

    /// Switches off what a route's plugin replaces in Kong, and would be left of the service's here.
    fn disable_replaced(&self, route: usize, service: Option<usize>, plugins: &mut Map<String, Json>) {
        let own: HashSet<&str> =
            self.routes.get(&route).into_iter().flatten().map(|placed| &*placed.plugin.name).collect();
        let of_service = service.and_then(|service| self.services.get(&service)).into_iter().flatten();
        for placed in of_service.filter(|placed| own.contains(&*placed.plugin.name)) {
            for (name, keys) in self.tier_chain(placed, "", false) {
                plugins.entry(name).or_insert_with(|| {
                    let mut keys = keys;
                    keys["_meta"] = json!({"disable": true});
                    keys
                });
            }
        }
    }

    /// The plugins of a consumer. `ids`: the ids of routes and services here.
    pub(crate) fn of_consumer(&self, index: usize, ids: &RouteIds<'_>) -> Map<String, Json> {
        let mut plugins = self.of_client(self.consumers.get(&index));
        for placed in self.mixed.get(&Client::Consumer(index)).into_iter().flatten() {
            self.put_filtered(placed, ids, &mut plugins);
        }
        plugins
    }

    /// The plugins of a consumer group.
    pub(crate) fn of_group(&self, index: usize, ids: &RouteIds<'_>) -> Map<String, Json> {
        let mut plugins = self.of_client(self.groups.get(&index));
        for placed in self.mixed.get(&Client::Group(index)).into_iter().flatten() {
            self.put_filtered(placed, ids, &mut plugins);
        }
        plugins
    }

    fn of_client(&self, placed: Option<&Vec<PlacedPlugin<'a>>>) -> Map<String, Json> {
        let mut plugins = Map::new();
        for placed in placed.into_iter().flatten() {
            plugins.extend(client_chain(placed));
        }
        if placed.into_iter().flatten().any(|placed| matches!(placed.translated, Translation::Closed)) {
            plugins.insert("mocking".to_owned(), refusal_behind_auth());
        }
        plugins
    }

    /// A plugin of a consumer on one route or service: it has a filter, if no other configuration would run without it.
    fn put_filtered(&self, placed: &PlacedPlugin<'_>, ids: &RouteIds<'_>, plugins: &mut Map<String, Json>) {
        let plugin = placed.plugin;
        let Scope { route, service, .. } = plugin.scope;
        let condition = match (route, service) {
            // A route that was left out takes no request.
            (Some(route), _) if ids.routes[route].is_empty() => return,
            (Some(route), _) => json!(["route_id", "in", ids.routes[route]]),
            (None, Some(service)) => json!(["service_id", "==", ids.services[service]]),
            (None, None) => return,
        };
        // A plugin of a consumer replaces those of its name everywhere, also where its own filter does not hold.
        let is_alone = self.count(&plugin.name) == 1;
        let chain = client_chain(placed);
        let is_free = chain.iter().all(|(name, _)| !plugins.contains_key(name));
        let is_closed = matches!(placed.translated, Translation::Closed);
        if is_alone && is_free && !is_closed {
            plugins.extend(chain.into_iter().map(|(name, keys)| (name, filtered(keys, &condition))));
        } else if is_closed || is_guard(&plugin.name) {
            if !is_closed {
                plugin.object.losses().closed(
                    plugin.object.path(),
                    plugin.object.at(),
                    "a guard of a consumer on one route or service cannot be combined with others of its kind, so the consumer is answered 503; replace its plugin `mocking`",
                );
            }
            let answers_elsewhere = self.count("request-termination") > 0;
            let refusal =
                if answers_elsewhere { refusal_behind_auth() } else { filtered(refusal_behind_auth(), &condition) };
            plugins.insert("mocking".to_owned(), refusal);
        } else {
            plugin.object.changed("a plugin of a consumer on one route or service cannot be combined with others of its kind; it is left out");
        }
    }
}

/// The ids that routes and services have here.
pub(crate) struct RouteIds<'a> {
    /// A route may have become several.
    pub(crate) routes: &'a [Vec<String>],
    pub(crate) services: &'a [String],
}

fn group_name(tier: &str, is_authenticated: bool) -> String {
    format!("{tier}-by-{}", if is_authenticated { "consumer" } else { "address" })
}

/// What a plugin is on a consumer or group.
fn client_chain(placed: &PlacedPlugin<'_>) -> Vec<(String, Json)> {
    match &placed.translated {
        Translation::Plain(chain) | Translation::Observer(chain) => {
            chain.iter().map(|(name, keys)| ((*name).to_owned(), keys.clone())).collect()
        }
        Translation::Limit(limit) => vec![("limit-count".to_owned(), limit.keys(LimitedRequests::OF_CONSUMER, None))],
        // The caller adds the refusal, which must replace other answers.
        Translation::Closed => Vec::new(),
        Translation::Rewrite(_) => {
            placed.plugin.object.changed("requests of one consumer are not changed here, because that would replace the route's own changes of the path; the plugin is left out");
            Vec::new()
        }
        Translation::Auth(_) => {
            placed.plugin.object.changed("a plugin that authenticates has no meaning on a consumer; it is left out");
            Vec::new()
        }
        Translation::Nothing => Vec::new(),
    }
}

fn filtered(mut keys: Json, condition: &Json) -> Json {
    let own = keys["_meta"]["filter"].take();
    let filter = match own {
        Json::Array(items) if items.first().is_some_and(Json::is_string) => json!(["AND", condition, items]),
        Json::Array(items) => {
            let mut all = vec![condition.clone()];
            all.extend(items);
            all.into()
        }
        _ => json!([condition]),
    };
    keys["_meta"]["filter"] = filter;
    keys
}

/// Adds the plugins of a consumer's further groups: there is one group here. `first`: those of that group.
///
/// Returns the plugins that are there twice with other keys, of which only one can apply.
pub(crate) fn add_groups(
    plugins: &mut Map<String, Json>,
    first: &Map<String, Json>,
    others: &[Map<String, Json>],
) -> Vec<String> {
    // In Kong those of the consumer come before those of groups, too.
    let own: HashSet<String> = plugins.keys().cloned().collect();
    let mut collisions = Vec::new();
    for (name, keys) in others.iter().flatten().filter(|(name, _)| !own.contains(*name)) {
        match plugins.get(name).or(first.get(name)) {
            Some(known) if known != keys => collisions.push(name.clone()),
            Some(_) => {}
            None => drop(plugins.insert(name.clone(), keys.clone())),
        }
    }
    collisions
}

/// Closes a consumer.
pub(crate) fn refuse(plugins: &mut Map<String, Json>) {
    plugins.insert("mocking".to_owned(), refusal_behind_auth());
}

const REFUSAL: &str = r#"{"message":"a plugin that guards this route was not imported"}"#;

/// The answer of a route that must stay closed.
pub(crate) fn refusal() -> Json {
    json!({"abort": {"http_status": 503, "body": REFUSAL, "headers": {"Content-Type": "application/json"}}})
}

/// The answer to a consumer that must be refused, who is not known before authentication.
fn refusal_behind_auth() -> Json {
    const PRIORITY: i64 = 3500;
    json!({
        "response_status": 503,
        "content_type": "application/json",
        "response_example": REFUSAL,
        "with_mock_header": false,
        "_meta": {"priority": PRIORITY},
    })
}

/// The plugin that sends nodes the labels of a consumer.
const LABELS: &str = "attach-consumer-label";
/// The label of consumers that represent requests without credentials.
pub(crate) const ANONYMOUS_LABEL: &str = "anonymous";
/// Kong's header field for requests without credentials.
const ANONYMOUS_HEADER: &str = "X-Anonymous-Consumer";

impl<'a> Effective<'a, '_> {
    /// Whether the route must refuse all requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.all.iter().any(|(_, placed)| matches!(placed.translated, Translation::Closed))
    }

    /// The names and plugins that apply.
    pub(crate) fn plugins(&self) -> impl Iterator<Item = (bool, &PlacedPlugin<'a>)> {
        self.all.iter().map(|(tier, placed)| (*tier != Tier::Global, *placed))
    }

    /// Changes of requests, if there are any.
    pub(crate) fn rewrite(&self) -> Option<&Rewrite> {
        self.all.iter().find_map(|(_, placed)| match &placed.translated {
            Translation::Rewrite(rewrite) => Some(rewrite),
            _ => None,
        })
    }

    /// Whether a plugin of this name applies.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all.iter().any(|(_, placed)| placed.plugin.name == name)
    }

    fn auths(&self) -> Vec<Auth> {
        let auth = |(_, placed): &(Tier, &PlacedPlugin<'_>)| match &placed.translated {
            Translation::Auth(auth) => Some(auth.clone()),
            _ => None,
        };
        self.all.iter().filter_map(auth).collect()
    }

    /// Whether some requests pass the authentication without a consumer.
    fn may_lack_consumer(&self) -> bool {
        self.is_authenticated() && may_lack_consumer(&self.auths())
    }

    fn admits_anonymous(&self) -> bool {
        admits_anonymous(&self.auths())
    }

    /// The keys of `attach-consumer-label` that a plugin of Kong became.
    fn labels(&self) -> Option<Json> {
        self.all.iter().find_map(|(_, placed)| match &placed.translated {
            Translation::Plain(chain) => chain.iter().find(|(name, _)| *name == LABELS).map(|(_, keys)| keys.clone()),
            _ => None,
        })
    }

    /// Whether requests must have the credentials of a consumer, or become those of an anonymous one.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.all.iter().any(|(_, placed)| matches!(placed.translated, Translation::Auth(_)))
    }

    fn auth_chain(&self) -> Chain {
        auth_chain(&self.auths())
    }

    fn limits(&self) -> impl Iterator<Item = &PlacedPlugin<'a>> {
        self.all.iter().map(|(_, placed)| *placed).filter(|placed| matches!(placed.translated, Translation::Limit(_)))
    }
}
