//! Stress test: a storm of the signals of both samplers and of the watchdog, while functions run compiled and
//! interpreted, wait, fail, use up their memory and are stopped, and VMs come and go: all of them continue, and compute
//! correct results.
//!
//! `STILLGATE_STORM_SIGNALS` makes it longer: ten million take ten minutes. Use `--profile bench` for that: in debug
//! builds LuaJIT checks itself, and one signal in some millions meets a harmless error of its recorder, which counts a
//! value on its stack twice.

use crate::bridge::{NoRequest, WHILE_LOADING};
use crate::sampler::{self, LuaProfiling};
use crate::{CallKind, Context, FailureKind, Program, RunOutcome, RunWait, resume, run, watchdog};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::threads::{Registration, TrialInterrupter};

/// Fewest signals that are sent, unless the environment says how many.
const SIGNALS: u64 = 5_000;
/// Pause between two signals: a thread has to make progress, rather than do nothing but handle them.
const PAUSE: Duration = Duration::from_micros(15);
/// Time limit: for each signal far more than it takes, and some for the start.
const BOUND: Duration = Duration::from_secs(1200);
const BOUND_A_SIGNAL: Duration = Duration::from_millis(1);
/// Runs of a VM before its thread ends with it.
const RUNS_OF_A_VM: usize = 20;
/// Number of signals between two searches for new VMs.
const SIGNALS_A_LOOK: u64 = 1_000;
/// Samples are collected after so many signals, as at a profile's end.
const SIGNALS_A_PROFILE: u64 = 100_000;

const COMPILED: &str = "return function()
    local sum = 0
    for at = 1, 2000 do sum = sum + at % 7 * 0.5 end
    ngx.print(sum)
end";
const COMPILED_SAYS: &str = "3000";

const INTERPRETED: &str = "return function()
    local list, sum = {}, 0
    for at = 1, 60 do
      local made = function() return (at * 7919) % 61 end
      list[at] = made()
    end
    table.sort(list, function(a, b) return a > b end)
    for word in ('a1 b22 c333'):gmatch('%w+') do sum = sum + #word end
    ngx.print(list[1], ' ', list[60], ' ', sum, ' ', (ngx.re.gsub('a1b2', '[0-9]', 'x')))
end";
const INTERPRETED_SAYS: &str = "60 1 9 axbx";

const WAITS: &str = "return function()
    local sum = 0
    for at = 1, 8 do
      for inner = 1, 50 do sum = sum + inner end
      ngx.sleep(0)
    end
    ngx.print(sum)
end";
const WAITS_SAYS: &str = "10200";

const FAILS: [&str; 4] = [
    "return function() local s = ('x'):rep(1000) while true do s = s .. s end end",
    "return function() local function deep() return 1 + deep() end deep() end",
    "return function() local t = nil return t.x end",
    "return function() local t = {} for at = 1, 1e9 do t[at] = { at } end end",
];
const ENDLESS: &str = "return function() while true do pcall(function() while true do end end) end end";

fn signals() -> u64 {
    let text = std::env::var("STILLGATE_STORM_SIGNALS");
    text.map_or(SIGNALS, |text| text.parse().expect("STILLGATE_STORM_SIGNALS is a number"))
}

fn program(source: &str) -> Arc<Program> {
    Program::new("storm".to_owned(), vec![source.to_owned()], serde_json::json!({}), CallKind::Plugin)
}

/// Runs functions to their end; `None`: they were stopped, perhaps because of the time that handlers took.
fn ended(program: &Arc<Program>) -> Option<RunOutcome> {
    let mut host = WaitingHost(NoRequest { check_schema: None, why: WHILE_LOADING });
    let context = &mut Context::default();
    let mut outcome = run(program, &mut host, context);
    while let RunOutcome::Wait(RunWait::Sleep(_), paused) = outcome {
        outcome = resume(paused, &mut host, context);
    }
    match outcome {
        RunOutcome::Failed(failure) if failure.kind == FailureKind::Time => None,
        outcome => Some(outcome),
    }
}

fn says(program: &Arc<Program>, expected: &str) {
    match ended(program) {
        None => {}
        Some(RunOutcome::Answer { body: Some(body), .. }) => assert_eq!(String::from_utf8_lossy(&body), expected),
        Some(other) => panic!("{expected}: {other:?}"),
    }
}

fn fails(program: &Arc<Program>) {
    assert!(matches!(ended(program), None | Some(RunOutcome::Failed(_))));
}

/// A host that can wait and answer.
struct WaitingHost(NoRequest);

impl crate::Host for WaitingHost {
    fn phase(&self) -> &'static str {
        "access"
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        self.0.variable(name, out)
    }

    fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<bool, String> {
        self.0.set_variable(name, value)
    }

    fn field(&self, side: crate::MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        self.0.field(side, name, visit);
    }

    fn each_field(&self, side: crate::MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.each_field(side, visit);
    }

    fn change_field(
        &mut self,
        side: crate::MessageSide,
        name: &[u8],
        change: crate::HeaderChange<'_>,
    ) -> Result<(), String> {
        self.0.change_field(side, name, change)
    }

    fn target(&self) -> &[u8] {
        self.0.target()
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn can_answer(&self) -> bool {
        true
    }

    fn is_logged(&self, level: crate::NginxLevel) -> bool {
        self.0.is_logged(level)
    }

    fn log(&self, level: crate::NginxLevel, text: &str) {
        self.0.log(level, text);
    }

    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }
}

/// Makes all threads end when it is dropped.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread with its turns and its work. The thread is replaced after some turns.
struct StormWorker {
    now: Mutex<Option<TrialInterrupter>>,
    turns: AtomicU64,
}

impl StormWorker {
    const fn new() -> StormWorker {
        StormWorker { now: Mutex::new(None), turns: AtomicU64::new(0) }
    }

    fn work(&self, is_over: &AtomicBool, turns_max: usize, mut turn: impl FnMut(usize)) {
        let registered = Registration::new("storm", None).unwrap();
        *self.now.lock().unwrap() = Some(registered.interrupter());
        for at in 0..turns_max {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            turn(at);
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends one of the three signals. A thread that has just ended gets none.
    fn interrupt(&self, which: u64) {
        let now = self.now.lock().unwrap();
        let Some(interrupter) = &*now else { return };
        if which.is_multiple_of(3) {
            let _ = interrupter.interrupt();
            return;
        }
        let signal = if which % 3 == 1 { sampler::signal_number() } else { watchdog::signal_number() };
        // SAFETY: handlers for both are installed with the first VM and the first profile.
        let _ = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), interrupter.thread(), signal) };
    }
}

fn sampling() -> LuaProfiling {
    LuaProfiling::begin(250).unwrap()
}

/// Number of stacks in a profile.
fn collected(profile: LuaProfiling) -> u64 {
    profile.end().0.len() as u64
}

#[test]
#[expect(clippy::too_many_lines, reason = "five threads, each a few lines")]
fn a_storm_of_signals_harms_no_function() {
    let (signals, bound) = (signals(), BOUND + BOUND_A_SIGNAL.mul_f64(signals() as f64));
    // Installs the handlers.
    crate::check("return function() end").unwrap();
    let mut profile = Some(sampling());
    let is_over = AtomicBool::new(false);
    let workers: [StormWorker; 5] = [const { StormWorker::new() }; 5];
    let (mut sent, mut samples) = (0_u64, 0_u64);
    thread::scope(|scope| {
        // Also if the test fails: a scope waits for its threads.
        let ending = StopGuard(&is_over);
        let over = &is_over;
        let [compiled, interpreted, waiting, failing, passing] = &workers;
        scope.spawn(move || {
            let (loops, again) = (program(COMPILED), program(COMPILED));
            compiled.work(over, usize::MAX, |at| says(if at % 2 == 0 { &loops } else { &again }, COMPILED_SAYS));
        });
        scope.spawn(move || {
            let program = program(INTERPRETED);
            interpreted.work(over, usize::MAX, |_| says(&program, INTERPRETED_SAYS));
        });
        scope.spawn(move || {
            let program = program(WAITS);
            waiting.work(over, usize::MAX, |_| says(&program, WAITS_SAYS));
        });
        scope.spawn(move || {
            let (programs, endless, good) = (FAILS.map(program), program(ENDLESS), program(COMPILED));
            failing.work(over, usize::MAX, |at| {
                match at % 50 {
                    49 => assert!(ended(&endless).is_none(), "it has no end"),
                    at => fails(&programs[at % programs.len()]),
                }
                says(&good, COMPILED_SAYS);
            });
        });
        scope.spawn(move || {
            let programs = [(program(COMPILED), COMPILED_SAYS), (program(INTERPRETED), INTERPRETED_SAYS)];
            while !over.load(Ordering::Relaxed) {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        passing.work(over, RUNS_OF_A_VM, |at| {
                            let (program, expected) = &programs[at % 2];
                            says(program, expected);
                        });
                    });
                });
            }
        });
        let begun = Instant::now();
        // On a busy machine a thread may not have run when all signals are sent.
        let go_on = || workers.iter().all(|worker| worker.turns.load(Ordering::Relaxed) > 0);
        while (sent < signals || !go_on()) && begun.elapsed() < bound {
            for (worker, number) in workers.iter().zip(sent..) {
                worker.interrupt(number / workers.len() as u64);
                let asked = Instant::now();
                while asked.elapsed() < PAUSE {
                    std::hint::spin_loop();
                }
            }
            sent += workers.len() as u64;
            if let Some(profile) = &mut profile
                && sent.is_multiple_of(SIGNALS_A_LOOK)
            {
                profile.arm_new().unwrap();
            }
            if sent.is_multiple_of(SIGNALS_A_PROFILE) {
                samples += profile.take().map_or(0, collected);
                profile = Some(sampling());
            }
        }
        drop(ending);
    });
    samples += profile.take().map_or(0, collected);
    let turns = workers.each_ref().map(|worker| worker.turns.load(Ordering::Relaxed));
    println!("{sent} signals; turns: {turns:?}; {samples} stacks of functions");
    assert!(sent >= signals, "{sent} signals");
    assert!(
        samples > 0 && turns.iter().all(|turns| *turns > 0),
        "every thread has gone on: {turns:?}, {samples} stacks"
    );
}
