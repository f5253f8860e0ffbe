//! Broadcasts: one message to many devices, encoded once for each protocol, a few hundred devices at a time.
//!
//! While one runs, no device goes to a process that takes over: each has the message before it goes. The other way round a process
//! that has taken over sends its own jobs also to devices that come to it later, since they were connected when those began.
//!
//! The process that takes over learns the jobs that this one knows, and how those that it has begun go on.

use super::node::{DeviceNode, Local, State, was_written};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_devices::protocol::{Body, BodyError, DeviceProtocol, EncodedBody, MessageId};
use stillgate_devices::session::{MessageOutcome, MessageRefusal};
use stillgate_proxy::device_link::{DeviceCommand, HandoverHold, worker_of};
use stillgate_proxy::handover::{BROADCAST_BYTES_MAX, HandedState, Parcel};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Devices in a batch, and the time between two batches: 32,000 devices a second. Other messages are sent in between; at a higher
/// rate they would wait for a core.
const BATCH: usize = 64;
const BATCH_EVERY: Duration = Duration::from_millis(2);
/// How long a copy may wait for its device.
const COPY_MS: u64 = 30_000;
/// Maximum number of jobs that are kept, the last ones; none is dropped while it sends.
pub(super) const JOBS_MAX: usize = 100;
/// Jobs that send at the same time.
const SENDING_MAX: usize = 8;

/// A selection of devices.
#[derive(Debug, Clone, Default)]
pub(super) struct Match {
    pub(super) prefix: String,
    pub(super) labels: Vec<(String, String)>,
}

/// The jobs of a node, by their messages: ids that no other node or process gives to another job. They include jobs of earlier
/// processes.
#[derive(Debug, Default)]
pub(super) struct Broadcasts {
    jobs: HashMap<MessageId, Job>,
    /// Jobs in the order in which they began.
    order: VecDeque<MessageId>,
}

/// One job on this node.
#[derive(Debug, Clone)]
struct Job {
    counts: JobProgress,
    /// Other nodes that take part: all, where the job began here, else the one where it began.
    nodes: Vec<String>,
    /// The job belongs to the former process, which reports its progress.
    is_former: bool,
    /// The counts have changed since the last report to the successor.
    is_news: bool,
    /// The copies to send. `None` once all have been sent and no other process will hand over more devices.
    copies: Option<Box<Copies>>,
}

/// What is sent, and its recipients.
#[derive(Debug, Clone)]
struct Copies {
    of: Match,
    encoded: [EncodedBody; 3],
    /// The last device that was looked at, in the order of devices.
    after: Option<Arc<str>>,
    /// All devices have been looked at.
    is_through: bool,
}

/// The report of a process to the one that takes over.
#[derive(Serialize, Deserialize)]
struct JobReport {
    job: String,
    #[serde(flatten)]
    known: JobKnowledge,
}

/// What a node knows about a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct JobKnowledge {
    #[serde(flatten)]
    pub(super) counts: JobProgress,
    /// Other nodes that take part.
    pub(super) nodes: Vec<String>,
}

/// The progress of a job, on one node or on several.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct JobProgress {
    is_sending: bool,
    matched: u64,
    written: u64,
    full: u64,
    gone: u64,
    late: u64,
}

/// Why a job cannot begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoJob {
    /// The request is malformed.
    Asked(String),
    /// Longer than a message may be.
    TooLong,
    /// Its body cannot be expressed in a protocol.
    Body(BodyError),
    /// Too many jobs are being sent.
    TooMany,
    /// Another process has taken over, and has the devices.
    Leaving,
}

impl Broadcasts {
    /// Notes the outcome of a message, which may be a copy of a job's.
    pub(super) fn note(&mut self, message: MessageId, outcome: Result<&MessageOutcome, MessageRefusal>) {
        let Some(job) = self.jobs.get_mut(&message) else { return };
        job.is_news = true;
        let counts = &mut job.counts;
        match outcome {
            Ok(outcome) if was_written(outcome) => counts.written += 1,
            Ok(MessageOutcome::TimedOut { .. }) => counts.late += 1,
            Ok(MessageOutcome::Ended { .. }) | Err(MessageRefusal::Offline) => counts.gone += 1,
            Ok(_) | Err(_) => counts.full += 1,
        }
    }

    fn begin(&mut self, message: MessageId, nodes: Vec<String>, copies: Box<Copies>) -> Result<(), NoJob> {
        let is_sending = |job: &&Job| job.counts.is_sending && !job.is_former;
        if self.jobs.values().filter(is_sending).count() >= SENDING_MAX {
            return Err(NoJob::TooMany);
        }
        let counts = JobProgress { is_sending: true, ..JobProgress::default() };
        self.insert(message, Job { counts, nodes, is_former: false, is_news: true, copies: Some(copies) });
        Ok(())
    }

    fn insert(&mut self, message: MessageId, job: Job) {
        while self.order.len() >= JOBS_MAX
            && let Some(at) =
                self.order.iter().position(|id| self.jobs.get(id).is_none_or(|job| !job.counts.is_sending))
            && let Some(oldest) = self.order.remove(at)
        {
            self.jobs.remove(&oldest);
        }
        self.jobs.insert(message, job);
        self.order.push_back(message);
    }

    /// All devices here have been sent a copy. `more_come`: another process still hands over some.
    fn mark_sent_to_all(&mut self, message: MessageId, more_come: bool) {
        if let Some(job) = self.jobs.get_mut(&message) {
            job.counts.is_sending = false;
            job.is_news = true;
            job.copies.take_if(|_| !more_come);
        }
    }

    /// A job runs on other nodes, too.
    pub(super) fn set_other_nodes(&mut self, message: MessageId, nodes: Vec<String>) {
        if let Some(job) = self.jobs.get_mut(&message) {
            job.nodes = nodes;
            job.is_news = true;
        }
    }

    /// What has not been reported yet to the process that takes over, job by job.
    fn news(&mut self) -> Vec<Vec<u8>> {
        let mut news = Vec::new();
        for message in &self.order {
            if let Some(job) = self.jobs.get_mut(message)
                && std::mem::take(&mut job.is_news)
            {
                let known = JobKnowledge { counts: job.counts, nodes: job.nodes.clone() };
                let told = JobReport { job: message.to_string(), known };
                news.push(serde_json::to_vec(&told).expect("numbers and names become JSON"));
            }
        }
        news
    }

    /// Takes in a report of the former process.
    pub(super) fn learn(&mut self, told: &[u8]) {
        let read = serde_json::from_slice::<JobReport>(told).ok();
        let read = read.and_then(|JobReport { job, known }| Some((MessageId::parse(&job)?, known)));
        let Some((message, JobKnowledge { counts, nodes })) = read else {
            return tracing::warn!(
                "upgrade: what the former process tells of a broadcast cannot be read; passing over it"
            );
        };
        match self.jobs.get_mut(&message) {
            Some(job) if job.is_former => (job.counts, job.nodes, job.is_news) = (counts, nodes, true),
            Some(_) => {}
            None => self.insert(message, Job { counts, nodes, is_former: true, is_news: true, copies: None }),
        }
    }

    /// The former process has ended, and gives no more.
    pub(super) fn on_former_ended(&mut self) {
        for job in self.jobs.values_mut() {
            job.copies.take_if(|copies| copies.is_through);
            if job.is_former {
                job.settle();
            }
        }
    }

    /// The workers have ended: no more results will come.
    fn settle(&mut self) {
        self.jobs.values_mut().for_each(Job::settle);
    }

    /// The state of a job on this node.
    pub(super) fn knowledge(&self, message: MessageId) -> Option<JobKnowledge> {
        let Job { counts, nodes, .. } = self.jobs.get(&message)?;
        Some(JobKnowledge { counts: *counts, nodes: nodes.clone() })
    }
}

impl Job {
    /// Copies without a known result were waiting for devices that are away. They were lost with their process, and count as gone.
    fn settle(&mut self) {
        let counts = &mut self.counts;
        let untold = counts.matched.saturating_sub(counts.known_results());
        self.is_news |= counts.is_sending || untold > 0;
        counts.is_sending = false;
        counts.gone += untold;
    }
}

impl Copies {
    /// The copy for a device; `None`: it does not match.
    fn for_device(&self, device: &str, local: &Local) -> Option<usize> {
        let has = |(name, value): &(String, String)| {
            local.facts.labels.iter().any(|(known, is)| **known == **name && **is == **value)
        };
        let matches = device.starts_with(&self.of.prefix) && self.of.labels.iter().all(has);
        matches.then_some(match local.facts.protocol {
            DeviceProtocol::Json => 0,
            DeviceProtocol::Cbor => 1,
            DeviceProtocol::Raw => 2,
        })
    }

    /// Whether the job has already passed this device's place in the order.
    fn has_passed(&self, device: &str) -> bool {
        self.is_through || self.after.as_deref().is_some_and(|after| device <= after)
    }
}

impl JobProgress {
    /// Copies with a known result.
    fn known_results(&self) -> u64 {
        self.written + self.full + self.gone + self.late
    }

    pub(super) fn add(&mut self, other: &JobProgress) {
        self.is_sending |= other.is_sending;
        self.matched += other.matched;
        self.written += other.written;
        self.full += other.full;
        self.gone += other.gone;
        self.late += other.late;
    }

    /// The job as the API shows it.
    pub(super) fn shown(&self, message: MessageId) -> Json {
        let is_done = !self.is_sending && self.known_results() >= self.matched;
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

impl DeviceNode {
    /// Starts sending to all matching devices of this node. `from`: the node that asked, if it is another one.
    pub(super) fn broadcast(
        self: &Arc<DeviceNode>,
        message: MessageId,
        of: Match,
        body: &Body<'_>,
        from: Option<&str>,
    ) -> Result<(), NoJob> {
        // Devices that are connected to the other process would be left out.
        let hold = self.state().hold.clone().filter(|_| !self.has_company()).ok_or(NoJob::Leaving)?;
        let encode = |protocol: DeviceProtocol| protocol.encode(body).map_err(NoJob::Body);
        let encoded = [encode(DeviceProtocol::Json)?, encode(DeviceProtocol::Cbor)?, encode(DeviceProtocol::Raw)?];
        let copies = Box::new(Copies { of, encoded, after: None, is_through: false });
        self.state().jobs.begin(message, from.into_iter().map(str::to_owned).collect(), copies)?;
        tokio::spawn(send(self.clone(), message, hold));
        Ok(())
    }
}

/// Sends a job's copies, batch by batch.
async fn send(node: Arc<DeviceNode>, id: MessageId, hold: HandoverHold) {
    node.all_given().await;
    let mut due = interval(BATCH_EVERY);
    // Do not catch up after a delay: the machine is busy.
    due.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while node.state().send_batch(id, &hold) {
        due.tick().await;
    }
    let more_come = node.follows();
    node.state().jobs.mark_sent_to_all(id, more_come);
}

impl State {
    /// Sends to the next devices; whether there are more.
    fn send_batch(&mut self, id: MessageId, hold: &HandoverHold) -> bool {
        let State { devices, jobs, commands, .. } = self;
        let Some(job) = jobs.jobs.get_mut(&id) else { return false };
        let Some(copies) = &mut job.copies else { return false };
        let begin = match &copies.after {
            Some(after) => Bound::Excluded(&**after),
            None => Bound::Included(copies.of.prefix.as_str()),
        };
        let mut batches: HashMap<(usize, usize), Vec<u64>> = HashMap::new();
        let (mut last, mut matched) = (None, 0);
        let of_prefix = devices.range::<str, _>((begin, Bound::Unbounded));
        let of_prefix = of_prefix.take_while(|(device, _)| device.starts_with(&copies.of.prefix));
        let mut looked_at = 0;
        for (device, local) in of_prefix.take(BATCH) {
            if let Some(protocol) = copies.for_device(device, local) {
                batches.entry((worker_of(local.connection), protocol)).or_default().push(local.connection);
                matched += 1;
            }
            last = Some(device.clone());
            looked_at += 1;
        }
        copies.is_through = looked_at < BATCH;
        copies.after = last.or(copies.after.take());
        job.is_news = true;
        job.counts.matched += matched;
        for ((worker, protocol), connections) in batches {
            let count = connections.len() as u64;
            let (encoded, hold) = (copies.encoded[protocol].clone(), hold.clone());
            let connections = connections.into();
            let command = DeviceCommand::Broadcast { connections, id, encoded, timeout_ms: COPY_MS, hold };
            if commands.try_send_to(worker, command).is_err() {
                job.counts.full += count;
            }
        }
        !copies.is_through
    }

    /// Sends to a device that another process has given what it has missed: jobs that began here before it came.
    pub(super) fn catch_up(&mut self, device: &str) {
        let State { devices, jobs, commands, hold, .. } = self;
        let Some(local) = devices.get(device) else { return };
        for (id, job) in &mut jobs.jobs {
            let Some(copies) = job.copies.as_ref().filter(|copies| copies.has_passed(device)) else { continue };
            let Some(protocol) = copies.for_device(device, local) else { continue };
            let (connections, encoded) = (Arc::new([local.connection]), copies.encoded[protocol].clone());
            // If this process is being replaced as well, the device may have moved on before the copy arrives. That is counted.
            let hold = hold.clone().unwrap_or_default();
            let command = DeviceCommand::Broadcast { connections, id: *id, encoded, timeout_ms: COPY_MS, hold };
            job.is_news = true;
            job.counts.matched += 1;
            if commands.try_send(local.connection, command).is_err() {
                job.counts.full += 1;
            }
        }
    }
}

/// Interval of looks for news.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Notifies the thread that another process takes over. When it is dropped, that has happened.
#[derive(Debug)]
pub struct TakeoverNotice {
    /// The channel by which that process receives reports about broadcasts.
    pub outbox: oneshot::Sender<mpsc::Sender<Parcel>>,
    /// The other process serves alongside this one.
    pub has_company: Arc<AtomicBool>,
}

/// Sends the news until `over` is dropped, when the workers have ended. Nothing more goes to the other process after this.
pub(super) async fn tell_successor(
    node: Arc<DeviceNode>,
    outbox: mpsc::Sender<Parcel>,
    mut over: oneshot::Receiver<()>,
) {
    let mut is_over = false;
    loop {
        let news = node.state().jobs.news();
        for bytes in news {
            // With the names of so many nodes the report would be too large.
            if bytes.len() > BROADCAST_BYTES_MAX {
                continue;
            }
            let state = HandedState::Broadcast { bytes: bytes.len() };
            if outbox.send(Parcel { state, bytes, sockets: Vec::new() }).await.is_err() {
                return;
            }
        }
        if is_over {
            return;
        }
        is_over = tokio::select! {
            // Nothing is ever sent: the other end is dropped.
            _ = &mut over => true,
            () = sleep(TELL_EVERY) => false,
        };
        if is_over {
            node.state().jobs.settle();
        }
    }
}

/// The body of a request for a broadcast, from a back-end or by way of another node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BroadcastRequest {
    #[serde(default, rename = "match")]
    of: RequestedMatch,
    body: Box<RawValue>,
    encoding: Option<BodyEncoding>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RequestedMatch {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    label: BTreeMap<String, String>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum BodyEncoding {
    Base64,
}

/// Parses the body of a request for a broadcast: its devices and its message.
pub(super) fn read_broadcast(bytes: &[u8], bytes_max: usize) -> Result<(Match, Body<'static>), NoJob> {
    let asked: BroadcastRequest =
        serde_json::from_slice(bytes).map_err(|why| NoJob::Asked(format!("the body: {why}")))?;
    let decoded;
    let body = match asked.encoding {
        None => Body::of_request(Some("application/json"), asked.body.get().as_bytes()),
        Some(BodyEncoding::Base64) => {
            let text = serde_json::from_str::<String>(asked.body.get()).ok();
            let bytes = text.and_then(|text| STANDARD.decode(text).ok());
            let wrong = || NoJob::Asked("\"body\" must be padded base64, as \"encoding\" says".to_owned());
            decoded = bytes.ok_or_else(wrong)?;
            Body::of_request(None, &decoded)
        }
    };
    let body = body.map_err(NoJob::Body)?;
    if body.bytes().len() > bytes_max {
        return Err(NoJob::TooLong);
    }
    let of = Match { prefix: asked.of.prefix, labels: asked.of.label.into_iter().collect() };
    Ok((of, body.into_owned()))
}
