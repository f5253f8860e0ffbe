//! One page that needs nothing else: a flame graph to zoom and search, a table by function, shares by thread and by phase, and the
//! difference of two profiles.
//!
//! The page holds the stacks, not a picture of them; the script in `page.js` adds them up. It may be opened from a file, and loads nothing.

use super::svg::title;
use crate::profile::Profile;
use serde_json::{Value as Json, json};
use std::collections::HashMap;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// What a page shows.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// One of its values.
    pub value: usize,
    /// What it is compared with.
    pub base: Option<&'a Profile>,
    /// Phases of the program's work: a name, and a part of the names of the functions that begin it. The innermost one counts.
    pub phases: &'a [(&'a str, &'a str)],
}

/// Writes the page.
pub fn write(shown: Shown<'_>) -> String {
    let data = json!({
        "profile": side(shown.profile, shown.value),
        "base": shown.base.map(|base| side(base, same_value(shown.profile, shown.value, base))),
        "phases": shown.phases,
    });
    // Inside a script element only this could end it.
    let data = data.to_string().replace('<', "\\u003c");
    PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*DATA*/", &data)
}

/// The value of the same kind.
fn same_value(profile: &Profile, value: usize, base: &Profile) -> usize {
    let kind = profile.values.get(value).map(|of| &of.kind);
    base.values.iter().position(|of| Some(&of.kind) == kind).unwrap_or(base.main)
}

/// Names, and stacks of numbers of names with the number of their thread and their value.
fn side(profile: &Profile, value: usize) -> Json {
    let mut threads: Vec<&str> = Vec::new();
    let mut stacks: HashMap<(usize, Vec<usize>), i64> = HashMap::new();
    for sample in &profile.samples {
        let amount = sample.values.get(value).copied().unwrap_or(0);
        if amount == 0 {
            continue;
        }
        let name = sample.thread();
        let thread = threads.iter().position(|known| *known == name).unwrap_or_else(|| {
            threads.push(name);
            threads.len() - 1
        });
        let stack = profile.functions_of(sample).map(|line| line.function).collect();
        *stacks.entry((thread, stack)).or_default() += amount;
    }
    let mut stacks: Vec<_> = stacks.into_iter().collect();
    stacks.sort_unstable();
    json!({
        "title": title(profile, value),
        "unit": profile.values.get(value).map_or("", |of| &of.unit),
        "notes": profile.notes,
        "threads": threads,
        "functions": profile.functions.iter().map(|function| json!([function.name, function.file])).collect::<Vec<_>>(),
        "stacks": stacks.into_iter().map(|((thread, stack), value)| json!([thread, value, stack])).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tree::example;

    #[test]
    fn the_page_holds_the_stacks_and_nothing_ends_its_data_early() {
        let profile = example();
        let page = write(Shown { profile: &profile, value: 0, base: Some(&profile), phases: &[("route", "route")] });
        assert_eq!(page.matches("</script>").count(), 2);
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Json = serde_json::from_str(data).unwrap();
        assert_eq!(data["profile"], data["base"]);
        assert_eq!(data["profile"]["threads"], json!(["worker-0", "worker-1"]));
        assert_eq!(data["profile"]["stacks"][1], json!([0, 3, [0, 1, 2, 3]]));
        assert_eq!(data["profile"]["functions"][4][0], "</script><b>\"é");
        assert!(!page.contains("http://") && !page.contains("https://"), "loads nothing");
    }
}
