//! Who is there: `GET /v1/devices/{id}` and `GET /v1/devices`.

use super::super::clock::{rfc3339, unix_ms};
use super::super::node::{Node, Seen};
use super::answer::{error, json, later, offline};
use super::query::Query;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};
use std::ops::Bound;
use stillgate_devices::protocol::Protocol;
use stillgate_proxy::device_link::DeviceFacts;

pub(super) async fn show(node: &Node, device: &str) -> Response {
    match node.inspect(device).await {
        Seen::Online { generation, since_ms, facts, state } => {
            let mut shown = online(node, device, since_ms, &facts);
            shown["connection"] = json!(generation.0);
            if let Some(state) = state {
                shown["last_seen"] = rfc3339(unix_ms().saturating_sub(state.quiet_ms)).into();
                shown["queue_bytes"] = state.queued_bytes.into();
                shown["bytes_received"] = state.bytes_received.into();
                shown["bytes_sent"] = state.bytes_sent.into();
            }
            json(StatusCode::OK, &shown)
        }
        Seen::Offline { last_seen_ms } => {
            let shown = json!({"id": device, "online": false, "last_seen": rfc3339(last_seen_ms)});
            json(StatusCode::OK, &shown)
        }
        Seen::Unknown => error(StatusCode::NOT_FOUND, "nobody has seen this device"),
        Seen::Away => away(),
    }
}

/// What is answered about a device that has no connection.
pub(super) async fn not_connected(node: &Node, device: &str) -> Response {
    match node.inspect(device).await {
        Seen::Offline { last_seen_ms } => offline(last_seen_ms),
        Seen::Unknown => error(StatusCode::NOT_FOUND, "nobody has seen this device"),
        Seen::Online { .. } | Seen::Away => away(),
    }
}

fn away() -> Response {
    later(StatusCode::SERVICE_UNAVAILABLE, "nobody can say now where the device is", 1)
}

fn online(node: &Node, device: &str, since_ms: u64, facts: &DeviceFacts) -> Json {
    let labels: Map<String, Json> =
        facts.labels.iter().map(|(name, value)| (name.to_string(), Json::from(&**value))).collect();
    json!({
        "id": device,
        "online": true,
        "node": node.name,
        "since": rfc3339(since_ms),
        "address": facts.peer.to_string(),
        "route": &*facts.route,
        "protocol": protocol(facts.protocol),
        "labels": labels,
    })
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Json => "json",
        Protocol::Cbor => "cbor",
        Protocol::Raw => "raw",
    }
}

pub(super) fn list(node: &Node, query: &Query) -> Response {
    let (size, is_online) = match (query.page_size(), query.is_online()) {
        (Ok(size), Ok(is_online)) => (size, is_online),
        (Err(why), _) | (_, Err(why)) => return error(StatusCode::BAD_REQUEST, &why),
    };
    let (prefix, after) = (query.get("prefix").unwrap_or_default(), query.get("page").unwrap_or_default());
    let mut page: Vec<(String, Json)> = match is_online {
        true => connected(node, prefix, after, size + 1),
        false => {
            let shown = |device: &str, ms| json!({"id": device, "online": false, "last_seen": rfc3339(ms)});
            let offline = node.registry.offline(prefix, after, size + 1);
            offline.into_iter().map(|(device, ms)| (device.to_string(), shown(&device, ms))).collect()
        }
    };
    let has_more = page.len() > size;
    page.truncate(size);
    let next = page.last().filter(|_| has_more).map(|(device, _)| device.clone());
    let mut body = json!({ "devices": page.into_iter().map(|(_, shown)| shown).collect::<Vec<_>>() });
    if let Some(next) = next {
        body["next_page"] = next.into();
    }
    body["connected"] = node.state().devices.len().into();
    json(StatusCode::OK, &body)
}

fn connected(node: &Node, prefix: &str, after: &str, count: usize) -> Vec<(String, Json)> {
    let state = node.state();
    let begin = match after >= prefix && !after.is_empty() {
        true => Bound::Excluded(after),
        false => Bound::Included(prefix),
    };
    let range = state.devices.range::<str, _>((begin, Bound::Unbounded));
    range
        .take_while(|(device, _)| device.starts_with(prefix))
        .take(count)
        .map(|(device, local)| (device.to_string(), online(node, device, local.since_ms, &local.facts)))
        .collect()
}
