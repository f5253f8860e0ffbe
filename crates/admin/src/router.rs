//! The router: every endpoint of the table behind the guard, and the answers for unknown paths.

use crate::answer::{Answer, answer_off_thread, off_thread};
use crate::control::{Control, WriteError};
use crate::endpoints::{self, Action, Api, Page, ParsedRequest, endpoints, writes_documents};
use crate::resource::serve::{self, refuse_conditions};
use crate::{batch, history, schemas, standalone, ui};
use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get, on};
use std::collections::BTreeMap;
use std::sync::Arc;
use stillgate_door::{Guard, Peer};

/// The parts of a path in braces.
type Parts = Result<RawPathParams, RawPathParamsRejection>;

/// The Admin API with further pages of the gateway. Requests need a [`Peer`] in their extensions.
pub fn router(control: Arc<dyn Control>, guard: Arc<Guard>, pages: Vec<Page>) -> Router {
    let mut described = endpoints(&pages);
    let mut of_path: BTreeMap<String, MethodRouter<Arc<Api>>> = BTreeMap::new();
    for endpoint in &described {
        let served = match endpoint.action {
            Action::Page(index) => pages[index].answer.clone().with_state(()),
            Action::Index => get(index_page),
            action => handler(&endpoint.method, action),
        };
        let slot = of_path.entry(endpoint.path.clone()).or_default();
        *slot = std::mem::take(slot).merge(served);
    }
    described.retain(|endpoint| !endpoint.is_hidden);
    let admission = Admission { guard: guard.clone(), control: control.clone() };
    let api = Arc::new(Api::new(control, guard, described));
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
    ui::add_routes(router).fallback(no_path).with_state(api).layer(from_fn_with_state(admission, admit))
}

fn handler(method: &Method, action: Action) -> MethodRouter<Arc<Api>> {
    let filter = MethodFilter::try_from(method.clone()).expect("the table has standard methods only");
    on(filter, move |State(api): State<Arc<Api>>, parts: Parts, request: Request| async move {
        let Ok(parts) = parts else {
            return Answer::bad("the path is not UTF-8").into_response();
        };
        let parts = parts.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        match ParsedRequest::of(&api, action, request, parts).await {
            Ok(asked) => answer(api, action, asked).await.into_response(),
            Err(answer) => answer.into_response(),
        }
    })
}

async fn index_page(State(api): State<Arc<Api>>, headers: HeaderMap) -> Response {
    endpoints::answer_index(&api.described, &headers)
}

async fn answer(api: Arc<Api>, action: Action, asked: ParsedRequest) -> Answer {
    // Documents that have not been read yet are not absent.
    if action.needs_documents()
        && let Err(why) = api.control.readable().await
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
        Action::Resource(crate::collections::Verb::Get, collection) => serve::get(api, asked, collection).await,
        Action::Resource(verb, collection) => serve::write(&api, asked, verb, collection).await,
        Action::PluginList => schemas::list_plugins(&api, &asked),
        Action::PluginSchema => schemas::plugin_schema(&api, &asked),
        Action::PluginReload => Answer::text(StatusCode::OK, "done"),
        Action::Schema => schemas::schema_of_kind(&api, &asked),
        Action::SchemaValidate => {
            api.control.fetch_secrets(&asked.body).await;
            match off_thread(move || schemas::validate(&api, &asked)).await {
                Ok(answer) | Err(answer) => answer,
            }
        }
        Action::Configs => {
            let place = api.list_permit().await;
            answer_off_thread(Some(place), move || standalone::get(&api, &asked)).await
        }
        Action::ConfigsReplace => into_answer(standalone::replace(api, asked).await),
        Action::ConfigsValidate => into_answer(standalone::validate(api, asked).await),
        Action::History => history::list(&api, &asked).await,
        Action::Change => history::change(api, asked).await,
        Action::RollBack => into_answer(history::roll_back(&api, &asked).await),
        Action::Batch => into_answer(batch::batch(api, asked).await),
        Action::Backup => into_answer(history::back_up(&api, &asked).await),
        Action::SessionShow => ui::show_session(&api, &asked),
        Action::SessionOpen => ui::open_session(&api, asked).await,
        Action::SessionClose => ui::close_session(&api, &asked),
        Action::OpenApi => {
            let place = api.list_permit().await;
            answer_off_thread(Some(place), move || schemas::describe_api(&api)).await
        }
        // They are routed to their own handlers.
        Action::Index | Action::Page(_) => Answer::empty(StatusCode::NOT_FOUND),
    }
}

fn into_answer(result: Result<Answer, Answer>) -> Answer {
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
            match crate::collections::Collection::named(resource).is_some() || known.contains(&resource) {
                true => Answer::error(StatusCode::NOT_FOUND, "not found"),
                false => Answer::error(StatusCode::NOT_FOUND, format!("Unsupported resource type: {resource}")),
            }
        }
        None => Answer::error(StatusCode::NOT_FOUND, "404 Not Found: /v1/openapi.json lists the paths"),
    };
    answer.into_response()
}

// The first thing that happens to a request: the guard admits it, or it is refused.

/// The input of [`admit`].
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) guard: Arc<Guard>,
    pub(crate) control: Arc<dyn Control>,
}

impl Admission {
    /// The response to a write that is refused with any key, for which "a key is missing" would be misleading.
    fn useless(&self, request: &Request) -> Option<Answer> {
        let is_in_question = self.guard.reads_without_key(Peer::of(request))
            && writes_documents(request.method(), request.uri().path())
            && self.guard.needs_key(request);
        let why = self.control.writable().err().filter(|_| is_in_question)?;
        Some(Answer::error(StatusCode::NOT_IMPLEMENTED, why).with_close())
    }
}

/// [`Guard::admit`] as a middleware.
pub(crate) async fn admit(State(admission): State<Admission>, mut request: Request, next: Next) -> Response {
    if let Some(answer) = admission.useless(&request) {
        return answer.into_response();
    }
    match admission.guard.admit(&mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal,
    }
}
