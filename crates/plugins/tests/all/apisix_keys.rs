//! The keys of the plugins are APISIX's: names, types, defaults, bounds. Differences are in a table of
//! `docs/differences-from-apisix.md`, each with its reason; an obsolete row is an error, too.
//!
//! Dependencies between keys, and the format of texts, are not compared.

use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use stillgate_plugins::TABLE;
use stillgate_schema::description::schema_of;
use stillgate_schema::object;

const FACTS: &str = include_str!("../data/apisix_keys.txt");
const DOCUMENT: &str = include_str!("../../../../docs/differences-from-apisix.md");
const BEGIN: &str = "<!-- keys that differ -->";
const END: &str = "<!-- end -->";

/// Defaults that are not in the schemas, by plugin, part and key. The plugins' own tests cover them.
const UNTOLD: &[(&str, &str, &str)] = &[
    ("acl", "", "external_user_label_field"),
    ("cors", "", "allow_origins"),
    ("grpc-web", "", "cors_allow_headers"),
    ("gzip", "", "buffers"),
    ("limit-count", "", "sync_interval"),
    ("limit-count", "metadata", "limit_header"),
    ("limit-count", "metadata", "remaining_header"),
    ("limit-count", "metadata", "reset_header"),
    ("mocking", "", "content_type"),
    ("request-id", "", "range_id"),
    ("traffic-split", "", "rules[].weighted_upstreams"),
];

object! {
    /// Makes the plugins' schemas one document.
    pub(crate) struct NothingKeys {}
}

/// The values that APISIX accepts under a key.
struct Fact {
    is_required: bool,
    types: Vec<&'static str>,
    /// Empty: none.
    min: &'static str,
    max: &'static str,
    words: BTreeSet<&'static str>,
    default: Option<&'static str>,
}

/// The facts of one plugin.
struct Facts {
    priority: i32,
    /// Keyed by part (`""`, `consumer`, `metadata`) and path.
    keys: BTreeMap<(&'static str, &'static str), Fact>,
}

fn facts() -> BTreeMap<&'static str, Facts> {
    let mut all: BTreeMap<&str, Facts> = BTreeMap::new();
    let mut plugin = "";
    for line in FACTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(line) = line.strip_prefix("  ") else {
            let (name, priority) = line.split_once(' ').expect("a plugin and its priority");
            plugin = name;
            all.insert(name, Facts { priority: priority.parse().expect("a number"), keys: BTreeMap::new() });
            continue;
        };
        let (part, line) = match line.split_once(' ') {
            Some((part @ ("consumer" | "metadata"), rest)) => (part, rest),
            _ => ("", line),
        };
        let (line, default) = match line.split_once(" = ") {
            Some((line, default)) => (line, Some(default)),
            None => (line.trim_end_matches(" ="), line.ends_with(" =").then_some("")),
        };
        let (line, words) = line.split_once(" {").unwrap_or((line, ""));
        let mut line = line.split(' ');
        let key = line.next().expect("a key");
        let types = line.next().unwrap_or_else(|| panic!("{plugin} {key}: no type")).split('|').collect();
        let (min, max) = line.next().and_then(|bounds| bounds.split_once("..")).unwrap_or_default();
        let words = words.trim_end_matches('}').split(' ').filter(|word| !word.is_empty()).collect();
        let fact = Fact { is_required: key.ends_with('!'), types, min, max, words, default };
        let keys = &mut all.get_mut(plugin).expect("a plugin before its keys").keys;
        assert!(keys.insert((part, key.trim_end_matches('!')), fact).is_none(), "{plugin} {key} twice");
    }
    all
}

/// Differences: the plugin and the key, and a description.
type Differences = BTreeMap<(String, String), String>;

/// The plugins' schemas, and the results of the comparison.
struct Comparison {
    schemas: Json,
    plugin: &'static str,
    part: &'static str,
    found: Differences,
}

impl Comparison {
    fn differs(&mut self, path: &str, how: impl Into<String>) {
        let key = if self.part.is_empty() { path.to_owned() } else { format!("{} {path}", self.part) };
        let all = self.found.entry((self.plugin.to_owned(), key)).or_default();
        if !all.is_empty() {
            all.push_str("; ");
        }
        all.push_str(&how.into());
    }

    /// The alternatives of a schema, without texts with variables of the environment.
    fn forms<'s>(&'s self, schema: &'s Json) -> Vec<&'s Json> {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().expect("a name");
            return if name == "Environment" { Vec::new() } else { vec![&self.schemas["$defs"][name]] };
        }
        match schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
            Some(forms) => forms.iter().flat_map(|form| self.forms(form)).collect(),
            None => vec![schema],
        }
    }

    /// Compares the keys of an object, and of nested objects.
    fn object(&mut self, schema: &Json, prefix: &str, facts: &Facts) {
        let part = self.part;
        let of_here =
            |path: &&str| path.strip_prefix(prefix).is_some_and(|key| !key.contains('.') && !key.ends_with("[]"));
        let known = facts.keys.keys().filter(|(of, path)| *of == part && of_here(path)).map(|(_, path)| *path);
        let known: BTreeSet<&str> = known.collect();
        for path in &known {
            let key = &path[prefix.len()..];
            let fact = &facts.keys[&(part, *path)];
            match schema["properties"].get(key).filter(|of| of["enum"] != json!([null, false, "", [], {}])) {
                None => self.differs(path, "missing"),
                Some(ours) => {
                    let required = schema["required"].as_array().is_some_and(|all| all.contains(&json!(key)));
                    self.key(path, ours, required, fact);
                    self.nested(path, ours, facts);
                }
            }
        }
        for (key, _) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{prefix}{key}");
            if !known.contains(&*path) {
                self.differs(&path, "not in APISIX");
            }
        }
    }

    fn nested(&mut self, path: &str, ours: &Json, facts: &Facts) {
        let forms: Vec<(String, Json)> = self
            .forms(ours)
            .into_iter()
            .flat_map(|form| match form["items"].is_object() {
                true => {
                    self.forms(&form["items"]).into_iter().map(|item| (format!("{path}[]."), item.clone())).collect()
                }
                false => vec![(format!("{path}."), form.clone())],
            })
            .collect();
        for (prefix, form) in forms.iter().filter(|(_, form)| form["properties"].is_object()) {
            let part = self.part;
            if facts.keys.keys().any(|(of, path)| *of == part && path.starts_with(prefix)) {
                self.object(form, prefix, facts);
            }
        }
    }

    fn key(&mut self, path: &str, ours: &Json, is_required: bool, fact: &Fact) {
        if is_required != fact.is_required {
            self.differs(path, if is_required { "required here only" } else { "required in APISIX only" });
        }
        let forms: Vec<Json> = self.forms(ours).into_iter().cloned().collect();
        let types: BTreeSet<&str> = forms.iter().flat_map(types).collect();
        let is_open = types.contains("any");
        for of in fact.types.iter().filter(|of| **of != "any" && !is_open) {
            let is_accepted = types.contains(of) || (*of == "word" && types.contains("text"));
            if !is_accepted {
                self.differs(path, format!("{of} is not accepted, but {types:?}"));
            }
        }
        if !fact.words.is_empty() {
            let words = forms.iter().filter_map(|form| form["enum"].as_array()).flatten();
            let words: BTreeSet<&str> = words.filter_map(Json::as_str).collect();
            if !words.is_empty() && words != fact.words {
                self.differs(path, format!("one of {words:?}"));
            }
        }
        if let Some(form) = forms.iter().find(|form| form["type"] == "integer" || form["type"] == "number")
            && fact.types.iter().any(|of| matches!(*of, "int" | "number"))
        {
            self.bounds(path, form, fact);
        }
        self.default(path, &ours["default"], fact);
    }

    fn bounds(&mut self, path: &str, form: &Json, fact: &Fact) {
        let is_whole = form["type"] == "integer";
        let above = |least: f64| if is_whole { least + 1.0 } else { least };
        let min = form["minimum"].as_f64().or_else(|| form["exclusiveMinimum"].as_f64().map(above));
        let max = form["maximum"].as_f64();
        let fact_min = match fact.min.strip_prefix('>') {
            Some(least) => least.parse().ok().map(above),
            None => fact.min.parse().ok(),
        };
        let fact_max = fact.max.parse::<f64>().ok();
        let is_min = match fact_min {
            Some(fact) => min == Some(fact),
            None => min.is_none_or(|min| min <= 0.0),
        };
        // If APISIX has no limit, ours is that of the type of number.
        let is_max = match fact_max {
            Some(fact) => max == Some(fact),
            None => max.is_none_or(|max| max >= f64::from(i32::MAX)),
        };
        if !is_min || !is_max {
            self.differs(path, format!("from {min:?} to {max:?}, not {}..{}", fact.min, fact.max));
        }
    }

    fn default(&mut self, path: &str, ours: &Json, fact: &Fact) {
        let of_fact = fact.default.map(|text| {
            let listed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            match (serde_json::from_str::<Json>(text), listed) {
                (Ok(value), _) if !fact.types.contains(&"text") => value,
                (_, Some(items)) => {
                    let item = |item: &str| serde_json::from_str(item).unwrap_or_else(|_| json!(item));
                    items.split(',').filter(|item| !item.is_empty()).map(item).collect()
                }
                _ => json!(text),
            }
        });
        let is_empty = |value: &Json| {
            value.is_null()
                || matches!(value, Json::Array(list) if list.is_empty())
                || *value == json!({})
                || *value == json!("")
        };
        let is_same = match (&of_fact, ours) {
            (None, ours) => is_empty(ours) || *ours == json!(false),
            // A word that looks like a number.
            (Some(_), Json::String(ours)) if Some(ours.as_str()) == fact.default => true,
            (Some(fact), ours) => {
                let number = |value: &Json| value.as_f64();
                fact == ours
                    || is_empty(fact) && is_empty(ours)
                    || number(fact).is_some() && number(fact) == number(ours)
            }
        };
        let key = (self.plugin, self.part, path);
        let is_untold = ours.is_null() && UNTOLD.contains(&key);
        if !is_same && !is_untold {
            self.differs(path, format!("by default {ours}, not {}", of_fact.unwrap_or_default()));
        }
    }
}

/// The types, in the words of the facts.
fn types(schema: &Json) -> Vec<&'static str> {
    let of = |name: &str| match name {
        "string" => "text",
        "integer" => "int",
        "number" => "number",
        "boolean" => "flag",
        "array" => "list",
        "object" => "map",
        _ => "null",
    };
    let mut types: Vec<&str> = match &schema["type"] {
        Json::String(name) => vec![of(name)],
        Json::Array(names) => names.iter().filter_map(Json::as_str).map(of).collect(),
        _ if schema["enum"].is_array() => vec!["word"],
        _ => vec!["any"],
    };
    // APISIX may accept any text for an enum, and each integer is a number.
    if types.contains(&"number") {
        types.push("int");
    }
    types
}

fn differences() -> Differences {
    let facts = facts();
    let mut references = Vec::new();
    let schemas = schema_of::<NothingKeys>(|definitions| {
        for plugin in TABLE.plugins {
            references.push((plugin, "", (plugin.schema)(definitions)));
            references.extend(plugin.credential.map(|part| (plugin, "consumer", (part.schema)(definitions))));
            references.extend(plugin.metadata.map(|part| (plugin, "metadata", (part.schema)(definitions))));
        }
    });
    let mut comparison = Comparison { schemas, plugin: "", part: "", found: Differences::new() };
    for (plugin, part, reference) in references {
        // A plugin that APISIX does not have.
        let Some(facts) = facts.get(plugin.name) else { continue };
        (comparison.plugin, comparison.part) = (plugin.name, part);
        if plugin.priority != facts.priority {
            comparison.differs("_meta.priority", format!("{}, not {}", plugin.priority, facts.priority));
        }
        let forms: Vec<Json> = comparison.forms(&reference).into_iter().cloned().collect();
        forms.iter().for_each(|form| comparison.object(form, "", facts));
    }
    comparison.found
}

/// The rows of the document: plugin and key.
fn stated() -> BTreeSet<(String, String)> {
    let (_, rest) = DOCUMENT.split_once(BEGIN).expect("the table in the document");
    let (table, _) = rest.split_once(END).expect("its end");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let keys = rows.flat_map(|row| {
        let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
        let plugin = cells.next().expect("a plugin").trim_matches('`').to_owned();
        let keys = cells.next().expect("keys").split(", ").map(|key| key.trim_matches('`').to_owned());
        assert_eq!(cells.filter(|cell| !cell.is_empty()).count(), 2, "what is different, and why: {row}");
        keys.map(move |key| (plugin.clone(), key)).collect::<Vec<_>>()
    });
    keys.collect()
}

#[test]
fn what_differs_from_apisix_is_stated() {
    let (found, stated) = (differences(), stated());
    let missing = found.iter().filter(|(key, _)| !stated.contains(key));
    let missing: Vec<String> = missing.map(|((plugin, key), how)| format!("{plugin} {key}: {how}")).collect();
    let known = |plugin: &str| TABLE.find(plugin).is_some();
    let stale: Vec<_> = stated.iter().filter(|key| !found.contains_key(key) && known(&key.0)).collect();
    assert!(missing.is_empty(), "not in docs/differences-from-apisix.md:\n{}", missing.join("\n"));
    assert!(stale.is_empty(), "in docs/differences-from-apisix.md, and not needed: {stale:?}");
}

/// The comparison finds what is different.
#[test]
fn a_difference_is_found() {
    let check = |fact: &'static str, ours: Json, found: Option<&str>| {
        let fact_of = |line: &'static str| {
            let (types, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (bounds, default) = rest.split_once("= ").map_or((rest, None), |(bounds, value)| (bounds, Some(value)));
            let (min, max) = bounds.trim().split_once("..").unwrap_or_default();
            Fact { is_required: false, types: types.split('|').collect(), min, max, words: BTreeSet::new(), default }
        };
        let mut comparison = Comparison { schemas: json!({}), plugin: "p", part: "", found: Differences::new() };
        comparison.key("k", &ours, false, &fact_of(fact));
        assert_eq!(comparison.found.into_values().next().as_deref(), found, "{fact}");
    };
    let int = |min: i64, max: i64| json!({"type": "integer", "minimum": min, "maximum": max});
    check("int 1..9", int(1, 9), None);
    check("int 1..9", int(0, 9), Some("from Some(0.0) to Some(9.0), not 1..9"));
    check("int 1..", int(1, 100), Some("from Some(1.0) to Some(100.0), not 1.."));
    check("int >0..", int(1, i64::MAX), None);
    check("text", json!({"type": "boolean"}), Some("text is not accepted, but {\"flag\"}"));
    check("int|text", json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), None);
    check("flag = true", json!({"type": "boolean", "default": false}), Some("by default false, not true"));
    check("text = 1", json!({"type": "string", "default": "1"}), None);
    check("list = [a,b]", json!({"type": "array", "default": ["a", "b"]}), None);
}
