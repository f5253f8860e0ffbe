//! Checks of a page's elements: nothing active is in it, and everything that assistive technology needs is there.
//!
//! It reads the browser's own serialisation (`--dump-dom`), which quotes every attribute, and no other HTML.

use std::collections::{HashMap, HashSet};

/// An opening tag; with the text after it up to the next tag.
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: HashMap<String, String>,
    pub(crate) text: String,
    /// Tags of all elements around it.
    pub(crate) within: Vec<String>,
}

/// Elements that have no end tag.
const VOID: [&str; 6] = ["meta", "input", "link", "br", "img", "hr"];

/// Elements that could load or run something.
const ACTIVE: [&str; 14] = [
    "script", "link", "img", "image", "iframe", "object", "embed", "form", "base", "audio", "video", "source",
    "animate", "set",
];

/// All elements of a page, in order.
pub(crate) fn elements(page: &str) -> Vec<Element> {
    let (mut all, mut open): (Vec<Element>, Vec<String>) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        if let Some(last) = all.last_mut() {
            last.text.push_str(&rest[..at]);
        }
        rest = &rest[at..];
        let end = tag_end(rest);
        let (tag, after) = (&rest[1..end], &rest[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let from = open.iter().rposition(|inner| inner == name).unwrap_or_else(|| panic!("</{name}> ends nothing"));
            open.truncate(from);
        } else if !tag.starts_with('!') {
            let element = element(tag, &open);
            let name = element.name.clone();
            all.push(element);
            if name == "style" {
                rest = &rest[rest.find("</style>").unwrap()..];
            }
            if !VOID.contains(&name.as_str()) {
                open.push(name);
            }
        }
    }
    all
}

/// Panics with all faults of a page.
#[track_caller]
pub(crate) fn check(page: &str) {
    let all = elements(page);
    let mut faults = Vec::new();
    let mut ids = HashSet::new();
    for element in &all {
        if let Some(id) = element.attributes.get("id")
            && !ids.insert(id.as_str())
        {
            faults.push(format!("the id {id} occurs twice"));
        }
    }
    for element in &all {
        inert(element, &mut faults);
        references(element, &ids, &mut faults);
        named(element, &mut faults);
    }
    structure(&all, &mut faults);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(30)].join("\n"));
}

fn element(tag: &str, open: &[String]) -> Element {
    let tag = tag.trim_end_matches('/');
    let (name, mut rest) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
    let mut attributes = HashMap::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').expect("a quoted attribute ends");
        attributes.insert(key.trim().to_owned(), value.to_owned());
        rest = after;
    }
    Element { name: name.to_owned(), attributes, text: String::new(), within: open.to_vec() }
}

/// The end of the tag that `text` begins with; a `>` may be within quotes.
fn tag_end(text: &str) -> usize {
    let mut quoted = false;
    let end = text.bytes().position(|byte| {
        quoted ^= byte == b'"';
        byte == b'>' && !quoted
    });
    end.expect("a tag ends")
}

/// Nothing is loaded and nothing is run.
fn inert(element: &Element, faults: &mut Vec<String>) {
    let Element { name, attributes, .. } = element;
    if ACTIVE.contains(&name.as_str()) {
        faults.push(format!("<{name}> is active"));
    }
    for (key, value) in attributes {
        let loads =
            ["src", "srcset", "data", "action", "ping", "background", "poster", "style"].contains(&key.as_str());
        if loads || key.starts_with("on") {
            faults.push(format!("<{name}> has {key}=\"{value}\""));
        }
        if key.ends_with("href") && !value.starts_with('#') {
            faults.push(format!("<{name}> leads out of the page: {value}"));
        }
    }
}

/// References to elements must find them.
fn references(element: &Element, ids: &HashSet<&str>, faults: &mut Vec<String>) {
    for key in ["href", "aria-labelledby", "aria-describedby", "for"] {
        let Some(value) = element.attributes.get(key) else { continue };
        for id in value.split_whitespace().map(|id| id.trim_start_matches('#')) {
            if !ids.contains(id) {
                faults.push(format!("<{}> {key} refers to {id}, which does not exist", element.name));
            }
        }
    }
}

/// Visible or focusable elements must have a name.
fn named(element: &Element, faults: &mut Vec<String>) {
    let Element { name, attributes, within, .. } = element;
    let has = |key: &str| attributes.contains_key(key);
    let labelled = has("aria-label") || has("aria-labelledby");
    let hidden = attributes.get("aria-hidden").is_some_and(|hidden| hidden == "true");
    if name == "svg" && !within.contains(&"svg".to_owned()) && !hidden && (!has("role") || !labelled) {
        faults.push(format!("<svg> without a role and a name: {attributes:?}"));
    }
    if attributes.get("tabindex").is_some_and(|index| index == "0") && (!has("role") || !labelled) {
        faults.push(format!("<{name}> takes the focus without a role and a name: {attributes:?}"));
    }
    if name == "th" && !has("scope") {
        faults.push(format!("<th> without a scope: {}", element.text));
    }
}

/// One heading of the first level, no level left out, a caption in every table.
fn structure(all: &[Element], faults: &mut Vec<String>) {
    let count = |name: &str| all.iter().filter(|element| element.name == name).count();
    for (name, times) in [("h1", 1), ("main", 1), ("nav", 1), ("title", count("title"))] {
        if count(name) != times {
            faults.push(format!("<{name}> occurs {} times", count(name)));
        }
    }
    let mut level = 0;
    for element in all {
        let Some(next) = element.name.strip_prefix('h').and_then(|digit| digit.parse::<u32>().ok()) else { continue };
        if next > level + 1 {
            faults.push(format!("<h{next}> after <h{level}>: {}", element.text));
        }
        level = next;
    }
    if count("table") != count("caption") {
        faults.push(format!("{} tables, {} captions", count("table"), count("caption")));
    }
    if all.first().is_none_or(|html| html.attributes.get("lang").is_none_or(|lang| lang != "en")) {
        faults.push("<html> without its language".to_owned());
    }
}
