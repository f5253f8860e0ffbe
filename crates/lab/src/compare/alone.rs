//! One figure of one program, as `compare` measures it in pairs; for those who compare otherwise, as `bisect` and `nightly` do.

use super::instructions;
use super::measures::{self, INSTRUCTIONS, Measure};
use super::side::Running;
use crate::error::{Error, Result};
use crate::result::compare::CompareDesign;
use crate::scraper;
use crate::target::{Spec, Upstream};

/// What is read.
#[derive(Debug, Clone)]
pub(crate) enum Figure {
    /// A measure of `compare`.
    Measure(&'static Measure),
    /// By how much a metric of its exposition grows for 1,000 requests, summed over its series, plus 1: what is zero today
    /// has a ratio to tomorrow's, too.
    Metric(String),
    /// The sum of a metric's series after the load, plus 1: of what is over once the program is warm.
    Level(String),
}

/// Starts the program, loads it and reads one figure.
pub(crate) fn read(figure: &Figure, spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<f64> {
    let measure = match figure {
        Figure::Metric(name) => return metric(name, true, spec, upstream, design),
        Figure::Level(name) => return metric(name, false, spec, upstream, design),
        Figure::Measure(measure) if measure.name == INSTRUCTIONS.name => {
            return instructions::once(spec, upstream.address, design);
        }
        Figure::Measure(measure) => measure,
    };
    let mut side = Running::start(spec, upstream, design, design.seed)?;
    side.warm_up(design)?;
    side.saturated(design)?;
    // Memory is read after all loads; of the others, the open loop is for latencies only.
    let rated = if design.rate > 0.0 { Some(side.rated_alone(design, upstream)?) } else { None };
    measures::of_one(measure, &side.record(rated.as_ref())?)
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
