//! The reports of the workers, and their effects.

use super::carrying;
use super::clock::{session_ms, unix_ms};
use super::node::{DeviceNode, Local, State, change};
use rand::random;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stillgate_devices::Generation;
use stillgate_devices::directory::{ConnectOutcome, Duplicate};
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::{ResumeToken, Session, SessionId, SessionLimits};
use stillgate_plugin_api::DeviceSettings;
use stillgate_proxy::device_link::{
    Admission, CloseWhy, DeviceCommand, DeviceFacts, DeviceReport, FormerConnection, SessionToResume, worker_of,
};
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

/// Maximum number of reports that are taken at once.
const AT_ONCE: usize = 256;
/// Interval of checks for due work.
const TICK: Duration = Duration::from_millis(50);

/// Takes in reports, until the workers are gone.
pub(super) async fn take_until_closed(node: Arc<DeviceNode>, mut reports: mpsc::Receiver<DeviceReport>) {
    let mut batch = Vec::with_capacity(AT_ONCE);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            count = reports.recv_many(&mut batch, AT_ONCE) => {
                if count == 0 {
                    return;
                }
                batch.drain(..).for_each(|report| node.clone().take_report(report));
                node.state().commands.flush();
            }
            _ = ticks.tick() => node.tick(),
        }
    }
}

impl DeviceNode {
    fn take_report(self: Arc<DeviceNode>, report: DeviceReport) {
        match report {
            DeviceReport::Arrived { connection, facts, former: Some(former), answer } => {
                self.adopt(connection, facts, former, answer);
            }
            DeviceReport::Arrived { connection, facts, former: None, answer } => {
                self.state().arriving.insert(connection);
                tokio::spawn(self.arrive(connection, facts, answer));
            }
            DeviceReport::Left { connection, session, reason, is_given } => {
                self.end(connection, session, reason, is_given)
            }
            DeviceReport::Notices(notices) => self.state().tell(notices),
            DeviceReport::Refused { id, why } => self.state().report_refused(id, why),
            DeviceReport::Resume { connection, token } => self.resume(connection, token),
            DeviceReport::Returned(before) => {
                let SessionToResume { device, session, limits } = *before;
                self.state().keep(&device, session, limits);
            }
            DeviceReport::Fresh { connection } => {
                let mut state = self.state();
                if let Some(device) = state.connections.get(&connection).cloned() {
                    let mut notices = Vec::new();
                    state.away.end(&device, &mut notices);
                    state.tell(notices);
                }
            }
        }
    }

    /// Admits a device, or refuses it.
    async fn arrive(
        self: Arc<DeviceNode>,
        connection: u64,
        facts: Box<DeviceFacts>,
        answer: oneshot::Sender<Admission>,
    ) {
        let (device, duplicate) = (facts.device.clone(), facts.settings.duplicate);
        let refusal = {
            let state = self.state();
            let is_here = state.devices.contains_key(&device);
            let is_full = state.devices.len() >= self.limits.devices;
            match (is_here, duplicate) {
                (true, Duplicate::Refuse) => Some(Admission::Occupied),
                (false, _) if is_full => Some(Admission::Full),
                _ => None,
            }
        };
        let registered = match refusal {
            Some(refusal) => Err(refusal),
            None => match self.registry.connect(&device, connection, duplicate).await {
                Ok(ConnectOutcome::Current { generation, .. }) => Ok(generation),
                Ok(ConnectOutcome::Occupied { .. }) => Err(Admission::Occupied),
                // The device is reachable here, and is registered when the directory is back.
                Err(_) => Ok(self
                    .state()
                    .devices
                    .get(&device)
                    .map_or(Generation(1), |local| Generation(local.generation.0 + 1))),
            },
        };
        let mut state = self.state();
        let is_there = state.arriving.remove(&connection);
        let admission = match registered {
            Err(refusal) => refusal,
            // The device left while it waited.
            Ok(_) if !is_there => {
                drop(state);
                return self.registry.disconnect(&device, connection);
            }
            Ok(generation) => {
                let local = Local { connection, generation, since_ms: unix_ms(), facts };
                self.presence.tell(|| change(&local, &device, true, ""));
                state.admit(device, local);
                Admission::Admitted { generation, session: SessionId(random()) }
            }
        };
        // If nothing waits for it any more, the connection's end is reported separately.
        let _ = answer.send(admission);
    }

    /// Adopts a connection of another process. Whether it is known here does not matter: it exists.
    fn adopt(
        &self,
        connection: u64,
        facts: Box<DeviceFacts>,
        former: FormerConnection,
        answer: oneshot::Sender<Admission>,
    ) {
        let device = facts.device.clone();
        self.begin_filling();
        let mut state = self.state();
        let is_older = state.devices.get(&device).is_some_and(|local| local.generation > former.generation);
        if is_older || !self.registry.adopt(&device, connection, former) {
            state.connections.insert(connection, device.clone());
            *state.ending.entry(device).or_default() += 1;
            state.commands.send(connection, DeviceCommand::Close { connection, why: CloseWhy::Replaced });
        } else {
            let FormerConnection { generation, since_ms, .. } = former;
            state.admit(device.clone(), Local { connection, generation, since_ms, facts });
            state.catch_up(&device);
        }
        let _ = answer.send(Admission::Admitted { generation: former.generation, session: SessionId(0) });
    }

    /// A connection has ended.
    fn end(
        self: &Arc<DeviceNode>,
        connection: u64,
        session: Option<Box<Session>>,
        reason: &'static str,
        is_given: bool,
    ) {
        let mut state = self.state();
        state.arriving.remove(&connection);
        let Some(device) = state.connections.remove(&connection) else { return };
        let is_current = state.devices.get(&device).is_some_and(|local| local.connection == connection);
        let mut facts = None;
        if is_current && let Some(local) = state.devices.remove(&device) {
            if is_given {
                self.registry.give(&device, connection);
            } else {
                self.registry.disconnect(&device, connection);
                self.presence.tell(|| change(&local, &device, false, reason));
            }
            facts = Some(local.facts);
        } else {
            state.count_ended(&device);
        }
        let settings = match facts {
            Some(facts) => Some((facts.settings.clone(), facts.protocol)),
            None => state.devices.get(&device).map(|local| (local.facts.settings.clone(), local.facts.protocol)),
        };
        if let (Some(session), Some((settings, protocol))) = (session, settings) {
            state.keep(&device, *session, session_limits(&settings, protocol, self.limits.queue_bytes));
        }
        let resuming = state.resuming.remove(&device);
        drop(state);
        if let Some((connection, token)) = resuming {
            self.resume(connection, token);
        }
    }

    /// Gives a connection the session that its device wants to resume, or reports that it does not exist.
    fn resume(self: &Arc<DeviceNode>, connection: u64, token: ResumeToken) {
        let mut state = self.state();
        let Some(device) = state.connections.get(&connection).cloned() else { return };
        let known = state.away.take(&device, token);
        // An older connection of the device is about to end, and has a session.
        if known.is_none() && state.ending.contains_key(&device) {
            state.resuming.insert(device, (connection, token));
            return;
        }
        let here = state.devices.get(&device).map(|local| (local.facts.settings.clone(), local.facts.protocol));
        if let (None, true, Some((settings, protocol))) = (&known, self.registry.shared().is_some(), here) {
            let limits = session_limits(&settings, protocol, self.limits.queue_bytes);
            let node = self.clone();
            tokio::spawn(async move {
                let session = carrying::fetch(node.registry.shared()?, &device, token).await;
                let session = session.map(|session| Box::new(SessionToResume { device, session, limits }));
                node.state().commands.send(connection, DeviceCommand::Resume { connection, session });
                Some(())
            });
            return;
        }
        let session = known.map(|(session, limits)| Box::new(SessionToResume { device, session, limits }));
        state.commands.send(connection, DeviceCommand::Resume { connection, session });
    }
}

impl State {
    /// Keeps a session for its device, which is away.
    fn keep(&mut self, device: &Arc<str>, session: Session, limits: SessionLimits) {
        let mut notices = Vec::new();
        self.away.keep(device, session, limits, session_ms(), &mut notices);
        self.tell(notices);
    }

    fn admit(&mut self, device: Arc<str>, local: Local) {
        self.connections.insert(local.connection, device.clone());
        if let Some(before) = self.devices.insert(device.clone(), local) {
            let connection = before.connection;
            *self.ending.entry(device).or_default() += 1;
            self.commands.send(connection, DeviceCommand::Close { connection, why: CloseWhy::Replaced });
        }
    }

    /// One of the connections that were replaced is gone.
    fn count_ended(&mut self, device: &Arc<str>) {
        if let Some(count) = self.ending.get_mut(device) {
            *count -= 1;
            if *count == 0 {
                self.ending.remove(device);
            }
        }
    }
}

/// The bounds of a session without a connection.
fn session_limits(settings: &DeviceSettings, protocol: DeviceProtocol, queue_bytes_max: usize) -> SessionLimits {
    SessionLimits {
        queue_bytes_max,
        resume_ms: settings.resume_ms,
        policy: settings.policy,
        acknowledges: protocol != DeviceProtocol::Raw,
    }
}

// Commands to the workers: those with messages are refused where a worker's queue is full, the others wait.

/// The queues of all workers.
#[derive(Debug)]
pub(super) struct Commands {
    workers: Vec<WorkerCommands>,
}

#[derive(Debug)]
struct WorkerCommands {
    sender: Sender<DeviceCommand>,
    /// Commands about connections that open and close: no more than one for each of those.
    waiting: VecDeque<DeviceCommand>,
}

/// The queue for a worker is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy;

impl Commands {
    pub(super) fn new(senders: Vec<Sender<DeviceCommand>>) -> Commands {
        let worker = |sender| WorkerCommands { sender, waiting: VecDeque::new() };
        Commands { workers: senders.into_iter().map(worker).collect() }
    }

    /// The number of workers.
    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends a command to the worker of a connection, now or not at all.
    pub(super) fn try_send(&mut self, connection: u64, command: DeviceCommand) -> Result<(), Busy> {
        self.try_send_to(worker_of(connection), command)
    }

    /// Sends a command to a worker, now or not at all.
    pub(super) fn try_send_to(&mut self, worker: usize, command: DeviceCommand) -> Result<(), Busy> {
        let worker = self.workers.get_mut(worker).ok_or(Busy)?;
        if !worker.waiting.is_empty() {
            return Err(Busy);
        }
        worker.sender.try_send(command).map_err(|_| Busy)
    }

    /// Sends a command to the worker of a connection, as soon as there is room.
    pub(super) fn send(&mut self, connection: u64, command: DeviceCommand) {
        if let Some(worker) = self.workers.get_mut(worker_of(connection)) {
            worker.waiting.push_back(command);
            worker.flush();
        }
    }

    /// Sends waiting commands.
    pub(super) fn flush(&mut self) {
        self.workers.iter_mut().for_each(WorkerCommands::flush);
    }
}

impl WorkerCommands {
    fn flush(&mut self) {
        while !self.waiting.is_empty() {
            let Ok(room) = self.sender.try_reserve() else { return };
            if let Some(command) = self.waiting.pop_front() {
                room.send(command);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Memory, Registry};
    use crate::reports::Commands;
    use stillgate_config::DeviceLimits;
    use stillgate_devices::session::QueuePolicy;
    use stillgate_proxy::device_link::HandoverHold;

    /// A device that leaves again while its session is on its way finds it the next time.
    #[test]
    fn a_session_that_finds_its_device_gone_waits_for_it_again() {
        let limits = DeviceLimits { devices: 10, queue_bytes: 1024, message_bytes: 1024, node_bytes: 1 << 20 };
        let registry = Registry::Memory(Memory::new(10));
        let node = Arc::new(DeviceNode::new(
            "a".to_owned(),
            limits,
            registry,
            (Commands::new(Vec::new()), HandoverHold::default()),
            false,
        ));
        let device: Arc<str> = "d".into();
        let session = Session::new(SessionId(7), stillgate_devices::Generation(1));
        let token = session.token();
        let limits =
            SessionLimits { queue_bytes_max: 1024, resume_ms: 60_000, policy: QueuePolicy::Refuse, acknowledges: true };
        // The session as the connection has left it.
        let mut session = session;
        session.detach(session_ms(), &limits, &mut Vec::new());
        node.clone().take_report(DeviceReport::Returned(Box::new(SessionToResume { device, session, limits })));
        assert!(node.state().away.take("d", token).is_some());
    }
}
