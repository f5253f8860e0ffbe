//! Shared by all profiles: distinct stacks, their functions, and a clock that converts ticks.

use crate::machine;
use crate::profile::{CodeMapping, Function, Line, Location};
use crate::symbols::Modules;
use crate::symbols::resolve::resolve;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Distinct stacks of a profile. Each takes up to 2 KiB; most have some thirty frames.
pub(crate) const STACKS_MAX: usize = 32_768;

/// Distinct stacks, each of addresses from the innermost on.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    numbers: HashMap<Box<[u64]>, usize>,
}

impl Stacks {
    /// The number of a stack; `None` if there are too many.
    pub(crate) fn number(&mut self, addresses: Vec<u64>) -> Option<usize> {
        let next = self.numbers.len();
        match self.numbers.get(addresses.as_slice()) {
            Some(number) => Some(*number),
            None if next >= STACKS_MAX => None,
            None => {
                self.numbers.insert(addresses.into(), next);
                Some(next)
            }
        }
    }

    /// All stacks, by number.
    pub(crate) fn in_order(&self) -> Vec<Box<[u64]>> {
        let mut numbered: Vec<(&Box<[u64]>, &usize)> = self.numbers.iter().collect();
        numbered.sort_unstable_by_key(|(_, number)| **number);
        numbered.into_iter().map(|(stack, _)| stack.clone()).collect()
    }
}

/// Stacks with their functions.
#[derive(Debug, Default)]
pub(crate) struct NamedStacks {
    pub(crate) mappings: Vec<CodeMapping>,
    pub(crate) functions: Vec<Function>,
    pub(crate) locations: Vec<Location>,
    /// Stacks by number; each is a list of locations.
    pub(crate) stacks: Vec<Vec<usize>>,
}

/// Finds the functions of all stacks. Takes long.
pub(crate) fn name(stacks: Stacks, modules: &Modules) -> NamedStacks {
    let mut numbered: Vec<(Box<[u64]>, usize)> = stacks.numbers.into_iter().collect();
    numbered.sort_by_key(|(_, number)| *number);
    let mut addresses: Vec<u64> = numbered.iter().flat_map(|(stack, _)| stack.iter().copied()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let resolved = resolve(modules, addresses.clone());
    let mut named = NamedStacks::default();
    for module in modules.iter() {
        let (range, offset) = (module.range(), module.code.first().map_or(0, |mapping| mapping.offset));
        let path = module.path.to_string_lossy().into_owned();
        named.mappings.push(CodeMapping { start: range.start, end: range.end, offset, path });
    }
    let mut functions: HashMap<Function, usize> = HashMap::new();
    for address in &addresses {
        let frames = resolved.get(address).map_or(&[][..], Vec::as_slice);
        let lines = frames.iter().map(|frame| {
            let function = Function { name: frame.function.clone(), file: frame.file.clone() };
            let next = functions.len();
            let function = *functions.entry(function).or_insert_with_key(|function| {
                named.functions.push(function.clone());
                next
            });
            Line { function, line: frame.line.into() }
        });
        let lines = lines.collect();
        let mapping = named.mappings.iter().position(|mapping| (mapping.start..mapping.end).contains(address));
        named.locations.push(Location { address: *address, mapping, lines });
    }
    let place = |address: &u64| addresses.binary_search(address).expect("all addresses were collected above");
    named.stacks = numbered.iter().map(|(stack, _)| stack.iter().map(place).collect()).collect();
    named
}

/// Both clocks at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) ticks: u64,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        Moment { at: Instant::now(), ticks: machine::ticks() }
    }

    /// The time of a sample since this moment; `end` is a later moment, from which the length of a tick follows.
    pub(crate) fn since(&self, ticks: u64, end: Moment) -> Duration {
        let ratio = ticks.saturating_sub(self.ticks) as f64 / end.ticks.saturating_sub(self.ticks).max(1) as f64;
        end.at.duration_since(self.at).mul_f64(ratio.min(1.0))
    }
}

/// The time of day in the form of profiles.
pub(crate) fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Lowers the priority of the calling thread, so that it gets a tenth of the CPU share of others: with less, naming a
/// profile of a busy gateway would take minutes. If the priority cannot be lowered, the thread works anyway.
pub(crate) fn be_nice() {
    const NICENESS: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICENESS);
}
