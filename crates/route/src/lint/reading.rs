//! Prints an expression with all the parentheses of its actual meaning.

use crate::condition::Condition;
use std::fmt::Write;

/// The rest of a longer expression is not shown.
const SHOWN_BYTES_MAX: usize = 400;

/// The text of a condition as it was parsed, in backquotes, with parentheses around every chain in another.
pub(super) fn with_parentheses(condition: &Condition) -> String {
    let mut out = "`".to_owned();
    match push(condition, false, &mut out) {
        Ok(()) => out.push('`'),
        Err(_) => {
            let end = (0..=SHOWN_BYTES_MAX).rev().find(|end| out.is_char_boundary(*end)).unwrap_or(0);
            out.truncate(end);
            out.push_str("…`");
        }
    }
    out
}

/// Fails where it becomes too long.
fn push(condition: &Condition, inside: bool, out: &mut String) -> std::fmt::Result {
    if out.len() > SHOWN_BYTES_MAX {
        return Err(std::fmt::Error);
    }
    let (parts, operator) = match condition {
        Condition::True => return out.write_str("true"),
        Condition::False => return out.write_str("false"),
        Condition::Is(predicate) => return out.write_str(&predicate.source.text),
        Condition::Not(inner) => {
            out.push_str("!(");
            push(inner, false, out)?;
            return out.write_str(")");
        }
        Condition::All(parts) => (parts, " && "),
        Condition::Any(parts) => (parts, " || "),
    };
    if inside {
        out.push('(');
    }
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push_str(operator);
        }
        push(part, true, out)?;
    }
    if inside {
        out.push(')');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;

    #[test]
    fn long_expressions_are_cut() {
        let check = |part: &str| {
            let text = [part; 100].join(" && ");
            let shown = with_parentheses(Expression::parse(&text).unwrap().condition());
            let inside = shown.strip_prefix('`').and_then(|shown| shown.strip_suffix("…`")).unwrap();
            assert!(text.starts_with(inside) && inside.len() <= SHOWN_BYTES_MAX, "{shown}");
        };
        check(r#"http.headers.x == "1""#);
        check(r#"http.headers.x == "ääääääääääääää""#);
    }
}
