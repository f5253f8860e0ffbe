//! PCRE's `$`: it matches at the end, and before a line feed that is the last character. Rust's matches at the end only, so a
//! condition written for APISIX would not hold for a path that ends in `%0A`.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{AssertionKind, Ast, Flag, FlagsItemKind, Visitor, visit};

/// What `$` means in PCRE, in Rust's syntax.
const BEFORE_LAST_LINE_FEED: &str = r"(?:\n?\z)";

/// The regex with PCRE's meaning of `$`; `None`: it has none, is not a regex, or `$` is the end of each line in it.
pub(super) fn as_in_pcre(source: &str) -> Option<String> {
    if !source.contains('$') {
        return None;
    }
    let ast = Parser::new().parse(source).ok()?;
    let Ok(Dollars { places, is_of_lines: false }) = visit(&ast, Dollars::default()) else { return None };
    if places.is_empty() {
        return None;
    }
    let mut rewritten = String::with_capacity(source.len() + places.len() * BEFORE_LAST_LINE_FEED.len());
    let mut done = 0;
    for place in places {
        rewritten.push_str(&source[done..place]);
        rewritten.push_str(BEFORE_LAST_LINE_FEED);
        done = place + 1;
    }
    rewritten.push_str(&source[done..]);
    Some(rewritten)
}

/// The places of `$` in a regex.
#[derive(Default)]
struct Dollars {
    places: Vec<usize>,
    is_of_lines: bool,
}

impl Visitor for Dollars {
    type Output = Dollars;
    type Err = std::convert::Infallible;

    fn finish(self) -> Result<Dollars, Self::Err> {
        Ok(self)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        let flags = match ast {
            Ast::Assertion(assertion) if assertion.kind == AssertionKind::EndLine => {
                self.places.push(assertion.span.start.offset);
                return Ok(());
            }
            Ast::Flags(set) => &set.flags,
            Ast::Group(group) => match group.flags() {
                Some(flags) => flags,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let of_lines = |item: &regex_syntax::ast::FlagsItem| item.kind == FlagsItemKind::Flag(Flag::MultiLine);
        self.is_of_lines |= flags.items.iter().any(of_lines);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_rewritten() {
        let check = |source: &str, expected: Option<&str>| {
            assert_eq!(as_in_pcre(source).as_deref(), expected, "{source}");
        };
        check("^/a$", Some(r"^/a(?:\n?\z)"));
        check("a$|(b$)", Some(r"a(?:\n?\z)|(b(?:\n?\z))"));
        check(r"\$[$]a", None);
        check("(?m)^a$", None);
        check("(?m:a)$", None);
        check("a\\z", None);
        check("ü$", Some(r"ü(?:\n?\z)"));
        check("($", None);
    }
}
