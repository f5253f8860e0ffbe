//! What of a tail experiment was decided before its first block, held against the blocks there are: a cell that is left out, or an
//! order that was chosen with the data in view, would show only what pleases.

use super::runs::{self, Rules};
use super::{Difference, difference};
use crate::error::Result;
use crate::result::tail::{Arm, Block, Cell, Planned, TailResult};
use crate::tail::{design, run};
use std::time::Duration;
use stillgate_load::Bounds;

/// Clocks are set, and a block's measured time is told by another one than its beginning.
const CLOCK_SLACK_S: f64 = 0.25;

pub(super) fn check(tail: &TailResult, found: &mut Vec<Difference>) -> Result {
    check_plan(tail, found);
    check_order(tail, found);
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

/// Cells are those of the plan, in its order. One that is missing must have failed, unless the experiment ended before it.
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
            let planned = planned.map_or("no such cell is in the design".to_owned(), run::title_of);
            found.push(difference(format!("cells[{index}]"), run::title_of(&as_planned(cell)), planned));
        }
    }
    let last = tail.cells.last().map_or(0, |cell| cell.number);
    for (number, planned) in plan.iter().enumerate().take(last) {
        let title = run::title_of(planned);
        let is_there = tail.cells.iter().any(|cell| cell.number == number);
        let has_failed = tail.failures.iter().any(|failure| failure.starts_with(&title));
        if !is_there && !has_failed {
            found.push(difference(
                "cells",
                format!("{title}: neither measured nor failed"),
                "planned, and later ones were run",
            ));
        }
    }
}

/// The blocks must have been run in the order that the seed gives: another one could have been chosen with the data in view.
fn check_order(tail: &TailResult, found: &mut Vec<Difference>) {
    let words = |(pair, arm): (usize, Arm)| format!("pair {pair} {arm:?}").to_lowercase();
    for (index, cell) in tail.cells.iter().enumerate() {
        let planned = design::order(tail.design.seed, cell.number, tail.design.pairs);
        for (number, block) in cell.blocks.iter().enumerate() {
            let drawn = planned.get(number).copied();
            if drawn != Some((block.pair, block.arm)) {
                found.push(difference(
                    format!("cells[{index}].blocks[{number}]"),
                    words((block.pair, block.arm)),
                    drawn.map_or("no such block is in the design".to_owned(), words),
                ));
            }
        }
    }
}

/// One block after the other.
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

fn as_planned(cell: &Cell) -> Planned {
    Planned { name: cell.subject.name.clone(), series: cell.series_asked, scrape_every_s: cell.scrape_every_s }
}
