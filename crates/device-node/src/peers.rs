//! Requests that nodes send each other, and this node's answers.
//!
//! A request about a device goes to the node that has it, by way of the directory; lists and broadcasts go to all nodes.

use super::api::{begun, connected_page, shown};
use super::carrying;
use super::envelope::{read_post, read_verdict, split, write_post, write_verdict};
use super::node::Node;
use super::post::{Post, Verdict};
use super::registry::{Shared, Unanswered};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use stillgate_cluster::peers::{Call, Reply};
use stillgate_devices::protocol::MessageId;

/// A message for a device.
const MESSAGE: &str = "message";
/// The state of a device.
pub(super) const SHOW: &str = "show";
/// The end of a device's connection.
pub(super) const DISCONNECT: &str = "disconnect";
/// A page of the connected devices.
pub(super) const LIST: &str = "list";
/// A message for all matching devices.
pub(super) const BROADCAST: &str = "broadcast";
/// The progress of a broadcast.
pub(super) const JOB: &str = "job";
/// A session that its device wants to resume on another node.
pub(super) const CARRY: &str = "carry";

/// How long a node has to answer a request that does not carry a message.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for the state of a job that another process of this node may have: less than that.
const JOB_WAIT: Duration = Duration::from_millis(1_500);
/// How much longer than its message's time a node waits for the node of the device.
const ANSWER_LATE: Duration = Duration::from_secs(2);

/// The requested page.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Page {
    pub(super) prefix: String,
    pub(super) after: String,
    pub(super) count: usize,
}

/// Sends a message to the node of a device that was not here a moment ago.
pub(super) async fn send(shared: &Shared, post: &mut Post) -> Verdict {
    let patience = Duration::from_millis(post.timeout_ms) + ANSWER_LATE;
    match shared.ask(&post.device, MESSAGE, write_post(post).into(), patience).await {
        Ok(answer) => {
            let (id, verdict) = read_verdict(&answer);
            post.id = id.unwrap_or(post.id);
            verdict
        }
        Err(Unanswered::Lost) => Verdict::Lost,
        Err(Unanswered::Busy) => Verdict::Busy,
        Err(Unanswered::Gone(gone)) => gone.into(),
    }
}

/// Answers another node, or this one where the directory names it.
pub(super) async fn answer(node: &Arc<Node>, call: &Call) -> Reply {
    let device = || std::str::from_utf8(&call.body).unwrap_or_default();
    let answer = match &*call.kind {
        MESSAGE => match read_post(&call.body) {
            Some(mut post) => {
                let asked = post.id;
                let verdict = node.receive(&mut post).await;
                verdict.map(|verdict| write_verdict(&verdict, Some(post.id).filter(|sent| *sent != asked)))
            }
            None => Some(write_verdict(&Verdict::Lost, None)),
        },
        SHOW => shown(node, device()).await.map(|shown| shown.to_string().into_bytes()),
        DISCONNECT => node.close(device()).then(Vec::new),
        LIST => {
            serde_json::from_slice(&call.body).ok().map(|page| connected_page(node, &page).to_string().into_bytes())
        }
        CARRY => carrying::give(node, &call.body).await,
        BROADCAST => split(&call.body).and_then(|(message, asked)| begun(node, &call.from, message, asked)),
        JOB => {
            let known = match MessageId::parse(device()) {
                Some(job) => node.job(job, JOB_WAIT).await,
                None => None,
            };
            known.and_then(|known| serde_json::to_vec(&known).ok())
        }
        _ => None,
    };
    match answer {
        Some(answer) => Reply::Taken(Bytes::from(answer)),
        // The former process has reported its jobs, or has been waited for.
        None if node.has_left() || node.is_between() && &*call.kind != JOB => Reply::Leaving,
        None => Reply::Moved,
    }
}
