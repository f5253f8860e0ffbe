//! Compares our matcher with Kong's router on random expressions and requests.
//!
//! A pair is one expression on its own and one request; besides, every request is matched with whole sets. Every
//! difference is a bug or a deviation that `src/expression/mod.rs` lists, and those are not generated.
//! `STILLGATE_PAIRS` sets the number of pairs, 100,000 by default, `STILLGATE_SEED` the seed.

use crate::oracle::asked::{RequestFacts, Value};
use crate::oracle::expressions::{Chain, Expressions};
use crate::oracle::kong::{MatchedExpression, Reference, Silence};
use crate::oracle::random::{Random, check_and_shrink, from_environment, halves, without_one};
use crate::oracle::scan::{Ambiguous, by_both_readings, decoded};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use stillgate_route::condition::{self, Condition};
use stillgate_route::{Expression, Match, MatchRequest, Matcher, PathError, RouteMatch, RouteSpec, Scratch};

/// A set of routes, and one request of it.
#[derive(Debug, Clone)]
struct Case {
    routes: Vec<Route>,
    asked: RequestFacts,
}

#[derive(Clone)]
struct Route {
    priority: i64,
    chain: Chain,
}

/// Routes as both sides compile them: all together, and each on its own.
struct RoutePair {
    texts: Vec<String>,
    expressions: Vec<Expression>,
    matcher: Matcher,
    alone: Vec<Matcher>,
    reference: Reference,
    reference_alone: Vec<Reference>,
    scratch: Scratch,
}

/// The number of results, and the answers that both sides gave along the way.
#[derive(Default)]
struct Counts {
    pairs: u64,
    held: u64,
    whole: u64,
    won: u64,
    captured: u64,
}

#[test]
fn expressions_mean_what_they_mean_to_kong() {
    const ROUTES_MAX: usize = 30;
    const MANY_ROUTES_MAX: usize = 400;
    const REQUESTS: usize = 16;
    let pairs = from_environment("STILLGATE_PAIRS", 100_000);
    let first_seed = from_environment("STILLGATE_SEED", 1);
    let mut counts = Counts::default();
    for seed in first_seed.. {
        if counts.pairs >= pairs {
            break;
        }
        let mut random = Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let expressions = Expressions::random(&mut random);
        let routes_max = if seed % 64 == 0 { MANY_ROUTES_MAX } else { ROUTES_MAX };
        let routes =
            (0..random.below(routes_max) + 1).map(|_| Route::random(&mut random, &expressions)).collect::<Vec<_>>();
        let mut asked = (0..REQUESTS).map(|_| RequestFacts::random(&mut random)).collect::<Vec<_>>();
        let compiled = std::panic::catch_unwind(|| RoutePair::new(&routes));
        let wrong = match compiled {
            Ok(Ok(mut compiled)) => asked.iter().position(|asked| !compiled.agrees(asked, &mut counts)),
            // Any request shows it.
            _ => Some(0),
        };
        if let Some(wrong) = wrong {
            let case = Case { routes, asked: asked.swap_remove(wrong) };
            check_and_shrink(seed, &case, Case::smaller, Case::check);
            panic!("seed {seed}: only fails after other requests");
        }
    }
    let Counts { pairs, held, whole, won, captured } = counts;
    println!("{pairs} pairs, of which {held} held; {whole} requests of whole sets, {won} taken; {captured} captures");
    assert!(held * 20 > pairs && won * 4 > whole && captured * 100 > whole, "the generator hits too seldom");
}

/// Sets in which every route has a condition on the same field, for every kind of index.
#[test]
fn every_field_distinguishes_routes() {
    const FIELDS: &[&str] = &[
        "http.headers.x_a",
        "http.queries.a",
        "http.host",
        "http.path",
        "http.path.segments.0",
        "http.path.segments.0_1",
        "http.method",
        "tls.sni",
    ];
    const ROUTES: usize = 16;
    let first_seed = from_environment("STILLGATE_SEED", 1);
    for seed in first_seed..first_seed + 4 * from_environment("STILLGATE_FACTOR", 1) {
        for (field, operator) in
            FIELDS.iter().flat_map(|field| ["==", "^=", "=^", "~"].map(|operator| (field, operator)))
        {
            for lhs in
                [field.to_string(), format!("any({field})"), format!("lower({field})"), format!("lower(any({field}))")]
            {
                let mut random = Random::new(seed.wrapping_mul(0xbb67_ae85_84ca_a73b));
                let expressions = Expressions::of_one(field, &lhs, operator);
                let routes = (0..ROUTES).map(|_| Route::random(&mut random, &expressions)).collect::<Vec<_>>();
                let mut compiled = RoutePair::new(&routes).unwrap();
                for _ in 0..24 {
                    let mut asked = RequestFacts::random(&mut random);
                    // More values of the one field that is read.
                    asked.headers.iter_mut().for_each(|(name, _)| name.replace_range(.., "X-A"));
                    if !compiled.agrees(&asked, &mut Counts::default()) {
                        check_and_shrink(seed, &Case { routes: routes.clone(), asked }, Case::smaller, Case::check);
                    }
                }
            }
        }
    }
}

/// The reference cannot hold these values; the expected result follows from the definition of predicates.
#[test]
fn values_that_are_not_text_are_matched_as_bytes() {
    const SETS: u64 = 600;
    let first_seed = from_environment("STILLGATE_SEED", 1);
    for seed in first_seed..first_seed + SETS * from_environment("STILLGATE_FACTOR", 1) {
        let mut random = Random::new(seed.wrapping_mul(0x3c6e_f372_fe94_f82b));
        let expressions = Expressions::random(&mut random);
        let routes = (0..random.below(4) + 1).map(|_| Route::random(&mut random, &expressions)).collect::<Vec<_>>();
        for _ in 0..8 {
            let mut asked = RequestFacts::random(&mut random);
            spoil(&mut asked, &mut random);
            check_and_shrink(seed, &Case { routes: routes.clone(), asked }, Case::smaller, Case::check_bytes);
        }
    }
}

/// Cuts values within characters, and adds bytes that UTF-8 never has.
fn spoil(asked: &mut RequestFacts, random: &mut Random) {
    let RequestFacts { headers, query, .. } = asked;
    for value in headers.iter_mut().map(|(_, value)| value).chain(query) {
        let at = random.below(value.len() + 1);
        match random.below(4) {
            0 => value.insert(at, random.pick(&[0xff, 0xc3, 0x80, 0xe6])),
            1 => value.truncate(at),
            2 => drop(value.drain(..at)),
            _ => {}
        }
    }
}

impl Case {
    fn check_bytes(&self) -> Result<(), String> {
        for route in &self.routes {
            let text = route.chain.text();
            let expression = Expression::parse(&text).map_err(|errors| format!("{errors:?}"))?;
            let condition = expression.condition().clone();
            let spec = RouteSpec { id: String::new(), priority: 0, takes: RouteMatch::Expression(expression) };
            let matcher = Matcher::compile(vec![Arc::new(spec)]).unwrap();
            self.asked.with_request(|request| {
                let path = std::str::from_utf8(request.path.bytes()).unwrap();
                let holds = |path: &str| holds(&condition, &self.asked, path);
                let expected = by_both_readings(&self.asked.path, path, holds, |a, b| a == b)
                    .map_err(|Ambiguous| PathError::EncodedSlash);
                let found = matcher.find(request, &mut Scratch::default()).map(|found| found.is_some());
                if found == expected { Ok(()) } else { Err(format!("{text:?}: {found:?}, by definition {expected:?}")) }
            })?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let mut compiled = RoutePair::new(&self.routes)?;
        compiled.check(&self.asked, &mut Counts::default())
    }

    fn smaller(&self) -> Vec<Case> {
        let with = |routes: Vec<Route>| Case { routes, asked: self.asked.clone() };
        let mut smaller: Vec<Case> = halves(&self.routes).into_iter().map(with).collect();
        smaller.extend(without_one(&self.routes).into_iter().map(with));
        for (at, route) in self.routes.iter().enumerate() {
            smaller.extend(route.chain.smaller().into_iter().map(|chain| {
                let mut routes = self.routes.clone();
                routes[at] = Route { chain, ..*route };
                with(routes)
            }));
        }
        smaller.extend(self.asked.smaller().into_iter().map(|asked| Case { asked, ..self.clone() }));
        smaller
    }
}

impl RoutePair {
    fn new(routes: &[Route]) -> Result<RoutePair, String> {
        let texts: Vec<String> = routes.iter().map(|route| route.chain.text()).collect();
        let refused = |text: &str, why: Silence| format!("the reference refuses {text:?}: {why:?}");
        let parse = |text: &String| Expression::parse(text).map_err(|errors| format!("{text:?}: {errors:?}"));
        let expressions = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let spec = |at: usize| {
            let takes = RouteMatch::Expression(expressions[at].clone());
            Arc::new(RouteSpec { id: at.to_string(), priority: routes[at].priority, takes })
        };
        let compile = |specs: Vec<Arc<RouteSpec>>| Matcher::compile(specs).map_err(|errors| format!("{errors:?}"));
        let prioritised = routes.iter().zip(&texts).map(|(route, text)| (route.priority as usize, text.as_str()));
        Ok(RoutePair {
            matcher: compile((0..routes.len()).map(spec).collect())?,
            alone: (0..routes.len()).map(|at| compile(vec![spec(at)])).collect::<Result<_, _>>()?,
            reference: Reference::new(prioritised).map_err(|why| refused("one of the set", why))?,
            reference_alone: texts
                .iter()
                .map(|text| Reference::new([(0, text.as_str())]).map_err(|why| refused(text, why)))
                .collect::<Result<_, _>>()?,
            texts,
            expressions,
            scratch: Scratch::default(),
        })
    }

    /// Whether both sides agree, without a panic.
    fn agrees(&mut self, asked: &RequestFacts, counts: &mut Counts) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.check(asked, counts)))
            .is_ok_and(|checked| checked.is_ok())
    }

    fn check(&mut self, asked: &RequestFacts, counts: &mut Counts) -> Result<(), String> {
        asked.with_request(|request| {
            let path = std::str::from_utf8(request.path.bytes()).unwrap();
            for at in 0..self.texts.len() {
                counts.pairs += 1;
                counts.held += u64::from(self.check_alone(at, asked, request, path)?);
            }
            counts.whole += 1;
            let taken = |path: &str| self.reference.find(asked, path).expect("texts are UTF-8");
            let position = |taken: &Option<MatchedExpression>| taken.as_ref().map(|taken| taken.position);
            let expected = by_both_readings(&asked.path, path, taken, |a, b| position(a) == position(b));
            let found = self.matcher.find(request, &mut self.scratch);
            let expected_route = expected.as_ref().map(&position).map_err(|Ambiguous| PathError::EncodedSlash);
            if found.map(|found| found.map(|found| found.route)) != expected_route {
                return Err(format!("of the set, {found:?} takes it; to the reference {expected:?}"));
            }
            if let (Ok(Some(found)), Ok(Some(taken))) = (found, expected) {
                counts.won += 1;
                counts.captured += self.check_captures(found, &taken, request)?;
            }
            Ok(())
        })
    }

    fn check_alone(
        &mut self,
        at: usize,
        asked: &RequestFacts,
        request: &MatchRequest<'_>,
        path: &str,
    ) -> Result<bool, String> {
        let text = &self.texts[at];
        let takes = |path: &str| self.reference_alone[at].find(asked, path).expect("texts are UTF-8").is_some();
        let as_read = takes(path);
        if holds(self.expressions[at].condition(), asked, path) != as_read {
            return Err(format!("the condition of {text:?} says {}, the reference {as_read}", !as_read));
        }
        let expected =
            by_both_readings(&asked.path, path, takes, |a, b| a == b).map_err(|Ambiguous| PathError::EncodedSlash);
        let found = self.alone[at].find(request, &mut self.scratch).map(|found| found.is_some());
        if found != expected {
            return Err(format!("{text:?} alone: {found:?}; the reference {expected:?}"));
        }
        Ok(as_read)
    }

    /// Compares the captures of named groups; returns the number of captures.
    fn check_captures(
        &self,
        found: Match,
        taken: &MatchedExpression,
        request: &MatchRequest<'_>,
    ) -> Result<u64, String> {
        let captured = self.matcher.params(found, request).into_iter().collect::<BTreeMap<_, _>>();
        // What comes from the path is decoded here, and not by the reference.
        let agrees = |((name, value), (other, text)): ((&String, &Vec<u8>), (&String, &String))| {
            name == other && (*value == text.as_bytes() || *value == decoded(text))
        };
        if captured.len() != taken.captures.len() || !captured.iter().zip(&taken.captures).all(agrees) {
            let route = &self.texts[found.route];
            return Err(format!("{route:?} captured {captured:?}; to the reference {:?}", taken.captures));
        }
        for (name, value) in &captured {
            let mut buffer = Vec::new();
            assert_eq!(self.matcher.param(found, request, name, &mut buffer), Some(&value[..]));
        }
        Ok(captured.len() as u64)
    }
}

/// Whether a condition holds, evaluated without an index.
fn holds(condition: &Condition, asked: &RequestFacts, path: &str) -> bool {
    condition.holds(&mut |predicate| passes(predicate, &asked.values(&predicate.field.to_string(), path)))
}

/// The value of a predicate according to its definition.
fn passes(predicate: &condition::Predicate, values: &[Value]) -> bool {
    let lower = |text: &[u8]| match std::str::from_utf8(text) {
        Ok(text) if predicate.lower => text.to_lowercase().into_bytes(),
        Err(_) if predicate.lower => text.to_ascii_lowercase(),
        _ => text.to_vec(),
    };
    let mut passing = values.iter().map(|value| match value {
        Value::Text(text) => predicate.test.passes(condition::ConditionValue::Text(&lower(text))),
        Value::Int(number) => predicate.test.passes(condition::ConditionValue::Int(*number)),
        Value::Ip(address) => predicate.test.passes(condition::ConditionValue::Ip(IpAddr::to_canonical(address))),
    });
    if predicate.any { passing.any(|passes| passes) } else { !values.is_empty() && passing.all(|passes| passes) }
}

impl Route {
    fn random(random: &mut Random, expressions: &Expressions) -> Route {
        Route { priority: random.below(4) as i64, chain: expressions.chain(random) }
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "priority {}: {:?}", self.priority, self.chain.text())
    }
}
