//! Runs a reload's work where it takes no core from a worker.
//!
//! A niced thread still keeps a core until its time slice is over, milliseconds in which a worker waits; one of the idle
//! policy gives it up at once. But on a machine whose cores are all busy an idle thread gets a few thousandths of one: so
//! only short work runs like that, and what is long is merely niced.

use std::thread;
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

/// A configuration up to this size is read in some tens of milliseconds.
pub(crate) const SHORT_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// A configuration up to this many routes is compiled in some tens of milliseconds.
pub(crate) const SHORT_ROUTES_MAX: usize = 20_000;

/// Does `work` on a thread of its own and waits for it; of the idle policy where it is `short`.
pub(crate) fn run<T: Send>(short: bool, work: impl FnOnce() -> T + Send) -> T {
    if !short {
        return work();
    }
    let mut work = Some(work);
    let mut take = || work.take().expect("it is taken once, by the thread or where there is none");
    let ran = thread::scope(|scope| {
        let thread = thread::Builder::new().name("control-idle".to_owned());
        let idle = thread.spawn_scoped(scope, || {
            let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
            // Where it is refused the thread stays niced like its parent.
            let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
            take()()
        });
        idle.ok().map(thread::ScopedJoinHandle::join)
    });
    match ran {
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => take()(),
    }
}
