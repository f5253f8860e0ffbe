//! The new process's side: it takes what the old one has, reports when it serves, and adopts connections.

use super::channel::{Channel, DATAGRAM_BYTES_MAX, DESCRIPTORS_MAX, Datagram};
use super::{VARIABLE, revision_of};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;
use stillgate_cluster::registry::FormerDirectory;
use stillgate_config::ListenPlace;
use stillgate_limits::Limits;
use stillgate_measures::metrics::Handover;
use stillgate_proxy::handover::{Inbox, Parcel, RouteDigest, digest};
use stillgate_proxy::{Fleet, InheritedSockets, Plan};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

/// Time for the old process's next message.
const WORD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of its reports about broadcasts that wait to be read.
const TOLD_MAX: usize = 16;

/// The channel to the old process.
pub(crate) struct Takeover(Channel);

/// Waits for the old process to leave. When this is dropped without [`FormerProcess::serves`], the old process serves on.
pub(crate) struct FormerProcess {
    went: oneshot::Receiver<()>,
    serves: oneshot::Sender<()>,
    told: Option<mpsc::Receiver<Vec<u8>>>,
}

/// What the old process has handed over.
#[derive(Default)]
pub(crate) struct Inheritance {
    pub(crate) pid: u32,
    /// Digest of its configuration.
    digest: String,
    /// A version of its file ended with `#END`.
    pub(crate) had_end_flag: bool,
    /// What it serves of a datastore. An earlier version does not say.
    datastore: Option<DatastoreState>,
    pub(crate) listeners: InheritedSockets,
    /// What each listener does, as a digest, and whether the configuration of `digest` says so.
    digests: HashMap<ListenPlace, (u64, bool)>,
    /// The admin API's, and its address as configured.
    pub(crate) admin: Option<(SocketAddr, TcpListener)>,
    /// The device API's, and its address as configured.
    pub(crate) devices: Option<(SocketAddr, TcpListener)>,
    /// The socket for other nodes of devices, its address as configured, and the node's identity in the directory.
    pub(crate) peers: Option<(SocketAddr, TcpListener, FormerDirectory)>,
    pub(crate) metrics: Handover,
    /// `None`: it has no table of limits, or one that this process cannot use.
    pub(crate) limits: Option<Limits>,
    routes: Vec<RouteDigest>,
}

/// What a process serves of a datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DatastoreState {
    /// Which one it is.
    pub(crate) place: String,
    /// Resources of which no version is served.
    pub(crate) unserved: u32,
}

/// The parts of it that are unchanged.
struct Verdict {
    routes: Vec<String>,
    changed: HashSet<String>,
    listening: Vec<ListenPlace>,
    alike: Vec<ListenPlace>,
}

impl Takeover {
    /// Finds out whether this process was started by one that it is to follow, and receives what that hands over.
    pub(crate) fn find() -> io::Result<Option<(Takeover, Inheritance)>> {
        if !super::is_successor() {
            return Ok(None);
        }
        let end = io::stdin().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let channel = Channel::new(end)
            .map_err(|_| io::Error::other(format!("{VARIABLE} is set, but this was not started by an upgrade")))?;
        let former = Inheritance::receive(&channel)?;
        info!(pid = former.pid, "upgrade: following a process");
        Ok(Some((Takeover(channel), former)))
    }

    /// Reports that this process accepts connections.
    pub(crate) fn serve(self, former: &Inheritance, plan: &Plan, fleet: &mut Fleet) -> io::Result<FormerProcess> {
        let verdict = former.judge(plan, fleet);
        let inbox = fleet.inbox(verdict.changed.clone());
        let ((gone, went), (serves, served)) = (oneshot::channel(), oneshot::channel());
        let (tell, told) = mpsc::channel(TOLD_MAX);
        // The inbox ends with it; the workers wait for that before they hand over in their turn.
        let follow = move || {
            if let Err(error) = follow(&self.0, &verdict, (gone, served), (&inbox, &tell)) {
                error!(%error, "upgrade: what the former process still holds is lost");
            }
        };
        thread::Builder::new().name("takeover".to_owned()).spawn(follow)?;
        Ok(FormerProcess { went, serves, told: Some(told) })
    }
}

impl FormerProcess {
    /// Waits until the old process exposes no more, so that this one can do the work that only one of them may do.
    pub(crate) async fn went(&mut self) {
        // If the old process is gone already, there is nothing to wait for.
        let _ = (&mut self.went).await;
    }

    /// The former process's reports about broadcasts; the channel ends when that process holds nothing any more. It can be taken
    /// once.
    pub(crate) fn take_broadcast_reports(&mut self) -> mpsc::Receiver<Vec<u8>> {
        self.told.take().unwrap_or_else(|| mpsc::channel(TOLD_MAX).1)
    }

    /// This process does all work: the old one may leave, and connections come in from here on.
    pub(crate) fn serves(self) {
        // The thread that listens ends with an error of its own.
        let _ = self.serves.send(());
    }
}

fn follow(
    channel: &Channel,
    verdict: &Verdict,
    (gone, served): (oneshot::Sender<()>, oneshot::Receiver<()>),
    (inbox, tell): (&Inbox, &mpsc::Sender<Vec<u8>>),
) -> io::Result<()> {
    for routes in in_parts(&verdict.routes) {
        Message::Has { routes }.send_with(channel, &[])?;
    }
    let (listening, alike) = (verdict.listening.clone(), verdict.alike.clone());
    Message::Ready { listening, alike, broadcasts: true }.send_with(channel, &[])?;
    let mut has_gone = match Message::receive(channel, Some(WORD_TIMEOUT)) {
        Ok(Some((Message::Go {}, _))) => true,
        other => {
            warn!(?other, "upgrade: the former process has not said that it is done; going on without it");
            false
        }
    };
    // The receiver is gone where this process ends already.
    let _ = gone.send(());
    if served.blocking_recv().is_err() {
        // It failed: the old process sees by our end that it is to serve on.
        return Ok(());
    }
    if has_gone {
        // Whether the receiver still exists makes no difference here.
        let _ = Message::Going {}.send_with(channel, &[]);
    }
    let mut count = 0u64;
    while let Some(datagram) = next_parcel(channel, &mut has_gone)? {
        match Parcel::decode(&datagram.bytes, datagram.descriptors) {
            Ok(parcel) if !parcel.is_connection() => {
                // Without devices the channel has no receiver.
                let _ = tell.blocking_send(parcel.bytes);
            }
            Ok(parcel) => {
                if !inbox.put(parcel) {
                    warn!("upgrade: a connection came when the workers had ended, and is closed");
                    return Ok(());
                }
                count += 1;
            }
            Err(error) => warn!(%error, "upgrade: a connection came damaged and is closed"),
        }
    }
    // If the former process is gone by now, it has not waited for this.
    let _ = Message::Taken {}.send_with(channel, &[]);
    info!(connections = count, "upgrade: the former process holds nothing any more");
    Ok(())
}

/// The next parcel. Before it may come the message that this process has stopped waiting for.
fn next_parcel(channel: &Channel, has_gone: &mut bool) -> io::Result<Option<Datagram>> {
    let datagram = loop {
        match channel.receive(None) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                warn!(%error, "upgrade: a connection came damaged and is closed");
            }
            received => break received?,
        }
    };
    let is_late = |datagram| matches!(Message::decode(datagram), Ok(Message::Go {}));
    match !std::mem::replace(has_gone, true) && datagram.as_ref().is_some_and(is_late) {
        true => {
            let _ = Message::Going {}.send_with(channel, &[]);
            channel.receive(None)
        }
        false => Ok(datagram),
    }
}

impl Inheritance {
    fn receive(channel: &Channel) -> io::Result<Inheritance> {
        let mut former = Inheritance::default();
        let mut sockets: BTreeMap<ListenPlace, (ListenPlace, Vec<OwnedFd>)> = BTreeMap::new();
        loop {
            let Some((message, datagram)) = Message::receive(channel, Some(WORD_TIMEOUT))? else {
                return Err(io::Error::other("the former process has ended before it said everything"));
            };
            let mut descriptors = datagram.descriptors;
            match message {
                Message::Hello { version: VERSION, pid, digest, had_end_flag, datastore } => {
                    (former.pid, former.digest, former.had_end_flag) = (pid, digest, had_end_flag);
                    former.datastore = datastore;
                    former.limits = descriptors.pop().and_then(open_limits);
                }
                Message::Hello { version, .. } => {
                    return Err(io::Error::other(format!(
                        "the running process hands over by version {version}, this one takes over by version {VERSION}: \
                         restart instead"
                    )));
                }
                Message::Sockets { of: Part::Listener, place, bound, digest, as_served } => {
                    former.digests.insert(bound, (digest, as_served));
                    let (_, all) = sockets.entry(bound).or_insert_with(|| (place, Vec::new()));
                    all.append(&mut descriptors);
                }
                Message::Sockets { of: Part::Admin, place, .. } => {
                    former.admin = descriptors.pop().map(|socket| (place.address, socket.into()));
                }
                Message::Sockets { of: Part::Devices, place, .. } => {
                    former.devices = descriptors.pop().map(|socket| (place.address, socket.into()));
                }
                Message::Peers { place, epoch, filled, members } => {
                    let directory = FormerDirectory { epoch, fully_registered_era: filled, members };
                    former.peers = descriptors.pop().map(|socket| (place.address, socket.into(), directory));
                }
                Message::Sockets { of: Part::Metrics, .. } => former.metrics.listener = descriptors.pop(),
                Message::Metrics { shared } => {
                    former.metrics.shared = shared;
                    former.metrics.segments.append(&mut descriptors);
                }
                Message::Routes { mut routes } => former.routes.append(&mut routes),
                Message::End {} => break,
                other => return Err(io::Error::other(format!("the former process says {other:?}"))),
            }
        }
        for (place, descriptors) in sockets.into_values() {
            former.listeners.add(place, descriptors)?;
        }
        Ok(former)
    }

    /// Why this process, which has read `digest` of this datastore, must not take its place: it would serve less.
    pub(crate) fn refusal(&self, digest: &str, datastore: Option<&DatastoreState>) -> Option<String> {
        let (before, now) = (self.datastore.as_ref()?, datastore?);
        if before.place != now.place {
            return None;
        }
        if let (Some(before), Some(now)) = (revision_of(&self.digest), revision_of(digest))
            && now < before
        {
            return Some(format!(
                "the running process serves revision {before} of the datastore, and this one could only read revision {now}: \
                 bring the datastore back, or restart if an older state is meant"
            ));
        }
        (now.unserved > before.unserved).then(|| {
            format!(
                "resources that are not served: {}, and with the running process {}; the log has the reasons. Fix them, or restart \
                 to serve without them",
                now.unserved, before.unserved
            )
        })
    }

    /// Compares it with what this process has.
    fn judge(&self, plan: &Plan, fleet: &Fleet) -> Verdict {
        let ours: HashMap<String, u64> =
            plan.tunnel_routes().into_iter().map(|route| (route.key, route.digest)).collect();
        // Another version may compute other digests from the same text, which still means the same.
        let is_same_file = self.digest == plan.digest;
        let routes = ours.keys().cloned().collect();
        let mut verdict = Verdict { routes, changed: HashSet::new(), listening: Vec::new(), alike: Vec::new() };
        for RouteDigest { key, digest } in &self.routes {
            if ours.get(key).is_some_and(|ours| ours != digest) && !is_same_file {
                verdict.changed.insert(key.clone());
            }
        }
        for listening in fleet.listening() {
            let (bound, digest) = (listening.bound_place(), digest(&listening.listener));
            let Some((before, as_served)) = self.digests.get(&bound) else { continue };
            verdict.listening.push(bound);
            if *before == digest || is_same_file && *as_served {
                verdict.alike.push(bound);
            }
        }
        verdict
    }
}

/// Limits start at zero where the table cannot be used.
fn open_limits(table: OwnedFd) -> Option<Limits> {
    Limits::open(table)
        .inspect_err(|error| warn!(%error, "upgrade: the counters of limits cannot be taken over, and start at zero"))
        .ok()
}

// The messages between the two processes of an upgrade, before connections are handed over.
//
// A message is a datagram of JSON; descriptors travel with it. Unknown keys are ignored, so that a later version may send more; a
// change that an earlier version must understand takes a new [`VERSION`].

/// Version of these messages and of parcels.
pub(crate) const VERSION: u32 = 1;

/// Routes in one message.
const ROUTES_AT_ONCE: usize = 256;

/// One message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// Old to new: the process that hands over. `digest` is the configuration's. The descriptor of the table of limits comes with
    /// it, if there is one. `had_end_flag`: a version of its file ended with `#END`, so the new process must not serve one that
    /// does not. `datastore`: what it serves of one. An earlier version did not
    /// send the latter two.
    Hello {
        version: u32,
        pid: u32,
        digest: String,
        #[serde(default)]
        had_end_flag: bool,
        #[serde(default)]
        datastore: Option<DatastoreState>,
    },
    /// Old to new: a listener, with its descriptors; where they are too many, further messages repeat the fields. `digest` is what
    /// it does; `as_served`: the configuration of [`Message::Hello`] says so as well. An earlier version could not change it by a
    /// reload.
    Sockets { of: Part, place: ListenPlace, bound: ListenPlace, digest: u64, as_served: bool },
    /// Old to new: the address for other nodes of devices, as configured, with its socket. `epoch` is the node's, `filled` the era
    /// in which the directory has all its devices, and `members` are names and addresses of nodes. An earlier version did not send
    /// the latter two.
    Peers {
        place: ListenPlace,
        epoch: u64,
        #[serde(default)]
        filled: Option<u32>,
        #[serde(default)]
        members: Vec<(Box<str>, Box<str>)>,
    },
    /// Old to new: memory of the metrics, as a descriptor, or the folder that they are in.
    Metrics {
        #[serde(default)]
        shared: Option<String>,
    },
    /// Old to new: routes that may have tunnels.
    Routes { routes: Vec<RouteDigest> },
    /// Old to new: the end of the offer.
    End {},
    /// New to old: keys of those routes that it has.
    Has { routes: Vec<String> },
    /// New to old: it serves. The listeners that it has taken, and which of them work as before. `broadcasts`: it accepts reports
    /// about broadcasts, which an earlier version does not.
    Ready {
        listening: Vec<ListenPlace>,
        alike: Vec<ListenPlace>,
        #[serde(default)]
        broadcasts: bool,
    },
    /// Old to new: it exposes no more, and accepts none from the answer on. Parcels follow.
    Go {},
    /// New to old: it does all that the old one did, and serves alone from here on.
    Going {},
    /// New to old, which sends no more: it has all parcels.
    Taken {},
}

/// Owner of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Listener,
    Admin,
    Devices,
    Metrics,
}

impl Message {
    fn send(&self, channel: &Channel, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("plain values have a JSON form");
        if text.len() > DATAGRAM_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an id of a route is too long to be told"));
        }
        channel.send(&text, descriptors)
    }

    /// The next message, and its datagram with the descriptors.
    pub(crate) fn receive(channel: &Channel, within: Option<Duration>) -> io::Result<Option<(Message, Datagram)>> {
        let Some(datagram) = channel.receive(within)? else { return Ok(None) };
        Ok(Some((Message::decode(&datagram)?, datagram)))
    }

    /// The message in a datagram.
    pub(crate) fn decode(datagram: &Datagram) -> io::Result<Message> {
        serde_json::from_slice(&datagram.bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("an unknown message: {error}")))
    }

    /// Sends it, as often as its descriptors take.
    pub(crate) fn send_with(&self, channel: &Channel, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.is_empty() {
            return self.send(channel, &[]);
        }
        descriptors.chunks(DESCRIPTORS_MAX).try_for_each(|some| self.send(channel, some))
    }
}

/// Splits what may be long.
pub(crate) fn in_parts<T: Clone>(all: &[T]) -> impl Iterator<Item = Vec<T>> {
    all.chunks(ROUTES_AT_ONCE).map(<[T]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_comes_late_is_no_parcel() {
        for (mut has_gone, expected) in [(false, &b"parcel"[..]), (true, br#"{"go":{}}"#)] {
            let (ours, theirs) = Channel::pair().expect("sockets");
            let theirs = Channel::new(theirs).expect("one of ours");
            Message::Go {}.send_with(&ours, &[]).expect("room");
            ours.send(b"parcel", &[]).expect("room");
            let next = next_parcel(&theirs, &mut has_gone).expect("it is there").expect("a datagram");
            assert_eq!(next.bytes, expected, "{}", next.bytes.escape_ascii());
        }
        // A process that never sends `Go` may still hand over parcels.
        let (ours, theirs) = Channel::pair().expect("sockets");
        let theirs = Channel::new(theirs).expect("one of ours");
        ours.send(b"parcel", &[]).expect("room");
        let mut has_gone = false;
        assert_eq!(next_parcel(&theirs, &mut has_gone).expect("it is there").expect("a datagram").bytes, b"parcel");
        drop(ours);
        assert!(next_parcel(&theirs, &mut has_gone).expect("an end").is_none());
    }

    #[test]
    fn a_table_of_limits_that_is_none_is_left() {
        let table = Limits::create(1 << 16).expect("memory");
        let key = table.hasher().part(b"key").finish();
        let limit = stillgate_limits::Limit { count: 2, window_ms: 1_000 };
        let take = |table: &Limits| table.take_fixed(key, limit, 1, 0).expect("nobody else").remaining;
        assert_eq!(take(&table), 1);
        let file = tempfile::tempfile().expect("a file");
        for (beside, expected) in [(vec![table.as_fd()], Some(0)), (vec![file.as_fd()], None), (Vec::new(), None)] {
            let (ours, theirs) = Channel::pair().expect("sockets");
            let theirs = Channel::new(theirs).expect("one of ours");
            let hello = Message::Hello {
                version: VERSION,
                pid: 1,
                digest: String::new(),
                had_end_flag: false,
                datastore: None,
            };
            hello.send_with(&ours, &beside).expect("room");
            Message::End {}.send_with(&ours, &[]).expect("room");
            let former = Inheritance::receive(&theirs).expect("all is said");
            assert_eq!(former.limits.as_ref().map(take), expected);
        }
    }
}
