//! The table of endpoints, from which the router with its 404s, the index at `/` and the OpenAPI description are built; that index:
//! the paths that can be opened in a browser; and the state that all handlers share.

use crate::answer::Answer;
use crate::body::{
    LARGE_AT_ONCE_MAX, LARGE_BYTES_MIN, MANY_BYTES_MAX, READ_AT_ONCE_MAX, SINGLE_BYTES_MAX, SMALL_BYTES_MAX, parse,
    read,
};
use crate::collections::{COLLECTIONS, Collection, DocumentNaming, Verb};
use crate::control::Control;
use crate::query::Query;
use crate::resource::address::Address;
use crate::standalone::Standalone;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, Method, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use stillgate_door::{Caller, Guard, Peer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One method of one path.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// The path in the router's syntax: `/apisix/admin/routes/{id}`.
    pub(crate) path: String,
    pub(crate) action: Action,
    pub(crate) summary: String,
    /// The endpoint only explains a refusal, or is another spelling of a path: it is not described.
    pub(crate) is_hidden: bool,
}

/// The action of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Index,
    Alive,
    Resource(Verb, &'static Collection),
    PluginList,
    PluginSchema,
    PluginReload,
    Schema,
    SchemaValidate,
    Configs,
    ConfigsReplace,
    ConfigsValidate,
    History,
    Change,
    RollBack,
    Batch,
    Backup,
    SessionShow,
    SessionOpen,
    SessionClose,
    OpenApi,
    /// An endpoint of the gateway, by index.
    Page(usize),
}

impl Action {
    /// Whether the stored documents affect the answer.
    pub(crate) fn needs_documents(self) -> bool {
        matches!(self, Action::Resource(..) | Action::Configs | Action::ConfigsReplace | Action::Batch)
    }
}

/// An endpoint that the gateway itself serves behind the same guard: viewers can only read.
#[derive(Debug, Clone)]
pub struct Page {
    /// GET, unless it changes something.
    pub method: Method,
    /// The path in the syntax of axum's router.
    pub path: &'static str,
    /// For the OpenAPI description.
    pub summary: &'static str,
    /// Handles the request.
    pub answer: MethodRouter,
}

/// Method, path, action, summary.
const OTHERS: [(Method, &str, Action, &str); 20] = [
    (Method::GET, "/", Action::Index, "List the paths"),
    (Method::HEAD, "/apisix/admin", Action::Alive, "Check that there is an Admin API"),
    (Method::GET, "/apisix/admin/plugins/list", Action::PluginList, "List the names of all plugins"),
    (Method::PUT, "/apisix/admin/plugins/reload", Action::PluginReload, "Do nothing: plugins are built in"),
    (Method::GET, "/apisix/admin/plugins/{name}", Action::PluginSchema, "Get the schema of a plugin"),
    (Method::GET, "/apisix/admin/plugins", Action::PluginSchema, "Get all plugins with their schemas (all=true)"),
    (Method::GET, "/apisix/admin/schema/plugins/{name}", Action::PluginSchema, "Get the schema of a plugin"),
    (Method::GET, "/apisix/admin/schema/{kind}", Action::Schema, "Get the schema of a kind of resource"),
    (Method::POST, "/apisix/admin/schema/validate/{kind}", Action::SchemaValidate, "Validate one resource by itself"),
    (Method::GET, "/apisix/admin/configs", Action::Configs, "Get all resources"),
    (Method::PUT, "/apisix/admin/configs", Action::ConfigsReplace, "Replace all resources"),
    (Method::POST, "/apisix/admin/configs/validate", Action::ConfigsValidate, "Validate all resources together"),
    (Method::GET, "/v1/history", Action::History, "List the last changes"),
    (Method::GET, "/v1/history/{revision}", Action::Change, "Get one change with the values before and after"),
    (Method::POST, "/v1/rollback", Action::RollBack, "Go back to a revision, in one change"),
    (Method::POST, "/v1/batch", Action::Batch, "Make several writes: all or none"),
    (Method::POST, "/v1/store/backup", Action::Backup, "Get a copy of the store, history included"),
    (Method::GET, "/v1/session", Action::SessionShow, "Get the session, with its CSRF token"),
    (Method::POST, "/v1/session", Action::SessionOpen, "Sign in with a key or a sign-in token"),
    (Method::DELETE, "/v1/session", Action::SessionClose, "Sign out"),
];

/// Whether a request would change stored documents.
pub(crate) fn writes_documents(method: &Method, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let is_write = !matches!(*method, Method::GET | Method::HEAD);
    is_write
        && match path.strip_prefix("/apisix/admin/") {
            Some("configs") => true,
            Some(rest) => Collection::named(rest.split('/').next().unwrap_or_default()).is_some(),
            None => matches!(path, "/v1/batch" | "/v1/rollback"),
        }
}

/// All endpoints, including those of the gateway.
pub(crate) fn endpoints(pages: &[Page]) -> Vec<Endpoint> {
    let mut endpoints: Vec<Endpoint> = COLLECTIONS.iter().flat_map(of_collection).collect();
    let other = |(method, path, action, summary): (Method, &str, Action, &str)| Endpoint {
        method,
        path: path.to_owned(),
        action,
        summary: summary.to_owned(),
        is_hidden: false,
    };
    endpoints.extend(OTHERS.into_iter().map(other));
    endpoints.push(other((Method::GET, "/v1/openapi.json", Action::OpenApi, "Get this description")));
    let page =
        |(index, page): (usize, &Page)| other((page.method.clone(), page.path, Action::Page(index), page.summary));
    endpoints.extend(pages.iter().enumerate().map(page));
    endpoints
}

fn of_collection(collection: &'static Collection) -> Vec<Endpoint> {
    let (list, one) = (collection.list_path(), collection.path());
    let mut endpoints = Vec::new();
    let mut add = |verb: Verb, path: &str, is_usual: bool| {
        endpoints.push(Endpoint {
            method: verb.method(),
            path: path.to_owned(),
            action: Action::Resource(verb, collection),
            summary: summary(verb, collection, path == list),
            is_hidden: !is_usual || collection.refused.contains(&verb),
        });
    };
    for verb in Verb::ALL {
        add(verb, &list, matches!(verb, Verb::Get | Verb::Post) || is_put_to_list(verb, collection));
        add(verb, &one, verb != Verb::Post);
    }
    add(Verb::Patch, &format!("{one}/{{*path}}"), true);
    if collection.naming == DocumentNaming::Manager {
        Verb::ALL.into_iter().for_each(|verb| add(verb, &format!("{list}/{{manager}}"), false));
    }
    endpoints
}

/// A document with its own name is put to the list.
fn is_put_to_list(verb: Verb, collection: &Collection) -> bool {
    verb == Verb::Put && collection.naming == DocumentNaming::Username
}

fn summary(verb: Verb, collection: &Collection, is_list: bool) -> String {
    let kind = collection.kind;
    match (verb, is_list) {
        (Verb::Get, true) => format!("List: {kind}, by page, name, label and other filters"),
        (Verb::Get, false) => format!("Get: {kind}"),
        (Verb::Post, _) => format!("Create with a generated id: {kind}"),
        (Verb::Put, _) => format!("Create or replace: {kind}"),
        (Verb::Patch, _) => format!("Change parts: {kind}"),
        (Verb::Delete, _) => format!("Delete: {kind}"),
    }
}

impl Verb {
    pub(crate) fn method(self) -> Method {
        match self {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
            Verb::Put => Method::PUT,
            Verb::Patch => Method::PATCH,
            Verb::Delete => Method::DELETE,
        }
    }
}

// A request in parts, as handlers get it.

/// A request in parts.
pub(crate) struct ParsedRequest {
    pub(crate) caller: Caller,
    pub(crate) peer: IpAddr,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) parts: BTreeMap<String, String>,
    pub(crate) body: Bytes,
    /// Held until the request is answered if its body is large: processing a body takes more memory than the body itself. Work on
    /// another thread, which continues if the client disconnects, holds it too.
    pub(crate) place: Option<Arc<OwnedSemaphorePermit>>,
}

impl ParsedRequest {
    /// Reads the body if the action uses it: an unused body takes no memory.
    pub(crate) async fn of(
        api: &Api,
        action: Action,
        request: Request,
        parts: BTreeMap<String, String>,
    ) -> Result<ParsedRequest, Answer> {
        let peer = Peer::of(&request);
        let (head, body) = request.into_parts();
        let place = || async {
            let place = api.large_bodies.clone().acquire_owned().await;
            Some(Arc::new(place.expect("the semaphore is never closed")))
        };
        let (body, place) = match action {
            Action::Resource(Verb::Get | Verb::Delete, _) => (Bytes::new(), None),
            Action::Resource(..) | Action::SchemaValidate => {
                let body = read(&head.headers, body, SINGLE_BYTES_MAX).await?;
                let is_large = body.len() >= LARGE_BYTES_MIN;
                (body, if is_large { place().await } else { None })
            }
            Action::SessionOpen | Action::RollBack => (read(&head.headers, body, SMALL_BYTES_MAX).await?, None),
            Action::ConfigsReplace | Action::ConfigsValidate | Action::Batch => {
                let _reading = api.long_reads.acquire().await.expect("the semaphore is never closed");
                let body = read(&head.headers, body, MANY_BYTES_MAX).await?;
                (body, place().await)
            }
            _ => (Bytes::new(), None),
        };
        let caller = head.extensions.get::<Caller>().cloned().expect("the guard lets nobody by without a caller");
        let query = Query::parse(head.uri.query());
        let path = head.uri.path().to_owned();
        Ok(ParsedRequest { caller, peer, method: head.method, path, query, headers: head.headers, parts, body, place })
    }

    /// The document that the path names.
    pub(crate) fn address(&self) -> Address {
        let part = |name: &str| self.parts.get(name).cloned();
        let (username, id, manager) = (part("username"), part("id"), part("manager"));
        let is_consumer = username.is_some() && !self.path.contains("/credentials");
        let (id, parent) = if is_consumer { (username, None) } else { (id, username.or(manager)) };
        Address { id, parent, sub_path: part("path") }
    }

    /// The body as JSON; `None`: it is empty.
    pub(crate) fn json(&self) -> Result<Option<Json>, Answer> {
        parse(&self.body)
    }
}

/// The dashboard consists of files, which the table does not have.
const DASHBOARD: (&str, &str) = ("/ui/", "Open the dashboard");

/// The index as text, or as a page for browsers.
pub(crate) fn answer_index(endpoints: &[Endpoint], headers: &HeaderMap) -> Response<Body> {
    let is_browser = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/html"));
    let entries = entries(endpoints);
    let (content_type, body) = match is_browser {
        true => ("text/html; charset=utf-8", page(&entries)),
        false => ("text/plain; charset=utf-8", lines(&entries)),
    };
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    response
}

/// Paths and their purposes, sorted by path. Those with a variable lead nowhere by themselves.
fn entries(endpoints: &[Endpoint]) -> Vec<(&str, &str)> {
    let is_link = |endpoint: &&Endpoint| endpoint.method == Method::GET && !endpoint.path.contains('{');
    let links = endpoints.iter().filter(is_link).map(|endpoint| (endpoint.path.as_str(), endpoint.summary.as_str()));
    let mut entries: Vec<(&str, &str)> = links.chain([DASHBOARD]).collect();
    entries.sort_unstable();
    entries
}

/// One line a path.
fn lines(entries: &[(&str, &str)]) -> String {
    let width = entries.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
    entries.iter().fold(String::new(), |mut lines, (path, what)| {
        writeln!(lines, "GET {path:width$}  {what}").expect("writing to a String does not fail");
        lines
    })
}

fn page(entries: &[(&str, &str)]) -> String {
    let items = entries.iter().fold(String::new(), |mut items, (path, what)| {
        writeln!(items, "<li><a href=\"{path}\">{path}</a>: {what}</li>").expect("writing to a String does not fail");
        items
    });
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><title>Stillgate</title></head>\n<body><h1>Stillgate {}</h1>\n<ul>\n{items}</ul></body></html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Number of lists of resources that are made at once; more wait.
const LISTS_AT_ONCE_MAX: usize = 2;

/// The state that all handlers share.
pub(crate) struct Api {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) standalone: Standalone,
    /// Limits requests with large bodies that are processed.
    large_bodies: Arc<Semaphore>,
    /// Limits bodies of up to [`MANY_BYTES_MAX`] that are received.
    long_reads: Semaphore,
    /// Limits lists of resources, and other answers that show many of them.
    lists: Arc<Semaphore>,
    /// The endpoints of the OpenAPI description that are not hidden: method, path, action, summary.
    pub(crate) described: Vec<Endpoint>,
    /// The OpenAPI description as text, once it was asked for.
    pub(crate) openapi: OnceLock<Bytes>,
}

impl Api {
    pub(crate) fn new(control: Arc<dyn Control>, guard: Arc<Guard>, described: Vec<Endpoint>) -> Api {
        Api {
            control,
            guard,
            standalone: Standalone::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_AT_ONCE_MAX)),
            long_reads: Semaphore::new(READ_AT_ONCE_MAX),
            lists: Arc::new(Semaphore::new(LISTS_AT_ONCE_MAX)),
            described,
            openapi: OnceLock::new(),
        }
    }

    /// Waits until another list may be made.
    pub(crate) async fn list_permit(&self) -> OwnedSemaphorePermit {
        self.lists.clone().acquire_owned().await.expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;

    #[test]
    fn each_endpoint_that_can_be_opened_has_a_line() {
        let status =
            Page { method: Method::GET, path: "/v1/status", summary: "Get the status", answer: get(|| async {}) };
        let mut described = endpoints(&[status]);
        described.retain(|endpoint| !endpoint.is_hidden);
        let entries = entries(&described);
        let lines = lines(&entries);
        assert!(lines.starts_with("GET / "), "{lines}");
        for path in ["/v1/status", "/v1/history", "/v1/openapi.json", "/ui/", "/apisix/admin/routes"] {
            assert_eq!(lines.matches(&format!("GET {path} ")).count(), 1, "{path}: {lines}");
        }
        assert!(!lines.contains('{') && !lines.contains("/v1/batch"), "{lines}");
        assert_eq!(lines.lines().count(), entries.len());
        assert!(page(&entries).contains("<a href=\"/v1/status\">/v1/status</a>: Get the status"));
        // No entry is markup.
        assert!(entries.iter().all(|(path, what)| !path.contains('<') && !what.contains('<')));
    }
}
