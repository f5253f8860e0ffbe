//! The pairs of a comparison: a picture of each measure's ratios, and a table of all starts.
//!
//! Everything here is raw data; pairs left out of the analysis are marked.

use super::compare::{called, is_void, void_mark};
use super::number;
use super::pairs_plot::{self, Dot, Estimate, Measure};
use super::tables::{self, Cell, figures, words};
use crate::compare::duel::Duel;
use crate::compare::measures;
use crate::error::Result;
use crate::result::compare::{BuildPair, CompareAnalysis, CompareResult, SideRecord};
use crate::result::histogram;

/// The pictures of one comparison.
pub(super) fn of(id: &str, result: &CompareResult, between: BuildPair, analysis: &CompareAnalysis) -> Result<String> {
    let duels = result.duels(between)?;
    let some_void = duels.iter().any(|duel| is_out(duel, true));
    let looks = &result.design.looks;
    let mut out = pairs_plot::legend(between, !is_void(result), looks.len() > 1, some_void) + "<div class=\"facets\">";
    for (number, measure) in analysis.measures.iter().enumerate() {
        let mut dots = Vec::with_capacity(duels.len());
        for duel in &duels {
            let (Some(a), Some(b)) = (value(duel.a, &measure.measure)?, value(duel.b, &measure.measure)?) else {
                break;
            };
            let void = is_out(duel, measure.unit == measures::LATENCY_UNIT);
            dots.push(Dot { first: duel.first, ratio: b / a - 1.0, void });
        }
        if dots.is_empty() {
            continue;
        }
        let drawn = Measure {
            id: &format!("{id}-{number}"),
            between,
            name: format!("{}{}", called(&measure.measure), void_mark(result)),
            dots: &dots,
            estimate: (!is_void(result)).then_some(Estimate {
                effect: measure.effect,
                low: measure.low,
                high: measure.high,
            }),
            looks,
        };
        out.push_str(&drawn.draw());
    }
    out.push_str("</div>\n");
    Ok(out)
}

/// Whether a pair is used for nothing except its failed requests, if for those; or for no latency, if `latency` is set.
pub(super) fn is_out(duel: &Duel<'_>, latency: bool) -> bool {
    let late = || measures::late(duel).filter(|_| latency);
    measures::void(duel).or_else(|| measures::failing(duel)).or_else(late).is_some()
}

/// The value of one side of a pair; `None` for measures that are not taken in pairs.
fn value(side: &SideRecord, measure: &str) -> Result<Option<f64>> {
    let latency = |share: f64| {
        let decoded = histogram::decode(&side.rated.corrected).map_err(|error| error.context("a pair"));
        decoded.map(|histogram| histogram::quantile_us(&histogram, share))
    };
    Ok(match measure {
        "throughput" => Some(side.saturation.rate_achieved),
        "cpu" => Some(side.cpu_us_per_request),
        "p50" => Some(latency(0.5)?),
        "p99" => Some(latency(0.99)?),
        "p99.9" => Some(latency(0.999)?),
        "rss" => Some(side.rss_kib as f64),
        _ => None,
    })
}

/// All starts, in the order in which they were measured.
pub(super) fn starts(prefix: &str, result: &CompareResult) -> Result<String> {
    let heads = [
        words("pair"),
        words("build"),
        figures("requests/s"),
        figures("CPU per request"),
        figures("99%"),
        figures("memory"),
        words("remarks"),
    ];
    let mut rows = Vec::new();
    for (number, pair) in result.pairs.iter().enumerate() {
        let mut records: Vec<_> = pair.records().collect();
        let place = |side| pair.order.iter().position(|at| *at == side).unwrap_or(usize::from(pair.first != side));
        records.sort_by_key(|(side, _)| place(*side));
        for (side, record) in records {
            rows.push(vec![
                Cell::Words((number + 1).to_string()),
                Cell::Words(side.name().to_owned()),
                Cell::Figure(number::plain(record.saturation.rate_achieved)),
                Cell::Figure(number::time(record.cpu_us_per_request)),
                Cell::Figure(number::time(value(record, "p99")?.unwrap_or(f64::NAN))),
                Cell::Figure(number::bytes(record.rss_kib as f64 * 1024.0)),
                Cell::Words(remark(&crate::compare::duel::Duel::alone(side, record))),
            ]);
        }
    }
    Ok(tables::draw(&format!("{prefix}-pt"), "Starts in the order in which they were measured", &heads, &rows))
}

fn remark(start: &Duel<'_>) -> String {
    if let Some(why) = measures::void(start) {
        return format!("void: {why}");
    }
    let late = || Some(format!("latencies not judged: {}", measures::late(start)?));
    measures::failing(start).or_else(late).unwrap_or_default()
}
