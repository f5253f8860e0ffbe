//! Hands live connections to another process: in a binary upgrade, from the old workers to the new ones.
//!
//! ```text
//!  old: task gives itself up ─▶ outbox ─▶ sending thread ══ one datagram a connection ══▶ receiving thread ─▶ inbox ─▶ task :new
//! ```
//!
//! Tunnels, connections of devices, and connections that wait for a request are handed over, unless a side of theirs goes through
//! TLS or HTTP/2, whose state is in memory that cannot be moved. A connection is whole at every moment: what is in the kernel's
//! buffers goes along with its descriptor, what was read and not written is part of its `state`. What cannot be handed over at once
//! is tried again, so only the thread that sends waits for the other process.

mod state;
#[cfg(test)]
mod tests;

use crate::basics::clock::{Clock, WheelPlace};
use crate::connection::stream::Stream;
use crate::plan::Plan;
use crate::plan::snapshot::Snapshot;
use crate::telemetry::troubles::Troubles;
use serde::{Deserialize, Serialize};
pub use state::{BROADCAST_BYTES_MAX, HandedState, PARCEL_BYTES_MAX, Parcel, ParcelError};
pub(crate) use state::{
    ConnectionState, CredentialState, DEVICE_MESSAGES_BYTES_MAX, DEVICE_MESSAGES_MAX, DeviceState, DirectionState,
    Ends, MessageState, OriginState, PolicyState, ProtocolState, RequestState, SessionState, TunnelState,
};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{ListenPlace, Route, StreamRoute, Target, Upstream};
use stillgate_plugin_api::ChainEntry;
use stillgate_route::{InvalidParts, RouteMatch, RouteSpec, UriRoute};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

// Looks up where routes are in a Plan, by the ids that another process knows them by.

/// Places that a worker caches while connections come in, or go.
#[derive(Default)]
pub(crate) struct RoutePlaces {
    /// Places of the HTTP routes in the Plan of this version, by their ids.
    routes: RefCell<(u64, HashMap<Arc<str>, usize>)>,
}

impl RoutePlaces {
    /// Where a route is in this Plan.
    pub(crate) fn route(&self, snapshot: &Snapshot, id: &str) -> Option<usize> {
        let (version, places) = &mut *self.routes.borrow_mut();
        if *version != snapshot.version {
            *version = snapshot.version;
            let routes = snapshot.plan.routes.iter().enumerate();
            let routes = routes.filter(|(_, route)| route.route.upgrades || route.route.devices().is_some());
            *places = routes.map(|(at, route)| (route.route.spec.id.as_str().into(), at)).collect();
        }
        places.get(id).copied()
    }

    /// Whether a route is in this Plan unchanged.
    pub(crate) fn is_present(&self, snapshot: &Snapshot, route: &Route) -> bool {
        let found = self.route(snapshot, &route.spec.id);
        found.is_some_and(|at| snapshot.plan.routes[at].route.spec == route.spec)
    }
}

// The new process's side: connections come in from the thread that receives them, and are distributed to the workers.

/// Connections that may wait for a worker. A tunnel pauses while it waits.
pub const INBOX: usize = 8;

/// A parcel for a worker, with its state under the new configuration.
pub(crate) struct ReceivedParcel {
    pub(crate) parcel: Parcel,
    /// Its route differs from that in the other process.
    pub(crate) is_changed: bool,
}

/// Distributes connections from another process to the workers, one after the other.
pub struct Inbox {
    workers: Vec<mpsc::Sender<ReceivedParcel>>,
    next: Cell<usize>,
    /// Keys of routes that have changed.
    changed: HashSet<String>,
}

impl Inbox {
    pub(crate) fn new(workers: Vec<mpsc::Sender<ReceivedParcel>>, changed: HashSet<String>) -> Inbox {
        Inbox { workers, next: Cell::new(0), changed }
    }

    /// Gives a connection to a worker, and waits if that worker has many to begin with. False: the workers have ended.
    pub fn put(&self, parcel: Parcel) -> bool {
        let is_changed = match &parcel.state {
            HandedState::Connection(_) | HandedState::Broadcast { .. } => false,
            HandedState::Tunnel(tunnel) => self.changed.contains(&tunnel.route),
            HandedState::Device(device) => self.changed.contains(&device.route),
        };
        let at = self.next.get();
        self.next.set((at + 1) % self.workers.len());
        self.workers[at].blocking_send(ReceivedParcel { parcel, is_changed }).is_ok()
    }
}

// The old process's side: connections are woken a few at a time, and each hands itself over.

/// Connections that may wait for the thread that sends them, of all workers. A tunnel pauses while it waits.
pub const OUTBOX: usize = 16;
/// Connections that a worker hands over together, and the pause between two such batches: handing over takes CPU in both processes
/// which served requests need meanwhile.
const GIVEN_AT_ONCE: usize = 8;
const GIVE_EVERY: Duration = Duration::from_millis(1);
/// How long a worker that is to end has to hand over what it can.
pub(crate) const GIVING_MS: u64 = 10_000;
/// How long a worker waits for room in the outbox, and between two passes over its connections.
const ROOM_WAIT: Duration = Duration::from_millis(1);
const PASS_WAIT: Duration = Duration::from_millis(20);

/// The process that takes over, and what it takes.
#[derive(Debug)]
pub struct Successor {
    /// Queue for connections and tunnels.
    pub outbox: mpsc::Sender<Parcel>,
    /// Where it listens, with the same sockets as we do.
    pub listening: HashSet<ListenPlace>,
    /// Places in `listening` whose connections it serves as we do.
    pub alike: HashSet<ListenPlace>,
    /// Keys of the routes whose tunnels it can continue.
    pub routes: HashSet<String>,
}

/// A worker that is handing over its connections.
pub(crate) struct LeavingWorker {
    successor: Arc<Successor>,
    /// This process is to end soon: a client that gets an answer is informed that its connection ends.
    pub(crate) is_hurried: bool,
    /// When this process may end, whatever it still has.
    deadline_ms: u64,
    /// Position of the current pass over the timers; `None`: between two passes.
    cursor: Cell<Option<WheelPlace>>,
    /// When the next batch may be given, and how many connections of the previous one may still be given.
    due: Cell<Instant>,
    allowance: Cell<usize>,
    /// Whether another pass may find something: one was given in this pass, or found no room.
    is_worth_a_pass: Cell<bool>,
    /// The last pass was not worth another, and the tasks that it has woken have had time to run.
    is_settled: Cell<bool>,
}

impl LeavingWorker {
    pub(crate) fn new(successor: Arc<Successor>, is_hurried: bool, deadline_ms: u64) -> LeavingWorker {
        LeavingWorker {
            successor,
            is_hurried,
            deadline_ms,
            cursor: Cell::new(None),
            due: Cell::new(Instant::now()),
            allowance: Cell::new(0),
            is_worth_a_pass: Cell::new(true),
            is_settled: Cell::new(false),
        }
    }

    /// Whether the successor has this listener's sockets.
    pub(crate) fn leaves_listener(&self, place: ListenPlace) -> bool {
        self.successor.listening.contains(&place)
    }

    /// Whether connections like this one, which was accepted there, are handed over.
    pub(crate) fn takes(&self, stream: &Stream, place: ListenPlace) -> bool {
        matches!(stream, Stream::Plain(_))
            && self.successor.alike.contains(&place)
            && !self.successor.outbox.is_closed()
    }

    /// Whether tunnels of this route are handed over.
    pub(crate) fn takes_route(&self, key: &str) -> bool {
        self.successor.routes.contains(key)
    }

    /// Whether everything that can be given has been, as far as we know, or the other process takes no more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_settled.get() && !self.is_worth_a_pass.get() || self.successor.outbox.is_closed()
    }

    /// There is something that cannot be given yet.
    pub(crate) fn request_another_pass(&self) {
        self.is_worth_a_pass.set(true);
    }

    /// Whether one more may be given now; otherwise another pass returns to it.
    fn has_room(&self) -> bool {
        let has_room = self.allowance.get() > 0 && self.successor.outbox.capacity() > 0;
        if !has_room {
            self.is_worth_a_pass.set(true);
        }
        has_room
    }

    /// Sends the parcel that `pack` makes, if there is room for it.
    pub(crate) fn send(&self, troubles: &Troubles, pack: impl FnOnce() -> io::Result<Parcel>) -> bool {
        if !self.has_room() {
            return false;
        }
        self.is_worth_a_pass.set(true);
        let Ok(room) = self.successor.outbox.try_reserve() else { return false };
        match pack() {
            Ok(parcel) => {
                room.send(parcel);
                self.allowance.set(self.allowance.get() - 1);
                true
            }
            // Without a descriptor for it, it stays until there is one.
            Err(error) => {
                troubles.note_kept(error);
                false
            }
        }
    }

    /// Wakes the next few, as soon as there is room for them. Cancel-safe.
    pub(crate) async fn turn(&self, clock: &Clock) {
        let Some(from) = self.cursor.get() else {
            if self.is_over() {
                return pending().await;
            }
            sleep(PASS_WAIT).await;
            if !self.is_worth_a_pass.get() {
                self.is_settled.set(true);
                return;
            }
            self.is_worth_a_pass.set(false);
            self.is_settled.set(false);
            self.cursor.set(Some(WheelPlace::default()));
            return;
        };
        match self.is_hurried || clock.now_ms() >= self.deadline_ms {
            // Connections that were woken before are handed over now.
            true => yield_now().await,
            false => sleep_until(self.due.get()).await,
        }
        while self.successor.outbox.capacity() < GIVEN_AT_ONCE && !self.successor.outbox.is_closed() {
            sleep(ROOM_WAIT).await;
        }
        self.allowance.set(GIVEN_AT_ONCE);
        self.cursor.set(clock.wake_some(from, GIVEN_AT_ONCE));
        self.due.set(Instant::now() + GIVE_EVERY);
    }
}

/// One more descriptor of a socket: closing ours leaves the connection as it is.
pub(crate) fn share(stream: &Stream) -> io::Result<OwnedFd> {
    stream.socket().ok_or(io::ErrorKind::Unsupported)?.as_fd().try_clone_to_owned()
}

// Digests that show whether a route is the same in two processes.
//
// What a reload decides by comparing two routes in memory (see `plan::lease`) is decided here by digests. The digest covers JSON
// of everything that a route says, by the names of its fields, so that the order in which a compiler or a later version has them
// in memory makes no difference. A version in which routes say more may see a route as changed that is not, so a process with the
// very same file does not compare. Rejected: the text of `Debug`, which leaves out what must not be printed, such as a secret.

/// A route that may have tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteDigest {
    /// `routes/` or `stream_routes/`, and its id.
    pub key: String,
    /// Digest of everything that the route says.
    pub digest: u64,
}

/// Key prefix of HTTP routes between processes, and that of stream routes.
pub(crate) const ROUTES: &str = "routes/";
pub(crate) const STREAM_ROUTES: &str = "stream_routes/";

/// Hexadecimal digits of a SHA-256 that form the number.
const DIGITS: usize = 16;

/// The digest of a value.
pub fn digest(thing: &impl Serialize) -> u64 {
    let mut json = serde_json::to_value(thing).expect("a configuration is text and numbers, whose keys are text");
    json.sort_all_objects();
    let hex = stillgate_config::digest(json.to_string().as_bytes());
    u64::from_str_radix(&hex[..DIGITS], 16).expect("a digest has 64 hexadecimal digits")
}

impl Plan {
    /// The routes that may have tunnels, or devices.
    pub fn tunnel_routes(&self) -> Vec<RouteDigest> {
        let routes = self.routes.iter().filter(|route| route.route.upgrades || route.route.devices().is_some());
        let routes = routes.map(|route| {
            let Route { spec, target, service_id, timeout, upgrades, on_change, .. } = &*route.route;
            let key = format!("{ROUTES}{}", spec.id);
            let upstream = key_and_upstream(target);
            // As text: JSON numbers have 64 bits here.
            let identity = |entry: &ChainEntry| format!("{:032x}", entry.identity.0);
            let plugins: Vec<String> = route.route.custom_plugins().map(identity).collect();
            let said = (Spec::of(spec), service_id, timeout, upgrades, on_change, upstream);
            // For a route without plugins, the digest is what versions before plugins made of it.
            let digest = if plugins.is_empty() { digest(&said) } else { digest(&(said, plugins)) };
            RouteDigest { key, digest }
        });
        let streams = self.stream_routes.iter().map(|route| {
            let StreamRoute {
                id,
                sni,
                // A refusal has no connections that it could keep.
                is_sni_unread: _,
                remote_addr,
                server_addr,
                server_port,
                target,
                service_id,
                timeout,
                on_change,
            } = &*route.route;
            let key = format!("{STREAM_ROUTES}{id}");
            let upstream = key_and_upstream(target);
            let (sni, addresses) = (texts(sni), (texts(remote_addr), texts(server_addr)));
            let digest = digest(&(sni, addresses, server_port, service_id, timeout, on_change, upstream));
            RouteDigest { key, digest }
        });
        routes.chain(streams).collect()
    }
}

/// Which requests a route takes, as it is serialised.
#[derive(Serialize)]
struct Spec<'a> {
    id: &'a str,
    priority: i64,
    takes: RouteIdentity,
}

#[derive(Serialize)]
enum RouteIdentity {
    Uri {
        hosts: Vec<String>,
        paths: Vec<String>,
        methods: String,
        remote_addrs: Vec<String>,
        vars: Vec<String>,
        /// Left out if there is none, as in earlier versions.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        function: Vec<String>,
        /// Likewise.
        #[serde(skip_serializing_if = "Option::is_none")]
        unread: Option<(bool, bool)>,
    },
    Expression(String),
}

impl Spec<'_> {
    fn of(spec: &RouteSpec) -> Spec<'_> {
        let RouteSpec { id, priority, takes } = spec;
        let takes = match takes {
            RouteMatch::Uri(UriRoute { hosts, paths, methods, remote_addrs, vars, function, invalid }) => {
                RouteIdentity::Uri {
                    hosts: texts(hosts),
                    paths: texts(paths),
                    methods: methods.to_string(),
                    remote_addrs: texts(remote_addrs),
                    vars: texts(vars),
                    function: texts(function),
                    unread: (*invalid != InvalidParts::default()).then_some((invalid.host, invalid.path)),
                }
            }
            RouteMatch::Expression(expression) => RouteIdentity::Expression(expression.text().to_owned()),
        };
        Spec { id, priority: *priority, takes }
    }
}

/// The key of its upstream, or the upstream itself if it is defined within the route.
fn key_and_upstream(target: &Target) -> (Option<&str>, Option<&Upstream>) {
    match target {
        Target::Own(upstream) => (target.key(), Some(upstream)),
        Target::Shared(_) | Target::Nowhere | Target::Unavailable(_) => (target.key(), None),
    }
}

fn texts<'a, T: Display + 'a>(all: impl IntoIterator<Item = &'a T>) -> Vec<String> {
    all.into_iter().map(T::to_string).collect()
}

#[cfg(test)]
mod digests_tests {
    use super::*;
    use expect_test::expect;
    use std::collections::HashMap;
    use std::fmt::Write;

    fn digests(text: &str) -> Vec<RouteDigest> {
        let config = stillgate_config::load(text.as_bytes(), &|_| None).unwrap().config;
        Plan::build(1, &config, &HashMap::new(), None, None, None).unwrap().tunnel_routes()
    }

    /// A route and a stream route, with upstreams of their own, of which `keys` are further keys.
    fn text(route: &str, keys: &str, stream: &str) -> String {
        format!(
            "routes:\n- {{id: r, uri: /a, enable_websocket: true, {route} upstream: {{nodes: {{\"10.0.0.1:81\": 1}}, {keys}}}}}\n\
             stream_routes:\n- {{id: s, {stream} upstream: {{scheme: tcp, nodes: {{\"10.0.0.1:82\": 1}}}}}}\n"
        )
    }

    #[test]
    fn every_change_of_what_a_route_says_makes_another_digest() {
        let client = |cert: &str, key: &str| {
            let pem =
                |label: &str, body: &str| format!("\"-----BEGIN {label}-----\\n{body}\\n-----END {label}-----\\n\"");
            let (cert, key) = (pem("CERTIFICATE", cert), pem("PRIVATE KEY", key));
            format!("scheme: https, tls: {{client_cert: {cert}, client_key: {key}}}")
        };
        // The client certificates and keys have equal lengths but different contents.
        let routes = [
            ("", ""),
            ("priority: 7,", ""),
            ("hosts: [a.example],", ""),
            ("hosts: [b.example],", ""),
            ("methods: [GET],", ""),
            ("remote_addrs: [10.0.0.0/8],", ""),
            ("vars: [[arg_a, \"==\", b]],", ""),
            ("vars: [[arg_a, \"==\", c]],", ""),
            ("on_change: drain,", ""),
            ("timeout: {connect: 1, send: 2, read: 3},", ""),
            ("", "type: chash, key: uri"),
            ("", "type: chash, key: host"),
            ("", "checks: {active: {http_path: /a}}"),
            ("", "checks: {active: {http_path: /b}}"),
            ("", "pass_host: rewrite, upstream_host: a"),
            ("", "keepalive_pool: {size: 7}"),
            ("", "retries: 7"),
            ("", "scheme: https"),
            ("", &client("MDEy", "MDEy")),
            ("", &client("MDEz", "MDEy")),
            ("", &client("MDEy", "MDEz")),
        ];
        let found: Vec<u64> = routes.iter().map(|(route, keys)| digests(&text(route, keys, ""))[0].digest).collect();
        for (at, one) in found.iter().enumerate() {
            assert_eq!(*one, digests(&text(routes[at].0, routes[at].1, ""))[0].digest, "{:?}", routes[at]);
            let same = found[..at].iter().position(|other| other == one);
            assert_eq!(same, None, "{:?}", routes[at]);
        }
        let streams =
            ["", "sni: a.example,", "server_port: 9,", "remote_addr: 10.0.0.0/8,", "server_addr: 10.0.0.0/8,"];
        let found: Vec<u64> = streams.iter().map(|stream| digests(&text("", "", stream))[1].digest).collect();
        assert!((1..found.len()).all(|at| !found[..at].contains(&found[at])), "{found:?}");
    }

    /// Another version should compute the same: if this fails, tunnels of all routes are treated as those of changed ones at the
    /// next upgrade.
    #[test]
    fn digests_are_the_same_in_every_build() {
        let shared = "upstreams: [{id: u, nodes: {\"a.example:80\": 2}}]\n";
        let expression = "- {id: e, expression: 'http.path == \"/x\"', enable_websocket: true, upstream_id: u}\n";
        let text = text("vars: [[arg_a, \"==\", b]],", "checks: {active: {}, passive: {}}", "sni: a.example,");
        let text = text.replace("stream_routes:", &format!("{expression}stream_routes:"));
        let lines = digests(&format!("{shared}{text}")).into_iter().fold(String::new(), |mut lines, route| {
            writeln!(lines, "{} {:016x}", route.key, route.digest).unwrap();
            lines
        });
        expect![[r#"
            routes/r eb0e844d7a626705
            routes/e f0512729011ba934
            stream_routes/s 05a984f5964c5b9b
        "#]]
        .assert_eq(&lines);
    }
}
