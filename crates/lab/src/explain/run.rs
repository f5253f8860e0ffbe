//! The profiles of a result: A and B in turn, each slice of a new start.
//!
//! Where a loader happens to put things moves a program's speed by per cents; slices of one start would share that luck and make it look
//! like a difference. In turn, so that the machine's drift is in both.

use super::fold::Fold;
use super::load::{LuaKind, Served};
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

/// Profiles of time of each program; with fewer, nothing is known of their scatter.
pub(crate) const SLICES_MIN: usize = 5;

/// What is profiled.
pub(crate) enum Programs<'a> {
    /// Each is run to its end; one run is the work.
    Run([Vec<OsString>; 2]),
    /// Each is under load.
    Served(&'a [Served<'a>; 2]),
}

impl Programs<'_> {
    /// Steps of progress of everything.
    pub(crate) fn steps(&self, slices: usize, with_instructions: bool) -> u64 {
        let of_lua = if self.shows_lua() { 2 * slices } else { 0 };
        2 * (slices + of_lua + if with_instructions { COUNTS } else { 0 }) as u64
    }

    /// Whether both show what their functions in Lua do.
    pub(crate) fn shows_lua(&self) -> bool {
        matches!(self, Programs::Served(served) if served.iter().all(|served| served.spec.asks_for_admin()))
    }

    /// What functions in Lua take; for servers that show it.
    pub(crate) fn lua(&self, design: &ExplainDesign, stop: &AtomicBool, progress: &mut Progress) -> Result<LuaSides> {
        let mut take = |what: &str, kind: LuaKind| {
            in_turn(what, design.slices, design.seed, stop, progress, |side| match self {
                Programs::Run(_) => Err(Error::new("a program that ends shows nothing of its functions in Lua")),
                Programs::Served(served) => served[side].lua(kind, design.slice_s, design.hz, stop),
            })
        };
        Ok(LuaSides { cpu: take("functions in Lua", LuaKind::Cpu)?, bytecode: take("bytecode", LuaKind::Bytecode)? })
    }

    /// Where they spend CPU time.
    pub(crate) fn cpu(&self, design: &ExplainDesign, stop: &AtomicBool, progress: &mut Progress) -> Result<Sides> {
        let output = Output::Hidden { stop };
        let take = |side: usize| match self {
            Programs::Run(words) => Ok((profile::cpu(&Subject::Command(&words[side]), design.hz, output)?, 1.0)),
            Programs::Served(served) => served[side].cpu(design.slice_s, design.hz, output),
        };
        in_turn("CPU time", design.slices, design.seed, stop, progress, take)
    }

    /// Where they execute instructions.
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

/// So many slices of each; fewer, but as many of both, once the user wants an end.
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
                // What was cut short fails.
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
