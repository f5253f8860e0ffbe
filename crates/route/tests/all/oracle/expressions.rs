//! Random expressions of Kong's language, as the tree of its grammar, so that they can be made smaller.

use super::predicates::{Likeness, int_predicate, ip_predicate, text_predicate};
use super::random::{Random, without_one};

/// Terms with operators between them; precedence is up to the parser.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    first: Term,
    rest: Vec<(&'static str, Term)>,
}

#[derive(Debug, Clone)]
enum Term {
    /// Its spelling.
    Predicate(String),
    /// In parentheses, which the text before them opens.
    Group(&'static str, Box<Chain>),
}

const DEPTH_MAX: usize = 4;
const LINKS: &[&str] = &[" && ", " || ", "&&", "||", "\n  || ", "\t&&\r\n"];

/// Makes the expressions of one set. In half of the sets most expressions test the same fields for other values, as the
/// routes of a real set do: only those give an index something to separate.
pub(crate) struct Expressions {
    families: Vec<Vec<Likeness>>,
}

impl Expressions {
    pub(crate) fn random(random: &mut Random) -> Expressions {
        let families = if random.one_in(2) { 0 } else { random.below(2) + 1 };
        let mut family = |_| (0..random.below(3) + 1).map(|_| Likeness::random(random)).collect();
        Expressions { families: (0..families).map(&mut family).collect() }
    }

    /// All have a condition on one field, most of them nothing else.
    pub(crate) fn of_one(field: &str, lhs: &str, operator: &'static str) -> Expressions {
        Expressions { families: vec![vec![Likeness::of(field, lhs, operator)]] }
    }

    pub(crate) fn chain(&self, random: &mut Random) -> Chain {
        if !self.families.is_empty() && !random.one_in(5) {
            let mut terms = Vec::new();
            for like in random.pick(&self.families) {
                terms.push((" && ", Term::Predicate(like.predicate(random))));
                if random.one_in(12) {
                    terms.push((" || ", Term::Predicate(like.predicate(random))));
                }
            }
            if random.one_in(4) {
                terms.push((" && ", term(random, 1)));
            }
            return from_terms(terms);
        }
        // Every other one has several conditions at once, and so takes few requests.
        if random.one_in(2) {
            return chain(random, 0);
        }
        let first = term(random, 1);
        Chain { first, rest: (0..random.below(3) + 1).map(|_| (" && ", term(random, 1))).collect() }
    }
}

impl Chain {
    /// A single predicate.
    pub(crate) fn of(predicate: &str) -> Chain {
        Chain { first: Term::Predicate(predicate.to_owned()), rest: Vec::new() }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) {
        self.first.write(out);
        for (link, term) in &self.rest {
            out.push_str(link);
            term.write(out);
        }
    }

    /// Chains with one term less, or with less inside of one.
    pub(crate) fn smaller(&self) -> Vec<Chain> {
        let mut terms = vec![("", self.first.clone())];
        terms.extend(self.rest.iter().cloned());
        let mut smaller = Vec::new();
        if terms.len() > 1 {
            smaller.extend(without_one(&terms).into_iter().map(from_terms));
        }
        for at in 0..terms.len() {
            let Term::Group(open, inner) = &terms[at].1 else { continue };
            if terms.len() == 1 && !open.contains('!') {
                smaller.push((**inner).clone());
            }
            let mut instead: Vec<Term> =
                inner.smaller().into_iter().map(|inner| Term::Group(open, Box::new(inner))).collect();
            if inner.rest.is_empty() && !open.contains('!') {
                instead.push(inner.first.clone());
            }
            for term in instead {
                let mut terms = terms.clone();
                terms[at].1 = term;
                smaller.push(from_terms(terms));
            }
        }
        smaller
    }
}

impl Term {
    fn write(&self, out: &mut String) {
        match self {
            Term::Predicate(text) => out.push_str(text),
            Term::Group(open, inner) => {
                out.push_str(open);
                inner.write(out);
                out.push(')');
            }
        }
    }
}

fn from_terms(terms: Vec<(&'static str, Term)>) -> Chain {
    let mut terms = terms.into_iter();
    let (_, first) = terms.next().expect("callers keep one");
    Chain { first, rest: terms.collect() }
}

fn chain(random: &mut Random, depth: usize) -> Chain {
    let more = if random.one_in(3) { 0 } else { random.below(5 - depth.min(3)) };
    let only = random.one_in(2).then(|| random.pick(LINKS));
    let link = |random: &mut Random| only.unwrap_or_else(|| random.pick(LINKS));
    let first = term(random, depth);
    Chain { first, rest: (0..more).map(|_| (link(random), term(random, depth))).collect() }
}

fn term(random: &mut Random, depth: usize) -> Term {
    if depth < DEPTH_MAX && random.one_in(4) {
        return Term::Group(random.pick(&["(", "( ", "!(", "!( ", "! ("]), Box::new(chain(random, depth + 1)));
    }
    Term::Predicate(match random.below(10) {
        0 | 1 => int_predicate(random),
        2 => ip_predicate(random),
        _ => text_predicate(random),
    })
}
