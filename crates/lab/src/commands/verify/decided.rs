//! Checks the pairs of a comparison and the blocks of a tail experiment against what was decided before the first of them: a
//! cell left out, an order chosen after seeing the data, or a pair more or less than the rule requires would show only what
//! pleases.

use super::load::{self, Rules};
use super::{Difference, difference};
use crate::compare::{self, measures, rules};
use crate::error::Result;
use crate::result::compare::{CompareResult, Side};
use crate::result::tail::{Arm, Block, Cell, CellPlan, TailResult};
use crate::tail;
use crate::tail::design::{self, LatePairs};
use std::time::Duration;
use stillgate_load::Bounds;

pub(super) fn check_pairs(compared: &CompareResult, found: &mut Vec<Difference>) -> Result {
    let design = &compared.design;
    for (number, (pair, drawn)) in compared.pairs.iter().zip(compare::round_orders(design)).enumerate() {
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
                    load::check_run(&format!("pairs[{number}].{side}.{what}"), run, &rules, found)?;
                }
            }
        }
    }
    Ok(())
}

/// Looks are none or the planned ones: others may have been chosen after seeing the data.
fn check_looks(compared: &CompareResult, found: &mut Vec<Difference>) {
    let design = &compared.design;
    let planned = |counted: bool| {
        rules::planned_looks(design.pairs, design.alpha, measures::family(design.comparisons().len(), counted))
    };
    // Whether instructions were requested is not stored; where they could not be counted, they were requested
    // nevertheless.
    let is_plan = rules::looks_are_planned(design);
    if !is_plan {
        found.push(difference("design.looks", format!("{:?}", design.looks), format!("none, or {:?}", planned(true))));
    }
}

/// Clocks are adjusted, and a block's measured time comes from another clock than its beginning.
const CLOCK_SLACK_S: f64 = 0.25;

pub(super) fn check_blocks(tail: &TailResult, found: &mut Vec<Difference>) -> Result {
    check_plan(tail, found);
    check_order(tail, found)?;
    check_times(tail, found);
    let rules = Rules {
        late: Bounds::default().late,
        late_share_max: tail.design.late_share_max,
        duration: Duration::from_secs_f64(tail.design.block_s),
    };
    for (index, cell) in tail.cells.iter().enumerate() {
        for (number, block) in cell.blocks.iter().enumerate() {
            let path = format!("cells[{index}].blocks[{number}]");
            load::check_run(&format!("{path}.run"), &block.run, &rules, found)?;
            load::check_points(&path, &block.run, &block.points, found)?;
        }
    }
    Ok(())
}

/// Cells are those of the plan, in its order. A missing one must have failed, unless the experiment ended before it.
fn check_plan(tail: &TailResult, found: &mut Vec<Difference>) {
    let plan = &tail.design.plan;
    for (index, two) in tail.cells.windows(2).enumerate() {
        if two[1].number <= two[0].number {
            found.push(difference(
                format!("cells[{}].number", index + 1),
                two[1].number,
                format!("more than {}, that of the cell before it", two[0].number),
            ));
        }
    }
    // Files of the first versions have none.
    if plan.is_empty() {
        return;
    }
    for (index, cell) in tail.cells.iter().enumerate() {
        let planned = plan.get(cell.number);
        if planned != Some(&as_planned(cell)) {
            let planned = planned.map_or("the design has no cell like this".to_owned(), tail::title_of);
            found.push(difference(format!("cells[{index}]"), tail::title_of(&as_planned(cell)), planned));
        }
    }
    let last = tail.cells.last().map_or(0, |cell| cell.number);
    for (number, planned) in plan.iter().enumerate().take(last) {
        let title = tail::title_of(planned);
        let is_there = tail.cells.iter().any(|cell| cell.number == number);
        if !is_there && !has_failed(tail, planned) {
            found.push(difference(
                "cells",
                format!("{title}: neither measured nor failed"),
                "planned, and later ones were run",
            ));
        }
    }
}

fn has_failed(tail: &TailResult, planned: &CellPlan) -> bool {
    let title = tail::title_of(planned);
    tail.failures.iter().any(|failure| failure.starts_with(&title))
}

/// The blocks must have been run in the order that the seed gives, and as many of them as are due: others could have
/// been chosen after seeing the data. If the experiment ended or the cell failed before, the verdict says that it is
/// unfinished.
fn check_order(tail: &TailResult, found: &mut Vec<Difference>) -> Result {
    let words = |(pair, arm): (usize, Arm)| format!("pair {pair} {arm:?}").to_lowercase();
    for (index, cell) in tail.cells.iter().enumerate() {
        let due = LatePairs::of(&tail.design, &cell.blocks)
            .map_err(|error| error.context(format_args!("cells[{index}]")))?
            .due(&tail.design);
        let planned = design::order(tail.design.seed, cell.number, tail.design.pairs + tail.design.spares);
        let is_last = index + 1 == tail.cells.len();
        // Files of the first versions have no plan, so no cell of it can be said to have failed.
        if !is_last
            && cell.blocks.len() < 2 * due
            && !tail.design.plan.is_empty()
            && !has_failed(tail, &as_planned(cell))
        {
            found.push(difference(
                format!("cells[{index}].blocks"),
                format!("{} blocks", cell.blocks.len()),
                format!("{} blocks, {due} pairs being due, since later cells were run", 2 * due),
            ));
        }
        for (number, block) in cell.blocks.iter().enumerate() {
            let drawn = planned.get(number).copied().filter(|(pair, _)| *pair < due);
            if drawn != Some((block.pair, block.arm)) {
                found.push(difference(
                    format!("cells[{index}].blocks[{number}]"),
                    words((block.pair, block.arm)),
                    drawn.map_or(format!("no block like this: by design and void blocks, {due} pairs are due"), words),
                ));
            }
        }
    }
    Ok(())
}

/// Blocks follow each other in time.
fn check_times(tail: &TailResult, found: &mut Vec<Difference>) {
    let blocks = || {
        let cells = tail.cells.iter().enumerate();
        cells
            .flat_map(|(index, cell)| cell.blocks.iter().enumerate().map(move |(number, block)| (index, number, block)))
    };
    for ((_, _, before), (index, number, block)) in blocks().zip(blocks().skip(1)) {
        let ended_s = end_s(before);
        if block.run.begun_unix_s + CLOCK_SLACK_S < ended_s {
            found.push(difference(
                format!("cells[{index}].blocks[{number}].run.begun_unix_s"),
                block.run.begun_unix_s,
                format!("after {ended_s}, the end of the block before it"),
            ));
        }
    }
}

fn end_s(block: &Block) -> f64 {
    block.run.begun_unix_s + block.run.elapsed_s
}

fn as_planned(cell: &Cell) -> CellPlan {
    CellPlan { name: cell.subject.name.clone(), series: cell.series_asked, scrape_every_s: cell.scrape_every_s }
}

#[cfg(test)]
mod pair_tests {
    use super::*;
    use crate::commands::verify::{json, verify_recomputed};
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
            .zip(compare::round_orders(&design))
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
        let verified = verify_recomputed(file::parse(&file.to_string()).unwrap()).unwrap();
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
        let error = verify_recomputed(file::parse(&without.to_string()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("no record of C"), "{error}");
    }

    /// A, a B like it, and a slower C, all compared with each other.
    fn three() -> Value {
        let mut file = compare_file(&[]);
        file["design"]["builds"] = 3.into();
        file["design"]["every_pair"] = true.into();
        file["others"] = json!([file["a"]]);
        let design = serde_json::from_value(file["design"].clone()).unwrap();
        let pairs = (0u64..).zip(compare::round_orders(&design)).map(|(number, order)| Pair {
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
        let sentence = &analysis.sentence;
        assert!(sentence.starts_with("C is worse than A: throughput -"), "{sentence}");
        assert!(sentence.ends_with("; B is not worse than A (16 rounds)."), "{sentence}");
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

#[cfg(test)]
mod block_tests {
    use super::super::verify_recomputed;
    use super::*;
    use crate::result::{Experiment, ResultFile};
    use crate::tail::{analysis, synthetic};

    /// Two cells of 9 pairs and up to 3 spare ones. The first cell has `done` pairs; the generator was late in those of
    /// `late`.
    fn file(done: usize, late: &[usize], change: impl FnOnce(&mut TailResult)) -> ResultFile {
        let mut file = synthetic::file(7, 9, 0.0);
        let Experiment::Tail(tail) = &mut file.experiment else { panic!("synthetic files are of this kind") };
        tail.cells[0] = synthetic::cell(&synthetic::design(7, done), 0, 0.0);
        tail.cells[0].blocks.iter_mut().filter(|block| late.contains(&block.pair)).for_each(synthetic::make_late);
        tail.design.spares = 3;
        change(tail);
        tail.analysis = analysis::analyse(&tail.design, &tail.cells).unwrap();
        file
    }

    fn check(file: ResultFile, paths: &[&str]) {
        let found = verify_recomputed(file).unwrap().differences;
        let found: Vec<&str> = found.iter().map(|difference| difference.path.as_str()).collect();
        assert_eq!(found, paths);
    }

    #[test]
    fn there_are_as_many_pairs_as_the_rule_asks_for() {
        check(file(9, &[], |_| {}), &[]);
        check(file(11, &[2, 5], |_| {}), &[]);
        check(file(12, &[2, 9, 10], |_| {}), &[]);
        check(file(12, &[2, 9, 10, 11], |_| {}), &[]);
        // One pair more, though enough were sound.
        check(file(10, &[], |_| {}), &["cells[0].blocks[18]", "cells[0].blocks[19]"]);
        check(file(10, &[9], |_| {}), &["cells[0].blocks[18]", "cells[0].blocks[19]"]);
        check(file(12, &[2, 5], |_| {}), &["cells[0].blocks[22]", "cells[0].blocks[23]"]);
        check(file(11, &[2, 5], |tail| tail.design.spares = 1), &["cells[0].blocks[20]", "cells[0].blocks[21]"]);
        // One pair less, though spares were left and later cells run.
        check(file(10, &[2, 5], |_| {}), &["cells[0].blocks"]);
        check(file(8, &[], |_| {}), &["cells[0].blocks"]);
        check(file(9, &[2], |_| {}), &["cells[0].blocks"]);
    }

    #[test]
    fn a_cell_that_was_ended_by_a_failure_or_a_stop_has_fewer() {
        let fail = |tail: &mut TailResult| {
            let title = tail::title_of(&tail.design.plan[0]);
            tail.failures.push(format!("{title}: it ended"));
        };
        check(file(9, &[2], fail), &[]);
        check(file(9, &[2], |tail| tail.cells.truncate(1)), &[]);
        check(file(9, &[2], |tail| tail.design.plan.clear()), &[]);
    }

    #[test]
    fn a_spare_that_is_taken_away_leaves_no_verdict() {
        let mut file = file(11, &[2, 5], |_| {});
        let Experiment::Tail(tail) = &mut file.experiment else { panic!("synthetic files are of this kind") };
        tail.cells[0].blocks.truncate(20);
        let found = verify_recomputed(file).unwrap().differences;
        assert!(found.iter().any(|difference| difference.path == "analysis.cells[0].verdict"), "{found:?}");
    }
}
