//! Profiles of a server under a closed loop, so that it does nothing but answer.

use crate::compare::instructions::under_callgrind;
use crate::compare::side::LoadSettings;
use crate::error::{Error, Result};
use crate::profile::{self, Output, Subject};
use crate::result::run::Placement;
use crate::scraper;
use crate::target::{MetricsAddress, Spec, Started, Upstream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use stillgate_load::{Outcome, Pace};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::Profile;
use stillgate_rig::callgrind;

/// Load before anything is counted: caches fill, code is compiled.
const WARM_UP: Duration = Duration::from_millis(400);

/// Load that does not count while perf starts.
const LEAD_IN: Duration = Duration::from_millis(200);

/// Load ends with the profile. A hanging profile delays it by at most this long.
const BEYOND: Duration = Duration::from_secs(60);

/// Load before and after a profile of functions in Lua.
const AROUND: Duration = Duration::from_millis(700);

/// Under callgrind, which is some fifty times slower, one connection saturates it.
const CONNECTIONS_COUNTED: usize = 1;
const WARM_UP_COUNTED: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(4);

/// Fewer requests consist mostly of work that is done occasionally.
const REQUESTS_MIN: u64 = 100;

/// No latency is read here, so none can be late.
const LATE: Duration = Duration::from_secs(1);

/// By then LuaJIT has compiled what it can, and given up on the rest.
const WARM_UP_LUA: Duration = Duration::from_secs(1);

/// Highest rate of the gateway's profiles.
const LUA_HZ_MAX: u32 = 1000;

/// The kind of profile of functions in Lua.
#[derive(Debug, Clone, Copy)]
pub(super) enum LuaKind {
    Cpu,
    /// Time in the interpreter only.
    Bytecode,
}

impl LuaKind {
    fn name(self) -> &'static str {
        match self {
            LuaKind::Cpu => "cpu",
            LuaKind::Bytecode => "bytecode",
        }
    }
}

/// A server and its requests.
pub(crate) struct LoadedServer<'a> {
    pub(crate) spec: Spec,
    pub(crate) upstream: &'a Upstream,
    pub(crate) placement: &'a Placement,
    pub(crate) connections: usize,
    pub(crate) mix: Option<&'a Path>,
    pub(crate) seed: u64,
}

impl LoadedServer<'_> {
    /// CPU time of one start, and the number of requests that it was spent on.
    pub(super) fn cpu(&self, seconds: u64, hz: u32, output: Output<'_>) -> Result<(Profile, f64)> {
        let mut started = self.spec.start(self.upstream.address, self.placement)?;
        let asking = self.load_settings(&started, self.connections)?;
        checked(&mut started, asking.run(Pace::Closed, Duration::ZERO, WARM_UP))?;
        let (pids, over) = (started.pids()?, AtomicBool::new(false));
        let watched = Subject::Processes { pids: &pids, seconds };
        let (samples, outcome) = thread::scope(|scope| {
            let perf = scope.spawn(|| {
                let samples = profile::sample(&watched, hz, output);
                over.store(true, Ordering::Relaxed);
                samples
            });
            let outcome = asking.run_until(Pace::Closed, LEAD_IN, Duration::from_secs(seconds) + BEYOND, &over);
            (perf.join(), outcome)
        });
        started.alive()?;
        let samples = samples.map_err(|_| Error::new("the thread that waits for perf panicked"))??;
        let outcome = checked(&mut started, outcome)?;
        drop(started);
        // The load is constant, and as long as the profile.
        Ok((samples.read(output)?, outcome.rate_achieved * seconds as f64))
    }

    /// Functions in Lua of one start by their own stacks, as the gateway reports them, and the number of requests
    /// meanwhile.
    pub(super) fn lua(&self, kind: LuaKind, seconds: u64, hz: u32, stop: &AtomicBool) -> Result<(Profile, f64)> {
        let mut started = self.spec.start(self.upstream.address, self.placement)?;
        let address = started.admin.ok_or_else(|| Error::new("it does not report its functions in Lua"))?;
        let asking = self.load_settings(&started, self.connections)?;
        checked(&mut started, asking.run(Pace::Closed, Duration::ZERO, WARM_UP_LUA))?;
        let (kind, hz) = (kind.name(), hz.min(LUA_HZ_MAX));
        let path = format!("/debug/pprof/lua?kind={kind}&seconds={seconds}&hz={hz}");
        // If the load is cut short, nothing waits for the answer; the request ends with the server.
        let answer = thread::spawn(move || scraper::body(&MetricsAddress { address, path }));
        let outcome = asking.run_until(Pace::Closed, AROUND, Duration::from_secs(seconds) + AROUND, stop);
        let outcome = checked(&mut started, completed(outcome))?;
        let answer = answer.join().map_err(|_| Error::new("the thread that waits for the profile panicked"))??;
        let profile = pprof::read(&answer).map_err(|error| Error::new(format!("its profile of Lua: {error}")))?;
        Ok((profile, outcome.rate_achieved * seconds as f64))
    }

    /// Instructions of one start without its start-up, and the number of requests that they were spent on.
    pub(super) fn instructions(&self, stop: &AtomicBool) -> Result<(Profile, f64)> {
        let folder = tempfile::Builder::new()
            .prefix("callgrind-")
            .tempdir_in(&self.spec.directory)
            .map_err(|error| Error::new(format!("cannot make a folder for callgrind's counts: {error}")))?;
        let spec = under_callgrind(&self.spec, folder.path(), &profile::callgrind_options())?;
        let mut started = spec.start(self.upstream.address, self.placement)?;
        let asking = self.load_settings(&started, CONNECTIONS_COUNTED)?;
        let load = |time| completed(asking.run_until(Pace::Closed, Duration::ZERO, time, stop));
        checked(&mut started, load(WARM_UP_COUNTED))?;
        for pid in started.pids()? {
            callgrind::reset(pid)?;
        }
        let outcome = checked(&mut started, load(COUNTED))?;
        started.stop();
        if outcome.sent < REQUESTS_MIN {
            return Err(Error::new(format!(
                "under callgrind it answers too few requests ({} in {} s)",
                outcome.sent,
                COUNTED.as_secs()
            )));
        }
        Ok((profile::counted(folder.path())?, outcome.sent as f64))
    }

    fn load_settings(&self, started: &Started, connections: usize) -> Result<LoadSettings<'_>> {
        LoadSettings::of(started.address, connections, self.placement, LATE, self.mix, self.seed)
    }
}

/// A load that was cut short is an error.
fn completed(outcome: Result<Outcome>) -> Result<Outcome> {
    match outcome? {
        outcome if outcome.interrupted => Err("the load was cut short".into()),
        outcome => Ok(outcome),
    }
}

/// A target that has ended explains more than the load that could not reach it; one that refuses does not show its
/// work.
fn checked(started: &mut Started, outcome: Result<Outcome>) -> Result<Outcome> {
    started.alive()?;
    let outcome = outcome?;
    if outcome.errors.total() > 0 {
        let example = outcome.errors.examples.first().map_or("", String::as_str);
        return Err(Error::new(format!("requests failed, for example: {example}")));
    }
    Ok(outcome)
}
