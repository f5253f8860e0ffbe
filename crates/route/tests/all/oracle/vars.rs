//! Random conditions in the language of `vars`, and their values according to the table of that language.

use super::random::{Random, without_one};
use serde_json::{Value as Json, json};

#[derive(Debug, Clone)]
pub(crate) enum Vars {
    /// Variable, whether there is a `!` before the operator, operator and value.
    Test(&'static str, bool, &'static str, Json),
    /// `AND`, `OR`, `!AND` or `!OR` of several.
    List(&'static str, Vec<Vars>),
}

/// Variables with values they may well have.
const VARIABLES: &[(&str, &[&str])] = &[
    ("arg_v", &["1", "42", "a,b", "", "v1", "a"]),
    ("arg_a", &["a", "b", "A", "ab", "1", ""]),
    ("http_x_a", &["a", "b", "Ab", "a, b", "1", "42"]),
    ("host", &["a.com", "b.a.com", "other"]),
    ("request_method", &["GET", "POST", "BREW"]),
    ("uri_param_x", &["a", "b", "ab", "v1"]),
    ("scheme", &["http", "https"]),
    ("remote_addr", &["10.1.2.3", "1.1.1.1", "fd00::1"]),
    ("cookie_none", &["a"]),
    ("http_host", &["a", "a.com"]),
];

impl Vars {
    pub(crate) fn random(random: &mut Random) -> Vars {
        let count = random.below(3) + 1;
        Vars::List("AND", (0..count).map(|_| condition(random, 0)).collect())
    }

    pub(crate) fn json(&self) -> Json {
        match self {
            Vars::Test(variable, false, operator, value) => json!([variable, operator, value]),
            Vars::Test(variable, true, operator, value) => json!([variable, "!", operator, value]),
            // A single condition needs no operator, and may not have one.
            Vars::List(_, list) if list.len() == 1 => json!([list[0].json()]),
            Vars::List(operator, list) => {
                json!([Json::from(*operator)].into_iter().chain(list.iter().map(Vars::json)).collect::<Vec<_>>())
            }
        }
    }

    /// Whether it reads the path parameter.
    pub(crate) fn reads_param(&self) -> bool {
        match self {
            Vars::Test(variable, ..) => *variable == "uri_param_x",
            Vars::List(_, list) => list.iter().any(Vars::reads_param),
        }
    }

    /// Its value, where `value` gives the values of variables.
    pub(crate) fn holds(&self, value: &dyn Fn(&str) -> Option<Vec<u8>>) -> bool {
        match self {
            Vars::Test(variable, negated, operator, expected) => {
                test(value(variable).as_deref(), operator, expected) != *negated
            }
            Vars::List("AND", list) => list.iter().all(|vars| vars.holds(value)),
            Vars::List("OR", list) => list.iter().any(|vars| vars.holds(value)),
            Vars::List("!AND", list) => !list.iter().all(|vars| vars.holds(value)),
            Vars::List(_, list) => !list.iter().any(|vars| vars.holds(value)),
        }
    }

    pub(crate) fn smaller(&self) -> Vec<Vars> {
        let Vars::List(operator, list) = self else { return Vec::new() };
        let mut smaller = Vec::new();
        if list.len() > 2 || (list.len() == 2 && !operator.starts_with('!')) {
            smaller.extend(without_one(list).into_iter().map(|list| Vars::List(operator, list)));
        }
        for (at, inner) in list.iter().enumerate() {
            let instead = inner.smaller().into_iter();
            smaller.extend(instead.map(|inner| {
                let mut list = list.clone();
                list[at] = inner;
                Vars::List(operator, list)
            }));
        }
        smaller
    }
}

fn condition(random: &mut Random, depth: usize) -> Vars {
    if depth < 2 && random.one_in(4) {
        let count = random.below(3) + 2;
        let operator = random.pick(&["AND", "OR", "OR", "!AND", "!OR"]);
        return Vars::List(operator, (0..count).map(|_| condition(random, depth + 1)).collect());
    }
    let (variable, values) = random.pick(VARIABLES);
    let operator = random.pick(&["==", "==", "~=", ">", "<=", "~~", "~*", "in", "has", "ipmatch"]);
    let value = match operator {
        "==" | "~=" if random.one_in(6) => Json::Null,
        "==" | "~=" if random.one_in(6) => json!(random.pick(&[1, 42, 0])),
        ">" | "<=" => json!(random.pick(&[0, 1, 2, 41, 42])),
        "~~" | "~*" => json!(random.pick(&["^a", "b$", "^[a-c]+$", r"^\d+$", "a|1", "^$"])),
        "in" => json!((0..random.below(3) + 1).map(|_| random.pick(values)).collect::<Vec<_>>()),
        "ipmatch" => json!([random.pick(&["10.0.0.0/8", "10.1.2.3", "fd00::/16", "1.1.1.0/24"])]),
        _ => json!(random.pick(values)),
    };
    Vars::Test(variable, random.one_in(5), operator, value)
}

/// An operator on a value, absent as `None`.
fn test(value: Option<&[u8]>, operator: &str, expected: &Json) -> bool {
    let text = value.map(|value| String::from_utf8_lossy(value).into_owned());
    let number = text.as_deref().and_then(number);
    match operator {
        "==" => equal(text.as_deref(), expected),
        "~=" => !equal(text.as_deref(), expected),
        ">" => number.is_some_and(|number| number > expected.as_f64().unwrap()),
        "<=" => number.is_some_and(|number| number <= expected.as_f64().unwrap()),
        "~~" | "~*" => {
            let prefix = if operator == "~*" { "(?i-u)" } else { "(?-u)" };
            let regex = regex::bytes::Regex::new(&format!("{prefix}{}", expected.as_str().unwrap())).unwrap();
            value.is_some_and(|value| regex.is_match(value))
        }
        "in" => expected.as_array().unwrap().iter().any(|one| text.is_some() && equal(text.as_deref(), one)),
        "has" => text.is_some_and(|text| text.split(',').any(|part| part.trim_ascii() == expected.as_str().unwrap())),
        "ipmatch" => text.and_then(|text| text.parse().ok()).is_some_and(|address: std::net::IpAddr| {
            expected.as_array().unwrap().iter().any(|network| {
                let network = network.as_str().unwrap();
                let network = network.parse().or_else(|_| network.parse().map(|only: std::net::IpAddr| only.into()));
                network.is_ok_and(|network: ipnet::IpNet| network.contains(&address))
            })
        }),
        other => unreachable!("{other} is not generated"),
    }
}

fn equal(text: Option<&str>, expected: &Json) -> bool {
    match expected {
        Json::Null => text.is_none(),
        Json::Number(expected) => text.and_then(number) == expected.as_f64(),
        _ => text == expected.as_str(),
    }
}

/// The values above are digits or not numbers at all.
fn number(text: &str) -> Option<f64> {
    text.trim_ascii()
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_digit())
        .then(|| text.trim_ascii().parse().ok())?
}
