//! The thread of devices: its event loop, and its parameters.

use super::api::DeviceApi;
use super::jobs::{self, TakeoverNotice, read_broadcast};
use super::node::DeviceNode;
use super::registry::{Memory, Registry, RegistrySettings, SharedRegistry};
use super::reports;
use crate::carrying;
use crate::clock::{rfc3339, unix_ms};
use crate::envelope::{PostVerdict, read_post, split, write_verdict};
use crate::node::Online;
use crate::peers::{BROADCAST, CARRY, DISCONNECT, JOB, LIST, MESSAGE, PAGE_MAX, Page, SHOW};
use crate::reports::Commands;
use bytes::Bytes;
use serde_json::{Map, Value as Json, json};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Bound;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use stillgate_cluster::Watch;
use stillgate_cluster::peers::{Call, Handler, PeerReply, PeerTls, ReplyFuture};
use stillgate_cluster::registry::{FormerDirectory, RedisAddress};
use stillgate_config::{Config, DeviceRegistry, Devices};
use stillgate_devices::Generation;
use stillgate_devices::protocol::{DeviceProtocol, MessageId};
use stillgate_door::tls::{certificate, roots, trusted};
use stillgate_door::{Access, Bounds, Guard, RunningServer, Server, serve};
use stillgate_measures::process_stats::hostname;
use stillgate_profiler::threads::Registration;
use stillgate_proxy::device_link::{CloseWhy, DeviceFacts, DeviceQueues, DeviceReport};
use stillgate_tls::Problem;
use stillgate_tls::rustls::{RootCertStore, ServerConfig};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

/// Time for a request's head to arrive. A back-end's idle connection is kept as long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum age of a connection: a stream of events may last.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Time for a connection to finish: as long as a sender may wait.
const END_TIMEOUT: Duration = Duration::from_secs(310);

/// Time for the workers to take in what the process before this one gave last.
const ADOPTING: Duration = Duration::from_millis(500);

/// The parameters of the thread.
pub struct NodeParameters {
    /// The queues to and from the workers.
    pub queues: DeviceQueues,
    /// The socket of the device API.
    pub listener: TcpListener,
    /// Access rules of the device API, which follow the configuration.
    pub access: watch::Receiver<Access>,
    /// `None`: plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// The socket for peers, with a shared directory.
    pub peer: Option<PeerListener>,
    /// Another process is about to give what it has.
    pub follows: bool,
}

/// The address for other nodes.
#[derive(Debug)]
pub struct PeerListener {
    /// The socket.
    pub listener: TcpListener,
    /// Directory of the process that this one follows.
    pub former: Option<FormerDirectory>,
}

/// The running thread.
#[derive(Debug)]
pub struct DeviceThread {
    /// `None` once it has been taken.
    leaving: Option<TakeoverNotice>,
    /// The process that this one follows gives what it has, and is over when this is. It also sends reports of its broadcasts.
    follows: Option<oneshot::Sender<mpsc::Receiver<Vec<u8>>>>,
    /// When it is dropped, the API ends: it answers the requests that have arrived.
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    /// The directory that it shares with other nodes.
    pub directory: Option<Watch>,
}

/// The name of the node.
pub(super) fn node_name(keys: &Devices) -> String {
    keys.node.clone().unwrap_or_else(hostname)
}

/// The former process's socket, where it has the same address, or another.
pub fn listen(address: SocketAddr, former: Option<(SocketAddr, TcpListener)>) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = match former.filter(|(before, _)| *before == address) {
        Some((_, listener)) => listener,
        None => TcpListener::bind(address)?,
    };
    listener.set_nonblocking(true)?;
    Ok((address, listener))
}

/// An address that is bound everywhere is reached by loopback.
pub fn reached_at(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

impl DeviceThread {
    /// Serves from now on.
    pub fn start(keys: &Devices, starting: NodeParameters) -> io::Result<DeviceThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (name, home) = (node_name(keys), NodeCell::default());
        let registry = {
            let _entered = runtime.enter();
            registry(keys, &name, starting.peer, &home)?
        };
        let directory = registry.shared().map(SharedRegistry::watch);
        let DeviceQueues { commands, reports: reported, hold } = starting.queues;
        let node = DeviceNode::new(name, keys.limits, registry, (Commands::new(commands), hold), starting.follows);
        let node = Arc::new(node);
        // It is set only here.
        let _is_first = home.set(Arc::downgrade(&node));
        let (end, ended) = oneshot::channel();
        let (outbox, leaves) = oneshot::channel();
        let leaving = Some(TakeoverNotice { outbox, has_company: node.company() });
        let (follows, followed) = oneshot::channel::<mpsc::Receiver<Vec<u8>>>();
        let (listener, access, tls) = (starting.listener, starting.access, starting.tls);
        let run = move || {
            let _profiled = Registration::new("devices", None).ok();
            runtime.block_on(async move {
                let (has_taken, over) = oneshot::channel();
                let taking = tokio::spawn(receive_reports(node.clone(), reported, has_taken));
                if starting.follows {
                    tokio::spawn(follow(node.clone(), followed));
                }
                let serving = match begin(&node, listener, access, tls) {
                    Ok(serving) => serving,
                    Err(error) => return tracing::error!(%error, "the device API cannot be served"),
                };
                // Nothing is ever sent: it is dropped.
                let mut ended = ended;
                tokio::select! {
                    // A process that is ending too has nothing to hand over.
                    biased;
                    _ = &mut ended => {}
                    outbox = leaves => {
                        node.leave();
                        if let Ok(outbox) = outbox {
                            tokio::spawn(jobs::tell_successor(node.clone(), outbox, over));
                        }
                        serving.leave();
                        let _ = ended.await;
                    }
                }
                let told = async {
                    // Some senders are answered with the workers' last reports; nothing more will come for the others.
                    let _ = taking.await;
                    node.end_waiting();
                };
                tokio::join!(serving.end(), told);
                node.registry.end().await;
            });
        };
        let thread = std::thread::Builder::new().name("devices".to_owned()).spawn(run)?;
        Ok(DeviceThread { leaving, follows: Some(follows), end, thread, directory })
    }

    /// What the upgrade needs to notify this thread that another process takes over. It can be taken once.
    pub fn take_leaving(&mut self) -> TakeoverNotice {
        let none = || TakeoverNotice { outbox: oneshot::channel().0, has_company: Arc::default() };
        self.leaving.take().unwrap_or_else(none)
    }

    /// The process that this one follows gives what it has from now on, until the other end of `told` is dropped.
    pub fn begin_filling(&mut self, told: mpsc::Receiver<Vec<u8>>) {
        if let Some(follows) = self.follows.take() {
            // A thread that has ended takes no more commands.
            let _ = follows.send(told);
        }
    }

    /// Ends the API, and waits until the requests that have arrived are answered. The workers have ended.
    pub fn end(self) {
        let DeviceThread { leaving, follows, end, thread, directory: _ } = self;
        drop((leaving, follows, end));
        // A panic was reported when it happened.
        let _ = thread.join();
    }
}

/// Takes what the workers report until they have ended, when `_over` is dropped.
async fn receive_reports(node: Arc<DeviceNode>, reported: mpsc::Receiver<DeviceReport>, _over: oneshot::Sender<()>) {
    reports::take_until_closed(node, reported).await;
}

/// Waits for the former process to give what it has.
async fn follow(node: Arc<DeviceNode>, followed: oneshot::Receiver<mpsc::Receiver<Vec<u8>>>) {
    let told = followed.await;
    node.begin_filling();
    if let Ok(mut told) = told {
        while let Some(job) = told.recv().await {
            node.state().jobs.learn(&job);
        }
        sleep(ADOPTING).await;
    }
    node.on_former_ended();
}

fn registry(keys: &Devices, node: &str, peer: Option<PeerListener>, home: &NodeCell) -> io::Result<Registry> {
    let (DeviceRegistry::Redis { url, is_cluster, ca }, Some(reached), Some(PeerListener { listener, former })) =
        (&keys.registry, &keys.peer, peer)
    else {
        return Ok(Registry::Memory(Memory::new(keys.limits.devices)));
    };
    let advertise = match &reached.advertise {
        Some(advertise) => advertise.clone(),
        None => listener.local_addr()?.to_string(),
    };
    let tls = peer_tls(keys, node).map_err(|problem| io::Error::other(problem.to_string()))?;
    let ca_pem = ca.as_ref().map(trusted).transpose().map_err(io::Error::other)?;
    let redis = RedisAddress { urls: vec![url.reveal().to_owned()], is_cluster: *is_cluster, ca_pem };
    let message_bytes_max = keys.limits.message_bytes;
    let closing = home.clone();
    let close = Arc::new(move |connection| {
        if let Some(node) = closing.get().and_then(Weak::upgrade) {
            node.close_connection(connection, CloseWhy::Replaced);
        }
    });
    let answers = handler(home.clone());
    let node = node.to_owned();
    let sharing = RegistrySettings { node, redis, listener, advertise, tls, former, message_bytes_max, answers, close };
    SharedRegistry::start(sharing).map(Registry::Shared)
}

fn begin(
    node: &Arc<DeviceNode>,
    listener: TcpListener,
    access: watch::Receiver<Access>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<RunningServer> {
    if tls.is_none() {
        // It is set only here.
        let _is_first = node.successor_api.set(reached_at(listener.local_addr()?));
    }
    let answers = DeviceApi::new(node.clone(), Arc::new(Guard::new(access)));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let bounds =
        Bounds { name: "device API", head: IDLE_TIMEOUT, age: CONNECTION_AGE_MAX, end: END_TIMEOUT, is_wide: true };
    Ok(serve(listener, Server { answers, tls, bounds }))
}

// The answers of this node to requests of other nodes.

/// How long to wait for the state of a job that another process of this node may have: less than that.
const JOB_WAIT: Duration = Duration::from_millis(1_500);
/// The node, once there is one: it owns the directory that calls it.
pub(super) type NodeCell = Arc<OnceLock<Weak<DeviceNode>>>;

/// What answers other nodes. Before `home` is set, every device is elsewhere.
pub(super) fn handler(home: NodeCell) -> Handler {
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
        BROADCAST => split(&call.body).and_then(|(message, asked)| begin_job(node, &call.from, message, asked)),
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
        None if node.has_left() || node.may_have_devices_elsewhere() && &*call.kind != JOB => PeerReply::Leaving,
        None => PeerReply::Moved,
    }
}

/// Begins a job here at the request of another node.
fn begin_job(node: &Arc<DeviceNode>, from: &str, message: &[u8], request: &[u8]) -> Option<Vec<u8>> {
    let message = MessageId::parse(&serde_json::from_slice::<String>(message).ok()?)?;
    let (of, body) = read_broadcast(request, node.limits.message_bytes).ok()?;
    node.broadcast(message, of, &body, Some(from)).ok()?;
    Some(Vec::new())
}

// TLS between nodes: the files that a configuration names.

/// The path of the keys in the configuration.
const PEER: &str = "gateway.devices.peer.tls";

/// Why a node of a configuration cannot authenticate itself, for `check`; `None`: it can, or does not have to.
pub fn problem(config: &Config) -> Option<Problem> {
    let devices = config.gateway.devices.as_ref()?;
    peer_tls(devices, &node_name(devices)).err()
}

/// TLS of a node among others; `None`: it has no peers, or none on other machines.
pub(super) fn peer_tls(devices: &Devices, node: &str) -> Result<Option<PeerTls>, Problem> {
    let Some(keys) = devices.peer.as_ref().and_then(|peer| peer.tls.as_ref()) else { return Ok(None) };
    let at = |key: &str, message: String| Problem { path: format!("{PEER}.{key}"), message, hint: None };
    let (chain, key) = certificate(keys, PEER)?;
    let roots = keys.client_ca.as_ref().map(|ca| roots(ca, PEER)).transpose()?.unwrap_or_else(RootCertStore::empty);
    PeerTls::new(node, chain, key, roots).map(Some).map_err(|error| at("cert", error.to_string()))
}

// The devices that are connected to this node, as the device API and other nodes show them.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everywhere_is_reached_by_loopback() {
        for (address, expected) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")] {
            assert_eq!(reached_at(address.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
