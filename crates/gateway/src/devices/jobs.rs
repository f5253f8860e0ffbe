//! Broadcasts: one message to many devices, encoded once for each protocol, a few hundred devices at a time.

use super::node::{Node, was_written};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::collections::{HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use stillgate_devices::protocol::{Body, BodyError, Encoded, MessageId, Protocol};
use stillgate_devices::session::{Outcome, Refused};
use stillgate_proxy::device_link::{Command, worker_of};
use tokio::time::sleep;

/// Devices that are sent to together, and the time from one such batch to the next: others' messages go between them.
const BATCH: usize = 256;
const BATCH_EVERY: Duration = Duration::from_millis(2);
/// How long a copy may wait for its device.
const COPY_MS: u64 = 30_000;
/// Jobs that are remembered, the last ones.
pub(super) const JOBS_MAX: usize = 100;
/// Jobs that send at the same time.
pub(super) const SENDING_MAX: usize = 8;

/// Which devices.
#[derive(Debug, Clone, Default)]
pub(super) struct Match {
    pub(super) prefix: String,
    pub(super) labels: Vec<(String, String)>,
}

/// The jobs of a node, by their messages: an id that no other node or process gives to another job.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: HashMap<MessageId, Job>,
    /// In the order in which they began.
    order: VecDeque<MessageId>,
}

/// One job on this node.
#[derive(Debug, Clone)]
struct Job {
    counts: Counts,
    /// Other nodes that take part: all, where the job began here, else the one where it began.
    nodes: Vec<String>,
}

/// What a node knows about a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Known {
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// Other nodes that take part.
    pub(super) nodes: Vec<String>,
}

/// How a job goes, on one node or on several.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    is_sending: bool,
    matched: u64,
    written: u64,
    full: u64,
    gone: u64,
    late: u64,
}

/// Why a job does not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoJob {
    /// Not what a request is.
    Asked(String),
    /// Longer than a message may be.
    TooLong,
    /// Its body cannot be said in a protocol.
    Body(BodyError),
    /// Too many are being sent.
    TooMany,
    /// Another process has taken over, and has the devices.
    Leaving,
}

impl Jobs {
    /// What became of a message, which may be a copy of a job's.
    pub(super) fn note(&mut self, message: MessageId, outcome: Result<&Outcome, Refused>) {
        let Some(job) = self.jobs.get_mut(&message) else { return };
        let counts = &mut job.counts;
        match outcome {
            Ok(outcome) if was_written(outcome) => counts.written += 1,
            Ok(Outcome::TimedOut { .. }) => counts.late += 1,
            Ok(Outcome::Ended { .. }) | Err(Refused::Offline) => counts.gone += 1,
            Ok(_) | Err(_) => counts.full += 1,
        }
    }

    fn begin(&mut self, message: MessageId, nodes: Vec<String>) -> Result<(), NoJob> {
        if self.jobs.values().filter(|job| job.counts.is_sending).count() >= SENDING_MAX {
            return Err(NoJob::TooMany);
        }
        while self.order.len() >= JOBS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.jobs.remove(&oldest);
        }
        let counts = Counts { is_sending: true, ..Counts::default() };
        self.jobs.insert(message, Job { counts, nodes });
        self.order.push_back(message);
        Ok(())
    }

    /// A job runs on other nodes, too.
    pub(super) fn also(&mut self, message: MessageId, nodes: Vec<String>) {
        if let Some(job) = self.jobs.get_mut(&message) {
            job.nodes = nodes;
        }
    }

    /// A job, as it goes on this node.
    pub(super) fn known(&self, message: MessageId) -> Option<Known> {
        let Job { counts, nodes } = self.jobs.get(&message)?.clone();
        Some(Known { counts, nodes })
    }
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.is_sending |= other.is_sending;
        self.matched += other.matched;
        self.written += other.written;
        self.full += other.full;
        self.gone += other.gone;
        self.late += other.late;
    }

    /// For who asks.
    pub(super) fn shown(&self, message: MessageId) -> Json {
        let told = self.written + self.full + self.gone + self.late;
        let is_done = !self.is_sending && told >= self.matched;
        json!({
            "id": message.to_string(),
            "state": if is_done { "done" } else { "running" },
            "message": message.to_string(),
            "matched": self.matched,
            "written": self.written,
            "queue_full": self.full,
            "offline": self.gone,
            "timed_out": self.late,
        })
    }
}

impl Node {
    /// Starts sending to all matching devices of this node. `from`: the node that asked, if it is another one.
    pub(super) fn broadcast(
        self: &Arc<Node>,
        message: MessageId,
        of: Match,
        body: &Body<'_>,
        from: Option<&str>,
    ) -> Result<(), NoJob> {
        if self.has_left() {
            return Err(NoJob::Leaving);
        }
        let encode = |protocol: Protocol| protocol.encode(body).map_err(NoJob::Body);
        let encoded = [encode(Protocol::Json)?, encode(Protocol::Cbor)?, encode(Protocol::Raw)?];
        self.state().jobs.begin(message, from.into_iter().map(str::to_owned).collect())?;
        tokio::spawn(send(self.clone(), message, of, encoded));
        Ok(())
    }
}

/// Sends a job's copies, batch by batch.
async fn send(node: Arc<Node>, id: MessageId, of: Match, encoded: [Encoded; 3]) {
    node.all_given().await;
    let mut after: Option<Arc<str>> = None;
    loop {
        let more = send_batch(&node, id, &of, &encoded, after.take());
        match more {
            Some(last) => after = Some(last),
            None => break,
        }
        sleep(BATCH_EVERY).await;
    }
    if let Some(job) = node.state().jobs.jobs.get_mut(&id) {
        job.counts.is_sending = false;
    }
}

/// Sends to the next devices; the last that was looked at, where there are more.
fn send_batch(
    node: &Node,
    id: MessageId,
    of: &Match,
    encoded: &[Encoded; 3],
    after: Option<Arc<str>>,
) -> Option<Arc<str>> {
    let mut state = node.state();
    let begin = match &after {
        Some(after) => Bound::Excluded(&**after),
        None => Bound::Included(of.prefix.as_str()),
    };
    let mut batches: HashMap<(usize, usize), Vec<u64>> = HashMap::new();
    let (mut last, mut looked_at, mut matched) = (None, 0, 0);
    for (device, local) in state.devices.range::<str, _>((begin, Bound::Unbounded)) {
        if !device.starts_with(&of.prefix) {
            last = None;
            break;
        }
        looked_at += 1;
        let has = |(name, value): &(String, String)| {
            local.facts.labels.iter().any(|(known, is)| **known == **name && **is == **value)
        };
        if of.labels.iter().all(has) {
            let protocol = match local.facts.protocol {
                Protocol::Json => 0,
                Protocol::Cbor => 1,
                Protocol::Raw => 2,
            };
            batches.entry((worker_of(local.connection), protocol)).or_default().push(local.connection);
            matched += 1;
        }
        last = Some(device.clone());
        if looked_at >= BATCH {
            break;
        }
    }
    if looked_at < BATCH {
        last = None;
    }
    let mut full = 0;
    for ((worker, protocol), connections) in batches {
        let count = connections.len() as u64;
        let encoded = encoded[protocol].clone();
        let command = Command::Broadcast { connections: connections.into(), id, encoded, timeout_ms: COPY_MS };
        if state.commands.try_send_to(worker, command).is_err() {
            full += count;
        }
    }
    if let Some(job) = state.jobs.jobs.get_mut(&id) {
        job.counts.matched += matched;
        job.counts.full += full;
    }
    last
}
