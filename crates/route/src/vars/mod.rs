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

mod fields;
mod parse;

pub use parse::{DEPTH_MAX, PREDICATES_MAX, VarsError};

use crate::condition::Condition;
use std::fmt;

/// A condition as text, and its parsed form.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// The condition as JSON, with every operator written out.
    text: Box<str>,
    condition: Condition,
}

impl Expr {
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
        ("http.path", b"/a/b"),
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
        check(r#"["uri","==","/a"]"#, "http.path", equal("/a"));
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
