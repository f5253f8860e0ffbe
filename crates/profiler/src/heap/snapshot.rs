//! The heap as a profile: live allocations, and all allocations since sampling was switched on.

use super::live::LIVE;
use super::mean_bytes;
use super::stacks::{STACK_FRAMES_MAX, STACKS};
use crate::collect::{NamedStacks, Stacks, be_nice, name, unix_ns};
use crate::profile::{Label, Location, Profile, Sample, TRUNCATED, ValueType};
use crate::session::ProfileSession;
use crate::symbols::Modules;
use std::io;

/// The value that is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MainValue {
    /// Allocations that have not been freed.
    Live,
    /// All allocations.
    Allocated,
}

/// Functions between the program and the allocator, and within this crate: they are in every stack and
/// uninteresting.
const ALLOCATING: &[&str] = &["stillgate_profiler::heap::", "__rust_", "__rustc::__rust_", "__rg_", "alloc::alloc::"];

/// Reads the tables on the calling thread, whose priority is lowered for good.
pub fn snapshot(session: ProfileSession, shown: MainValue) -> io::Result<Profile> {
    be_nice();
    let modules = Modules::read()?;
    let mut stacks = Stacks::default();
    let mut counted = Vec::new();
    for of in STACKS.read() {
        let is_truncated = of.addresses.len() == STACK_FRAMES_MAX;
        let live = ((of.allocated.0 - of.freed.0).max(0), (of.allocated.1 - of.freed.1).max(0));
        if of.allocated.0 > 0
            && let Some(stack) = stacks.number(of.addresses)
        {
            counted.push((stack, is_truncated, vec![of.allocated.0, of.allocated.1, live.0, live.1]));
        }
    }
    let NamedStacks { mappings, mut functions, mut locations, stacks } = name(stacks, &modules);
    let is_allocating = |location: &Location| {
        let is_one = |name: &str| ALLOCATING.iter().any(|part| name.contains(part));
        location.lines.last().is_some_and(|line| is_one(&functions[line.function].name))
    };
    let is_allocating: Vec<bool> = locations.iter().map(is_allocating).collect();
    // For stacks that had no place in the table.
    let other = locations.len();
    functions.push(crate::profile::Function { name: "(other stacks)".to_owned(), file: String::new() });
    let line = crate::profile::Line { function: functions.len() - 1, line: 0 };
    locations.push(Location { address: 0, mapping: None, lines: vec![line] });
    let samples = counted.into_iter().map(|(stack, is_truncated, values)| {
        let mut stack: Vec<usize> = stacks[stack].iter().copied().skip_while(|place| is_allocating[*place]).collect();
        if stack.is_empty() {
            stack.push(other);
        }
        let truncated = (TRUNCATED.to_owned(), Label::Text("yes".to_owned()));
        Sample { stack, values, labels: if is_truncated { vec![truncated] } else { Vec::new() } }
    });
    let profile = Profile {
        samples: samples.collect(),
        values: vec![
            ValueType::new("alloc_objects", "count"),
            ValueType::new("alloc_space", "bytes"),
            ValueType::new("inuse_objects", "count"),
            ValueType::new("inuse_space", "bytes"),
        ],
        main: match shown {
            MainValue::Live => 3,
            MainValue::Allocated => 1,
        },
        period: (ValueType::new("space", "bytes"), mean_bytes().unwrap_or(0) as i64),
        time_ns: unix_ns(),
        duration_ns: 0,
        notes: notes(),
        mappings,
        functions,
        locations,
    };
    drop(session);
    Ok(profile)
}

fn notes() -> Vec<String> {
    let mut notes = vec![match mean_bytes() {
        Some(bytes) => format!(
            "one sample in {} KiB; allocations from before sampling was switched on are not in it",
            bytes / 1024
        ),
        None => "sampling is off: only what was sampled before is in it".to_owned(),
    }];
    let refused = LIVE.refused();
    if refused > 0 {
        notes.push(format!("{refused} samples are missing: there were too many live ones"));
    }
    notes
}
