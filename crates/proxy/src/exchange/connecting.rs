//! The node's connection for one try: from the pool, or a new one.

use super::node_host::host_for;
use super::tries::Tries;
use super::{Exchange, RequestContext};
use crate::connection::stream::Stream;
use crate::node::{self, ConnectError, Destination, health};
use crate::worker::Worker;
use crate::worker::pending_connections::{ConnectionKey, PendingConnection};
use std::rc::Rc;
use stillgate_config::PassHost;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_upstream::{ConnMeta, Failure, NameFault, TryReport};

/// The node's connection while a try uses it.
pub(super) struct NodeConnection {
    pub(super) index: usize,
    pub(super) stream: Stream,
    pub(super) meta: ConnMeta,
    /// How long it took to make; zero if it existed already.
    pub(super) connect_us: u64,
}

/// The name that the node's certificate must be valid for, if its upstream uses TLS.
fn server_name(exchange: &Exchange, tries: &Tries<'_>, index: usize) -> Option<ServerName<'static>> {
    let upstream = tries.target.upstream;
    let tls = upstream.planned.tls()?;
    let state = upstream.state.borrow();
    let node = &state.endpoint(index).host;
    Some(tls.server_name(host_seen(exchange, tries, node), node))
}

/// The name by which the node sees itself addressed.
fn host_seen<'a>(exchange: &'a Exchange, tries: &'a Tries<'_>, node: &'a str) -> &'a str {
    let pass_host = &tries.target.upstream.planned.definition.pass_host;
    std::str::from_utf8(host_for(exchange, pass_host, node)).unwrap_or_default()
}

/// Whether that name comes with the request, so that its client, or a plugin, has chosen it.
fn is_name_of_request(exchange: &Exchange, tries: &Tries<'_>) -> bool {
    let planned = &tries.target.upstream.planned;
    let is_passed = planned.definition.pass_host == PassHost::Pass || exchange.request_edits.host().is_some();
    is_passed && planned.tls().is_some_and(|tls| !tls.has_own_name())
}

/// Takes a connection that already exists.
pub(super) fn pooled(worker: &Worker, exchange: &Exchange, tries: &Tries<'_>, index: usize) -> Option<NodeConnection> {
    if tries.is_fresh {
        return None;
    }
    let upstream = tries.target.upstream;
    let is_name = |shown: Option<&ServerName<'static>>, node: &str| match (upstream.planned.tls(), shown) {
        (Some(tls), Some(shown)) => tls.is_server_name(shown, host_seen(exchange, tries, node), node),
        (tls, shown) => tls.is_none() && shown.is_none(),
    };
    let mut state = upstream.state.borrow_mut();
    let (stream, meta) = node::take_live(&mut state, index, is_name, worker.clock.now_ms())?;
    Some(NodeConnection { index, stream, meta, connect_us: 0 })
}

/// Makes a new connection; with HTTP/2, it may be one that another request makes meanwhile.
pub(super) async fn connect(
    serving: &RequestContext<'_>,
    tries: &Tries<'_>,
    index: usize,
) -> Result<NodeConnection, ConnectError> {
    let RequestContext { worker, client, exchange, .. } = serving;
    let (upstream, bounds) = (tries.target.upstream, tries.target.bounds);
    let state = &upstream.state;
    let name = server_name(exchange, tries, index);
    let (http2, grpc) = (upstream.planned.link.http2, upstream.planned.link.grpc);
    let address = state.borrow().endpoint(index).address;
    let timeout_ms = bounds.node.connect.min(bounds.node.per_try);
    let ours_ms = worker.clock.now_ms() + timeout_ms;
    let deadline_ms = ours_ms.min(bounds.deadline_ms);
    // One connection carries many requests: a request that arrives while a connection is being made waits for it, and for the next
    // if others have filled it. If making it fails, each request tries for itself.
    let wanted = || ConnectionKey { pool: Rc::as_ptr(state).addr(), address, name: name.clone() };
    let making = loop {
        match http2.then(|| worker.connecting.begin(wanted())).transpose() {
            Ok(making) => break making,
            Err(other) => {
                let made = Box::pin(other.wait());
                worker.clock.within(&client.timer, deadline_ms, made).await;
                if let Some(pooled) = pooled(worker, exchange, tries, index) {
                    return Ok(pooled);
                }
                if !other.is_made() {
                    break None;
                }
            }
        }
    };
    let given = name.as_ref().filter(|_| is_name_of_request(exchange, tries)).map(|name| name.to_str().into_owned());
    let tls = upstream.tls.as_ref().zip(name);
    let destination = Destination { upstream, address, tls, http2, grpc, preface: &[] };
    let left_ms = deadline_ms.saturating_sub(worker.clock.now_ms());
    match node::connect(worker, &client.timer, destination, left_ms).await {
        Ok((stream, connect_us)) => {
            health::report(worker, upstream, index, TryReport::Connected, String::new);
            if let Some(name) = &given {
                state.borrow_mut().accept_name(index, name);
            }
            let meta = state.borrow().fresh_meta(index);
            let (stream, meta) = node::keep_shared(&mut state.borrow_mut(), index, stream, meta, worker.clock.now_ms());
            making.iter().for_each(PendingConnection::made);
            Ok(NodeConnection { index, stream, meta, connect_us })
        }
        Err(mut error) => {
            let fault = given.filter(|_| error.is_handshake && !error.is_local);
            let fault = fault.map(|name| state.borrow_mut().refuse_name(index, &name));
            // If a client gives a call less time than we give a node, its timeout proves nothing about the node.
            let is_late = error.failure == Failure::ConnectTimeout && deadline_ms < ours_ms;
            if fault == Some(NameFault::Unproved) {
                error.failure = Failure::Name;
            }
            let is_of_node = !error.is_local && !is_late && matches!(fault, None | Some(NameFault::Node));
            let report = if is_of_node { TryReport::Failed(error.failure) } else { TryReport::Inconclusive };
            health::report(worker, upstream, index, report, || error.reason());
            Err(error)
        }
    }
}

/// The node at `index` is connected under the server name that another node has refused while no node is known to accept it: judges
/// what that shows about the other.
#[cold]
pub(super) fn judge_refusal(serving: &RequestContext<'_>, tries: &Tries<'_>, refused: usize, index: usize) {
    let Some(name) = server_name(serving.exchange, tries, index) else { return };
    let (upstream, name) = (tries.target.upstream, name.to_str());
    let fault = {
        let mut state = upstream.state.borrow_mut();
        // Also if the connection already existed: the name may have been forgotten since.
        state.accept_name(index, &name);
        state.refuse_name(refused, &name)
    };
    if fault == NameFault::Node {
        let why = || "it refuses a server name that another node accepts".to_owned();
        health::report(serving.worker, upstream, refused, TryReport::Failed(Failure::Connect), why);
    }
}
