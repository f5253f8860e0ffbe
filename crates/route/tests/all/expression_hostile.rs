//! Expressions made to hurt: each is refused or parsed quickly and within bounds.

use stillgate_route::Expression;
use stillgate_route::expression::{ERRORS_MAX, EXPRESSION_BYTES_MAX, NESTING_MAX, PREDICATES_MAX};
use stillgate_route::expression::{ExpressionError, ExpressionErrorKind as Kind};

const GOOD: &str = "http.path == \"a\"";

fn errors(text: &str) -> Vec<ExpressionError> {
    let errors = Expression::parse(text).expect_err("the expression is wrong");
    assert!(!errors.is_empty() && errors.len() <= ERRORS_MAX + 1, "{}", errors.len());
    for error in &errors {
        let rendered = error.to_string();
        assert!(rendered.chars().all(|c| c == '\n' || !c.is_control()), "{rendered:?}");
        assert!(rendered.lines().all(|line| line.chars().count() < 1000), "{rendered}");
        assert!(error.span.end <= text.len());
    }
    errors
}

#[test]
fn what_is_too_long_is_not_read() {
    let chain = format!("{GOOD} && ").repeat(1 << 16);
    for text in ["a".repeat(1 << 20), "(".repeat(1 << 20), " ".repeat(1 << 20), "\n".repeat(1 << 20), chain] {
        let errors = errors(&text);
        assert_eq!(errors.iter().map(|error| &error.kind).collect::<Vec<_>>(), [&Kind::TooLong { bytes: text.len() }]);
    }
    let longest = format!("{GOOD}{}", " ".repeat(EXPRESSION_BYTES_MAX - GOOD.len()));
    Expression::parse(&longest).unwrap();
    errors(&format!("{longest} "));
}

#[test]
fn nesting_has_an_end() {
    for (open, width) in [("(", 1), ("!(", 2), ("! ( ", 4), ("lower(", 6), ("any(", 4), ("Lower (", 7)] {
        let errors = errors(&open.repeat(10_000.min(EXPRESSION_BYTES_MAX / open.len())));
        let deep = errors.iter().find(|error| error.kind == Kind::TooDeep);
        // Each `Lower` is an error of its own.
        assert_eq!(deep.is_none(), open == "Lower (");
        if let Some(deep) = deep {
            let at = open.find('(').unwrap();
            assert_eq!((deep.line, deep.column as usize), (1, NESTING_MAX * width + at + 1), "{open}");
        }
    }
    for (open, close) in [("(", ")"), ("!(", ")"), ("((", "))")] {
        let times = NESTING_MAX / open.matches('(').count();
        let nested = |times: usize| format!("{}{GOOD}{}", open.repeat(times), close.repeat(times));
        Expression::parse(&nested(times)).unwrap();
        errors(&nested(times + 1));
    }
    let calls = |times: usize| format!("({}http.path{} == \"a\")", "lower(".repeat(times), ")".repeat(times));
    Expression::parse(&calls(NESTING_MAX - 1)).unwrap();
    assert_eq!(errors(&calls(NESTING_MAX))[0].kind, Kind::TooDeep);
}

#[test]
fn predicates_have_an_end() {
    let chain = |count: usize| vec!["tls.sni~\"\""; count].join("||");
    Expression::parse(&chain(PREDICATES_MAX)).unwrap();
    let errors = errors(&chain(PREDICATES_MAX + 1));
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].kind, Kind::TooManyPredicates);
    assert_eq!(errors[0].column as usize, PREDICATES_MAX * 12 + 1);
}

/// Each regex alone would do.
#[test]
fn regexes_of_an_expression_have_a_bound_together() {
    let large = |count: usize| {
        let each = (0..count).map(|number| format!(r##"http.headers.a ~ r#"(?-u:(\w{{40}}){{40}}){number}"#"##));
        each.collect::<Vec<_>>().join(" || ")
    };
    Expression::parse(&large(40)).unwrap();
    assert!(matches!(&errors(&large(400))[0].kind, Kind::Regex { reason } if reason.contains("bytes together")));
    let simple = vec![r##"http.path ~ r#"^/a/\w+/[0-9]+$"#"##; 150].join(" || ");
    Expression::parse(&simple).unwrap();
}

/// None of these pieces is an expression, alone or repeated.
#[rustfmt::skip]
const PIECES: [&str; 68] = [
    "&&", "||", "&", "|", "!", "! ", ")", "()", "( )", "(!", "\"", "\"\"", "\"\" ", "r#\"", "'", "' ", "'a' ",
    "a", "a ", "a.", "a(", "a()", "a==", "a==1 ", "a==1&&", "a = 1 || ", "not ", "not(", "and ", "or", "lower",
    "lower(a ", "\\", "\"\\", "\"\\d\"", "http.path", "http.path ", "http.path == ", "http.path == 'a' ",
    "http.path == \"\\d\" && ", "http.path[", "http.path-", "in ", "not in ", "1", "1.", "::", "fd00::/8 ",
    "http.path ~ \"(\" && ", "\0", "\n(", "\u{202e}", "\u{a0}", "😀", "e\u{301}", "=", "==", "~", "#", "//", ",",
    "[", "http.path in (", "1 == ", "true && ", "$a ", "“", "http.headers.ü ",
];

#[test]
fn repetitions_of_anything_end_soon() {
    for piece in PIECES {
        for before in ["", GOOD, "http.path == ", "http.path ", "(", "lower("] {
            let times = (EXPRESSION_BYTES_MAX - before.len()) / piece.len();
            errors(&format!("{before}{}", piece.repeat(times)));
        }
    }
}

#[test]
fn a_wrong_character_anywhere_does_not_cascade() {
    let text = "any(lower(http.headers.x_a)) == \"a\" && (net.src.ip not in 10.0.0.0/8 || !(http.path ~ r#\"^/a\"#))";
    Expression::parse(text).unwrap();
    for (at, c) in text.char_indices() {
        for odd in ["\0", "\u{202e}", "😀", "@", "\"", ")", "&&", "=", " = "] {
            let both = [
                format!("{}{odd}{}", &text[..at], &text[at..]),
                format!("{}{odd}{}", &text[..at], &text[at + c.len_utf8()..]),
            ];
            for wrong in both {
                if let Err(found) = Expression::parse(&wrong) {
                    errors(&wrong);
                    let all: Vec<_> = found.iter().map(ToString::to_string).collect();
                    assert!(found.len() <= 4, "{}", all.join("\n"));
                }
            }
        }
    }
}
