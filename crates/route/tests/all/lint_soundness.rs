//! Findings of lint on random routes are true: a route that takes no request takes none of many random
//! ones.

use crate::oracle;
use crate::oracle::asked::RequestFacts;
use crate::oracle::expressions::Expressions;
use crate::oracle::random::{Random, check_and_shrink, from_environment};
use crate::oracle::routes::{self, Route};
use crate::oracle::scan;
use stillgate_route::lint::{FindingKind, lint};

#[derive(Debug, Clone)]
struct Case {
    routes: Vec<Route>,
    asked: Vec<RequestFacts>,
}

#[test]
fn routes_that_take_no_request_take_none() {
    const ROUTES_MAX: usize = 8;
    const SETS: u64 = 500;
    const REQUESTS: usize = 40;
    let first_seed = from_environment("STILLGATE_SEED", 1);
    let mut told = 0;
    for seed in first_seed..first_seed + SETS {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let expressions = Expressions::random(&mut random);
        let mut routes: Vec<Route> = Vec::new();
        for id in 0..random.below(ROUTES_MAX) + 2 {
            let route =
                relative(&routes, &mut random, id).unwrap_or_else(|| Route::random(&mut random, id, 2, &expressions));
            routes.push(route);
        }
        let asked = (0..REQUESTS).map(|_| RequestFacts::random(&mut random)).collect();
        let case = Case { routes, asked };
        told += case.dead().len();
        check_and_shrink(seed, &case, Case::smaller, Case::check);
    }
    assert!(told > SETS as usize / 4, "only {told} routes were found to take no request");
}

/// A route with almost the same condition as one before, so that they meet.
fn relative(routes: &[Route], random: &mut Random, id: usize) -> Option<Route> {
    if routes.is_empty() || random.one_in(2) {
        return None;
    }
    let other = random.pick(routes);
    let mut like: Vec<Route> = routes::smaller(std::slice::from_ref(&other)).into_iter().flatten().collect();
    like.push(other);
    Some(Route { id, priority: random.below(3) as i64 - 1, ..random.pick(&like) })
}

impl Case {
    fn smaller(&self) -> Vec<Case> {
        let routes = routes::smaller(&self.routes).into_iter().map(|routes| Case { routes, ..self.clone() });
        let halves = oracle::random::halves(&self.asked);
        routes.chain(halves.into_iter().map(|asked| Case { asked, ..self.clone() })).collect()
    }

    /// Routes that take no request according to lint.
    fn dead(&self) -> Vec<usize> {
        let findings = lint(&self.routes.iter().map(Route::spec).collect::<Vec<_>>()).findings;
        let takes_none = |kind: &FindingKind| {
            use FindingKind::{NeverMatches, SameButOrder, Shadowed};
            matches!(kind, NeverMatches { .. } | Shadowed { .. } | SameButOrder { .. })
        };
        findings.iter().filter(|finding| takes_none(&finding.kind)).map(|finding| finding.route).collect()
    }

    fn check(&self) -> Result<(), String> {
        let dead = self.dead();
        for asked in &self.asked {
            if let Ok(Some(found)) = scan::find(&self.routes, asked)
                && dead.contains(&found.route)
            {
                let specs: Vec<_> = self.routes.iter().map(Route::spec).collect();
                let said: Vec<String> = lint(&specs).findings.iter().map(ToString::to_string).collect();
                return Err(format!("{asked:?} is taken by route {}, but: {said:#?} {specs:#?}", found.route));
            }
        }
        Ok(())
    }
}
