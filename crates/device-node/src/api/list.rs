//! Connected devices: `GET /v1/devices/{id}`, `GET /v1/devices`, and `DELETE /v1/devices/{id}/connection`.
//!
//! For `GET /v1/device-stats/top` each worker names its busiest connections.

use super::super::clock::rfc3339;
use super::super::node::DeviceNode;
use super::super::peers::{DISCONNECT, LIST, PATIENCE, Page, SHOW};
use super::super::registry::{NotConnected, Registry, SharedRegistry};
use super::answer::{error, json, json_text, later, offline};
use super::query::Query;
use crate::thread::{page_of, shown};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value as Json, json};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;
use stillgate_proxy::device_link::DeviceCommand;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub(super) async fn show(node: &DeviceNode, device: &str) -> Response {
    if let Some(shown) = shown(node, device).await {
        return json(StatusCode::OK, &shown);
    }
    match node.ask_elsewhere(device, SHOW).await {
        Ok(shown) => json_text(StatusCode::OK, &String::from_utf8_lossy(&shown)),
        Err(NotConnected::Offline { last_seen_ms }) => json(StatusCode::OK, &disconnected(device, last_seen_ms)),
        Err(NotConnected::Unknown) => error(StatusCode::NOT_FOUND, "this device has not been seen"),
        Err(NotConnected::Away) => away(),
    }
}

pub(super) async fn close(node: &DeviceNode, device: &str) -> Response {
    let closing = || json(StatusCode::ACCEPTED, &json!({"id": device, "state": "closing"}));
    if node.close(device) {
        return closing();
    }
    match node.ask_elsewhere(device, DISCONNECT).await {
        Ok(_) => closing(),
        Err(NotConnected::Offline { last_seen_ms }) => offline(last_seen_ms),
        Err(NotConnected::Unknown) => error(StatusCode::NOT_FOUND, "this device has not been seen"),
        Err(NotConnected::Away) => away(),
    }
}

fn disconnected(device: &str, last_seen_ms: Option<u64>) -> Json {
    json!({"id": device, "online": false, "last_seen": last_seen_ms.map(rfc3339)})
}

fn away() -> Response {
    later(StatusCode::SERVICE_UNAVAILABLE, "it is not known right now where the device is", 1)
}

pub(super) async fn list(node: &DeviceNode, query: &Query) -> Response {
    let (size, is_online) = match (query.page_size(), query.parse_online()) {
        (Ok(size), Ok(is_online)) => (size, is_online),
        (Err(why), _) | (_, Err(why)) => return error(StatusCode::BAD_REQUEST, &why),
    };
    let (prefix, after) = (query.get("prefix").unwrap_or_default(), query.get("page").unwrap_or_default());
    let page = Page { prefix: prefix.to_owned(), after: after.to_owned(), count: size + 1 };
    let all = match (is_online, &node.registry) {
        (true, Registry::Memory(_)) => DeviceList::of(page_of(node, &page)),
        (true, Registry::Shared(shared)) => of_all_nodes(node, shared, &page).await,
        (false, Registry::Memory(memory)) => {
            let offline = memory.offline(prefix, after, size + 1);
            let offline = offline.into_iter().map(|(device, ms)| disconnected(&device, Some(ms))).collect();
            DeviceList { devices: offline, connected: node.state().devices.len() as u64, missing: Vec::new() }
        }
        (false, Registry::Shared(_)) => {
            return error(
                StatusCode::BAD_REQUEST,
                "with a shared directory, devices that are not connected cannot be listed; ask for one by its id",
            );
        }
    };
    json(StatusCode::OK, &all.page(size))
}

/// Devices of some nodes.
#[derive(Default)]
struct DeviceList {
    devices: Vec<Json>,
    connected: u64,
    /// Nodes that have not answered.
    missing: Vec<Arc<str>>,
}

/// One page over all nodes: each returns its devices from there on.
async fn of_all_nodes(node: &DeviceNode, shared: &SharedRegistry, page: &Page) -> DeviceList {
    let asked = serde_json::to_vec(page).unwrap_or_default();
    let answers = shared.ask_all(LIST, asked.into(), PATIENCE).await;
    let mut all = DeviceList::of(page_of(node, page));
    for (node, answer) in answers {
        match answer.and_then(|answer| serde_json::from_slice(&answer).ok()) {
            Some(theirs) => all.add(DeviceList::of(theirs)),
            None => all.missing.push(node),
        }
    }
    all.sort();
    all
}

impl DeviceList {
    fn of(mut page: Json) -> DeviceList {
        let devices = if let Json::Array(devices) = page["devices"].take() { devices } else { Vec::new() };
        DeviceList { devices, connected: page["connected"].as_u64().unwrap_or(0), missing: Vec::new() }
    }

    fn add(&mut self, other: DeviceList) {
        self.devices.extend(other.devices);
        self.connected += other.connected;
    }

    /// If a device has connections to two nodes for a moment, the newer one stays.
    fn sort(&mut self) {
        let connection = |shown: &Json| Reverse(shown["connection"].as_u64());
        self.devices.sort_by(|a, b| (id(a), connection(a)).cmp(&(id(b), connection(b))));
        self.devices.dedup_by(|a, b| id(a) == id(b));
        self.missing.sort();
    }

    /// The answer; it has `next_page` if there are more.
    fn page(mut self, size: usize) -> Json {
        let has_more = self.devices.len() > size;
        self.devices.truncate(size);
        let next = self.devices.last().filter(|_| has_more).map(|last| id(last).to_owned());
        let mut body = json!({"devices": self.devices, "connected": self.connected});
        if let Some(next) = next {
            body["next_page"] = next.into();
        }
        if !self.missing.is_empty() {
            body["missing"] = self.missing.iter().map(|node| Json::from(&**node)).collect();
        }
        body
    }
}

fn id(shown: &Json) -> &str {
    shown["id"].as_str().unwrap_or_default()
}

const SHOWN_MAX: usize = 20;
const WAIT: Duration = Duration::from_secs(1);

pub(super) async fn top(node: &DeviceNode) -> Response {
    let asked: Vec<_> = {
        let mut state = node.state();
        let workers = 0..state.commands.workers();
        workers
            .filter_map(|worker| {
                let (answer, answered) = oneshot::channel();
                state.commands.try_send_to(worker, DeviceCommand::Top { answer }).ok().map(|()| answered)
            })
            .collect()
    };
    let mut all = Vec::new();
    for answered in asked {
        // A worker that does not answer is left out.
        all.extend(timeout(WAIT, answered).await.ok().and_then(Result::ok).unwrap_or_default());
    }
    all.sort_unstable_by_key(|(_, bytes)| Reverse(*bytes));
    all.truncate(SHOWN_MAX);
    let shown = all.iter().map(|(device, bytes)| json!({"id": &**device, "bytes": bytes})).collect::<Vec<_>>();
    json(StatusCode::OK, &json!({ "devices": shown }))
}
