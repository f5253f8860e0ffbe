//! The answers of this node to requests of other nodes.

use super::broadcast_request;
use super::carrying;
use super::connected::{page_of, shown};
use super::envelope::{read_post, split, write_verdict};
use super::node::DeviceNode;
use super::peers::{BROADCAST, CARRY, DISCONNECT, JOB, LIST, MESSAGE, SHOW};
use super::post::PostVerdict;
use bytes::Bytes;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use stillgate_cluster::peers::{Call, Handler, PeerReply, ReplyFuture};
use stillgate_devices::protocol::MessageId;

/// How long to wait for the state of a job that another process of this node may have: less than that.
const JOB_WAIT: Duration = Duration::from_millis(1_500);
/// The node, once there is one: it owns the directory that calls it.
pub(super) type Home = Arc<OnceLock<Weak<DeviceNode>>>;

/// What answers other nodes. Before `home` is set, every device is elsewhere.
pub(super) fn handler(home: Home) -> Handler {
    Arc::new(move |call: Call| -> ReplyFuture {
        let node = home.get().and_then(Weak::upgrade);
        Box::pin(async move {
            match node {
                Some(node) => answer(&node, &call).await,
                None => PeerReply::Leaving,
            }
        })
    })
}

/// Answers another node, or this one where the directory names it.
async fn answer(node: &Arc<DeviceNode>, call: &Call) -> PeerReply {
    let device = || std::str::from_utf8(&call.body).unwrap_or_default();
    let answer = match &*call.kind {
        MESSAGE => match read_post(&call.body) {
            Some(mut post) => {
                let asked = post.id;
                let verdict = node.receive(&mut post).await;
                verdict.map(|verdict| write_verdict(&verdict, Some(post.id).filter(|sent| *sent != asked)))
            }
            None => Some(write_verdict(&PostVerdict::Lost, None)),
        },
        SHOW => shown(node, device()).await.map(|shown| shown.to_string().into_bytes()),
        DISCONNECT => node.close(device()).then(Vec::new),
        LIST => serde_json::from_slice(&call.body).ok().map(|page| page_of(node, &page).to_string().into_bytes()),
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
        Some(answer) => PeerReply::Taken(Bytes::from(answer)),
        // The former process has reported its jobs, or has been waited for.
        None if node.has_left() || node.is_between() && &*call.kind != JOB => PeerReply::Leaving,
        None => PeerReply::Moved,
    }
}

/// Begins a job here at the request of another node.
fn begun(node: &Arc<DeviceNode>, from: &str, message: &[u8], request: &[u8]) -> Option<Vec<u8>> {
    let message = MessageId::parse(&serde_json::from_slice::<String>(message).ok()?)?;
    let (of, body) = broadcast_request::parse(request, node.limits.message_bytes).ok()?;
    node.broadcast(message, of, &body, Some(from)).ok()?;
    Some(Vec::new())
}
