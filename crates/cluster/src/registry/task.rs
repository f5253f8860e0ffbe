//! The task that registers a node's devices: heartbeats, then requests at a limited pace.
//!
//! While the directory is away only heartbeats are tried. Waiting work is kept in [`NodeRegistrations`] and the queue of
//! ends.
//!
//! [`NodeRegistrations`]: stillgate_devices::directory::NodeRegistrations

use super::store::{HeartbeatResult, OwnLease};
use super::{Hooks, SharedDirectory, wall_ms};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use stillgate_devices::Generation;
use stillgate_devices::directory::{
    Connect, ConnectOutcome, DirectoryUnavailable, Disconnect, Duplicate, Era, HEARTBEAT_MS, LEASE_MS, Location,
    RegistrationEffect, RegistrationRequest,
};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// Requests on their way at once.
const IN_FLIGHT_MAX: usize = 64;
/// Requests per second, and the largest burst: a directory that came back empty is filled at this pace, by each node.
const PER_SECOND_MAX: u32 = 5_000;
const BURST_MAX: f64 = 250.0;
/// Period in which every device is registered again once.
const REREGISTER_MS: u64 = 600_000;

/// The number of requests that may be made now.
struct RequestPace {
    left: f64,
    at: Instant,
}

pub(super) async fn run(shared: &Arc<SharedDirectory>, hooks: &Arc<Hooks>) {
    let mut heartbeats = interval(Duration::from_millis(HEARTBEAT_MS));
    heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pace = RequestPace { left: BURST_MAX, at: Instant::now() };
    let mut requests = JoinSet::new();
    let mut lease = LeaseExpiry::default();
    let mut last: Box<str> = "".into();
    loop {
        let next_turn = pace.next_turn();
        tokio::select! {
            _ = heartbeats.tick() => {
                if shared.is_leaving.load(Ordering::Relaxed) {
                    read(shared).await;
                } else {
                    lease.beat(shared).await;
                    last = reregister_next(shared, &last);
                }
            }
            _ = shared.wake.notified() => {}
            Some(_) = requests.join_next() => {}
            () = sleep_until(next_turn.into()), if pace.left < 1.0 => {}
        }
        pace.refill();
        while !shared.is_away() && requests.len() < IN_FLIGHT_MAX && pace.left >= 1.0 {
            let Some(work) = next(shared) else { break };
            pace.left -= 1.0;
            requests.spawn(work.perform(shared.clone(), hooks.clone()));
        }
    }
}

/// Another process holds the lease: only the list of living nodes remains to be read.
async fn read(shared: &SharedDirectory) {
    if let Ok(reading) = shared.ask_anyway(shared.store.read()).await {
        shared.keep(&reading);
    }
}

/// Registers the next devices again, at a pace that reaches each of them within [`REREGISTER_MS`].
fn reregister_next(shared: &SharedDirectory, after: &str) -> Box<str> {
    let registrations = &mut shared.state().registrations;
    let count = registrations.len().div_ceil(usize::try_from(REREGISTER_MS / HEARTBEAT_MS).unwrap_or(1));
    registrations.reregister_after(after, count)
}

/// The time until which this node's lease is certainly held.
#[derive(Default)]
struct LeaseExpiry {
    until: Option<Instant>,
}

impl LeaseExpiry {
    async fn beat(&mut self, shared: &SharedDirectory) {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            shared.state().registrations.begin_epoch(rand::random());
            self.until = None;
        }
        let Ok(reading) = self.renew_lease(shared).await else { return };
        let found = reading.era;
        let begins = shared.state().registrations.observe_era(found, reading.era_now.0);
        if let Some(era) = begins
            && shared.ask_anyway(shared.store.begin_era(found, era)).await.is_ok()
            && let Ok(reading) = self.renew_lease(shared).await
        {
            // Another node may have been first, or the directory was lost again: the next heartbeat continues.
            let _next_time = shared.state().registrations.observe_era(reading.era, reading.era_now.0);
        }
    }

    async fn renew_lease(&mut self, shared: &SharedDirectory) -> Result<HeartbeatResult, DirectoryUnavailable> {
        let (epoch, fully_registered_era) = shared.registration_state();
        let begun = Instant::now();
        let own_lease = OwnLease { node: &shared.node, epoch, fully_registered_era, address: &shared.address };
        let reading = shared.ask_anyway(shared.store.renew_lease(&own_lease)).await?;
        match reading.has_lease {
            true => self.until = Some(begun + Duration::from_millis(LEASE_MS)),
            false => tracing::warn!(node = %shared.node, "another process has this node's name, or had it seconds ago"),
        }
        shared.keep(&reading);
        Ok(reading)
    }
}

/// The next request.
enum DirectoryWork {
    Registration(RegistrationRequest),
    Disconnect(Arc<str>, Disconnect),
}

fn next(shared: &SharedDirectory) -> Option<DirectoryWork> {
    let mut state = shared.state();
    if let Some((device, ended)) = state.disconnects.pop_front() {
        return Some(DirectoryWork::Disconnect(device, ended));
    }
    let request = state.registrations.next_request()?;
    state.in_flight += 1;
    Some(DirectoryWork::Registration(request))
}

impl DirectoryWork {
    async fn perform(self, shared: Arc<SharedDirectory>, hooks: Arc<Hooks>) {
        match self {
            DirectoryWork::Disconnect(device, ended) => {
                let asked = shared.ask(shared.store.disconnect(&device, &ended, wall_ms())).await;
                if asked.is_err() {
                    shared.state().push_disconnect(device, ended);
                }
            }
            DirectoryWork::Registration(RegistrationRequest::Connect { device, place, duplicate, era }) => {
                let connected = connect(&shared, &device, &place, era, duplicate).await;
                handle_connect_answer(&shared, &hooks, &device, &place, connected);
            }
            DirectoryWork::Registration(RegistrationRequest::Register { device, place, generation, since_ms }) => {
                let registered = shared.ask(shared.store.register(&device, &place, generation, since_ms)).await;
                let mut state = shared.state();
                state.in_flight -= 1;
                let effect = match registered {
                    Ok(registered) => state.registrations.on_register_answer(&device, &place, generation, registered),
                    Err(DirectoryUnavailable) => state.registrations.on_missing_answer(&device, &place),
                };
                drop(state);
                apply(&shared, &hooks, &device, effect);
            }
        }
    }
}

async fn connect(
    shared: &SharedDirectory,
    device: &str,
    place: &Location,
    era: Era,
    duplicate: Duplicate,
) -> Result<ConnectOutcome, DirectoryUnavailable> {
    let request = |dead: Option<Generation>| Connect { place: place.clone(), era, duplicate, dead, now_ms: wall_ms() };
    let connected = shared.ask(shared.store.connect(device, &request(None))).await?;
    let ConnectOutcome::Occupied { place: other, generation } = &connected else { return Ok(connected) };
    let lives = |members: &stillgate_devices::directory::Members| {
        members.get(&other.node).is_some_and(|member| member.lease.epoch == other.epoch)
    };
    if lives(&shared.members()) {
        return Ok(connected);
    }
    let reading = shared.ask(shared.store.read()).await?;
    shared.keep(&reading);
    match lives(&reading.members) {
        true => Ok(connected),
        false => shared.ask(shared.store.connect(device, &request(Some(*generation)))).await,
    }
}

fn handle_connect_answer(
    shared: &SharedDirectory,
    hooks: &Hooks,
    device: &str,
    place: &Location,
    connected: Result<ConnectOutcome, DirectoryUnavailable>,
) {
    let mut state = shared.state();
    state.in_flight -= 1;
    let connected = match connected {
        Ok(connected) => connected,
        Err(DirectoryUnavailable) => {
            let effect = state.registrations.on_missing_answer(device, place);
            drop(state);
            return apply(shared, hooks, device, effect);
        }
    };
    let effect = state.registrations.on_connect_answer(device, place, connected.clone());
    let is_here = state.registrations.place_of(device).is_some_and(|here| here.connection == place.connection);
    let waiter = match state.waiters.get(device) {
        // A late answer has not closed it. Another one follows.
        Some(_) if is_here && matches!(connected, ConnectOutcome::Occupied { .. }) => None,
        Some((number, _)) if *number == place.connection => state.waiters.remove(device),
        _ => None,
    };
    drop(state);
    let is_heard = waiter.is_some_and(|(_, waiter)| waiter.send(connected).is_ok());
    // A caller whose device is connected elsewhere according to the answer does not admit it.
    if !(is_heard && matches!(effect, RegistrationEffect::Close { .. })) {
        apply(shared, hooks, device, effect);
    }
}

fn apply(shared: &SharedDirectory, hooks: &Hooks, device: &str, effect: RegistrationEffect) {
    match effect {
        RegistrationEffect::None => {}
        RegistrationEffect::Close { connection } => (hooks.close)(connection),
        RegistrationEffect::CloseThere { place } => (hooks.close_there)(device.into(), place),
        RegistrationEffect::Disconnect(ended) => {
            shared.state().push_disconnect(device.into(), ended);
            shared.wake.notify_one();
        }
    }
}

impl RequestPace {
    fn refill(&mut self) {
        let now = Instant::now();
        let more = now.duration_since(self.at).as_secs_f64() * f64::from(PER_SECOND_MAX);
        (self.left, self.at) = ((self.left + more).min(BURST_MAX), now);
    }

    /// When the next request may be made.
    fn next_turn(&self) -> Instant {
        self.at + Duration::from_secs_f64((1.0 - self.left).max(0.0) / f64::from(PER_SECOND_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Directory, DirectorySettings, RedisAddress};
    use std::sync::Mutex;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_late_answer_about_the_same_connection_refuses_no_device() {
        let redis = RedisAddress { urls: vec!["redis://127.0.0.1:1".to_owned()], is_cluster: false, ca_pem: None };
        let settings =
            DirectorySettings { node: "a".into(), address: "".into(), former: None, redis, lookup_bytes_max: 1_000 };
        let shared = Directory::new(settings).expect("an address").shared;
        let closed = Arc::new(Mutex::new(Vec::new()));
        let closing = closed.clone();
        let close = Box::new(move |connection| closing.lock().expect("no panic").push(connection));
        let hooks = Hooks { close, close_there: Box::new(|_, _| {}) };
        let waits = |connection| {
            let mut state = shared.state();
            let (place, _) = state.registrations.add_connection("d", connection, Duplicate::Refuse, 0);
            let (sender, answer) = oneshot::channel();
            state.waiters.insert("d".into(), (place.connection, sender));
            state.in_flight = 2;
            (place, answer)
        };

        let (place, mut answer) = waits(1);
        let itself = Location { epoch: place.epoch + 1, ..place.clone() };
        handle_connect_answer(
            &shared,
            &hooks,
            "d",
            &place,
            Ok(ConnectOutcome::Occupied { place: itself, generation: Generation(9) }),
        );
        assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let current = ConnectOutcome::Current { generation: Generation(9), replaced: None };
        handle_connect_answer(&shared, &hooks, "d", &place, Ok(current.clone()));
        assert_eq!(answer.try_recv(), Ok(current));

        // A device whose caller gets another connection is not admitted, so there is nothing to close.
        let (place, mut answer) = waits(2);
        let other = Location { node: "b".into(), epoch: 1, connection: 3 };
        let occupied = ConnectOutcome::Occupied { place: other, generation: Generation(10) };
        handle_connect_answer(&shared, &hooks, "d", &place, Ok(occupied.clone()));
        assert_eq!(answer.try_recv(), Ok(occupied));
        assert!(closed.lock().expect("no panic").is_empty());
        assert!(shared.state().registrations.is_empty());
    }
}
