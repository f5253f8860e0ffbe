//! A self-contained page: shares by route, plugin, phase and thread, a flame graph to zoom and search, a table by function, and the
//! difference of two profiles. It has the dashboard's look.
//!
//! The page holds the stacks ([`stacks_of`]), not a picture of them; the script in `view.js` adds them up, here and in the dashboard. The
//! page may be opened from a file, and loads nothing.

use super::svg::{escape, title};
use crate::profile::{PHASE, PLUGIN, Profile, ROUTE};
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::fmt::Write as _;

const PAGE: &str = include_str!("../../page/page.html");
const SCRIPT: &str = include_str!("../../page/view.js");
/// The dashboard's, and what a page adds to it.
const STYLE: &str = concat!(
    include_str!("../../../admin/ui/tokens.css"),
    include_str!("../../../admin/ui/shell.css"),
    include_str!("../../../admin/ui/parts.css"),
    include_str!("../../page/page.css"),
    include_str!("../../page/view.css"),
);

/// Writes the page of one of a profile's values, compared with the corresponding one of `base`.
pub fn write(profile: &Profile, value: usize, base: Option<&Profile>) -> String {
    let data = json!({
        "profile": stacks_of(profile, value),
        "base": base.map(|base| stacks_of(base, same_value(profile, value, base))),
    });
    let main = "<h1>Profile</h1><div id=\"view-0\" class=\"card\"></div>";
    page(&title(profile, value), main, &json!({ "views": [data] }))
}

/// One of several views of a page.
#[derive(Debug)]
pub struct View<'a> {
    /// Shown above it.
    pub heading: String,
    /// Whether it is expanded at first.
    pub is_open: bool,
    /// The profile to show, by its main value.
    pub profile: &'a Profile,
    /// The profile that it is compared with.
    pub compared: Option<Comparison<'a>>,
}

/// The other side of a difference.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// A profile of the same kind.
    pub base: &'a Profile,
    /// The amounts that count as 100% of the profile and of the base. With a base for as much work as the profile's, an
    /// unchanged function has equal shares in both, even if something else has grown.
    pub wholes: [f64; 2],
    /// The stacks whose change is not noise, the outermost function first; only these are coloured.
    pub certain: &'a [Vec<String>],
}

/// Writes a page of several flame graphs, below a text in HTML.
pub fn write_views(title: &str, introduction: &str, views: &[View<'_>]) -> String {
    let mut main = introduction.to_owned();
    let mut all: Vec<Json> = Vec::new();
    for (number, View { heading, is_open, profile, compared }) in views.iter().enumerate() {
        let (open, heading) = (if *is_open { " open" } else { "" }, escape(heading));
        let view = format!("<div id=\"view-{number}\" class=\"card\"></div>");
        writeln!(main, "<details{open}><summary>{heading}</summary>{view}</details>")
            .expect("writing to a String does not fail");
        let (mut of_profile, mut of_base) = (stacks_of(profile, profile.main), Json::Null);
        if let Some(Comparison { base, wholes, .. }) = compared {
            of_base = stacks_of(base, base.main);
            (of_profile["whole"], of_base["whole"]) = (wholes[0].into(), wholes[1].into());
        }
        let certain = compared.as_ref().map(|compared| compared.certain);
        all.push(json!({ "profile": of_profile, "base": of_base, "certain": certain, "graph_only": true }));
    }
    page(title, &main, &json!({ "views": all }))
}

fn page(title: &str, main: &str, data: &Json) -> String {
    // Inside a script element only `<` could begin its end.
    let data = data.to_string().replace('<', "\\u003c");
    // In this order: no text from outside contains a mark that is still searched for before its place.
    PAGE.replacen("/*STYLE*/", STYLE, 1)
        .replacen("/*SCRIPT*/", SCRIPT, 1)
        .replacen("/*DATA*/", &data, 1)
        .replacen("<!--MAIN-->", main, 1)
        .replacen("/*TITLE*/", &escape(title), 1)
}

/// The index of the base's value of this kind.
fn same_value(profile: &Profile, value: usize, base: &Profile) -> usize {
    let kind = profile.values.get(value).map(|of| &of.kind);
    base.values.iter().position(|of| Some(&of.kind) == kind).unwrap_or(base.main)
}

/// Thread, phase and functions by number, and the names of the route and the plugin.
type StackKey<'a> = (usize, usize, Vec<usize>, [&'a str; 2]);

/// The stacks of one of a profile's values as JSON, for `view.js`: names once, and stacks of their numbers. They
/// are `[thread, phase, value, functions, route, plugin]`, the outermost function first. Route and plugin are names, or
/// null.
pub fn stacks_of(profile: &Profile, value: usize) -> Json {
    let (mut threads, mut phases): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut stacks: HashMap<StackKey<'_>, i64> = HashMap::new();
    for sample in &profile.samples {
        let amount = sample.values.get(value).copied().unwrap_or(0);
        if amount == 0 {
            continue;
        }
        let thread = number(&mut threads, sample.thread());
        let phase = number(&mut phases, sample.text(PHASE));
        let stack = profile.functions_of(sample).map(|line| line.function).collect();
        let work = [ROUTE, PLUGIN].map(|label| sample.text(label));
        *stacks.entry((thread, phase, stack, work)).or_default() += amount;
    }
    let mut stacks: Vec<_> = stacks.into_iter().collect();
    stacks.sort_unstable();
    let known = |name: &str| if name.is_empty() { Json::Null } else { name.into() };
    let stack = |((thread, phase, stack, work), value): (StackKey<'_>, i64)| {
        json!([thread, phase, value, stack, known(work[0]), known(work[1])])
    };
    json!({
        "title": title(profile, value),
        "unit": profile.values.get(value).map_or("", |of| &of.unit),
        "notes": profile.notes,
        "threads": threads,
        "phases": phases,
        "functions": profile.functions.iter().map(|function| json!([function.name, function.file])).collect::<Vec<_>>(),
        "stacks": stacks.into_iter().map(stack).collect::<Vec<_>>(),
    })
}

fn number<'a>(names: &mut Vec<&'a str>, name: &'a str) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;

    #[test]
    fn the_page_holds_the_stacks_and_nothing_ends_its_data_early() {
        let profile = example();
        let page = write(&profile, 0, Some(&profile));
        assert_eq!(page.matches("</script>").count(), 2);
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Json = serde_json::from_str(data).unwrap();
        let view = &data["views"][0];
        assert_eq!(view["profile"], view["base"]);
        assert_eq!(view["profile"]["functions"][4][0], "</script><b>\"é");
        assert!(!page.contains("http://") && !page.contains("https://"), "loads nothing");
    }

    #[test]
    fn a_page_has_several_views() {
        let profile = example();
        let certain = [vec!["main".to_owned()]];
        let compared = Comparison { base: &profile, wholes: [2.0, 1.0], certain: &certain };
        let view = |compared| View { heading: "A & B".to_owned(), is_open: true, profile: &profile, compared };
        let page = write_views("a <title>", "<p>said</p>", &[view(Some(compared)), view(None)]);
        assert!(page.contains("<title>a &lt;title&gt;</title>") && page.contains("<p>said</p>"), "{page}");
        assert_eq!(page.matches("<details open><summary>A &amp; B</summary><div id=\"view-").count(), 2);
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Json = serde_json::from_str(data).unwrap();
        assert_eq!((&data["views"][0]["base"]["whole"], &data["views"][1]["base"]), (&json!(1.0), &Json::Null));
        assert_eq!(data["views"][0]["certain"], json!([["main"]]));
    }

    #[test]
    fn equal_stacks_of_a_thread_and_phase_are_one() {
        let mut profile = example();
        profile.name_phases(&[("routing", "route")]);
        let stacks = stacks_of(&profile, 0);
        assert_eq!(stacks["threads"], json!(["worker-0", "worker-1"]));
        assert_eq!(stacks["phases"], json!(["routing", "other"]));
        assert_eq!(stacks["stacks"][1], json!([0, 0, 3, [0, 1, 2, 3], null, null]));
        let hostile = "</script>\u{202e}";
        profile.samples.iter_mut().for_each(|sample| sample.name_work(&[hostile.to_owned(), "cors".to_owned()]));
        assert_eq!(stacks_of(&profile, 0)["stacks"][1], json!([0, 0, 3, [0, 1, 2, 3], hostile, "cors"]));
        assert!(!write(&profile, 0, None).contains(hostile));
    }
}
