//! A part of the programs measured by itself, compared with its cost inside.
//!
//! A micro-benchmark may show nothing although the part became slower in its place, because its surroundings changed:
//! caches, inlining, its arguments.

use crate::bisect::measurement::CommandContext;
use crate::bisect::{MeasureOutcome, in_unit, measure_once};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::result::explain::{ExplainResult, IsolatedChange, IsolatedPart, ProgramProfile, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stillgate_stats::{hodges_lehmann, log_ratios, two_sample_t};

/// A longer measurement has failed.
const LIMIT: Duration = Duration::from_secs(600);

/// Confidence of the ranges shown.
const CONFIDENCE: f64 = 0.95;

/// Probability that both are reported to disagree although they do not.
const ERROR: f64 = 0.01;

/// A part and the command that measures it, as typed: `NAME=COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    name: String,
    command: String,
}

pub(crate) fn part(text: &str) -> Result<Part, String> {
    match text.split_once('=') {
        Some((name, command)) if !name.is_empty() && command.contains("{}") => {
            Ok(Part { name: name.to_owned(), command: command.to_owned() })
        }
        _ => Err("write a part of a function's name and a command that measures it, with {} for A and B: \
                  find='./bench-{} find'"
            .to_owned()),
    }
}

/// Measures a part of both programs in alternation, `count` times each; fewer, but equally often, if the user
/// interrupts.
pub(crate) fn measure(
    part: &Part,
    programs: &[String; 2],
    count: usize,
    stop: &AtomicBool,
    progress: &mut Progress,
) -> Result<IsolatedPart> {
    let folder = std::env::current_dir().map_err(|error| Error::new(format!("the current folder: {error}")))?;
    let place = CommandContext { folder, environment: Vec::new() };
    let (mut taken, mut unit) = ([Vec::new(), Vec::new()], None);
    'rounds: for number in 0..count {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        progress.step(&format!("{} by itself, {} of {count}", part.name, number + 1));
        // A B B A: a drift is equal for both.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let words = part.command.replace("{}", &programs[side]);
            match in_unit(measure_once(&words, &place, LIMIT, stop)?, &mut unit) {
                MeasureOutcome::Value(printed) => taken[side].push(printed.value),
                MeasureOutcome::Failed(why) | MeasureOutcome::Skipped(why) => {
                    return Err(Error::new(format!("--isolated {}: {}: {why}", part.name, ["A", "B"][side])));
                }
                MeasureOutcome::Stopped => break 'rounds,
            }
        }
    }
    let whole = taken[0].len().min(taken[1].len());
    let [a, b] = taken.map(|mut values| {
        values.truncate(whole);
        values
    });
    Ok(IsolatedPart { name: part.name.clone(), command: part.command.clone(), a, b })
}

/// The changes of each part by itself and inside.
pub(super) fn compare(result: &ExplainResult) -> Vec<IsolatedChange> {
    result.isolated.iter().map(|isolated| change(isolated, &result.cpu.a, &result.cpu.b)).collect()
}

fn change(isolated: &IsolatedPart, a: &ProgramProfile, b: &ProgramProfile) -> IsolatedChange {
    let alone = log_ratios(&isolated.a, &isolated.b);
    let inside = log_ratios(&costs(a, &isolated.name), &costs(b, &isolated.name));
    let range = |ratios: &Option<Vec<f64>>| {
        let estimate = hodges_lehmann(ratios.as_deref()?, CONFIDENCE)?;
        let of = |log: f64| log.exp_m1();
        let interval = estimate.interval;
        Some(Range { value: of(estimate.value), low: of(interval.low), high: of(interval.high) })
    };
    let tested = alone
        .as_deref()
        .zip(inside.as_deref())
        .and_then(|(alone, inside)| two_sample_t(alone, inside, 0.0, CONFIDENCE));
    IsolatedChange {
        name: isolated.name.clone(),
        isolated: range(&alone),
        inside: range(&inside),
        p_value: tested.map(|tested| tested.p_value),
        disagree: tested.is_some_and(|tested| tested.p_value <= ERROR),
    }
}

/// For each slice, the cost of the stacks with such a function per unit of work.
fn costs(side: &ProgramProfile, name: &str) -> Vec<f64> {
    let is_named: Vec<bool> = side.functions.iter().map(|function| function.contains(name)).collect();
    let stacks: Vec<_> =
        side.stacks.iter().filter(|stack| stack.functions.iter().any(|number| is_named[*number])).collect();
    let spent = |slice: usize| stacks.iter().map(|stack| stack.spent[slice] as f64).sum::<f64>();
    side.work.iter().enumerate().map(|(slice, work)| spent(slice) / work).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::explain::Stack;

    fn side(cost: i64) -> ProgramProfile {
        let spent = (0..10).map(|slice| cost + slice % 3).collect();
        let stacks = vec![Stack { functions: vec![0, 1], spent }];
        ProgramProfile {
            work: vec![2.0; 10],
            functions: vec!["main".into(), "route::find".into()],
            stacks,
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_part_that_is_slower_only_inside_disagrees() {
        let times = |each: f64| (0..10).map(|turn| each + f64::from(turn % 2) * 0.01).collect::<Vec<f64>>();
        let isolated =
            |a: f64, b: f64| IsolatedPart { name: "find".to_owned(), command: String::new(), a: times(a), b: times(b) };
        let only_inside = change(&isolated(5.0, 5.0), &side(100), &side(130));
        assert!(only_inside.disagree, "{only_inside:?}");
        assert!((only_inside.inside.unwrap().value - 0.3).abs() < 0.02, "{only_inside:?}");
        let both = change(&isolated(5.0, 6.5), &side(100), &side(130));
        assert!(!both.disagree, "{both:?}");
        let nowhere = change(&IsolatedPart { name: "absent".to_owned(), ..isolated(5.0, 5.0) }, &side(100), &side(130));
        assert_eq!((nowhere.inside, nowhere.disagree), (None, false));
    }

    #[test]
    fn what_is_typed_needs_a_name_and_a_place_for_the_program() {
        assert!(part("find={} --bench").is_ok());
        assert!(part("={}").is_err() && part("find=./bench").is_err() && part("find").is_err());
    }
}
