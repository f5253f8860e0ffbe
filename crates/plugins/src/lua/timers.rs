//! Timers: functions that run later, by `ngx.timer.at`. They do not belong to a request, and outlive the one that
//! started them.

use super::functions::SLEEP_MAX;
use super::hosts::level_of;
use super::http::{call_of, reply_of};
use super::redis::Links;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_lua::{
    CallReply, Context, HeaderChange, Host, MessageSide, NginxLevel, PausedRun, Program, RunOutcome, RunWait, resume,
    resume_with, run_timer, timer_number,
};
use stillgate_plugin_api::Io;

/// Most timers of a worker that wait or run.
const TIMERS_MAX: usize = 256;

const NO_REQUEST: &str = "there is no request in a timer; give it what it needs as arguments";

thread_local! {
    static PENDING: Cell<usize> = const { Cell::new(0) };
    /// A timer has run since the worker last looked for requests.
    static HAS_RUN: Cell<bool> = const { Cell::new(false) };
}

/// Time between two timers in which a worker looks for requests: each may run for 50 ms, and hundreds may be due at once.
const TURN: Duration = Duration::from_millis(1);

/// Waits until a timer may run.
async fn take_turn(io: &Rc<dyn Io>) {
    while HAS_RUN.replace(true) {
        io.sleep(TURN).await;
    }
    let own_io = io.clone();
    io.spawn(Box::pin(async move {
        own_io.sleep(TURN).await;
        HAS_RUN.set(false);
    }));
}

/// The right to be one of the timers of a worker.
struct TimerPermit;

impl TimerPermit {
    fn take() -> Option<TimerPermit> {
        let count = PENDING.get();
        (count < TIMERS_MAX).then(|| {
            PENDING.set(count + 1);
            TimerPermit
        })
    }
}

impl Drop for TimerPermit {
    fn drop(&mut self) {
        PENDING.set(PENDING.get() - 1);
    }
}

/// Timers that the functions of one run have scheduled, until it is over: only then can others run.
#[derive(Default)]
pub(super) struct ScheduledTimers(Vec<(u64, Duration, TimerPermit)>);

impl ScheduledTimers {
    /// Adds one; `None`: there are too many.
    pub(super) fn add(&mut self, delay: Duration) -> Option<u64> {
        let (permit, number) = (TimerPermit::take()?, timer_number());
        self.0.push((number, delay.min(SLEEP_MAX), permit));
        Some(number)
    }

    /// Starts waiting for their time.
    pub(super) fn spawn(self, plugin: &'static str, program: &Arc<Program>, io: &Rc<dyn Io>) {
        for (number, delay, permit) in self.0 {
            let (program, own_io) = (program.clone(), io.clone());
            io.spawn(Box::pin(async move {
                own_io.sleep(delay).await;
                take_turn(&own_io).await;
                run(plugin, &program, number, own_io).await;
                drop(permit);
            }));
        }
    }
}

/// Runs the function of a timer to its end. It has the limits of a run.
async fn run(plugin: &'static str, program: &Arc<Program>, number: u64, io: Rc<dyn Io>) {
    let (mut context, mut host) = (Context::default(), TimerHost { plugin, io, started: ScheduledTimers::default() });
    let mut outcome = run_timer(program, number, &mut host, &mut context);
    let links = Links::default();
    loop {
        std::mem::take(&mut host.started).spawn(plugin, program, &host.io);
        let (wait, paused) = match outcome {
            RunOutcome::Wait(wait, paused) => (wait, paused),
            RunOutcome::Failed(failure) => return host.io.fail(plugin, &failure.text),
            RunOutcome::Done(_) | RunOutcome::Answer { .. } => return,
        };
        outcome = wait_and_resume(wait, paused, &links, &mut host, &mut context).await;
    }
}

async fn wait_and_resume(
    wait: RunWait,
    paused: PausedRun,
    links: &Links,
    host: &mut TimerHost,
    context: &mut Context,
) -> RunOutcome {
    let reply = match wait {
        RunWait::Sleep(time) => {
            host.io.sleep(time.min(SLEEP_MAX)).await;
            take_turn(&host.io).await;
            return resume(paused, host, context);
        }
        RunWait::Call(call) => match call_of(*call) {
            Ok(call) => reply_of(host.io.call(call).await).map(CallReply::Http),
            Err(why) => Err(why),
        },
        RunWait::Link(call) => links.clone().perform(*call, host.io.clone(), None).await.map(CallReply::Link),
        RunWait::Work(_) => Err("ngx.run_worker_thread cannot be used in a timer".to_owned()),
        RunWait::Body => Err(NO_REQUEST.to_owned()),
    };
    take_turn(&host.io).await;
    resume_with(paused, reply, host, context)
}

struct TimerHost {
    plugin: &'static str,
    io: Rc<dyn Io>,
    started: ScheduledTimers,
}

impl Host for TimerHost {
    fn phase(&self) -> &'static str {
        "timer"
    }

    fn no_request_reason(&self) -> Option<&'static str> {
        Some(NO_REQUEST)
    }

    fn variable(&self, _: &str, _: &mut Vec<u8>) -> Result<bool, String> {
        Err(NO_REQUEST.to_owned())
    }

    fn set_variable(&mut self, _: &str, _: &[u8]) -> Result<bool, String> {
        Err(NO_REQUEST.to_owned())
    }

    fn field(&self, _: MessageSide, _: &[u8], _: &mut dyn FnMut(&[u8])) {}

    fn each_field(&self, _: MessageSide, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn change_field(&mut self, _: MessageSide, _: &[u8], _: HeaderChange<'_>) -> Result<(), String> {
        Err(NO_REQUEST.to_owned())
    }

    fn target(&self) -> &[u8] {
        b"/"
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn start_timer(&mut self, delay: Duration) -> Result<Option<u64>, String> {
        Ok(self.started.add(delay))
    }

    fn is_logged(&self, level: NginxLevel) -> bool {
        self.io.is_logged(level_of(level))
    }

    fn log(&self, level: NginxLevel, text: &str) {
        self.io.log(self.plugin, level_of(level), text);
    }
}
