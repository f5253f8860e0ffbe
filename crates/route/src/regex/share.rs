//! An automaton of many patterns in which equal beginnings exist once.
//!
//! As the library builds it, every pattern has states of its own, and each state that is built from them while
//! searching lists the first of every pattern, since each may begin anywhere: with five thousand patterns ten kilobytes
//! for each new byte of a value. With the beginnings in one tree it is a few.

use regex_automata::nfa::thompson::{Builder, NFA, State, Transition};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::{PatternID, StateID};

/// How many steps of a pattern's beginning are compared.
const STEPS_MAX: usize = 64;

/// A step from one state to its only successor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum AutomatonStep {
    Look(u32),
    Range(u8, u8),
    Ranges(Vec<(u8, u8)>),
}

/// The beginning of a pattern, up to where it branches.
struct PatternStart {
    /// The states, each with the step that leads on.
    steps: Vec<(AutomatonStep, StateID)>,
    end: StateID,
}

/// An equivalent automaton with shared beginnings; `None` if it would exceed the limit, or has an unexpected form.
pub(super) fn share_prefixes(nfa: &NFA, bytes_max: usize) -> Option<NFA> {
    let mut chains: Vec<PatternStart> =
        (0..nfa.pattern_len()).map(|pattern| chain(nfa, pattern)).collect::<Option<_>>()?;
    chains.sort_by(|a, b| a.steps.iter().map(|(step, _)| step).cmp(b.steps.iter().map(|(step, _)| step)));
    let (mut builder, _) = copy_states(nfa, &vec![true; nfa.states().len()], bytes_max)?;
    let root = node(&mut builder, &chains, 0)?;
    let start = if nfa.is_always_start_anchored() { root } else { unanchored_start(&mut builder, root)? };
    let shared = builder.build(root, start).ok()?;
    // The states that the tree replaces still exist, and the size of caches depends on the number of states.
    let (builder, numbers) = copy_states(&shared, &reachable(&shared), bytes_max)?;
    let number = |state: StateID| numbers[state.as_usize()];
    builder.build(number(shared.start_anchored()), number(shared.start_unanchored())).ok()
}

fn chain(nfa: &NFA, pattern: usize) -> Option<PatternStart> {
    let mut end = nfa.start_pattern(PatternID::new(pattern).ok()?)?;
    let mut steps = Vec::new();
    while steps.len() < STEPS_MAX {
        let (step, next) = match nfa.state(end) {
            State::Look { look, next } => (AutomatonStep::Look(look.as_repr()), *next),
            State::ByteRange { trans } => (AutomatonStep::Range(trans.start, trans.end), trans.next),
            State::Sparse(sparse) => {
                let next = sparse.transitions.first()?.next;
                if sparse.transitions.iter().any(|trans| trans.next != next) {
                    break;
                }
                (AutomatonStep::Ranges(sparse.transitions.iter().map(|trans| (trans.start, trans.end)).collect()), next)
            }
            _ => break,
        };
        steps.push((step, end));
        end = next;
    }
    Some(PatternStart { steps, end })
}

/// Marks the states that a search can reach, and those that report a match.
fn reachable(nfa: &NFA) -> Vec<bool> {
    let mut seen: Vec<bool> = nfa.states().iter().map(|state| matches!(state, State::Match { .. })).collect();
    let mut open = vec![nfa.start_anchored(), nfa.start_unanchored()];
    while let Some(number) = open.pop() {
        if std::mem::replace(&mut seen[number.as_usize()], true) {
            continue;
        }
        match nfa.state(number) {
            State::ByteRange { trans } => open.push(trans.next),
            State::Sparse(sparse) => open.extend(sparse.transitions.iter().map(|trans| trans.next)),
            State::Dense(dense) => open.extend(dense.transitions.iter().copied()),
            State::Look { next, .. } | State::Capture { next, .. } => open.push(*next),
            State::Union { alternates } => open.extend(alternates.iter().copied()),
            State::BinaryUnion { alt1, alt2 } => open.extend([*alt1, *alt2]),
            State::Fail | State::Match { .. } => {}
        }
    }
    seen
}

/// A builder with some states of an automaton, and their numbers there by their old numbers. The kept states must
/// include all that they lead to, and all matches.
fn copy_states(nfa: &NFA, kept: &[bool], bytes_max: usize) -> Option<(Builder, Vec<StateID>)> {
    let mut next = 0;
    let number = |kept: &bool| {
        let number = StateID::new(next).ok();
        next += usize::from(*kept);
        number
    };
    let numbers: Vec<StateID> = kept.iter().map(number).collect::<Option<_>>()?;
    let moved = |state: &StateID| numbers[state.as_usize()];
    let transition = |trans: &Transition| Transition { next: moved(&trans.next), ..*trans };
    let mut builder = Builder::new();
    builder.set_utf8(nfa.is_utf8());
    builder.set_look_matcher(nfa.look_matcher().clone());
    builder.set_size_limit(Some(bytes_max)).ok()?;
    for (number, state) in nfa.states().iter().enumerate().filter(|(number, _)| kept[*number]) {
        let copy = match state {
            State::ByteRange { trans } => builder.add_range(transition(trans)),
            State::Sparse(sparse) => builder.add_sparse(sparse.transitions.iter().map(transition).collect()),
            State::Look { look, next } => builder.add_look(moved(next), *look),
            State::Union { alternates } => builder.add_union(alternates.iter().map(moved).collect()),
            State::BinaryUnion { alt1, alt2 } => builder.add_union(vec![moved(alt1), moved(alt2)]),
            State::Fail => builder.add_fail(),
            State::Match { pattern_id } => {
                // Patterns are numbered as they are begun.
                if builder.start_pattern().ok()? != *pattern_id {
                    return None;
                }
                let copy = builder.add_match();
                // The start of a single pattern. Searches never start there, but the library derives from it how
                // patterns depend on the byte before; giving the start of all patterns once is enough for that.
                let start = if pattern_id.as_usize() == 0 { moved(&nfa.start_anchored()) } else { numbers[number] };
                builder.finish_pattern(start).ok()?;
                copy
            }
            State::Dense(_) | State::Capture { .. } => return None,
        };
        if copy.ok()? != numbers[number] {
            return None;
        }
    }
    Some((builder, numbers))
}

/// The state from which all chains continue at a depth up to which they are equal. They are sorted, and at least one.
/// `None` where the limit is exceeded.
fn node(builder: &mut Builder, chains: &[PatternStart], depth: usize) -> Option<StateID> {
    if let [chain] = chains {
        return Some(chain.steps.get(depth).map_or(chain.end, |(_, state)| *state));
    }
    // The shorter of two chains that are equal so far comes first.
    let ended = chains.partition_point(|chain| chain.steps.len() <= depth);
    let mut alternates: Vec<StateID> = chains[..ended].iter().map(|chain| chain.end).collect();
    let mut branches: Vec<Vec<Transition>> = Vec::new();
    for equal in chains[ended..].chunk_by(|a, b| a.steps[depth].0 == b.steps[depth].0) {
        let next = node(builder, equal, depth + 1)?;
        let transition = |(start, end): (u8, u8)| Transition { start, end, next };
        match &equal[0].steps[depth].0 {
            AutomatonStep::Look(look) => {
                let look = Look::from_repr(*look).expect("it was made from a look");
                alternates.push(builder.add_look(next, look).ok()?);
            }
            AutomatonStep::Range(start, end) => branches.push(vec![transition((*start, *end))]),
            AutomatonStep::Ranges(ranges) => branches.push(ranges.iter().copied().map(transition).collect()),
        }
    }
    let mut all = branches.concat();
    all.sort_unstable_by_key(|transition| transition.start);
    if all.windows(2).all(|pair| pair[0].end < pair[1].start) {
        branches = if all.is_empty() { Vec::new() } else { vec![all] };
    }
    for branch in branches {
        alternates.push(builder.add_sparse(branch).ok()?);
    }
    match *alternates {
        [only] => Some(only),
        _ => builder.add_union(alternates).ok(),
    }
}

/// The state from which the root is reached before every byte.
fn unanchored_start(builder: &mut Builder, root: StateID) -> Option<StateID> {
    let start = builder.add_union(vec![root]).ok()?;
    let skip = builder.add_range(Transition { start: 0, end: u8::MAX, next: start }).ok()?;
    builder.patch(start, skip).ok()?;
    Some(start)
}
