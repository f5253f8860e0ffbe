//! Checks the pairs of a comparison against what was decided before its first pair.

use super::runs::{self, Rules};
use super::{Difference, difference};
use crate::compare::{looks, measures, run};
use crate::error::Result;
use crate::result::compare::{CompareResult, Side};
use std::time::Duration;
use stillgate_load::Bounds;

pub(super) fn check(compared: &CompareResult, found: &mut Vec<Difference>) -> Result {
    let design = &compared.design;
    for (number, (pair, drawn)) in compared.pairs.iter().zip(run::round_orders(design)).enumerate() {
        if Some(&pair.first) != drawn.first() {
            let words = |side: Option<&Side>| format!("{:?} went first", side.unwrap_or(&Side::A));
            found.push(difference(format!("pairs[{number}].first"), words(Some(&pair.first)), words(drawn.first())));
        } else if design.builds > 2 && pair.order != drawn {
            found.push(difference(format!("pairs[{number}].order"), format!("{:?}", pair.order), format!("{drawn:?}")));
        }
    }
    if compared.pairs.len() > design.pairs {
        found.push(difference("pairs", compared.pairs.len(), format!("{} at most", design.pairs)));
    }
    check_looks(compared, found);
    for (number, pair) in compared.pairs.iter().enumerate() {
        for (side, record) in pair.records() {
            let side = format!("{side:?}").to_lowercase();
            for (what, run, duration_s) in
                [("saturation", &record.saturation, design.saturation_s), ("rated", &record.rated, design.rate_s)]
            {
                let rules = Rules {
                    late: Duration::try_from_secs_f64(design.late_s).unwrap_or_default(),
                    late_share_max: Bounds::default().late_share_max,
                    duration: Duration::try_from_secs_f64(duration_s).unwrap_or_default(),
                };
                // Files of the first versions do not record lateness.
                if !rules.late.is_zero() {
                    runs::check(&format!("pairs[{number}].{side}.{what}"), run, &rules, found)?;
                }
            }
        }
    }
    Ok(())
}

/// Looks are none or the planned ones: others may have been chosen after seeing the data.
fn check_looks(compared: &CompareResult, found: &mut Vec<Difference>) {
    let design = &compared.design;
    let planned =
        |counted: bool| looks::plan(design.pairs, design.alpha, measures::family(design.comparisons().len(), counted));
    // Whether instructions were requested is not stored; where they could not be counted, they were requested
    // nevertheless.
    let is_plan = looks::are_planned(design);
    if !is_plan {
        found.push(difference("design.looks", format!("{:?}", design.looks), format!("none, or {:?}", planned(true))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::verify::{json, made_again};
    use crate::compare::analysis;
    use crate::result::compare::{Decision, Pair, SideRecord};
    use crate::result::run::RunRecord;
    use crate::result::{Experiment, ResultFile, file, histogram};
    use serde_json::{Value, json};
    use stillgate_load::outcome;

    const PAIRS: usize = 16;

    fn run_of(us: u64, is_open: bool) -> RunRecord {
        let mut latencies = outcome::histogram();
        latencies.record_n(us * 1_000, 1_000).unwrap();
        let mut lateness = outcome::histogram();
        lateness.record_n(1_000, if is_open { 1_000 } else { 0 }).unwrap();
        let latencies = histogram::encode(&latencies).unwrap();
        RunRecord {
            elapsed_s: 1.0,
            requests: 1_000,
            rate_intended: is_open.then_some(1_000.0),
            rate_achieved: 1e6 / us as f64,
            missed_starts: Some(0),
            corrected: latencies.clone(),
            uncorrected: latencies,
            lateness: histogram::encode(&lateness).unwrap(),
            generator_pauses_s: Some(0.0),
            generator_pause_longest_s: Some(0.0),
            ..RunRecord::default()
        }
    }

    fn side(us: u64) -> SideRecord {
        let (saturation, rated) = (run_of(us, false), run_of(us, true));
        SideRecord { saturation, cpu_us_per_request: us as f64, rated, rss_kib: 10_000 + us }
    }

    /// A comparison in which B is a tenth slower, as a file would have it.
    fn compare_file(arguments: &[&str]) -> Value {
        let design = json!({
            "pairs": PAIRS, "looks": [], "alpha": 0.01, "power": 0.9, "margin": 0.05, "deciding": ["cpu"], "warm_up_s": 0.1,
            "saturation_s": 1.0, "rate_s": 1.0, "rate": 1_000.0, "connections": 8, "late_s": 0.001, "seed": 5,
            "placement": {"target_cpus": [0], "load_cpus": [1]},
        });
        let design = serde_json::from_value(design).unwrap();
        let pairs: Vec<Pair> = (0u64..)
            .zip(run::round_orders(&design))
            .map(|(number, order)| Pair {
                first: order[0],
                order: Vec::new(),
                a: side(200 + number),
                b: side(220 + number * 2),
                others: Vec::new(),
            })
            .collect();
        let analysis = analysis::analyse(&design, &pairs, None, None).unwrap();
        let subject = json!({"name": "x", "version": null, "command": [], "configuration": null, "binary_sha256": null,
            "revision": null});
        let result = json!({"design": design, "a": subject, "b": subject, "pairs": pairs, "instructions": null,
            "instructions_missing": "--no-instructions was given", "analysis": analysis});
        let result = Experiment::Compare(Box::new(serde_json::from_value(result).unwrap()));
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        json(&ResultFile::new(arguments, crate::result::run::Environment::default(), result)).unwrap()
    }

    fn found(file: &Value) -> Vec<String> {
        let verified = made_again(file::parse(&file.to_string()).unwrap()).unwrap();
        verified.differences.into_iter().map(|difference| difference.path).collect()
    }

    #[test]
    fn a_changed_comparison_is_found() {
        let typed = ["compare", "a", "b", "--pairs", "16", "--alpha", "0.01", "--deciding", "cpu"];
        assert_eq!(found(&compare_file(&typed)), Vec::<String>::new());
        let check = |pointer: &str, change: fn(&mut Value), path: &str| {
            let mut file = compare_file(&typed);
            change(file.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")));
            let found = found(&file);
            assert!(found.iter().any(|difference| difference == path), "{pointer}: {found:?}");
        };
        check("/analysis/decision", |value| *value = "not_worse".into(), "analysis.decision");
        check("/analysis/sentence", |value| *value = "B is not worse.".into(), "analysis.sentence");
        check("/analysis/measures/0/p_value", |value| *value = 1.into(), "analysis.measures[0].p_value");
        check("/analysis/void_pairs", |value| *value = 1.into(), "analysis.void_pairs");
        let other: fn(&mut Value) = |first| *first = if *first == "a" { "b" } else { "a" }.into();
        check("/pairs/3/first", other, "pairs[3].first");
        check("/design/seed", |value| *value = 6.into(), "pairs[2].first");
        check("/design/looks", |value| *value = json!([3, 16]), "design.looks");
        check("/design/pairs", |value| *value = 12.into(), "pairs");
        check("/design/pairs", |value| *value = 12.into(), "design.pairs");
        check("/design/alpha", |value| *value = 0.2.into(), "design.alpha");
        check("/design/deciding", |value| *value = json!(["rss"]), "design.deciding");
        check("/pairs/3/a/rated/void", |value| *value = json!(["late"]), "pairs[3].a.rated.void");
        check("/pairs/3/b/saturation/void", |value| *value = json!(["late"]), "pairs[3].b.saturation.void");
        check("/pairs/3/b/rated/requests", |value| *value = 0.into(), "pairs[3].b.rated.void");
        let late = |value: &mut Value| {
            let mut lateness = outcome::histogram();
            lateness.record_n(2_000_000, 100).unwrap();
            *value = json(&histogram::encode(&lateness).unwrap()).unwrap();
        };
        check("/pairs/3/b/rated/lateness", late, "pairs[3].b.rated.void");
    }

    #[test]
    fn a_changed_comparison_of_three_is_found() {
        let whole = three();
        assert_eq!(found(&whole), Vec::<String>::new());
        let check = |pointer: &str, change: fn(&mut Value), path: &str| {
            let mut file = whole.clone();
            change(file.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")));
            let found = found(&file);
            assert!(found.iter().any(|difference| difference == path), "{pointer}: {found:?}");
        };
        check("/pairs/2/order", |order| order.as_array_mut().unwrap().swap(1, 2), "pairs[2].order");
        check("/pairs/2/others/0/rated/void", |void| *void = json!(["late"]), "pairs[2].c.rated.void");
        let judged = "analysis.comparisons";
        check("/design/every_pair", |every| *every = false.into(), judged);
        check("/pairs/2/others/0/cpu_us_per_request", |cpu| *cpu = 1.into(), &format!("{judged}[1].measures[1].low"));
        check("/analysis/comparisons/1/decision", |value| *value = "void".into(), &format!("{judged}[1].decision"));
        let mut without = whole.clone();
        without["pairs"][4]["others"] = json!([]);
        let error = made_again(file::parse(&without.to_string()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("no record of C"), "{error}");
    }

    /// A, a B like it, and a slower C, all compared with each other.
    fn three() -> Value {
        let mut file = compare_file(&[]);
        file["design"]["builds"] = 3.into();
        file["design"]["every_pair"] = true.into();
        file["others"] = json!([file["a"]]);
        let design = serde_json::from_value(file["design"].clone()).unwrap();
        let pairs = (0u64..).zip(run::round_orders(&design)).map(|(number, order)| Pair {
            first: order[0],
            order,
            a: side(200 + number),
            b: side(200 + number * 3 % 16),
            others: vec![side(220 + number * 2)],
        });
        let pairs: Vec<Pair> = pairs.collect();
        let analysis = analysis::analyse(&design, &pairs, None, None).unwrap();
        let decisions: Vec<Decision> = analysis.comparisons.iter().map(|judged| judged.analysis.decision).collect();
        assert_eq!(decisions, [Decision::NotWorse, Decision::Worse, Decision::Worse]);
        assert_eq!(analysis.sentence, "C is worse than A; B is not worse than A (16 rounds).");
        (file["pairs"], file["analysis"]) = (json(&pairs).unwrap(), json(&analysis).unwrap());
        file
    }

    #[test]
    fn either_side_may_go_first() {
        let file = file::parse(&compare_file(&[]).to_string()).unwrap();
        let Experiment::Compare(compared) = file.experiment else { panic!("it is of this kind") };
        let first = compared.pairs.iter().filter(|pair| pair.first == Side::A).count();
        assert_eq!(first, PAIRS / 2);
    }
}
