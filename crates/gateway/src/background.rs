//! Runs a reload's work where it takes no core from a worker.
//!
//! A niced thread still keeps a core until its time slice is over, milliseconds in which a worker waits; one of the idle
//! policy gives it up at once. But on a machine whose cores are all busy an idle thread gets a few thousandths of one. So
//! work begins idle, and where it is not done after [`PATIENCE`] it goes on merely niced. Not every process may leave the
//! idle policy again (it takes `CAP_SYS_NICE` or a limit on niceness that allows it); where it may not, only what is known to
//! be short begins idle.

use crate::run::CONTROL_NICE;
use std::sync::LazyLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadId, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};

/// A text up to this size is read in some tens of milliseconds.
pub(crate) const SHORT_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// This many new or changed routes are compiled in some tens of milliseconds.
pub(crate) const SHORT_ROUTES_MAX: usize = 20_000;

/// What idle work gets before it is taken for starved.
const PATIENCE: Duration = Duration::from_millis(200);

/// Of the crate's scale of 100, what it makes [`CONTROL_NICE`]; a test checks that.
const CONTROL_PRIORITY: u8 = 22;

/// Does `work` on a thread of its own and waits for it. `short`: it takes some tens of milliseconds at most.
pub(crate) fn run<T: Send>(short: bool, work: impl FnOnce() -> T + Send) -> T {
    static CAN_RETURN: LazyLock<bool> = LazyLock::new(|| {
        let tried = thread::Builder::new().name("control-idle".to_owned()).spawn(|| {
            let thread = thread_native_id();
            set_policy(thread, NormalThreadSchedulePolicy::Idle)
                && set_policy(thread, NormalThreadSchedulePolicy::Other)
        });
        tried.is_ok_and(|thread| thread.join().unwrap_or(false))
    });
    if !short && !*CAN_RETURN {
        return work();
    }
    let mut work = Some(work);
    let mut take = || work.take().expect("it is taken once, by the thread or where there is none");
    let ran = thread::scope(|scope| {
        let (begin, begun) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::sync_channel(1);
        let take = &mut take;
        let idle = thread::Builder::new().name("control-idle".to_owned()).spawn_scoped(scope, move || {
            let thread = thread_native_id();
            // Where it is refused the thread stays niced like its parent.
            set_policy(thread, NormalThreadSchedulePolicy::Idle);
            // Whoever waits is told; should it have gone, nobody needs to be.
            let _ = begin.send(thread);
            let result = take()();
            let _ = end.send(());
            result
        });
        let idle = idle.ok()?;
        if let Ok(thread) = begun.recv()
            && ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout)
            && *CAN_RETURN
        {
            set_policy(thread, NormalThreadSchedulePolicy::Other);
        }
        Some(idle.join())
    });
    match ran {
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => take()(),
    }
}

/// Gives a thread a policy; false where that is refused. The calling thread's niceness becomes the control thread's, which it
/// should be already.
fn set_policy(thread: ThreadId, policy: NormalThreadSchedulePolicy) -> bool {
    let priority = match policy {
        // Niceness has no meaning in it, and the crate knows none; what it sets instead is put right below.
        NormalThreadSchedulePolicy::Idle => ThreadPriority::Min,
        _ => ThreadPriorityValue::try_from(CONTROL_PRIORITY).map_or(ThreadPriority::Min, ThreadPriority::Crossplatform),
    };
    let set = set_thread_priority_and_policy(thread, priority, ThreadSchedulePolicy::Normal(policy));
    // The crate changes the niceness after the policy, to a lower one for the idle policy, which may be refused: that is
    // no failure.
    let _ = rustix::process::setpriority_process(None, CONTROL_NICE);
    set.is_ok() || policy == NormalThreadSchedulePolicy::Idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use thread_priority::unix::thread_schedule_policy;

    #[test]
    fn the_work_is_done_whatever_its_length() {
        for short in [true, false] {
            assert_eq!(run(short, || 7), 7);
        }
    }

    #[test]
    fn what_takes_long_does_not_stay_idle() {
        let policies = run(true, || {
            let first = thread_schedule_policy().unwrap();
            let began = Instant::now();
            let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
            // A process that may not leave the policy stays in it.
            while thread_schedule_policy().unwrap() == idle && began.elapsed() < 10 * PATIENCE {
                thread::yield_now();
            }
            (first, thread_schedule_policy().unwrap(), rustix::process::getpriority_process(None).unwrap())
        });
        let (idle, other) = (NormalThreadSchedulePolicy::Idle, NormalThreadSchedulePolicy::Other);
        assert_eq!(policies.0, ThreadSchedulePolicy::Normal(idle));
        assert!([idle, other].map(ThreadSchedulePolicy::Normal).contains(&policies.1));
        assert_eq!(policies.2, CONTROL_NICE);
    }
}
