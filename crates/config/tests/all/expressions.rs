//! Expressions in a file: errors point at the exact character if it can be determined, and harmful input is refused.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use stillgate_config::{Errors, load};
use stillgate_route::expression::ERRORS_MAX;
use stillgate_route::{RECORDED, Variable};
use stillgate_schema::text::environment::expand;

/// A character that no expression contains; errors point at it.
const MARK: &str = "@here";

/// The CPU time of this thread so far: other load on the CPU does not affect it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn errors_of(expression: &str) -> Errors {
    let text = format!("routes:\n- upstream: {{nodes: {{a: 1}}}}\n  expression: {expression}\n");
    let start = cpu_time();
    let errors = load(&text, &|name| (name == "MARK").then(|| MARK.to_owned())).expect_err(&text);
    assert!(cpu_time() - start < Duration::from_secs(10), "{:?}", cpu_time() - start);
    errors
}

/// The position of the first error, and whether it is that of the mark in the file.
fn position(expression: &str) -> ((u32, u32), bool) {
    let first = &errors_of(expression).diagnostics[0];
    let before = &expression[..expression.find(MARK).unwrap_or(0)];
    let line = 3 + before.matches('\n').count();
    let column = match before.rfind('\n') {
        Some(at) => before[at + 1..].chars().count() + 1,
        None => before.chars().count() + "  expression: ".len() + 1,
    };
    ((first.line, first.column), (first.line as usize, first.column as usize) == (line, column))
}

#[test]
fn errors_point_into_the_file() {
    for exact in [
        "http.path == \"a\" && @here",
        "http.path == \"\u{e9}\u{1f600}\" && @here",
        "   http.path == \"a\" && @here # comment",
        "'http.path == \"a\" && @here'",
        "\"net.src.ip @here\"",
        "|\n    http.path == \"a\"\n      && @here\n",
        "|2-\n\n\n    http.path == \"a\"\n\n    && @here",
        "|+\n    http.path == \"\u{e9}\" && @here\n\n",
        "|\r\n    http.path == \"a\"\r\n    && @here\r\n",
        ">\n    http.path == \"a\"\n    && @here\n",
        ">-\n\n    http.path == \"\u{e9}\"\n\n\n    && (\n      http.path == \"b\"\n\n        || @here)\n",
        ">\r\n    http.path == \"a\"\r\n    && @here\r\n",
        ">\n    http.path == \"a\"   \n    && @here",
    ] {
        assert!(position(exact).1, "{exact:?}: {:?}", position(exact).0);
    }
}

#[test]
fn or_at_where_the_expression_begins() {
    for (expression, message) in [
        ("'http.path == \"it''s\" && @here'", "line 1, column 24: "),
        ("\"http.path == \\\"a\\\" && @here\"", "line 1, column 21: "),
        ("\"http.path == 1\n    @here\"", "line 1, column 14: "),
        ("http.path\n    @here", "line 1, column 11: "),
        ("'http.path == ${MARK}'", "line 1, column 14: "),
    ] {
        let errors = errors_of(expression);
        let first = &errors.diagnostics[0];
        assert_eq!((first.line, first.column), (3, 15), "{expression:?}");
        assert!(first.message.starts_with(message), "{expression:?}: {}", first.message);
    }
}

fn check(expression: &str, want: Expect) {
    want.assert_eq(&errors_of(expression).to_string());
}

#[test]
fn harmful_expressions_are_refused() {
    check(
        &"x".repeat(1 << 20),
        expect![[r#"
            3:15: routes[0].expression: the expression has 1048576 bytes; at most 65536 are read; make it several routes, or one shorter regex
                xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
                ^"#]],
    );
    check(
        &format!("'{}'", "(".repeat(10_000)),
        expect![[r#"
        3:80: routes[0].expression: more than 64 parentheses are open here; leave out parentheses that change nothing: `a || b` needs none within `&&`
            …(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((…
                                                                         ^"#]],
    );
    check(
        &format!("'{}http.path == \"a\"{}'", "(".repeat(10_000), ")".repeat(10_000)),
        expect![[r#"
        3:80: routes[0].expression: more than 64 parentheses are open here; leave out parentheses that change nothing: `a || b` needs none within `&&`
            …(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((…
                                                                         ^"#]],
    );
    check(
        &format!("'{}http.path == \"a\"'", "!".repeat(60_000)),
        expect![[r#"
        3:16: routes[0].expression: `!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!…` is not in the expression language; two `!` undo each other: leave both out; else write `!(!( … ))`
            !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!…
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"#]],
    );
    check(
        &format!("'http.path ~ \"{}\"'", "(a{1000}){1000}"),
        expect![[r#"
        3:28: routes[0].expression: the regex is refused: the regex needs more than 1048576 bytes; write fewer or smaller repetitions
            http.path ~ "(a{1000}){1000}"
                        ^^^^^^^^^^^^^^^^^"#]],
    );
    check(
        "\"http.path == \\\"\\e[31m\\u202e\\0\\\" @\"",
        expect![[r#"
        3:15: routes[0].expression: line 1, column 24: expected `&&`, `||` or the end, found `@`
            http.path == "\u{1b}[31m\u{202e}\u{0}" @
                                                   ^"#]],
    );
    check(
        "{}",
        expect![[
            r#"3:15: routes[0].expression: expected an expression such as 'http.path ^= "/a"', found an empty map"#
        ]],
    );
    check(
        "[http.path == 1]",
        expect![[r#"3:15: routes[0].expression: expected an expression such as 'http.path ^= "/a"', found a list"#]],
    );
    check("*x", expect!["3:15: not valid YAML: while parsing node, found unknown anchor"]);
}

#[test]
fn no_more_than_some_errors_of_one_expression_are_reported() {
    let errors = errors_of(&["http.path == 1"; 3000].join(" && "));
    assert_eq!((errors.diagnostics.len(), errors.omitted), (ERRORS_MAX + 1, 0));
}

#[test]
fn a_report_for_machines_has_the_excerpt() {
    let errors = errors_of("http.hots == \"a\"");
    expect![[r#"
        {
          "severity": "error",
          "path": "routes[0].expression",
          "line": 3,
          "column": 15,
          "message": "there is no field `http.hots`",
          "hint": "did you mean `http.host`?",
          "excerpt": "    http.hots == \"a\"\n    ^^^^^^^^^"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&errors.diagnostics[0]).unwrap());
}

proptest! {
    /// For any layout of an expression, in a block or in one line.
    #[test]
    fn blocks_are_mapped_line_by_line(
        words in prop::collection::vec((prop::sample::select(vec!["http.path", "==", "\"\u{e9}\"", "&&", "(", "1"]), 0..4usize, 0..3usize), 0..12),
        folded in any::<bool>(),
        indent in 3..6usize,
    ) {
        let mut block = format!("{}\n{}", if folded { ">" } else { "|" }, " ".repeat(indent));
        let words: Vec<_> = words.into_iter().chain([("@here", 0, 0)]).collect();
        for (number, (word, breaks, more)) in words.iter().enumerate() {
            block += word;
            if number + 1 < words.len() {
                match breaks {
                    0 | 1 => block.push(' '),
                    _ => block += &format!("{}{}", "\n".repeat(breaks - 1), " ".repeat(indent + more)),
                }
            }
        }
        let errors = errors_of(&block);
        for error in &errors.diagnostics {
            // Each error is reported at a word of the file that its excerpt marks.
            let line = block.lines().nth(error.line as usize - 3).unwrap();
            let rest: String = line.chars().skip(error.column as usize - 1).collect();
            let excerpt = error.excerpt.as_deref().unwrap();
            let (shown, carets) = excerpt.split_once('\n').unwrap();
            let marked: String = shown.chars().skip(carets.find('^').unwrap()).take(carets.matches('^').count()).collect();
            prop_assert!(rest.starts_with(marked.trim_end()), "{block}\n{rest:?} is not {marked:?}");
        }
    }
}

/// For every variable that plugins read, a file's `${uri}` is the request's, not the environment's.
#[test]
fn no_variable_of_a_request_is_read_from_the_environment() {
    let environment = |_: &str| Some("environment".to_owned());
    let prefixes = ["sent_http_x", "upstream_http_x", "post_arg_a", "post_arg.a[0]"];
    for name in Variable::names().chain(RECORDED).chain(prefixes) {
        assert_eq!(expand(&format!("${{{name}}}"), &environment), Ok(None), "{name}");
        assert_eq!(expand(&format!("a ${{{name} ?? b}}"), &environment), Ok(None), "{name}");
    }
}
