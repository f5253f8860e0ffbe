//! All workers of the process: starting and ending their threads. Their listening sockets are in `sockets`.
//!
//! `thread` runs a worker, `turns` is what it does whenever it wakes, `accept` is how it gets connections, `taking` how it gets
//! those of another process, `draining` how it stops accepting, `serving` how its listeners change.

mod accept;
#[cfg(test)]
pub(crate) mod allocations;
mod thread;
mod turns;
mod worker_listeners;

use crate::basics::counters::{WorkerCounters, WorkerTally};
use crate::device_link::{COMMANDS_MAX, DeviceQueues, HandoverHold, REPORTS_MAX};
use crate::handover::{INBOX, Inbox, ReceivedParcel, Successor};
use crate::plan::PlanCell;
use crate::random;
use crate::sockets::{ListenError, ListenerSockets, Sockets, StartError, WorkerListener, deal};
use crate::telemetry::access_log::Sink;
use crate::telemetry::overview::Inquiry;
use crate::worker::Expose;
use crate::worker::devices::DeviceLink;
use crate::worker::offload::OffloadPools;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};
use stillgate_config::{Gateway, ListenPlace, Listener};
use stillgate_metrics::Writer;
use stillgate_plugin_api::{Outbox, ServingProcess};
use thread::{Setup, WorkerCommand};
use tokio::sync::{mpsc, watch};
use worker_listeners::ListenerUpdate;

/// Changes of listeners that a worker has not looked at yet.
const UPDATES_MAX: usize = 16;

/// How long a change of listeners waits for workers to apply it, and how often it checks. Busy workers need to finish a turn.
const UPDATE_TIME: Duration = Duration::from_millis(500);
const UPDATE_LOOK: Duration = Duration::from_millis(1);

/// Name of a worker's thread, before its number.
pub const WORKER_NAME: &str = "worker-";

/// The writers of the metrics, one for each worker or none, and the function that exposes what they write.
pub type FleetMetrics = (Vec<Writer>, Option<Expose>);

/// The running workers.
pub struct Fleet {
    threads: Vec<JoinHandle<io::Result<()>>>,
    tally: WorkerTally,
    inquiry: Inquiry,
    /// Descriptors of the workers' listening sockets, so that they can be left to another process; `None`: no longer.
    sockets: Option<Sockets>,
    arrivals: Vec<mpsc::Sender<ReceivedParcel>>,
    /// Present until they are taken; `None`: `gateway.devices` is not configured.
    devices: Option<DeviceQueues>,
    commander: Commander,
    /// Queues for changes of the workers' listeners.
    updates: Vec<mpsc::Sender<ListenerUpdate>>,
    /// Places that are no longer listened on, and may still have sockets.
    closing: Vec<(ListenPlace, Weak<()>)>,
}

/// Listeners that were opened and are not served yet.
#[derive(Debug)]
pub struct NewListeners {
    listeners: Vec<Listener>,
    added: Vec<ListenerSockets>,
    dealt: Vec<Vec<WorkerListener>>,
}

/// Sends commands to the workers, also after the [`Fleet`] has been handed over to be joined.
#[derive(Debug, Clone)]
pub struct Commander(watch::Sender<WorkerCommand>);

impl Commander {
    /// Has all workers stop accepting, finish what is in flight within this time, and end.
    pub fn drain(&self, deadline: Duration) {
        self.0.send_replace(WorkerCommand::Drain(deadline));
    }

    /// Has workers that hand over continue, but finish within this time.
    pub fn hurry(&self, deadline: Duration) {
        self.0.send_modify(|command| {
            if let WorkerCommand::HandOver { within, is_hurried, .. } = command {
                (*within, *is_hurried) = (deadline, true);
            }
        });
    }
}

impl Fleet {
    /// Starts the workers, on sockets that were opened for as many of them. `sinks` has one access log sink per worker or none, and
    /// so have the writers of the metrics and the outboxes of what plugins send; `give_back` is called by a worker after many of
    /// its connections were closed, to return free memory.
    pub fn start(
        gateway: &Gateway,
        sockets: Sockets,
        plans: Arc<PlanCell>,
        sinks: Vec<Sink>,
        measuring: FleetMetrics,
        sending: (Arc<ServingProcess>, Vec<Outbox>),
        give_back: fn(),
    ) -> Result<Fleet, StartError> {
        let (mut fleet, setups) = Fleet::set_up(gateway, sockets, plans, sinks, measuring, sending, give_back)?;
        for setup in setups {
            let thread = std::thread::Builder::new().name(format!("{WORKER_NAME}{}", setup.number));
            fleet.threads.push(thread.spawn(move || thread::run(setup)).map_err(StartError::Thread)?);
        }
        Ok(fleet)
    }

    /// Like `start`, but without threads: returns what each of them is to run.
    fn set_up(
        gateway: &Gateway,
        sockets: Sockets,
        plans: Arc<PlanCell>,
        sinks: Vec<Sink>,
        (writers, expose): FleetMetrics,
        (process, outboxes): (Arc<ServingProcess>, Vec<Outbox>),
        give_back: fn(),
    ) -> Result<(Fleet, Vec<Setup>), StartError> {
        let workers = worker_count(gateway);
        assert!(sinks.is_empty() || sinks.len() == workers);
        assert!(writers.is_empty() || writers.len() == workers);
        let dealt = sockets.deal(workers).map_err(StartError::Thread)?;
        let (arrivals, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(INBOX)).unzip();
        let mut inboxes = inboxes.into_iter();
        let (commands, receiver) = watch::channel(WorkerCommand::Share);
        let counters: Arc<[_]> = (0..workers).map(|_| Arc::new(WorkerCounters::default())).collect();
        let (inquiry, questions) = Inquiry::new(workers);
        let (devices, links) = device_queues(gateway, workers);
        let mut links = links.into_iter();
        let mut fleet = Fleet {
            threads: Vec::new(),
            tally: WorkerTally(counters.clone()),
            inquiry,
            sockets: Some(sockets),
            arrivals,
            devices,
            commander: Commander(commands),
            updates: Vec::new(),
            closing: Vec::new(),
        };
        let mut questions = questions.into_iter();
        let offloading = Arc::new(OffloadPools::default());
        let (mut sinks, mut writers, mut outboxes) = (sinks.into_iter(), writers.into_iter(), outboxes.into_iter());
        let time_seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let mut setups = Vec::with_capacity(workers);
        for (index, added) in dealt.into_iter().enumerate() {
            let (update, updates) = mpsc::channel(UPDATES_MAX);
            fleet.updates.push(update);
            setups.push(Setup {
                number: index,
                listeners: ListenerUpdate { added, ..ListenerUpdate::default() },
                updates,
                plans: plans.clone(),
                counters: counters[index].clone(),
                tally: WorkerTally(counters.clone()),
                sink: sinks.next(),
                writer: writers.next(),
                expose: expose.clone(),
                outbox: outboxes.next().unwrap_or_default(),
                process: process.clone(),
                commands: receiver.clone(),
                questions: questions.next().expect("one for each worker"),
                arrivals: inboxes.next().expect("one for each worker"),
                devices: links.next(),
                offloading: offloading.clone(),
                give_back,
                secret: random::number(),
                seed: time_seed.wrapping_add(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            });
        }
        Ok((fleet, setups))
    }

    /// Where the listeners are, in the configuration's order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.as_ref().map_or_else(Vec::new, Sockets::addresses)
    }

    /// Opens the additional listeners of a configuration; they are not served before [`Fleet::listen`]. An error: nothing has
    /// changed.
    pub fn open_listeners(&mut self, listeners: &[Listener]) -> Result<NewListeners, ListenError> {
        self.closing.retain(|(_, held)| held.strong_count() > 0);
        let closing: Vec<ListenPlace> = self.closing.iter().map(|(place, _)| *place).collect();
        let none = Sockets::default();
        let sockets = self.sockets.as_ref().unwrap_or(&none);
        let added = sockets.open_added(listeners, self.workers(), &closing)?;
        let fail = |error| ListenError { key: "gateway".to_owned(), error: StartError::Thread(error) };
        let dealt = deal(&added, self.workers()).map_err(fail)?;
        if self.updates.iter().any(|updates| updates.capacity() == 0) {
            return Err(fail(io::Error::other("a worker has not taken the changes of listeners before this one")));
        }
        Ok(NewListeners { listeners: listeners.to_vec(), added, dealt })
    }

    /// Makes the workers listen exactly where a configuration says. Connections of other listeners get so long to finish. Waits
    /// until they do, for a moment at most: after a reload, new connections are expected to be served as the new configuration
    /// says.
    pub fn listen(&mut self, new: NewListeners, within: Duration) {
        let NewListeners { listeners, added, dealt } = new;
        let Some(sockets) = &mut self.sockets else { return };
        let (changed, removed) = sockets.replace(&listeners, added);
        let places: Vec<ListenPlace> = removed.iter().map(ListenerSockets::place).collect();
        self.closing.extend(removed.iter().map(|listening| (listening.bound_place(), listening.in_use_marker())));
        // The workers' descriptors must be the last: a worker takes the waiting connections before it closes its own.
        drop(removed);
        let pending = Arc::new(());
        for (updates, added) in self.updates.iter().zip(dealt) {
            if added.is_empty() && changed.is_empty() && places.is_empty() {
                continue;
            }
            let (changed, pending) = (changed.clone(), pending.clone());
            let update = ListenerUpdate { added, changed, removed: places.clone(), within, pending };
            // There was room, and only this sends; a worker that has ended listens on nothing.
            let _ = updates.try_send(update);
        }
        let deadline = Instant::now() + UPDATE_TIME;
        while Arc::strong_count(&pending) > 1 && Instant::now() < deadline {
            std::thread::sleep(UPDATE_LOOK);
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// Whether a worker has ended.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Handle to read the workers' counters.
    pub fn tally(&self) -> WorkerTally {
        self.tally.clone()
    }

    /// Handle to query what the workers know of the nodes.
    pub fn inquiry(&self) -> Inquiry {
        self.inquiry.clone()
    }

    /// Makes the workers read datagrams also where the previous process has read them until now.
    pub fn read_all(&self) {
        self.commander.0.send_replace(WorkerCommand::Serve);
    }

    /// Has all workers stop accepting, finish what is in flight within this time, and end.
    pub fn drain(&mut self, deadline: Duration) {
        self.sockets = None;
        self.commander.drain(deadline);
    }

    /// Has all workers stop accepting, give away what they can, finish the rest within this time, and end.
    pub fn hand_over(&mut self, successor: Successor, deadline: Duration) {
        self.sockets = None;
        // No process hands over to this one any more, unless it has begun already.
        self.arrivals.clear();
        let command = WorkerCommand::HandOver { to: Arc::new(successor), within: deadline, is_hurried: false };
        self.commander.0.send_replace(command);
    }

    /// The workers' listening sockets, to be left to another process; empty once they have stopped.
    pub fn listening(&self) -> &[ListenerSockets] {
        self.sockets.as_ref().map_or(&[], Sockets::listening)
    }

    /// Inbox by which connections of the previous process get to the workers, which do not end while they hand over and it exists.
    /// There is one. `changed` are the routes that differ from those of the previous process.
    pub fn inbox(&mut self, changed: HashSet<String>) -> Inbox {
        Inbox::new(std::mem::take(&mut self.arrivals), changed)
    }

    /// The other ends of the workers' queues of devices; they can be taken once.
    pub fn take_devices(&mut self) -> Option<DeviceQueues> {
        self.devices.take()
    }

    /// Handle that remains usable while the fleet waits for its end.
    pub fn commander(&self) -> Commander {
        self.commander.clone()
    }

    /// Waits until all workers have ended.
    pub fn join(self) -> Result<(), StartError> {
        let mut result = Ok(());
        for (worker, thread) in self.threads.into_iter().enumerate() {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => result = Err(StartError::Thread(error)),
                Err(_) => result = Err(StartError::Panicked { worker }),
            }
        }
        result
    }
}

/// The queues between the workers and the thread of devices, if there is one.
fn device_queues(gateway: &Gateway, workers: usize) -> (Option<DeviceQueues>, Vec<DeviceLink>) {
    let Some(devices) = &gateway.devices else { return (None, Vec::new()) };
    let (reports, reported) = mpsc::channel(REPORTS_MAX);
    let hold = HandoverHold::default();
    let (commands, links) = (0..workers)
        .map(|_| {
            let (command, commands) = mpsc::channel(COMMANDS_MAX);
            (
                command,
                DeviceLink { limits: devices.limits, workers, commands, reports: reports.clone(), held: hold.seen() },
            )
        })
        .unzip();
    (Some(DeviceQueues { commands, reports: reported, hold }), links)
}

/// How many workers a configuration requires.
pub fn worker_count(gateway: &Gateway) -> usize {
    match gateway.workers {
        Some(workers) => workers.get(),
        None => usable_cpus(),
    }
}

/// Raises the soft limit of open files to the hard one and returns it; `None` if the system has no limit.
pub fn raise_fd_limit() -> io::Result<Option<u64>> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}

/// How many CPUs the process may use, by its affinity and by the CPU quota of its cgroup: one worker per CPU, counted once, as the
/// parts of a start have to agree on it.
///
/// A fraction of a CPU counts as one: with a quota of 1.5 CPUs, one worker could not use the half. The standard library rounds down.
fn usable_cpus() -> usize {
    static USABLE: LazyLock<usize> = LazyLock::new(|| {
        let rounded_down = available_parallelism().map_or(1, NonZeroUsize::get);
        let Ok(affinity) = rustix::thread::sched_getaffinity(None) else { return rounded_down };
        match fs::read_to_string("/proc/self/cgroup") {
            Ok(groups) => quota(&groups, |file| fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok())
                .map_or(rounded_down, |quota| rounded_up(quota).clamp(1, affinity.count() as usize)),
            Err(_) => rounded_down,
        }
    });
    *USABLE
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of CPUs")]
fn rounded_up(cpus: f64) -> usize {
    cpus.ceil() as usize
}

/// The least quota, in CPUs, of the cgroups of a process and of those that contain them; `None`: no limit. `groups`:
/// `/proc/self/cgroup`, where cgroup v2 has the hierarchy 0, and v1 one of the controller `cpu`.
fn quota(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<f64> {
    let quotas = groups.lines().filter_map(|line| {
        let (hierarchy, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(":/")?;
        let folders = Path::new(group).ancestors();
        if hierarchy == "0" {
            return folders.filter_map(|folder| cpu_max(&read(&folder.join("cpu.max"))?)).reduce(f64::min);
        }
        if !controllers.split(',').any(|controller| controller == "cpu") {
            return None;
        }
        let of_folder = |folder: &Path| {
            let value = |name: &str| read(&Path::new("cpu").join(folder).join(name));
            let (quota, period) = (value("cpu.cfs_quota_us")?, value("cpu.cfs_period_us")?);
            cpu_max(&format!("{} {}", quota.trim_end(), period.trim_end()))
        };
        folders.filter_map(of_folder).reduce(f64::min)
    });
    quotas.reduce(f64::min)
}

/// `cpu.max`: the microseconds of CPU time in each period, or `max`, and the length of the period.
fn cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim_end().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quota of a group in a group, by their files.
    fn quota_of(outer: &str, inner: &str, groups: &str) -> Option<f64> {
        quota(groups, |file| match file.to_str() {
            Some("outer/cpu.max") => Some(outer.to_owned()),
            Some("outer/inner/cpu.max") => Some(inner.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn the_least_quota_of_all_groups_counts() {
        const GROUPS: &str = "4:cpu:/x\n0::/outer/inner\n";
        assert_eq!(quota_of("", "150000 100000\n", GROUPS), Some(1.5));
        assert_eq!(quota_of("50000 100000\n", "150000 100000\n", GROUPS), Some(0.5));
        assert_eq!(quota_of("50000 100000\n", "max 100000\n", GROUPS), Some(0.5));
        assert_eq!(quota_of("max 100000\n", "", GROUPS), None);
        assert_eq!(quota_of("", "150000 100000\n", "4:cpu:/outer/inner\n"), None);
        let first_version = |groups: &str, quota_us: &str| {
            quota(groups, |file| match file.to_str() {
                Some("cpu/outer/cpu.cfs_quota_us") => Some(quota_us.to_owned()),
                Some("cpu/outer/cpu.cfs_period_us") => Some("100000\n".to_owned()),
                _ => None,
            })
        };
        assert_eq!(first_version("4:cpu,cpuacct:/outer/inner\n0::/\n", "150000\n"), Some(1.5));
        assert_eq!(first_version("4:cpuacct:/outer\n0::/\n", "150000\n"), None);
        assert_eq!(first_version("4:cpu:/outer\n0::/\n", "-1\n"), None);
        for wrong in ["", "150000", "x 100000", "150000 0", "0 100000", "-1 100000"] {
            assert_eq!(quota_of("", wrong, GROUPS), None, "{wrong}");
        }
    }

    #[test]
    fn a_fraction_is_a_cpu() {
        assert_eq!([0.01, 0.5, 1.0, 1.5, 2.0].map(rounded_up), [1, 1, 1, 2, 2]);
    }
}
