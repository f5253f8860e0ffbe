//! Conditions in their simplest form, with the same meaning.
//!
//! Bottom-up, in one pass: negations are pushed down to predicates (no further: a negated predicate holds for an absent
//! field, so `!(a == 1)` is not `a != 1`), chains within chains are joined, and in each chain parts that follow from
//! their siblings are removed. Implications beyond equality are looked for ([`implies`]) among few siblings only, so
//! that the work stays near-linear for the longest chains.

use crate::condition::decided::{always, never};
use crate::condition::implies::implies;
use crate::condition::{Condition, Predicate, Test};
use hashbrown::HashMap;
use std::sync::Arc;

/// Chains with more predicates than this are only searched for equal ones.
const COMPARED_MAX: usize = 16;
/// How often a chain is simplified again because a part of it became simpler.
const ROUNDS_MAX: usize = 4;

impl Condition {
    /// The equivalent condition in its simplest form: `Not` only around predicates, no `True` or `False` inside, no
    /// chain in a chain of the same kind, no predicate that its siblings decide.
    pub fn simplified(&self) -> Condition {
        simplify(self, false)
    }
}

pub(crate) fn simplify(condition: &Condition, negated: bool) -> Condition {
    match condition {
        Condition::True | Condition::False => constant(matches!(condition, Condition::True) != negated),
        Condition::Not(inner) => simplify(inner, !negated),
        Condition::Is(predicate) => {
            if never(predicate).is_some() {
                constant(negated)
            } else if always(predicate).is_some() {
                constant(!negated)
            } else {
                literal(predicate.clone(), negated)
            }
        }
        Condition::All(parts) => chain(parts, negated, JoinKind { all: !negated }),
        Condition::Any(parts) => chain(parts, negated, JoinKind { all: negated }),
    }
}

fn constant(value: bool) -> Condition {
    if value { Condition::True } else { Condition::False }
}

fn literal(predicate: Arc<Predicate>, negated: bool) -> Condition {
    let is = Condition::Is(predicate);
    if negated { Condition::Not(Box::new(is)) } else { is }
}

/// The predicate of a condition that is one, and whether it is negated.
pub(crate) fn as_literal(condition: &Condition) -> Option<(&Arc<Predicate>, bool)> {
    match condition {
        Condition::Is(predicate) => Some((predicate, false)),
        Condition::Not(inner) => match &**inner {
            Condition::Is(predicate) => Some((predicate, true)),
            _ => None,
        },
        _ => None,
    }
}

/// `&&` or `||`. Every rule for one holds for the other with true and false exchanged.
#[derive(Clone, Copy, PartialEq)]
struct JoinKind {
    all: bool,
}

impl JoinKind {
    /// The value of a part that decides the chain.
    fn absorbing(self) -> Condition {
        constant(!self.all)
    }

    /// Adds a part to the simplified parts of a chain. `false`: it decides the chain.
    fn push(self, part: Condition, parts: &mut Vec<Condition>) -> bool {
        match part {
            Condition::True => return self.all,
            Condition::False => return !self.all,
            Condition::All(inner) if self.all => parts.extend(inner),
            Condition::Any(inner) if !self.all => parts.extend(inner),
            other => parts.push(other),
        }
        true
    }

    fn join(self, mut parts: Vec<Condition>) -> Condition {
        match parts.len() {
            0 => constant(self.all),
            1 => parts.remove(0),
            _ if self.all => Condition::All(parts),
            _ => Condition::Any(parts),
        }
    }
}

fn chain(conditions: &[Condition], negated: bool, kind: JoinKind) -> Condition {
    let mut parts = Vec::with_capacity(conditions.len());
    for condition in conditions {
        if !kind.push(simplify(condition, negated), &mut parts) {
            return kind.absorbing();
        }
    }
    for _ in 0..ROUNDS_MAX {
        if parts.len() < 2 {
            break;
        }
        if !compare(&mut parts, kind) {
            return kind.absorbing();
        }
        match absorb(&parts, kind) {
            AbsorbResult::Nothing => break,
            AbsorbResult::Decided => return kind.absorbing(),
            AbsorbResult::To(simpler) => parts = simpler,
        }
    }
    kind.join(parts)
}

/// Takes out predicates that others in the chain make superfluous. `false`: two decide the chain.
fn compare(parts: &mut Vec<Condition>, kind: JoinKind) -> bool {
    let count = parts.iter().filter(|part| as_literal(part).is_some()).count();
    if count < 2 {
        return true;
    }
    if count > COMPARED_MAX {
        return remove_equal(parts);
    }
    let mut later = 1;
    while later < parts.len() {
        let Some((q, not_q)) = as_literal(&parts[later]) else {
            later += 1;
            continue;
        };
        let (mut drop_later, mut drop_earlier) = (false, None);
        for (earlier, part) in parts[..later].iter().enumerate() {
            let Some((p, not_p)) = as_literal(part) else { continue };
            if p.field != q.field {
                continue;
            }
            // In `&&` they may contradict each other; in `||`, one may hold where the other does not.
            if implies_at_once(p, not_p == kind.all, q, not_q != kind.all) {
                return false;
            }
            let (follows, leads) = (implies_at_once(p, not_p, q, not_q), implies_at_once(q, not_q, p, not_p));
            let (later_goes, earlier_goes) = if kind.all { (follows, leads) } else { (leads, follows) };
            if later_goes {
                drop_later = true;
                break;
            }
            if earlier_goes {
                drop_earlier = Some(earlier);
                break;
            }
        }
        // Order is kept, since it is the order of evaluation. A predicate that was compared with a dropped earlier one
        // is compared again with the later one that takes its place.
        match drop_earlier {
            Some(earlier) => {
                parts.remove(earlier);
                later = later.max(2) - 1;
            }
            None if drop_later => {
                parts.remove(later);
            }
            None => later += 1,
        }
    }
    true
}

/// Like [`compare`], for equal predicates only.
fn remove_equal(parts: &mut Vec<Condition>) -> bool {
    let mut known: HashMap<Arc<Predicate>, bool> = HashMap::with_capacity(parts.len());
    let mut decided = false;
    parts.retain(|part| {
        let Some((predicate, negated)) = as_literal(part) else { return true };
        let before = known.insert(predicate.clone(), negated);
        decided |= before.is_some_and(|before| before != negated);
        before.is_none()
    });
    !decided
}

enum AbsorbResult {
    Nothing,
    /// The chain has the value of [`JoinKind::absorbing`].
    Decided,
    To(Vec<Condition>),
}

/// Simplifies the chains among the parts by the values of the predicates among them: where the predicates of
/// `a && (!a || b)` don't hold, the value of the rest does not matter.
fn absorb(parts: &[Condition], kind: JoinKind) -> AbsorbResult {
    let literals = parts.iter().filter(|part| as_literal(part).is_some()).count();
    if literals == parts.len() {
        return AbsorbResult::Nothing;
    }
    let mut known = Assignment::with_capacity(literals);
    for (predicate, negated) in parts.iter().filter_map(as_literal) {
        known.insert(predicate, negated != kind.all);
    }
    let is_chain = |part: &Condition| as_literal(part).is_none();
    let mut simpler: Option<Vec<Condition>> = None;
    for (index, part) in parts.iter().enumerate() {
        // Equal chains are searched for among few only, since a comparison costs their length.
        let is_repeated = || parts.len() <= COMPARED_MAX && parts[..index].contains(part);
        let changed = match is_chain(part) {
            true if is_repeated() => Some(constant(kind.all)),
            true if literals > 0 => substitute(part, &known),
            _ => None,
        };
        match (changed, &mut simpler) {
            (None, None) => {}
            (None, Some(simpler)) => simpler.push(part.clone()),
            (Some(changed), _) => {
                let simpler = simpler.get_or_insert_with(|| parts[..index].to_vec());
                if !kind.push(changed, simpler) {
                    return AbsorbResult::Decided;
                }
            }
        }
    }
    simpler.map_or(AbsorbResult::Nothing, AbsorbResult::To)
}

/// Predicates with their values.
enum Assignment<'a> {
    Few(Vec<(&'a Predicate, bool)>),
    Many(HashMap<&'a Predicate, bool>),
}

impl<'a> Assignment<'a> {
    fn with_capacity(count: usize) -> Assignment<'a> {
        const FEW_MAX: usize = 8;
        if count <= FEW_MAX {
            Assignment::Few(Vec::with_capacity(count))
        } else {
            Assignment::Many(HashMap::with_capacity(count))
        }
    }

    fn insert(&mut self, predicate: &'a Predicate, value: bool) {
        match self {
            Assignment::Few(few) => few.push((predicate, value)),
            Assignment::Many(many) => {
                many.insert(predicate, value);
            }
        }
    }

    /// The value of a predicate. With few known ones it may follow from one of them; with many, only an equal one gives
    /// it.
    fn get(&self, predicate: &Predicate) -> Option<bool> {
        let few = match self {
            Assignment::Many(many) => return many.get(predicate).copied(),
            Assignment::Few(few) => few,
        };
        few.iter().filter(|(known, _)| known.field == predicate.field).find_map(|&(known, value)| {
            if std::ptr::eq(known, predicate) || known == predicate {
                Some(value)
            } else if implies_at_once(known, !value, predicate, false) {
                Some(true)
            } else if implies_at_once(known, !value, predicate, true) {
                Some(false)
            } else {
                None
            }
        })
    }
}

/// Replaces known predicates in a condition and folds the result; `None` if it contains none of them.
fn substitute(condition: &Condition, known: &Assignment<'_>) -> Option<Condition> {
    match condition {
        Condition::True | Condition::False => None,
        Condition::Is(predicate) => known.get(predicate).map(constant),
        Condition::Not(inner) => Some(match substitute(inner, known)? {
            Condition::True => Condition::False,
            Condition::False => Condition::True,
            other => Condition::Not(Box::new(other)),
        }),
        Condition::All(parts) => substitute_chain(parts, JoinKind { all: true }, known),
        Condition::Any(parts) => substitute_chain(parts, JoinKind { all: false }, known),
    }
}

fn substitute_chain(parts: &[Condition], kind: JoinKind, known: &Assignment<'_>) -> Option<Condition> {
    let changed = |part: (usize, &Condition)| Some((part.0, substitute(part.1, known)?));
    let (first, changed) = parts.iter().enumerate().find_map(changed)?;
    let is_constant = matches!(changed, Condition::True | Condition::False);
    if is_constant && changed == kind.absorbing() {
        return Some(changed);
    }
    if is_constant && let [one, other] = parts {
        // The most frequent case needs no list. A part before the first that changes stays as it is.
        let rest = if first == 0 { substitute(other, known) } else { None };
        return Some(rest.unwrap_or_else(|| if first == 0 { other.clone() } else { one.clone() }));
    }
    let mut simpler = Vec::with_capacity(parts.len() - usize::from(is_constant));
    simpler.extend_from_slice(&parts[..first]);
    if !kind.push(changed, &mut simpler) {
        return Some(kind.absorbing());
    }
    for part in &parts[first + 1..] {
        let part = substitute(part, known).unwrap_or_else(|| part.clone());
        if !kind.push(part, &mut simpler) {
            return Some(kind.absorbing());
        }
    }
    Some(kind.join(simpler))
}

/// Like [`implies`], but regexes are only compared: to run one it must be compiled, and would stay so in every route.
fn implies_at_once(p: &Predicate, not_p: bool, q: &Predicate, not_q: bool) -> bool {
    let is_regex = |predicate: &Predicate| matches!(predicate.test, Test::Regex(_));
    if is_regex(p) || is_regex(q) {
        return p == q && not_p == not_q;
    }
    implies(p, not_p, q, not_q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;

    fn parse(text: &str) -> Condition {
        match text {
            "true" => Condition::True,
            "false" => Condition::False,
            text => Expression::parse(text).unwrap().condition().clone(),
        }
    }

    #[test]
    fn simplest_forms() {
        let check = |text: &str, expected: &str| assert_eq!(parse(text).simplified(), parse(expected), "{text}");
        let [get, put, a] = [r#"http.method == "GET""#, r#"http.method == "PUT""#, r#"http.headers.a == "1""#];
        // Negations end at predicates, which stay as they are.
        check(&format!("!({get} && {a})"), &format!("!({get}) || !({a})"));
        check(&format!("!({get} || {a})"), &format!("!({get}) && !({a})"));
        check(&format!("!(!({a}))"), a);
        check(&format!("!({a})"), &format!("!({a})"));
        // Chains in chains, and repeated parts.
        check(&format!("{get} && ({a} && {get})"), &format!("{get} && {a}"));
        check(&format!("{get} && ({a} || {get})"), get);
        check(&format!("{get} || ({a} && {get})"), get);
        check(&format!("{get} && (!({get}) || {a})"), &format!("{get} && {a}"));
        check(&format!("({get} || {a}) && ({get} || {a})"), &format!("{get} || {a}"));
        // Parts that exclude or complete each other.
        check(&format!("{get} && {put}"), "false");
        check(&format!("{a} && !({a})"), "false");
        check(&format!("{a} || !({a})"), "true");
        check(r#"http.method == "GET" || http.method != "GET""#, "true");
        check(r#"http.headers.a == "1" || http.headers.a != "1""#, r#"http.headers.a == "1" || http.headers.a != "1""#);
        check(
            r#"any(http.headers.a) == "1" && any(http.headers.a) == "2""#,
            r#"any(http.headers.a) == "1" && any(http.headers.a) == "2""#,
        );
        // Parts that follow from their siblings.
        check(&format!("{get} && ({put} || {a})"), &format!("{get} && {a}"));
        check(&format!(r#"{get} && ({put} || http.method == "HEAD")"#), "false");
        check(&format!(r#"http.path ^= "/a/b" && (http.path ^= "/a" || {a})"#), r#"http.path ^= "/a/b""#);
        check(
            &format!(r#"http.path ^= "/a" || (http.path ^= "/a/b" && {a}) || {get}"#),
            &format!(r#"http.path ^= "/a" || {get}"#),
        );
        check(r#"http.path ^= "/a" && http.path == "/ab""#, r#"http.path == "/ab""#);
        check(r#"http.path ^= "/a" || http.path == "/ab""#, r#"http.path ^= "/a""#);
        // Predicates that the field decides.
        check(&format!(r#"http.path ^= "/" && {a}"#), a);
        check(&format!(r#"http.host == "A" || {a}"#), a);
        check("net.src.ip in 0.0.0.0/0", "net.src.ip in 0.0.0.0/0");
    }
}
