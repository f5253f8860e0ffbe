//! The Admin API of a running gateway, or of an APISIX: everything is read, and batches are written.
//!
//! A Stillgate and an APISIX without etcd give everything in one answer; of another APISIX the lists are read page by page.

use super::Failure;
use super::resources::{Resource, Resources, mark_hidden_key};
use crate::commands::cli::Asking;
use crate::configuration::kept::resource_of;
use crate::configuration::source::read_bounded;
use crate::http_client::HttpClient;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::time::Duration;
use stillgate_config::Kind;
use stillgate_datastore::Key;
use stillgate_tls::{Peer, ServiceRoots, towards_service, towards_service_as};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

/// Names the variable with the key.
const KEY_VARIABLE: &str = "STILLGATE_ADMIN_KEY";

const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"), " (command)");

/// For one answer: a store of a gigabyte takes a while.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Bytes of one answer: all documents, or a copy of the store.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Bytes of a file of PEM.
const PEM_BYTES_MAX: usize = 1 << 20;

/// Documents of a page; APISIX gives no more.
const PAGE_SIZE: usize = 500;

/// Pages of a list; more are an error of the server.
const PAGES_MAX: usize = 100_000;

/// How often a write that is refused for a moment is tried again, and the pause before.
const TRIES_MAX: usize = 10;
const TRY_PAUSE: Duration = Duration::from_millis(300);

/// An Admin API.
pub(in crate::commands) struct Remote {
    /// Without a slash at the end.
    base: String,
    key: Option<String>,
    client: HttpClient,
    runtime: Runtime,
}

/// What a batch was answered with.
#[derive(Debug, Default)]
pub(super) struct Answered {
    pub(super) warnings: Vec<String>,
    pub(super) body: Json,
}

/// Why a batch was not made.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) message: String,
    /// The operation that failed, from 0, if it is one of them.
    pub(super) operation: Option<usize>,
}

impl Remote {
    pub(in crate::commands) fn new(url: &str, asking: &Asking) -> Result<Remote, Failure> {
        let unusable = |why: String| Failure::Unusable(format!("{url}: {why}"));
        let uri: Uri =
            url.parse().map_err(|_| unusable("not a URL; write it like \"http://127.0.0.1:9180\"".into()))?;
        let is_tls = match (uri.scheme_str(), uri.host()) {
            (Some("https"), Some(_)) => true,
            (Some("http"), Some(_)) => false,
            _ => return Err(unusable("not an http or https URL; write it like \"http://127.0.0.1:9180\"".into())),
        };
        let key = asking.key.clone().or_else(|| std::env::var(KEY_VARIABLE).ok()).filter(|key| !key.is_empty());
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Failure::Unusable("the admin key must be printable ASCII without spaces".to_owned()));
        }
        let tls = is_tls.then(|| connector(asking)).transpose().map_err(Failure::Unusable)?;
        let client = HttpClient {
            tls,
            allows_plain: true,
            peer: Peer::Service,
            agent: AGENT,
            timeout: TIMEOUT,
            response_bytes_max: ANSWER_BYTES_MAX,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Remote { base: url.trim_end_matches('/').to_owned(), key, client, runtime })
    }

    /// Everything that is there, as the key may see it.
    pub(super) fn read_all(&self) -> Result<Resources, Failure> {
        self.check_source()?;
        let answer = self.ask(Method::GET, "/apisix/admin/configs?created=true", None)?;
        match answer.status() {
            StatusCode::OK => of_whole(&json_of(&answer)?),
            // An APISIX that keeps its resources in etcd has no such path.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => self.read_lists(),
            _ => Err(self.refusal(&answer)),
        }
    }

    /// Makes several changes, or none. `query`: with its question mark.
    pub(super) fn batch(&self, operations: &[&Json], query: &str) -> Result<Answered, Refused> {
        let body = json!(operations).to_string();
        let refused = |message: String| Refused { message, operation: None };
        let mut tries = 0;
        let answer = loop {
            let answer = self.ask(Method::POST, &format!("/v1/batch{query}"), Some(body.clone().into()));
            let answer = answer.map_err(|failure| refused(failure.message().to_owned()))?;
            tries += 1;
            // Somebody else wrote meanwhile, or the gateway is being upgraded.
            let is_passing =
                matches!(answer.status(), StatusCode::PRECONDITION_FAILED | StatusCode::SERVICE_UNAVAILABLE);
            if !is_passing || tries == TRIES_MAX {
                break answer;
            }
            std::thread::sleep(TRY_PAUSE);
        };
        if answer.status() == StatusCode::OK {
            let warnings = answer.headers().get_all("x-stillgate-warning").iter();
            let warnings = warnings.filter_map(|warning| Some(warning.to_str().ok()?.to_owned())).collect();
            return Ok(Answered { warnings, body: serde_json::from_slice(answer.body()).unwrap_or_default() });
        }
        let said: Json = serde_json::from_slice(answer.body()).unwrap_or_default();
        let operation = said["operation"].as_u64().and_then(|index| usize::try_from(index).ok());
        match (operation, said["error_msg"].as_str()) {
            (Some(index), Some(message)) => {
                let message = message.strip_prefix(&format!("operation {index}: ")).unwrap_or(message).to_owned();
                Err(Refused { message, operation })
            }
            _ => Err(refused(self.refusal(&answer).message().to_owned())),
        }
    }

    /// A copy of the store, and the path of it on the gateway's machine.
    pub(super) fn backup(&self) -> Result<(Bytes, String), Failure> {
        let answer = self.ask(Method::POST, "/v1/store/backup", None)?;
        if answer.status() != StatusCode::OK {
            return Err(self.refusal(&answer));
        }
        let store = answer.headers().get("x-stillgate-store").and_then(|path| path.to_str().ok());
        Ok((answer.body().clone(), store.unwrap_or_default().to_owned()))
    }

    /// What a page of the gateway answers.
    pub(in crate::commands) fn page(&self, path: &str) -> Result<Bytes, Failure> {
        let answer = self.ask(Method::GET, path, None)?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            _ => Err(self.refusal(&answer)),
        }
    }

    /// A gateway that reads a file has nothing to give or to change.
    fn check_source(&self) -> Result<(), Failure> {
        let answer = self.ask(Method::GET, "/v1/status", None)?;
        let status: Json = serde_json::from_slice(answer.body()).unwrap_or_default();
        match status["source"] == "file" {
            true => Err(Failure::Failed(format!(
                "{}: this gateway's resources come from its file; use that file, or set gateway.config.source to store",
                self.base
            ))),
            false => Ok(()),
        }
    }

    fn read_lists(&self) -> Result<Resources, Failure> {
        let mut found = Resources::new();
        for kind in Kind::all().filter(|kind| *kind != Kind::Credentials) {
            self.read_list(kind.name(), &mut found)?;
        }
        let consumers: Vec<String> =
            found.keys().filter(|name| name.0 == Kind::Consumers).map(|name| name.1.clone()).collect();
        for consumer in consumers {
            self.read_list(&format!("consumers/{consumer}/credentials"), &mut found)?;
        }
        Ok(found)
    }

    /// All pages of a list; none, where there is no such list.
    fn read_list(&self, path: &str, found: &mut Resources) -> Result<(), Failure> {
        for page in 1..=PAGES_MAX {
            let answer =
                self.ask(Method::GET, &format!("/apisix/admin/{path}?page={page}&page_size={PAGE_SIZE}"), None)?;
            match answer.status() {
                StatusCode::OK => {}
                // An older APISIX, a consumer without credentials, or stream routes where they are switched off.
                StatusCode::NOT_FOUND => return Ok(()),
                StatusCode::BAD_REQUEST if path == Kind::StreamRoutes.name() => return Ok(()),
                _ => return Err(self.refusal(&answer)),
            }
            let mut whole = json_of(&answer)?;
            let list = whole.get_mut("list").map(Json::take).unwrap_or_default();
            // Lua does not tell an empty list from an empty object.
            let items = list.as_array().cloned().unwrap_or_default();
            let count = items.len();
            for item in items {
                self.take(item, found)?;
            }
            if count < PAGE_SIZE {
                return Ok(());
            }
        }
        Err(Failure::Failed(format!(
            "{}: the list of {path} does not end; is this the address of an Admin API?",
            self.base
        )))
    }

    fn take(&self, mut item: Json, found: &mut Resources) -> Result<(), Failure> {
        let key = item["key"].as_str().and_then(|key| Key::parse(key.strip_prefix("/apisix/")?).ok());
        let name = key.as_ref().and_then(resource_of);
        let name = name
            .ok_or_else(|| Failure::Failed(format!("{}: {} is not the key of a resource", self.base, item["key"])))?;
        let created = item["createdIndex"].as_u64().unwrap_or_default();
        add(found, name, Resource::stored(item.get_mut("value").map(Json::take).unwrap_or_default(), created));
        Ok(())
    }

    fn ask(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Response<Bytes>, Failure> {
        let unusable = |why: String| Failure::Failed(format!("{}: {why}", self.base));
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("X-API-KEY", key);
        }
        let request = request.body(Full::new(body.unwrap_or_default())).map_err(|error| unusable(error.to_string()))?;
        self.runtime.block_on(self.client.send(request)).map_err(|error| {
            let error = error.split("; can the gateway").next().unwrap_or_default();
            unusable(format!("{error}; is a gateway running there, with gateway.admin?"))
        })
    }

    fn refusal(&self, answer: &Response<Bytes>) -> Failure {
        let said: Json = serde_json::from_slice(answer.body()).unwrap_or_default();
        let message = ["description", "error_msg", "message"].iter().find_map(|name| said[*name].as_str());
        let message = message
            .map(str::to_owned)
            .unwrap_or_else(|| String::from_utf8_lossy(answer.body()).chars().take(200).collect());
        let hint = match (answer.status(), &self.key) {
            (StatusCode::UNAUTHORIZED, None) => "; set the admin key with STILLGATE_ADMIN_KEY or --key",
            (StatusCode::UNAUTHORIZED, Some(_)) => "; set another admin key with STILLGATE_ADMIN_KEY or --key",
            (StatusCode::NOT_FOUND, _) => "; is this the admin address of a Stillgate gateway?",
            _ => "",
        };
        Failure::Failed(format!("{}: {}: {}{hint}", self.base, answer.status().as_u16(), message.trim()))
    }
}

fn connector(asking: &Asking) -> Result<TlsConnector, String> {
    let read = |file: &Path| {
        read_bounded(file, PEM_BYTES_MAX).map_err(|error| format!("cannot read {}: {error}", file.display()))
    };
    let (ca, system): (Vec<u8>, Vec<Vec<u8>>);
    let roots = match &asking.ca {
        Some(file) => {
            ca = read(file)?;
            ServiceRoots::Pem(&ca)
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            system = found.certs.iter().map(|certificate| certificate.to_vec()).collect();
            ServiceRoots::Der(&system)
        }
    };
    let config = match (&asking.client_cert, &asking.client_key) {
        (Some(cert), Some(key)) => towards_service_as(roots, (&read(cert)?, &read(key)?)),
        _ => towards_service(roots),
    };
    config.map(TlsConnector::from)
}

fn json_of(answer: &Response<Bytes>) -> Result<Json, Failure> {
    serde_json::from_slice(answer.body()).map_err(|error| {
        Failure::Failed(format!("the answer is not JSON: {error}; is this the address of an Admin API?"))
    })
}

/// The resources of `configs`.
fn of_whole(whole: &Json) -> Result<Resources, Failure> {
    let mut found = Resources::new();
    for kind in Kind::all() {
        for item in whole[kind.name()].as_array().into_iter().flatten() {
            let mut document = item.clone();
            let created = document["createdIndex"].as_u64().unwrap_or_default();
            let id = if kind == Kind::Consumers && item["id"].is_null() { &item["username"] } else { &item["id"] };
            let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            let name = match id.split_once("/credentials/") {
                Some((consumer, id)) => {
                    document["id"] = id.into();
                    (Kind::Credentials, format!("{consumer}/{id}"))
                }
                None => (kind, id),
            };
            add(&mut found, name, Resource::stored(document, created));
        }
    }
    Ok(found)
}

fn add(found: &mut Resources, name: (Kind, String), mut resource: Resource) {
    if name.0 == Kind::Ssls {
        mark_hidden_key(&mut resource.document);
    }
    found.insert(name, resource);
}
