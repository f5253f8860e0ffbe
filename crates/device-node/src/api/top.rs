//! `GET /v1/device-stats/top`: each worker names its busiest connections.

use super::super::node::DeviceNode;
use super::answer::json;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use std::cmp::Reverse;
use std::time::Duration;
use stillgate_proxy::device_link::DeviceCommand;
use tokio::sync::oneshot;
use tokio::time::timeout;

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
