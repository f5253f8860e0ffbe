//! A matcher that was updated edit by edit answers like one that was compiled from the last list.

use crate::oracle::asked::RequestFacts;
use crate::oracle::expressions::Expressions;
use crate::oracle::random::{Random, check_and_shrink, from_environment, halves, without_one};
use crate::oracle::routes::{self, Route};
use std::sync::Arc;
use stillgate_route::{Matcher, RouteSpec, Scratch};

#[derive(Debug, Clone)]
struct Case {
    routes: Vec<Route>,
    steps: Vec<Step>,
}

/// Edits that are applied at once, and requests that are asked then.
#[derive(Debug, Clone)]
struct Step {
    edits: Vec<Edit>,
    asked: Vec<RequestFacts>,
}

/// Positions are taken modulo the length of the list, so that every edit can be applied to every list.
#[derive(Debug, Clone)]
enum Edit {
    Add(usize, Route),
    Remove(usize),
    /// The route keeps its id.
    Change(usize, Route),
    Priority(usize, i64),
    Move(usize, usize),
    Reverse,
    /// Sorts by id, so that all routes that others had moved move.
    Sort,
    /// Nothing changes, but all texts are parsed again, as when a whole file is read again.
    ParseAnew,
}

#[test]
fn short_lists() {
    check(200, |random| sequence(random, 12, 12, 4));
}

/// With these sizes a change is compiled on its own, and a few more are merged with the rest.
#[test]
fn middling_lists() {
    check(60, |random| sequence(random, 80, 24, 4));
}

/// So many that changes are merged with the rest again and again.
#[test]
fn long_lists_that_change_often() {
    check(2, |random| sequence(random, 400, 200, 3));
}

fn check(sequences: u64, sequence: impl Fn(&mut Random) -> Case) {
    let first_seed = from_environment("STILLGATE_SEED", 1);
    let factor = from_environment("STILLGATE_FACTOR", 1);
    for seed in first_seed..first_seed + sequences * factor {
        let case = sequence(&mut Random::new(seed.wrapping_mul(0x9e6c_63d0_676a_9a99)));
        check_and_shrink(seed, &case, Case::smaller, Case::check);
    }
}

fn sequence(random: &mut Random, routes: usize, steps: usize, requests: usize) -> Case {
    let expressions = Expressions::random(random);
    let mut next_id = 0;
    let mut route = |random: &mut Random| {
        next_id += 1;
        Route::random(random, next_id, 3, &expressions)
    };
    let routes = (0..random.below(routes) + 1).map(|_| route(random)).collect();
    let mut edit = |random: &mut Random| {
        let (at, other) = (random.next() as usize, random.next() as usize);
        match random.below(24) {
            0..=5 => Edit::Add(at, route(random)),
            6..=10 => Edit::Remove(at),
            11..=15 => Edit::Change(at, route(random)),
            16..=18 => Edit::Priority(at, random.below(3) as i64 - 1),
            19..=21 => Edit::Move(at, other),
            22 if random.one_in(4) => Edit::Reverse,
            22 => Edit::Sort,
            _ => Edit::ParseAnew,
        }
    };
    let mut step = |random: &mut Random| {
        let edits = if random.one_in(6) { random.below(6) } else { 1 };
        let edits = (0..edits).map(|_| edit(random)).collect();
        Step { edits, asked: (0..requests).map(|_| RequestFacts::random(random)).collect() }
    };
    Case { routes, steps: (0..random.below(steps) + 1).map(|_| step(random)).collect() }
}

impl Case {
    fn check(&self) -> Result<(), String> {
        let mut routes = self.routes.clone();
        let mut specs: Vec<Arc<RouteSpec>> = routes.iter().map(Route::spec).collect();
        let mut updated = Matcher::compile(specs.clone()).map_err(|errors| format!("{errors:?}"))?;
        let mut scratch = Scratch::default();
        for (at, step) in self.steps.iter().enumerate() {
            step.edits.iter().for_each(|edit| edit.apply(&mut routes, &mut specs));
            updated = updated.update(specs.clone()).map_err(|errors| format!("step {at}: {errors:?}"))?;
            let compiled = Matcher::compile(specs.clone()).map_err(|errors| format!("{errors:?}"))?;
            if updated.specs() != compiled.specs() {
                return Err(format!("step {at}: the specs differ"));
            }
            for asked in &step.asked {
                same_answers(&updated, &compiled, asked, &mut scratch)
                    .map_err(|wrong| format!("step {at}: {wrong}"))?;
            }
        }
        Ok(())
    }

    fn smaller(&self) -> Vec<Case> {
        let with_steps = |steps: Vec<Step>| Case { steps, ..self.clone() };
        let with_routes = |routes: Vec<Route>| Case { routes, ..self.clone() };
        let mut smaller: Vec<Case> = halves(&self.steps).into_iter().map(with_steps).collect();
        smaller.extend(halves(&self.routes).into_iter().map(with_routes));
        smaller.extend(without_one(&self.steps).into_iter().map(with_steps));
        smaller.extend(routes::smaller(&self.routes).into_iter().map(with_routes));
        for (at, step) in self.steps.iter().enumerate() {
            let edits = without_one(&step.edits).into_iter().map(|edits| Step { edits, ..step.clone() });
            let asked = without_one(&step.asked).into_iter().map(|asked| Step { asked, ..step.clone() });
            let only = step.asked.iter().filter(|_| step.asked.len() == 1).flat_map(RequestFacts::smaller);
            let less = only.map(|asked| Step { asked: vec![asked], ..step.clone() });
            smaller.extend(edits.chain(asked).chain(less).map(|step| {
                let mut steps = self.steps.clone();
                steps[at] = step;
                with_steps(steps)
            }));
        }
        smaller
    }
}

/// Compares the results and explanations for the winner and for one more route.
fn same_answers(
    updated: &Matcher,
    compiled: &Matcher,
    asked: &RequestFacts,
    scratch: &mut Scratch,
) -> Result<(), String> {
    asked.with_request(|request| {
        let expected = compiled.find(request, &mut Scratch::default());
        let found = updated.find(request, scratch);
        if found != expected {
            return Err(format!("{found:?}, compiled from scratch {expected:?}; {asked:?}"));
        }
        let last = compiled.specs().iter().last().map(|spec| spec.id.as_str());
        let explained = |matcher: &Matcher| matcher.explain(request, last).map(|explanation| explanation.to_string());
        let (explained, expected) = (explained(updated), explained(compiled));
        if explained != expected {
            return Err(format!("explained as {explained:?}, compiled from scratch {expected:?}; {asked:?}"));
        }
        Ok(())
    })
}

impl Edit {
    fn apply(&self, routes: &mut Vec<Route>, specs: &mut Vec<Arc<RouteSpec>>) {
        let count = routes.len();
        if count == 0 && !matches!(self, Edit::Add(..)) {
            return;
        }
        match self {
            Edit::Add(at, route) => {
                let at = at % (count + 1);
                routes.insert(at, route.clone());
                specs.insert(at, route.spec());
            }
            Edit::Remove(at) => {
                routes.remove(at % count);
                specs.remove(at % count);
            }
            Edit::Change(at, route) => {
                let at = at % count;
                routes[at] = Route { id: routes[at].id, ..route.clone() };
                specs[at] = routes[at].spec();
            }
            Edit::Priority(at, priority) => {
                let at = at % count;
                routes[at].priority = *priority;
                specs[at] = routes[at].spec();
            }
            Edit::Move(from, to) => {
                let (route, spec) = (routes.remove(from % count), specs.remove(from % count));
                routes.insert(to % count, route);
                specs.insert(to % count, spec);
            }
            Edit::Reverse => {
                routes.reverse();
                specs.reverse();
            }
            Edit::Sort => {
                routes.sort_by_key(|route| route.id);
                specs.sort_by_key(|spec| spec.id[1..].parse::<usize>().unwrap());
            }
            Edit::ParseAnew => *specs = routes.iter().map(Route::spec).collect(),
        }
    }
}
