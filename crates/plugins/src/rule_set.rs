//! Many regular expressions of which one match is enough: the rules of `uri-blocker`, `ua-restriction` and `cors`.
//!
//! ```text
//!  text ──▶ one scan for the literals that rules cannot match without ──▶ the few rules whose literals are there
//!       ──▶ rules without a literal, joined into as few automata as fit ──▶ all of them
//! ```
//!
//! Each automaton is a DFA that is built when the configuration is read: a search takes one step a byte, whatever the
//! text is. Only if a DFA would be too large, it is built while it is used, with bounded work ([`BoundedSearch`]). The cost of a
//! search is counted: if it is more than a worker should spend, [`RuleSet::decide`] offloads it, and beyond
//! [`OFFLOADED_STEPS_MAX`] the request is refused.
//!
//! Resources with the same rules share a set, and the check before a write compiles it for the write, too.
//!
//! Rejected: one DFA of all rules (its size doubles with every `a.*b`).

use crate::patterns::{COMPILED_BYTES, Flags, nfa, parse};
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::NFA;
use regex_automata::{Input, MatchKind};
use regex_syntax::hir::{Class, Hir, HirKind};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use stillgate_plugin_api::{Answer, Flow};
use stillgate_route::regex::{BoundedSearch, RegexWork, TooMuchWork};
use stillgate_schema::CompileBudget;
use stillgate_schema::Fault;

/// Largest DFA of one rule, or of several joined rules.
const DFA_BYTES_MAX: usize = 512 * 1024;
/// Largest NFA of one rule, or of several joined rules.
const NFA_BYTES_MAX: usize = 1024 * 1024;
/// Most memory for building a DFA.
const BUILDING_BYTES_MAX: usize = 256 * 1024;
/// What an attempt costs that takes more.
const FAILED_COST: usize = 4 * BUILDING_BYTES_MAX;
/// Most rules that are joined in one DFA.
const JOINED_MAX: usize = 32;
/// Most states of all rules of a set for which no DFA can be built.
const SLOW_STATES_MAX: usize = 2_000;
/// Most bytes of a literal that are searched for: few literals can end at one place.
const LITERAL_BYTES_MAX: usize = 16;
/// Most literals of which a rule needs one; with more of them it counts as one without.
const ALTERNATIVES_MAX: usize = 16;

/// Most steps, of about a nanosecond, of a search on a worker.
pub(crate) const WORKER_STEPS_MAX: usize = 100_000;
/// Most steps of a search by another thread.
const OFFLOADED_STEPS_MAX: usize = 20_000_000;
/// Cost of a found literal.
const FOUND_STEPS: usize = 4;

/// Regular expressions, of which one match is enough.
pub(crate) struct RuleSet {
    /// Rules that are matched against every text.
    always: Vec<Engine>,
    /// Rules that are matched only if one of their literals occurs.
    rules: Vec<Engine>,
    literals: Option<Literals>,
    /// Its share of a [`CompileBudget`].
    cost: usize,
}

struct Literals {
    search: AhoCorasick,
    /// The rules of each literal.
    rules: Vec<Box<[u32]>>,
}

enum Engine {
    Dfa(Box<dense::DFA<Vec<u32>>>),
    Slow(Box<BoundedSearch>),
}

/// The body of the answer to a request that was made for the rules.
const TOO_LONG: &str = r#"{"error_msg":"comparing the request with the rules would take too long"}"#;

/// The search would exceed its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// The reason why a set cannot be compiled, and the rule to blame.
#[derive(Debug)]
pub(crate) struct RuleError {
    pub(crate) rule: usize,
    pub(crate) fault: Fault,
}

thread_local! {
    /// The rules that a search has checked. Workers are threads: each has one, whatever the number of sets.
    static SEEN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl RuleSet {
    /// The set of these rules.
    pub(crate) fn of(rules: &[String], budget: &CompileBudget) -> Result<Arc<RuleSet>, RuleError> {
        let known = SHARED.lock().unwrap_or_else(PoisonError::into_inner).find(rules);
        let set = match known {
            Some(set) => set,
            None => {
                // Without the lock, since this takes its time. Two that compile the same at once have two sets.
                let set = Arc::new(RuleSet::compile(rules, budget.remaining())?);
                SHARED.lock().unwrap_or_else(PoisonError::into_inner).add(rules, &set);
                set
            }
        };
        budget.pay(set.cost).map_err(|fault| RuleError { rule: 0, fault })?;
        Ok(set)
    }

    fn compile(rules: &[String], cost_max: usize) -> Result<RuleSet, RuleError> {
        let mut building =
            RuleSetBuilder { rules: Vec::new(), literals: HashMap::new(), cost: 0, cost_max, slow_states: 0 };
        let mut without: Vec<(usize, Hir)> = Vec::new();
        for (number, rule) in rules.iter().enumerate() {
            let hir = parse(rule, Flags::default()).map_err(|fault| RuleError { rule: number, fault })?;
            match required_literals(&hir) {
                Some(literals) => {
                    let engine = building.one(number, &hir)?;
                    building.add(engine, literals);
                }
                None => without.push((number, hir)),
            }
        }
        let mut always = Vec::new();
        for group in without.chunks(JOINED_MAX) {
            let all = Hir::alternation(group.iter().map(|(_, hir)| hir.clone()).collect());
            match nfa(&all, NFA_BYTES_MAX).and_then(|nfa| building.dfa(&nfa)) {
                Some(engine) if group.len() > 1 => always.push(engine),
                _ => {
                    for (number, hir) in group {
                        always.push(building.one(*number, hir)?);
                    }
                }
            }
        }
        building.finish(always)
    }

    /// Calls the continuation with whether some rule matches one of the texts: at once, or, if that takes long, when a
    /// thread that does not serve requests has found out.
    pub(crate) fn decide<'t, I: Iterator<Item = &'t [u8]>>(
        self: &Arc<RuleSet>,
        texts: impl Fn() -> I,
        then: impl FnOnce(bool) -> Flow + 'static,
    ) -> Flow {
        match self.search(texts(), WORKER_STEPS_MAX) {
            Ok(is_found) => then(is_found),
            Err(TooLong) => {
                let (rules, texts) = (self.clone(), texts().map(Box::from).collect::<Vec<Box<[u8]>>>());
                let search = move || rules.search(texts.iter().map(|text| &**text), OFFLOADED_STEPS_MAX);
                Flow::offload(search, |found, _| match found {
                    Ok(Ok(is_found)) => then(is_found),
                    Ok(Err(TooLong)) => Flow::Answer(Answer::json(400, TOO_LONG)),
                    Err(full) => full.into(),
                })
            }
        }
    }

    /// Whether some rule matches one of the texts, in at most so many steps.
    pub(crate) fn search<'t>(&self, texts: impl Iterator<Item = &'t [u8]>, steps_max: usize) -> Result<bool, TooLong> {
        let mut steps = Steps { left: steps_max };
        for text in texts {
            if self.matches(text, &mut steps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn matches(&self, text: &[u8], steps: &mut Steps) -> Result<bool, TooLong> {
        for engine in &self.always {
            if engine.matches(text, steps)? {
                return Ok(true);
            }
        }
        match &self.literals {
            None => Ok(false),
            Some(literals) => SEEN.with_borrow_mut(|seen| self.with_literals(literals, text, seen, steps)),
        }
    }

    fn with_literals(
        &self,
        literals: &Literals,
        text: &[u8],
        seen: &mut Vec<u64>,
        steps: &mut Steps,
    ) -> Result<bool, TooLong> {
        seen.clear();
        steps.take(text.len())?;
        for found in literals.search.find_overlapping_iter(text) {
            steps.take(FOUND_STEPS)?;
            // Most texts have none of the literals, and pay nothing for this.
            seen.resize(self.rules.len().div_ceil(64), 0);
            for rule in &*literals.rules[found.pattern().as_usize()] {
                let (word, bit) = (&mut seen[*rule as usize / 64], 1 << (rule % 64));
                if *word & bit == 0 {
                    *word |= bit;
                    if self.rules[*rule as usize].matches(text, steps)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }
}

/// The remaining steps of a search.
struct Steps {
    left: usize,
}

impl Steps {
    #[inline]
    fn take(&mut self, steps: usize) -> Result<(), TooLong> {
        self.left = self.left.checked_sub(steps).ok_or(TooLong)?;
        Ok(())
    }
}

impl Engine {
    fn matches(&self, text: &[u8], steps: &mut Steps) -> Result<bool, TooLong> {
        match self {
            Engine::Dfa(dfa) => {
                steps.take(text.len())?;
                // It has no quit bytes, so there is no error.
                Ok(matches!(dfa.try_search_fwd(&Input::new(text).earliest(true)), Ok(Some(_))))
            }
            Engine::Slow(search) => {
                let work = RegexWork::of_steps(steps.left);
                let found = search.is_match(text, &work);
                steps.left = work.steps_left();
                found.map_err(|TooMuchWork| TooLong)
            }
        }
    }
}

/// A set that is being compiled.
struct RuleSetBuilder {
    rules: Vec<Engine>,
    literals: HashMap<Box<[u8]>, Vec<u32>>,
    cost: usize,
    cost_max: usize,
    slow_states: usize,
}

impl RuleSetBuilder {
    /// The engine of one rule.
    fn one(&mut self, number: usize, hir: &Hir) -> Result<Engine, RuleError> {
        let too_large = |what: &str| RuleError {
            rule: number,
            fault: Fault::new(what).hint("write it with smaller repetitions, or without"),
        };
        let nfa = nfa(hir, NFA_BYTES_MAX).ok_or_else(|| too_large("matching the rule takes too much memory"))?;
        let engine = match self.dfa(&nfa) {
            Some(engine) => engine,
            None => self.slow(nfa).map_err(too_large)?,
        };
        match self.cost <= self.cost_max {
            true => Ok(engine),
            false => {
                let fault = Fault::new("the rules up to this one, with other plugins of this resource, cost too much");
                let hint = "write fewer of them, or smaller repetitions";
                Err(RuleError { rule: number, fault: fault.hint(hint) })
            }
        }
    }

    /// The DFA of a rule, unless it is too large.
    fn dfa(&mut self, nfa: &NFA) -> Option<Engine> {
        let config = dense::Config::new()
            .start_kind(StartKind::Unanchored)
            .match_kind(MatchKind::All)
            .accelerate(false)
            .dfa_size_limit(Some(DFA_BYTES_MAX))
            .determinize_size_limit(Some(BUILDING_BYTES_MAX));
        self.cost += nfa.memory_usage();
        let Ok(dfa) = dense::Builder::new().configure(config).build_from_nfa(nfa) else {
            self.cost += FAILED_COST;
            return None;
        };
        let bytes = dfa.memory_usage();
        // Each of its states stands for some of the NFA's.
        let steps = bytes / (dfa.stride() * size_of::<u32>()) * nfa.states().len();
        self.cost += bytes + steps;
        Some(Engine::Dfa(Box::new(dfa)))
    }

    fn slow(&mut self, nfa: NFA) -> Result<Engine, &'static str> {
        let states = nfa.states().len();
        self.cost += nfa.memory_usage() * COMPILED_BYTES;
        self.slow_states += states;
        if self.slow_states > SLOW_STATES_MAX {
            return Err("matching the rule takes too much time");
        }
        Ok(Engine::Slow(Box::new(BoundedSearch::new(nfa))))
    }

    fn add(&mut self, engine: Engine, literals: Vec<Box<[u8]>>) {
        let rule = self.rules.len() as u32;
        self.rules.push(engine);
        for literal in literals {
            let rules = self.literals.entry(literal).or_default();
            // A rule can need the same literal in two of its alternatives.
            if rules.last() != Some(&rule) {
                rules.push(rule);
            }
        }
    }

    fn finish(self, always: Vec<Engine>) -> Result<RuleSet, RuleError> {
        if self.literals.is_empty() {
            return Ok(RuleSet { always, rules: Vec::new(), literals: None, cost: self.cost });
        }
        let (texts, rules): (Vec<_>, Vec<_>) = self.literals.into_iter().unzip();
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(&texts)
            .map_err(|error| RuleError { rule: 0, fault: Fault::new(format!("the rules are too many: {error}")) })?;
        let rules = rules.into_iter().map(Into::into).collect();
        let cost = self.cost + search.memory_usage();
        Ok(RuleSet { always, rules: self.rules, literals: Some(Literals { search, rules }), cost })
    }
}

/// The sets that are in use, by their rules, and those that were compiled last.
#[derive(Default)]
struct SharedSets {
    in_use: HashMap<Box<[String]>, Weak<RuleSet>>,
    /// Number of entries at which those of dropped sets are removed.
    swept_at: usize,
    recent: VecDeque<Arc<RuleSet>>,
}

/// Resources are compiled several times for one write, one after the other: what was compiled last is kept for that.
static SHARED: LazyLock<Mutex<SharedSets>> = LazyLock::new(Mutex::default);

/// Most sets that are kept because they were compiled last.
const RECENT_MAX: usize = 4;

impl SharedSets {
    fn find(&self, rules: &[String]) -> Option<Arc<RuleSet>> {
        self.in_use.get(rules)?.upgrade()
    }

    fn add(&mut self, rules: &[String], set: &Arc<RuleSet>) {
        if self.in_use.len() >= self.swept_at {
            self.in_use.retain(|_, set| set.strong_count() > 0);
            self.swept_at = 2 * self.in_use.len() + 16;
        }
        self.in_use.insert(rules.into(), Arc::downgrade(set));
        self.recent.push_back(set.clone());
        let cost = |recent: &VecDeque<Arc<RuleSet>>| recent.iter().map(|set| set.cost).sum::<usize>();
        while self.recent.len() > RECENT_MAX || cost(&self.recent) > CompileBudget::RESOURCE {
            self.recent.pop_front();
        }
    }
}

/// Literals of which every match contains at least one, in lower case; `None`: there are none worth searching for.
fn required_literals(hir: &Hir) -> Option<Vec<Box<[u8]>>> {
    let best = best_of(hir)?;
    (shortest(&best) > 1).then_some(best)
}

fn shortest(literals: &[Box<[u8]>]) -> usize {
    literals.iter().map(|literal| literal.len()).min().unwrap_or(0)
}

fn best_of(hir: &Hir) -> Option<Vec<Box<[u8]>>> {
    match hir.kind() {
        HirKind::Alternation(branches) => {
            let mut all = Vec::new();
            for branch in branches {
                all.extend(best_of(branch)?);
            }
            (all.len() <= ALTERNATIVES_MAX).then_some(all)
        }
        HirKind::Concat(parts) => best_of_concat(parts),
        HirKind::Capture(capture) => best_of(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => best_of(&repetition.sub),
        HirKind::Literal(_) | HirKind::Class(_) => best_of_concat(std::slice::from_ref(hir)),
        HirKind::Repetition(_) | HirKind::Look(_) | HirKind::Empty => None,
    }
}

/// The best of the literals between the other parts and those within them: the set whose shortest literal is longest.
fn best_of_concat(parts: &[Hir]) -> Option<Vec<Box<[u8]>>> {
    let mut best: Vec<Box<[u8]>> = Vec::new();
    let mut consider = |found: Vec<Box<[u8]>>| {
        if shortest(&found) > shortest(&best) {
            best = found;
        }
    };
    let mut run = Vec::new();
    for part in parts {
        match part.kind() {
            HirKind::Literal(literal) => run.extend(literal.0.to_ascii_lowercase()),
            HirKind::Class(class) if let Some(byte) = only_byte(class) => run.push(byte),
            HirKind::Look(_) | HirKind::Empty => {}
            HirKind::Class(_) => consider(take_end(&mut run)),
            _ => {
                consider(take_end(&mut run));
                if let Some(found) = best_of(part) {
                    consider(found);
                }
            }
        }
    }
    consider(take_end(&mut run));
    (!best.is_empty()).then_some(best)
}

/// The end of a literal, which is more selective than its beginning: paths begin alike.
fn take_end(run: &mut Vec<u8>) -> Vec<Box<[u8]>> {
    let run = std::mem::take(run);
    vec![run[run.len().saturating_sub(LITERAL_BYTES_MAX)..].into()]
}

/// The byte of a class that is one letter in both cases, in lower case.
fn only_byte(class: &Class) -> Option<u8> {
    let Class::Bytes(class) = class else { return None };
    let mut bytes = class.iter().flat_map(|range| range.start()..=range.end());
    let (first, second) = (bytes.next()?.to_ascii_lowercase(), bytes.next());
    (bytes.next().is_none() && second.is_none_or(|byte| byte.to_ascii_lowercase() == first)).then_some(first)
}

#[cfg(test)]
mod tests;
