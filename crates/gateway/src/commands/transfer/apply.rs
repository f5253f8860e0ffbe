//! `stillgate apply`: makes the resources of a running gateway those of a file, in batches that succeed or fail as a whole.
//!
//! And `stillgate diff`: what differs between a file and the resources of a running gateway.

use super::export::{counted, some};
use super::plan::{BatchBounds, StepKind, TransferPlan, TransferStep, plan};
use super::remote::{BatchRefusal, Blame, Remote};
use super::resources::{Resources, path_of};
use super::{TransferFailure, resources};
use crate::commands::cli::{Apply, Diff, EXIT_DIFFERS, EXIT_ERRORS, EXIT_GOOD};
use crate::commands::stdout::show;
use serde_json::Value as Json;
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often long work says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Changes that are listed one by one; of more only the numbers are.
const LISTED_MAX: usize = 1000;

/// Runs the command; returns the exit code.
pub(crate) fn apply(arguments: &Apply) -> u8 {
    run_apply(arguments).unwrap_or_else(|failure| failure.report())
}

fn run_apply(arguments: &Apply) -> Result<u8, TransferFailure> {
    let text = resources::file_text(&arguments.file)?;
    let remote = Remote::new("--to", &arguments.to, &arguments.asking)?;
    let (there, bounds) = remote.read_all()?;
    // What is going to be deleted cannot be referred to.
    let stays = if arguments.prune { &Resources::new() } else { &there };
    let resources = resources::read_file(&arguments.file, &text, stays)?;
    let plan = compared(&arguments.file, &resources, &there, arguments.prune, bounds)?;
    warn_of_order(&plan);
    if !plan.gaps.is_empty() {
        return Err(TransferFailure::Failed(opened(&plan)));
    }
    if arguments.dry_run {
        return Ok(try_out(&arguments.file, &remote, &plan));
    }
    Ok(make(&arguments.file, &remote, &plan))
}

/// Warns of routes that will be tried in another order than in the file.
fn warn_of_order(plan: &TransferPlan) {
    if !plan.reordered.is_empty() {
        eprintln!(
            "stillgate: warning: the gateway will try routes with the same path in another order than the file lists them: {}. In each \
             pair the second route has a plugin that the first lacks. The older route is tried first; of two new ones, the one with \
             the lesser id. Set `priority` to choose the order",
            some(&plan.reordered)
        );
    }
}

/// Why the changes are not made.
fn opened(plan: &TransferPlan) -> String {
    format!(
        "{} changes take {} batches, and between two of them guards would be missing, whatever the order: {}. Apply first a file \
         with these plugins in their old places and in their new ones",
        plan.steps.len(),
        plan.batches().len(),
        some(&plan.gaps)
    )
}

/// Shows what would be done. What the gateway thinks of it can be asked only for changes that are made together.
fn try_out(file: &Path, remote: &Remote, plan: &TransferPlan) -> u8 {
    list(&plan.steps, plan);
    let batches = plan.batches();
    if let [batch] = batches[..] {
        match remote.batch(&operations(batch), "?dry_run=true") {
            Ok(answered) => {
                let texts = |list: &Json| list.as_array().cloned().unwrap_or_default();
                let mut warnings = Warnings::default();
                for warning in texts(&answered.body["warnings"]) {
                    warnings.print(warning.as_str().unwrap_or_default());
                }
                for effect in texts(&answered.body["effects"]) {
                    let text = |name: &str| effect[name].as_str().unwrap_or_default().to_owned();
                    warnings.print(&format!("{}: {}", text("key"), text("effect")));
                }
            }
            Err(refused) => {
                eprintln!("stillgate: would be refused: {}", explained(file, batch, &refused));
                return EXIT_ERRORS;
            }
        }
    }
    show(format_args!("dry run, nothing changed: {}\n", summary(&plan.steps, plan, "would be ")));
    EXIT_GOOD
}

/// Makes one batch after the other, until one is refused.
fn make(file: &Path, remote: &Remote, plan: &TransferPlan) -> u8 {
    let batches = plan.batches();
    let (mut made, mut said) = (0, Instant::now());
    let mut warnings = Warnings::default();
    for (index, batch) in batches.iter().enumerate() {
        // The gateway serves all of them when it answers the last one.
        let query = if index + 1 == batches.len() { "" } else { "?wait=stored" };
        match remote.batch(&operations(batch), query) {
            Ok(answered) => {
                answered.warnings.iter().for_each(|warning| warnings.print(warning));
                list(batch, plan);
                made += batch.len();
            }
            Err(refused) => {
                eprintln!("stillgate: {}", explained(file, batch, &refused));
                eprintln!("stillgate: {}", stopped(made, plan.steps.len(), refused.blame));
                show(format_args!("{}\n", summary(&plan.steps[..made], plan, "")));
                return EXIT_ERRORS;
            }
        }
        if said.elapsed() >= PROGRESS_EVERY && made < plan.steps.len() {
            said = Instant::now();
            eprintln!("{made} of {} changes made", plan.steps.len());
        }
    }
    show(format_args!("{}\n", summary(&plan.steps, plan, "")));
    EXIT_GOOD
}

/// What the gateway has warned of: each batch may be a reason for the same warning, which is printed once.
#[derive(Default)]
struct Warnings(HashSet<String>);

impl Warnings {
    fn print(&mut self, warning: &str) {
        if self.0.insert(warning.to_owned()) {
            eprintln!("stillgate: warning: {warning}");
        }
    }
}

/// How far it went, and what to do.
fn stopped(made: usize, all: usize, blame: Blame) -> String {
    let left = all - made;
    let then = match blame {
        Blame::Sent => "Fix the file and run apply again",
        Blame::Address if made == 0 => "Check --to",
        Blame::Gateway | Blame::Address => "When the gateway takes changes again, run apply again",
    };
    format!(
        "stopped: {made} of {all} changes were made, {left} were not; a batch is made as a whole or not at all. {then}"
    )
}

fn operations(batch: &[TransferStep]) -> Vec<&Json> {
    batch.iter().map(|step| &step.operation).collect()
}

fn list(steps: &[TransferStep], plan: &TransferPlan) {
    if plan.steps.len() <= LISTED_MAX {
        show(steps.iter().map(line).collect::<String>());
    }
}

/// Why a batch was refused, with the place of the resource in the file.
fn explained(file: &Path, batch: &[TransferStep], refused: &BatchRefusal) -> String {
    if let Some(step) = refused.operation.and_then(|index| batch.get(index)) {
        return format!("{}: {}", place(file, step), refused.message);
    }
    // What is refused only among others is named by its message.
    let message =
        refused.message.rsplit_once("invalid configuration: ").map_or(&*refused.message, |(_, message)| message);
    let named = batch.iter().find_map(|step| {
        let reason = message.strip_prefix(&path_of(&step.name))?.strip_prefix(": ")?;
        Some((step, reason))
    });
    match (named, batch) {
        (Some((step, reason)), _) => format!("{}: {reason}", place(file, step)),
        (None, [step]) => format!("{}: {message}", place(file, step)),
        (None, _) => refused.message.clone(),
    }
}

fn place(file: &Path, step: &TransferStep) -> String {
    match step.at {
        Some((line, column)) => format!("{}:{line}:{column}: {}", file.display(), path_of(&step.name)),
        None => path_of(&step.name),
    }
}

fn summary(made: &[TransferStep], plan: &TransferPlan, would: &str) -> String {
    let [created, changed, deleted] = numbers(made);
    let mut text = format!(
        "{created} {would}created, {changed} {would}changed, {deleted} {would}deleted, {} unchanged",
        plan.unchanged
    );
    if !plan.extra.is_empty() {
        let names: Vec<String> = plan.extra.iter().map(path_of).collect();
        text.push_str(&format!("; {} not in the file (delete with --prune): {}", counted(names.len()), some(&names)));
    }
    text
}

/// Runs the command; returns the exit code.
pub(crate) fn diff(arguments: &Diff) -> u8 {
    match run_diff(arguments) {
        Ok(plan) => {
            warn_of_order(&plan);
            let lines: String = plan.steps.iter().map(line).collect();
            show(format_args!("{lines}{}\n", summary_of_differences(&plan)));
            if plan.steps.is_empty() { EXIT_GOOD } else { EXIT_DIFFERS }
        }
        Err(failure) => failure.report(),
    }
}

fn run_diff(arguments: &Diff) -> Result<TransferPlan, TransferFailure> {
    let text = resources::file_text(&arguments.file)?;
    let (there, bounds) = Remote::new("--to", &arguments.to, &arguments.asking)?.read_all()?;
    let resources = resources::read_file(&arguments.file, &text, &there)?;
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
    plan(here, there, prunes, bounds).map_err(|masked| resources::refused_masks(path, &masked))
}

/// One change, as people read it.
pub(super) fn line(step: &TransferStep) -> String {
    let path = path_of(&step.name);
    match &step.kind {
        StepKind::Create => format!("+ {path}\n"),
        StepKind::Delete => format!("- {path}\n"),
        StepKind::Change(differences) => {
            let places: String = differences.iter().map(|difference| format!("    {difference}\n")).collect();
            format!("~ {path}\n{places}")
        }
    }
}

fn summary_of_differences(plan: &TransferPlan) -> String {
    let [created, changed, deleted] = numbers(&plan.steps);
    format!("{created} only in the file, {changed} different, {deleted} only in the gateway, {} equal", plan.unchanged)
}

/// How many are created, changed and deleted.
pub(super) fn numbers(steps: &[TransferStep]) -> [usize; 3] {
    let count = |is_one: fn(&StepKind) -> bool| steps.iter().filter(|step| is_one(&step.kind)).count();
    [
        count(|what| *what == StepKind::Create),
        count(|what| matches!(what, StepKind::Change(_))),
        count(|what| *what == StepKind::Delete),
    ]
}
