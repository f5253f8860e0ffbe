//! The old process's side, as its control thread holds it: what it leaves, and its progress.

use super::launcher::{Launcher, Offer, Order, Progress, VERDICT_TIMEOUT};
use super::takeover::{DatastoreState, Message, Part, VERSION, in_parts};
use std::collections::HashSet;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use stillgate_cluster::Watch;
use stillgate_cluster::registry::FormerDirectory;
use stillgate_config::ListenPlace;
use stillgate_device_node::TakeoverNotice;
use stillgate_measures::metrics::MetricsRuntime;
use stillgate_proxy::handover::{OUTBOX, Parcel, Successor, digest};
use stillgate_proxy::{Fleet, PlanCell};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;
use tracing::warn;

/// Maximum size of the nodes in a message to the successor, and the bytes that each takes besides its name and address.
const MEMBERS_BYTES_MAX: usize = 128 * 1024;
const MEMBER_BYTES: usize = 8;

/// The new process's report on itself.
#[derive(Debug, Default)]
pub(crate) struct SuccessorReport {
    pub(crate) listening: HashSet<ListenPlace>,
    pub(crate) alike: HashSet<ListenPlace>,
    pub(crate) routes: HashSet<String>,
    /// It accepts reports about broadcasts.
    pub(crate) broadcasts: bool,
}

/// The admin API's socket, and the task that serves it.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    /// The address as configured.
    pub(crate) address: SocketAddr,
    pub(crate) listener: TcpListener,
    pub(crate) serving: AbortHandle,
}

/// The device API's socket, and the task that accepts on it.
#[derive(Debug)]
pub(crate) struct DeviceSocket {
    /// The address as configured.
    pub(crate) address: SocketAddr,
    pub(crate) listener: TcpListener,
    pub(crate) leaving: TakeoverNotice,
    /// The socket for peers, with a shared directory.
    pub(crate) peer: Option<PeerOffer>,
}

/// The address for other nodes of devices, and the node's identity in the directory.
#[derive(Debug)]
pub(crate) struct PeerOffer {
    /// The address as configured.
    pub(crate) address: SocketAddr,
    pub(crate) listener: TcpListener,
    pub(crate) directory: Watch,
}

/// The events that an upgrade waits for.
#[derive(Debug)]
pub(crate) enum UpgradeEvent {
    /// The new process has made progress.
    Progress(Progress),
    /// No scrape is answered here any more.
    Unexposed,
}

/// Hands everything over to a successor, once one is requested.
pub(crate) struct UpgradeHandover {
    launcher: Launcher,
    admin: Option<AdminSocket>,
    devices: Option<DeviceSocket>,
    phase: Phase,
}

enum Phase {
    /// No successor runs.
    Alone,
    /// A successor was started, and is this process.
    Launching(Option<u32>),
    /// It serves, and we expose our last scrapes.
    Leaving { successor: u32, heard: SuccessorReport, unexposed: JoinHandle<()> },
    /// It is being notified that it serves alone from here on.
    Going { successor: u32, heard: SuccessorReport, outbox: mpsc::Sender<Parcel> },
    /// Everything is its, and what the workers give is sent.
    Left,
    /// A successor was started that is not wanted any more, and it is to end.
    Abandoned,
    /// The handover is complete.
    Done,
}

impl UpgradeHandover {
    pub(crate) fn new(
        launcher: Launcher,
        admin: Option<AdminSocket>,
        devices: Option<DeviceSocket>,
    ) -> UpgradeHandover {
        UpgradeHandover { launcher, admin, devices, phase: Phase::Alone }
    }

    /// Waits for the next step. Can be dropped at any time.
    pub(crate) async fn next(&mut self) -> UpgradeEvent {
        let unexposed = async {
            match &mut self.phase {
                // A panic of the exporter has been reported by it, and nothing is exposed after it either.
                Phase::Leaving { unexposed, .. } => drop(unexposed.await),
                _ => pending().await,
            }
        };
        tokio::select! {
            progress = self.launcher.progress() => {
                match (&self.phase, &progress) {
                    (Phase::Abandoned, Progress::Ready(_)) => self.launcher.order(Order::Abandon),
                    (Phase::Abandoned | Phase::Left, Progress::Failed(_))
                    | (_, Progress::HandedOver | Progress::Ended(_) | Progress::Lost(_)) => {
                        self.phase = Phase::Done;
                    }
                    _ => {}
                }
                UpgradeEvent::Progress(progress)
            }
            () = unexposed => UpgradeEvent::Unexposed,
        }
    }

    /// Whether a successor may be started.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.phase, Phase::Alone)
    }

    /// Starts a successor. `had_end_flag` and `datastore`: see [`Message::Hello`]. An error: the offer cannot be put together.
    pub(crate) fn launch(
        &mut self,
        (fleet, plans): (&Fleet, &PlanCell),
        metering: Option<&MetricsRuntime>,
        (had_end_flag, datastore): (bool, Option<DatastoreState>),
    ) -> io::Result<()> {
        let plan = plans.load();
        let limits = plans.limits.get().map(|table| duplicate(table.as_fd())).transpose()?;
        let (pid, served) = (std::process::id(), plan.digest.clone());
        let hello = Message::Hello { version: VERSION, pid, digest: served, had_end_flag, datastore };
        let mut offer: Offer = vec![(hello, limits.into_iter().collect())];
        for listening in fleet.listening() {
            let (place, bound, digest) = (listening.place(), listening.bound_place(), digest(&listening.listener));
            let sockets = Message::Sockets { of: Part::Listener, place, bound, digest, as_served: true };
            offer.push((sockets, listening.sockets().map(duplicate).collect::<io::Result<_>>()?));
        }
        let single = |of, place, bound| {
            let (place, bound) = (ListenPlace::tcp(place), ListenPlace::tcp(bound));
            Message::Sockets { of, place, bound, digest: 0, as_served: true }
        };
        if let Some(AdminSocket { address, listener, .. }) = &self.admin {
            let socket = listener.try_clone()?.into();
            offer.push((single(Part::Admin, *address, listener.local_addr()?), vec![socket]));
        }
        if let Some(DeviceSocket { address, listener, peer, .. }) = &self.devices {
            let socket = listener.try_clone()?.into();
            offer.push((single(Part::Devices, *address, listener.local_addr()?), vec![socket]));
            if let Some(PeerOffer { address, listener, directory }) = peer {
                let peers = peers(ListenPlace::tcp(*address), directory.former());
                offer.push((peers, vec![listener.try_clone()?.into()]));
            }
        }
        if let Some(metering) = metering {
            let left = metering.hand_over()?;
            if let (Some(listener), Some(address)) = (left.listener, metering.address()) {
                offer.push((single(Part::Metrics, address, address), vec![listener]));
            }
            offer.push((Message::Metrics { shared: left.shared }, left.segments));
        }
        offer.extend(in_parts(&plan.tunnel_routes()).map(|routes| (Message::Routes { routes }, Vec::new())));
        offer.push((Message::End {}, Vec::new()));
        self.launcher.order(Order::Launch(offer));
        self.phase = Phase::Launching(None);
        Ok(())
    }

    /// The successor has been started.
    pub(crate) fn on_started(&mut self, pid: u32) {
        if let Phase::Launching(successor) = &mut self.phase {
            *successor = Some(pid);
        }
    }

    /// Whether a successor was started and has not reported that it serves.
    pub(crate) fn is_launching(&self) -> bool {
        matches!(self.phase, Phase::Launching(_))
    }

    /// Whether it is undecided which process serves on.
    pub(crate) fn is_deciding(&self) -> bool {
        matches!(self.phase, Phase::Launching(_) | Phase::Leaving { .. } | Phase::Going { .. })
    }

    /// The successor has failed.
    pub(crate) fn on_failed(&mut self) {
        if self.is_deciding() {
            self.set_has_company(false);
            self.phase = Phase::Alone;
        }
    }

    /// Whether the new process serves devices alongside this one.
    fn set_has_company(&self, has_company: bool) {
        if let Some(devices) = &self.devices {
            devices.leaving.has_company.store(has_company, Relaxed);
        }
    }

    /// The successor serves; our exposition ends with `unexposed`.
    pub(crate) fn leave(&mut self, heard: SuccessorReport, unexposed: JoinHandle<()>) {
        if let Phase::Launching(Some(successor)) = self.phase {
            self.set_has_company(true);
            self.phase = Phase::Leaving { successor, heard, unexposed };
        }
    }

    /// The successor is to serve alone, if it still runs.
    pub(crate) fn go(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Alone) {
            Phase::Leaving { successor, heard, .. } => {
                let (outbox, parcels) = mpsc::channel(OUTBOX);
                self.launcher.order(Order::Go(parcels));
                Phase::Going { successor, heard, outbox }
            }
            other => other,
        }
    }

    /// The successor serves alone: ends what does not belong to the workers, and returns the recipient of their connections, and
    /// its pid.
    pub(crate) fn end_own_services(&mut self) -> Option<(Successor, u32)> {
        match std::mem::replace(&mut self.phase, Phase::Left) {
            Phase::Going { successor, heard: SuccessorReport { listening, alike, routes, broadcasts }, outbox } => {
                if let Some(admin) = self.admin.take() {
                    admin.serving.abort();
                }
                if let Some(devices) = self.devices.take()
                    && broadcasts
                {
                    // A thread that has ended has nothing to report.
                    let _ = devices.leaving.outbox.send(outbox.clone());
                }
                Some((Successor { outbox, listening, alike, routes }, successor))
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Waits until everything that the workers gave away is sent, or until an unwanted successor has ended. An error: it was lost.
    pub(crate) async fn finish(&mut self) -> Result<(), String> {
        let over = async {
            while matches!(self.phase, Phase::Left | Phase::Abandoned) {
                match self.next().await {
                    UpgradeEvent::Progress(Progress::Ended(reason)) => warn!("{}", ended_message(&reason)),
                    UpgradeEvent::Progress(Progress::Lost(reason)) => return Err(lost_message(&reason)),
                    _ => {}
                }
            }
            Ok(())
        };
        timeout(VERDICT_TIMEOUT, over).await.unwrap_or_else(|_| {
            warn!("upgrade: the new process does not take what it is given, or does not end; going without it");
            Ok(())
        })
    }

    /// This process is to end: a successor that has not taken over ends as well.
    pub(crate) fn abandon(&mut self) {
        self.set_has_company(false);
        match self.phase {
            Phase::Alone | Phase::Left | Phase::Abandoned | Phase::Done => return,
            // It serves on, and gets nothing.
            Phase::Going { .. } => return self.phase = Phase::Left,
            Phase::Leaving { .. } => self.launcher.order(Order::Abandon),
            Phase::Launching(_) => self.launcher.end_child(),
        }
        self.phase = Phase::Abandoned;
    }
}

/// The message about a successor that has ended before this process. Whether another has taken over from it is not known here.
pub(crate) fn ended_message(reason: &str) -> String {
    format!("upgrade: the successor exited ({reason}); draining the remaining connections")
}

/// The message about a successor that did not end in order.
pub(crate) fn lost_message(reason: &str) -> String {
    format!(
        "upgrade: the process that had taken over is gone ({reason}), with all connections that it had; start the \
         gateway, unless a later one serves"
    )
}

/// The part of the directory that a successor receives, in one message: of very many nodes it gets some, and the rest by its first
/// reading.
fn peers(place: ListenPlace, directory: FormerDirectory) -> Message {
    let FormerDirectory { epoch, fully_registered_era: filled, members } = directory;
    let mut bytes = 0;
    let fits = |(node, address): &(Box<str>, Box<str>)| {
        bytes += node.len() + address.len() + MEMBER_BYTES;
        bytes <= MEMBERS_BYTES_MAX
    };
    Message::Peers { place, epoch, filled, members: members.into_iter().take_while(fits).collect() }
}

fn duplicate(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    socket.try_clone_to_owned()
}
