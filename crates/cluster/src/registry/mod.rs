//! The directory in Redis or Valkey, alone or as a cluster.
//!
//! | key | what |
//! |---|---|
//! | `sg:d:ID` | the entry of a device: `1 GENERATION SINCE EPOCH CONNECTION NODE`, or `0 GENERATION LAST_SEEN 0 0 ` |
//! | `sg:{nodes}:leases` | a hash: node to `EPOCH UNTIL FILLED_ERA ADDRESS` |
//! | `sg:{nodes}:era` | the beginning of this directory |
//!
//! Every script accesses keys of one slot. Everything can be lost at any time: nodes notice by the era and write it
//! again.
//!
//! A node's requests to the directory, and its memory of the answers, are here; [`store`] has the scripts, and [`task`]
//! registers the node's devices.

mod store;
mod task;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_devices::Generation;
pub use stillgate_devices::directory::DirectoryUnavailable;
use stillgate_devices::directory::{
    ConnectOutcome, DirectoryEntry, Disconnect, Duplicate, Era, Location, Lookups, Members, NodeRegistrations,
    RegistrationEffect, View,
};
use store::{HeartbeatResult, Store, StoreError};
pub use store::{RedisAddress, StoreAddressError};
use tokio::sync::{Notify, oneshot};

/// Generations of a directory are never below those of this era.
const FIRST_ERA: Era = Era(1);

/// How long a connecting device waits for the directory. Then it is admitted, and registered later.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// Most ends of connections that were not reported to the directory yet. Beyond that the oldest is forgotten: its
/// device counts as connected until its node is asked about it.
const DISCONNECTS_MAX: usize = 100_000;

/// The shortest interval between log lines about further causes of an outage of the directory.
const CAUSES_LOGGED_EVERY: Duration = Duration::from_secs(10);

/// This node in the others' view.
#[derive(Debug, Clone)]
pub struct DirectorySettings {
    /// Its name.
    pub node: Box<str>,
    /// The address for its peers; empty if it has none.
    pub address: Box<str>,
    /// The process that this one takes over from; the node's lease and its entries remain valid.
    pub former: Option<FormerDirectory>,
    /// The directory.
    pub redis: RedisAddress,
    /// Most bytes for remembered look-ups.
    pub lookup_bytes_max: usize,
}

/// The state that a process of a node leaves to the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FormerDirectory {
    /// The process's epoch.
    pub epoch: u64,
    /// The era in which all its connections are registered.
    pub fully_registered_era: Option<u32>,
    /// Names and addresses of the living nodes, in case the directory is away meanwhile.
    pub members: Vec<(Box<str>, Box<str>)>,
}

/// Requests of the directory to its node. Called on the runtime's thread; must not wait.
pub(crate) struct Hooks {
    /// Closes this connection: its device has a newer one.
    pub(crate) close: Box<dyn Fn(u64) + Send + Sync>,
    /// Lets another node close a connection.
    pub(crate) close_there: Box<dyn Fn(Arc<str>, Location) + Send + Sync>,
}

/// A node's access to the directory, and its registrations there.
#[derive(Clone)]
pub struct Directory {
    shared: Arc<SharedDirectory>,
}

struct SharedDirectory {
    node: Box<str>,
    address: Box<str>,
    store: Store,
    state: Mutex<DirectoryState>,
    wake: Notify,
    /// Another process of this node holds its lease from now on.
    is_leaving: AtomicBool,
    /// The process before this one still has devices; the era is the one in which it had registered them.
    is_filling: AtomicBool,
    former_registered_era: Option<Era>,
    /// Whether the last command failed, or none was sent yet. Until the next heartbeat has tried again, commands fail at once.
    is_away: AtomicBool,
    commands: AtomicU64,
    contact: Mutex<Contact>,
    lookups: Mutex<Lookups>,
    members: Mutex<Arc<Members>>,
    /// When the last reading of the members began. Locked during a reading.
    last_read: tokio::sync::Mutex<Option<Instant>>,
    begun: Instant,
}

/// Whether the directory answers, for the log and the status.
#[derive(Default)]
struct Contact {
    /// Since when every command was answered.
    since: Option<Instant>,
    /// Why the last command failed.
    error: Option<StoreError>,
    /// When an error was last logged.
    logged: Option<Instant>,
}

struct DirectoryState {
    registrations: NodeRegistrations,
    /// Devices that wait for the answer about their place, by its number.
    waiters: HashMap<Box<str>, (u64, oneshot::Sender<ConnectOutcome>)>,
    disconnects: VecDeque<(Arc<str>, Disconnect)>,
    /// Registrations without an answer yet.
    in_flight: usize,
}

impl Directory {
    /// Checks the settings, and begins with a node without devices. [`Directory::run`] performs the work.
    pub fn new(settings: DirectorySettings) -> Result<Directory, StoreAddressError> {
        let DirectorySettings { node, address, former, redis, lookup_bytes_max } = settings;
        let is_filling = AtomicBool::new(former.is_some());
        let former = former.unwrap_or_else(|| FormerDirectory { epoch: rand::random(), ..FormerDirectory::default() });
        let registrations = NodeRegistrations::new(node.clone(), former.epoch, first_place());
        let state =
            DirectoryState { registrations, waiters: HashMap::new(), disconnects: VecDeque::new(), in_flight: 0 };
        let shared = SharedDirectory {
            node,
            address,
            store: Store::new(&redis)?,
            state: Mutex::new(state),
            wake: Notify::new(),
            is_leaving: AtomicBool::new(false),
            is_filling,
            former_registered_era: former.fully_registered_era.map(Era),
            is_away: AtomicBool::new(true),
            commands: AtomicU64::new(0),
            contact: Mutex::default(),
            lookups: Mutex::new(Lookups::new(lookup_bytes_max)),
            members: Mutex::new(Arc::new(Members::from_predecessor(former.members))),
            last_read: tokio::sync::Mutex::new(None),
            begun: Instant::now(),
        };
        Ok(Directory { shared: Arc::new(shared) })
    }

    /// Holds the node's lease and registers its devices, without end.
    pub(crate) async fn run(self, hooks: Hooks) {
        task::run(&self.shared, &Arc::new(hooks)).await;
    }

    /// This node's name.
    pub fn node(&self) -> &str {
        &self.shared.node
    }

    /// Registers a device that has connected to this node. Without an answer it is registered once there is one again;
    /// if another connection turns out to be newer, or was not to be replaced, its connection is closed then.
    pub async fn connect(
        &self,
        device: &Arc<str>,
        connection: u64,
        duplicate: Duplicate,
    ) -> Result<ConnectOutcome, DirectoryUnavailable> {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut state = self.shared.state();
            if duplicate == Duplicate::Refuse
                && let Some(place) = state.registrations.place_of(device)
            {
                let generation = state.registrations.connection(device).and_then(|(_, generation)| generation);
                return Ok(ConnectOutcome::Occupied { place, generation: generation.unwrap_or_default() });
            }
            let (place, _closed_by_its_node) =
                state.registrations.add_connection(device, connection, duplicate, wall_ms());
            state.waiters.insert((&**device).into(), (place.connection, sender));
            place.connection
        };
        self.shared.wake.notify_one();
        let answered = match self.shared.is_away() {
            true => None,
            false => tokio::time::timeout(CONNECT_PATIENCE, answer).await.ok(),
        };
        let mut state = self.shared.state();
        match answered {
            Some(Ok(connected)) => return Ok(connected),
            // A still newer connection of the device waits here.
            Some(Err(_)) => {
                let newer = state.registrations.place_of(device).filter(|newer| newer.connection != number);
                let place = newer.ok_or(DirectoryUnavailable)?;
                let generation = state.registrations.connection(device).and_then(|(_, generation)| generation);
                return Ok(ConnectOutcome::Occupied { place, generation: generation.unwrap_or_default() });
            }
            None => {}
        }
        if state.waiters.get(&**device).is_some_and(|(waiting, _)| *waiting == number) {
            state.waiters.remove(&**device);
        }
        Err(DirectoryUnavailable)
    }

    /// Takes over a connection from another process of this node. Returns `false` if its device has a newer one, and it
    /// must be closed.
    pub fn adopt(&self, device: &str, connection: u64, generation: Generation, since_ms: u64) -> bool {
        let registrations = &mut self.shared.state().registrations;
        if registrations.is_newer(device, generation) {
            return false;
        }
        // The older connection here is closed by its node. One that began while the directory was away is unknown to
        // it.
        let known = Some(generation).filter(|generation| *generation >= FIRST_ERA.first_generation());
        let _closed_by_its_node = registrations.adopt(device, connection, known, since_ms);
        self.shared.wake.notify_one();
        true
    }

    /// Another process of this node continues with a connection.
    pub fn mark_handed_over(&self, device: &str, connection: u64) {
        self.shared.state().registrations.mark_handed_over(device, connection);
    }

    /// The state that a process taking over from this one begins with.
    pub(crate) fn former(&self) -> FormerDirectory {
        let members = self.members();
        let (epoch, fully_registered_era) = self.shared.registration_state();
        let members = members.iter().map(|(node, member)| (node.into(), member.address.clone())).collect();
        FormerDirectory { epoch, fully_registered_era: fully_registered_era.map(|era| era.0), members }
    }

    /// The process before this one has handed over everything.
    pub fn mark_filled(&self) {
        self.shared.is_filling.store(false, Ordering::Relaxed);
    }

    /// Another process of this node takes over: from now on it holds the lease.
    pub(crate) fn leave(&self) {
        self.shared.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Whether another process of this node may have devices that are not here.
    pub(crate) fn may_have_devices_elsewhere(&self) -> bool {
        self.shared.is_leaving.load(Ordering::Relaxed) || self.shared.is_filling.load(Ordering::Relaxed)
    }

    /// Releases the node's lease when the process ends, unless it is another process's.
    pub(crate) async fn release(&self) {
        if !self.shared.is_leaving.swap(true, Ordering::Relaxed) {
            let (epoch, _) = self.shared.registration_state();
            // If this fails, the lease expires.
            let _released = self.shared.ask(self.shared.store.release(&self.shared.node, epoch)).await;
        }
    }

    /// A connection has ended.
    pub fn disconnect(&self, device: &Arc<str>, connection: u64) {
        let mut state = self.shared.state();
        if let RegistrationEffect::Disconnect(ended) = state.registrations.remove_connection(device, connection) {
            state.push_disconnect(device.clone(), ended);
            self.shared.wake.notify_one();
        }
    }

    /// Whether a device is connected here.
    pub fn has(&self, device: &str) -> bool {
        self.shared.state().registrations.connection(device).is_some()
    }

    /// Another node reports that this device has a newer connection. Returns the connection to close, if it is here.
    pub fn close_superseded(&self, device: &str, place: &Location) -> Option<u64> {
        let mut state = self.shared.state();
        if state.registrations.epoch() != place.epoch {
            return None;
        }
        match state.registrations.close_if_current(device, place) {
            RegistrationEffect::Close { connection } => Some(connection),
            _ => None,
        }
    }

    /// A device's entry, read from the directory.
    pub async fn look_up(&self, device: &str) -> Result<Option<DirectoryEntry>, DirectoryUnavailable> {
        self.shared.ask(self.shared.store.look_up(device)).await
    }

    /// Reads the members again, or waits for a reading that began after this call.
    pub async fn read_members(&self) -> Result<(), DirectoryUnavailable> {
        self.read_members_since(Instant::now()).await
    }

    /// Reads the members again, unless a reading has begun since then.
    pub(crate) async fn read_members_since(&self, since: Instant) -> Result<(), DirectoryUnavailable> {
        let mut last_read = self.shared.last_read.lock().await;
        if last_read.is_some_and(|begun| begun > since) {
            return Ok(());
        }
        let begun = Instant::now();
        let reading = self.shared.ask(self.shared.store.read()).await?;
        self.shared.keep(&reading);
        *last_read = Some(begun);
        Ok(())
    }

    /// The members as last read.
    pub fn members(&self) -> Arc<Members> {
        self.shared.members()
    }

    /// Performs a step of a message's route, with this node's knowledge.
    pub(crate) fn step<T>(&self, step: impl FnOnce(View<'_>) -> T) -> T {
        let members = self.members();
        let now_ms = u64::try_from(self.shared.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut lookups = self.shared.lookups.lock().expect("no holder panics");
        step(View { lookups: &mut lookups, members: &members, now_ms })
    }

    /// Whether the last command to the directory was not answered. Then only the next heartbeat waits for it.
    pub fn is_away(&self) -> bool {
        self.shared.is_away()
    }

    /// Why the directory cannot be used; `None` if it can, or if nothing was sent yet.
    pub fn error(&self) -> Option<Box<str>> {
        self.shared.contact.lock().expect("no holder panics").error.clone().map(|StoreError(error)| error)
    }

    /// The number of commands sent to Redis.
    pub fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::Relaxed)
    }

    /// The number of registrations and ends of connections that wait for an answer or their turn.
    pub fn pending_count(&self) -> usize {
        let state = self.shared.state();
        state.registrations.due_count() + state.in_flight + state.disconnects.len()
    }
}

impl SharedDirectory {
    fn state(&self) -> MutexGuard<'_, DirectoryState> {
        self.state.lock().expect("no holder panics")
    }

    /// The process's epoch, and the era in which all connections of the node are registered.
    fn registration_state(&self) -> (u64, Option<Era>) {
        let registrations = &self.state().registrations;
        let fully_registered_era = registrations.fully_registered_era();
        let is_filling = self.is_filling.load(Ordering::Relaxed);
        // The former process may not have registered the connections that it has not handed over yet.
        (
            registrations.epoch(),
            fully_registered_era.filter(|_| !is_filling || fully_registered_era == self.former_registered_era),
        )
    }

    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    fn members(&self) -> Arc<Members> {
        self.members.lock().expect("no holder panics").clone()
    }

    fn keep(&self, reading: &HeartbeatResult) {
        let since = self.contact.lock().expect("no holder panics").since;
        let contact_ms = since.map_or(0, |since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
        let members = reading.members.clone().after_contact(contact_ms);
        *self.members.lock().expect("no holder panics") = Arc::new(members);
    }

    /// Sends a request to the directory, unless it is known to be unavailable.
    async fn ask<T>(&self, question: impl Future<Output = Result<T, StoreError>>) -> Result<T, DirectoryUnavailable> {
        if self.is_away() {
            return Err(DirectoryUnavailable);
        }
        self.ask_anyway(question).await
    }

    async fn ask_anyway<T>(
        &self,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, DirectoryUnavailable> {
        self.commands.fetch_add(1, Ordering::Relaxed);
        let answer = question.await;
        self.is_away.store(answer.is_err(), Ordering::Relaxed);
        let mut contact = self.contact.lock().expect("no holder panics");
        match answer {
            Ok(answer) => {
                contact.begin();
                Ok(answer)
            }
            Err(error) => {
                contact.end(error);
                Err(DirectoryUnavailable)
            }
        }
    }
}

impl Contact {
    /// A command was answered.
    fn begin(&mut self) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::info!("the directory of devices is available");
        }
        (self.error, self.logged) = (None, None);
    }

    /// A command failed. The log has the end of the contact, also if there was none yet, and later another cause.
    fn end(&mut self, error: StoreError) {
        self.since = None;
        let is_other = self.error.as_ref() != Some(&error);
        if self.logged.is_none_or(|logged| is_other && logged.elapsed() >= CAUSES_LOGGED_EVERY) {
            let StoreError(error) = &error;
            tracing::warn!(%error, "the directory of devices is unavailable; devices are registered when it is back");
            self.logged = Some(Instant::now());
        }
        self.error = Some(error);
    }
}

impl DirectoryState {
    fn push_disconnect(&mut self, device: Arc<str>, ended: Disconnect) {
        if self.disconnects.len() >= DISCONNECTS_MAX {
            self.disconnects.pop_front();
        }
        self.disconnects.push_back((device, ended));
    }
}

/// Above the numbers of processes that assigned places by worker, which were below 2^52.
const PLACES_BEGIN: u64 = 1 << 56;

/// The first place number of a process: higher than in all earlier processes on this machine, since none has had a
/// connection in every microsecond since boot.
fn first_place() -> u64 {
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    PLACES_BEGIN + since_boot.tv_sec as u64 * 1_000_000 + since_boot.tv_nsec as u64 / 1_000
}

/// Milliseconds since the epoch.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("node", &self.shared.node).finish_non_exhaustive()
    }
}
