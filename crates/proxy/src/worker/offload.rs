//! The threads that do what would hold a worker up: few, of low priority, with a queue that has a bound.
//!
//! They are begun with the first work there is. All workers share them, so that plugins take no more than so many cores,
//! however many workers there are.

use super::plugins::{Panicked, guarded};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::OnceLock;
use stillgate_plugin::QueueFull;
use stillgate_plugin::flow::{Output, Work};
use stillgate_profiler::threads::Registration;
use tokio::sync::oneshot;

/// Threads that work for plugins.
const THREADS: usize = 2;
/// Work that may wait for one of them.
const QUEUE_MAX: usize = 256;
/// Their niceness, which is that of the control thread: less than a worker's.
const NICE: i32 = 10;

/// What comes of work.
pub(crate) type Done = Result<Output, Panicked>;

/// The threads, as workers give them work.
#[derive(Default)]
pub(crate) struct Offloading {
    /// `None`: they could not be begun.
    queue: OnceLock<Option<Sender<Job>>>,
}

struct Job {
    work: Work,
    done: oneshot::Sender<Done>,
}

impl Offloading {
    /// Has work done. Dropping the receiver lets go of work that has not begun.
    pub(crate) fn submit(&self, work: Work) -> Result<oneshot::Receiver<Done>, QueueFull> {
        self.submit_or_return(work).map_err(|_| QueueFull)
    }

    /// The same; where as much waits as may, the work comes back.
    pub(crate) fn submit_or_return(&self, work: Work) -> Result<oneshot::Receiver<Done>, Work> {
        let Some(queue) = self.queue.get_or_init(begin) else { return Err(work) };
        let (done, receiver) = oneshot::channel();
        match queue.try_send(Job { work, done }) {
            Ok(()) => Ok(receiver),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => Err(job.work),
        }
    }
}

/// Begins the threads. They end when there is nobody any more who could give them work.
fn begin() -> Option<Sender<Job>> {
    let (sender, receiver) = bounded(QUEUE_MAX);
    for number in 0..THREADS {
        let receiver = receiver.clone();
        let thread = std::thread::Builder::new().name(format!("plugin-work-{number}"));
        if let Err(error) = thread.spawn(move || serve(&receiver)) {
            tracing::error!(%error, "a thread for the work of plugins cannot be started");
            return None;
        }
    }
    Some(sender)
}

fn serve(jobs: &Receiver<Job>) {
    let _profiled = Registration::of_current();
    // Of this thread only. Where it is refused the work is done all the same.
    let _ = rustix::process::setpriority_process(None, NICE);
    for Job { work, done } in jobs {
        if !done.is_closed() {
            // Who does not wait any more has no use for it.
            let _ = done.send(guarded(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Box<dyn FnOnce() -> Output + Send> {
        Box::new(move || Box::new(work()) as Output)
    }

    fn value(done: oneshot::Receiver<Done>) -> Result<u32, Panicked> {
        done.blocking_recv().unwrap().map(|output| *output.downcast().unwrap())
    }

    #[test]
    fn work_is_done_and_a_panic_is_an_error() {
        let offloading = Offloading::default();
        let done: Vec<_> = (0..100_u32).map(|n| offloading.submit(work(move || 2 * n)).unwrap()).collect();
        let panicked = offloading.submit(work(|| -> u32 { panic!("a secret") })).unwrap();
        for (n, done) in (0..).zip(done) {
            assert_eq!(value(done), Ok(2 * n));
        }
        assert_eq!(value(panicked), Err(Panicked));
        assert_eq!(value(offloading.submit(work(|| 7_u32)).unwrap()), Ok(7));
    }

    #[test]
    fn the_queue_has_a_bound_and_what_nobody_waits_for_is_not_begun() {
        let (offloading, begun) = (Offloading::default(), Arc::new(AtomicUsize::new(0)));
        let (hold, held) = bounded::<()>(0);
        let busy: Vec<_> = (0..THREADS)
            .map(|_| {
                let (held, begun) = (held.clone(), begun.clone());
                let work = work(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    held.recv().is_ok()
                });
                offloading.submit(work).unwrap()
            })
            .collect();
        while begun.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        let counted = || {
            let begun = begun.clone();
            offloading.submit(work(move || begun.fetch_add(1, Ordering::Relaxed)))
        };
        let waiting: Vec<_> = (0..QUEUE_MAX).map(|_| counted().unwrap()).collect();
        assert_eq!(counted().err(), Some(QueueFull));
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
}
