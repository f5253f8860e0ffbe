//! What one document means, by the tables that files are read with.

use crate::keys::gateway::Gateway;
use crate::keys::plugins::{GlobalRuleKeys, PluginConfigKeys};
use crate::keys::resources::{RouteKeys, ServiceKeys, UpstreamKeys};
use crate::keys::ssls::SslKeys;
use crate::keys::stream_routes::StreamRouteKeys;
use crate::model::{Kind, Listener, Route, Ssl, StreamRoute, Target, Upstream};
use crate::resolve::plugins::List;
use crate::resolve::{Resolved, Service, Shared, Ssls, check_nodes, upstream::upstream};
use serde_json::Value as Json;
use std::sync::Arc;
use stillgate_plugin::Level;
use stillgate_schema::kind::read;
use stillgate_schema::object::{Object, map};
use stillgate_schema::text::diagnostic::{Diagnostic, Path, Sink};
use stillgate_schema::text::json::{DOCUMENT, node};

/// What a resource comes to. What is switched off comes to nothing.
pub(super) enum Definition {
    Ssl(Option<Arc<Ssl>>),
    PluginConfig(List),
    Upstream(Arc<Upstream>),
    Service(Box<Service>, Option<Arc<Upstream>>),
    GlobalRule(List),
    StreamRoute(Option<Box<StreamRoute>>),
    Route(Option<Box<Route>>),
}

/// Why a document is refused, whatever else there is.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// It can be told which requests or connections it would have taken.
    pub(super) is_match_known: bool,
}

/// Reads a document by itself.
pub(super) fn check(kind: Kind, id: &str, document: &Json, cx: &Context<'_>) -> Result<(), Refusal> {
    let mut sink = Sink::alone();
    let definition = define(kind, id, document, cx, &mut sink);
    if !sink.has_errors() {
        return Ok(());
    }
    let errors = sink.into_errors().diagnostics;
    let is_match_known = definition.is_some_and(|definition| definition.has_match())
        && errors.iter().all(|error| !is_of_match(&error.path));
    Err(Refusal { reason: reason(&errors), is_match_known })
}

/// What a document is read among.
pub(super) struct Context<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) listeners: &'a [Listener],
    pub(super) shared: &'a Shared,
}

/// What a document means among the others; `None`: it cannot be told, which has been reported.
pub(super) fn define(kind: Kind, id: &str, document: &Json, cx: &Context<'_>, sink: &mut Sink) -> Option<Definition> {
    let (shared, root) = (cx.shared, &Path::Root);
    Some(match kind {
        Kind::Ssls => {
            let ssl = Ssls::one(keys::<SslKeys>(document, sink)?, id, cx.gateway.acme.as_ref(), root, sink);
            Definition::Ssl(ssl.map(Arc::new))
        }
        Kind::PluginConfigs => {
            let keys = keys::<PluginConfigKeys>(document, sink)?;
            Definition::PluginConfig(shared.plugins.compile(Some(&keys.plugins), Level::PluginConfig, id, root, sink))
        }
        Kind::GlobalRules => {
            let keys = keys::<GlobalRuleKeys>(document, sink)?;
            Definition::GlobalRule(shared.plugins.compile(Some(&keys.plugins), Level::GlobalRule, id, root, sink))
        }
        Kind::Upstreams => {
            let upstream = upstream(keys::<UpstreamKeys>(document, sink)?, id, &shared.ssls, root, sink);
            check_nodes(cx.listeners, &upstream, sink);
            Definition::Upstream(Arc::new(upstream))
        }
        Kind::Services => {
            let (service, own) = shared.service(keys::<ServiceKeys>(document, sink)?, id, root, sink);
            Definition::Service(Box::new(service), own)
        }
        Kind::StreamRoutes => {
            let keys = keys::<StreamRouteKeys>(document, sink)?;
            let is_enabled = keys.status;
            let (route, _) = shared.stream_route(keys, id.to_owned(), DOCUMENT, root, sink);
            Definition::StreamRoute(is_enabled.then(|| Box::new(route)))
        }
        Kind::Routes => {
            let keys = keys::<RouteKeys>(document, sink)?;
            let is_enabled = keys.status;
            let Resolved { route, .. } = shared.route(keys, id.to_owned(), DOCUMENT, root, sink);
            Definition::Route(is_enabled.then(|| Box::new(route)))
        }
        Kind::PluginMetadata | Kind::ConsumerGroups | Kind::Consumers => {
            sink.error(DOCUMENT, root, format!("{} are read from files only", kind.name()));
            return None;
        }
    })
}

impl Definition {
    /// Whether it says what it takes.
    fn has_match(&self) -> bool {
        match self {
            Definition::Route(Some(route)) => route.spec.uri().is_none_or(|uri| !uri.paths.is_empty()),
            Definition::StreamRoute(route) => route.is_some(),
            _ => false,
        }
    }

    /// Why it leads nowhere, where it does.
    pub(super) fn is_unavailable(&self) -> Option<String> {
        let target = match self {
            Definition::Route(Some(route)) => &route.target,
            Definition::StreamRoute(Some(route)) => &route.target,
            _ => return None,
        };
        match target {
            Target::Unavailable(reason) => Some(reason.to_string()),
            Target::Shared(_) | Target::Own(_) => None,
        }
    }

    /// The same where it must not be served: all that it takes is answered 503. `None`: it takes nothing itself.
    pub(super) fn unavailable(self, reason: &str) -> Option<Definition> {
        let target = Target::Unavailable(reason.into());
        match self {
            // No plugin of it answers either.
            Definition::Route(Some(route)) => {
                Some(Definition::Route(Some(Box::new(Route { target, chain: None, ..*route }))))
            }
            Definition::StreamRoute(Some(route)) => {
                Some(Definition::StreamRoute(Some(Box::new(StreamRoute { target, ..*route }))))
            }
            _ => None,
        }
    }
}

fn keys<T: Object>(document: &Json, sink: &mut Sink) -> Option<T> {
    let node = node(document, &Path::Root, sink);
    read(&map::<T>(), &node, &Path::Root, sink)
}

/// What is wrong, in one line.
pub(super) fn reason(errors: &[Diagnostic]) -> String {
    let say = |error: &Diagnostic| Diagnostic { line: 0, excerpt: None, ..error.clone() }.to_string();
    errors.iter().map(say).collect::<Vec<_>>().join("; ")
}

/// Whether an error leaves it open what a route takes. A key that is not known may be one that would narrow it, misspelt.
fn is_of_match(path: &str) -> bool {
    // With "", what is wrong is of several keys, or one is missing.
    const OTHERS: [&str; 15] = [
        "",
        "id",
        "name",
        "desc",
        "labels",
        "create_time",
        "update_time",
        "upstream",
        "upstream_id",
        "service_id",
        "plugins",
        "plugin_config_id",
        "timeout",
        "enable_websocket",
        "on_change",
    ];
    !OTHERS.contains(&path.split(['.', '[']).next().unwrap_or_default())
}
