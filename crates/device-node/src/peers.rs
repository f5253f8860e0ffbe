//! Requests that nodes send each other.
//!
//! A request about a device goes to the node that has it, by way of the directory; lists and broadcasts go to all nodes.

use super::envelope::{read_verdict, write_post};
use super::registry::{PeerSilence, SharedRegistry};
use crate::envelope::{Post, PostVerdict};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A message for a device.
pub(super) const MESSAGE: &str = "message";
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
/// How much longer than its message's time a node waits for the node of the device.
const ANSWER_LATE: Duration = Duration::from_secs(2);

/// Maximum number of devices on a page.
pub(super) const PAGE_MAX: usize = 1000;

/// The requested page.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Page {
    pub(super) prefix: String,
    pub(super) after: String,
    pub(super) count: usize,
}

/// Sends a message to the node of a device that was not here a moment ago.
pub(super) async fn send(shared: &SharedRegistry, post: &mut Post) -> PostVerdict {
    let patience = Duration::from_millis(post.timeout_ms) + ANSWER_LATE;
    match shared.ask(&post.device, MESSAGE, write_post(post).into(), patience).await {
        Ok(answer) => {
            let (id, verdict) = read_verdict(&answer);
            post.id = id.unwrap_or(post.id);
            verdict
        }
        Err(PeerSilence::Lost) => PostVerdict::Lost,
        Err(PeerSilence::Busy) => PostVerdict::Busy,
        Err(PeerSilence::Gone(gone)) => gone.into(),
    }
}
