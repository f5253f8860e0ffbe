//! The changes between two programs: a pure function of their profiles.
//!
//! Costs are per unit of work and relative to the total cost of A, so unchanged functions stay the same whatever else
//! has grown, and the changes of all functions add up to that of the total.

use super::{isolated, words};
use crate::result::explain::{
    CostChange, ExplainAnalysis, ExplainDesign, ExplainResult, FunctionChange, ProgramProfile, Sides, Stack,
};
use std::collections::{BTreeSet, HashMap};
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};
use stillgate_stats::{Interval, Random, RateChange, Slice, rate_changes};

/// Functions and stacks below this share of both programs are left out: they cannot explain anything.
const SHARE_MIN: f64 = 0.0005;

/// The largest items that are analysed; a page with more is not readable.
const ITEMS_MAX: usize = 600;

const RESAMPLES: usize = 1000;

/// A smaller change of counted instructions does not count, however exact; as a share of all instructions of A.
const COUNTED_MIN: f64 = 0.001;

/// A larger share of time in code without names is reported.
const UNNAMED_MAX: f64 = 0.2;

/// The kind of a profile's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProfileValueKind {
    /// Values scatter.
    Sampled,
    /// Values hardly scatter, and are few.
    Counted,
}

/// The analysis of a result's profiles.
pub(crate) fn analyse(result: &ExplainResult) -> ExplainAnalysis {
    let design = &result.design;
    let cpu = functions(&result.cpu, ProfileValueKind::Sampled, design, cost(&result.cpu));
    let counted =
        result.instructions.as_ref().map(|sides| functions(sides, ProfileValueKind::Counted, design, cost(sides)));
    let lua = result.lua.as_ref().map(|lua| {
        // Time in the interpreter is part of all time, so its changes are relative to the same total.
        let whole = cost(&lua.cpu);
        let of = |sides| functions(sides, ProfileValueKind::Sampled, design, whole);
        table(&of(&lua.cpu), Some(&of(&lua.bytecode)), ShareBase::All)
    });
    let mut analysis = ExplainAnalysis {
        cpu: cpu.whole,
        instructions: counted.as_ref().map(|counted| counted.whole),
        functions: table(&cpu, counted.as_ref(), ShareBase::Counted),
        isolated: isolated::compare(result),
        lua: lua.unwrap_or_default(),
        missing: missing(result),
        interrupted_after: result.interrupted.then_some(result.cpu.a.work.len()),
        sentence: String::new(),
    };
    analysis.sentence = words::sentence(design, &analysis);
    analysis
}

/// What shares of time relate to in a ratio.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShareBase {
    All,
    /// The kernel's instructions are not counted: a ratio is to the time outside the kernel.
    Counted,
}

/// A row for each function, the largest change first.
fn table(cpu: &Figures<'_>, counted: Option<&Figures<'_>>, whole: ShareBase) -> Vec<FunctionChange> {
    let names: BTreeSet<&str> =
        cpu.by_name.keys().chain(counted.iter().flat_map(|counted| counted.by_name.keys())).copied().collect();
    let counted_time = [0, 1].map(|side| {
        let shares = names.iter().filter(|name| counted.is_some_and(|counted| counted.of(name).0[side] > 0.0));
        if whole == ShareBase::All { 1.0 } else { shares.map(|name| cpu.of(name).0[side]).sum::<f64>() }
    });
    let mut functions: Vec<FunctionChange> = names
        .into_iter()
        .map(|name| {
            let (cpu_share, cpu_change) = cpu.of(name);
            let of_counted = counted.map(|counted| counted.of(name));
            let ratio = |side: usize| {
                let instructions = of_counted?.0[side] * counted_time[side];
                (instructions > 0.0).then(|| cpu_share[side] / instructions)
            };
            FunctionChange {
                function: name.to_owned(),
                cpu_share,
                instruction_share: of_counted.map(|(share, _)| share),
                ratio: [ratio(0), ratio(1)],
                cpu: cpu_change,
                instructions: of_counted.map(|(_, change)| change),
            }
        })
        .collect();
    functions.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).expect("changes are finite"));
    functions
}

/// The total cost of A per unit of work.
fn cost(sides: &Sides) -> f64 {
    let spent: i64 = sides.a.stacks.iter().flat_map(|stack| &stack.spent).sum();
    // If A costs nothing, nothing can change; this only avoids a division by zero.
    (spent as f64).max(1.0) / sides.a.work.iter().sum::<f64>()
}

/// Certain changes first, each by its size.
fn rank(of: &FunctionChange) -> (bool, f64) {
    let both = [Some(of.cpu), of.instructions];
    let sizes = |certain: bool| {
        let changes = both.iter().flatten().filter(move |change| change.is_certain || !certain);
        changes.map(|change| change.value.abs()).fold(0.0, f64::max)
    };
    let is_certain = both.iter().flatten().any(|change| change.is_certain);
    (is_certain, sizes(is_certain))
}

/// The figures of one kind of profile.
struct Figures<'a> {
    whole: CostChange,
    by_name: HashMap<&'a str, ([f64; 2], CostChange)>,
}

impl Figures<'_> {
    /// For a missing function: zero, and no change.
    fn of(&self, name: &str) -> ([f64; 2], CostChange) {
        let none = CostChange { value: 0.0, low: 0.0, high: 0.0, is_certain: false };
        self.by_name.get(name).copied().unwrap_or(([0.0; 2], none))
    }
}

/// The self cost of each function.
fn functions<'a>(sides: &'a Sides, kind: ProfileValueKind, design: &ExplainDesign, cost: f64) -> Figures<'a> {
    let own = |side: &'a ProgramProfile| {
        let mut costs: Costs<&'a str> = Costs::new(side);
        for stack in &side.stacks {
            if let Some(innermost) = stack.functions.last() {
                costs.add(&side.functions[*innermost], &stack.spent);
            }
        }
        costs
    };
    let (a, b) = (own(&sides.a), own(&sides.b));
    let items = a.items(&b);
    let mut changes = changes(&a, &b, &items, kind, design, cost);
    let whole = changes.remove(0);
    let by_name =
        items.into_iter().zip(changes).map(|(name, change)| (name, ([a.share(&name), b.share(&name)], change)));
    Figures { whole, by_name: by_name.collect() }
}

/// The stacks that changed with certainty, by names from the outermost function inwards; `None`: all stacks count.
pub(super) fn certain_stacks(sides: &Sides, kind: ProfileValueKind, design: &ExplainDesign) -> Vec<Vec<String>> {
    let total = |side: &ProgramProfile| {
        let mut costs: Costs<Vec<String>> = Costs::new(side);
        for stack in &side.stacks {
            let names: Vec<String> = stack.functions.iter().map(|number| side.functions[*number].clone()).collect();
            for depth in 1..=names.len() {
                costs.add(names[..depth].to_vec(), &stack.spent);
            }
        }
        costs
    };
    let (a, b) = (total(&sides.a), total(&sides.b));
    let items = a.items(&b);
    let changes = changes(&a, &b, &items, kind, design, cost(sides));
    let all = std::iter::once(Vec::new()).chain(items);
    all.zip(changes).filter(|(_, change)| change.is_certain).map(|(names, _)| names).collect()
}

/// The costs of items, slice by slice.
struct Costs<K> {
    work: Vec<f64>,
    whole: Vec<f64>,
    items: HashMap<K, Vec<f64>>,
}

impl<K: std::hash::Hash + Eq + Ord + Clone> Costs<K> {
    fn new(side: &ProgramProfile) -> Costs<K> {
        let of_slice = |slice: usize| side.stacks.iter().map(|stack| stack.spent[slice] as f64).sum();
        Costs { work: side.work.clone(), whole: (0..side.work.len()).map(of_slice).collect(), items: HashMap::new() }
    }

    fn add(&mut self, item: K, spent: &[i64]) {
        let of_item = self.items.entry(item).or_insert_with(|| vec![0.0; spent.len()]);
        of_item.iter_mut().zip(spent).for_each(|(sum, cost)| *sum += *cost as f64);
    }

    fn share(&self, item: &K) -> f64 {
        let whole: f64 = self.whole.iter().sum();
        self.items.get(item).map_or(0.0, |spent| spent.iter().sum::<f64>() / whole.max(f64::MIN_POSITIVE))
    }

    /// The items that matter on either side, the largest first.
    fn items(&self, other: &Costs<K>) -> Vec<K> {
        let all: BTreeSet<&K> = self.items.keys().chain(other.items.keys()).collect();
        let mut all: Vec<(f64, &K)> =
            all.into_iter().map(|item| (self.share(item).max(other.share(item)), item)).collect();
        all.retain(|(share, _)| *share >= SHARE_MIN);
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.into_iter().take(ITEMS_MAX).map(|(_, item)| item.clone()).collect()
    }

    /// The total, then the items.
    fn slices(&self, items: &[K]) -> Vec<Slice> {
        let spent = |slice: usize| {
            let of_item = |item: &K| self.items.get(item).map_or(0.0, |spent| spent[slice]);
            std::iter::once(self.whole[slice]).chain(items.iter().map(of_item)).collect()
        };
        self.work.iter().enumerate().map(|(slice, work)| Slice { work: *work, spent: spent(slice) }).collect()
    }
}

/// The change of the total, then of each item, as shares of `cost`: the total cost of A.
fn changes<K: std::hash::Hash + Eq + Ord + Clone>(
    a: &Costs<K>,
    b: &Costs<K>,
    items: &[K],
    kind: ProfileValueKind,
    design: &ExplainDesign,
    cost: f64,
) -> Vec<CostChange> {
    let (of_a, of_b) = (a.slices(items), b.slices(items));
    let found = match kind {
        ProfileValueKind::Sampled => {
            rate_changes(&of_a, &of_b, RESAMPLES, design.confidence, &mut Random::new(design.seed))
        }
        ProfileValueKind::Counted => {
            Some((0..=items.len()).map(|item| counted(&of_a, &of_b, item, COUNTED_MIN * cost)).collect())
        }
    };
    let relative = |change: RateChange| CostChange {
        value: change.value / cost,
        low: change.interval.low / cost,
        high: change.interval.high / cost,
        is_certain: change.is_certain,
    };
    let unknown = CostChange { value: 0.0, low: 0.0, high: 0.0, is_certain: false };
    found.map_or_else(|| vec![unknown; items.len() + 1], |found| found.into_iter().map(relative).collect())
}

/// For counts that hardly scatter: a change is certain if no count of one side is within the range of the other.
fn counted(a: &[Slice], b: &[Slice], item: usize, least: f64) -> RateChange {
    let rates = |slices: &[Slice]| -> Vec<f64> { slices.iter().map(|slice| slice.spent[item] / slice.work).collect() };
    let (a, b) = (rates(a), rates(b));
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let [low_a, low_b] = [&a, &b].map(|rates| rates.iter().copied().fold(f64::INFINITY, f64::min));
    let [high_a, high_b] = [&a, &b].map(|rates| rates.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    let interval = Interval { low: low_b - high_a, high: high_b - low_a };
    let value = mean(&b) - mean(&a);
    RateChange { value, interval, is_certain: (interval.low > 0.0 || interval.high < 0.0) && value.abs() >= least }
}

/// Signs that a program was stripped, or built without frame pointers.
fn missing(result: &ExplainResult) -> Vec<String> {
    let mut missing = Vec::new();
    for (side, profiled) in [("A", &result.cpu.a), ("B", &result.cpu.b)] {
        let spent = |stack: &crate::result::explain::Stack| stack.spent.iter().sum::<i64>() as f64;
        let whole: f64 = profiled.stacks.iter().map(spent).sum::<f64>().max(1.0);
        let share = |is: &dyn Fn(&[usize]) -> bool| {
            profiled.stacks.iter().filter(|stack| is(&stack.functions)).map(spent).sum::<f64>() / whole
        };
        let is_unnamed = |number: &usize| profiled.functions[*number] == UNNAMED;
        let unnamed = share(&|stack| stack.last().is_some_and(is_unnamed));
        if unnamed > UNNAMED_MAX {
            missing.push(format!(
                "{side} spends {:.0}% of its time in functions without names: it is stripped; build it with its symbols \
                 (no `strip`, no `-s`; Cargo: `strip = false`)",
                unnamed * 100.0
            ));
        }
        let single = share(&|stack| stack.len() < 2);
        if single > 0.5 && unnamed <= UNNAMED_MAX {
            missing.push(format!(
                "{:.0}% of {side}'s stacks have one function only: build it with frame pointers \
                 (-fno-omit-frame-pointer; Rust: -C force-frame-pointers=yes) to see who called",
                single * 100.0
            ));
        }
    }
    missing
}

// Profiles of one program, slice by slice, with names that match those of another build and another tool.

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
    use crate::result::explain::{LuaSides, Stack};

    fn design() -> ExplainDesign {
        ExplainDesign {
            a: "old".to_owned(),
            b: "new".to_owned(),
            work: "run".to_owned(),
            command: None,
            mix: None,
            slices: 10,
            slice_s: 1,
            hz: 999,
            seed: 1,
            confidence: 0.95,
        }
    }

    /// Ten slices of `main` calling functions of these costs, which scatter by some 3%.
    fn side(costs: &[(&str, f64)], seed: u64) -> ProgramProfile {
        let mut random = Random::new(seed);
        let mut functions = vec!["main".to_owned()];
        let stacks = costs.iter().map(|(name, cost)| {
            functions.push((*name).to_owned());
            let spent = (0..10).map(|_| (cost * 1e6 * (0.03 * random.normal()).exp()) as i64);
            Stack { functions: vec![0, functions.len() - 1], spent: spent.collect() }
        });
        let stacks = stacks.collect();
        ProgramProfile { work: vec![1.0; 10], functions, stacks, notes: Vec::new() }
    }

    fn result(a: ProgramProfile, b: ProgramProfile) -> ExplainResult {
        let analysis = ExplainAnalysis::empty();
        let (cpu, instructions_missing) = (Sides { a, b }, Some("not requested".to_owned()));
        ExplainResult {
            design: design(),
            cpu,
            instructions: None,
            instructions_missing,
            isolated: Vec::new(),
            lua: None,
            lua_missing: None,
            interrupted: false,
            analysis,
        }
    }

    #[test]
    fn what_grew_is_first_and_what_stayed_is_unchanged() {
        let a = side(&[("parse", 50.0), ("copy", 30.0), ("find", 20.0)], 1);
        let b = side(&[("parse", 50.0), ("copy", 30.0), ("find", 20.0), ("check", 10.0)], 2);
        let result = result(a, b);
        let analysis = analyse(&result);
        let first = &analysis.functions[0];
        assert_eq!((first.function.as_str(), first.cpu.is_certain), ("check", true));
        assert!((first.cpu.value - 0.1).abs() < 0.01 && first.cpu_share[0] == 0.0, "{first:?}");
        // Their shares have shrunk; their costs have not changed.
        assert!(analysis.functions[1..].iter().all(|of| !of.cpu.is_certain), "{analysis:?}");
        let sum: f64 = analysis.functions.iter().map(|of| of.cpu.value).sum();
        assert!((sum - analysis.cpu.value).abs() < 1e-9, "{sum}");
        assert!(analysis.sentence.contains("check"), "{}", analysis.sentence);
        let certain = certain_stacks(&result.cpu, ProfileValueKind::Sampled, &result.design);
        assert!(certain.contains(&vec!["main".to_owned(), "check".to_owned()]), "{certain:?}");
        assert!(!certain.contains(&vec!["main".to_owned(), "parse".to_owned()]), "{certain:?}");
    }

    #[test]
    fn the_same_program_has_no_certain_change() {
        let costs = [("parse", 50.0), ("copy", 30.0), ("find", 20.0)];
        let alarms = (0..40_u64).filter(|seed| {
            let result = result(side(&costs, 2 * seed), side(&costs, 2 * seed + 1));
            analyse(&result).functions.iter().any(|of| of.cpu.is_certain)
        });
        assert!(alarms.count() <= 6);
    }

    #[test]
    fn counted_changes_need_disjoint_counts_and_some_size() {
        let slices = |counts: &[f64]| -> Vec<Slice> {
            counts.iter().map(|count| Slice { work: 1.0, spent: vec![*count] }).collect()
        };
        let certain = |a: &[f64], b: &[f64]| counted(&slices(a), &slices(b), 0, 1.0).is_certain;
        assert!(certain(&[100.0, 101.0], &[110.0, 111.0]));
        assert!(!certain(&[100.0, 110.0], &[109.0, 120.0]));
        assert!(!certain(&[100.0, 100.0], &[100.5, 100.5]));
    }

    #[test]
    fn functions_in_lua_have_a_table_of_their_own_with_a_ratio() {
        let mut result = result(side(&[("lua_pcall", 50.0)], 1), side(&[("lua_pcall", 60.0)], 2));
        // Compiled in A; in B `key` is interpreted, and so are its callees.
        let none = |seed| side(&[("key", 0.0), ("get", 0.0)], seed);
        let cpu = Sides { a: side(&[("key", 6.0), ("get", 4.0)], 3), b: side(&[("key", 9.0), ("get", 4.0)], 4) };
        let bytecode = Sides { a: none(5), b: side(&[("key", 8.0), ("get", 0.2)], 6) };
        result.lua = Some(LuaSides { cpu, bytecode });
        let lua = analyse(&result).lua;
        assert_eq!((lua[0].function.as_str(), lua[0].cpu.is_certain), ("key", true), "{lua:?}");
        assert!((lua[0].cpu.value - 0.3).abs() < 0.05, "of all time in Lua: {:?}", lua[0]);
        let bytecode = lua[0].instructions.unwrap();
        assert!(bytecode.is_certain && (bytecode.value - 0.8).abs() < 0.1, "of the same whole: {bytecode:?}");
        let get = lua.iter().find(|of| of.function == "get").unwrap();
        assert!(get.ratio[0].is_none() && get.ratio[1].is_some_and(|ratio| ratio > 8.0), "{get:?}");
        // Nothing runs in Lua.
        let nothing = || Sides { a: none(7), b: none(8) };
        result.lua = Some(LuaSides { cpu: nothing(), bytecode: nothing() });
        assert!(analyse(&result).lua.iter().all(|of| !of.cpu.is_certain && of.cpu.value == 0.0));
    }

    #[test]
    fn a_stripped_program_is_said_so() {
        let mut result = result(side(&[(UNNAMED, 50.0), ("memcpy", 10.0)], 1), side(&[("find", 50.0)], 2));
        let missing = analyse(&result).missing;
        assert!(missing.len() == 1 && missing[0].starts_with("A spends 83%"), "{missing:?}");
        for stack in &mut result.cpu.b.stacks {
            stack.functions.remove(0);
        }
        assert!(analyse(&result).missing[1].contains("frame pointers"));
    }
}

#[cfg(test)]
mod fold_tests {
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
