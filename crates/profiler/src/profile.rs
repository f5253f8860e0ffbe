//! A profile of any kind: stacks with values, in the shape of pprof's format.

use std::collections::HashMap;

/// A value's meaning and unit, such as `cpu` in `nanoseconds`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueType {
    /// The quantity.
    pub kind: String,
    /// Its unit; `count` if it has none.
    pub unit: String,
}

impl ValueType {
    /// Makes it of both words.
    pub fn new(kind: &str, unit: &str) -> ValueType {
        ValueType { kind: kind.to_owned(), unit: unit.to_owned() }
    }
}

/// A profile. Indices point into its own lists, and are always in range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The types of the values of a sample.
    pub values: Vec<ValueType>,
    /// The index of the value to show first.
    pub main: usize,
    /// The interval between two samples: its type and amount.
    pub period: (ValueType, i64),
    /// Its beginning, since 1970.
    pub time_ns: i64,
    /// Its length; zero if it describes a moment.
    pub duration_ns: i64,
    /// Notes for its reader on how it was taken.
    pub notes: Vec<String>,
    /// The files that code was loaded from.
    pub mappings: Vec<CodeMapping>,
    /// All functions.
    pub functions: Vec<Function>,
    /// All places in code.
    pub locations: Vec<Location>,
    /// The stacks.
    pub samples: Vec<Sample>,
}

/// A file that code was loaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeMapping {
    /// Its lowest address.
    pub start: u64,
    /// The end of its addresses.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Its path.
    pub path: String,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Function {
    /// The name in the source; if unknown, file and offset.
    pub name: String,
    /// The source file; empty if unknown.
    pub file: String,
}

/// A place in code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Its address; zero if there is none.
    pub address: u64,
    /// Index in [`Profile::mappings`].
    pub mapping: Option<usize>,
    /// The functions there, which were inlined into each other, the innermost first.
    pub lines: Vec<Line>,
}

/// A line of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Line {
    /// Index in [`Profile::functions`].
    pub function: usize,
    /// Zero if unknown.
    pub line: i64,
}

/// A stack that was sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Indices in [`Profile::locations`], the innermost first.
    pub stack: Vec<usize>,
    /// One for each of [`Profile::values`].
    pub values: Vec<i64>,
    /// Further facts, by name.
    pub labels: Vec<(String, Label)>,
}

/// The value of a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// A text.
    Text(String),
    /// A number and its unit.
    Number(i64, String),
}

/// The label with the name of the sample's thread.
pub const THREAD: &str = "thread";

/// The label with the phase of the program's work that a sample is in; only if the program defines its phases.
pub const PHASE: &str = "phase";

/// The phase of samples that are in no other.
pub const NO_PHASE: &str = "other";

/// The label with the route that a sample's thread worked on; only if it worked on one.
pub const ROUTE: &str = "route";

/// The label with the plugin that was called; only if one was.
pub const PLUGIN: &str = "plugin";

/// The label with the time of a sample since the profile's beginning, in nanoseconds; only if every sample has one.
pub const TIME: &str = "time";

/// The label of samples whose outermost frames are missing.
pub const TRUNCATED: &str = "truncated";

impl Profile {
    /// All functions of a sample, the outermost first, including inlined ones.
    pub fn functions_of<'a>(&'a self, sample: &'a Sample) -> impl DoubleEndedIterator<Item = Line> + 'a {
        let places = sample.stack.iter().rev();
        places.flat_map(|place| self.locations.get(*place).map_or(&[][..], |place| &place.lines).iter().rev().copied())
    }

    /// Labels each sample with its phase: that of the innermost function that begins one. `phases` are a name, and a
    /// part of the names of the functions that begin it; the first match counts.
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

    /// Sums of one value by the text of a label, the largest first.
    pub fn shares(&self, label: &str, value: usize) -> Vec<(&str, i64)> {
        let mut sums: HashMap<&str, i64> = HashMap::new();
        for sample in &self.samples {
            *sums.entry(sample.text(label)).or_default() += sample.values.get(value).copied().unwrap_or(0);
        }
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
        sums.sort_unstable_by_key(|(name, sum)| (-sum, *name));
        sums
    }

    /// The sum of one value.
    pub fn total(&self, value: usize) -> i64 {
        self.samples.iter().filter_map(|sample| sample.values.get(value)).sum()
    }
}

impl Sample {
    /// The thread's name; empty if unknown.
    pub fn thread(&self) -> &str {
        self.text(THREAD)
    }

    /// Labels the sample with the route and the plugin that its thread worked on; empty: none.
    pub(crate) fn name_work(&mut self, work: &[String; 2]) {
        for (label, name) in [ROUTE, PLUGIN].into_iter().zip(work).filter(|(_, name)| !name.is_empty()) {
            self.labels.push((label.to_owned(), Label::Text(name.clone())));
        }
    }

    /// The text of a label; empty without the label.
    pub fn text(&self, name: &str) -> &str {
        match self.label(name) {
            Some(Label::Text(text)) => text,
            _ => "",
        }
    }

    /// The time of the sample, if known.
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

// Several profiles as one.

/// Most distinct samples of a merged profile.
const MERGED_MAX: usize = 1 << 18;

/// Stack and labels of a sample.
type MergedKey = (Vec<usize>, Vec<(String, Label)>);

/// Adds up profiles of the same kind. Their addresses are forgotten: those of several processes differ.
#[derive(Default)]
pub struct MergedProfile {
    /// The first one, without its lists; then the time of all.
    all: Option<Profile>,
    end_ns: i64,
    count: usize,
    functions: HashMap<Function, usize>,
    locations: HashMap<Vec<Line>, usize>,
    samples: HashMap<MergedKey, Vec<i64>>,
    unplaced: u64,
}

impl MergedProfile {
    /// Adds a profile.
    pub fn add(&mut self, profile: &Profile) {
        let empty =
            || Profile { mappings: vec![], functions: vec![], locations: vec![], samples: vec![], ..profile.clone() };
        let all = self.all.get_or_insert_with(empty);
        all.time_ns = all.time_ns.min(profile.time_ns);
        all.duration_ns += profile.duration_ns;
        self.end_ns = self.end_ns.max(profile.time_ns + profile.duration_ns);
        self.count += 1;
        let numbers: Vec<usize> =
            profile.functions.iter().map(|function| numbered(&mut self.functions, function)).collect();
        let places: Vec<usize> = profile
            .locations
            .iter()
            .map(|location| {
                let line = |line: &Line| Line { function: numbers[line.function], line: line.line };
                numbered(&mut self.locations, &location.lines.iter().map(line).collect())
            })
            .collect();
        for Sample { stack, values, labels } in &profile.samples {
            let key = (stack.iter().map(|place| places[*place]).collect(), labels.clone());
            let has_room = self.samples.len() < MERGED_MAX;
            match self.samples.get_mut(&key) {
                Some(sums) => sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
                None if has_room => drop(self.samples.insert(key, values.clone())),
                None => self.unplaced += 1,
            }
        }
    }

    /// The whole; `None` if there was none.
    pub fn finish(self) -> Option<Profile> {
        let MergedProfile { all, end_ns, count, functions, locations, samples, unplaced } = self;
        let mut all = all?;
        all.notes = vec![format!(
            "{count} profiles of {:.0} s together, in a time of {:.0} s",
            all.duration_ns as f64 / 1e9,
            (end_ns - all.time_ns) as f64 / 1e9
        )];
        if unplaced > 0 {
            all.notes.push(format!("{unplaced} samples are missing: there were too many different stacks"));
        }
        all.functions = in_order(functions);
        let location = |(number, lines)| Location { address: number as u64 + 1, mapping: None, lines };
        all.locations = in_order(locations).into_iter().enumerate().map(location).collect();
        let mut samples: Vec<(MergedKey, Vec<i64>)> = samples.into_iter().collect();
        samples.sort_unstable();
        let sample = |((stack, labels), values)| Sample { stack, values, labels };
        all.samples = samples.into_iter().map(sample).collect();
        Some(all)
    }
}

fn numbered<T: Clone + Eq + std::hash::Hash>(known: &mut HashMap<T, usize>, new: &T) -> usize {
    let next = known.len();
    match known.get(new) {
        Some(number) => *number,
        None => {
            known.insert(new.clone(), next);
            next
        }
    }
}

fn in_order<T>(numbered: HashMap<T, usize>) -> Vec<T> {
    let mut all: Vec<(T, usize)> = numbered.into_iter().collect();
    all.sort_unstable_by_key(|(_, number)| *number);
    all.into_iter().map(|(one, _)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;

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
