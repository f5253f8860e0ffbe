//! Tests that simplifying keeps the meaning and that implications are true, on random conditions and requests of a
//! small universe.

use crate::condition::decided::{always, never};
use crate::condition::implies::implies;
use crate::condition::{Condition, ConditionValue, Field, NumberTest, Predicate, PredicateOrigin, Test};
use crate::regex::Pattern;
use crate::text::lower_case;
use crate::{AddressSet, HostPattern, Method, MethodSet, PathPattern, Variable, path};
use proptest::prelude::*;
use proptest::sample::select;
use std::net::IpAddr;
use std::sync::Arc;

/// A request, as far as predicates see it.
#[derive(Debug, Clone)]
struct World {
    method: &'static str,
    host: Option<&'static str>,
    path: String,
    header: Vec<&'static [u8]>,
    query: Vec<&'static [u8]>,
    source: IpAddr,
    port: Option<u16>,
    protocol: &'static str,
}

enum OwnedValue {
    Text(Vec<u8>),
    Int(i64),
    Ip(IpAddr),
}

impl World {
    fn values(&self, field: &Field) -> Vec<OwnedValue> {
        let text = |text: &str| OwnedValue::Text(text.as_bytes().to_vec());
        let inner = self.path.trim_matches('/');
        let segments: Vec<&str> = inner.split('/').filter(|_| !inner.is_empty()).collect();
        match field {
            Field::Method => vec![text(self.method)],
            Field::Host => self.host.iter().map(|host| text(host)).collect(),
            Field::Path => vec![text(&self.path)],
            Field::Variable(Variable::Uri) => {
                vec![OwnedValue::Text(path::decode_but_slashes(self.path.as_bytes(), &mut Vec::new()).to_vec())]
            }
            Field::Segment(index) => segments.get(usize::from(*index)).iter().map(|one| text(one)).collect(),
            Field::Segments(first, last) => {
                let some = segments.get(usize::from(*first)..=usize::from(*last));
                some.iter().map(|some| text(&some.join("/"))).collect()
            }
            Field::SegmentCount => vec![OwnedValue::Int(segments.len() as i64)],
            Field::Header(_) => self.header.iter().map(|value| OwnedValue::Text(value.to_vec())).collect(),
            Field::Query(_) => self.query.iter().map(|value| OwnedValue::Text(value.to_vec())).collect(),
            Field::SourceIp => vec![OwnedValue::Ip(self.source)],
            Field::SourcePort => self.port.iter().map(|port| OwnedValue::Int(i64::from(*port))).collect(),
            Field::Protocol => vec![text(self.protocol)],
            _ => Vec::new(),
        }
    }

    fn satisfies(&self, predicate: &Predicate) -> bool {
        let passes = |value: &OwnedValue| match value {
            OwnedValue::Text(text) if predicate.lower => {
                let mut lower = Vec::new();
                lower_case(text, &mut lower);
                predicate.test.passes(ConditionValue::Text(&lower))
            }
            OwnedValue::Text(text) => predicate.test.passes(ConditionValue::Text(text)),
            OwnedValue::Int(number) => predicate.test.passes(ConditionValue::Int(*number)),
            OwnedValue::Ip(address) => predicate.test.passes(ConditionValue::Ip(*address)),
        };
        let values = self.values(&predicate.field);
        match predicate.any {
            true => values.iter().any(passes),
            false => !values.is_empty() && values.iter().all(passes),
        }
    }

    fn meets(&self, condition: &Condition) -> bool {
        condition.holds(&mut |predicate| self.satisfies(predicate))
    }
}

const TEXTS: [&[u8]; 14] = [
    b"",
    b"a",
    b"ab",
    b"b",
    b"ba",
    b"A",
    b"aB",
    "Ä".as_bytes(),
    "ä".as_bytes(),
    b"5",
    b"7",
    b"a, b",
    b"\xffA",
    b"10.0.0.1",
];
const HOSTS: [&str; 9] = ["a.b", "x.a.b", "y.x.a.b", "b", "xa.b", "[::1]", "10.0.0.1", ".a.b", "b.a"];
const METHODS: [&str; 4] = ["GET", "POST", "get", "BREW"];
const ADDRESSES: [&str; 5] = ["10.0.0.1", "10.1.0.1", "11.0.0.1", "::1", "fd00::1"];

fn world() -> impl Strategy<Value = World> {
    let raw = proptest::collection::vec(select(vec!["/", "a", "b", "A", ".", "%41", "%2F", "%c3", "~"]), 0..7);
    let texts = || proptest::collection::vec(select(TEXTS.to_vec()), 0..4);
    (
        (select(METHODS.to_vec()), proptest::option::weighted(0.8, select(HOSTS.to_vec())), raw),
        (texts(), texts(), select(ADDRESSES.to_vec())),
        (proptest::option::of(select(vec![0, 1, 80, 443, u16::MAX])), select(vec!["http", "https"])),
    )
        .prop_map(|((method, host, raw), (header, query, source), (port, protocol))| {
            let (raw, mut scratch) = (format!("/{}", raw.concat()), Vec::new());
            let path = match path::normalise(raw.as_bytes(), &mut scratch) {
                Ok(path) => String::from_utf8(path.bytes().to_vec()).unwrap(),
                Err(_) => "/".to_owned(),
            };
            World { method, host, path, header, query, source: source.parse().unwrap(), port, protocol }
        })
}

fn text_test(literals: Vec<&'static [u8]>) -> BoxedStrategy<Test> {
    let regexes = select(vec!["a", "^/", "^a", "b$", "", "^$", "(?i)A|b", "^GET$"]);
    prop_oneof![
        8 => (select(literals), 0..5).prop_map(|(literal, kind)| match kind {
            0 => Test::Equal(literal.into()),
            1 => Test::NotEqual(literal.into()),
            2 => Test::Prefix(literal.into()),
            3 => Test::Suffix(literal.into()),
            _ => Test::Contains(literal.into()),
        }),
        1 => regexes.prop_map(|source| Test::Regex(Pattern::unicode(source).unwrap())),
        1 => Just(Test::Present),
    ]
    .boxed()
}

fn int_test() -> BoxedStrategy<Test> {
    let numbers = select(vec![i64::MIN, -1, 0, 1, 2, 3, 80, 443, 65_535, 65_536, i64::MAX]);
    (numbers, 0..6)
        .prop_map(|(number, kind)| match kind {
            0 => Test::IntEqual(number),
            1 => Test::IntNotEqual(number),
            2 => Test::Less(number),
            3 => Test::LessOrEqual(number),
            4 => Test::Greater(number),
            _ => Test::GreaterOrEqual(number),
        })
        .boxed()
}

fn ip_test() -> BoxedStrategy<Test> {
    let networks =
        || select(vec!["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.1/32", "::/0", "fd00::/8", "11.0.0.0/8"]);
    prop_oneof![
        select(ADDRESSES.to_vec()).prop_map(|address| Test::IpEqual(address.parse().unwrap())),
        select(ADDRESSES.to_vec()).prop_map(|address| Test::IpNotEqual(address.parse().unwrap())),
        networks().prop_map(|network| Test::InNetwork(network.parse().unwrap())),
        networks().prop_map(|network| Test::NotInNetwork(network.parse().unwrap())),
        addresses(),
    ]
    .boxed()
}

fn addresses() -> impl Strategy<Value = Test> {
    let networks = select(vec!["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.1/32", "::/0", "fd00::/8"]);
    proptest::collection::vec(networks, 0..3).prop_map(|networks| {
        let networks: Vec<_> = networks.iter().map(|network| network.parse().unwrap()).collect();
        Test::Addresses(AddressSet::new(&networks))
    })
}

fn number_test() -> impl Strategy<Value = Test> {
    use NumberTest::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    (select(vec![Equal, Less, LessOrEqual, Greater, GreaterOrEqual]), select(vec![4.0, 5.0, 6.0, 7.0]))
        .prop_map(|(test, number)| Test::Number(test, number))
}

fn methods() -> impl Strategy<Value = Test> {
    proptest::collection::vec(select(vec![Method::Get, Method::Post, Method::Put]), 0..3)
        .prop_map(|methods| Test::Methods(MethodSet::from_iter(methods)))
}

fn test_of(field: &Field) -> BoxedStrategy<Test> {
    const PATHS: [&[u8]; 22] = [
        b"", b"/", b"/a", b"/a/", b"/a/b", b"a", b"b/a", b"//", b"/./a", b"/..", b"/a?", b"%C3", b"%c3", b"%2F", b"%",
        b"%4", b"%41", b"/A", b"..", b"./", b".", b"/~",
    ];
    const HOST_PARTS: [&[u8]; 10] =
        [b"", b"a.b", b".a.b", b"b", b"A.b", b"a.b:80", b"[::1]", b":", b":80", b"[::1]:80"];
    match field {
        Field::SegmentCount | Field::SourcePort => int_test(),
        Field::SourceIp => ip_test(),
        Field::Method => {
            let literals = METHODS.iter().map(|method| method.as_bytes()).chain([&b"G"[..], b"T", b""]).collect();
            prop_oneof![text_test(literals), methods()].boxed()
        }
        Field::Host => {
            let patterns = select(vec!["a.b", "*.a.b", "*.b", "x.a.b", "*.x.a.b", "[::1]"]);
            let host = patterns.prop_map(|pattern| Test::Host(HostPattern::parse(pattern).unwrap()));
            prop_oneof![text_test(HOST_PARTS.to_vec()), host].boxed()
        }
        Field::Path => {
            let patterns = select(vec![
                "/*", "/a", "/a*", "/a/*", "/:x", "/:x/b", "/:x/*", "/a/:x", "/a/:x/*", "/b/*", "/b:/:y", "/:x/:y",
                "/ab*",
            ]);
            let path = patterns.prop_map(|pattern| Test::Path(PathPattern::parse(pattern).unwrap()));
            prop_oneof![text_test(PATHS.to_vec()), path].boxed()
        }
        Field::Variable(Variable::Uri) | Field::Segment(_) | Field::Segments(..) => text_test(PATHS.to_vec()),
        Field::Protocol => text_test(vec![b"http", b"https", b"s", b"htt", b"HTTP", b"x"]),
        _ => {
            let has = select(vec!["a", "b"]).prop_map(|element| Test::HasElement(element.into()));
            prop_oneof![4 => text_test(TEXTS.to_vec()), 1 => number_test(), 1 => has, 1 => addresses()].boxed()
        }
    }
}

fn fields() -> Vec<Field> {
    let names = [
        "http.method",
        "http.host",
        "http.path",
        "http.path",
        "http.path.segments.0",
        "http.path.segments.0_1",
        "http.path.segments.len",
        "http.headers.x",
        "http.queries.a",
        "net.src.ip",
        "net.src.port",
        "net.protocol",
    ];
    let of_kong = names.iter().map(|name| Field::parse(name).unwrap());
    of_kong.chain([Field::Variable(Variable::Uri)]).collect()
}

fn predicate_of(field: Field) -> impl Strategy<Value = Arc<Predicate>> {
    let lower = proptest::bool::weighted(0.3);
    (test_of(&field), lower, any::<bool>()).prop_map(move |(test, lower, any)| {
        let lower = lower && field.kind() == crate::condition::FieldKind::Text;
        Arc::new(Predicate { field: field.clone(), lower, any, test, source: PredicateOrigin::default() })
    })
}

fn predicate() -> impl Strategy<Value = Arc<Predicate>> {
    select(fields()).prop_flat_map(predicate_of)
}

/// Few predicates, so that they meet each other.
fn condition() -> impl Strategy<Value = Condition> {
    proptest::collection::vec(predicate(), 1..6).prop_flat_map(|predicates| {
        let leaf = prop_oneof![
            12 => select(predicates).prop_map(Condition::Is),
            1 => Just(Condition::True),
            1 => Just(Condition::False),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let list = || proptest::collection::vec(inner.clone(), 0..5);
            prop_oneof![
                list().prop_map(Condition::All),
                list().prop_map(Condition::Any),
                inner.clone().prop_map(|inner| Condition::Not(Box::new(inner))),
            ]
        })
    })
}

fn is_simple(condition: &Condition, inside: Option<bool>) -> bool {
    match condition {
        Condition::True | Condition::False => inside.is_none(),
        Condition::Is(_) => true,
        Condition::Not(inner) => matches!(**inner, Condition::Is(_)),
        Condition::All(parts) => {
            inside != Some(true) && parts.len() > 1 && parts.iter().all(|part| is_simple(part, Some(true)))
        }
        Condition::Any(parts) => {
            inside != Some(false) && parts.len() > 1 && parts.iter().all(|part| is_simple(part, Some(false)))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn simplified_conditions_mean_the_same(
        condition in condition(), worlds in proptest::collection::vec(world(), 24),
    ) {
        let simplified = condition.simplified();
        prop_assert!(is_simple(&simplified, None), "{simplified:?}");
        for world in &worlds {
            prop_assert_eq!(world.meets(&simplified), world.meets(&condition), "{:?} {:?}", simplified, world);
        }
    }

    #[test]
    fn decided_predicates_are(predicate in predicate(), worlds in proptest::collection::vec(world(), 24)) {
        for world in &worlds {
            let holds = world.satisfies(&predicate);
            prop_assert!(!(holds && never(&predicate).is_some()), "{:?} {:?}", never(&predicate), world);
            prop_assert!(holds || always(&predicate).is_none(), "{:?} {:?}", always(&predicate), world);
        }
    }

    #[test]
    fn implications_are_true(
        (p, q) in select(fields()).prop_flat_map(|field| (predicate_of(field.clone()), predicate_of(field))),
        worlds in proptest::collection::vec(world(), 48),
    ) {
        for (not_p, not_q) in [(false, false), (false, true), (true, false), (true, true)] {
            if implies(&p, not_p, &q, not_q) {
                for world in &worlds {
                    let (p, q) = (world.satisfies(&p) != not_p, world.satisfies(&q) != not_q);
                    prop_assert!(!p || q, "{} {} {:?}", not_p, not_q, world);
                }
            }
        }
    }
}
