//! The public functions against values of R and SciPy.
//!
//! The values and the scripts that made them (`golden.R`, `golden.py`, `nights.py`) are in `tests/data`.

use serde_json::Value;
use stillgate_stats::*;

/// The cases called `name` of R or SciPy.
fn cases(file: &str, name: &str) -> Vec<Value> {
    let text = match file {
        "r" => include_str!("../data/r.json"),
        "nights" => include_str!("../data/nights.json"),
        _ => include_str!("../data/scipy.json"),
    };
    let all: Value = serde_json::from_str(text).unwrap();
    all[name].as_array().unwrap().clone()
}

fn number(case: &Value, key: &str) -> f64 {
    case[key].as_f64().unwrap_or_else(|| panic!("{key} of {case}"))
}

fn numbers(case: &Value, key: &str) -> Vec<f64> {
    case[key].as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(f64::INFINITY)).collect()
}

/// Fails unless `got` is within `tolerance` of `want`, relative to it or to `scale` where it is smaller.
#[track_caller]
fn close(what: &Value, name: &str, got: f64, want: f64, tolerance: f64, scale: f64) {
    let allowed = tolerance * want.abs().max(scale);
    assert!((got - want).abs() <= allowed, "{name}: {got}, not {want}, of {what}");
}

#[test]
fn quantiles_of_r() {
    for case in cases("r", "quantiles") {
        let got = quantile(&numbers(&case, "sorted"), number(&case, "q")).unwrap();
        close(&case, "value", got, number(&case, "value"), 1e-14, 0.0);
    }
}

#[test]
fn quantile_ranks_of_r() {
    for case in cases("r", "ranks") {
        let got = quantile_ranks(number(&case, "count") as u64, number(&case, "q"), number(&case, "confidence"));
        let want = case["low"].as_u64().map(|low| (low, case["high"].as_u64().unwrap()));
        assert_eq!(got, want, "{case}");
    }
}

#[test]
fn signed_rank_of_r() {
    for case in cases("r", "signed_rank") {
        let got = signed_rank(&numbers(&case, "diffs")).unwrap();
        assert_eq!(got.w_plus, number(&case, "w_plus"), "{case}");
        assert_eq!(got.exact, case["exact"].as_bool().unwrap(), "{case}");
        close(&case, "p", got.p_value, number(&case, "p_value"), 1e-11, 0.0);
    }
}

#[test]
fn signed_rank_with_ties_counted() {
    for case in cases("scipy", "signed_rank") {
        let got = signed_rank(&numbers(&case, "diffs")).unwrap();
        assert!(got.exact);
        assert_eq!(got.w_plus, number(&case, "w_plus"), "{case}");
        close(&case, "p", got.p_value, number(&case, "p_value"), 1e-13, 0.0);
    }
}

#[test]
fn hodges_lehmann_of_r() {
    for case in cases("r", "signed_rank") {
        let got = hodges_lehmann(&numbers(&case, "diffs"), 0.95).unwrap();
        let want = &case["hodges_lehmann"];
        close(&case, "value", got.value, number(want, "value"), 1e-13, 1e-14);
        // R's exact order statistic, or a place or few off where the critical value is approximated.
        let within = |value: f64, from: &str, to: &str, exact: &str| {
            let exact = number(want, exact);
            let (from, to) = (want[from].as_f64().unwrap_or(exact), want[to].as_f64().unwrap_or(exact));
            assert!(value >= from - 1e-14 && value <= to + 1e-14, "{value} not in {from}..{to} of {case}");
        };
        within(got.interval.low, "low_from", "low_to", "low");
        within(got.interval.high, "high_from", "high_to", "high");
    }
}

#[test]
fn theil_sen_of_scipy() {
    for case in cases("scipy", "slopes") {
        let got = theil_sen(&numbers(&case, "x"), &numbers(&case, "y"), number(&case, "confidence")).unwrap();
        for (name, got) in [("slope", got.value), ("low", got.interval.low), ("high", got.interval.high)] {
            close(&case, name, got, number(&case, name), 1e-12, 1e-12);
        }
    }
}

#[test]
fn paired_t_of_r() {
    for case in cases("r", "signed_rank") {
        let diffs = numbers(&case, "diffs");
        let (got, want) = (paired_t(&diffs, 0.95).unwrap(), &case["t"]);
        assert_eq!(got.df, diffs.len() as f64 - 1.0);
        for (name, got) in [
            ("t", got.t),
            ("p_value", got.p_value),
            ("mean", got.estimate.value),
            ("low", got.estimate.interval.low),
            ("high", got.estimate.interval.high),
            ("sd", got.sd),
        ] {
            close(&case, name, got, number(want, name), 1e-10, 1e-14);
        }
    }
}

#[test]
fn mann_whitney_of_r() {
    for case in cases("r", "mann_whitney") {
        let (a, b) = (numbers(&case, "a"), numbers(&case, "b"));
        let got = mann_whitney(&a, &b).unwrap();
        assert_eq!((got.u, got.exact), (number(&case, "u"), case["exact"].as_bool().unwrap()), "{case}");
        close(&case, "p", got.p_value, number(&case, "p_value"), 1e-11, 0.0);
        close(&case, "superiority", got.superiority, got.u / (a.len() * b.len()) as f64, 1e-15, 0.0);
    }
}

#[test]
fn mann_whitney_with_ties_counted() {
    for case in cases("scipy", "mann_whitney") {
        let got = mann_whitney(&numbers(&case, "a"), &numbers(&case, "b")).unwrap();
        assert_eq!((got.u, got.exact), (number(&case, "u"), true), "{case}");
        close(&case, "p", got.p_value, number(&case, "p_value"), 1e-13, 0.0);
    }
}

#[test]
fn holm_of_r() {
    for case in cases("r", "holm") {
        for (got, want) in holm(&numbers(&case, "p")).into_iter().zip(numbers(&case, "adjusted")) {
            close(&case, "adjusted", got, want, 1e-14, 0.0);
        }
    }
}

#[test]
fn power_of_r() {
    for case in cases("r", "power") {
        let got =
            power(number(&case, "n") as u64, number(&case, "sd"), number(&case, "effect"), number(&case, "alpha"));
        close(&case, "power", got, number(&case, "power"), 1e-8, 0.0);
    }
}

#[test]
fn pairs_needed_of_r() {
    for case in cases("r", "pairs_needed") {
        let (sd, effect) = (number(&case, "sd"), number(&case, "effect"));
        let got = pairs_needed(sd, -effect, number(&case, "alpha"), number(&case, "power"));
        assert_eq!(got, case["pairs"].as_u64(), "{case}");
    }
}

#[test]
fn minimum_detectable_effect_of_r() {
    for case in cases("r", "minimum_detectable_effect") {
        let (n, sd) = (number(&case, "n") as u64, number(&case, "sd"));
        let got = minimum_detectable_effect(n, sd, number(&case, "alpha"), number(&case, "power")).unwrap();
        close(&case, "effect", got, number(&case, "effect"), 1e-8, 0.0);
    }
}

#[test]
fn two_sample_t_of_r() {
    for case in cases("r", "two_sample_t") {
        let got = two_sample_t(&numbers(&case, "a"), &numbers(&case, "b"), 0.0, 0.95).unwrap();
        for (name, got) in [
            ("t", got.t),
            ("df", got.df),
            ("p_value", got.p_value),
            ("value", got.estimate.value),
            ("low", got.estimate.interval.low),
            ("high", got.estimate.interval.high),
            ("sd", got.sd),
        ] {
            close(&case, name, got, number(&case, name), 1e-10, 1e-18);
        }
    }
}

#[test]
fn minimum_detectable_effect_of_two_samples_of_r() {
    for case in cases("r", "minimum_detectable_effect_two_sample") {
        let (n, sd) = (number(&case, "n") as u64, number(&case, "sd"));
        let got = minimum_detectable_effect_two_sample(n, n, sd, number(&case, "alpha"), number(&case, "power"));
        close(&case, "effect", got.unwrap(), number(&case, "effect"), 1e-7, 0.0);
    }
}

#[test]
fn sequential_bounds_of_rpact() {
    for case in cases("r", "sequential") {
        let spending =
            if case["spending"] == "asOF" { SpendingFunction::OBrienFleming } else { SpendingFunction::Pocock };
        let information = numbers(&case, "information");
        let got = boundaries(&information, number(&case, "alpha"), spending).unwrap();
        for (got, want) in got.iter().zip(numbers(&case, "bounds")) {
            // rpact's grid is good for four digits where looks lie close together (as the values by Simpson's rule show),
            // and its search ends at 1e-10 in probability, which is wide where the bound is high.
            let density = (-want * want / 2.0).exp() / 2.5;
            close(&case, "bound", *got, want, 5e-5 + 1e-9 / density, 1.0);
        }
        if case["power"].is_number() {
            let crossing = crossing_probability(&information, &got, number(&case, "drift")).unwrap();
            close(&case, "power", crossing.iter().sum(), number(&case, "power"), 5e-5, 0.0);
        }
    }
}

#[test]
fn sequential_bounds_by_simpsons_rule() {
    for case in cases("scipy", "sequential") {
        let spending =
            if case["spending"] == "asOF" { SpendingFunction::OBrienFleming } else { SpendingFunction::Pocock };
        let got = boundaries(&numbers(&case, "information"), number(&case, "alpha"), spending).unwrap();
        for (got, want) in got.iter().zip(numbers(&case, "bounds")) {
            close(&case, "bound", *got, want, 1e-9, 0.0);
        }
    }
}

#[test]
fn stopping_chances_of_the_multivariate_normal() {
    for case in cases("scipy", "crossing") {
        let (information, bounds) = (numbers(&case, "information"), numbers(&case, "bounds"));
        let got = crossing_probability(&information, &bounds, number(&case, "drift")).unwrap();
        for (got, want) in got.iter().zip(numbers(&case, "chances")) {
            close(&case, "chance", *got, want, 1e-6, 1.0);
        }
    }
}

fn statistic(name: &str) -> fn(&[f64]) -> f64 {
    match name {
        "mean" => |sample| sample.iter().sum::<f64>() / sample.len() as f64,
        "median" => |sample| median(sample).unwrap(),
        "max" => |sample| sample.iter().copied().fold(f64::MIN, f64::max),
        "sd" => |sample| paired_t(sample, 0.5).unwrap().sd,
        _ => panic!("no statistic {name}"),
    }
}

#[test]
fn bca_of_scipy_over_the_same_resamples() {
    for case in cases("scipy", "bootstrap") {
        let mut random = Random::new(case["seed"].as_u64().unwrap());
        let resamples = case["resamples"].as_u64().unwrap() as usize;
        let statistic = statistic(case["statistic"].as_str().unwrap());
        let confidence = number(&case, "confidence");
        let got = bca(&numbers(&case, "sample"), statistic, resamples, confidence, &mut random).unwrap();
        close(&case, "value", got.value, number(&case, "value"), 1e-12, 0.0);
        // A resample that is the sample in another order may round to another deviation, which moves a count by one.
        close(&case, "low", got.interval.low, number(&case, "low"), 1e-6, 1e-3);
        close(&case, "high", got.interval.high, number(&case, "high"), 1e-6, 1e-3);
    }
}

#[test]
fn bca_of_r_within_its_noise() {
    for case in cases("r", "bootstrap") {
        let statistic = statistic(case["statistic"].as_str().unwrap());
        let mut random = Random::new(5);
        let got = bca(&numbers(&case, "sample"), statistic, 20_000, number(&case, "confidence"), &mut random).unwrap();
        let width = number(&case, "high") - number(&case, "low");
        close(&case, "low", got.interval.low, number(&case, "low"), 0.03, width);
        close(&case, "high", got.interval.high, number(&case, "high"), 0.03, width);
    }
}

#[test]
fn generator_of_its_second_implementation() {
    for case in cases("scipy", "random") {
        let mut random = Random::new(case["seed"].as_u64().unwrap());
        for want in case["next"].as_array().unwrap() {
            assert_eq!(Some(random.next_u64()), want.as_u64(), "{case}");
        }
        for want in case["below_10"].as_array().unwrap() {
            assert_eq!(Some(random.below(10)), want.as_u64(), "{case}");
        }
    }
}

#[test]
fn steps_on_a_finer_grid() {
    for case in cases("nights", "steps") {
        let readings = case["readings"].as_array().unwrap().iter();
        let reading =
            |pair: &Value| Reading { place: pair[0].as_u64().unwrap() as usize, value: pair[1].as_f64().unwrap() };
        let readings: Vec<Reading> = readings.map(reading).collect();
        let prior = StepPrior { weights: numbers(&case, "weights"), step_min: 0.01, none: 0.3, several: 0.1 };
        let got = steps(&readings, &prior).unwrap();
        assert!(got.drift.iter().all(|drift| *drift == 0.0), "{case}");
        // Cells of a quarter of the noise, scales a few per cent apart, and a machine that may drift, which the other
        // side rules out.
        let figures = [(got.none, number(&case, "none")), (got.several, number(&case, "several"))];
        for (got, want) in figures.into_iter().chain(got.steps.into_iter().zip(numbers(&case, "steps"))) {
            assert!((got - want).abs() < 0.06, "{got}, not {want}, of {case}");
        }
    }
}

#[test]
fn false_discovery_rates_of_scipy() {
    for case in cases("nights", "false_discovery") {
        for (got, want) in benjamini_hochberg(&numbers(&case, "p")).into_iter().zip(numbers(&case, "adjusted")) {
            close(&case, "adjusted", got, want, 1e-14, 0.0);
        }
    }
}
