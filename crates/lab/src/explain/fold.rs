//! Profiles of one program, slice by slice, with names that match those of another build and another tool.

use crate::result::explain::{ProgramProfile, Stack};
use std::collections::HashMap;
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};

/// Replaces code whose names were stripped: addresses of two builds have nothing in common.
pub(super) const UNNAMED: &str = "[without names]";

/// Slices of a program so far.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    work: Vec<f64>,
    functions: HashMap<String, usize>,
    stacks: HashMap<Vec<usize>, Vec<i64>>,
    notes: Vec<String>,
}

impl Fold {
    /// Adds a profile by its main value.
    pub(crate) fn add(&mut self, profile: &Profile, work: f64) {
        let slice = self.work.len();
        self.work.push(work);
        for sample in &profile.samples {
            let mut stack: Vec<usize> = Vec::new();
            for line in profile.functions_of(sample) {
                let next = self.functions.len();
                let name = shared_name(&profile.functions[line.function].name);
                let number = *self.functions.entry(name).or_insert(next);
                // Recursion makes towers of random height, and code without names is one block.
                if stack.last() != Some(&number) {
                    stack.push(number);
                }
            }
            let spent = self.stacks.entry(stack).or_default();
            spent.resize(slice + 1, 0);
            spent[slice] += sample.values[profile.main];
        }
        for note in &profile.notes {
            if !self.notes.contains(note) {
                self.notes.push(note.clone());
            }
        }
    }

    /// The result, in a deterministic order.
    pub(crate) fn finish(self) -> ProgramProfile {
        let slices = self.work.len();
        let mut named: Vec<(usize, String)> = self.functions.into_iter().map(|(name, number)| (number, name)).collect();
        named.sort_unstable();
        let mut stacks: Vec<Stack> = self
            .stacks
            .into_iter()
            .map(|(functions, mut spent)| {
                spent.resize(slices, 0);
                Stack { functions, spent }
            })
            .collect();
        stacks.sort_unstable_by(|a, b| a.functions.cmp(&b.functions));
        let functions = named.into_iter().map(|(_, name)| name).collect();
        ProgramProfile { work: self.work, functions, stacks, notes: self.notes }
    }
}

/// A name common to all builds and both tools: without a compiler's hash, a linker's version, or an address.
fn shared_name(name: &str) -> String {
    let name = name.split("@@").next().unwrap_or(name);
    let name = name.split(".llvm.").next().unwrap_or(name);
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = match name.rsplit_once("::h") {
        Some((rest, hash)) if is_hash(hash) => rest,
        _ => name,
    };
    // The ways in which perf and callgrind mark a missing name; a kernel without names is distinguished from the
    // program.
    match name.split_once("+0x") {
        Some((file, _)) if file.starts_with('[') => file.to_owned(),
        Some(_) => UNNAMED.to_owned(),
        None if name == "???" || name.starts_with("0x0") || name.is_empty() => UNNAMED.to_owned(),
        None => name.to_owned(),
    }
}

/// All slices as one profile, for a flame graph.
pub(super) fn profile(of: &ProgramProfile, kind: &str, unit: &str) -> Profile {
    let function = |name: &String| Function { name: name.clone(), file: String::new() };
    let location = |function| Location { address: 0, mapping: None, lines: vec![Line { function, line: 0 }] };
    let sample = |stack: &Stack| Sample {
        stack: stack.functions.iter().rev().copied().collect(),
        values: vec![stack.spent.iter().sum()],
        labels: vec![(THREAD.to_owned(), Label::Text("all".to_owned()))],
    };
    Profile {
        values: vec![ValueType::new(kind, unit)],
        main: 0,
        period: (ValueType::new(kind, unit), 1),
        time_ns: 0,
        duration_ns: 0,
        notes: of.notes.clone(),
        mappings: Vec::new(),
        functions: of.functions.iter().map(function).collect(),
        locations: (0..of.functions.len()).map(location).collect(),
        samples: of.stacks.iter().map(sample).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_and_tools_share_names() {
        let check = |name: &str, expected: &str| assert_eq!(shared_name(name), expected);
        check("route::find::h0123456789abcdef", "route::find");
        check("route::find.llvm.1234567", "route::find");
        check("memcpy@@GLIBC_2.14", "memcpy");
        check("<a::B as c::D<u8>>::help", "<a::B as c::D<u8>>::help");
        check("a::has", "a::has");
        check("server+0x55d0c", UNNAMED);
        check("0x000000000001234", UNNAMED);
        check("???", UNNAMED);
        check("[kernel.kallsyms]+0xff", "[kernel.kallsyms]");
    }

    #[test]
    fn slices_are_kept_apart_and_towers_are_flat() {
        let made = |stacks: &[(&[usize], i64)]| {
            let functions = ["main", "walk", "leaf::h0123456789abcdef"].map(str::to_owned).to_vec();
            let stacks =
                stacks.iter().map(|(functions, spent)| Stack { functions: functions.to_vec(), spent: vec![*spent] });
            profile(
                &ProgramProfile { functions, stacks: stacks.collect(), ..ProgramProfile::default() },
                "cpu",
                "nanoseconds",
            )
        };
        let mut fold = Fold::default();
        fold.add(&made(&[(&[0, 1, 1, 2], 5), (&[0, 1, 2], 1)]), 2.0);
        fold.add(&made(&[(&[0, 1, 2], 7), (&[0], 3)]), 4.0);
        let folded = fold.finish();
        assert_eq!(folded.work, [2.0, 4.0]);
        let stack = |stack: &Stack| {
            let names: Vec<&str> = stack.functions.iter().map(|number| folded.functions[*number].as_str()).collect();
            (names.join(";"), stack.spent.clone())
        };
        let stacks: Vec<_> = folded.stacks.iter().map(stack).collect();
        assert_eq!(stacks, [("main".to_owned(), vec![0, 3]), ("main;walk;leaf".to_owned(), vec![6, 7])]);
    }
}
