//! The router: every endpoint of the table behind the guard, and the answers for unknown paths.

use crate::admission::{Admission, admit};
use crate::answer::Answer;
use crate::body::{LARGE_AT_ONCE_MAX, LARGE_BYTES_MIN, MANY_BYTES_MAX, SINGLE_BYTES_MAX, SMALL_BYTES_MAX, parse, read};
use crate::collections::{Collection, Verb};
use crate::control::{Control, WriteError};
use crate::endpoints::{Action, Endpoint, Page, endpoints};
use crate::off_thread::off_thread;
use crate::query::Query;
use crate::resource::address::Address;
use crate::resource::precondition::refuse_conditions;
use crate::resource::serve;
use crate::standalone::Standalone;
use crate::{backup, batch, history, openapi, plugins, sign_in, standalone, ui};
use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use bytes::Bytes;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use stillgate_door::{Caller, Guard, Peer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of lists of resources that are made at once; more wait.
const LISTS_AT_ONCE_MAX: usize = 2;

/// The parts of a path in braces.
type Parts = Result<RawPathParams, RawPathParamsRejection>;

/// The state that all handlers share.
pub(crate) struct Api {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) standalone: Standalone,
    /// Limits requests with large bodies.
    pub(crate) large_bodies: Arc<Semaphore>,
    /// Limits lists of resources.
    pub(crate) lists: Arc<Semaphore>,
    /// The endpoints of the OpenAPI description that are not hidden: method, path, action, summary.
    pub(crate) described: Vec<Endpoint>,
}

/// A request in parts.
pub(crate) struct Asked {
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

/// The Admin API with further pages of the gateway. Requests need a [`Peer`] in their extensions.
pub fn router(control: Arc<dyn Control>, guard: Arc<Guard>, pages: Vec<Page>) -> Router {
    let mut described = endpoints(&pages);
    let mut of_path: BTreeMap<String, MethodRouter<Arc<Api>>> = BTreeMap::new();
    for endpoint in &described {
        let served = match endpoint.action {
            Action::Page(index) => pages[index].answer.clone().with_state(()),
            action => handler(&endpoint.method, action),
        };
        let slot = of_path.entry(endpoint.path.clone()).or_default();
        *slot = std::mem::take(slot).merge(served);
    }
    described.retain(|endpoint| !endpoint.is_hidden);
    let large_bodies = Arc::new(Semaphore::new(LARGE_AT_ONCE_MAX));
    let admission = Admission { guard: guard.clone(), control: control.clone() };
    let api = Arc::new(Api {
        control,
        guard,
        standalone: Standalone::default(),
        large_bodies,
        lists: Arc::new(Semaphore::new(LISTS_AT_ONCE_MAX)),
        described,
    });
    let mut router = Router::new();
    for (path, methods) in of_path {
        let methods = methods.fallback(no_method);
        // APISIX ignores a slash at the end.
        let has_twin = path.starts_with("/apisix/") && !path.contains("{*");
        if has_twin {
            router = router.route(&format!("{path}/"), methods.clone());
        }
        router = router.route(&path, methods);
    }
    ui::add(router).fallback(no_path).with_state(api).layer(from_fn_with_state(admission, admit))
}

fn handler(method: &Method, action: Action) -> MethodRouter<Arc<Api>> {
    let filter = MethodFilter::try_from(method.clone()).expect("the table has standard methods only");
    on(filter, move |State(api): State<Arc<Api>>, parts: Parts, request: Request| async move {
        let Ok(parts) = parts else {
            return Answer::bad("the path is not UTF-8").into_response();
        };
        let parts = parts.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        match Asked::of(&api, action, request, parts).await {
            Ok(asked) => answer(api, action, asked).await.into_response(),
            Err(answer) => answer.into_response(),
        }
    })
}

async fn answer(api: Arc<Api>, action: Action, asked: Asked) -> Answer {
    // Documents that have not been read yet are not absent.
    if action.needs_documents()
        && let Err(why) = api.control.readable()
    {
        return Answer::refused(&WriteError::Unavailable(why));
    }
    if !matches!(action, Action::Resource(..) | Action::Page(_))
        && ![Method::GET, Method::HEAD].contains(&asked.method)
        && let Err(answer) = refuse_conditions(&asked.headers)
    {
        return answer;
    }
    match action {
        Action::Alive => Answer::empty(StatusCode::OK),
        Action::Resource(Verb::Get, collection) => serve::get(api, asked, collection).await,
        Action::Resource(verb, collection) => serve::write(&api, asked, verb, collection).await,
        Action::PluginList => plugins::list(&api, &asked),
        Action::PluginSchema => plugins::schema(&api, &asked),
        Action::PluginReload => Answer::text(StatusCode::OK, "done"),
        Action::Schema => plugins::schema_of_kind(&api, &asked),
        Action::SchemaValidate => plugins::validate(&api, &asked),
        Action::Configs => answered(off_thread(move || standalone::get(&api, &asked)).await),
        Action::ConfigsReplace => answered(standalone::replace(api, asked).await),
        Action::ConfigsValidate => answered(standalone::validate(api, asked).await),
        Action::History => history::list(&api, &asked).await,
        Action::Change => history::change(&api, &asked).await,
        Action::RollBack => answered(history::roll_back(&api, &asked).await),
        Action::Batch => answered(batch::batch(api, asked).await),
        Action::Backup => answered(backup::backup(&api, &asked).await),
        Action::SessionShow => sign_in::show(&api, &asked),
        Action::SessionOpen => sign_in::open(&api, asked).await,
        Action::SessionClose => sign_in::close(&api, &asked),
        Action::OpenApi => openapi::describe(&api),
        // Pages are routed to their own handlers.
        Action::Page(_) => Answer::empty(StatusCode::NOT_FOUND),
    }
}

fn answered(result: Result<Answer, Answer>) -> Answer {
    result.unwrap_or_else(|answer| answer)
}

/// A known path, requested with a method that it does not support.
async fn no_method(request: Request) -> Response {
    let path = request.uri().path();
    let answer = match path.trim_end_matches('/') {
        "/apisix/admin/plugins/reload" => {
            let method = request.method();
            let message = format!("please use PUT method to reload the plugins, {method} method is not allowed.");
            Answer::error(StatusCode::METHOD_NOT_ALLOWED, message)
        }
        "/apisix/admin/configs/validate" => Answer::error(StatusCode::NOT_FOUND, "Not found"),
        path if path.starts_with("/apisix/admin/") => Answer::error(StatusCode::NOT_FOUND, "not found"),
        _ => Answer::error(StatusCode::METHOD_NOT_ALLOWED, "405 Method Not Allowed: see the header Allow"),
    };
    answer.into_response()
}

/// An unknown path.
async fn no_path(request: Request) -> Response {
    let answer = match request.uri().path().strip_prefix("/apisix/admin/") {
        Some(rest) => {
            let resource = rest.split('/').next().unwrap_or_default();
            let known = ["plugins", "schema", "configs"];
            match Collection::named(resource).is_some() || known.contains(&resource) {
                true => Answer::error(StatusCode::NOT_FOUND, "not found"),
                false => Answer::error(StatusCode::NOT_FOUND, format!("Unsupported resource type: {resource}")),
            }
        }
        None => Answer::error(StatusCode::NOT_FOUND, "404 Not Found: /v1/openapi.json lists the paths"),
    };
    answer.into_response()
}

impl Asked {
    /// Reads the body if the action uses it: an unused body takes no memory.
    async fn of(api: &Api, action: Action, request: Request, parts: BTreeMap<String, String>) -> Result<Asked, Answer> {
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
                let place = place().await;
                (read(&head.headers, body, MANY_BYTES_MAX).await?, place)
            }
            _ => (Bytes::new(), None),
        };
        let caller = head.extensions.get::<Caller>().cloned().expect("the guard lets nobody by without a caller");
        let query = Query::parse(head.uri.query());
        let path = head.uri.path().to_owned();
        Ok(Asked { caller, peer, method: head.method, path, query, headers: head.headers, parts, body, place })
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
