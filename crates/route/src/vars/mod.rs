//! Conditions on a request's variables, in the language of lua-resty-expr (APISIX's `vars`).
//!
//! A condition is parsed once ([`Expr::parse`]) into a tree whose numbers, networks and regexes are ready to use.
//! Where lua-resty-expr silently never holds (an unknown operator, a number in an `in` list), this either refuses the
//! text or does what it says.
//!
//! | operator | holds where the variable | absent variable |
//! |---|---|---|
//! | `==` | is that text; that number, where the rule has a number; absent, where it has null | no (null: yes) |
//! | `~=` | is not | yes (null: no) |
//! | `>` `>=` `<` `<=` | is a number, and the comparison holds | no |
//! | `~~` `~*` | matches the regex (`~*` in any ASCII case), anywhere in it | no |
//! | `in` | is `==` to one of the list | no |
//! | `has` | is a comma-separated list with that element (blanks around elements don't count) | no |
//! | `ipmatch` | is an address in one of the networks | no |
//!
//! `!` before the operator turns the answer around, also that for an absent variable. Regexes are Rust's (no
//! look-around, no back-references), over bytes.

mod parse;
mod search;

pub use parse::{DEPTH_MAX, PREDICATES_MAX, REGEX_BYTES_MAX, VarsError};

use self::search::Search;
use crate::AddressSet;
use crate::variable::{Lookup, Variable};
use std::fmt;

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// `AND`, and a list of conditions without an operator; empty, it holds.
    And(Vec<Expr>),
    /// `OR`
    Or(Vec<Expr>),
    /// `!AND`: at least one does not hold.
    NotAnd(Vec<Expr>),
    /// `!OR`: none holds.
    NotOr(Vec<Expr>),
    /// One variable, tested.
    Predicate(Predicate),
}

/// `[variable, operator, value]` or `[variable, "!", operator, value]`.
#[derive(Debug, Clone)]
pub struct Predicate {
    variable: Variable,
    negated: bool,
    test: Test,
    /// As it was written, as JSON. It determines everything else.
    text: Box<str>,
}

#[derive(Debug, Clone)]
enum Test {
    Equal(Operand),
    NotEqual(Operand),
    Greater(f64),
    GreaterOrEqual(f64),
    Less(f64),
    LessOrEqual(f64),
    Matches(Search),
    In(Box<[Operand]>),
    Has(Box<str>),
    InNetworks(AddressSet),
}

/// The value of a rule that a variable is compared with.
#[derive(Debug, Clone)]
enum Operand {
    Null,
    Number(f64),
    Text(Box<str>),
}

impl Expr {
    /// Whether the condition holds. `buffer` is handed to the lookup.
    pub fn holds(&self, lookup: &dyn Lookup, buffer: &mut Vec<u8>) -> bool {
        match self {
            Expr::And(all) => all.iter().all(|expr| expr.holds(lookup, buffer)),
            Expr::Or(any) => any.iter().any(|expr| expr.holds(lookup, buffer)),
            Expr::NotAnd(all) => !all.iter().all(|expr| expr.holds(lookup, buffer)),
            Expr::NotOr(any) => !any.iter().any(|expr| expr.holds(lookup, buffer)),
            Expr::Predicate(predicate) => predicate.holds(lookup, buffer),
        }
    }

    /// Calls `visit` with every variable the condition reads, as often as it stands in it.
    pub fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        match self {
            Expr::And(exprs) | Expr::Or(exprs) | Expr::NotAnd(exprs) | Expr::NotOr(exprs) => {
                exprs.iter().for_each(|expr| expr.each_variable(visit));
            }
            Expr::Predicate(predicate) => visit(&predicate.variable),
        }
    }

    /// Why the condition does not hold, for people; `None` where it does.
    pub fn why_not(&self, lookup: &dyn Lookup) -> Option<String> {
        let reasons = |exprs: &[Expr]| exprs.iter().filter_map(|expr| expr.why_not(lookup)).collect::<Vec<_>>();
        match self {
            Expr::And(all) => all.iter().find_map(|expr| expr.why_not(lookup)),
            Expr::Or(any) => {
                let reasons = reasons(any);
                (reasons.len() == any.len()).then(|| format!("none holds: {}", reasons.join("; ")))
            }
            Expr::NotAnd(all) => reasons(all).is_empty().then(|| format!("all hold in {self}")),
            Expr::NotOr(any) => {
                let holding = any.iter().find(|expr| expr.why_not(lookup).is_none())?;
                Some(format!("{holding} holds in {self}"))
            }
            Expr::Predicate(predicate) => predicate.why_not(lookup),
        }
    }
}

impl Predicate {
    /// What is tested.
    pub fn variable(&self) -> &Variable {
        &self.variable
    }

    fn holds(&self, lookup: &dyn Lookup, buffer: &mut Vec<u8>) -> bool {
        self.test.holds(lookup.value(&self.variable, buffer)) != self.negated
    }

    fn why_not(&self, lookup: &dyn Lookup) -> Option<String> {
        const SHOWN_BYTES_MAX: usize = 80;
        let mut buffer = Vec::new();
        if self.holds(lookup, &mut buffer) {
            return None;
        }
        let (text, variable) = (&self.text, &self.variable);
        Some(match lookup.value(variable, &mut buffer) {
            None => format!("{text}: {variable} is absent"),
            Some(value) => {
                let (shown, more) = match value.get(..SHOWN_BYTES_MAX) {
                    Some(start) if value.len() > SHOWN_BYTES_MAX => (start, "…"),
                    _ => (value, ""),
                };
                format!("{text}: {variable} is {:?}{more}", String::from_utf8_lossy(shown))
            }
        })
    }
}

impl PartialEq for Predicate {
    fn eq(&self, other: &Predicate) -> bool {
        self.text == other.text
    }
}

impl Test {
    fn holds(&self, value: Option<&[u8]>) -> bool {
        let number = || value.and_then(parse_number);
        match self {
            Test::Equal(operand) => operand.equals(value),
            Test::NotEqual(operand) => !operand.equals(value),
            Test::Greater(bound) => number().is_some_and(|number| number > *bound),
            Test::GreaterOrEqual(bound) => number().is_some_and(|number| number >= *bound),
            Test::Less(bound) => number().is_some_and(|number| number < *bound),
            Test::LessOrEqual(bound) => number().is_some_and(|number| number <= *bound),
            Test::Matches(search) => value.is_some_and(|value| search.is_match(value)),
            Test::In(operands) => operands.iter().any(|operand| operand.equals(value)),
            Test::Has(element) => value.is_some_and(|value| {
                value.split(|byte| *byte == b',').any(|part| part.trim_ascii() == element.as_bytes())
            }),
            Test::InNetworks(networks) => value
                .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
                .is_some_and(|address| networks.contains(address)),
        }
    }
}

impl Operand {
    fn equals(&self, value: Option<&[u8]>) -> bool {
        match self {
            Operand::Null => value.is_none(),
            Operand::Number(number) => value.and_then(parse_number) == Some(*number),
            Operand::Text(text) => value == Some(text.as_bytes()),
        }
    }
}

/// A number as Lua's `tonumber` reads it: decimal with fraction and exponent or hexadecimal, blanks around it; unlike
/// Lua's no `inf`, `nan` or hexadecimal fraction.
fn parse_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok()? as f64,
        Some(_) => return None,
        None if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { -magnitude } else { magnitude })
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operator, exprs) = match self {
            Expr::And(exprs) => ("AND", exprs),
            Expr::Or(exprs) => ("OR", exprs),
            Expr::NotAnd(exprs) => ("!AND", exprs),
            Expr::NotOr(exprs) => ("!OR", exprs),
            Expr::Predicate(predicate) => return f.write_str(&predicate.text),
        };
        write!(f, "[\"{operator}\"")?;
        exprs.iter().try_for_each(|expr| write!(f, ",{expr}"))?;
        write!(f, "]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Values(HashMap<&'static str, &'static str>);

    impl Lookup for Values {
        fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            self.0.get(variable.to_string().as_str()).map(|value| value.as_bytes())
        }
    }

    fn values() -> Values {
        Values(HashMap::from([
            ("arg_v", "10"),
            ("arg_empty", ""),
            ("arg_name", "Json"),
            ("arg_hex", "0x1f"),
            ("arg_pad", " 7.5e1 "),
            ("arg_inf", "inf"),
            ("http_accept", "text/html, application/json"),
            ("remote_addr", "10.1.2.3"),
        ]))
    }

    fn parse(json: &str) -> Expr {
        Expr::parse(&serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn operators() {
        let check = |rule: &str, expected: bool| {
            let holds = parse(&format!("[{rule}]")).holds(&values(), &mut Vec::new());
            assert_eq!(holds, expected, "{rule}");
        };
        check(r#"["arg_v","==","10"]"#, true);
        check(r#"["arg_v","==","10.0"]"#, false);
        check(r#"["arg_v","==",10]"#, true);
        check(r#"["arg_v","==",10.0]"#, true);
        check(r#"["arg_v","~=",10]"#, false);
        check(r#"["arg_v","~=","11"]"#, true);
        check(r#"["arg_name","~=",10]"#, true);
        check(r#"["arg_name","==",10]"#, false);
        check(r#"["arg_empty","==",""]"#, true);
        check(r#"["arg_empty","==",0]"#, false);
        check(r#"["arg_empty","==",null]"#, false);
        check(r#"["arg_empty","~=",null]"#, true);
        check(r#"["arg_v",">",9]"#, true);
        check(r#"["arg_v",">","9"]"#, true);
        check(r#"["arg_v",">",10]"#, false);
        check(r#"["arg_v",">=",10]"#, true);
        check(r#"["arg_v","<",10.5]"#, true);
        check(r#"["arg_v","<=",9.9]"#, false);
        check(r#"["arg_name",">",0]"#, false);
        check(r#"["arg_hex","==",31]"#, true);
        check(r#"["arg_pad","==",75]"#, true);
        check(r#"["arg_inf",">",0]"#, false);
        check(r#"["arg_name","~~","^J.*n$"]"#, true);
        check(r#"["arg_name","~~","json"]"#, false);
        check(r#"["arg_name","~*","JSON"]"#, true);
        check(r#"["arg_name","in",["Xml","Json"]]"#, true);
        check(r#"["arg_name","IN",["json"]]"#, false);
        check(r#"["arg_v","in",[9,10]]"#, true);
        check(r#"["http_accept","has","application/json"]"#, true);
        check(r#"["http_accept","has","application"]"#, false);
        check(r#"["remote_addr","ipmatch",["10.0.0.0/8","::1"]]"#, true);
        check(r#"["remote_addr","ipmatch","10.1.2.4"]"#, false);
        check(r#"["arg_name","ipmatch","10.0.0.0/8"]"#, false);
        check(r#"["arg_v","!","==",10]"#, false);
        check(r#"["arg_name","!","in",["json"]]"#, true);
    }

    #[test]
    fn absent_variables() {
        let check = |operator_and_value: &str, expected: bool| {
            for (negation, expected) in [("", expected), ("\"!\",", !expected)] {
                let rule = format!("[[\"arg_none\",{negation}{operator_and_value}]]");
                assert_eq!(parse(&rule).holds(&values(), &mut Vec::new()), expected, "{rule}");
            }
        };
        check(r#""==","""#, false);
        check(r#""==",0"#, false);
        check(r#""==",null"#, true);
        check(r#""~=","x""#, true);
        check(r#""~=",0"#, true);
        check(r#""~=",null"#, false);
        check(r#"">",-1"#, false);
        check(r#""<",1"#, false);
        check(r#""<=",1"#, false);
        check(r#"">=",-1"#, false);
        check(r#""~~","""#, false);
        check(r#""~*",".*""#, false);
        check(r#""in",[""]"#, false);
        check(r#""has","""#, false);
        check(r#""ipmatch","0.0.0.0/0""#, false);
    }

    #[test]
    fn logic() {
        const T: &str = r#"["arg_v","==","10"]"#;
        const F: &str = r#"["arg_v","==","11"]"#;
        let check = |rule: &str, expected: bool| {
            let rule = rule.replace('T', T).replace('F', F);
            let rule = rule
                .replace("\"O\"", "\"OR\"")
                .replace("\"A\"", "\"AND\"")
                .replace("\"!O\"", "\"!OR\"")
                .replace("\"!A\"", "\"!AND\"");
            let expr = parse(&rule);
            assert_eq!(expr.holds(&values(), &mut Vec::new()), expected, "{rule}");
            assert_eq!(expr.why_not(&values()).is_none(), expected, "{rule}");
        };
        check("[]", true);
        check("[T,T]", true);
        check("[T,F]", false);
        check(r#"["O",F,T]"#, true);
        check(r#"["O",F,F]"#, false);
        check(r#"["A",T,F]"#, false);
        check(r#"["!A",T,F]"#, true);
        check(r#"["!A",T,T]"#, false);
        check(r#"["!O",F,F]"#, true);
        check(r#"["!O",F,T]"#, false);
        check(r#"["O",["A",T,F],["!O",F,F]]"#, true);
        check(r#"["O",[T,F],[T,T]]"#, true);
        check(r#"[T,["O",F,["!A",T,T]]]"#, false);
        check(r#"["or",F,T]"#, true);
    }

    #[test]
    fn reasons() {
        let check = |rule: &str, expected: &str| {
            assert_eq!(parse(rule).why_not(&values()).as_deref(), Some(expected));
        };
        check(r#"[["arg_v","==","11"]]"#, r#"["arg_v","==","11"]: arg_v is "10""#);
        check(r#"[["arg_none","!","~=","11"]]"#, r#"["arg_none","!","~=","11"]: arg_none is absent"#);
        check(
            r#"["OR",["arg_v","==","11"],["arg_none","==","1"]]"#,
            r#"none holds: ["arg_v","==","11"]: arg_v is "10"; ["arg_none","==","1"]: arg_none is absent"#,
        );
        check(
            r#"["!OR",["arg_v","==","11"],["arg_v","==","10"]]"#,
            r#"["arg_v","==","10"] holds in ["!OR",["arg_v","==","11"],["arg_v","==","10"]]"#,
        );
        check(
            r#"["!AND",["arg_v",">",1],["arg_v","==","10"]]"#,
            r#"all hold in ["!AND",["arg_v",">",1],["arg_v","==","10"]]"#,
        );
    }

    #[test]
    fn regexes_match_bytes_that_are_no_text() {
        struct Raw;
        impl Lookup for Raw {
            fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
                Some(b"\xff\xfeok")
            }
        }
        assert!(parse(r#"[["http_x","~~","^..ok$"]]"#).holds(&Raw, &mut Vec::new()));
    }
}
