//! Chooses the thread that runs the exporter: a niced one while there is little to do, an idle-priority one for work,
//! and again the niced one if that starves.
//!
//! A thread of the idle policy yields its core at once when a worker wakes; a niced one keeps it until its time slice
//! is over, milliseconds in which a request waits. But on a machine whose cores are all busy the idle one gets a few
//! milliseconds in some seconds, and a scrape of a million series would exceed Prometheus' timeout of 10 s. So work is
//! offered to the idle thread; if it does not take it within some milliseconds, no core is free, and the niced one does
//! it, with some 5 to 10% of a core. Requests queue for longer than a time slice on such a machine in any case.
//!
//! ```text
//!  niced   rests in epoll ── work ─▶ offers ─┬─ taken in time ─▶ waits ────────────▶ rests …
//!                                            └─ not taken ─▶ works itself, tries again a second later
//!  idle                                        takes ─▶ works for one stint ─▶ gives back
//! ```
//!
//! Two threads are needed because one cannot change back: leaving the idle policy needs a privilege (sched(7)) that a
//! gateway does not have. They never run at the same time. The niced one waits, since only a thread that has a core can
//! give tasks away.

use crate::source::ExpositionSource;
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::threads::Registration;
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tracing::debug;

/// Nice value of the niced thread: a tenth of the weight of a worker.
const NICE: i32 = 10;

/// The idle thread gets a core within this time, or none is free.
const TAKE_TIMEOUT: Duration = Duration::from_millis(5);
/// After a failed offer the idle thread gets no other for so long.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long it runs the tasks before it gives them back, so that it does not rest on them when the cores become busy.
const STINT: Duration = Duration::from_millis(100);

/// A thread that has not run for so much more of a stint was waiting for a core.
const WAITED_MAX: Duration = Duration::from_millis(200);

/// Runs the runtime's tasks until `ended` says so or is dropped.
pub(crate) fn run(runtime: &Runtime, source: &ExpositionSource, ended: &watch::Receiver<bool>) {
    take_turns(runtime, source, ended, TAKE_TIMEOUT);
}

fn take_turns(runtime: &Runtime, source: &ExpositionSource, ended: &watch::Receiver<bool>, take_timeout: Duration) {
    // This fails only if the process has a higher nice value already.
    let _ = rustix::process::setpriority_process(None, NICE);
    let is_offered = AtomicBool::new(false);
    let (offer, offers) = sync_channel(1);
    let (give_back, given_back) = sync_channel(1);
    thread::scope(|scope| {
        let idle = thread::Builder::new().name("exporter-idle".to_owned());
        let its_turns = IdleTurns { is_offered: &is_offered, offers, give_back };
        let spawned = idle.spawn_scoped(scope, move || its_turns.run(runtime, ended));
        if let Err(error) = spawned {
            // The receiver is dropped with the thread that failed to start, so no offer is ever taken.
            debug!(%error, "exporter: no idle thread");
        }
        NicedTurns { is_offered: &is_offered, offer, given_back, take_timeout }.run(runtime, source, ended);
    });
}

/// The niced thread's ends.
struct NicedTurns<'a> {
    /// The thread that sets it to false runs the tasks.
    is_offered: &'a AtomicBool,
    offer: SyncSender<()>,
    given_back: Receiver<TurnEnd>,
    take_timeout: Duration,
}

/// The idle thread's ends.
struct IdleTurns<'a> {
    is_offered: &'a AtomicBool,
    /// Wakes the thread; it does not grant a turn.
    offers: Receiver<()>,
    give_back: SyncSender<TurnEnd>,
}

/// The reason why the idle thread gives back.
enum TurnEnd {
    Stint,
    Starved,
}

impl NicedTurns<'_> {
    fn run(&self, runtime: &Runtime, source: &ExpositionSource, ended: &watch::Receiver<bool>) {
        let mut try_at = Instant::now();
        loop {
            let has_ended = runtime.block_on(async {
                tokio::select! {
                    () = end_of(ended) => true,
                    () = source.work.notified() => false,
                }
            });
            if has_ended {
                // Ends the other thread too: its channels are dropped.
                return;
            }
            if Instant::now() >= try_at && !self.offer() {
                try_at = Instant::now() + TRY_AGAIN;
            }
        }
    }

    /// Returns false if the idle thread had no core.
    fn offer(&self) -> bool {
        self.is_offered.store(true, Ordering::Release);
        match self.offer.try_send(()) {
            // Full: the last offer has not woken it yet.
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => return false,
        }
        let end = match self.given_back.recv_timeout(self.take_timeout) {
            Ok(end) => Ok(end),
            Err(RecvTimeoutError::Timeout) if self.is_offered.swap(false, Ordering::AcqRel) => return false,
            // The offer was taken, or the idle thread has ended.
            Err(_) => self.given_back.recv(),
        };
        matches!(end, Ok(TurnEnd::Stint))
    }
}

impl IdleTurns<'_> {
    fn run(&self, runtime: &Runtime, ended: &watch::Receiver<bool>) {
        let _profiled = Registration::of_current();
        if let Err(error) = become_idle() {
            debug!(%error, "exporter: no thread of the idle policy, so a niced one does all");
            return;
        }
        while self.offers.recv().is_ok() {
            if !self.is_offered.swap(false, Ordering::AcqRel) {
                continue;
            }
            let (began, ran_before) = (Instant::now(), ran());
            runtime.block_on(async {
                tokio::select! {
                    () = end_of(ended) => {}
                    () = tokio::time::sleep(STINT) => {}
                }
            });
            // One long refresh may take longer than a stint; that does not count as starving.
            let waited = began.elapsed().saturating_sub(ran().saturating_sub(ran_before));
            let end = if waited > STINT + WAITED_MAX { TurnEnd::Starved } else { TurnEnd::Stint };
            if self.give_back.send(end).is_err() {
                return;
            }
        }
    }
}

fn end_of(ended: &watch::Receiver<bool>) -> impl Future<Output = ()> + use<> {
    let mut ended = ended.clone();
    async move {
        // An error is an end as well: the sender is gone.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// The CPU time of this thread since it began.
fn ran() -> Duration {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(ran.tv_sec.cast_unsigned(), ran.tv_nsec as u32)
}

fn become_idle() -> io::Result<()> {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ExpositionSite;
    use std::sync::Arc;
    use stillgate_metrics::{Collector, CollectorOptions};
    use stillgate_testkit::eventually_within;

    /// Reached by a failure only: an idle thread gets next to no CPU on a busy machine.
    const TEST_PATIENCE: Duration = Duration::from_secs(900);

    #[test]
    fn the_threads_take_turns() {
        let source = Arc::new(ExpositionSource::new(
            Collector::open("/none".as_ref(), CollectorOptions::default()),
            ExpositionSite::at("/"),
        ));
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
        let niced = niced.spawn(move || take_turns(&runtime, &its_source, &ended, TEST_PATIENCE)).unwrap();
        let is_run_by = |name: &str| told.borrow().as_deref() == Some(name);
        eventually_within(TEST_PATIENCE, "the niced thread to rest on it", || is_run_by("niced"));
        // Beside other tests it may wait for a core for some time, and for the next one.
        eventually_within(TEST_PATIENCE, "the idle thread to work", || {
            source.work.notify_one();
            is_run_by("exporter-idle")
        });
        eventually_within(TEST_PATIENCE, "the niced thread to rest on it again", || is_run_by("niced"));
        end.send_replace(true);
        niced.join().unwrap();
    }
}
