//! Stacks of names as a profile: equal ones are merged.

use std::collections::HashMap;
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};

/// Number of different stacks of a profile; further ones are only counted.
const STACKS_MAX: usize = 1_000_000;

/// A function and a line in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) function: String,
    pub(super) file: String,
    /// Zero: unknown.
    pub(super) line: i64,
}

/// Stacks so far.
#[derive(Debug, Default)]
pub(super) struct StackCollector {
    functions: HashMap<Function, usize>,
    places: HashMap<(usize, i64), usize>,
    threads: HashMap<String, usize>,
    /// By thread and places, the innermost first: number of samples, and sum of their values.
    stacks: HashMap<(usize, Vec<usize>), (i64, i64)>,
    unplaced: u64,
}

/// Properties of a profile's values.
#[derive(Debug)]
pub(super) struct ValueMeaning {
    /// Type and unit of the values.
    pub(super) value: ValueType,
    /// Value between two samples.
    pub(super) period: i64,
    /// Whether the number of samples means something.
    pub(super) is_sampled: bool,
    pub(super) time_ns: i64,
    pub(super) duration_ns: i64,
    pub(super) notes: Vec<String>,
}

impl StackCollector {
    /// Adds a stack, the innermost frame first.
    pub(super) fn add(&mut self, thread: &str, frames: &[Frame], value: i64) {
        let places = frames.iter().map(|frame| self.place(frame)).collect();
        let next = self.threads.len();
        let thread = match self.threads.get(thread) {
            Some(number) => *number,
            None => *self.threads.entry(thread.to_owned()).or_insert(next),
        };
        let (key, is_full) = ((thread, places), self.stacks.len() >= STACKS_MAX);
        match self.stacks.get_mut(&key) {
            Some((count, sum)) => (*count, *sum) = (*count + 1, *sum + value),
            None if is_full => self.unplaced += 1,
            None => drop(self.stacks.insert(key, (1, value))),
        }
    }

    fn place(&mut self, frame: &Frame) -> usize {
        let next = self.functions.len();
        let function = Function { name: frame.function.clone(), file: frame.file.clone() };
        let function = *self.functions.entry(function).or_insert(next);
        let next = self.places.len();
        *self.places.entry((function, frame.line)).or_insert(next)
    }

    /// Whether it is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The profile of all stacks.
    pub(super) fn finish(self, meaning: ValueMeaning) -> Profile {
        let ValueMeaning { value, period, is_sampled, time_ns, duration_ns, mut notes } = meaning;
        if self.unplaced > 0 {
            notes.push(format!("{} stacks are missing: there were too many different ones", self.unplaced));
        }
        let values = match is_sampled {
            true => vec![ValueType::new("samples", "count"), value.clone()],
            false => vec![value.clone()],
        };
        let location = |(function, line)| {
            let lines = vec![Line { function, line }];
            Location { address: 0, mapping: None, lines }
        };
        let threads = by_number(self.threads);
        let mut stacks: Vec<_> = self.stacks.into_iter().collect();
        stacks.sort_unstable();
        let samples = stacks.into_iter().map(|((thread, stack), (count, sum))| Sample {
            stack,
            values: if is_sampled { vec![count, sum] } else { vec![sum] },
            labels: vec![(THREAD.to_owned(), Label::Text(threads[thread].clone()))],
        });
        Profile {
            main: values.len() - 1,
            values,
            period: (value, period),
            time_ns,
            duration_ns,
            notes,
            mappings: Vec::new(),
            functions: by_number(self.functions),
            locations: by_number(self.places).into_iter().map(location).collect(),
            samples: samples.collect(),
        }
    }
}

/// The keys in the order of their numbers, which go from zero without a gap.
fn by_number<K>(numbered: HashMap<K, usize>) -> Vec<K> {
    let mut all: Vec<(usize, K)> = numbered.into_iter().map(|(key, number)| (number, key)).collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, key)| key).collect()
}
