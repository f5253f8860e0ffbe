//! The Admin API of a running gateway, or of an APISIX: everything is read, and batches are written.
//!
//! A Stillgate and an APISIX without etcd give everything in one answer; of another APISIX the lists are read page by page.

use super::plan::BatchBounds;
use super::resources::{Resource, Resources, mark_hidden_key};
use super::{TransferFailure, peer};
use crate::admin::profiling::OFF;
use crate::commands::cli::AdminApiArguments;
use crate::configuration::kept::resource_of;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::time::Duration;
use stillgate_config::ResourceKind;
use stillgate_datastore::Key;
use stillgate_datastore::embedded::MAGIC;
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_files::read_bounded;
use stillgate_outbound::{HttpClient, UNREACHED};
use stillgate_tls::{Peer, ServiceRoots, towards_service, towards_service_as};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

/// Names the variable with the key.
const KEY_VARIABLE: &str = "STILLGATE_ADMIN_KEY";

const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"), " (command)");

/// Timeout for one answer: a store of a gigabyte takes a while.
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
    /// The URL without a slash at the end.
    pub(super) base: String,
    /// Whether the URL has a path.
    pub(super) has_path: bool,
    /// The option that names it.
    pub(super) option: &'static str,
    key: Option<String>,
    client: HttpClient,
    runtime: Runtime,
}

/// What a batch was answered with.
#[derive(Debug, Default)]
pub(super) struct BatchReply {
    pub(super) warnings: Vec<String>,
    pub(super) body: Json,
}

/// Why a batch was not made.
#[derive(Debug)]
pub(super) struct BatchRefusal {
    pub(super) message: String,
    /// The operation that failed, from 0, if it is one of them.
    pub(super) operation: Option<usize>,
    pub(super) blame: Blame,
}

/// What has to be mended before a batch can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The Admin API refuses what was sent.
    Sent,
    /// The Admin API refuses to make changes, or this key's.
    Gateway,
    /// No Admin API has answered.
    Address,
}

impl Remote {
    /// `option`: the one that `url` comes from.
    pub(in crate::commands) fn new(
        option: &'static str,
        url: &str,
        asking: &AdminApiArguments,
    ) -> Result<Remote, TransferFailure> {
        let unusable = |why: String| TransferFailure::Unusable(format!("{url}: {why}"));
        let uri: Uri =
            url.parse().map_err(|_| unusable("not a URL; write it like \"http://127.0.0.1:9180\"".into()))?;
        let is_tls = match (uri.scheme_str(), uri.host()) {
            (Some("https"), Some(_)) => true,
            (Some("http"), Some(_)) => false,
            _ => return Err(unusable("not an http or https URL; write it like \"http://127.0.0.1:9180\"".into())),
        };
        let key = asking.key.clone().or_else(|| std::env::var(KEY_VARIABLE).ok()).filter(|key| !key.is_empty());
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(TransferFailure::Unusable("the admin key must be printable ASCII without spaces".to_owned()));
        }
        let tls = is_tls.then(|| connector(asking)).transpose().map_err(TransferFailure::Unusable)?;
        let client = HttpClient {
            tls,
            allows_plain: true,
            peer: Peer::Admin,
            agent: AGENT,
            timeout: TIMEOUT,
            response_bytes_max: ANSWER_BYTES_MAX,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| TransferFailure::Failed(error.to_string()))?;
        let (base, has_path) = (url.trim_end_matches('/').to_owned(), !uri.path().trim_matches('/').is_empty());
        Ok(Remote { base, has_path, option, key, client, runtime })
    }

    /// All resources, as far as the key may see them, and what a batch takes.
    pub(super) fn read_all(&self) -> Result<(Resources, BatchBounds), TransferFailure> {
        let bounds = self.batch_bounds()?;
        Ok((self.resources()?, bounds))
    }

    fn resources(&self) -> Result<Resources, TransferFailure> {
        const ALL: &str = "/apisix/admin/configs?created=true";
        let answer = self.ask(Method::GET, ALL, None)?;
        match answer.status() {
            StatusCode::OK => match peer::whole(&answer) {
                Some(whole) => of_whole(&whole),
                None => Err(peer::stranger(self, &format!("GET {ALL}"), &answer)),
            },
            // An APISIX that keeps its resources in etcd has no such path.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => self.read_lists(),
            _ => Err(self.refusal(&format!("GET {ALL}"), &answer)),
        }
    }

    /// Makes several changes, or none. `query`: with its question mark.
    pub(super) fn batch(&self, operations: &[&Json], query: &str) -> Result<BatchReply, BatchRefusal> {
        const PATH: &str = "/v1/batch";
        let body = json!(operations).to_string();
        let refused = |failure: &TransferFailure, blame| BatchRefusal {
            message: failure.message().to_owned(),
            operation: None,
            blame,
        };
        let mut tries = 0;
        let answer = loop {
            let answer = self.ask(Method::POST, &format!("{PATH}{query}"), Some(body.clone().into()));
            let answer = answer.map_err(|failure| refused(&failure, Blame::Address))?;
            tries += 1;
            // Another client wrote meanwhile, or the gateway is being upgraded.
            let is_passing =
                matches!(answer.status(), StatusCode::PRECONDITION_FAILED | StatusCode::SERVICE_UNAVAILABLE);
            if !is_passing || tries == TRIES_MAX {
                break answer;
            }
            std::thread::sleep(TRY_PAUSE);
        };
        let said: Json = serde_json::from_slice(answer.body()).unwrap_or_default();
        if answer.status() == StatusCode::OK {
            if !peer::is_batch(&said, operations.len()) {
                return Err(refused(&peer::stranger(self, &format!("POST {PATH}"), &answer), Blame::Address));
            }
            let warnings = answer.headers().get_all("x-stillgate-warning").iter();
            let warnings = warnings.filter_map(|warning| Some(warning.to_str().ok()?.to_owned())).collect();
            return Ok(BatchReply { warnings, body: said });
        }
        let operation = said["operation"].as_u64().and_then(|index| usize::try_from(index).ok());
        match (operation, said["error_msg"].as_str()) {
            (Some(index), Some(message)) => {
                let message = message.strip_prefix(&format!("operation {index}: ")).unwrap_or(message).to_owned();
                Err(BatchRefusal { message, operation, blame: Blame::Sent })
            }
            _ => {
                let blame = match answer.status() {
                    StatusCode::BAD_REQUEST | StatusCode::PRECONDITION_FAILED => Blame::Sent,
                    status if is_no_path(status) => Blame::Address,
                    _ => Blame::Gateway,
                };
                Err(refused(&self.refusal(&format!("POST {PATH}"), &answer), blame))
            }
        }
    }

    /// A copy of the store, and the path of it on the gateway's machine.
    pub(super) fn backup(&self) -> Result<(Bytes, String), TransferFailure> {
        const PATH: &str = "/v1/store/backup";
        let answer = self.ask(Method::POST, PATH, None)?;
        if answer.status() != StatusCode::OK {
            return Err(self.refusal(&format!("POST {PATH}"), &answer));
        }
        let store = answer.headers().get("x-stillgate-store").and_then(|path| path.to_str().ok());
        match store.filter(|_| answer.body().starts_with(&MAGIC)) {
            Some(store) => Ok((answer.body().clone(), store.to_owned())),
            None => Err(peer::stranger(self, &format!("POST {PATH}"), &answer)),
        }
    }

    /// What a page of the gateway answers.
    pub(in crate::commands) fn page(&self, path: &str) -> Result<Bytes, TransferFailure> {
        let answer = self.ask(Method::GET, path, None)?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            _ => Err(self.refusal(&format!("GET {path}"), &answer)),
        }
    }

    /// What a batch of this gateway takes. One that reads a file has nothing to give or to change.
    fn batch_bounds(&self) -> Result<BatchBounds, TransferFailure> {
        let answer = self.ask(Method::GET, "/v1/status", None)?;
        let status: Json = serde_json::from_slice(answer.body()).unwrap_or_default();
        match status["source"].as_str() {
            Some("file") => Err(TransferFailure::Failed(format!(
                "{}: this gateway's resources come from its file; use that file, or set gateway.config.source to store",
                self.base
            ))),
            // Earlier versions do not say it, nor do they take more.
            _ => Ok(match status["batch_writes_max"].as_u64().and_then(|max| usize::try_from(max).ok()) {
                Some(changes) if changes > WRITES_MAX => BatchBounds::of_store(changes),
                _ => BatchBounds::SMALL,
            }),
        }
    }

    fn read_lists(&self) -> Result<Resources, TransferFailure> {
        let mut found = Resources::new();
        for kind in ResourceKind::all().filter(|kind| *kind != ResourceKind::Credentials) {
            self.read_list(kind, kind.name(), &mut found)?;
        }
        let consumers = found.keys().filter(|(kind, _)| *kind == ResourceKind::Consumers).map(|(_, id)| id.clone());
        for consumer in consumers.collect::<Vec<_>>() {
            self.read_list(ResourceKind::Credentials, &format!("consumers/{consumer}/credentials"), &mut found)?;
        }
        Ok(found)
    }

    /// All pages of a list; empty, where the list does not exist.
    fn read_list(&self, kind: ResourceKind, path: &str, found: &mut Resources) -> Result<(), TransferFailure> {
        for page in 1..=PAGES_MAX {
            let path = format!("/apisix/admin/{path}?page={page}&page_size={PAGE_SIZE}");
            let asked = format!("GET {path}");
            let answer = self.ask(Method::GET, &path, None)?;
            match answer.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND if peer::is_empty_list(kind, &answer) => return Ok(()),
                // Where they are switched off.
                StatusCode::BAD_REQUEST if kind == ResourceKind::StreamRoutes => return Ok(()),
                _ => return Err(self.refusal(&asked, &answer)),
            }
            let items = peer::page(&answer).ok_or_else(|| peer::stranger(self, &asked, &answer))?;
            let count = items.len();
            for item in items {
                self.take(item, found)?;
            }
            if count < PAGE_SIZE {
                return Ok(());
            }
        }
        Err(TransferFailure::Failed(format!(
            "{}: the list of {path} does not end; is this the address of an Admin API?",
            self.base
        )))
    }

    fn take(&self, mut item: Json, found: &mut Resources) -> Result<(), TransferFailure> {
        let key = item["key"].as_str().and_then(|key| Key::parse(key.strip_prefix("/apisix/")?).ok());
        let name = key.as_ref().and_then(resource_of);
        let name = name.ok_or_else(|| {
            TransferFailure::Failed(format!("{}: {} is not the key of a resource", self.base, item["key"]))
        })?;
        let created = item["createdIndex"].as_u64().unwrap_or_default();
        insert_resource(
            found,
            name,
            Resource::stored(item.get_mut("value").map(Json::take).unwrap_or_default(), created),
        );
        Ok(())
    }

    fn ask(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Response<Bytes>, TransferFailure> {
        let unusable = |why: String| TransferFailure::Failed(format!("{}: {why}", self.base));
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("X-API-KEY", key);
        }
        let request = request.body(Full::new(body.unwrap_or_default())).map_err(|error| unusable(error.to_string()))?;
        self.runtime.block_on(self.client.send(request)).map_err(|error| match error.split_once(UNREACHED) {
            Some((error, _)) => unusable(format!("{error}is a gateway running there, with gateway.admin?")),
            None => unusable(error),
        })
    }

    /// The failure that an answer without a success status means. `asked`: the request, with its method.
    fn refusal(&self, asked: &str, answer: &Response<Bytes>) -> TransferFailure {
        if is_no_path(answer.status()) {
            return match peer::are_profiles_off(answer) {
                true => TransferFailure::Failed(format!("{}: {OFF}", self.base)),
                false => peer::stranger(self, asked, answer),
            };
        }
        let hint = match (answer.status(), &self.key) {
            (StatusCode::UNAUTHORIZED, None) => "; set the admin key with STILLGATE_ADMIN_KEY or --key",
            (StatusCode::UNAUTHORIZED, Some(_)) => "; set another admin key with STILLGATE_ADMIN_KEY or --key",
            _ => "",
        };
        let said = match peer::reason(answer).unwrap_or_else(|| peer::shown(&String::from_utf8_lossy(answer.body()))) {
            said if said.is_empty() => peer::status(answer.status()),
            said => format!("{}: {}", answer.status().as_u16(), said.trim()),
        };
        TransferFailure::Failed(format!("{}: {said}{hint}", self.base))
    }
}

/// The Admin API has every path that is requested here.
fn is_no_path(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}

fn connector(asking: &AdminApiArguments) -> Result<TlsConnector, String> {
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

/// The resources of `configs`.
fn of_whole(whole: &Json) -> Result<Resources, TransferFailure> {
    let mut found = Resources::new();
    for kind in ResourceKind::all() {
        for item in whole[kind.name()].as_array().into_iter().flatten() {
            let mut document = item.clone();
            let created = document["createdIndex"].as_u64().unwrap_or_default();
            let id =
                if kind == ResourceKind::Consumers && item["id"].is_null() { &item["username"] } else { &item["id"] };
            let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            let name = match id.split_once("/credentials/") {
                Some((consumer, id)) => {
                    document["id"] = id.into();
                    (ResourceKind::Credentials, format!("{consumer}/{id}"))
                }
                None => (kind, id),
            };
            insert_resource(&mut found, name, Resource::stored(document, created));
        }
    }
    Ok(found)
}

fn insert_resource(found: &mut Resources, name: (ResourceKind, String), mut resource: Resource) {
    if name.0 == ResourceKind::Ssls {
        mark_hidden_key(&mut resource.document);
    }
    found.insert(name, resource);
}
