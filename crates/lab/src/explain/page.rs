//! The page: the table, then the flame graphs of both programs and kinds, and their differences.
//!
//! The graphs are those of `stillgate profile`. A difference can be laid out by either program; uncertain changes have
//! no colour.

use super::analysis::{Kind, certain_stacks, profile};
use super::words;
use crate::report::Text;
use crate::result::explain::{ExplainResult, FunctionChange, ProgramProfile, Sides};
use std::fmt::Write as _;
use stillgate_profiler::output::html::{Comparison, View, write_views};
use stillgate_profiler::profile::Profile;

/// Functions in the table.
const LISTED_MAX: usize = 30;

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
        Some(("CPU time", "nanoseconds", &result.cpu, Kind::Sampled)),
        counted.map(|sides| ("Instructions", "count", sides, Kind::Counted)),
        lua.map(|lua| ("CPU time in Lua", "nanoseconds", &lua.cpu, Kind::Sampled)),
        lua.map(|lua| ("Bytecode", "nanoseconds", &lua.bytecode, Kind::Sampled)),
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
    table(&mut out, &words::HEADS, &result.analysis.functions);
    // Writing to a `String` does not fail.
    let _ = writeln!(
        out,
        "<p>Changes are per {}, in per cent of the total cost of A; * marks certain changes: on {:.0}% of pages none of these is false. Shares are those spent in the function itself; ratio is the share of the time outside the kernel over that of instructions. In differences 100% is the cost of A for the same work; red costs more than in A, blue less.</p>",
        Text(&design.work),
        design.confidence * 100.0
    );
    if !result.analysis.lua.is_empty() {
        out.push_str("<h2>Functions in Lua</h2>\n");
        table(&mut out, &words::LUA_HEADS, &result.analysis.lua);
        let _ = writeln!(out, "<p>{}</p>", Text(&words::lua(&design.work)));
    }
    out.push_str("<ul>");
    for line in words::isolated(&result.analysis).into_iter().chain(words::lacks(result)) {
        let _ = write!(out, "<li>{}</li>", Text(&line));
    }
    out.push_str("</ul>\n");
    out
}

fn table(out: &mut String, heads: &[&str; 9], functions: &[FunctionChange]) {
    out.push_str("<div class=\"profile-view\"><table class=\"is-dense\"><tr><th>Function</th>");
    // Writing to a `String` does not fail.
    for head in &heads[1..] {
        let _ = write!(out, "<th class=\"is-number\">{head}</th>");
    }
    out.push_str("</tr>\n");
    for of in functions.iter().take(LISTED_MAX) {
        let _ = write!(out, "<tr><td>{}</td>", Text(&of.function));
        let cells = words::cells(of);
        for cell in &cells[1..] {
            let _ = write!(out, "<td class=\"is-number\">{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}
