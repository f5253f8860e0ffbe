//! Regular expressions that never have a choice, matched in one pass: `^/[0-9]+/(.*)$`.
//!
//! Most expressions that rewrite paths are a sequence of literals and runs of bytes, each of which ends where the next
//! part begins. A general engine takes several hundred instructions to start for a path of a few bytes. Expressions of
//! another form are left to it.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};

/// A compiled regular expression of this form. It is anchored at the beginning of a text.
#[derive(Debug)]
pub(crate) struct LinearRegex {
    steps: Box<[RegexStep]>,
    /// Number of groups, including group 0, the match.
    groups: usize,
}

#[derive(Debug)]
enum RegexStep {
    Literal(Box<[u8]>),
    /// As many bytes of the set as possible.
    Run {
        set: Box<[bool; 256]>,
        min: usize,
        max: usize,
    },
    Open(usize),
    Close(usize),
    /// The end of the text.
    End,
}

/// Start and end of a group.
pub(crate) type Range = (usize, usize);

impl LinearRegex {
    /// Compiles an expression with the meaning of [`super::patterns::compile`] without flags; `None`: it does not have
    /// this form.
    pub(crate) fn new(pattern: &str) -> Option<LinearRegex> {
        let hir = ParserBuilder::new().utf8(false).unicode(false).build().parse(pattern).ok()?;
        let HirKind::Concat(parts) = hir.kind() else { return None };
        let (first, rest) = parts.split_first()?;
        if *first.kind() != HirKind::Look(Look::Start) {
            return None;
        }
        let mut steps = Vec::new();
        rest.iter().try_for_each(|part| add_steps(part, &mut steps))?;
        let has_no_choice = (0..steps.len()).all(|at| steps[at].ends_before(&steps[at + 1..]));
        let groups = hir.properties().explicit_captures_len() + 1;
        has_no_choice.then(|| LinearRegex { steps: steps.into(), groups })
    }

    /// Memory for its groups.
    pub(crate) fn groups(&self) -> Box<[Range]> {
        vec![(0, 0); self.groups].into()
    }

    /// Whether a text matches; then its groups are in `groups`, the match first.
    pub(crate) fn find(&self, text: &[u8], groups: &mut [Range]) -> bool {
        let mut at = 0;
        for step in &self.steps {
            let rest = &text[at..];
            match step {
                RegexStep::Literal(literal) if rest.starts_with(literal) => at += literal.len(),
                RegexStep::Run { set, min, max } => {
                    let bytes = rest.iter().take(*max).take_while(|byte| set[usize::from(**byte)]).count();
                    if bytes < *min {
                        return false;
                    }
                    at += bytes;
                }
                RegexStep::Open(group) => groups[*group].0 = at,
                RegexStep::Close(group) => groups[*group].1 = at,
                RegexStep::End if rest.is_empty() => {}
                RegexStep::Literal(_) | RegexStep::End => return false,
            }
        }
        groups[0] = (0, at);
        true
    }
}

/// Adds the steps of a part; `None`: it does not have this form.
fn add_steps(part: &Hir, steps: &mut Vec<RegexStep>) -> Option<()> {
    match part.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => steps.push(RegexStep::Literal(literal.0.clone())),
        HirKind::Class(class) => steps.push(RegexStep::Run { set: set(class)?, min: 1, max: 1 }),
        HirKind::Look(Look::End) => steps.push(RegexStep::End),
        HirKind::Repetition(Repetition { min, max, greedy: true, sub }) => {
            let set = match sub.kind() {
                HirKind::Class(class) => set(class)?,
                HirKind::Literal(literal) if literal.0.len() == 1 => {
                    let mut set = Box::new([false; 256]);
                    set[usize::from(literal.0[0])] = true;
                    set
                }
                _ => return None,
            };
            let max = max.map_or(usize::MAX, |max| max as usize);
            steps.push(RegexStep::Run { set, min: *min as usize, max });
        }
        HirKind::Capture(capture) => {
            let group = capture.index as usize;
            steps.push(RegexStep::Open(group));
            add_steps(&capture.sub, steps)?;
            steps.push(RegexStep::Close(group));
        }
        HirKind::Concat(parts) => return parts.iter().try_for_each(|part| add_steps(part, steps)),
        HirKind::Look(_) | HirKind::Repetition(_) | HirKind::Alternation(_) => return None,
    }
    Some(())
}

fn set(class: &Class) -> Option<Box<[bool; 256]>> {
    let Class::Bytes(class) = class else { return None };
    let mut set = Box::new([false; 256]);
    for range in class.iter() {
        set[usize::from(range.start())..=usize::from(range.end())].fill(true);
    }
    Some(set)
}

impl RegexStep {
    /// Whether the next step begins with no byte that this step could have left to it: then taking all is the only way
    /// to match.
    fn ends_before(&self, behind: &[RegexStep]) -> bool {
        let RegexStep::Run { set, min, max } = self else { return true };
        if min == max {
            return true;
        }
        for step in behind {
            match step {
                RegexStep::Literal(literal) => return !set[usize::from(literal[0])],
                RegexStep::Run { set: other, min, .. } => {
                    if (0..set.len()).any(|byte| set[byte] && other[byte]) {
                        return false;
                    }
                    if *min > 0 {
                        return true;
                    }
                }
                RegexStep::End => return true,
                RegexStep::Open(_) | RegexStep::Close(_) => {}
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patterns::{Flags, compile};
    use proptest::prelude::*;
    use stillgate_schema::CompileBudget;

    /// A general engine must find the same.
    fn check(pattern: &str, text: &[u8]) {
        let Some(linear) = LinearRegex::new(pattern) else { return };
        let regex = compile(pattern, Flags::default(), &CompileBudget::default()).unwrap();
        let mut groups = linear.groups();
        let found = linear.find(text, &mut groups).then_some(&*groups);
        let wanted = regex.captures(text).map(|captures| {
            captures.iter().map(|group| group.map(|group| (group.start(), group.end())).unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(found, wanted.as_deref(), "{pattern} {text:?}");
    }

    #[test]
    fn what_is_of_this_form() {
        for pattern in [
            "^/[0-9]+/(.*)$",
            "^/a/(.*)",
            "^/a/(b)(/.*)$",
            "^/([^/]*)/([^/]+)/x$",
            "^/(?:a)/([a-c]{2,3})d?e",
            r"^/iresty/(\w+)-(\d{4})$",
            "^()a",
            "^(?i)/a[b]*C",
        ] {
            assert!(LinearRegex::new(pattern).is_some(), "{pattern}");
            for text in
                ["", "/", "/1/", "/12/a\nb", "/12/a/b?c", "/a/", "/a/b/c", "/a/bbd", "/a/abcde", "/a/abce", "/aBc"]
            {
                check(pattern, text.as_bytes());
            }
            check(pattern, b"/iresty/ab_1-2024");
            check(pattern, b"/1/\xff");
        }
        for pattern in
            ["/a", "a^", "^a|b", "^(a|b)c", "^.*/x", "^[a-z]*a", "^a+?b", "^(a)?b", "^a$b.*", r"^a\b", "^a?[b]*a", "("]
        {
            let linear = LinearRegex::new(pattern);
            assert!(linear.is_none() || pattern == "^a$b.*", "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn it_finds_what_other_engines_find(
            parts in prop::collection::vec(prop::sample::select(vec![
                "a", "b", "/", "[ab]", "[ab]*", "[^/]*", "[^/]+", ".*", "(.*)", "([a-b]+)", "(/)", "c{0,2}", "(c?)", "$", "([^c]{1,2})", "(a|b)", "(?:ab)*",
            ]), 0..6),
            text in "[abc/\n]{0,8}",
        ) {
            check(&format!("^{}", parts.concat()), text.as_bytes());
        }
    }
}
