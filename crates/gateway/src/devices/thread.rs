//! The thread of devices: its event loop, and what it is started with.

use super::api;
use super::commands::Commands;
use super::node::Node;
use super::peer_tls::peer_tls;
use super::registry::{Home, Memory, Registry, Shared, Sharing};
use super::reports;
use crate::admin::devices::reached_at;
use crate::admin::server::{Bounds, Server, Serving, serve};
use crate::admin::tls::trusted;
use crate::metering::process_stats::hostname;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stillgate_admin::{Access, Guard};
use stillgate_cluster::Watch;
use stillgate_cluster::registry::{FormerDirectory, RedisAddress};
use stillgate_config::{DeviceRegistry, Devices};
use stillgate_profiler::threads::Registration;
use stillgate_proxy::device_link::DeviceQueues;
use stillgate_tls::rustls::ServerConfig;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// Within this a request's head has to be there. A back-end's idle connection is kept as long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// A stream of events may last.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a connection has to finish in: as long as a sender may wait.
const END_TIMEOUT: Duration = Duration::from_secs(310);

/// What the workers have to take in what the process before this one gave last.
const ADOPTING: Duration = Duration::from_millis(500);

/// What the thread begins with.
pub(crate) struct Starting {
    pub(crate) queues: DeviceQueues,
    pub(crate) listener: TcpListener,
    pub(crate) access: watch::Receiver<Access>,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// With a shared directory.
    pub(crate) peer: Option<PeerSocket>,
    /// Another process is about to give what it has.
    pub(crate) follows: bool,
}

/// Where other nodes reach this one.
#[derive(Debug)]
pub(crate) struct PeerSocket {
    pub(crate) listener: TcpListener,
    /// Of the process that this one follows.
    pub(crate) former: Option<FormerDirectory>,
}

/// The running thread.
#[derive(Debug)]
pub(crate) struct DeviceThread {
    /// Dropped, it accepts no more; until somebody has it.
    accepting: Option<oneshot::Sender<()>>,
    /// The process that this one follows gives what it has, and is over when this is.
    follows: Option<oneshot::Sender<oneshot::Receiver<()>>>,
    /// Dropped, the API ends: it answers what has been asked.
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    /// The directory that it shares with other nodes.
    pub(crate) directory: Option<Watch>,
}

/// What the node is called.
pub(super) fn node_name(keys: &Devices) -> String {
    keys.node.clone().unwrap_or_else(hostname)
}

/// The former process's socket, where it has the same address, or another.
pub(crate) fn listen(
    address: SocketAddr,
    former: Option<(SocketAddr, TcpListener)>,
) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = match former.filter(|(before, _)| *before == address) {
        Some((_, listener)) => listener,
        None => TcpListener::bind(address)?,
    };
    listener.set_nonblocking(true)?;
    Ok((address, listener))
}

impl DeviceThread {
    /// Serves from now on.
    pub(crate) fn start(keys: &Devices, starting: Starting) -> io::Result<DeviceThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (name, home) = (node_name(keys), Home::default());
        let registry = {
            let _entered = runtime.enter();
            registry(keys, &name, starting.peer, &home)?
        };
        let directory = registry.shared().map(Shared::watch);
        let node = Node::new(name, keys.limits, registry, Commands::new(starting.queues.commands), starting.follows);
        let node = Arc::new(node);
        // It is set only here.
        let _is_first = home.set(Arc::downgrade(&node));
        let (end, ended) = oneshot::channel();
        let (accepting, accepts) = oneshot::channel();
        let (follows, followed) = oneshot::channel::<oneshot::Receiver<()>>();
        let (listener, access, tls) = (starting.listener, starting.access, starting.tls);
        let reported = starting.queues.reports;
        let run = move || {
            let _profiled = Registration::new("devices", None).ok();
            runtime.block_on(async move {
                let taking = tokio::spawn(reports::take(node.clone(), reported));
                if starting.follows {
                    let node = node.clone();
                    tokio::spawn(async move {
                        let is_over = followed.await;
                        node.is_given_from_now();
                        if let Ok(is_over) = is_over {
                            // Nothing is ever sent: the other side is dropped.
                            let _ = is_over.await;
                            sleep(ADOPTING).await;
                        }
                        node.former_is_over();
                    });
                }
                let serving = match begin(&node, listener, access, tls) {
                    Ok(serving) => serving,
                    Err(error) => return tracing::error!(%error, "the device API cannot be served"),
                };
                // Nothing is ever sent: these are dropped.
                let mut ended = ended;
                tokio::select! {
                    // A process that is ending too has nothing to hand over.
                    biased;
                    _ = &mut ended => {}
                    _ = accepts => {
                        node.leave();
                        serving.leave();
                        let _ = ended.await;
                    }
                }
                serving.end().await;
                // What the workers report until they have ended is of use to those who are answered still.
                let _ = taking.await;
                node.registry.end().await;
            });
        };
        let thread = std::thread::Builder::new().name("devices".to_owned()).spawn(run)?;
        Ok(DeviceThread { accepting: Some(accepting), follows: Some(follows), end, thread, directory })
    }

    /// What to drop for it to accept no more; there is one.
    pub(crate) fn accepting(&mut self) -> oneshot::Sender<()> {
        self.accepting.take().unwrap_or_else(|| oneshot::channel().0)
    }

    /// The process that this one follows gives what it has from now on, until the other end of `is_over` is dropped.
    pub(crate) fn is_given(&mut self, is_over: oneshot::Receiver<()>) {
        if let Some(follows) = self.follows.take() {
            // A thread that has ended takes no more commands.
            let _ = follows.send(is_over);
        }
    }

    /// Ends the API, and waits until what has been asked is answered. The workers have ended.
    pub(crate) fn end(self) {
        let DeviceThread { accepting, follows, end, thread, directory: _ } = self;
        drop((accepting, follows, end));
        // A panic was reported when it happened.
        let _ = thread.join();
    }
}

fn registry(keys: &Devices, node: &str, peer: Option<PeerSocket>, home: &Home) -> io::Result<Registry> {
    let (DeviceRegistry::Redis { url, is_cluster, ca }, Some(reached), Some(PeerSocket { listener, former })) =
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
    let sharing = Sharing { node: node.to_owned(), redis, listener, advertise, tls, former, message_bytes_max };
    Shared::start(sharing, home.clone()).map(Registry::Shared)
}

fn begin(
    node: &Arc<Node>,
    listener: TcpListener,
    access: watch::Receiver<Access>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<Serving> {
    if tls.is_none() {
        // It is set only here.
        let _is_first = node.successor_api.set(reached_at(listener.local_addr()?));
    }
    let router = api::router(node.clone(), Arc::new(Guard::new(access)));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let bounds =
        Bounds { name: "device API", head: IDLE_TIMEOUT, age: CONNECTION_AGE_MAX, end: END_TIMEOUT, is_wide: true };
    Ok(serve(listener, Server { router, tls, bounds }))
}
