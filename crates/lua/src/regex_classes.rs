//! Estimates the time that the parser takes for the Unicode classes of a pattern, before it takes that time.
//!
//! A class is a few bytes of pattern and up to a million code points. With the option `i` the parser visits each of
//! them that may have another case, about 9 ns each: a pattern of 4 KB takes it seconds.

use regex_automata::util::syntax;
use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{
    Ast, ClassPerl, ClassPerlKind, ClassSetItem, ClassUnicode, Flag, FlagsItemKind, Span, Visitor, visit,
};
use regex_syntax::hir::{Class, HirKind};

/// Most code points in the classes of a pattern: about 12 ms. Enough for one class of all code points, such as `[\s\S]`.
pub(crate) const CODE_POINTS_MAX: usize = 1_300_000;

/// The least that a class costs, as code points: these are looked up in tables, and sorted.
const NAMED: usize = 20_000;
const PERL: usize = 12_000;
const ALL: usize = 0x11_0000;

/// The code points that the parser visits for the classes of a pattern; zero without Unicode, where a class has bytes.
pub(crate) fn code_points(pattern: &str, is_unicode: bool, is_caseless: bool, is_extended: bool) -> usize {
    // Most patterns can do without this: groups without a number are what sets flags.
    if !is_unicode && !pattern.contains("(?") {
        return 0;
    }
    let Ok(ast) = ParserBuilder::new().ignore_whitespace(is_extended).build().parse(pattern) else {
        // The parser that follows reports it.
        return 0;
    };
    let classes = Classes { pattern, is_unicode, is_caseless, count: 0 };
    visit(&ast, classes).unwrap_or_else(|never| match never {})
}

struct Classes<'a> {
    pattern: &'a str,
    /// Whether the flag has been set so far. Where it ends is ignored: that only makes the estimate higher.
    is_unicode: bool,
    is_caseless: bool,
    count: usize,
}

impl Classes<'_> {
    fn add(&mut self, code_points: usize) {
        if self.is_unicode {
            self.count = self.count.saturating_add(code_points);
        }
    }

    fn named(&mut self, class: &ClassUnicode) {
        self.add(NAMED);
        // No more classes are parsed here than fit.
        if self.is_unicode && self.is_caseless && self.count <= CODE_POINTS_MAX {
            self.add(folded_code_points(&self.pattern[range(&class.span)]));
        }
    }

    fn perl_in_brackets(&mut self, class: &ClassPerl) {
        let is_wide = class.negated && class.kind != ClassPerlKind::Word;
        self.add(if self.is_caseless && is_wide { ALL } else { PERL });
    }
}

impl Visitor for Classes<'_> {
    type Output = usize;
    type Err = std::convert::Infallible;

    fn finish(self) -> Result<usize, Self::Err> {
        Ok(self.count)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        let flags = match ast {
            Ast::ClassUnicode(class) => {
                self.named(class);
                None
            }
            Ast::ClassPerl(_) => {
                self.add(PERL);
                None
            }
            Ast::Flags(set) => Some(&set.flags),
            Ast::Group(group) => group.flags(),
            _ => None,
        };
        if let Some(flags) = flags {
            let sets = |flag: Flag| flags.items.iter().any(|item| item.kind == FlagsItemKind::Flag(flag));
            self.is_unicode |= sets(Flag::Unicode);
            self.is_caseless |= sets(Flag::CaseInsensitive);
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Self::Err> {
        match item {
            ClassSetItem::Unicode(class) => self.named(class),
            ClassSetItem::Perl(class) => self.perl_in_brackets(class),
            ClassSetItem::Ascii(class) if class.negated && self.is_caseless => self.add(ALL),
            ClassSetItem::Range(of) if self.is_caseless => self.add(folded(of.start.c.into(), of.end.c.into())),
            _ => {}
        }
        Ok(())
    }
}

fn range(span: &Span) -> std::ops::Range<usize> {
    span.start.offset..span.end.offset
}

/// The code points of a named class and of its complement that the parser visits: `\P{…}` is folded before it is negated, and
/// again among other items.
fn folded_code_points(class: &str) -> usize {
    let Ok(hir) = syntax::parse_with(class, &syntax::Config::new().utf8(false)) else { return 0 };
    let HirKind::Class(Class::Unicode(mut class)) = hir.into_kind() else { return 0 };
    let mut count = 0;
    for _ in 0..2 {
        count += class.ranges().iter().map(|range| folded(range.start().into(), range.end().into())).sum::<usize>();
        class.negate();
    }
    count.min(ALL)
}

/// The code points of a range that are visited. Ranges without any letter that has a case are skipped: these are the
/// blocks with the scripts of East Asia, and what is behind the last such letter.
fn folded(first: u32, last: u32) -> usize {
    const WITHOUT_CASE: [std::ops::RangeInclusive<u32>; 3] = [0x2E00..=0xA63F, 0xAC00..=0xFAFF, 0x1_E944..=0x10_FFFF];
    match WITHOUT_CASE.iter().any(|block| block.contains(&first) && block.contains(&last)) {
        true => 0,
        false => (last.saturating_sub(first) + 1) as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_unicode_are_counted() {
        let check = |pattern: &str, is_caseless: bool, expected: std::ops::RangeInclusive<usize>| {
            let count = code_points(pattern, true, is_caseless, false);
            assert!(expected.contains(&count), "{pattern}: {count}");
        };
        // What functions use.
        for pattern in [r"^[\w.-]+@[\w-]+\.\w+$", r"[\pL\pN_-]{1,20}", r"[а-яё]+\s[^\s]+", r"[\s\S]*"] {
            check(pattern, true, 0..=CODE_POINTS_MAX);
        }
        check("[a-z]", true, 26..=26);
        check("[a-z]", false, 0..=0);
        check(r"\pL", false, NAMED..=NAMED);
        check(r"\p{Any}", true, ALL..=ALL + NAMED);
        check(r"[\S]", true, ALL..=ALL);
        check("[[:^alpha:]a]", true, ALL..=ALL);
        check(&r"[\s\S]".repeat(2), true, CODE_POINTS_MAX..=usize::MAX);
        check("(?i:[!-\u{10ffff}]{2})[!-\u{10ffff}]", false, CODE_POINTS_MAX..=usize::MAX);
        check(&r"[^\W]".repeat(150), false, CODE_POINTS_MAX..=usize::MAX);
        // The flags may be in the pattern.
        assert_eq!(code_points(&r"\pL".repeat(1_000), false, true, false), 0);
        assert!(code_points(&r"(?iu)\pL".repeat(1_000), false, false, false) > CODE_POINTS_MAX);
    }
}
