//! Flame graphs of the target's CPU time in blocks with scrapes and without, and of their difference.
//!
//! perf samples blocks of both kinds alike, so its cost cancels out of the effects.

use super::design::PlannedCell;
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::explain::analysis::Fold;
use crate::explain::{analysis, page};
use crate::profile::{self, Output, Subject};
use crate::result::explain::{ExplainAnalysis, ExplainDesign, ExplainResult, Sides};
use crate::result::tail::{Arm, TailDesign};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use stillgate_profiler::profile::Profile;

/// Samples per second.
const HZ: u32 = 999;

/// Confidence that no unchanged stack is reported as changed.
const CONFIDENCE: f64 = 0.99;

/// Profiles of blocks so far.
#[derive(Debug, Default)]
pub(crate) struct Flames {
    without: Fold,
    with: Fold,
    slices: usize,
}

/// A block that is being profiled.
pub(super) struct ProfiledBlock {
    thread: JoinHandle<Result<Profile>>,
    stop: Arc<AtomicBool>,
}

/// Samples these processes for the whole seconds of lead-in and block.
pub(super) fn watch(pids: Vec<u32>, design: &TailDesign) -> ProfiledBlock {
    let seconds = seconds(design);
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let watched =
        move || profile::cpu(&Subject::Processes { pids: &pids, seconds }, HZ, Output::Hidden { stop: &asked });
    ProfiledBlock { thread: thread::spawn(watched), stop }
}

fn seconds(design: &TailDesign) -> u64 {
    ((design.lead_in_s + design.block_s) as u64).max(1)
}

impl ProfiledBlock {
    /// A block that was cut short has no profile, and is not waited for.
    pub(super) fn taken(self, is_cut_short: bool) -> Result<Profile> {
        self.stop.store(is_cut_short, Ordering::Relaxed);
        self.thread.join().map_err(|_| Error::new("the thread that reads perf's samples panicked"))?
    }
}

impl Flames {
    /// A block is one unit of work: all have the same load.
    pub(super) fn add(&mut self, arm: Arm, profile: &Profile) {
        match arm {
            Arm::Without => self.without.add(profile, 1.0),
            Arm::With => self.with.add(profile, 1.0),
        }
        self.slices += usize::from(arm == Arm::With);
    }

    /// The page; `None` before there is a block of each kind.
    pub(crate) fn html(self, design: &TailDesign, planned: &PlannedCell, progress: &Progress) -> Option<String> {
        if self.slices == 0 {
            progress.note("no profile was taken: no pair of blocks was finished");
            return None;
        }
        let title = super::run::title(planned);
        let design = ExplainDesign {
            a: format!("{title}: without scrapes"),
            b: format!("{title}: with scrapes"),
            work: "block".to_owned(),
            command: None,
            mix: None,
            slices: self.slices,
            slice_s: seconds(design),
            hz: HZ,
            seed: design.seed,
            confidence: CONFIDENCE,
        };
        let mut result = ExplainResult {
            design,
            cpu: Sides { a: self.without.finish(), b: self.with.finish() },
            instructions: None,
            instructions_missing: Some("only time is sampled while blocks are measured".to_owned()),
            isolated: Vec::new(),
            lua: None,
            lua_missing: None,
            interrupted: false,
            analysis: ExplainAnalysis::empty(),
        };
        result.analysis = analysis::analyse(&result);
        Some(page::html(&result))
    }
}
