//! Expressions are parsed like in `atc-router`: the same ones are accepted, with the same meaning.
//!
//! Deviations on purpose are listed in `expression/mod.rs`; each has its line in [`is_deviation`] or a test of its own.

use atc_router::ast::{self, BinaryOperator, LogicalExpression, Type};
use atc_router::parser;
use atc_router::schema::Schema;
use atc_router::semantics::Validate;
use proptest::prelude::*;
use std::fmt::Write;
use std::net::IpAddr;
use std::panic::catch_unwind;
use std::sync::LazyLock;
use stillgate_route::Expression;
use stillgate_route::condition::{Condition, Field, Predicate, Test};
use stillgate_route::expression::ExpressionErrorKind;

/// Kong's fields of HTTP requests.
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::default();
    for name in ["http.method", "http.host", "http.path", "net.protocol", "tls.sni"] {
        schema.add_field(name, Type::String);
    }
    for name in ["http.path.segments.*", "http.headers.*", "http.queries.*"] {
        schema.add_field(name, Type::String);
    }
    for name in ["http.path.segments.len", "net.src.port", "net.dst.port"] {
        schema.add_field(name, Type::Int);
    }
    for name in ["net.src.ip", "net.dst.ip"] {
        schema.add_field(name, Type::IpAddr);
    }
    schema
});

/// The reference's result for a text.
#[derive(Debug, PartialEq)]
enum Reference {
    /// In the form of [`theirs`].
    Accepts(String),
    Refuses,
    Panics,
}

fn reference(text: &str) -> Reference {
    let owned = text.to_owned();
    let outcome = catch_unwind(move || {
        let expression = parser::parse(&owned).ok()?;
        expression.validate(&SCHEMA).ok()?;
        Some(theirs(&expression))
    });
    match outcome {
        Ok(Some(form)) => Reference::Accepts(form),
        Ok(None) => Reference::Refuses,
        Err(_) => Reference::Panics,
    }
}

/// Whether ours is meant to differ from the reference here.
fn is_deviation(
    text: &str,
    ours: &Result<Expression, Vec<stillgate_route::ExpressionError>>,
    theirs: &Reference,
) -> bool {
    // Other blanks in `not in`, or none: the reference panics, which need not be repeated.
    if *theirs == Reference::Panics {
        return true;
    }
    match ours {
        // `-9223372036854775808`
        Ok(_) => text.contains("9223372036854775808") || text.contains("0x8000000000000000"),
        // Impossible parts of fields.
        Err(errors) => errors.iter().all(|error| match &error.kind {
            ExpressionErrorKind::FieldName { found, .. } => {
                let missing = found.ends_with("headers.`") || found.ends_with("queries.`");
                found.starts_with("`http.path.segments.") || missing
            }
            _ => false,
        }),
    }
}

fn check(text: &str) {
    let (ours, theirs) = (Expression::parse(text), reference(text));
    if is_deviation(text, &ours, &theirs) {
        return;
    }
    let ours = match ours {
        Ok(expression) => Reference::Accepts(self::ours(expression.condition())),
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!(text.is_char_boundary(error.span.start) && text.is_char_boundary(error.span.end), "{error:?}");
                let rendered = error.to_string();
                assert!(rendered.chars().all(|c| c == '\n' || !c.is_control()), "{rendered:?}");
            }
            Reference::Refuses
        }
    };
    assert_eq!(ours, theirs, "{text:?}");
}

/// Chains of one operator are flat, however they nest: both sides then look alike.
fn join(sign: &str, parts: Vec<String>) -> String {
    let mut flat = String::new();
    for part in parts {
        let inner = part.strip_prefix(&format!("({sign}")).and_then(|part| part.strip_suffix(')'));
        write!(flat, "{}", inner.map_or_else(|| format!(" {part}"), str::to_owned)).unwrap();
    }
    format!("({sign}{flat})")
}

fn theirs(expression: &ast::Expression) -> String {
    let predicate = match expression {
        ast::Expression::Predicate(predicate) => predicate,
        ast::Expression::Logical(logical) => {
            return match &**logical {
                LogicalExpression::And(left, right) => join("&&", vec![theirs(left), theirs(right)]),
                LogicalExpression::Or(left, right) => join("||", vec![theirs(left), theirs(right)]),
                LogicalExpression::Not(inner) => format!("!{}", theirs(inner)),
            };
        }
    };
    let operator = match predicate.op {
        BinaryOperator::Equals => "==",
        BinaryOperator::NotEquals => "!=",
        BinaryOperator::Regex => "~",
        BinaryOperator::Prefix => "^=",
        BinaryOperator::Postfix => "=^",
        BinaryOperator::Greater => ">",
        BinaryOperator::GreaterOrEqual => ">=",
        BinaryOperator::Less => "<",
        BinaryOperator::LessOrEqual => "<=",
        BinaryOperator::In => "in",
        BinaryOperator::NotIn => "not in",
        BinaryOperator::Contains => "contains",
    };
    let value = match &predicate.rhs {
        ast::Value::String(text) => format!("{text:?}"),
        ast::Value::Regex(regex) => format!("{:?}", regex.as_str()),
        ast::Value::Int(number) => number.to_string(),
        ast::Value::IpAddr(address) => address.to_canonical().to_string(),
        ast::Value::IpCidr(network) => match (network.first_address(), network.network_length()) {
            (IpAddr::V6(address), bits @ 96..) if address.to_ipv4_mapped().is_some() => {
                format!("{}/{}", address.to_canonical(), bits - 96)
            }
            (address, bits) => format!("{address}/{bits}"),
        },
    };
    let (lower, any) = predicate.lhs.get_transformations();
    let name = &predicate.lhs.var_name;
    let name = if name.starts_with("http.headers.") { name.to_ascii_lowercase() } else { name.clone() };
    // Numbers in fields may be written with zeros in front.
    let name = Field::parse(&name).map_or(name, |field| field.to_string());
    format!("[{lower} {any} {name} {operator} {value}]")
}

fn ours(condition: &Condition) -> String {
    match condition {
        Condition::All(all) => join("&&", all.iter().map(ours).collect()),
        Condition::Any(any) => join("||", any.iter().map(ours).collect()),
        Condition::Not(inner) => format!("!{}", ours(inner)),
        Condition::Is(predicate) => {
            let Predicate { field, lower, any, test, .. } = &**predicate;
            format!("[{lower} {any} {field} {}]", written(test))
        }
        Condition::True | Condition::False => panic!("no expression is constant"),
    }
}

fn written(test: &Test) -> String {
    let text = |operator, text: &[u8]| format!("{operator} {:?}", std::str::from_utf8(text).unwrap());
    match test {
        Test::Equal(value) => text("==", value),
        Test::NotEqual(value) => text("!=", value),
        Test::Prefix(value) => text("^=", value),
        Test::Suffix(value) => text("=^", value),
        Test::Contains(value) => text("contains", value),
        Test::Regex(pattern) => text("~", pattern.source().as_bytes()),
        Test::IntEqual(number) => format!("== {number}"),
        Test::IntNotEqual(number) => format!("!= {number}"),
        Test::Less(number) => format!("< {number}"),
        Test::LessOrEqual(number) => format!("<= {number}"),
        Test::Greater(number) => format!("> {number}"),
        Test::GreaterOrEqual(number) => format!(">= {number}"),
        Test::IpEqual(address) => format!("== {address}"),
        Test::IpNotEqual(address) => format!("!= {address}"),
        Test::InNetwork(network) => format!("in {network}"),
        Test::NotInNetwork(network) => format!("not in {network}"),
        other => panic!("no test of expressions: {other:?}"),
    }
}

#[test]
fn texts_by_hand() {
    let texts = include_str!("../data/expression/reference.txt");
    let mut accepted = 0;
    for text in texts.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let text = text.replace("<NL>", "\n").replace("<TAB>", "\t").replace("<CR>", "\r").replace("<NUL>", "\0");
        check(&text);
        accepted += usize::from(Expression::parse(&text).is_ok());
    }
    assert!(accepted > 100, "most of the list is right, so that meanings are compared: {accepted}");
}

#[test]
fn deviations() {
    // (text, what the reference does, whether we accept it)
    let accepts = || Reference::Accepts(String::new());
    for (text, theirs, ours) in [
        ("net.src.ip notin 10.0.0.0/8", Reference::Panics, false),
        ("net.src.ip not  in 10.0.0.0/8", Reference::Panics, true),
        ("net.src.ip not\n\tin 10.0.0.0/8", Reference::Panics, true),
        ("net.src.port == -9223372036854775808", Reference::Refuses, true),
        ("net.src.port == -0x8000000000000000", Reference::Refuses, true),
        ("net.src.port == -01000000000000000000000", Reference::Refuses, true),
        ("http.path.segments.x == \"a\"", accepts(), false),
        ("http.path.segments.1_0 == \"a\"", accepts(), false),
        ("http.headers. == \"a\"", accepts(), false),
        ("http.queries. == \"a\"", accepts(), false),
        ("http.path ~ \"(?-u:\\\\xff)\"", Reference::Refuses, true),
        ("http.path ~ \"\\\\w{100}\"", accepts(), false),
    ] {
        let theirs_is = match reference(text) {
            Reference::Accepts(_) => accepts(),
            other => other,
        };
        assert_eq!((theirs_is, Expression::parse(text).is_ok()), (theirs, ours), "{text}");
    }
}

const FIELDS: [&str; 22] = [
    "http.method",
    "http.host",
    "http.path",
    "http.path.segments.0",
    "http.path.segments.0_1",
    "http.path.segments.len",
    "http.headers.x_a",
    "http.headers.X_A",
    "http.queries.a",
    "net.protocol",
    "net.src.ip",
    "net.src.port",
    "net.dst.ip",
    "net.dst.port",
    "tls.sni",
    "http.nope",
    "http.headers.a.b",
    "http.headers",
    "in",
    "not",
    "r",
    "any",
];

const OPERATORS: [&str; 20] = [
    "==", "!=", "~", "^=", "=^", ">=", ">", "<=", "<", "in", "not in", "contains", "=", "===", "=~", "!", "not", "!in",
    "IN", "<>",
];

const VALUES: [&str; 62] = [
    "\"a\"",
    "\"\"",
    "\"a\\\"b\\\\c\\n\\r\\t\"",
    "\"\\d\"",
    "\"ü\"",
    "\"a",
    "\"(\"",
    "\"a b && c\"",
    "r#\"a\\d\"#",
    "r#\"\"#",
    "r#\"a\"b\"#",
    "r#\"a\"",
    "r\"a\"",
    "'a'",
    "a",
    "0",
    "1",
    "-1",
    "- 1",
    "-0",
    "08",
    "099",
    "0779",
    "0189",
    "007",
    "-010",
    "0x1f",
    "0x",
    "0X1F",
    "0xfg",
    "1_000",
    "1.5",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775807",
    "0x7fffffffffffffff",
    "10.0.0.1",
    "10.0.0.256",
    "10.0.0.01",
    "10.0.0",
    "10.0.0.1.2",
    "1.2.3.4444",
    "10.0.0.0/8",
    "10.0.0.1/8",
    "10.0.0.0/08",
    "10.0.0.0/008",
    "10.0.0.0/33",
    "0.0.0.0/0",
    "10.0.0.0/",
    "fd00::1",
    "fd00::/8",
    "fd00::1/8",
    "::",
    "::/0",
    "::1/128",
    "::1/129",
    "1:2:3:4:5:6:7:8",
    "12345::",
    "abc:",
    ":",
    "::ffff:a00:1",
    "::ffff:1.2.3.4",
];

fn token() -> impl Strategy<Value = String> {
    let of = |all: &'static [&'static str]| prop::sample::select(all).prop_map(str::to_owned);
    prop_oneof![
        4 => of(&FIELDS),
        4 => of(&OPERATORS),
        4 => of(&VALUES),
        3 => of(&["&&", "||", "(", ")", "!(", "!"]),
        2 => of(&["lower(", "any(", "lower", "upper(", ","]),
        1 => of(&["\t", "\r\n", "&", "|", "and", "#", "\0", "\u{a0}", ".", "-", "\""]),
    ]
}

fn predicate() -> impl Strategy<Value = String> {
    let field = prop::sample::select(&FIELDS[..]);
    let calls = prop::sample::select(&["", "lower(", "any (", "lower( any(", "any(\tlower("][..]);
    let field =
        (field, calls).prop_map(|(field, calls)| format!("{calls}{field}{}", ")".repeat(calls.matches('(').count())));
    // Matching parts are far more often right than others.
    let right = prop_oneof![
        Just("http.path == \"a\"".to_owned()),
        Just("any(http.headers.x_a)^=r#\"b\"#".to_owned()),
        Just("net.src.port>=0x10".to_owned()),
        Just("net.dst.ip not in fd00::/8".to_owned()),
        Just("net.src.ip in10.0.0.0/8".to_owned()),
        Just("lower(http.host)contains\"c\"".to_owned()),
    ];
    let any = (field, blank(), prop::sample::select(&OPERATORS[..12]), blank(), prop::sample::select(&VALUES[..]))
        .prop_map(|(field, b, operator, c, value)| format!("{field}{b}{operator}{c}{value}"));
    prop_oneof![2 => right, 1 => any]
}

fn blank() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["", " ", " ", " ", "\n", "\t "][..])
}

fn expression() -> impl Strategy<Value = String> {
    predicate().prop_recursive(4, 24, 4, |inner| {
        let joint = prop::sample::select(&["&&", "||"][..]);
        prop_oneof![
            (inner.clone(), blank(), joint, blank(), inner.clone())
                .prop_map(|(l, a, o, b, r)| format!("{l}{a}{o}{b}{r}")),
            inner.clone().prop_map(|inner| format!("({inner})")),
            (blank(), inner).prop_map(|(blank, inner)| format!("!{blank}({inner})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn soups_of_tokens(tokens in prop::collection::vec((token(), blank()), 1..14)) {
        let text: String = tokens.iter().flat_map(|(token, blank)| [token.as_str(), *blank]).collect();
        check(&text);
    }

    #[test]
    fn conditions(text in expression()) {
        check(&text);
    }

    #[test]
    fn conditions_with_a_slip(text in expression(), token in token(), at in any::<prop::sample::Index>(), cut in 0..4_usize) {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let from = at.index(places.len());
        let to = (from + cut).min(places.len() - 1);
        check(&format!("{}{}{}", &text[..places[from]], if cut == 0 { token.as_str() } else { "" }, &text[places[to]..]));
    }
}
