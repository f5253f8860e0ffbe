//! Golden: messages for invalid expressions, theme by theme.
//!
//! In `data/expression/*.txt` every line behind `> ` is an expression; a line that begins with blanks belongs to the
//! one before. The messages follow below, and `UPDATE_EXPECT=1` writes them again.

use expect_test::{Expect, ExpectFile, expect, expect_file};
use std::fmt::Write;
use stillgate_route::Expression;

fn rendered(expression: &str) -> String {
    match Expression::parse(expression) {
        Ok(_) => "accepted\n".to_owned(),
        Err(errors) => errors.iter().fold(String::new(), |all, error| all + &format!("{error}\n")),
    }
}

fn check(file: ExpectFile) {
    let mut expressions: Vec<String> = Vec::new();
    for line in file.data().lines().filter_map(|line| line.strip_prefix('>')) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        match expressions.last_mut() {
            Some(last) if line.starts_with("  ") && !line.trim().is_empty() => write!(last, "\n{line}").unwrap(),
            _ => expressions.push(line.to_owned()),
        }
    }
    assert!(!expressions.is_empty(), "the file has no expressions");
    let blocks = expressions.iter().map(|expression| {
        let quoted = expression.lines().fold(String::new(), |all, line| all + format!("> {line}").trim_end() + "\n");
        format!("{}{}", if quoted.is_empty() { ">\n" } else { &quoted }, rendered(expression))
    });
    file.assert_eq(&blocks.collect::<Vec<_>>().join("\n"));
}

#[test]
fn operators() {
    check(expect_file!["../data/expression/operators.txt"]);
}

#[test]
fn logical_operators() {
    check(expect_file!["../data/expression/joints.txt"]);
}

#[test]
fn parentheses() {
    check(expect_file!["../data/expression/parentheses.txt"]);
}

#[test]
fn values() {
    check(expect_file!["../data/expression/values.txt"]);
}

#[test]
fn numbers() {
    check(expect_file!["../data/expression/numbers.txt"]);
}

#[test]
fn addresses() {
    check(expect_file!["../data/expression/addresses.txt"]);
}

#[test]
fn fields() {
    check(expect_file!["../data/expression/fields.txt"]);
}

#[test]
fn functions() {
    check(expect_file!["../data/expression/functions.txt"]);
}

#[test]
fn types() {
    check(expect_file!["../data/expression/types.txt"]);
}

#[test]
fn regexes() {
    check(expect_file!["../data/expression/regexes.txt"]);
}

#[test]
fn several_at_once() {
    check(expect_file!["../data/expression/several.txt"]);
}

fn check_text(expression: &str, expected: Expect) {
    expected.assert_eq(&rendered(expression));
}

#[test]
fn nothing_in_a_message_moves_the_cursor() {
    check_text(
        "http.path == \"\u{202e}\0\x1b[2J\u{7}\" \u{202e}x",
        expect![[r#"
            line 1, column 24: expected `&&`, `||` or the end, found `\u{202e}x`
                http.path == "\u{202e}\u{0}\u{1b}[2J\u{7}" \u{202e}x
                                                           ^^^^^^^^^
                hint: the character U+202E, which is invisible, is not a blank here: remove it
        "#]],
    );
    check_text(
        "http.host\t==\t\"ä\"\r\n\t&& http.pth == \"b\"\r\n",
        expect![[r#"
        line 2, column 5: there is no field `http.pth`
             && http.pth == "b"
                ^^^^^^^^
            hint: did you mean `http.path`?
    "#]],
    );
    check_text(
        "http.\u{200b}path == \"a\"",
        expect![[r#"
            line 1, column 1: `http.\u{200b}path` is not a field: names are of ASCII letters, digits, `_` and dots
                http.\u{200b}path == "a"
                ^^^^^^^^^^^^^^^^^
                hint: leave out the character U+200B, which is invisible
        "#]],
    );
    check_text(
        "http.path\u{a0}== \"a\"",
        expect![[r#"
            line 1, column 10: expected an operator, such as `==`, found `\u{a0}==`
                http.path\u{a0}== "a"
                         ^^^^^^^^
                hint: the character U+00A0, which is invisible, is not a blank here: remove it
        "#]],
    );
    check_text(
        "http.path ~ \"e\u{301}(\" ",
        expect![[r#"
            line 1, column 16: the regex is refused: unclosed group
                http.path ~ "e\u{301}("
                                     ^
        "#]],
    );
}

#[test]
fn of_a_long_line_what_is_around_the_place_is_shown() {
    let long = format!("http.path == \"{}\" && http.pth == \"{}\"", "a".repeat(500), "b".repeat(500));
    check_text(
        &long,
        expect![[r#"
        line 1, column 520: there is no field `http.pth`
            …aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" && http.pth == "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb…
                                                                         ^^^^^^^^
            hint: did you mean `http.path`?
    "#]],
    );
    check_text(
        &format!("{} == \"a\"", "x".repeat(500)),
        expect![[r#"
            line 1, column 1: there is no field `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…`
                xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
                hint: there are http.{method, host, path, path.segments.N, headers.NAME, queries.NAME}, net.{protocol, src.ip, src.port, dst.ip, dst.port} and tls.sni
        "#]],
    );
    check_text(
        &format!("http.path ~ \"{}(\"", "ü".repeat(500)),
        expect![[r#"
        line 1, column 514: the regex is refused: unclosed group
            …üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü("
                                                                         ^
    "#]],
    );
}
