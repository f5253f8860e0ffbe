//! One page that needs nothing else: a flame graph to zoom and search, a table by function, shares by thread and by phase, and the
//! difference of two profiles.
//!
//! The page holds the stacks ([`stacks`]), not a picture of them; the script in `view.js` adds them up, here and in the dashboard. The
//! page may be opened from a file, and loads nothing.

use super::stacks;
use crate::profile::Profile;
use serde_json::json;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("view.js");
const STYLE: &str = concat!(include_str!("page.css"), include_str!("view.css"));

/// Writes the page of one of a profile's values, compared with the same of `base`.
pub fn write(profile: &Profile, value: usize, base: Option<&Profile>) -> String {
    let data = json!({
        "profile": stacks::of(profile, value),
        "base": base.map(|base| stacks::of(base, same_value(profile, value, base))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tree::example;
    use serde_json::Value as Json;

    #[test]
    fn the_page_holds_the_stacks_and_nothing_ends_its_data_early() {
        let profile = example();
        let page = write(&profile, 0, Some(&profile));
        assert_eq!(page.matches("</script>").count(), 2);
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Json = serde_json::from_str(data).unwrap();
        assert_eq!(data["profile"], data["base"]);
        assert_eq!(data["profile"]["functions"][4][0], "</script><b>\"é");
        assert!(!page.contains("http://") && !page.contains("https://"), "loads nothing");
    }
}
