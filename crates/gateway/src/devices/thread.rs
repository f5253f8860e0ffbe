//! The thread of devices: its event loop, and what it is started with.

use super::api;
use super::commands::Commands;
use super::node::Node;
use super::registry::{Memory, Registry};
use super::reports;
use crate::admin::server::{Bounds, Server, Serving, serve};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stillgate_admin::{Access, Guard};
use stillgate_config::Devices;
use stillgate_profiler::threads::Registration;
use stillgate_proxy::device_link::DeviceQueues;
use stillgate_tls::rustls::ServerConfig;
use tokio::sync::{oneshot, watch};

/// Within this a request's head has to be there. A back-end's idle connection is kept as long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// A stream of events may last.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a connection has to finish in: as long as a sender may wait.
const END_TIMEOUT: Duration = Duration::from_secs(310);

/// What the thread begins with.
pub(crate) struct Starting {
    pub(crate) queues: DeviceQueues,
    pub(crate) listener: TcpListener,
    pub(crate) access: watch::Receiver<Access>,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) hostname: String,
    /// Another process is about to give what it has.
    pub(crate) follows: bool,
}

/// The running thread.
#[derive(Debug)]
pub(crate) struct DeviceThread {
    /// Dropped, it accepts no more; until somebody has it.
    accepting: Option<oneshot::Sender<()>>,
    /// Dropped, the API ends: it answers what has been asked.
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
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
        let name = keys.node.clone().unwrap_or_else(|| starting.hostname.clone());
        let registry = Registry::Memory(Memory::new(&name, keys.limits.devices));
        let node = Node::new(name, keys.limits, registry, Commands::new(starting.queues.commands), starting.follows);
        let node = Arc::new(node);
        let (end, ended) = oneshot::channel();
        let (accepting, accepts) = oneshot::channel();
        let (listener, access, tls) = (starting.listener, starting.access, starting.tls);
        let reported = starting.queues.reports;
        let run = move || {
            let _profiled = Registration::new("devices", None).ok();
            runtime.block_on(async move {
                let taking = tokio::spawn(reports::take(node.clone(), reported));
                let serving = match begin(&node, listener, access, tls) {
                    Ok(serving) => serving,
                    Err(error) => return tracing::error!(%error, "the device API cannot be served"),
                };
                // Nothing is ever sent: these are dropped.
                let _ = accepts.await;
                node.leave();
                serving.leave();
                let _ = ended.await;
                serving.end().await;
                // What the workers report until they have ended is of use to those who are answered still.
                let _ = taking.await;
            });
        };
        let thread = std::thread::Builder::new().name("devices".to_owned()).spawn(run)?;
        Ok(DeviceThread { accepting: Some(accepting), end, thread })
    }

    /// What to drop for it to accept no more; there is one.
    pub(crate) fn accepting(&mut self) -> oneshot::Sender<()> {
        self.accepting.take().unwrap_or_else(|| oneshot::channel().0)
    }

    /// Ends the API, and waits until what has been asked is answered. The workers have ended.
    pub(crate) fn end(self) {
        let DeviceThread { accepting, end, thread } = self;
        drop((accepting, end));
        // A panic was reported when it happened.
        let _ = thread.join();
    }
}

fn begin(
    node: &Arc<Node>,
    listener: TcpListener,
    access: watch::Receiver<Access>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<Serving> {
    let router = api::router(node.clone(), Arc::new(Guard::new(access)));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let bounds =
        Bounds { name: "device API", head: IDLE_TIMEOUT, age: CONNECTION_AGE_MAX, end: END_TIMEOUT, is_wide: true };
    Ok(serve(listener, Server { router, tls, bounds }))
}
