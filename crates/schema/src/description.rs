//! The JSON Schema (draft 2020-12) and the Markdown reference, both written from the tables of keys.
//!
//! The schema describes the file as it is written, so every number or word may also be a text with `${ENV}` in it.
//! Rules that a schema cannot express well (references, keys that exclude one another) are left to `load`.

use crate::object::Object;
use serde_json::{Map, Value as Json, json};

/// One key of an object.
pub struct KeyDescription {
    /// The name of the key.
    pub name: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// The schema of its value.
    pub schema: Json,
    /// Whether it is required.
    pub presence: Presence,
}

/// Whether a key is required.
pub enum Presence {
    /// It is required.
    Required,
    /// It is optional.
    Optional,
    /// Optional with this default, as in YAML; null if it cannot be shown.
    Default(Json),
}

/// The schemas of all objects met so far, by name and in order of appearance.
#[derive(Default)]
pub struct Definitions {
    objects: Vec<(&'static str, Json)>,
}

impl Definitions {
    /// A reference to the object's schema.
    pub fn object<T: Object>(&mut self) -> Json {
        // `RouteKeys` is the written form of a route; for its author, it is a `Route`.
        let name = T::NAME.trim_end_matches("Keys");
        if !self.objects.iter().any(|(known, _)| *known == name) {
            let slot = self.objects.len();
            self.objects.push((name, Json::Null));
            self.objects[slot].1 = object_schema::<T>(self);
        }
        json!({"$ref": format!("#/$defs/{name}")})
    }

    /// Adds a schema without an object.
    pub fn insert(&mut self, name: &'static str, schema: Json) {
        self.objects.push((name, schema));
    }

    /// Adds a key to an object that a reference leads to.
    pub fn add_key(&mut self, reference: &Json, key: &str, schema: &Json) {
        let name = reference["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"));
        if let Some((_, object)) = self.objects.iter_mut().find(|(known, _)| Some(*known) == name) {
            object["properties"][key] = schema.clone();
        }
    }

    /// The keys of an object met so far, as a Markdown table.
    pub fn table(&self, name: &str) -> Option<String> {
        let (_, schema) = self.objects.iter().find(|(known, _)| *known == name)?;
        let mut out = String::new();
        write_table(&mut out, schema);
        Some(out)
    }
}

fn object_schema<T: Object>(definitions: &mut Definitions) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in T::describe(definitions) {
        let mut schema = key.schema;
        schema["description"] = json!(one_line(key.doc));
        match key.presence {
            Presence::Default(default) if !default.is_null() => schema["default"] = default,
            Presence::Required => required.push(key.name),
            _ => {}
        }
        properties.insert(key.name.to_owned(), schema);
    }
    let mut schema = json!({
        "type": ["object", "null"],
        "description": one_line(T::DOC),
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let needs = T::NEEDS.iter().map(|keys| {
        let one = keys.iter().map(|key| json!({"required": [key]}));
        json!({"anyOf": one.collect::<Vec<_>>()})
    });
    if !T::NEEDS.is_empty() {
        schema["allOf"] = needs.collect();
    }
    schema
}

/// The schema of a key that is known but not implemented.
pub fn unimplemented_schema() -> Json {
    json!({"enum": [null, false, "", [], {}]})
}

/// The name of the schema of texts with an environment variable.
pub const ENVIRONMENT: &str = "Environment";

/// The schema, or a text with an environment variable in it.
pub fn or_environment(schema: Json) -> Json {
    json!({"anyOf": [schema, {"$ref": format!("#/$defs/{ENVIRONMENT}")}]})
}

/// The schema of a file whose root is `T`. `more` adds definitions that are not reachable from there.
pub fn schema_of<T: Object>(more: impl FnOnce(&mut Definitions)) -> Json {
    let mut definitions = Definitions::default();
    let mut root = object_schema::<T>(&mut definitions);
    more(&mut definitions);
    let mut defs: Map<String, Json> = definitions.objects.into_iter().map(|(n, s)| (n.to_owned(), s)).collect();
    let environment = json!({
        "type": "string",
        "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
        "description": "A text with an environment variable: ${NAME} or ${NAME:-default}.",
    });
    defs.insert(ENVIRONMENT.to_owned(), environment);
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("Stillgate configuration");
    root["$defs"] = Json::Object(defs);
    root
}

/// All keys of a file whose root is `T`, as Markdown tables.
pub fn reference_of<T: Object>() -> String {
    let mut definitions = Definitions::default();
    let mut out = format!("# Configuration\n\n{}\n\n", one_line(T::DOC));
    write_table(&mut out, &object_schema::<T>(&mut definitions));
    for (name, schema) in &definitions.objects {
        let doc = schema["description"].as_str().unwrap_or_default();
        out.push_str(&format!("\n## {name}\n\n{doc}\n\n"));
        write_table(&mut out, schema);
    }
    out
}

fn write_table(out: &mut String, schema: &Json) {
    out.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut unbuilt = Vec::new();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if property["enum"] == unimplemented_schema()["enum"] {
            unbuilt.push(format!("`{key}`"));
            continue;
        }
        let default = match property.get("default") {
            Some(Json::String(text)) => format!("`{text}`"),
            Some(default) => format!("`{default}`"),
            None if required.iter().any(|r| r == key) => "required".to_owned(),
            None => String::new(),
        };
        let meaning = property["description"].as_str().unwrap_or_default();
        let row = [format!("`{key}`"), value_words(property), default, meaning.to_owned()];
        let row = row.map(|cell| cell.replace('|', "\\|"));
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    if !unbuilt.is_empty() {
        let known = format!("Not supported yet; rejected unless empty: {}.", unbuilt.join(", "));
        out.push_str(&format!("\n{}\n", wrapped(&known)));
    }
}

/// A paragraph, wrapped at the line length of documents.
fn wrapped(text: &str) -> String {
    const COLUMNS_MAX: usize = 100;
    let (mut out, mut columns) = (String::new(), 0);
    for word in text.split(' ') {
        let is_first = columns == 0;
        let fits = columns + 1 + word.len() <= COLUMNS_MAX;
        out.push_str(if is_first {
            ""
        } else if fits {
            " "
        } else {
            "\n"
        });
        columns = if is_first || !fits { word.len() } else { columns + 1 + word.len() };
        out.push_str(word);
    }
    out
}

/// The allowed values in a few words.
fn value_words(schema: &Json) -> String {
    if let Some(title) = schema["title"].as_str() {
        return title.to_owned();
    }
    if let Some(words) = schema["enum"].as_array() {
        let word = |w: &Json| format!("`{}`", w.as_str().map_or_else(|| w.to_string(), str::to_owned));
        return words.iter().map(word).collect::<Vec<_>>().join(", ");
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(schemas) = schema["anyOf"].as_array() {
        let environment = format!("#/$defs/{ENVIRONMENT}");
        let words = schemas.iter().filter(|s| s["$ref"] != json!(environment)).map(value_words);
        return words.collect::<Vec<_>>().join(" or ");
    }
    // Among several types, the first is the most informative.
    match schema["type"].as_str().or_else(|| schema["type"][0].as_str()) {
        Some("array") if schema["items"].is_object() => format!("list of {}", value_words(&schema["items"])),
        Some("array") => "list".to_owned(),
        Some("integer") => match (&schema["minimum"], &schema["maximum"]) {
            (Json::Null, Json::Null) => "whole number".to_owned(),
            (min, Json::Null) => format!("{min} or more"),
            (min, max) => format!("{min} to {max}"),
        },
        // A float whose value is whole is written without `.0`.
        Some("number") => match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            _ => "number".to_owned(),
        },
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("object") => "map".to_owned(),
        _ => "text".to_owned(),
    }
}

/// Doc comment lines as one paragraph, without rustdoc's link brackets.
fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}
