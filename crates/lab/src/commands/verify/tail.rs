//! Checks the blocks of a tail experiment against what was decided before its first block: a cell left out, an order
//! chosen after seeing the data, or a pair more or less than the rule requires would show only what pleases.

use super::runs::{self, Rules};
use super::{Difference, difference};
use crate::error::Result;
use crate::result::tail::{Arm, Block, Cell, CellPlan, TailResult};
use crate::tail::spare_pairs::LatePairs;
use crate::tail::{design, run};
use std::time::Duration;
use stillgate_load::Bounds;

/// Clocks are adjusted, and a block's measured time comes from another clock than its beginning.
const CLOCK_SLACK_S: f64 = 0.25;

pub(super) fn check(tail: &TailResult, found: &mut Vec<Difference>) -> Result {
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
            runs::check(&format!("{path}.run"), &block.run, &rules, found)?;
            runs::check_points(&path, &block.run, &block.points, found)?;
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
            let planned = planned.map_or("the design has no cell like this".to_owned(), run::title_of);
            found.push(difference(format!("cells[{index}]"), run::title_of(&as_planned(cell)), planned));
        }
    }
    let last = tail.cells.last().map_or(0, |cell| cell.number);
    for (number, planned) in plan.iter().enumerate().take(last) {
        let title = run::title_of(planned);
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
    let title = run::title_of(planned);
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
mod tests {
    use super::super::made_again;
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
        let found = made_again(file).unwrap().differences;
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
            let title = run::title_of(&tail.design.plan[0]);
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
        let found = made_again(file).unwrap().differences;
        assert!(found.iter().any(|difference| difference.path == "analysis.cells[0].verdict"), "{found:?}");
    }
}
