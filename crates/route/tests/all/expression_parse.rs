//! Parses valid expressions: conditions as written, predicates with their positions, and the places where precedence
//! surprises.

use expect_test::{Expect, expect};
use stillgate_route::Expression;
use stillgate_route::condition::{Condition, Test};

fn parse(text: &str) -> Expression {
    Expression::parse(text).unwrap_or_else(|errors| panic!("{text}: {}", errors[0]))
}

/// Its shape; predicates are their texts.
fn shape(condition: &Condition) -> String {
    let several =
        |name: &str, parts: &[Condition]| format!("{name}({})", parts.iter().map(shape).collect::<Vec<_>>().join(", "));
    match condition {
        Condition::All(parts) => several("All", parts),
        Condition::Any(parts) => several("Any", parts),
        Condition::Not(inner) => format!("Not({})", shape(inner)),
        Condition::Is(predicate) => predicate.source.text.to_string(),
        constant => panic!("no expression is {constant:?}"),
    }
}

fn test_of(text: &str) -> Test {
    let expression = parse(text);
    let Condition::Is(predicate) = expression.condition() else { panic!("{text} is one predicate") };
    assert_eq!(&*predicate.source.text, text, "nothing but the predicate");
    predicate.test.clone()
}

fn check_shape(template: &str, expected: &str) {
    // In the template, one letter represents a predicate.
    let mut text = String::new();
    for c in template.chars() {
        if c.is_ascii_lowercase() { text += &format!("http.queries.{c}==\"\"") } else { text.push(c) }
    }
    let shape = shape(parse(&text).condition());
    assert_eq!(shape.replace("http.queries.", "").replace("==\"\"", ""), expected, "{template}");
}

#[test]
fn or_binds_tighter_than_and() {
    check_shape("a", "a");
    check_shape("a && b", "All(a, b)");
    check_shape("a || b", "Any(a, b)");
    check_shape("a && b && c && d", "All(a, b, c, d)");
    check_shape("a || b || c || d", "Any(a, b, c, d)");
    check_shape("a && b || c", "All(a, Any(b, c))");
    check_shape("a || b && c", "All(Any(a, b), c)");
    check_shape("a || b && c || d && e", "All(Any(a, b), Any(c, d), e)");
    check_shape("(a && b) || (c && d)", "Any(All(a, b), All(c, d))");
    check_shape("((a && b)) && c", "All(All(a, b), c)");
    check_shape("!(a) && !(b || c)", "All(Not(a), Not(Any(b, c)))");
    check_shape("! ( !(a && b) )", "Not(Not(All(a, b)))");
}

#[test]
fn mixed_operators_are_reported() {
    for (template, expected) in [
        ("A && A && A", vec![]),
        ("A && (A || A)", vec![]),
        ("A && A || A", vec![(1, 8)]),
        ("A || A && A || A && A", vec![(1, 8)]),
        ("A\n && A\n || A", vec![(3, 2)]),
        ("(A || A && A) && !(A && A || A)", vec![(1, 9), (1, 27)]),
        ("A || (A && A || A) && A", vec![(1, 14), (1, 20)]),
    ] {
        // As wide as the letter, so that columns are those of the template.
        let text = template.replace('A', "http.path == \"a\"");
        let wide = "http.path == \"a\"".len() as u32 - 1;
        let mixed: Vec<_> = parse(&text).mixed().to_vec();
        let narrow = mixed.iter().map(|(line, column)| {
            let before = text.lines().nth(*line as usize - 1).unwrap()[..*column as usize - 1]
                .matches("http.path")
                .count() as u32;
            (*line, column - before * wide)
        });
        assert_eq!(narrow.collect::<Vec<_>>(), expected, "{template}");
    }
}

fn check_sources(text: &str, expected: Expect) {
    let expression = parse(text);
    let mut sources = String::new();
    expression.condition().each_predicate(&mut |predicate| {
        let (line, column) = predicate.source.at.unwrap();
        let functions = match (predicate.lower, predicate.any) {
            (true, true) => " lower any",
            (true, false) => " lower",
            (false, true) => " any",
            (false, false) => "",
        };
        sources += &format!("{line}:{column} {:?} {}{functions}\n", predicate.source.text, predicate.field);
    });
    expected.assert_eq(&sources);
}

#[test]
fn predicates_know_where_they_stand() {
    check_sources(
        "(http.path ^= \"/ü\" ||\r\n\tany( lower(http.headers.X_A) )==\"€\"  )&&\n\n net.src.ip not\n in ::/0 && tls.sni != \"\"",
        expect![[r#"
            1:2 "http.path ^= \"/ü\"" http.path
            2:2 "any( lower(http.headers.X_A) )==\"€\"" http.headers.x_a lower any
            4:2 "net.src.ip not\n in ::/0" net.src.ip
            5:13 "tls.sni != \"\"" tls.sni
        "#]],
    );
}

#[test]
fn an_expression_prints_as_it_was_written() {
    let text = " http.path\t== \"a\" ";
    assert_eq!(parse(text).to_string(), text);
    assert_eq!(parse(text).text(), text);
}

#[test]
fn texts() {
    for (literal, expected) in [
        (r#""""#, ""),
        (r#""\"\\\n\r\t""#, "\"\\\n\r\t"),
        (r#""a\\d&&(b""#, "a\\d&&(b"),
        (r##"r#"\d"\n"#"##, "\\d\"\\n"),
        (r##"r#""#"##, ""),
        ("\"ü\n\0\"", "ü\n\0"),
    ] {
        assert_eq!(test_of(&format!("http.path == {literal}")), Test::Equal(expected.as_bytes().into()), "{literal}");
    }
}

#[test]
fn numbers() {
    for (literal, expected) in [
        ("0", 0),
        ("-0", 0),
        ("00", 0),
        ("08", 8),
        ("099", 99),
        ("017", 15),
        ("-017", -15),
        ("0x1F", 31),
        ("-0x1f", -31),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
        ("-0x8000000000000000", i64::MIN),
    ] {
        assert_eq!(test_of(&format!("net.src.port == {literal}")), Test::IntEqual(expected), "{literal}");
    }
}

#[test]
fn addresses() {
    for (literal, expected) in [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("FD00:0:0:0:0:0:0:1", "fd00::1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("::a00:1", "::a00:1"),
    ] {
        let expected = Test::IpEqual(expected.parse().unwrap());
        assert_eq!(test_of(&format!("net.src.ip == {literal}")), expected, "{literal}");
    }
    for (literal, expected) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("::ffff:a00:0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:a00:1/128", "10.0.0.1/32"),
        ("::fffe:0:0/95", "::fffe:0:0/95"),
    ] {
        let expected = Test::InNetwork(expected.parse().unwrap());
        assert_eq!(test_of(&format!("net.src.ip in {literal}")), expected, "{literal}");
    }
}
