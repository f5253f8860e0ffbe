//! The changes: in a sentence, as a table, and as a page, which has the table, then the flame graphs of both programs and
//! kinds, and their differences.
//!
//! The graphs are those of `stillgate profile`. A difference can be laid out by either program; uncertain changes have
//! no colour.

use super::analysis::{ProfileValueKind, certain_stacks, profile};
use crate::compare::words::in_short;
use crate::report::Text;
use crate::result::explain::{
    CostChange, ExplainAnalysis, ExplainDesign, ExplainResult, FunctionChange, IsolatedChange, ProgramProfile, Range,
    Sides,
};
use std::fmt::Write as _;
use stillgate_profiler::output::html::{Comparison, View, write_views};
use stillgate_profiler::profile::Profile;

/// Number of functions in the table, the most important first.
const LISTED_MAX: usize = 25;

/// Functions named in the sentence.
const NAMED_MAX: usize = 3;

/// Heads of the table; a function's name is last, so that it is never cut.
pub(crate) const HEADS: [&str; 9] =
    ["", "CPU, change", "instr., change", "CPU A", "CPU B", "instr. A", "instr. B", "ratio A", "ratio B"];

/// Heads of the table of functions in Lua.
pub(crate) const LUA_HEADS: [&str; 9] =
    ["", "CPU, change", "bytecode, change", "CPU A", "CPU B", "bytecode A", "bytecode B", "ratio A", "ratio B"];

/// The answer.
pub(super) fn sentence(design: &ExplainDesign, analysis: &ExplainAnalysis) -> String {
    let cpu = analysis.cpu;
    let of_cpu = match cpu.is_certain {
        true => format!("{} CPU time", more(cpu.value)),
        false => "no certain difference in CPU time".to_owned(),
    };
    let of_instructions = analysis.instructions.map(|change| match change.is_certain {
        true => format!("{} instructions", more(change.value)),
        false => "as many instructions".to_owned(),
    });
    let work = &design.work;
    let interrupted = analysis
        .interrupted_after
        .map(|slices| format!("Interrupted after {slices} of {} profiles of each. ", design.slices));
    let mut out = interrupted.unwrap_or_default();
    out += &match (cpu.is_certain, of_instructions) {
        (true, Some(instructions)) => format!("For each {work}, B takes {of_cpu} ({}) and {instructions}.", range(cpu)),
        (true, None) => format!("For each {work}, B takes {of_cpu} ({}).", range(cpu)),
        (false, Some(instructions)) => format!("For each {work}, there is {of_cpu} ({}); {instructions}.", range(cpu)),
        (false, None) => format!("For each {work}, there is {of_cpu} ({}).", range(cpu)),
    };
    let changed = analysis.functions.iter().filter_map(|of| Some(format!("{} ({})", of.function, certain(of)?)));
    let named: Vec<String> = changed.take(NAMED_MAX).collect();
    if named.is_empty() {
        out.push_str(" No function changed beyond noise.");
    } else {
        // Writing to a `String` does not fail.
        let _ = write!(out, " Changed most: {}.", named.join(", "));
    }
    out
}

/// The certain changes of a function.
fn certain(of: &FunctionChange) -> Option<String> {
    let cpu = of.cpu.is_certain.then(|| format!("CPU time {}", signed(of.cpu.value)));
    let counted = of.instructions.filter(|change| change.is_certain);
    let instructions = counted.map(|change| format!("instructions {}", signed(change.value)));
    let both: Vec<String> = cpu.into_iter().chain(instructions).collect();
    (!both.is_empty()).then(|| both.join(", "))
}

/// Sentence, table, and remarks on what is missing.
pub(crate) fn report(result: &ExplainResult) -> String {
    let analysis = &result.analysis;
    let mut out = format!("{}\n\n", analysis.sentence);
    table(&mut out, &HEADS, &analysis.functions);
    let work = &result.design.work;
    let _ = writeln!(
        out,
        "\nChanges are per {work}, in per cent of the total cost of A; * marks certain changes. Shares are of time spent in the function itself; ratio is its share of the time outside the kernel over that of instructions."
    );
    if !analysis.lua.is_empty() {
        out.push_str("\nFunctions in Lua:\n");
        table(&mut out, &LUA_HEADS, &analysis.lua);
        let _ = writeln!(out, "\n{}", lua(work));
    }
    for line in isolated_lines(analysis) {
        let _ = writeln!(out, "{line}");
    }
    for line in lacks(result) {
        let _ = writeln!(out, "note: {line}");
    }
    out
}

fn table(out: &mut String, heads: &[&str; 9], functions: &[FunctionChange]) {
    let rows: Vec<[String; 9]> = functions.iter().take(LISTED_MAX).map(cells).collect();
    let heads = heads.map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&heads]).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let names = std::iter::once("function").chain(functions.iter().map(|of| of.function.as_str()));
    for (row, name) in [&heads].into_iter().chain(&rows).zip(names) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "{}  {name}", cells.collect::<Vec<_>>().join("  "));
    }
    let left = functions.len().saturating_sub(LISTED_MAX);
    if left > 0 {
        let _ = writeln!(out, "and {left} more functions");
    }
}

/// How to read the table of functions in Lua.
pub(super) fn lua(work: &str) -> String {
    format!(
        "Changes are per {work}, in per cent of all CPU time of A in Lua; * marks certain changes. Bytecode is time in the \
         interpreter, estimated by samples. Ratio is the share of CPU time over that of bytecode: far above 1, a function is \
         machine code or waits in C; at 1 and below it is interpreted."
    )
}

/// The parts that were measured by themselves, a line each.
pub(super) fn isolated_lines(analysis: &ExplainAnalysis) -> Vec<String> {
    let range = |range: Option<Range>| match range {
        Some(Range { value, low, high }) => format!("{} ({} to {})", signed(value), signed(low), signed(high)),
        None => "not seen".to_owned(),
    };
    // A few measurements, or none, if it was interrupted.
    let alone = |of: &IsolatedChange| match of.isolated {
        None => "not measured often enough".to_owned(),
        measured => range(measured),
    };
    let line = |of: &IsolatedChange| {
        let flag = if of.disagree { "; they disagree: look at what is around it" } else { "" };
        format!("{}: by itself {}, inside {}{flag}", of.name, alone(of), range(of.inside))
    };
    analysis.isolated.iter().map(line).collect()
}

/// Remarks on what the profiles lack, and the messages of the tools.
fn lacks(result: &ExplainResult) -> Vec<String> {
    let mut lines = result.analysis.missing.clone();
    lines.extend(
        result.instructions_missing.iter().map(|why| format!("instructions were not counted: {}", in_short(why))),
    );
    lines.extend(result.lua_missing.iter().map(|why| format!("no profile of functions in Lua: {}", in_short(why))));
    let lua = result.lua.iter().flat_map(|lua| [&lua.cpu, &lua.bytecode]);
    for sides in [&result.cpu].into_iter().chain(&result.instructions).chain(lua) {
        for (name, side) in [("A", &sides.a), ("B", &sides.b)] {
            lines.push(format!("{name}: {}", side.notes.join("; ")));
        }
    }
    lines
}

/// A row of the table, without the name.
pub(crate) fn cells(of: &FunctionChange) -> [String; 9] {
    let mark = if certain(of).is_some() { "*" } else { "" };
    let change = |change: Option<CostChange>| {
        change.map_or("-".to_owned(), |change| {
            format!("{}{}", signed(change.value), if change.is_certain { "*" } else { "" })
        })
    };
    let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.2}%", share * 100.0));
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let counted = |side: usize| of.instruction_share.map(|shares| shares[side]);
    [
        mark.to_owned(),
        change(Some(of.cpu)),
        change(of.instructions),
        share(Some(of.cpu_share[0])),
        share(Some(of.cpu_share[1])),
        share(counted(0)),
        share(counted(1)),
        ratio(of.ratio[0]),
        ratio(of.ratio[1]),
    ]
}

fn more(share: f64) -> String {
    let word = if share < 0.0 { "less" } else { "more" };
    format!("{:.2}% {word}", share.abs() * 100.0)
}

fn range(change: CostChange) -> String {
    format!("{} to {}", signed(change.low), signed(change.high))
}

fn signed(share: f64) -> String {
    format!("{:+.2}%", share * 100.0)
}

/// Functions in the table.
const LISTED_IN_PAGE_MAX: usize = 30;

/// A kind of profile, ready to be drawn.
struct FlameView {
    name: &'static str,
    a: Profile,
    b: Profile,
    wholes: [f64; 2],
    certain: Vec<Vec<String>>,
}

/// The whole page.
pub(crate) fn html(result: &ExplainResult) -> String {
    let (counted, lua) = (result.instructions.as_ref(), result.lua.as_ref());
    let kinds = [
        Some(("CPU time", "nanoseconds", &result.cpu, ProfileValueKind::Sampled)),
        counted.map(|sides| ("Instructions", "count", sides, ProfileValueKind::Counted)),
        lua.map(|lua| ("CPU time in Lua", "nanoseconds", &lua.cpu, ProfileValueKind::Sampled)),
        lua.map(|lua| ("Bytecode", "nanoseconds", &lua.bytecode, ProfileValueKind::Sampled)),
    ];
    let drawn: Vec<FlameView> = kinds
        .into_iter()
        .flatten()
        .map(|(name, unit, sides, kind)| FlameView {
            name,
            a: profile(&sides.a, name, unit),
            b: profile(&sides.b, name, unit),
            wholes: wholes(sides),
            certain: certain_stacks(sides, kind, &result.design),
        })
        .collect();
    let difference = |of: &FlameView| format!("{}: B compared with A", of.name);
    let mut views: Vec<View<'_>> = drawn
        .iter()
        .map(|of| View {
            heading: difference(of),
            is_open: true,
            profile: &of.b,
            compared: Some(Comparison { base: &of.a, wholes: of.wholes, certain: &of.certain }),
        })
        .collect();
    for of in &drawn {
        for (side, profile) in [("A", &of.a), ("B", &of.b)] {
            views.push(View { heading: format!("{} of {side}", of.name), is_open: false, profile, compared: None });
        }
    }
    write_views(&format!("{} and {}", result.design.a, result.design.b), &introduction(result), &views)
}

/// The value of 100% for B and for A: the work that each has done, at A's cost.
fn wholes(sides: &Sides) -> [f64; 2] {
    let spent = |side: &ProgramProfile| side.stacks.iter().flat_map(|stack| &stack.spent).sum::<i64>() as f64;
    let work = |side: &ProgramProfile| side.work.iter().sum::<f64>();
    [spent(&sides.a) / work(&sides.a) * work(&sides.b), spent(&sides.a)]
}

fn introduction(result: &ExplainResult) -> String {
    let design = &result.design;
    let mut out = format!(
        "<h1>Why B differs from A</h1>\n<p><b>{}</b></p>\n<p>A: <code>{}</code><br>B: <code>{}</code></p>\n",
        Text(&result.analysis.sentence),
        Text(&design.a),
        Text(&design.b)
    );
    html_table(&mut out, &HEADS, &result.analysis.functions);
    // Writing to a `String` does not fail.
    let _ = writeln!(
        out,
        "<p>Changes are per {}, in per cent of the total cost of A; * marks certain changes: on {:.0}% of pages none of these is false. Shares are those spent in the function itself; ratio is the share of the time outside the kernel over that of instructions. In differences 100% is the cost of A for the same work; red costs more than in A, blue less.</p>",
        Text(&design.work),
        design.confidence * 100.0
    );
    if !result.analysis.lua.is_empty() {
        out.push_str("<h2>Functions in Lua</h2>\n");
        html_table(&mut out, &LUA_HEADS, &result.analysis.lua);
        let _ = writeln!(out, "<p>{}</p>", Text(&lua(&design.work)));
    }
    out.push_str("<ul>");
    for line in isolated_lines(&result.analysis).into_iter().chain(lacks(result)) {
        let _ = write!(out, "<li>{}</li>", Text(&line));
    }
    out.push_str("</ul>\n");
    out
}

fn html_table(out: &mut String, heads: &[&str; 9], functions: &[FunctionChange]) {
    out.push_str("<div class=\"profile-view\"><table class=\"is-dense\"><tr><th>Function</th>");
    // Writing to a `String` does not fail.
    for head in &heads[1..] {
        let _ = write!(out, "<th class=\"is-number\">{head}</th>");
    }
    out.push_str("</tr>\n");
    for of in functions.iter().take(LISTED_IN_PAGE_MAX) {
        let _ = write!(out, "<tr><td>{}</td>", Text(&of.function));
        let cells = cells(of);
        for cell in &cells[1..] {
            let _ = write!(out, "<td class=\"is-number\">{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}
