//! The matcher gives the same results as a scan of all routes, whose order follows directly from the
//! design.

use crate::oracle::asked::RequestFacts;
use crate::oracle::expressions::Expressions;
use crate::oracle::random::{Random, check_and_shrink, from_environment};
use crate::oracle::routes::{self, Route};
use crate::oracle::scan::{self, Ambiguous};
use stillgate_route::{MatchRequest, Matcher, PathError, RouteVerdict, Scratch};

#[derive(Debug, Clone)]
struct Case {
    routes: Vec<Route>,
    asked: RequestFacts,
}

#[test]
fn the_matcher_is_the_linear_scan() {
    const ROUTES_MAX: usize = 16;
    const SETS: u64 = 1_000;
    const REQUESTS: usize = 4;
    let first_seed = from_environment("STILLGATE_SEED", 1);
    for seed in first_seed..first_seed + SETS * from_environment("STILLGATE_FACTOR", 1) {
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        // Every third set has no expression, so that URI routes are tested as often as before.
        let one_in = if seed % 3 == 0 { usize::MAX } else { 4 };
        let expressions = Expressions::random(&mut random);
        let count = random.below(ROUTES_MAX);
        let routes: Vec<Route> = (0..count).map(|id| Route::random(&mut random, id, one_in, &expressions)).collect();
        for _ in 0..REQUESTS {
            let case = Case { routes: routes.clone(), asked: RequestFacts::random(&mut random) };
            check_and_shrink(seed, &case, Case::smaller, Case::check);
        }
    }
}

impl Case {
    fn smaller(&self) -> Vec<Case> {
        let routes = routes::smaller(&self.routes).into_iter().map(|routes| Case { routes, ..self.clone() });
        routes.chain(self.asked.smaller().into_iter().map(|asked| Case { asked, ..self.clone() })).collect()
    }

    fn check(&self) -> Result<(), String> {
        let matcher = routes::compile(&self.routes);
        self.asked.with_request(|request| {
            let expected = scan::find(&self.routes, &self.asked).map_err(|Ambiguous| PathError::EncodedSlash);
            let found = matcher.find(request, &mut Scratch::default());
            if found.map(|found| found.map(|found| found.route))
                != expected.clone().map(|found| found.map(|found| found.route))
            {
                return Err(format!("found {found:?}, expected {expected:?}"));
            }
            if let (Ok(Some(found)), Ok(Some(expected))) = (found, &expected)
                && !self.routes[found.route].is_expression()
            {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                let params = matcher.params(found, request).into_iter().map(|(name, value)| (name, text(value)));
                if params.clone().ne(expected.params.iter().cloned()) {
                    return Err(format!("captured {:?}, expected {expected:?}", params.collect::<Vec<_>>()));
                }
                for (name, value) in &expected.params {
                    assert_eq!(matcher.param(found, request, name, &mut Vec::new()), Some(value.as_bytes()));
                }
            }
            self.check_explanations(&matcher, request, expected)
        })
    }

    /// Checks that the explanation of every route agrees.
    fn check_explanations(
        &self,
        matcher: &Matcher,
        request: &MatchRequest<'_>,
        expected: Result<Option<scan::ScanResult>, PathError>,
    ) -> Result<(), String> {
        for (position, route) in self.routes.iter().enumerate() {
            let explanation = matcher.explain(request, Some(&format!("r{}", route.id)));
            let (explanation, expected) = match (explanation, &expected) {
                (Ok(explanation), Ok(expected)) => (explanation, expected),
                (Err(PathError::EncodedSlash), Err(PathError::EncodedSlash)) => continue,
                (explanation, expected) => return Err(format!("explained as {explanation:?}, expected {expected:?}")),
            };
            let expected_route = expected.as_ref().map(|found| found.route);
            let (_, verdict) = explanation.asked.as_ref().unwrap();
            // The route on its own, without the other reading of `%2F`: explain describes what this route
            // could do.
            let path = std::str::from_utf8(request.path.bytes()).unwrap();
            let could = scan::scan(std::slice::from_ref(route), &self.asked, path).is_some();
            let params = expected.as_ref().map(|found| found.params.clone()).unwrap_or_default();
            let same = explanation.chosen.as_ref().map(|chosen| chosen.route) == expected_route
                && (expected_route.is_none_or(|at| self.routes[at].is_expression()) || explanation.params == params)
                && (*verdict == RouteVerdict::Chosen) == (expected_route == Some(position))
                && matches!(verdict, RouteVerdict::Chosen | RouteVerdict::Later(_)) == could;
            if !same {
                return Err(format!(
                    "asked about r{}: {explanation:?}\nexpected {expected:?}, could: {could}",
                    route.id
                ));
            }
        }
        Ok(())
    }
}
