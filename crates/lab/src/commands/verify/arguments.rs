//! The typed arguments, checked against the design: the figures that decide how large a difference counts must be those
//! that were requested.
//!
//! Only typed options are compared, and only those that this version understands: another one may have had other
//! options.

use super::{Difference, difference};
use crate::cli::Cli;
use crate::result::tail::TailDesign;
use crate::result::{Experiment, ResultFile};
use crate::tail::design::block_s;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _};
use std::fmt::Debug;
use std::time::Duration;

pub(super) fn check(result: &ResultFile, found: &mut Vec<Difference>) {
    if result.lab_version != env!("CARGO_PKG_VERSION") {
        return;
    }
    let words = std::iter::once("stillgate-lab").chain(result.arguments.iter().map(String::as_str));
    let Ok(matches) = Cli::command().try_get_matches_from(words) else { return };
    let Some((command, matches)) = matches.subcommand() else { return };
    let mut typed = TypedArguments { matches, found };
    match &result.experiment {
        Experiment::Tail(tail) if command == "tail" => {
            let design = &tail.design;
            typed.one("pairs", &(design.pairs as u64));
            typed.one("spares", &(design.spares as u64));
            typed.one("seed", &design.seed);
            typed.one("rate", &design.rate);
            typed.one("connections", &design.connections);
            typed.one("block", &Duration::from_secs_f64(design.block_s));
            typed.hours(design);
            typed.one("late_share", &design.late_share_max);
        }
        Experiment::Compare(compared) if command == "compare" => {
            let design = &compared.design;
            typed.one("pairs", &design.pairs);
            typed.one("seed", &design.seed);
            typed.one("alpha", &design.alpha);
            typed.one("power", &design.power);
            typed.one("margin", &design.margin);
            typed.one("connections", &design.connections);
            typed.many("deciding", &design.deciding);
        }
        Experiment::Bisect(bisected) if command == "bisect" => {
            let design = &bisected.design;
            typed.one("confidence", &design.confidence);
            typed.one("min_effect", &design.min_effect);
            typed.one("measure", &design.measure);
            typed.one("higher_is_better", &design.higher_is_better);
            typed.many("prior_paths", &design.prior_paths);
        }
        Experiment::Devices(played) if command == "devices" => {
            let design = &played.design;
            typed.one("count", &design.devices);
            typed.one("connect_rate", &design.connect_rate);
            typed.one("churn", &design.churn);
            typed.one("alpha", &design.alpha);
            typed.one("margin", &design.margin);
        }
        Experiment::Explain(explained) if command == "explain" => {
            let design = &explained.design;
            typed.one("slices", &design.slices);
            typed.one("hz", &design.hz);
            typed.one("seed", &design.seed);
            typed.one("confidence", &design.confidence);
        }
        Experiment::Figures(table) if command == table.experiment => typed.one("rounds", &table.planned),
        Experiment::Load(load) if command == "load" => {
            typed.one("seed", &load.seed);
            typed.one("connections", &load.connections);
            if let Some(design) = &load.design {
                typed.one("requests", &(design.requests.unwrap_or(0) as usize));
                typed.one("streams", &design.streams.unwrap_or(1));
            }
        }
        _ => found.push(difference("arguments", command, "those of the experiment that is in the file")),
    }
}

struct TypedArguments<'a> {
    matches: &'a ArgMatches,
    found: &'a mut Vec<Difference>,
}

impl TypedArguments<'_> {
    fn one<T: Clone + Debug + PartialEq + Send + Sync + 'static>(&mut self, id: &str, kept: &T) {
        if !self.is_typed(id) {
            return;
        }
        if let Ok(Some(typed)) = self.matches.try_get_one::<T>(id)
            && typed != kept
        {
            self.found.push(difference(format!("design.{id}"), format!("{kept:?}"), format!("{typed:?}, as typed")));
        }
    }

    fn many<T: Clone + Debug + PartialEq + Send + Sync + 'static>(&mut self, id: &str, kept: &[T]) {
        if !self.is_typed(id) {
            return;
        }
        if let Ok(Some(typed)) = self.matches.try_get_many::<T>(id) {
            let typed: Vec<T> = typed.cloned().collect();
            if typed != kept {
                self.found.push(difference(
                    format!("design.{id}"),
                    format!("{kept:?}"),
                    format!("{typed:?}, as typed"),
                ));
            }
        }
    }

    /// Blocks are as long as the hours make them. Files of the first versions have no plan and no hours.
    fn hours(&mut self, design: &TailDesign) {
        if let Ok(Some(hours)) = self.matches.try_get_one::<f64>("hours")
            && let Ok(block_s) = block_s(design, design.plan.len(), *hours)
            && block_s != design.block_s
        {
            self.found.push(difference("design.block_s", design.block_s, format!("{block_s}, by --hours {hours}")));
        }
    }

    fn is_typed(&self, id: &str) -> bool {
        self.matches.try_contains_id(id).is_ok_and(|is| is)
            && self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }
}
