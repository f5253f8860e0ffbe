//! Runs a reload's work where it takes no core from a worker.
//!
//! A niced thread still keeps a core until its time slice is over, milliseconds in which a worker waits; one of the idle policy
//! gives it up at once. But on a machine whose cores are all busy an idle thread gets a few thousandths of one. So work begins
//! idle, and where it is not done after [`PATIENCE`], or sooner where a writer waits, it goes on merely niced. Not every process
//! may leave the idle policy again (it takes `CAP_SYS_NICE` or a limit on niceness that allows it); where it may not, all work is
//! niced: a worker may wait for a time slice then, but however busy the cores are, a reload comes to an end.

use std::sync::LazyLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use stillgate_profiler::threads::Registration;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadId, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};

/// The control thread's niceness: a reload must not take a core from a worker.
pub(crate) const CONTROL_NICE: i32 = 10;

/// Time for idle work before it counts as starved.
const PATIENCE: Duration = Duration::from_millis(200);

/// Time for idle work where a client waits: a write to a datastore is answered when its result is served.
const PATIENCE_OF_WRITERS: Duration = Duration::from_millis(5);

/// What waits for the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// No client waits.
    Nobody,
    /// A client that has written to a datastore.
    Writer,
}

/// Priority on the crate's scale of 100 that gives [`CONTROL_NICE`]; a test checks that.
const CONTROL_PRIORITY: u8 = 22;

/// Runs `work`, on a thread of its own where that may begin idle, and waits for it.
pub(crate) fn run<T: Send>(waits: Waits, work: impl FnOnce() -> T + Send) -> T {
    static CAN_RETURN: LazyLock<bool> = LazyLock::new(can_return);
    if !*CAN_RETURN {
        return work();
    }
    let mut work = Some(work);
    let mut take = || work.take().expect("it is taken once, by the thread or where there is none");
    let ran = thread::scope(|scope| {
        let (begin, begun) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::sync_channel(1);
        let take = &mut take;
        let (go, gone) = mpsc::sync_channel::<()>(1);
        let idle = thread::Builder::new().name("control-idle".to_owned()).spawn_scoped(scope, move || {
            // The send cannot fail: the receiver waits for this thread's end.
            let _ = begin.send(thread_native_id());
            let _ = gone.recv();
            let profiled = Registration::of_current();
            let result = take()();
            drop(profiled);
            let _ = end.send(());
            result
        });
        let idle = idle.ok()?;
        // The policy is set from here, where a core is available: an idle thread might not even get to report that it has begun.
        if let Ok(thread) = begun.recv() {
            set_policy(thread, NormalThreadSchedulePolicy::Idle);
            drop(go);
            let patience = match waits {
                Waits::Nobody => PATIENCE,
                Waits::Writer => PATIENCE_OF_WRITERS,
            };
            if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                set_policy(thread, NormalThreadSchedulePolicy::Other);
            }
        }
        Some(idle.join())
    });
    match ran {
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => take()(),
    }
}

/// Whether a thread may leave the idle policy again: tested with a thread that does nothing.
fn can_return() -> bool {
    thread::scope(|scope| {
        let (begin, begun) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let tried = thread::Builder::new().name("control-idle".to_owned()).spawn_scoped(scope, move || {
            // It cannot fail, as above.
            let _ = begin.send(thread_native_id());
            let _ = ended.recv();
        });
        let can = tried.is_ok()
            && begun.recv().is_ok_and(|thread| {
                set_policy(thread, NormalThreadSchedulePolicy::Idle)
                    && set_policy(thread, NormalThreadSchedulePolicy::Other)
            });
        drop(end);
        can
    })
}

/// Sets a thread's policy; false if that is refused. The calling thread's niceness becomes the control thread's, which it should be
/// already.
fn set_policy(thread: ThreadId, policy: NormalThreadSchedulePolicy) -> bool {
    let priority = match policy {
        // Niceness does not apply to the idle policy, and the crate has none for it; the value that it sets instead is replaced
        // below.
        NormalThreadSchedulePolicy::Idle => ThreadPriority::Min,
        _ => ThreadPriorityValue::try_from(CONTROL_PRIORITY).map_or(ThreadPriority::Min, ThreadPriority::Crossplatform),
    };
    let set = set_thread_priority_and_policy(thread, priority, ThreadSchedulePolicy::Normal(policy));
    // The crate changes the niceness after the policy, to a lower one for the idle policy. The system may refuse that, which is not
    // a failure.
    let _ = rustix::process::setpriority_process(None, CONTROL_NICE);
    set.is_ok() || policy == NormalThreadSchedulePolicy::Idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use thread_priority::unix::thread_schedule_policy;

    #[test]
    fn the_work_is_done() {
        assert_eq!(run(Waits::Nobody, || 7), 7);
    }

    #[test]
    fn nothing_stays_idle_for_long() {
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let policies = run(Waits::Nobody, || {
            let first = thread_schedule_policy().unwrap();
            let began = Instant::now();
            while thread_schedule_policy().unwrap() == idle && began.elapsed() < 1_500 * PATIENCE {
                thread::yield_now();
            }
            (first, thread_schedule_policy().unwrap())
        });
        let other = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
        // A process that may not leave the policy does not take it.
        assert!([idle, other].contains(&policies.0));
        assert_eq!(policies.1, other);
    }
}
