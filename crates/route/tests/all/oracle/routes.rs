//! Random routes of both kinds, as texts.

use super::asked::ADDRESSES;
use super::expressions::{Chain, Expressions};
use super::random::{Random, without_one};
use super::vars::Vars;
use std::sync::Arc;
use stillgate_route::{
    Expression, HostPattern, InvalidParts, Matcher, MethodSet, PathPattern, RouteMatch, RouteSpec, UriRoute,
    parse_method, vars,
};

#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Unique in its list; stays when the list changes.
    pub(crate) id: usize,
    pub(crate) priority: i64,
    pub(crate) asks: Asks,
}

#[derive(Debug, Clone)]
pub(crate) enum Asks {
    Expression(Chain),
    Uri(Uri),
}

/// The conditions of a URI route, as text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uri {
    pub(crate) hosts: Vec<&'static str>,
    pub(crate) paths: Vec<String>,
    pub(crate) methods: Vec<&'static str>,
    pub(crate) remote_addrs: Vec<String>,
    pub(crate) vars: Option<Vars>,
}

const HOSTS: &[&str] = &["a.com", "b.a.com", "c.b.a.com", "*.a.com", "*.b.a.com", "*.com", "*"];

impl Route {
    /// One route in `one_in` is an expression.
    pub(crate) fn random(random: &mut Random, id: usize, one_in: usize, expressions: &Expressions) -> Route {
        let asks = match random.one_in(one_in) {
            true => Asks::Expression(expressions.chain(random)),
            false => Asks::Uri(uri(random)),
        };
        Route { id, priority: random.below(3) as i64 - 1, asks }
    }

    pub(crate) fn is_expression(&self) -> bool {
        matches!(self.asks, Asks::Expression(_))
    }

    pub(crate) fn spec(&self) -> Arc<RouteSpec> {
        let takes = match &self.asks {
            Asks::Expression(chain) => {
                let text = chain.text();
                RouteMatch::Expression(Expression::parse(&text).unwrap_or_else(|errors| panic!("{text}: {errors:?}")))
            }
            Asks::Uri(uri) => RouteMatch::Uri(UriRoute {
                hosts: uri.hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
                paths: uri.paths.iter().map(|path| PathPattern::parse(path).unwrap()).collect(),
                methods: uri.methods.iter().map(|method| parse_method(method).unwrap()).collect::<MethodSet>(),
                remote_addrs: uri.remote_addrs.iter().map(|network| network.parse().unwrap()).collect(),
                vars: uri.vars.as_ref().map(|vars| vars::Expr::parse(&vars.json()).unwrap()),
                function: None,
                invalid: InvalidParts::default(),
            }),
        };
        Arc::new(RouteSpec { id: format!("r{}", self.id), priority: self.priority, takes })
    }

    fn smaller(&self) -> Vec<Route> {
        let asks: Vec<Asks> = match &self.asks {
            Asks::Expression(chain) => chain.smaller().into_iter().map(Asks::Expression).collect(),
            Asks::Uri(uri) => uri.smaller().into_iter().map(Asks::Uri).collect(),
        };
        asks.into_iter().map(|asks| Route { asks, ..*self }).collect()
    }
}

impl Uri {
    fn smaller(&self) -> Vec<Uri> {
        let mut smaller = Vec::new();
        smaller.extend(without_one(&self.hosts).into_iter().map(|hosts| Uri { hosts, ..self.clone() }));
        smaller.extend(without_one(&self.methods).into_iter().map(|methods| Uri { methods, ..self.clone() }));
        smaller
            .extend(without_one(&self.remote_addrs).into_iter().map(|some| Uri { remote_addrs: some, ..self.clone() }));
        let paths = without_one(&self.paths).into_iter().filter(|paths| !paths.is_empty());
        smaller.extend(paths.map(|paths| Uri { paths, ..self.clone() }));
        if let Some(vars) = &self.vars {
            smaller.push(Uri { vars: None, ..self.clone() });
            smaller.extend(vars.smaller().into_iter().map(|vars| Uri { vars: Some(vars), ..self.clone() }));
        }
        // A part that was left out may have had the parameter that `vars` read.
        let reads = |uri: &Uri| uri.vars.as_ref().is_some_and(Vars::reads_param);
        smaller.retain(|uri| !reads(uri) || uri.paths.iter().any(|path| path.contains(":x")));
        smaller
    }
}

/// Smaller lists of routes.
pub(crate) fn smaller(routes: &[Route]) -> Vec<Vec<Route>> {
    let mut smaller = super::random::halves(routes);
    smaller.extend(without_one(routes));
    for (at, route) in routes.iter().enumerate() {
        smaller.extend(route.smaller().into_iter().map(|route| {
            let mut routes = routes.to_vec();
            routes[at] = route;
            routes
        }));
    }
    smaller
}

pub(crate) fn compile(routes: &[Route]) -> Matcher {
    Matcher::compile(routes.iter().map(Route::spec).collect()).expect("generated routes compile")
}

fn uri(random: &mut Random) -> Uri {
    let some = |random: &mut Random, one_in: usize| if random.one_in(one_in) { random.below(2) + 1 } else { 0 };
    let hosts = if random.one_in(3) { 0 } else { random.below(2) + 1 };
    let mut paths: Vec<String> = (0..random.below(3) + 1).map(|_| pattern(random)).collect();
    let vars = random.one_in(3).then(|| Vars::random(random));
    if vars.as_ref().is_some_and(Vars::reads_param) && !paths.iter().any(|path| path.contains(":x")) {
        paths.push("/:x".to_owned());
    }
    let methods = some(random, 3);
    let networks = some(random, 4);
    let network = |random: &mut Random| match random.below(3) {
        0 => random.pick(&["10.0.0.0/8", "10.1.0.0/16", "fd00::/8", "0.0.0.0/0"]).to_owned(),
        _ => ipnet::IpNet::from(random.pick(ADDRESSES).parse::<std::net::IpAddr>().unwrap()).to_string(),
    };
    Uri {
        hosts: (0..hosts).map(|_| random.pick(HOSTS)).collect(),
        paths,
        methods: (0..methods).map(|_| random.pick(&["GET", "POST", "PUT"])).collect(),
        remote_addrs: (0..networks).map(|_| network(random)).collect(),
        vars,
    }
}

fn pattern(random: &mut Random) -> String {
    let mut names = ["x", "y", "z"].iter();
    let mut text = String::new();
    for _ in 0..random.below(4) {
        text.push('/');
        match random.below(5) {
            0 | 1 => text.push('a'),
            2 => text.push_str(random.pick(&["b", "ab", "v1", "users", "42"])),
            _ => {
                text.push(':');
                text.push_str(names.next().expect("three segments at most"));
            }
        }
    }
    match random.pick(&["", "", "", "/", "/*", "/*", "/*rest", "*", "/*/a", "/*/b/*", "/*/a/*/b"]) {
        "*" if text.rsplit('/').next().unwrap_or("").starts_with(':') || text.is_empty() => text.push_str("/*"),
        end => text.push_str(end),
    }
    if text.is_empty() { "/".to_owned() } else { text }
}
