//! `stillgate diff`: what differs between a file and the resources of a running gateway.

use super::apply::warn_of_order;
use super::plan::{BatchBounds, TransferPlan, TransferStep, What, plan};
use super::remote::Remote;
use super::resources::{Resources, path_of};
use super::{TransferFailure, file};
use crate::commands::cli::{Diff, EXIT_DIFFERS, EXIT_GOOD};
use crate::commands::stdout::show;
use std::path::Path;

/// Runs the command; returns the exit code.
pub(crate) fn diff(arguments: &Diff) -> u8 {
    match run(arguments) {
        Ok(plan) => {
            warn_of_order(&plan);
            let lines: String = plan.steps.iter().map(line).collect();
            show(format_args!("{lines}{}\n", summary(&plan)));
            if plan.steps.is_empty() { EXIT_GOOD } else { EXIT_DIFFERS }
        }
        Err(failure) => failure.report(),
    }
}

fn run(arguments: &Diff) -> Result<TransferPlan, TransferFailure> {
    let text = file::text(&arguments.file)?;
    let (there, bounds) = Remote::new("--to", &arguments.to, &arguments.asking)?.read_all()?;
    let resources = file::read(&arguments.file, &text, &there)?;
    compared(&arguments.file, &resources, &there, true, bounds)
}

/// The differences between the gateway's resources and the file's.
pub(super) fn compared(
    path: &Path,
    here: &Resources,
    there: &Resources,
    prunes: bool,
    bounds: BatchBounds,
) -> Result<TransferPlan, TransferFailure> {
    plan(here, there, prunes, bounds).map_err(|masked| file::refused_masks(path, &masked))
}

/// One change, as people read it.
pub(super) fn line(step: &TransferStep) -> String {
    let path = path_of(&step.name);
    match &step.what {
        What::Create => format!("+ {path}\n"),
        What::Delete => format!("- {path}\n"),
        What::Change(differences) => {
            let places: String = differences.iter().map(|difference| format!("    {difference}\n")).collect();
            format!("~ {path}\n{places}")
        }
    }
}

fn summary(plan: &TransferPlan) -> String {
    let [created, changed, deleted] = numbers(&plan.steps);
    format!("{created} only in the file, {changed} different, {deleted} only in the gateway, {} equal", plan.unchanged)
}

/// How many are created, changed and deleted.
pub(super) fn numbers(steps: &[TransferStep]) -> [usize; 3] {
    let count = |is_one: fn(&What) -> bool| steps.iter().filter(|step| is_one(&step.what)).count();
    [
        count(|what| *what == What::Create),
        count(|what| matches!(what, What::Change(_))),
        count(|what| *what == What::Delete),
    ]
}
