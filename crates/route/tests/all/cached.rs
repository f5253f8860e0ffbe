//! The route cache returns the matcher's results, and stays within its bounds.
//!
//! A cache that never has to forget also shows that requests share an entry if they differ in nothing that routes read.

use crate::oracle::asked::RequestFacts;
use crate::oracle::expressions::{Chain, Expressions};
use crate::oracle::kong::Reference;
use crate::oracle::random::{Random, check_and_shrink, from_environment, without_one};
use crate::oracle::routes::{self, Asks, Route};
use std::collections::HashSet;
use stillgate_route::{CACHE_KEY_BYTES_MAX, Matcher, RouteCache, Scratch};

#[derive(Debug, Clone)]
struct Case {
    routes: Vec<Route>,
    asked: Vec<RequestFacts>,
    entries_max: usize,
    bytes_max: usize,
}

#[test]
fn cached_is_uncached() {
    const SETS: u64 = 1_500;
    const ROUTES_MAX: usize = 12;
    const REQUESTS_MAX: usize = 60;
    let first_seed = from_environment("STILLGATE_SEED", 1);
    for seed in first_seed..first_seed + SETS * from_environment("STILLGATE_FACTOR", 1) {
        let mut random = Random::new(seed.wrapping_mul(0x6a09_e667_f3bc_c909));
        // Some sets have expressions only, some read little.
        let (one_in, count) = (random.pick(&[1, 1, 3]), random.pick(&[1, 2, ROUTES_MAX]));
        let expressions = Expressions::random(&mut random);
        let route = |id| Route::random(&mut random, id, one_in, &expressions);
        let routes: Vec<Route> = (0..count).map(route).collect();
        let mut asked = vec![RequestFacts::random(&mut random)];
        for _ in 0..random.below(REQUESTS_MAX) {
            let another = random.pick(&asked);
            asked.push(match random.below(6) {
                0 => RequestFacts::random(&mut random),
                1 => another,
                _ => similar(another, &mut random),
            });
        }
        let entries_max = random.pick(&[0, 1, 3, 16, 1_000]);
        let case = Case { routes, asked, entries_max, bytes_max: random.pick(&[0, 100, 1_000, 4_000, 1 << 20]) };
        check_and_shrink(seed, &case, Case::smaller, Case::check);
    }
}

/// A request that a carelessly composed key would confuse with another: values cut elsewhere, joined, moved, gone.
fn similar(mut asked: RequestFacts, random: &mut Random) -> RequestFacts {
    let separator = random.pick(&["|", ",", ", ", "=", "&", "\0", ""]);
    let lines = asked.headers.len();
    match random.below(10) {
        0 if lines > 1 => {
            let (_, second) = asked.headers.remove(1);
            asked.headers[0].1.extend_from_slice(separator.as_bytes());
            asked.headers[0].1.extend_from_slice(&second);
        }
        1 if lines > 0 => {
            let (name, value) = asked.headers[0].clone();
            let at = random.below(value.len() + 1);
            // Only where it leaves two texts, which the reference requires.
            if let (Ok(_), Ok(_)) = (std::str::from_utf8(&value[..at]), std::str::from_utf8(&value[at..])) {
                asked.headers[0].1.truncate(at);
                asked.headers.insert(1, (name, value[at..].to_vec()));
            }
        }
        2 if lines > 1 => asked.headers.rotate_left(1),
        3 if lines > 0 => asked.headers[0].1.clear(),
        4 if lines > 0 => drop(asked.headers.remove(0)),
        5 if lines > 1 => {
            let name = asked.headers[0].0.clone();
            asked.headers[1].0 = name;
        }
        6 => {
            let other = RequestFacts::random(random);
            asked.query = other.query;
        }
        7 => {
            let query = asked.query.get_or_insert_default();
            query.extend_from_slice(random.pick(&["&a=b", "&a", "&a=", "%00", "&v=1", "%7c", "|"]).as_bytes());
        }
        8 => asked.query = asked.query.map_or(Some(Vec::new()), |_| None),
        _ => {
            let other = RequestFacts::random(random);
            match random.below(5) {
                0 => asked.path = other.path,
                1 => asked.host = other.host,
                2 => asked.client = other.client,
                3 => asked.method = other.method,
                _ => {
                    (asked.source_port, asked.destination, asked.sni) =
                        (other.source_port, other.destination, other.sni)
                }
            }
        }
    }
    asked
}

impl Case {
    fn check(&self) -> Result<(), String> {
        let matcher = routes::compile(&self.routes);
        let mut scratch = Scratch::default();
        let mut cache = RouteCache::new(self.entries_max, self.bytes_max, 1);
        // All requests twice, so that kept results are used; and once more after everything was forgotten.
        for round in 0..3 {
            if round == 2 {
                cache.clear();
                assert!(cache.is_empty());
            }
            for (at, asked) in self.asked.iter().enumerate() {
                let expected = asked.with_request(|request| matcher.find(request, &mut Scratch::default()));
                let found = asked.with_request(|request| matcher.find_cached(request, &mut scratch, &mut cache));
                if found != expected {
                    return Err(format!("round {round}, request {at}: {found:?}, uncached {expected:?}"));
                }
                if cache.len() > self.entries_max || cache.bytes() > self.bytes_max {
                    return Err(format!("{} entries, {} bytes", cache.len(), cache.bytes()));
                }
            }
        }
        self.check_that_only_what_is_read_counts(&matcher)
    }

    /// For sets of expressions the reference knows which fields they read.
    fn check_that_only_what_is_read_counts(&self, matcher: &Matcher) -> Result<(), String> {
        let texts = self.routes.iter().map(|route| match &route.asks {
            Asks::Expression(chain) => Some(chain.text()),
            Asks::Uri(_) => None,
        });
        let texts: Option<Vec<String>> = texts.collect();
        let Some(texts) = texts else { return Ok(()) };
        let reference = Reference::new(texts.iter().map(|text| (0, text.as_str()))).unwrap();
        let mut cache = RouteCache::new(10_000, 16 << 20, 1);
        let mut scratch = Scratch::default();
        let mut different = HashSet::new();
        for asked in &self.asked {
            asked.with_request(|request| {
                let path = std::str::from_utf8(request.path.bytes()).unwrap();
                // A route that reads a part of the path reads the path.
                let fields =
                    reference.fields().map(|field| if field.starts_with("http.path") { "http.path" } else { field });
                let values: Vec<_> = fields.map(|field| asked.values(field, path)).collect();
                different.insert(format!("{values:?}"));
                matcher.find_cached(request, &mut scratch, &mut cache).ok();
            });
        }
        if cache.len() > different.len() {
            return Err(format!("{} entries, though only {} requests differ", cache.len(), different.len()));
        }
        Ok(())
    }

    fn smaller(&self) -> Vec<Case> {
        let with_asked = |asked: Vec<RequestFacts>| Case { asked, ..self.clone() };
        let mut smaller: Vec<Case> = without_one(&self.asked).into_iter().map(with_asked).collect();
        smaller.extend(routes::smaller(&self.routes).into_iter().map(|routes| Case { routes, ..self.clone() }));
        for (at, asked) in self.asked.iter().enumerate() {
            smaller.extend(asked.smaller().into_iter().map(|less| {
                let mut asked = self.asked.clone();
                asked[at] = less;
                with_asked(asked)
            }));
        }
        smaller
    }
}

/// Two fields, each with up to two values that could run into each other, in all combinations; and a route for every
/// set of values.
#[test]
fn values_do_not_run_into_each_other() {
    const VALUES: [&str; 6] = ["", "a", "b", "ab", "a|b", "\0"];
    let mut lists: Vec<Vec<&str>> = vec![Vec::new()];
    lists.extend(VALUES.map(|value| vec![value]));
    lists.extend(VALUES.iter().flat_map(|first| VALUES.map(|second| vec![*first, second])));
    let asks_for = |field: &str, list: &[&str]| {
        let has = |value: &&str| format!("any({field}) == \"{value}\"");
        let lacks = |value: &&str| format!("!({})", has(value));
        VALUES
            .iter()
            .map(|value| if list.contains(value) { has(value) } else { lacks(value) })
            .collect::<Vec<_>>()
            .join(" && ")
    };
    for fields in [["http.headers.x_a", "http.headers.x_b"], ["http.queries.a", "http.headers.x_a"]] {
        let both = lists.iter().flat_map(|first| lists.iter().map(move |second| (first, second)));
        let one_of_a_kind = both.clone().filter(|(first, second)| first.is_sorted() && second.is_sorted());
        let route = |(id, (first, second)): (usize, (&Vec<&str>, &Vec<&str>))| {
            let text = format!("{} && {}", asks_for(fields[0], first), asks_for(fields[1], second));
            Route { id, priority: 0, asks: Asks::Expression(Chain::of(&text)) }
        };
        let matcher = routes::compile(&one_of_a_kind.enumerate().map(route).collect::<Vec<_>>());
        let (mut cache, mut scratch) = (RouteCache::new(10_000, 16 << 20, 1), Scratch::default());
        for (first, second) in both {
            let asked = with_values([(fields[0], first), (fields[1], second)]);
            let expected = asked.with_request(|request| matcher.find(request, &mut scratch));
            let found = asked.with_request(|request| matcher.find_cached(request, &mut scratch, &mut cache));
            assert_eq!(found, expected, "{fields:?}: {first:?} and {second:?}");
            assert!(found.is_ok_and(|found| found.is_some()), "{fields:?}: {first:?} and {second:?}");
        }
        // A few displace each other.
        assert!(cache.len() * 10 > lists.len() * lists.len() * 9, "{}", cache.len());
    }
}

/// A request with these values of header fields and arguments only.
fn with_values(fields: [(&str, &Vec<&str>); 2]) -> RequestFacts {
    let mut asked = RequestFacts {
        headers: Vec::new(),
        query: None,
        path: "/".to_owned(),
        ..RequestFacts::random(&mut Random::new(1))
    };
    for (field, values) in fields {
        for value in values {
            match field.strip_prefix("http.headers.") {
                Some(name) => asked.headers.push((name.replace('_', "-"), value.as_bytes().to_vec())),
                None => {
                    let name = field.strip_prefix("http.queries.").unwrap();
                    asked.query.get_or_insert_default().extend_from_slice(format!("{name}={value}&").as_bytes());
                }
            }
        }
    }
    asked
}

#[test]
fn that_no_route_takes_a_request_is_kept() {
    let route = Route { id: 0, priority: 0, asks: Asks::Expression(Chain::of(r#"http.headers.x_a == "a""#)) };
    let matcher = routes::compile(&[route]);
    let (mut cache, mut scratch) = (RouteCache::new(16, 1 << 16, 1), Scratch::default());
    let with = |values: &[&[u8]]| {
        let headers = values.iter().map(|value| ("X-A".to_owned(), value.to_vec())).collect();
        RequestFacts { headers, ..RequestFacts::random(&mut Random::new(1)) }
    };
    let mut check = |values: &[&[u8]], is_taken: bool, entries: usize| {
        let asked = with(values);
        let found = asked.with_request(|request| matcher.find_cached(request, &mut scratch, &mut cache));
        assert_eq!((found.map(|found| found.is_some()), cache.len()), (Ok(is_taken), entries), "{values:?}");
    };
    check(&[], false, 1);
    check(&[b""], false, 2);
    check(&[b"a"], true, 3);
    check(&[b"a", b"a"], true, 4);
    check(&[b"", b""], false, 5);
    check(&[], false, 5);
    check(&[b"a", b"a"], true, 5);
    // Too long to be kept.
    check(&[&[b'a'; CACHE_KEY_BYTES_MAX]], false, 5);
}
