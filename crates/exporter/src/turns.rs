//! Which thread runs the exporter: one that takes no core from anybody, or, where it starves, one that is merely niced.
//!
//! A thread of the idle policy gives its core up at once when a worker wakes; a niced one keeps it until its time slice
//! is over, milliseconds in which a request waits. But on a machine whose cores are all busy the idle one gets some 0.3%
//! of one, and a scrape of a million series would outlast Prometheus' timeout of 10 s. So everything runs on an idle
//! thread until that has waited half a second for a core; then a niced one takes over for two seconds, with some 10% of a
//! core. Queues are longer than a time slice on such a machine in any case.
//!
//! There are two threads because one cannot change back: leaving the idle policy needs a privilege (sched(7)) that a
//! gateway does not have. They never run at the same time.

use crate::source::Source;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tracing::debug;

/// Of the thread that runs where the idle one starves: a tenth of the weight of a worker.
const NICE: i32 = 10;

/// An idle thread starves when it has waited for a core so long within [`WINDOW`].
const WAITED_MAX: Duration = Duration::from_millis(500);
/// Waiting that is spread over more time than this is the idle thread's lot.
const WINDOW: Duration = Duration::from_secs(5);
/// How often the kernel is asked, at most.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the niced thread runs.
const TURN: Duration = Duration::from_secs(2);

/// Runs the runtime's tasks until `ended` says so or is dropped.
pub(crate) fn run(runtime: &Runtime, source: &Source, ended: &watch::Receiver<bool>) {
    // It is refused only where the process is niced more than that already.
    let _ = rustix::process::setpriority_process(None, NICE);
    let (starve, starved) = sync_channel(1);
    let (hand_back, handed_back) = sync_channel(1);
    thread::scope(|scope| {
        let idle = thread::Builder::new().name("exporter-idle".to_owned());
        // Where there is no thread to be had, `starve` is dropped.
        let spawned = idle.spawn_scoped(scope, move || run_idle(runtime, source, ended, &starve, &handed_back));
        match spawned {
            Ok(_) => run_niced(runtime, ended, &starved, &hand_back),
            Err(error) => {
                debug!(%error, "no idle thread");
                runtime.block_on(end_of(ended));
            }
        }
    });
}

/// For how long the niced thread is to run.
enum Turn {
    Short,
    ForGood,
}

fn run_idle(
    runtime: &Runtime,
    source: &Source,
    ended: &watch::Receiver<bool>,
    starve: &SyncSender<Turn>,
    handed_back: &Receiver<()>,
) {
    let watched = become_idle().and_then(|()| Starvation::of_this_thread());
    let watched = watched.and_then(|starvation| source.watch(starvation).map_err(io::Error::other));
    if let Err(error) = watched {
        debug!(%error, "the exporter does not run as an idle thread");
        // The other thread is there as long as this one.
        let _ = starve.send(Turn::ForGood);
        return;
    }
    loop {
        let has_ended = runtime.block_on(async {
            tokio::select! {
                () = end_of(ended) => true,
                () = source.starved.notified() => false,
            }
        });
        if has_ended || starve.send(Turn::Short).is_err() || handed_back.recv().is_err() {
            return;
        }
    }
}

fn run_niced(runtime: &Runtime, ended: &watch::Receiver<bool>, starved: &Receiver<Turn>, hand_back: &SyncSender<()>) {
    while let Ok(turn) = starved.recv() {
        match turn {
            Turn::ForGood => return runtime.block_on(end_of(ended)),
            Turn::Short => {
                debug!("the exporter's idle thread hardly gets a core; a niced one goes on for a while");
                // Whether it has ended, the other thread sees as well.
                let _ = runtime.block_on(async { tokio::time::timeout(TURN, end_of(ended)).await });
            }
        }
        if hand_back.send(()).is_err() {
            return;
        }
    }
}

fn end_of(ended: &watch::Receiver<bool>) -> impl Future<Output = ()> + use<> {
    let mut ended = ended.clone();
    async move {
        // An error is an end too: nobody is left who could say so.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

fn become_idle() -> io::Result<()> {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).map_err(io::Error::other)
}

/// How long a thread has waited for a core, as the kernel counts it.
#[derive(Debug)]
pub(crate) struct Starvation {
    /// The thread's `schedstat`: nanoseconds run, nanoseconds waited in a run queue, time slices.
    file: File,
    waited: Waited,
}

impl Starvation {
    fn of_this_thread() -> io::Result<Starvation> {
        let file = File::open("/proc/thread-self/schedstat")?;
        let waited = Waited::new(read_waited(&file)?, Instant::now());
        Ok(Starvation { file, waited })
    }

    /// Whether the thread starves; once for each time that it does. Any thread may ask.
    pub(crate) fn is_found(&mut self, now: Instant) -> bool {
        if now - self.waited.looked < LOOK_EVERY {
            return false;
        }
        // What cannot be read once is read the next time.
        read_waited(&self.file).is_ok_and(|waited| self.waited.is_too_long(waited, now))
    }
}

fn read_waited(file: &File) -> io::Result<Duration> {
    let mut bytes = [0; 80];
    let count = file.read_at(&mut bytes, 0)?;
    let text = std::str::from_utf8(&bytes[..count]).unwrap_or_default();
    let waited = text.split_ascii_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    waited.map(Duration::from_nanos).ok_or_else(|| io::Error::other("schedstat without the time waited"))
}

/// The waiting within one window.
#[derive(Debug)]
struct Waited {
    looked: Instant,
    window: Instant,
    before: Duration,
}

impl Waited {
    fn new(waited: Duration, now: Instant) -> Waited {
        Waited { looked: now, window: now, before: waited }
    }

    fn is_too_long(&mut self, waited: Duration, now: Instant) -> bool {
        self.looked = now;
        let is_too_long = waited.saturating_sub(self.before) >= WAITED_MAX;
        if is_too_long || now - self.window >= WINDOW {
            *self = Waited::new(waited, now);
        }
        is_too_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stillgate_metrics::{Collector, CollectorOptions};
    use stillgate_testkit::eventually;

    #[test]
    fn the_threads_take_turns() {
        let source = Arc::new(Source::new(Collector::open("/none".as_ref(), CollectorOptions::default()), "/"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (end, ended) = watch::channel(false);
        let (tell, told) = watch::channel(None);
        runtime.spawn(async move {
            loop {
                tell.send_replace(thread::current().name().map(str::to_owned));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let its_source = source.clone();
        let niced = thread::Builder::new().name("niced".to_owned());
        let niced = niced.spawn(move || run(&runtime, &its_source, &ended)).unwrap();
        let is_run_by = |name: &str| told.borrow().as_deref() == Some(name);
        eventually("the idle thread to run it", || is_run_by("exporter-idle"));
        source.starved.notify_one();
        eventually("the niced thread to take over", || is_run_by("niced"));
        eventually("the idle thread to run it again", || is_run_by("exporter-idle"));
        end.send_replace(true);
        niced.join().unwrap();
    }

    #[test]
    fn waiting_counts_within_a_window() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut waited = Waited::new(ms(100), start);
        assert!(!waited.is_too_long(ms(599), start + ms(700)));
        assert!(waited.is_too_long(ms(600), start + ms(701)));
        assert!(!waited.is_too_long(ms(600), start + ms(702)), "told once");
        assert!(!waited.is_too_long(ms(1099), start + ms(5701)), "and a new window");
        assert!(!waited.is_too_long(ms(1598), start + ms(9000)));
        assert!(waited.is_too_long(ms(1599), start + ms(9001)));
    }

    #[test]
    fn the_kernel_counts_waiting() {
        read_waited(&File::open("/proc/thread-self/schedstat").unwrap()).unwrap();
    }
}
