//! The profiles of a result: A and B in alternation, each slice from a new start.
//!
//! The placement of memory changes a program's speed by a few per cent; slices of one start would share that luck and
//! make it look like a difference. They alternate, so that the machine's drift affects both.

use super::fold::Fold;
use super::load::{LoadedServer, LuaKind};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::profile::{self, Output, Subject};
use crate::result::explain::{ExplainDesign, LuaSides, Sides};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_profiler::profile::Profile;
use stillgate_stats::Random;

/// Counts of instructions of each program; they hardly differ.
pub(crate) const COUNTS: usize = 2;

/// Profiles of time of each program; with fewer, their scatter is unknown.
pub(crate) const SLICES_MIN: usize = 5;

/// The programs to profile.
pub(crate) enum Programs<'a> {
    /// Each runs to its end; one run is the unit of work.
    Run([Vec<OsString>; 2]),
    /// Each is under load.
    Served(&'a [LoadedServer<'a>; 2]),
}

impl Programs<'_> {
    /// Number of progress steps.
    pub(crate) fn steps(&self, slices: usize, with_instructions: bool) -> u64 {
        let of_lua = if self.shows_lua() { 2 * slices } else { 0 };
        2 * (slices + of_lua + if with_instructions { COUNTS } else { 0 }) as u64
    }

    /// Whether both report their functions in Lua.
    pub(crate) fn shows_lua(&self) -> bool {
        matches!(self, Programs::Served(served) if served.iter().all(|served| served.spec.needs_admin()))
    }

    /// Profiles of functions in Lua, for servers that report them.
    pub(crate) fn lua(&self, design: &ExplainDesign, stop: &AtomicBool, progress: &mut Progress) -> Result<LuaSides> {
        let mut take = |what: &str, kind: LuaKind| {
            in_turn(what, design.slices, design.seed, stop, progress, |side| match self {
                Programs::Run(_) => {
                    Err(Error::new("a program that runs to its end does not report its functions in Lua"))
                }
                Programs::Served(served) => served[side].lua(kind, design.slice_s, design.hz, stop),
            })
        };
        Ok(LuaSides { cpu: take("functions in Lua", LuaKind::Cpu)?, bytecode: take("bytecode", LuaKind::Bytecode)? })
    }

    /// Profiles of CPU time.
    pub(crate) fn cpu(&self, design: &ExplainDesign, stop: &AtomicBool, progress: &mut Progress) -> Result<Sides> {
        let output = Output::Hidden { stop };
        let take = |side: usize| match self {
            Programs::Run(words) => Ok((profile::cpu(&Subject::Command(&words[side]), design.hz, output)?, 1.0)),
            Programs::Served(served) => served[side].cpu(design.slice_s, design.hz, output),
        };
        in_turn("CPU time", design.slices, design.seed, stop, progress, take)
    }

    /// Profiles of instructions.
    pub(crate) fn instructions(
        &self,
        design: &ExplainDesign,
        stop: &AtomicBool,
        progress: &mut Progress,
    ) -> Result<Sides> {
        let take = |side: usize| match self {
            Programs::Run(words) => Ok((profile::instructions(&words[side], Output::Hidden { stop })?, 1.0)),
            Programs::Served(served) => served[side].instructions(stop),
        };
        in_turn("instructions", COUNTS, design.seed, stop, progress, take)
    }
}

/// This many slices of each; fewer, but equally many of both, if the user interrupts.
fn in_turn(
    what: &str,
    slices: usize,
    seed: u64,
    stop: &AtomicBool,
    progress: &mut Progress,
    take: impl Fn(usize) -> Result<(Profile, f64)>,
) -> Result<Sides> {
    let mut random = Random::new(seed);
    let mut folds = [Fold::default(), Fold::default()];
    'slices: for slice in 0..slices {
        let mut order = [0, 1];
        random.shuffle(&mut order);
        let mut both = [None, None];
        for side in order {
            if stop.load(Ordering::Relaxed) {
                break 'slices;
            }
            let name = ["A", "B"][side];
            progress.step(&format!("{what} of {name}, {} of {slices}", slice + 1));
            match take(side) {
                Ok(taken) => both[side] = Some(taken),
                // A profile that was cut short fails.
                Err(_) if stop.load(Ordering::Relaxed) => break 'slices,
                Err(error) => return Err(error.context(name)),
            }
        }
        for (fold, (profile, work)) in folds.iter_mut().zip(both.into_iter().flatten()) {
            fold.add(&profile, work);
        }
    }
    let [a, b] = folds.map(Fold::finish);
    Ok(Sides { a, b })
}
