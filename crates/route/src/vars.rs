//! Conditions on a request's variables, in the language of lua-resty-expr (APISIX's `vars`).
//!
//! A condition is parsed once ([`Expr::parse`]) into a [`Condition`], which the compiler, explain and lint know. Where
//! lua-resty-expr silently never holds (an unknown operator, a number in an `in` list), this either refuses the text or
//! does what the text means.
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
//! `!` before the operator inverts the answer, also that for an absent variable. Predicates of a condition never hold
//! for absent values, so `~=` is written as the negation of `==`, and null as the negation of being present. Regexes
//! are Rust's (no look-around, no back-references), over bytes.

use crate::condition::{Condition, Field, NumberTest, Predicate, PredicateOrigin, Test, parse_number};
use crate::regex::{Pattern, RegexError, RegexTotal};
use crate::{AddressSet, Variable};
use ipnet::IpNet;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// A condition as text, and its parsed form.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// The condition as JSON, with every operator written out.
    text: Box<str>,
    condition: Condition,
    regex_bytes: usize,
}

impl Expr {
    /// Memory of the automata of its regexes, at most.
    pub fn regex_bytes(&self) -> usize {
        self.regex_bytes
    }

    /// The condition on a request.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// Parses the nested lists of a configuration into a condition, with errors that point into the lists.
//
// It takes JSON values, since every configuration format turns `vars` into them; the caller maps
// [`VarsError::path`] to positions in the text.

/// Deepest nesting of lists.
pub const DEPTH_MAX: usize = 16;
/// Most predicates of one condition.
pub const PREDICATES_MAX: usize = 256;

/// Why a condition cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VarsError {
    /// The position as indices into the nested lists, from the outermost; empty for the whole.
    pub path: Vec<usize>,
    /// The error, and a suggestion.
    pub message: String,
}

impl fmt::Display for VarsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.iter().try_for_each(|index| write!(f, "[{index}]"))?;
        write!(f, "{}{}", if self.path.is_empty() { "" } else { ": " }, self.message)
    }
}

impl std::error::Error for VarsError {}

impl Expr {
    /// Parses the value of `vars`: a list of conditions that must all hold, or a list that begins with `OR`, `AND`,
    /// `!OR` or `!AND`. The empty list always holds.
    pub fn parse(value: &Value) -> Result<Expr, VarsError> {
        Expr::parse_with(Variable::parse, value)
    }

    /// Like [`Expr::parse`], with variables that are known from the route on.
    pub fn parse_late(value: &Value) -> Result<Expr, VarsError> {
        Expr::parse_with(Variable::parse_late, value)
    }

    /// Like [`Expr::parse_late`], with variables of the body.
    pub fn parse_with_body(value: &Value) -> Result<Expr, VarsError> {
        Expr::parse_with(Variable::parse_with_body, value)
    }

    fn parse_with(variable: ParseVariable, value: &Value) -> Result<Expr, VarsError> {
        let mut parser = VarsParser {
            variable,
            path: Vec::new(),
            predicates: 0,
            regexes: RegexTotal::default(),
            text: String::new(),
        };
        let condition = match value {
            Value::Array(items) if items.is_empty() => parser.parse_list("AND", &[]),
            // Lua cannot tell an empty map from an empty list.
            Value::Object(fields) if fields.is_empty() => parser.parse_list("AND", &[]),
            Value::Array(items) if items[0].is_string() && logic(&items[0]).is_none() => {
                parser.fail(format!("a single condition needs brackets of its own; write [{value}]"))
            }
            value => parser.condition(value),
        }?;
        Ok(Expr { text: parser.text.into(), condition, regex_bytes: parser.regexes.bytes() })
    }
}

type Parsed<T> = Result<T, VarsError>;

type ParseVariable = fn(&str) -> Result<Variable, crate::VariableError>;

struct VarsParser {
    variable: ParseVariable,
    path: Vec<usize>,
    predicates: usize,
    regexes: RegexTotal,
    /// The parsed part as JSON, with every operator written out.
    text: String,
}

/// The operator that joins the conditions of a list.
fn logic(first: &Value) -> Option<&'static str> {
    let name = first.as_str()?;
    ["AND", "OR", "!AND", "!OR"].into_iter().find(|known| known.eq_ignore_ascii_case(name))
}

fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

impl VarsParser {
    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(VarsError { path: self.path.clone(), message: message.into() })
    }

    /// Runs `parse` on an item of the list at hand, so that errors point at it.
    fn at<T>(&mut self, index: usize, parse: impl FnOnce(&mut VarsParser) -> Parsed<T>) -> Parsed<T> {
        self.path.push(index);
        let parsed = parse(self)?;
        self.path.pop();
        Ok(parsed)
    }

    fn condition(&mut self, value: &Value) -> Parsed<Condition> {
        const EXAMPLE: &str = r#"["arg_name", "==", "value"]"#;
        let Value::Array(items) = value else {
            return self.fail(format!("expected a list; write a condition as {EXAMPLE}"));
        };
        if self.path.len() > DEPTH_MAX {
            return self.fail(format!("lists nest at most {DEPTH_MAX} deep"));
        }
        let Some(first) = items.first() else {
            return self.fail(format!("an empty list; write a condition as {EXAMPLE}"));
        };
        if first.is_array() {
            return self.parse_list("AND", items);
        }
        let Some(operator) = logic(first) else {
            return self.predicate(value, items);
        };
        if items.len() < 3 {
            return self.fail(format!("{first} joins at least two conditions; write them after it"));
        }
        self.parse_list(operator, items)
    }

    /// The conditions of a list, which may begin with the operator.
    fn parse_list(&mut self, operator: &str, items: &[Value]) -> Parsed<Condition> {
        self.text.push_str(&format!("[{operator:?}"));
        let mut conditions = Vec::with_capacity(items.len());
        let first = usize::from(items.first().is_some_and(Value::is_string));
        for (index, item) in items.iter().enumerate().skip(first) {
            self.text.push(',');
            conditions.push(self.at(index, |parser| parser.condition(item))?);
        }
        self.text.push(']');
        Ok(match operator {
            "AND" => Condition::All(conditions),
            "OR" => Condition::Any(conditions),
            "!AND" => not(Condition::All(conditions)),
            _ => not(Condition::Any(conditions)),
        })
    }

    fn predicate(&mut self, whole: &Value, items: &[Value]) -> Parsed<Condition> {
        self.predicates += 1;
        if self.predicates > PREDICATES_MAX {
            return self.fail(format!("more than {PREDICATES_MAX} conditions"));
        }
        let (negated, operator_index) = match items {
            [_, value] => return self.fail(format!("no operator; write [{}, \"==\", {value}]", items[0])),
            [_, _, _] => (false, 1),
            [_, not, _, _] if not == "!" => (true, 2),
            [_, _, _, _] => {
                return self.at(1, |parser| parser.fail("four items are [variable, \"!\", operator, value]"));
            }
            _ => return self.fail("a condition is [variable, operator, value] or [variable, \"!\", operator, value]"),
        };
        let variable = self.at(0, |parser| parser.variable(&items[0]))?;
        let operator = self.at(operator_index, |parser| parser.operator(&items[operator_index]))?;
        let value = &items[operator_index + 1];
        let text = whole.to_string();
        let tested = TestedVariable { variable, text: &text };
        let condition = self.at(operator_index + 1, |parser| parser.test(&tested, operator, value))?;
        self.text.push_str(&text);
        let negated = negated != matches!(operator, Operator::NotEqual);
        Ok(if negated { not(condition) } else { condition })
    }

    fn variable(&self, value: &Value) -> Parsed<Variable> {
        let Value::String(name) = value else {
            return self.fail(format!("expected a variable's name, not {value}"));
        };
        (self.variable)(name).or_else(|error| self.fail(error.to_string()))
    }

    fn operator(&self, value: &Value) -> Parsed<Operator> {
        let Value::String(name) = value else {
            return self.fail(format!("expected an operator, not {value}"));
        };
        let lower = name.to_ascii_lowercase();
        if let Some((_, operator)) = OPERATORS.iter().find(|(known, _)| *known == lower) {
            return Ok(*operator);
        }
        let hint = match lower.as_str() {
            "=" | "===" | "eq" => "write \"==\"".to_owned(),
            "!=" | "<>" | "ne" => "write \"~=\"".to_owned(),
            "=~" | "~" | "regex" => "write \"~~\"".to_owned(),
            "not in" | "notin" | "!in" => "write \"!\", \"in\"".to_owned(),
            _ => {
                let names: Vec<String> = OPERATORS.iter().map(|(name, _)| format!("{name:?}")).collect();
                format!("write one of {}", names.join(", "))
            }
        };
        self.fail(format!("{name:?}: unknown operator; {hint}"))
    }

    /// The test of an operator; for `~=` that of `==`, negated.
    fn test(&mut self, tested: &TestedVariable<'_>, operator: Operator, value: &Value) -> Parsed<Condition> {
        Ok(match operator {
            Operator::Equal | Operator::NotEqual => tested.equal(self.operand(value)?, tested.text),
            Operator::Compare(test) => tested.passes(Test::Number(test, self.number(value)?)),
            Operator::Matches { any_case } => tested.passes(Test::Regex(self.regex(value, any_case)?)),
            Operator::In => {
                let operands = self.each(value, |parser, item| Ok((parser.operand(item)?, item.to_string())))?;
                let equal = |(operand, item): (Operand, String)| tested.equal_item(operand, &item);
                Condition::Any(operands.into_iter().map(equal).collect())
            }
            Operator::Has => match self.operand(value)? {
                Operand::Text(text) => tested.passes(Test::HasElement(text)),
                _ => return self.fail("\"has\" compares text; write the element in quotes"),
            },
            Operator::IpMatch => {
                let networks = match value.is_string() {
                    true => vec![self.network(value)?],
                    false => self.each(value, VarsParser::network)?,
                };
                tested.passes(Test::Addresses(AddressSet::new(&networks)))
            }
        })
    }

    fn each<T>(&mut self, value: &Value, parse: impl Fn(&VarsParser, &Value) -> Parsed<T>) -> Parsed<Vec<T>> {
        match value {
            Value::Array(items) if !items.is_empty() => {
                let items = items.iter().enumerate();
                items.map(|(index, item)| self.at(index, |parser| parse(parser, item))).collect()
            }
            Value::Array(_) => self.fail("an empty list: the condition could never hold"),
            _ => self.fail(format!("expected a list; write [{value}]")),
        }
    }

    fn operand(&self, value: &Value) -> Parsed<Operand> {
        match value {
            Value::Null => Ok(Operand::Null),
            Value::String(text) => Ok(Operand::Text(text.as_str().into())),
            Value::Number(_) => Ok(Operand::Number(self.number(value)?)),
            Value::Bool(_) => self.fail(format!("variables are text; write \"{value}\"")),
            Value::Array(_) | Value::Object(_) => self.fail("expected text or a number"),
        }
    }

    fn number(&self, value: &Value) -> Parsed<f64> {
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => parse_number(text.as_bytes()),
            _ => None,
        };
        number.map_or_else(|| self.fail(format!("expected a number, not {value}")), Ok)
    }

    fn regex(&mut self, value: &Value, any_case: bool) -> Parsed<Pattern> {
        let Value::String(pattern) = value else {
            return self.fail(format!("expected a regex in quotes, not {value}"));
        };
        match Pattern::ascii(pattern, any_case).and_then(|pattern| self.regexes.add(pattern)) {
            Ok(pattern) => Ok(pattern),
            Err(RegexError::Syntax { reason, .. }) => self.fail(format!("{pattern:?} is not a regex: {reason}")),
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn network(&self, value: &Value) -> Parsed<IpNet> {
        let parsed = value.as_str().and_then(|text| {
            let address = || text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
            text.parse::<IpNet>().ok().or_else(address)
        });
        parsed.map_or_else(|| self.fail(format!("{value}: expected an address or network, as \"10.0.0.0/8\"")), Ok)
    }
}

/// The value of a rule, with which a variable is compared.
enum Operand {
    Null,
    Number(f64),
    Text(Box<str>),
}

/// The tested variable, and the text of the rule.
struct TestedVariable<'a> {
    variable: Variable,
    text: &'a str,
}

impl TestedVariable<'_> {
    fn passes(&self, test: Test) -> Condition {
        predicate(field_of(&self.variable, &test), test, self.text)
    }

    fn equal(&self, operand: Operand, text: &str) -> Condition {
        let test = match operand {
            Operand::Null => {
                return not(predicate(field_of(&self.variable, &Test::Present), Test::Present, text));
            }
            Operand::Number(number) => Test::Number(NumberTest::Equal, number),
            Operand::Text(value) => Test::Equal(value.as_bytes().into()),
        };
        predicate(field_of(&self.variable, &test), test, text)
    }

    /// An item of a list. Its text has this item only, or long lists would be stored once per item.
    fn equal_item(&self, operand: Operand, item: &str) -> Condition {
        let variable = self.variable.to_string();
        self.equal(operand, &format!("[{variable:?},\"in\",[{item}]]"))
    }
}

/// The field on which `test` has the same meaning as on the variable: the same as Kong's where both mean the same, so that an
/// index finds it.
///
/// A header with several lines is one value in `vars` (joined) and several in Kong, a query argument is undecoded here
/// and decoded there, and the path is decoded here and in normal form there; these stay variables.
fn field_of(variable: &Variable, test: &Test) -> Field {
    match (variable, test) {
        (Variable::RequestMethod, _) => Field::Method,
        (Variable::Scheme, _) => Field::Protocol,
        // A request without a host has an empty variable, but no field.
        (Variable::Host, Test::Equal(text)) if !text.is_empty() => Field::Host,
        // As a variable it is text, and only this test reads it as an address.
        (Variable::RemoteAddr, Test::Addresses(_)) => Field::SourceIp,
        _ => Field::Variable(variable.clone()),
    }
}

fn predicate(field: Field, test: Test, text: &str) -> Condition {
    let source = PredicateOrigin { text: text.into(), at: None };
    Condition::Is(Arc::new(Predicate { field, lower: false, any: false, test, source }))
}

#[derive(Debug, Clone, Copy)]
enum Operator {
    Equal,
    NotEqual,
    Compare(NumberTest),
    Matches { any_case: bool },
    In,
    Has,
    IpMatch,
}

const OPERATORS: [(&str, Operator); 11] = [
    ("==", Operator::Equal),
    ("~=", Operator::NotEqual),
    (">", Operator::Compare(NumberTest::Greater)),
    (">=", Operator::Compare(NumberTest::GreaterOrEqual)),
    ("<", Operator::Compare(NumberTest::Less)),
    ("<=", Operator::Compare(NumberTest::LessOrEqual)),
    ("~~", Operator::Matches { any_case: false }),
    ("~*", Operator::Matches { any_case: true }),
    ("in", Operator::In),
    ("has", Operator::Has),
    ("ipmatch", Operator::IpMatch),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::{ConditionValue, Field, Predicate, Test};
    use std::net::IpAddr;

    /// Names and values of variables.
    type Values<'a> = &'a [(&'a str, &'a [u8])];

    const VALUES: Values<'_> = &[
        ("arg_v", b"10"),
        ("arg_empty", b""),
        ("arg_name", b"Json"),
        ("arg_hex", b"0x1f"),
        ("arg_pad", b" 7.5e1 "),
        ("arg_inf", b"inf"),
        ("http_accept", b"text/html, application/json"),
        ("remote_addr", b"10.1.2.3"),
        ("uri", b"/a/b"),
        ("http.method", b"GET"),
        ("net.protocol", b"http"),
        ("host", b""),
    ];

    fn parse(json: &str) -> Expr {
        Expr::parse(&serde_json::from_str(json).unwrap()).unwrap()
    }

    fn holds(expr: &Expr, values: Values<'_>) -> bool {
        let value = |name: &str| values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        expr.condition().holds(&mut |predicate: &Predicate| match &predicate.field {
            Field::SourceIp => {
                let address = std::str::from_utf8(value("remote_addr").unwrap()).unwrap();
                predicate.test.passes(ConditionValue::Ip(address.parse::<IpAddr>().unwrap().to_canonical()))
            }
            field => value(&field.to_string()).is_some_and(|value| predicate.test.passes(ConditionValue::Text(value))),
        })
    }

    #[test]
    fn operators() {
        let check = |rule: &str, expected: bool| {
            assert_eq!(holds(&parse(&format!("[{rule}]")), VALUES), expected, "{rule}");
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
        check(r#"["uri","~~","^/a/[a-c]$"]"#, true);
        check(r#"["uri","==",null]"#, false);
        check(r#"["request_method","in",["GET","HEAD"]]"#, true);
        check(r#"["request_method","~=","GET"]"#, false);
        check(r#"["scheme","!","==","https"]"#, true);
        check(r#"["host","==","a"]"#, false);
        check(r#"["host","~=","a"]"#, true);
        check(r#"["host","==",""]"#, true);
        check(r#"["host","==",null]"#, false);
        check(r#"["remote_addr","!","ipmatch",["10.0.0.0/8","::1"]]"#, false);
        check(r#"["remote_addr","==","10.1.2.3"]"#, true);
        check(r#"["remote_addr","~~","^10[.]1[.]"]"#, true);
    }

    #[test]
    fn absent_variables() {
        let check = |operator_and_value: &str, expected: bool| {
            for (negation, expected) in [("", expected), ("\"!\",", !expected)] {
                let rule = format!("[[\"arg_none\",{negation}{operator_and_value}]]");
                assert_eq!(holds(&parse(&rule), VALUES), expected, "{rule}");
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
            assert_eq!(holds(&parse(&rule), VALUES), expected, "{rule}");
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
    fn variables_are_fields_where_both_mean_the_same() {
        let check = |rule: &str, field: &str, test: Test| {
            let mut seen = Vec::new();
            let expr = parse(&format!("[{rule}]"));
            expr.condition()
                .each_predicate(&mut |predicate| seen.push((predicate.field.to_string(), predicate.test.clone())));
            assert_eq!(seen, [(field.to_owned(), test)], "{rule}");
        };
        let equal = |text: &str| Test::Equal(text.as_bytes().into());
        check(r#"["uri","==","/a"]"#, "uri", equal("/a"));
        check(r#"["request_method","~=","GET"]"#, "http.method", equal("GET"));
        check(r#"["scheme","in",["http"]]"#, "net.protocol", equal("http"));
        check(r#"["host","==","a"]"#, "http.host", equal("a"));
        check(r#"["host","==",""]"#, "host", equal(""));
        check(r#"["host","has","a"]"#, "host", Test::HasElement("a".into()));
        check(r#"["host","==",null]"#, "host", Test::Present);
        check(r#"["remote_addr","==","::1"]"#, "remote_addr", equal("::1"));
        check(r#"["http_x_user","==","a"]"#, "http_x_user", equal("a"));
        check(r#"["arg_a","==","a"]"#, "arg_a", equal("a"));
    }

    #[test]
    fn conditions_and_their_parts_keep_what_was_written() {
        let check = |rule: &str, whole: &str, parts: &[&str]| {
            let expr = parse(rule);
            assert_eq!(expr.to_string(), whole);
            let mut seen = Vec::new();
            expr.condition().each_predicate(&mut |predicate| seen.push(predicate.source.text.to_string()));
            assert_eq!(seen, parts, "{rule}");
        };
        check(r#"[["uri", "==", "/a"]]"#, r#"["AND",["uri","==","/a"]]"#, &[r#"["uri","==","/a"]"#]);
        check(
            r#"["!or",["arg_a","!","~=",1], [["arg_b","IN",["x",2]]]]"#,
            r#"["!OR",["arg_a","!","~=",1],["AND",["arg_b","IN",["x",2]]]]"#,
            &[r#"["arg_a","!","~=",1]"#, r#"["arg_b","in",["x"]]"#, r#"["arg_b","in",[2]]"#],
        );
    }

    #[test]
    fn regexes_match_bytes_that_are_not_text() {
        assert!(holds(&parse(r#"[["http_x","~~","^..ok$"]]"#), &[("http_x", b"\xff\xfeok")]));
    }
}

#[cfg(test)]
mod parse_tests {
    use super::*;
    use crate::regex::CONDITION_REGEX_BYTES_MAX;

    #[test]
    fn errors_point_at_the_item_and_say_what_to_write() {
        let check = |json: &str, message: &str| {
            let error = Expr::parse(&serde_json::from_str(json).unwrap()).unwrap_err();
            assert_eq!(error.to_string(), message);
        };
        check(r#""x""#, r#"expected a list; write a condition as ["arg_name", "==", "value"]"#);
        check(r#"["arg_a","==","1"]"#, r#"a single condition needs brackets of its own; write [["arg_a","==","1"]]"#);
        check(r#"[[]]"#, r#"[0]: an empty list; write a condition as ["arg_name", "==", "value"]"#);
        check(r#"[["arg_a","1"]]"#, r#"[0]: no operator; write ["arg_a", "==", "1"]"#);
        check(
            r#"[["arg_a"]]"#,
            r#"[0]: a condition is [variable, operator, value] or [variable, "!", operator, value]"#,
        );
        check(r#"[["arg_a","not","==","1"]]"#, r#"[0][1]: four items are [variable, "!", operator, value]"#);
        check(r#"["OR",["arg_a","==","1"]]"#, r#""OR" joins at least two conditions; write them after it"#);
        check(
            r#"[["a","==","1"]]"#,
            r#"[0][0]: "a": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME"#,
        );
        check(
            r#"["AND","OR",["uri","==","1"]]"#,
            r#"[1]: expected a list; write a condition as ["arg_name", "==", "value"]"#,
        );
        check(r#"[[1,"==","1"]]"#, r#"[0][0]: expected a variable's name, not 1"#);
        check(r#"["OR",["uri","==","1"],["uri","!=","1"]]"#, r#"[2][1]: "!=": unknown operator; write "~=""#);
        check(
            r#"[["uri","is","1"]]"#,
            r#"[0][1]: "is": unknown operator; write one of "==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch""#,
        );
        check(r#"[["uri","!","not in",["1"]]]"#, r#"[0][2]: "not in": unknown operator; write "!", "in""#);
        check(r#"[["uri",1,"1"]]"#, r#"[0][1]: expected an operator, not 1"#);
        check(r#"[["uri","==",true]]"#, r#"[0][2]: variables are text; write "true""#);
        check(r#"[["uri","==",["a"]]]"#, r#"[0][2]: expected text or a number"#);
        check(r#"[["uri",">","a"]]"#, r#"[0][2]: expected a number, not "a""#);
        check(r#"[["uri","in","a"]]"#, r#"[0][2]: expected a list; write ["a"]"#);
        check(r#"[["uri","in",[]]]"#, r#"[0][2]: an empty list: the condition could never hold"#);
        check(r#"[["uri","in",["a",true]]]"#, r#"[0][2][1]: variables are text; write "true""#);
        check(r#"[["uri","has",1]]"#, r#"[0][2]: "has" compares text; write the element in quotes"#);
        check(r#"[["uri","~~",1]]"#, r#"[0][2]: expected a regex in quotes, not 1"#);
        check(r#"[["uri","~~","(a"]]"#, r#"[0][2]: "(a" is not a regex: unclosed group"#);
        check(
            r#"[["uri","~~","(?=a)"]]"#,
            r#"[0][2]: "(?=a)" is not a regex: look-around, including look-ahead and look-behind, is not supported"#,
        );
        check(
            r#"[["uri","~~","(a{1000}){1000}"]]"#,
            r#"[0][2]: the regex needs more than 1048576 bytes; write fewer or smaller repetitions"#,
        );
        check(
            r#"[["uri","ipmatch",["10.0.0.0/33"]]]"#,
            r#"[0][2][0]: "10.0.0.0/33": expected an address or network, as "10.0.0.0/8""#,
        );
    }

    #[test]
    fn size_and_depth_are_bounded() {
        let check = |json: String, message: &str| {
            let error = Expr::parse(&serde_json::from_str(&json).unwrap()).unwrap_err();
            assert!(error.message.contains(message), "{error}");
        };
        let rule = r#"["uri","==","a"]"#;
        check(format!("[{}]", vec![rule; PREDICATES_MAX + 1].join(",")), "more than 256 conditions");
        let regexes = |count: usize| {
            let each: Vec<String> =
                (0..count).map(|number| format!(r#"["http_a","~~","(\\w{{40}}){{40}}{number}"]"#)).collect();
            format!("[{}]", each.join(","))
        };
        let fits = Expr::parse(&serde_json::from_str(&regexes(40)).unwrap()).unwrap();
        assert!((1 << 20..=CONDITION_REGEX_BYTES_MAX).contains(&fits.regex_bytes()), "{}", fits.regex_bytes());
        check(regexes(100), "the regexes of this condition need more than 4194304 bytes together");
        let simple = vec![r#"["uri","~~","^/a/[a-z0-9-]+/b$"]"#; PREDICATES_MAX].join(",");
        assert!(Expr::parse(&serde_json::from_str(&format!("[{simple}]")).unwrap()).is_ok());
        check(format!("{}{rule}{}", "[".repeat(40), "]".repeat(40)), "lists nest at most 16 deep");
    }
}
