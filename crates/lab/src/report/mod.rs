//! Reports: result files as one self-contained HTML page.
//!
//! The page needs nothing but a browser: no network, no script. Pictures are plain HTML and SVG, and every picture has
//! its figures in a table or in text next to it. It judges nothing: verdicts are those that `verify` computes from the
//! raw data.

mod axis;
mod bisect;
mod compare;
mod load;
mod markup;
mod nights;
mod number;
mod page;
mod plots;
mod provenance;
mod tables;
mod tail;
mod text_sections;
mod time_series;

use crate::error::Result;
use crate::result::Experiment;
pub(crate) use compare::ReportInput;
pub(crate) use markup::{Text, plain};
pub(crate) use nights::{history, night};

/// The page of these results, in their order.
pub(crate) fn html(sources: &[ReportInput]) -> Result<String> {
    let sections: Result<Vec<_>> = sources
        .iter()
        .enumerate()
        .map(|(number, source)| {
            let prefix = page::prefix(number);
            let section = match &source.result.experiment {
                Experiment::Tail(result) => tail::section(&prefix, source, result),
                Experiment::Compare(result) => compare::section(&prefix, source, result),
                Experiment::Bisect(result) => bisect::section(&prefix, source, result),
                Experiment::Devices(result) => text_sections::devices_section(&prefix, source, result),
                Experiment::Explain(result) => text_sections::explain_section(&prefix, source, result),
                Experiment::Figures(result) => text_sections::figures_section(&prefix, source, result),
                Experiment::Load(result) => load::section(&prefix, source, result),
            };
            section.map_err(|error| error.context(&source.name))
        })
        .collect();
    Ok(page::draw(sources, &sections?))
}
