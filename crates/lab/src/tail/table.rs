//! The result of a tail experiment as text: the verdict, a row per cell, and each cell's distributions in the format of
//! wrk2, which reports of such stalls commonly use.

use crate::error::Result;
use crate::report::plain;
use crate::result::histogram;
use crate::result::run::RunRecord;
use crate::result::tail::{Arm, Cell, CellAnalysis, Effect, TailResult};
use crate::tail::verdict::{ShownVerdict, shown_over_all};
use crate::tail::{analysis, readable, summary};
use std::fmt::Write as _;

/// The percentiles of the reports.
const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// Columns of the summary: for each measure, the block without scrapes and the change with them.
const SUMMARY_MEASURES: [&str; 4] = ["p50", "p99", "p99.9", "max"];

/// The whole text.
pub(crate) fn text(result: &TailResult) -> Result<String> {
    let mut out = String::new();
    line(&mut out, &format!("{}\n", plain(&summary::headline_of(result))));
    summary(&mut out, result);
    line(&mut out, &format!("Note: {}", readable::PAIRED_NOTE));
    for (cell, analysed) in result.cells.iter().zip(&result.analysis.cells) {
        out.push('\n');
        distributions(&mut out, cell, analysed)?;
    }
    for sentence in summary::growth_sentences(result)? {
        line(&mut out, &format!("\n{}", plain(&sentence)));
    }
    for note in summary::fairness_notes(result) {
        line(&mut out, &format!("\nNote: {note}"));
    }
    let runs = || result.cells.iter().flat_map(|cell| &cell.blocks).map(|block| &block.run);
    if runs().any(|run| run.generator_realtime == Some(false)) {
        line(
            &mut out,
            "\nNote: the generator had no real-time priority, so latencies may include delays of the system's scheduler; run as root \
             or with CAP_SYS_NICE",
        );
    }
    for failure in &result.failures {
        line(&mut out, &format!("\nNot run: {}", plain(failure)));
    }
    line(&mut out, &format!("\n{}", shown_over_all(result)));
    Ok(out)
}

/// A row per cell: the median of the blocks without scrapes, and the change with them.
fn summary(out: &mut String, result: &TailResult) {
    let names = result.cells.iter().map(|cell| cell.subject.name.chars().count());
    let width = names.max().unwrap_or(0).max("target".len());
    let mut header = format!("{:width$} {:>9} {:>7}", "target", "series", "every");
    for measure in SUMMARY_MEASURES {
        // Writing to a `String` does not fail.
        let _ = write!(header, "  {measure:>8} {:>9}", "scrapes");
    }
    line(out, &format!("{header} {:>8}  verdict", "CPU"));
    for (cell, analysed) in result.cells.iter().zip(&result.analysis.cells) {
        let mut row = format!(
            "{:width$} {:>9} {:>7}",
            cell.subject.name,
            readable::count(cell.series_shown),
            readable::seconds(cell.scrape_every_s)
        );
        for measure in SUMMARY_MEASURES {
            let effect = find(analysed, measure);
            let without = effect.map_or("-".to_owned(), |effect| readable::time(effect.without));
            let change = effect.map_or("-".to_owned(), |effect| readable::change(effect.difference));
            let _ = write!(row, "  {without:>8} {change:>9}");
        }
        let cpu = find(analysed, "cpu").filter(|effect| effect.without > 0.0);
        let cpu = cpu.map_or("-".to_owned(), |effect| format!("{:+.1}%", effect.difference / effect.without * 100.0));
        line(out, &format!("{row} {cpu:>8}  {}", word(ShownVerdict::of(analysed, &result.design))));
    }
}

/// The distributions of a cell and its sentence.
fn distributions(out: &mut String, cell: &Cell, analysed: &CellAnalysis) -> Result {
    line(out, &analysed.sentence);
    if analysed.pairs == 0 {
        return Ok(());
    }
    let columns = [
        analysis::pooled(cell, Arm::Without, |run: &RunRecord| &run.corrected)?,
        analysis::pooled(cell, Arm::With, |run| &run.corrected)?,
        analysis::pooled(cell, Arm::Without, |run| &run.uncorrected)?,
        analysis::pooled(cell, Arm::With, |run| &run.uncorrected)?,
    ];
    line(out, "  Latency Distribution (HdrHistogram)");
    line(out, "                   from the intended start         from the send");
    line(out, "                  without  with scrapes      without  with scrapes");
    for percentile in PERCENTILES {
        let [a, b, c, d] =
            columns.each_ref().map(|all| readable::time(histogram::quantile_us(all, percentile / 100.0)));
        line(out, &format!("  {percentile:>8.3}%  {a:>12}  {b:>12} {c:>12}  {d:>12}"));
    }
    let missed = |arm| {
        let runs = cell.blocks.iter().filter(|block| block.arm == arm).map(|block| &block.run);
        runs.filter_map(|run| run.missed_starts).sum::<u64>()
    };
    let (without, with) = (missed(Arm::Without), missed(Arm::With));
    if without + with > 0 {
        line(
            out,
            &format!(
                "  {} starts without scrapes and {} with were missed; they count with the time since they were due, which is the least they would have waited",
                readable::count(without),
                readable::count(with)
            ),
        );
    }
    let scrapes: Vec<_> =
        cell.blocks.iter().flat_map(|block| &block.scrapes).filter(|scrape| scrape.error.is_none()).collect();
    let took = |q: f64| {
        let mut took_us: Vec<f64> = scrapes.iter().map(|scrape| scrape.took_s * 1e6).collect();
        took_us.sort_by(f64::total_cmp);
        stillgate_stats::quantile(&took_us, q).map_or("-".to_owned(), readable::time)
    };
    let bytes = scrapes.iter().map(|scrape| scrape.bytes).max().unwrap_or(0);
    line(
        out,
        &format!(
            "  {} scrapes of up to {} bytes: median {}, longest {}",
            scrapes.len(),
            readable::count(bytes),
            took(0.5),
            took(1.0)
        ),
    );
    let stolen = |arm| cell.blocks.iter().filter(|block| block.arm == arm).map(|block| block.stolen_ms).sum::<f64>();
    let (without, with) = (stolen(Arm::Without), stolen(Arm::With));
    if without + with > 0.0 {
        line(
            out,
            &format!(
                "  the host took the CPUs for {without:.0} ms from the blocks without scrapes, for {with:.0} ms from those with"
            ),
        );
    }
    Ok(())
}

fn find<'a>(analysed: &'a CellAnalysis, measure: &str) -> Option<&'a Effect> {
    analysed.effects.iter().find(|effect| effect.measure == measure)
}

fn word(verdict: ShownVerdict) -> &'static str {
    match verdict {
        ShownVerdict::Slower => "slower",
        ShownVerdict::Failing => "more fail",
        ShownVerdict::Faster => "faster?",
        ShownVerdict::NoDifference => "no difference",
        ShownVerdict::CannotSay => "cannot say",
        ShownVerdict::Void => "void",
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Experiment;
    use crate::tail::synthetic;
    use expect_test::expect;

    #[test]
    fn a_row_a_cell_then_its_distributions() {
        let file = synthetic::file(3, 8, 50_000.0);
        let Experiment::Tail(tail) = &file.experiment else { panic!("synthetic files are of this kind") };
        expect![[r#"
            Scrapes made the slowest requests of synthetic (1 of 2 combinations) slower, and no significant difference in 1 of 2; more than 10% cannot be excluded for synthetic (1 of 2 combinations).

            target       series   every       p50   scrapes       p99   scrapes     p99.9   scrapes       max   scrapes      CPU  verdict
            synthetic   100,123     5 s    202 µs  -1.89 µs    416 µs  -9.60 µs    543 µs  -30.1 µs    638 µs  -31.2 µs    -0.4%  cannot say
            synthetic   100,123     5 s    198 µs  +8.03 µs    401 µs   +231 µs    487 µs  +44.8 ms    590 µs  +49.7 ms    -0.9%  slower
            Note: Each effect is the median of the differences within pairs of blocks (Hodges-Lehmann). It is not the difference of the figures beside it, which summarise the blocks with and without scrapes separately.

            Scrapes every 5 s of 100,123 series made no significant difference to the slowest requests of synthetic: p99.9 from 543 µs to 511 µs (-30.1 µs, simultaneous 95% interval -86.5 to 42.5 µs). A change smaller than this could have been missed: p99.9 by 91.5 µs, the maximum by 261 µs (8 pairs, power 90%).
              Latency Distribution (HdrHistogram)
                               from the intended start         from the send
                              without  with scrapes      without  with scrapes
                50.000%        203 µs        201 µs       203 µs        201 µs
                75.000%        249 µs        246 µs       249 µs        246 µs
                90.000%        300 µs        296 µs       300 µs        296 µs
                99.000%        415 µs        408 µs       415 µs        408 µs
                99.900%        543 µs        514 µs       543 µs        514 µs
                99.990%        714 µs        616 µs       714 µs        616 µs
                99.999%        898 µs        699 µs       898 µs        699 µs
               100.000%        898 µs        699 µs       898 µs        699 µs
              8 scrapes of up to 1,234,567 bytes: median 40.0 ms, longest 40.0 ms

            Scrapes every 5 s of 100,123 series made the slowest requests of synthetic slower: p99.9 from 487 µs to 45.2 ms (+44.8 ms, simultaneous 95% interval 44.7 to 44.9 ms).
              Latency Distribution (HdrHistogram)
                               from the intended start         from the send
                              without  with scrapes      without  with scrapes
                50.000%        194 µs        204 µs       194 µs        203 µs
                75.000%        238 µs        250 µs       238 µs        248 µs
                90.000%        286 µs        304 µs       286 µs        299 µs
                99.000%        393 µs        710 µs       393 µs        407 µs
                99.900%        504 µs       46.1 ms       504 µs        518 µs
                99.990%        627 µs       50.3 ms       627 µs        627 µs
                99.999%        696 µs       50.3 ms       696 µs        710 µs
               100.000%        696 µs       50.3 ms       696 µs        710 µs
              8 scrapes of up to 1,234,567 bytes: median 40.0 ms, longest 40.0 ms

            Not run: envoy: not found

            The slowest requests: made slower by scrapes in 1 of 2: synthetic (100,123 series, every 5 s); cannot say in 1 of 2: synthetic (100,123 series, every 5 s). Each combination was tested at 5% by itself, so among many some may be false alarms.
        "#]].assert_eq(&text(tail).unwrap());
    }
}
