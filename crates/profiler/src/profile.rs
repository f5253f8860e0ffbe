//! What a profile is, whatever it was taken of: stacks with values, in the shape of pprof's format.

use std::collections::HashMap;

/// A value's meaning and unit, as `cpu` in `nanoseconds`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueType {
    /// What is counted.
    pub kind: String,
    /// In which unit; `count` where it has none.
    pub unit: String,
}

impl ValueType {
    /// From both words.
    pub fn new(kind: &str, unit: &str) -> ValueType {
        ValueType { kind: kind.to_owned(), unit: unit.to_owned() }
    }
}

/// A profile. Indices point into its own lists; none leads outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What the values of a sample are.
    pub values: Vec<ValueType>,
    /// Which of them is shown first.
    pub main: usize,
    /// What lies between two samples, and how much of it.
    pub period: (ValueType, i64),
    /// When it began, since 1970.
    pub time_ns: i64,
    /// How long it took; zero: it is of a moment.
    pub duration_ns: i64,
    /// How it was taken, for its reader.
    pub notes: Vec<String>,
    /// What the code was loaded from.
    pub mappings: Vec<Mapping>,
    /// All functions.
    pub functions: Vec<Function>,
    /// All places in code.
    pub locations: Vec<Location>,
    /// The stacks.
    pub samples: Vec<Sample>,
}

/// A file that code was loaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its lowest address.
    pub start: u64,
    /// Behind its highest.
    pub end: u64,
    /// In the file.
    pub offset: u64,
    /// Its path.
    pub path: String,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Function {
    /// As in the source; where that is not known, file and offset.
    pub name: String,
    /// The source; empty: not known.
    pub file: String,
}

/// A place in code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Its address; zero: there is none.
    pub address: u64,
    /// In [`Profile::mappings`].
    pub mapping: Option<usize>,
    /// What is there: functions that were inlined into each other, the innermost first.
    pub lines: Vec<Line>,
}

/// A line of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// In [`Profile::functions`].
    pub function: usize,
    /// Zero: not known.
    pub line: i64,
}

/// A stack that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// In [`Profile::locations`], the innermost first.
    pub stack: Vec<usize>,
    /// As many as [`Profile::values`].
    pub values: Vec<i64>,
    /// What else is known, by name.
    pub labels: Vec<(String, Label)>,
}

/// What a label says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// A text.
    Text(String),
    /// A number and its unit.
    Number(i64, String),
}

/// The label with the name of the sample's thread.
pub const THREAD: &str = "thread";

/// The label with the phase of the program's work that a sample is in; only where the program says what its phases are.
pub const PHASE: &str = "phase";

/// The phase of samples that are in no other.
pub const NO_PHASE: &str = "other";

/// The label with the time of a sample since the profile's beginning, in nanoseconds; only if every sample has one.
pub const TIME: &str = "time";

/// The label of samples whose outermost frames are missing.
pub const TRUNCATED: &str = "truncated";

impl Profile {
    /// All functions of a sample, the outermost first, those that were inlined too.
    pub fn functions_of<'a>(&'a self, sample: &'a Sample) -> impl DoubleEndedIterator<Item = Line> + 'a {
        let places = sample.stack.iter().rev();
        places.flat_map(|place| self.locations.get(*place).map_or(&[][..], |place| &place.lines).iter().rev().copied())
    }

    /// Labels each sample with its phase: that of the innermost function that begins one. `phases` are a name, and a part of the names
    /// of the functions that begin it; the first that fits counts.
    pub fn name_phases(&mut self, phases: &[(&str, &str)]) {
        let begun_by = |function: &Function| {
            let found = phases.iter().find(|(_, part)| function.name.contains(part));
            found.map(|(name, _)| *name)
        };
        let begun: Vec<Option<&str>> = self.functions.iter().map(begun_by).collect();
        let phase = |sample: &Sample| {
            let innermost = self.functions_of(sample).rev().find_map(|line| begun[line.function]);
            innermost.unwrap_or(NO_PHASE).to_owned()
        };
        let named: Vec<String> = self.samples.iter().map(phase).collect();
        for (sample, phase) in self.samples.iter_mut().zip(named) {
            sample.labels.push((PHASE.to_owned(), Label::Text(phase)));
        }
    }

    /// One of the values by what a label says, the largest share first.
    pub fn shares(&self, label: &str, value: usize) -> Vec<(&str, i64)> {
        let mut sums: HashMap<&str, i64> = HashMap::new();
        for sample in &self.samples {
            *sums.entry(sample.text(label)).or_default() += sample.values.get(value).copied().unwrap_or(0);
        }
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
        sums.sort_unstable_by_key(|(name, sum)| (-sum, *name));
        sums
    }

    /// All of one value.
    pub fn total(&self, value: usize) -> i64 {
        self.samples.iter().filter_map(|sample| sample.values.get(value)).sum()
    }
}

impl Sample {
    /// The thread's name; empty: it is not known.
    pub fn thread(&self) -> &str {
        self.text(THREAD)
    }

    /// What a label says; empty: there is none with a text.
    pub fn text(&self, name: &str) -> &str {
        match self.label(name) {
            Some(Label::Text(text)) => text,
            _ => "",
        }
    }

    /// When it was taken, where that is known.
    pub fn time_ns(&self) -> Option<i64> {
        match self.label(TIME) {
            Some(Label::Number(time, _)) => Some(*time),
            _ => None,
        }
    }

    fn label(&self, name: &str) -> Option<&Label> {
        self.labels.iter().find(|(of, _)| of == name).map(|(_, label)| label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tree::example;

    #[test]
    fn the_innermost_function_that_begins_a_phase_counts() {
        let mut profile = example();
        profile.name_phases(&[("searching", "find"), ("routing", "route"), ("all", "main")]);
        let phases: Vec<&str> = profile.samples.iter().map(|sample| sample.text(PHASE)).collect();
        assert_eq!(phases, ["searching", "searching", "all", "all"]);
        assert_eq!(profile.shares(PHASE, 0), [("searching", 4), ("all", 3)]);
        assert_eq!(profile.shares(THREAD, 1), [("worker-0", 40_000_000), ("worker-1", 30_000_000)]);
        let mut profile = example();
        profile.name_phases(&[("routing", "route")]);
        assert_eq!(profile.shares(PHASE, 0), [("routing", 4), (NO_PHASE, 3)]);
    }
}
