//! A continuous watch: the long turns of event loops, with the work that was done in them.
//!
//! It reads the threads' rings only between two profiles. During a profile it sees nothing.

use crate::cpu::be_nice;
use crate::session::between;
use crate::stalls::{Stall, StallWatch, pause};
use crate::symbols::{SymbolFrame, resolve};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Functions of a stack, from the innermost on.
const FRAMES_MAX: usize = 48;

/// Most distinct stacks of a turn.
const STACKS_MAX: usize = 3;

/// Most addresses whose functions are remembered.
const NAMES_MAX: usize = 1 << 14;

/// A watch on the thread that made it.
pub struct ContinuousWatch {
    over: Duration,
    watch: StallWatch,
    /// The functions at an address, the innermost first.
    names: HashMap<u64, Vec<Arc<str>>>,
}

/// A turn that was long.
#[derive(Debug, Clone)]
pub struct LongTurn {
    /// The name of its thread.
    pub thread: String,
    /// When it ended, since 1970, in milliseconds.
    pub ended_unix_ms: u64,
    /// Its duration.
    pub took: Duration,
    /// Its stacks, most frequent first.
    pub stacks: Vec<LongTurnStack>,
}

/// A stack that was seen in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongTurnStack {
    /// How often it was seen.
    pub seen: usize,
    /// `FUNCTION FILE:LINE`, the innermost first.
    pub frames: Vec<Arc<str>>,
}

impl ContinuousWatch {
    /// Watches for turns that take longer than this. The calling thread becomes nice.
    pub fn new(over: Duration) -> io::Result<ContinuousWatch> {
        be_nice();
        let watch = StallWatch::new(over)?;
        // Done now, since later it would delay the watch of the first turns.
        for module in watch.unwinder.modules().iter() {
            let _ = module.image();
        }
        Ok(ContinuousWatch { over, watch, names: HashMap::new() })
    }

    /// The pause between two looks.
    pub fn pause(&self) -> Duration {
        pause(self.over)
    }

    /// Reads the counters once.
    pub fn look(&mut self) {
        if between(|| self.watch.look()).is_none() {
            self.watch.forget_present();
        }
    }

    /// The turns that have ended since the last call. Takes long if there are new functions.
    pub fn long_turns(&mut self) -> Vec<LongTurn> {
        let (stalls, stacks) = self.watch.take_seen();
        let seen = stalls.iter().flat_map(|stall| &stall.stacks).flat_map(|seen| &stacks[seen.stack]);
        let mut new: Vec<u64> = seen.copied().filter(|address| !self.names.contains_key(address)).collect();
        if !new.is_empty() {
            if self.names.len() + new.len() > NAMES_MAX {
                self.names.clear();
                new = stacks.iter().flatten().copied().collect();
            }
            let resolved = resolve(self.watch.unwinder.modules(), new);
            self.names
                .extend(resolved.into_iter().map(|(address, frames)| (address, frames.iter().map(text).collect())));
        }
        stalls.iter().map(|stall| self.named(stall, &stacks)).collect()
    }

    fn named(&self, stall: &Stall, stacks: &[Box<[u64]>]) -> LongTurn {
        let mut counted: Vec<(usize, usize)> = Vec::new();
        for seen in &stall.stacks {
            match counted.iter_mut().find(|(stack, _)| *stack == seen.stack) {
                Some((_, count)) => *count += 1,
                None => counted.push((seen.stack, 1)),
            }
        }
        // Among equally frequent ones, the first.
        counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counted.truncate(STACKS_MAX);
        let frames = |stack: usize| {
            let names = stacks[stack].iter().filter_map(|address| self.names.get(address));
            names.flatten().take(FRAMES_MAX).cloned().collect()
        };
        LongTurn {
            thread: stall.thread.clone(),
            ended_unix_ms: u64::try_from(stall.ended_unix_ns).unwrap_or_default() / 1_000_000,
            took: stall.took,
            stacks: counted.into_iter().map(|(stack, seen)| LongTurnStack { seen, frames: frames(stack) }).collect(),
        }
    }
}

fn text(frame: &SymbolFrame) -> Arc<str> {
    match frame.file.as_str() {
        "" => frame.function.as_str().into(),
        file => format!("{} {file}:{}", frame.function, frame.line).into(),
    }
}
