//! One figure of one program, as `compare` measures it in pairs; for those who compare otherwise, as `bisect` and `nightly` do.

use super::instructions;
use super::measures::{self, INSTRUCTIONS, Measure};
use super::side::Running;
use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, SideRecord};
use crate::scraper;
use crate::target::{Spec, Upstream};
use serde::{Deserialize, Serialize};

/// What is read.
#[derive(Debug, Clone)]
pub(crate) enum Figure {
    /// A measure of `compare`.
    Measure(&'static Measure),
    /// By how much a metric of its exposition grows for 1,000 requests, summed over its series, plus 1: what is zero today
    /// has a ratio to tomorrow's, too.
    Metric(String),
    /// Resident memory after the load, without pages of files.
    Anonymous,
    /// The sum of a metric's series after the load, plus 1: of what is over once the program is warm.
    Level(String),
}

/// What a measure was read from, for those who keep it: the figure follows from the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RawReading {
    pub(crate) kind: RawKind,
    /// A measure of `compare`.
    pub(crate) measure: String,
    /// Of one start, with its histograms.
    pub(crate) record: SideRecord,
}

/// Tells these from other raw data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RawKind {
    #[serde(rename = "stillgate-lab measure")]
    Measure,
}

impl RawReading {
    /// None of what something else has left.
    pub(crate) fn parse(bytes: &[u8]) -> Option<RawReading> {
        serde_json::from_slice(bytes).ok()
    }

    /// Made again.
    pub(crate) fn figure(&self) -> Result<f64> {
        let measure = measures::named(&self.measure)
            .ok_or_else(|| Error::new(format!("there is no measure {:?}; use a newer stillgate-lab", self.measure)))?;
        measures::of_one(measure, &self.record)
    }
}

/// Starts the program, loads it and reads one figure; with what it was read from, where there are histograms.
pub(crate) fn read(
    figure: &Figure,
    spec: &Spec,
    upstream: &Upstream,
    design: &CompareDesign,
) -> Result<(f64, Option<RawReading>)> {
    let alone = |value: Result<f64>| Ok((value?, None));
    let measure = match figure {
        Figure::Metric(name) => return alone(metric(name, true, spec, upstream, design)),
        Figure::Anonymous => return alone(anonymous_kib(spec, upstream, design)),
        Figure::Level(name) => return alone(metric(name, false, spec, upstream, design)),
        Figure::Measure(measure) if measure.name == INSTRUCTIONS.name => {
            return alone(instructions::once(spec, upstream.address, design));
        }
        Figure::Measure(measure) => measure,
    };
    let mut side = Running::start(spec, upstream, design, design.seed)?;
    side.warm_up(design)?;
    side.saturated(design)?;
    // Memory is read after all loads; of the others, the open loop is for latencies only.
    let rated = if design.rate > 0.0 { Some(side.rated_alone(design, upstream)?) } else { None };
    let record = side.record(rated.as_ref())?;
    let raw = RawReading { kind: RawKind::Measure, measure: measure.name.to_owned(), record };
    Ok((raw.figure()?, Some(raw)))
}

fn anonymous_kib(spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<f64> {
    let mut side = Running::start(spec, upstream, design, design.seed)?;
    side.warm_up(design)?;
    side.saturated(design)?;
    Ok(side.started.anonymous_kib()? as f64)
}

fn metric(name: &str, is_growth: bool, spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<f64> {
    let mut side = Running::start(spec, upstream, design, design.seed)?;
    let metrics = side.started.metrics.clone();
    let metrics =
        metrics.ok_or_else(|| Error::new("it says nothing of its metrics; write {metrics} into its command"))?;
    side.warm_up(design)?;
    let before = scraper::sum(&metrics, name)?.unwrap_or(0.0);
    side.saturated(design)?;
    let requests = side.record(None)?.saturation.requests;
    // Where nothing was counted yet there are no series; an older version may not know the metric either.
    let after = scraper::sum(&metrics, name)?.unwrap_or_else(|| {
        eprintln!("note: its exposition has no series of {name}, which counts as 0");
        0.0
    });
    Ok(1.0 + if is_growth { (after - before) * 1000.0 / requests.max(1) as f64 } else { after })
}
