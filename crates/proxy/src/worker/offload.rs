//! The threads for work that would hold up a worker: a few for each plugin, of low priority, with a bounded queue.
//!
//! A plugin's threads are started with its first work. All workers share them, so that it uses only so many cores, however many
//! workers there are; and no plugin waits for the work of another, however much that has. Of one plugin's work, each client has its
//! turn, and each route of a client: one with much to do waits for itself.
//!
//! ```text
//!  worker ─┐          dispatcher            ┌▶ thread
//!  worker ─┼▶ queue ─▶ turns, by client   ──┤
//!  worker ─┘          and route             └▶ thread
//! ```

use super::client_shares::WorkOwner;
use super::plugins::{PluginPanic, call_guarded};
use crate::basics::clock::thread_cpu_time;
use crossbeam_channel::{Receiver, Sender, bounded, select};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stillgate_plugin_api::QueueFull;
use stillgate_plugin_api::work::{Output, Work};
use stillgate_profiler::threads::{Registration, WorkKind, work_on};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Threads that work for one plugin.
pub(crate) const THREADS: usize = 2;
/// Plugins with threads of their own; those beyond share the threads of the last. A waiting thread takes memory for its stack only.
const PLUGINS_MAX: usize = 32;
/// Work of one plugin that may wait for one of its threads.
pub(crate) const QUEUE_MAX: usize = 256;
/// Their niceness, which is that of the control thread: a lower priority than a worker's.
const NICE: i32 = 10;

/// Result of work.
pub(crate) type OffloadResult = Result<FinishedWork, PluginPanic>;

/// Work that is done.
pub(crate) struct FinishedWork {
    pub(crate) output: Output,
    /// CPU time that it took.
    pub(crate) cpu: Duration,
}

/// The threads, as workers use them.
#[derive(Default)]
pub(crate) struct OffloadPools {
    /// Pools in the order in which plugins first had work.
    pools: [OnceLock<Pool>; PLUGINS_MAX],
}

/// The threads of one plugin.
struct Pool {
    plugin: &'static str,
    /// `None`: the threads could not be started.
    queue: Option<Sender<Job>>,
    /// Free places of the queue. Waiters get them in their order.
    places: Arc<Semaphore>,
}

/// A place in the queue of a plugin's work.
pub(crate) struct OffloadPlace(OwnedSemaphorePermit);

struct Job {
    plugin: &'static str,
    work: Work,
    owner: WorkOwner,
    done: oneshot::Sender<OffloadResult>,
    /// Returned when a thread takes the job.
    place: OffloadPlace,
}

impl OffloadPools {
    /// Submits work of a plugin. Dropping the receiver drops work that has not begun.
    pub(crate) fn submit(
        &self,
        plugin: &'static str,
        owner: WorkOwner,
        work: Work,
    ) -> Result<oneshot::Receiver<OffloadResult>, QueueFull> {
        let pool = self.pool_of(plugin).ok_or(QueueFull)?;
        let place = pool.places.clone().try_acquire_owned().map_err(|_| QueueFull)?;
        pool.submit(plugin, owner, work, OffloadPlace(place))
    }

    /// Waits for a place in the queue.
    pub(crate) fn place(&self, plugin: &'static str) -> impl Future<Output = Result<OffloadPlace, QueueFull>> + use<> {
        let places = self.pool_of(plugin).map(|pool| pool.places.clone());
        async move { places.ok_or(QueueFull)?.acquire_owned().await.map(OffloadPlace).map_err(|_| QueueFull) }
    }

    /// [`OffloadPools::submit`] with a place of the plugin's queue.
    pub(crate) fn submit_at(
        &self,
        plugin: &'static str,
        owner: WorkOwner,
        work: Work,
        place: OffloadPlace,
    ) -> Result<oneshot::Receiver<OffloadResult>, QueueFull> {
        self.pool_of(plugin).ok_or(QueueFull)?.submit(plugin, owner, work, place)
    }

    fn pool_of(&self, plugin: &'static str) -> Option<&Pool> {
        let mut last = None;
        for pool in &self.pools {
            let pool = pool.get_or_init(|| Pool::new(plugin));
            last = Some(pool);
            if pool.plugin == plugin {
                break;
            }
        }
        last
    }
}

impl Pool {
    fn new(plugin: &'static str) -> Pool {
        Pool { plugin, queue: begin(), places: Arc::new(Semaphore::new(QUEUE_MAX)) }
    }

    fn submit(
        &self,
        plugin: &'static str,
        owner: WorkOwner,
        work: Work,
        place: OffloadPlace,
    ) -> Result<oneshot::Receiver<OffloadResult>, QueueFull> {
        let queue = self.queue.as_ref().ok_or(QueueFull)?;
        let (done, receiver) = oneshot::channel();
        // A job was taken out of the queue before its place was returned: there is room.
        queue.try_send(Job { plugin, work, owner, done, place }).map_err(|_| QueueFull)?;
        Ok(receiver)
    }
}

/// Starts the threads of a plugin. They end when the last sender of work is gone.
fn begin() -> Option<Sender<Job>> {
    let (sender, receiver) = bounded(QUEUE_MAX);
    let (next, taken) = bounded(0);
    let start = |name: String, work: Box<dyn FnOnce() + Send>| {
        let started = std::thread::Builder::new().name(name).spawn(work);
        started.inspect_err(|error| tracing::error!(%error, "a thread for the work of plugins cannot be started")).ok()
    };
    start("plugin-turns".to_owned(), Box::new(move || dispatch(&receiver, &next)))?;
    for number in 0..THREADS {
        let taken = taken.clone();
        start(format!("plugin-work-{number}"), Box::new(move || serve(&taken)))?;
    }
    Some(sender)
}

/// Jobs by whose turn it is, the next first. Never more than [`QUEUE_MAX`] jobs, since each has a place.
#[derive(Default)]
struct Turns(VecDeque<ClientTurn>);

/// Jobs of one client, by route, the next first.
struct ClientTurn {
    client: IpAddr,
    routes: VecDeque<(u64, VecDeque<Job>)>,
}

impl Turns {
    fn add(&mut self, job: Job) {
        let WorkOwner { client, route } = job.owner;
        let known = self.0.iter().position(|turn| turn.client == client);
        let at = known.unwrap_or_else(|| {
            self.0.push_back(ClientTurn { client, routes: VecDeque::new() });
            self.0.len() - 1
        });
        let routes = &mut self.0[at].routes;
        // Places of requests that were given up are for others.
        routes.retain_mut(|(_, jobs)| {
            jobs.retain(|job| !job.done.is_closed());
            !jobs.is_empty()
        });
        match routes.iter_mut().find(|(of, _)| *of == route) {
            Some((_, jobs)) => jobs.push_back(job),
            None => routes.push_back((route, VecDeque::from([job]))),
        }
    }

    /// The job whose turn it is.
    fn take(&mut self) -> Option<Job> {
        let mut turn = self.0.pop_front()?;
        let (route, mut jobs) = turn.routes.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            turn.routes.push_back((route, jobs));
        }
        if !turn.routes.is_empty() {
            self.0.push_back(turn);
        }
        job
    }
}

/// Gives jobs to the threads, in turns, until no more can come.
fn dispatch(jobs: &Receiver<Job>, next: &Sender<Job>) {
    let mut turns = Turns::default();
    loop {
        // All that has come takes part.
        jobs.try_iter().for_each(|job| turns.add(job));
        let come = match turns.0.is_empty() {
            true => jobs.recv(),
            false => select! {
                recv(jobs) -> come => come,
                send(next, turns.take().expect("there is one")) -> taken => match taken {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            },
        };
        match come {
            Ok(job) => turns.add(job),
            Err(_) => break,
        }
    }
    while let Some(job) = turns.take() {
        if next.send(job).is_err() {
            return;
        }
    }
}

fn serve(jobs: &Receiver<Job>) {
    let _profiled = Registration::of_current();
    // For this thread only. If it is refused, the work is still done.
    let _ = rustix::process::setpriority_process(None, NICE);
    for Job { plugin, work, owner: _, done, place: OffloadPlace(place) } in jobs {
        drop(place);
        if !done.is_closed() {
            let began = thread_cpu_time();
            let output = call_guarded(|| work_on(WorkKind::Plugin, plugin, work));
            let cpu = thread_cpu_time().saturating_sub(began);
            // A caller that has stopped waiting does not need it.
            let _ = done.send(output.map(|output| FinishedWork { output, cpu }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ANYBODY: WorkOwner = WorkOwner { client: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), route: 0 };

    fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Box<dyn FnOnce() -> Output + Send> {
        Box::new(move || Box::new(work()) as Output)
    }

    fn value(done: oneshot::Receiver<OffloadResult>) -> Result<u32, PluginPanic> {
        done.blocking_recv().unwrap().map(|worked| *worked.output.downcast().unwrap())
    }

    #[test]
    fn work_is_done_and_a_panic_is_an_error() {
        let offloading = OffloadPools::default();
        let done: Vec<_> =
            (0..100_u32).map(|n| offloading.submit("a", ANYBODY, work(move || 2 * n)).unwrap()).collect();
        let panicked = offloading.submit("a", ANYBODY, work(|| -> u32 { panic!("a secret") })).unwrap();
        for (n, done) in (0..).zip(done) {
            assert_eq!(value(done), Ok(2 * n));
        }
        assert_eq!(value(panicked), Err(PluginPanic));
        assert_eq!(value(offloading.submit("a", ANYBODY, work(|| 7_u32)).unwrap()), Ok(7));
    }

    #[test]
    fn the_queue_has_a_bound_and_what_nobody_waits_for_is_not_begun() {
        let (offloading, begun) = (OffloadPools::default(), Arc::new(AtomicUsize::new(0)));
        let (hold, held) = bounded::<()>(0);
        let busy: Vec<_> = (0..THREADS)
            .map(|_| {
                let (held, begun) = (held.clone(), begun.clone());
                let work = work(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    held.recv().is_ok()
                });
                offloading.submit("a", ANYBODY, work).unwrap()
            })
            .collect();
        while begun.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        let counted = || {
            let begun = begun.clone();
            offloading.submit("a", ANYBODY, work(move || begun.fetch_add(1, Ordering::Relaxed)))
        };
        let waiting: Vec<_> = (0..QUEUE_MAX).map(|_| counted().unwrap()).collect();
        assert_eq!(counted().err(), Some(QueueFull));
        // Another plugin has threads of its own.
        assert_eq!(value(offloading.submit("b", ANYBODY, work(|| 7_u32)).unwrap()), Ok(7));
        drop(waiting);
        drop(hold);
        busy.into_iter().for_each(|done| assert!(done.blocking_recv().unwrap().is_ok()));
        let last = loop {
            match counted() {
                Ok(last) => break last,
                Err(QueueFull) => std::thread::yield_now(),
            }
        };
        assert!(last.blocking_recv().unwrap().is_ok());
        assert_eq!(begun.load(Ordering::Relaxed), THREADS + 1);
    }

    /// Work of one client that came first does not keep another's waiting until all of it is done.
    #[test]
    fn clients_have_turns() {
        let (offloading, order) = (OffloadPools::default(), Arc::new(AtomicUsize::new(0)));
        let begun = Arc::new(AtomicUsize::new(0));
        let (hold, held) = bounded::<()>(0);
        let busy: Vec<_> = (0..THREADS)
            .map(|_| {
                let (held, begun) = (held.clone(), begun.clone());
                let work = work(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    held.recv().is_ok()
                });
                offloading.submit("a", ANYBODY, work).unwrap()
            })
            .collect();
        while begun.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        let position = || {
            let order = order.clone();
            work(move || order.fetch_add(1, Ordering::Relaxed) as u32)
        };
        let (first, second) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let much: Vec<_> =
            (0..100).map(|_| offloading.submit("a", WorkOwner::of("r", first), position()).unwrap()).collect();
        let little = offloading.submit("a", WorkOwner::of("r", second), position()).unwrap();
        let elsewhere = offloading.submit("a", WorkOwner::of("s", first), position()).unwrap();
        let other_routes: Vec<_> = (0..50)
            .map(|route| offloading.submit("a", WorkOwner::of(&route.to_string(), first), position()).unwrap())
            .collect();
        drop(hold);
        // The dispatcher holds one job in its hand for each thread, and two threads may end in another order.
        let soon = 2 * THREADS as u32 + 4;
        // It waits for one piece of the first client's work, not for one of each of its routes; these come next.
        assert!(value(little).unwrap() < soon);
        assert!(value(elsewhere).unwrap() < soon);
        assert!(other_routes.into_iter().map(value).all(|done| done.is_ok()));
        assert!(much.into_iter().map(value).all(|done| done.is_ok()));
        drop(busy);
    }

    #[test]
    fn work_that_was_given_up_leaves_its_place() {
        let offloading = OffloadPools::default();
        let (hold, held) = bounded::<()>(0);
        let begun = Arc::new(AtomicUsize::new(0));
        let busy: Vec<_> = (0..THREADS)
            .map(|_| {
                let (held, begun) = (held.clone(), begun.clone());
                let work = work(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    held.recv().is_ok()
                });
                offloading.submit("a", ANYBODY, work).unwrap()
            })
            .collect();
        while begun.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        // Many times as many as there are places, on one route and on many; one that is full is tried again when the dispatcher has
        // looked.
        for number in 0..8 * QUEUE_MAX {
            let route = if number < 4 * QUEUE_MAX { 0 } else { number as u64 % 50 };
            let client = WorkOwner { route, ..WorkOwner::of("r", IpAddr::from([192, 0, 2, 1])) };
            while offloading.submit("a", client, work(|| 0_u32)).is_err() {
                std::thread::yield_now();
            }
        }
        drop(hold);
        assert!(busy.into_iter().all(|done| done.blocking_recv().unwrap().is_ok()));
    }

    #[test]
    fn plugins_beyond_the_bound_share_threads() {
        let offloading = OffloadPools::default();
        let names: Vec<&'static str> = (0..PLUGINS_MAX + 3).map(|n| &*format!("p{n}").leak()).collect();
        for (n, name) in (0..).zip(&names) {
            assert_eq!(value(offloading.submit(name, ANYBODY, work(move || n)).unwrap()), Ok(n));
        }
        assert!(offloading.pools.iter().zip(&names).all(|(pool, name)| pool.get().unwrap().plugin == *name));
    }

    #[test]
    fn what_work_takes_is_reported() {
        let offloading = OffloadPools::default();
        let long = Duration::from_millis(30);
        let busy = move || {
            let until = thread_cpu_time() + long;
            while thread_cpu_time() < until {}
            0_u32
        };
        let worked = offloading.submit("a", ANYBODY, work(busy)).unwrap();
        assert!(worked.blocking_recv().unwrap().is_ok_and(|worked| worked.cpu >= long));
    }
}
