//! The devices that are connected to this node, as the device API and other nodes show them.

use super::clock::{rfc3339, unix_ms};
use super::node::{DeviceNode, Online};
use super::peers::{PAGE_MAX, Page};
use serde_json::{Map, Value as Json, json};
use std::ops::Bound;
use stillgate_devices::Generation;
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_proxy::device_link::DeviceFacts;

/// A device that is connected to this node.
pub(super) async fn shown(node: &DeviceNode, device: &str) -> Option<Json> {
    let Online { generation, since_ms, facts, state } = node.inspect(device).await?;
    let mut shown = online(node, device, (generation, since_ms), &facts);
    if let Some(state) = state {
        shown["last_seen"] = rfc3339(unix_ms().saturating_sub(state.quiet_ms)).into();
        shown["queue_bytes"] = state.queued_bytes.into();
        shown["bytes_received"] = state.bytes_received.into();
        shown["bytes_sent"] = state.bytes_sent.into();
    }
    Some(shown)
}

/// The devices that are connected to this node, in order.
pub(super) fn page_of(node: &DeviceNode, page: &Page) -> Json {
    let state = node.state();
    let (prefix, after) = (page.prefix.as_str(), page.after.as_str());
    let begin = match after >= prefix && !after.is_empty() {
        true => Bound::Excluded(after),
        false => Bound::Included(prefix),
    };
    let range = state.devices.range::<str, _>((begin, Bound::Unbounded));
    let shown: Vec<Json> = range
        .take_while(|(device, _)| device.starts_with(prefix))
        .take(page.count.min(PAGE_MAX + 1))
        .map(|(device, local)| online(node, device, (local.generation, local.since_ms), &local.facts))
        .collect();
    json!({"devices": shown, "connected": state.devices.len()})
}

fn online(node: &DeviceNode, device: &str, (generation, since_ms): (Generation, u64), facts: &DeviceFacts) -> Json {
    let labels: Map<String, Json> =
        facts.labels.iter().map(|(name, value)| (name.to_string(), Json::from(&**value))).collect();
    json!({
        "id": device,
        "online": true,
        "connection": generation.0,
        "node": node.name,
        "since": rfc3339(since_ms),
        "address": facts.peer.to_string(),
        "route": &*facts.route,
        "protocol": protocol(facts.protocol),
        "labels": labels,
    })
}

fn protocol(protocol: DeviceProtocol) -> &'static str {
    match protocol {
        DeviceProtocol::Json => "json",
        DeviceProtocol::Cbor => "cbor",
        DeviceProtocol::Raw => "raw",
    }
}
