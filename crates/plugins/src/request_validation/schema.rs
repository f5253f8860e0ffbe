//! A JSON Schema (draft 7) compiled into a list of parts that refer to one another by index.
//!
//! No existing library can be interrupted when a body takes too long, sets defaults, and has APISIX's error messages.
//! References to other documents are refused, and so are keywords of other drafts, which would be ignored.

use crate::patterns::{self, Flags};
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, HashMap};
use stillgate_route::regex::BoundedSearch;
use stillgate_schema::CompileBudget;

/// Most subschemas of one schema.
const PARTS_MAX: usize = 4096;
/// Most regular expressions of one schema.
const PATTERNS_MAX: usize = 64;

/// Index of a part in the list.
pub(super) type Index = usize;

/// A compiled schema. The first part is its root.
pub(super) struct Schema {
    pub(super) parts: Vec<SchemaPart>,
    /// Names of properties in it.
    pub(super) names: Vec<String>,
}

/// The constraints of one schema. An empty one accepts everything.
#[derive(Default)]
pub(super) struct SchemaPart {
    /// It is `false`: no value is valid.
    pub(super) is_never: bool,
    /// `$ref`, beside which everything else is ignored.
    pub(super) reference: Option<Index>,
    pub(super) types: Vec<String>,
    pub(super) choices: Option<Vec<Json>>,
    pub(super) constant: Option<Json>,
    pub(super) default: Option<Json>,
    pub(super) number: Numbers,
    pub(super) text: TextRules,
    pub(super) object: Objects,
    pub(super) list: Lists,
    pub(super) all_of: Vec<Index>,
    pub(super) any_of: Vec<Index>,
    pub(super) one_of: Vec<Index>,
    pub(super) not: Option<Index>,
    /// `if`, `then`, `else`
    pub(super) condition: Option<[Option<Index>; 3]>,
    /// Its own `required` as JSON, for the message of an `anyOf`.
    pub(super) required_json: Option<String>,
}

#[derive(Default)]
pub(super) struct Numbers {
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) above: Option<f64>,
    pub(super) below: Option<f64>,
    pub(super) multiple_of: Option<f64>,
}

#[derive(Default)]
pub(super) struct TextRules {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    pub(super) pattern: Option<(String, BoundedSearch)>,
    pub(super) format: Option<String>,
}

#[derive(Default)]
pub(super) struct Objects {
    pub(super) properties: BTreeMap<String, Index>,
    pub(super) patterns: Vec<(String, BoundedSearch, Index)>,
    pub(super) additional: Option<Index>,
    pub(super) names: Option<Index>,
    pub(super) required: Vec<String>,
    pub(super) dependencies: Vec<(String, Dependency)>,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

pub(super) enum Dependency {
    Names(Vec<String>),
    Schema(Index),
}

#[derive(Default)]
pub(super) struct Lists {
    pub(super) each: Option<Index>,
    pub(super) tuple: Option<Vec<Index>>,
    pub(super) additional: Option<Index>,
    pub(super) contains: Option<Index>,
    pub(super) is_unique: bool,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

/// Keywords of other drafts that affect validity.
const REFUSED: &[&str] = &[
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "prefixItems",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Types of the draft, and of APISIX's library: `table` is an object or a list, and no value is a `function`.
const TYPES: &[&str] = &["array", "boolean", "function", "integer", "null", "number", "object", "string", "table"];
const DRAFTS: &[&str] = &["draft-04/schema", "draft-06/schema", "draft-07/schema"];

impl Schema {
    /// Compiles a schema. The error says what is wrong, and where.
    pub(super) fn compile(root: &Json, budget: &CompileBudget) -> Result<Schema, String> {
        let mut compiler =
            Compiler { places: HashMap::new(), queue: Vec::new(), names: Vec::new(), patterns: 0, budget };
        compiler.part(String::new())?;
        let mut parts: Vec<SchemaPart> = Vec::new();
        // A queue of the parts to read, since references may lead through thousands of schemas.
        while let Some(pointer) = compiler.queue.get(parts.len()).cloned() {
            let json = root.pointer(&pointer).ok_or_else(|| format!("{pointer:?} leads nowhere"))?;
            let part = compiler.read(&pointer, json);
            parts.push(part.map_err(|what| if pointer.is_empty() { what } else { format!("{pointer}: {what}") })?);
        }
        let mut states = vec![ItemState::Unseen; parts.len()];
        for index in 0..parts.len() {
            ends(index, 0, &parts, &mut states)?;
        }
        Ok(Schema { parts, names: compiler.names })
    }
}

struct Compiler<'b> {
    places: HashMap<String, Index>,
    queue: Vec<String>,
    names: Vec<String>,
    patterns: usize,
    budget: &'b CompileBudget,
}

impl Compiler<'_> {
    fn part(&mut self, pointer: String) -> Result<Index, String> {
        if let Some(index) = self.places.get(&pointer) {
            return Ok(*index);
        }
        if self.queue.len() == PARTS_MAX {
            return Err(format!("there are more than {PARTS_MAX} schemas in this schema"));
        }
        self.places.insert(pointer.clone(), self.queue.len());
        self.queue.push(pointer);
        Ok(self.queue.len() - 1)
    }

    fn read(&mut self, at: &str, json: &Json) -> Result<SchemaPart, String> {
        let map = match json {
            Json::Bool(is_any) => return Ok(SchemaPart { is_never: !is_any, ..SchemaPart::default() }),
            Json::Object(map) => map,
            _ => return Err("a schema is an object, true or false".to_owned()),
        };
        self.check_keywords(at, map)?;
        if let Some(target) = map.get("$ref") {
            let reference = Some(self.reference(target)?);
            return Ok(SchemaPart { reference, ..SchemaPart::default() });
        }
        let of = |key: &str| map.get(key);
        let types = match of("type") {
            None => Vec::new(),
            Some(Json::String(one)) => vec![one.clone()],
            Some(list) => texts("type", list)?,
        };
        if let Some(bad) = types.iter().find(|name| !TYPES.contains(&name.as_str())) {
            return Err(format!("the type {bad:?} is not known"));
        }
        let choices = match of("enum") {
            None => None,
            Some(Json::Array(list)) => Some(list.clone()),
            Some(_) => return Err("`enum` is a list".to_owned()),
        };
        let condition = match of("if") {
            None => None,
            Some(_) => Some([self.one(at, map, "if")?, self.one(at, map, "then")?, self.one(at, map, "else")?]),
        };
        Ok(SchemaPart {
            types,
            choices,
            condition,
            constant: of("const").cloned(),
            default: of("default").cloned(),
            number: numbers(map)?,
            text: self.texts(map)?,
            object: self.objects(at, map)?,
            list: self.lists(at, map)?,
            all_of: self.several(at, map, "allOf")?,
            any_of: self.several(at, map, "anyOf")?,
            one_of: self.several(at, map, "oneOf")?,
            not: self.one(at, map, "not")?,
            required_json: of("required").map(Json::to_string),
            ..SchemaPart::default()
        })
    }

    fn check_keywords(&self, at: &str, map: &Map<String, Json>) -> Result<(), String> {
        if let Some(key) = map.keys().find(|key| REFUSED.contains(&key.as_str())) {
            return Err(format!("`{key}` is not known; write the schema in draft 7"));
        }
        if let Some(draft) = map.get("$schema").and_then(Json::as_str)
            && !DRAFTS.iter().any(|known| draft.trim_end_matches('#').ends_with(known))
        {
            return Err(format!("`$schema` is {draft:?}; write the schema in draft 7"));
        }
        if !at.is_empty() && map.get("$id").is_some_and(Json::is_string) && !at.ends_with("/properties") {
            return Err("`$id` inside a schema is not known; name it by its path, as in `#/definitions/a`".to_owned());
        }
        Ok(())
    }

    fn reference(&mut self, target: &Json) -> Result<Index, String> {
        let text = target.as_str().ok_or("`$ref` is a text")?;
        match text.strip_prefix('#').filter(|path| path.is_empty() || path.starts_with('/')) {
            Some(path) => {
                let path: Vec<u8> = percent_decoded(path);
                self.part(String::from_utf8(path).map_err(|_| format!("`$ref` {text:?} is not a path"))?)
            }
            None => Err(format!(
                "`$ref` {text:?} leads out of the schema, and nothing is fetched; write it as in `#/definitions/a`"
            )),
        }
    }

    fn one(&mut self, at: &str, map: &Map<String, Json>, key: &str) -> Result<Option<Index>, String> {
        map.contains_key(key).then(|| self.part(format!("{at}/{key}"))).transpose()
    }

    fn several(&mut self, at: &str, map: &Map<String, Json>, key: &str) -> Result<Vec<Index>, String> {
        match map.get(key) {
            None => Ok(Vec::new()),
            Some(Json::Array(list)) if !list.is_empty() => {
                (0..list.len()).map(|index| self.part(format!("{at}/{key}/{index}"))).collect()
            }
            Some(_) => Err(format!("`{key}` is a list of schemas")),
        }
    }

    fn pattern(&mut self, pattern: &str) -> Result<BoundedSearch, String> {
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX {
            return Err(format!("there are more than {PATTERNS_MAX} regular expressions in this schema"));
        }
        patterns::compile_search(pattern, Flags::default(), self.budget).map_err(|fault| match fault.hint {
            Some(hint) => format!("{pattern:?} is {}; {hint}", fault.message),
            None => format!("{pattern:?} is {}", fault.message),
        })
    }

    fn texts(&mut self, map: &Map<String, Json>) -> Result<TextRules, String> {
        let pattern = match map.get("pattern") {
            None => None,
            Some(Json::String(text)) => Some((text.clone(), self.pattern(text)?)),
            Some(_) => return Err("`pattern` is a text".to_owned()),
        };
        let format = map.get("format").and_then(Json::as_str).map(str::to_owned);
        Ok(TextRules { min: count(map, "minLength")?, max: count(map, "maxLength")?, pattern, format })
    }

    fn objects(&mut self, at: &str, map: &Map<String, Json>) -> Result<Objects, String> {
        let mut object = Objects {
            additional: self.one(at, map, "additionalProperties")?,
            names: self.one(at, map, "propertyNames")?,
            required: map.get("required").map_or(Ok(Vec::new()), |list| texts("required", list))?,
            min: count(map, "minProperties")?,
            max: count(map, "maxProperties")?,
            ..Objects::default()
        };
        for name in keys(map, "properties")? {
            object.properties.insert(name.clone(), self.part(format!("{at}/properties/{}", escaped(name)))?);
        }
        for pattern in keys(map, "patternProperties")? {
            let part = self.part(format!("{at}/patternProperties/{}", escaped(pattern)))?;
            object.patterns.push((pattern.clone(), self.pattern(pattern)?, part));
        }
        for name in keys(map, "dependencies")? {
            let dependency = match &map["dependencies"][name] {
                list @ Json::Array(_) => Dependency::Names(texts("dependencies", list)?),
                _ => Dependency::Schema(self.part(format!("{at}/dependencies/{}", escaped(name)))?),
            };
            object.dependencies.push((name.clone(), dependency));
        }
        self.names.extend(object.properties.keys().chain(&object.required).cloned());
        for (name, dependency) in &object.dependencies {
            self.names.push(name.clone());
            if let Dependency::Names(names) = dependency {
                self.names.extend(names.iter().cloned());
            }
        }
        Ok(object)
    }

    fn lists(&mut self, at: &str, map: &Map<String, Json>) -> Result<Lists, String> {
        let (each, tuple) = match map.get("items") {
            Some(Json::Array(list)) => {
                let item = |index| self.part(format!("{at}/items/{index}"));
                (None, Some((0..list.len()).map(item).collect::<Result<_, _>>()?))
            }
            _ => (self.one(at, map, "items")?, None),
        };
        Ok(Lists {
            each,
            tuple,
            additional: self.one(at, map, "additionalItems")?,
            contains: self.one(at, map, "contains")?,
            is_unique: map.get("uniqueItems") == Some(&Json::Bool(true)),
            min: count(map, "minItems")?,
            max: count(map, "maxItems")?,
        })
    }
}

fn numbers(map: &Map<String, Json>) -> Result<Numbers, String> {
    let number = |key: &str| match map.get(key) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| format!("`{key}` is a number")),
    };
    let multiple_of = number("multipleOf")?;
    if multiple_of.is_some_and(|of| of <= 0.0) {
        return Err("`multipleOf` is above 0".to_owned());
    }
    Ok(Numbers {
        min: number("minimum")?,
        max: number("maximum")?,
        above: number("exclusiveMinimum")?,
        below: number("exclusiveMaximum")?,
        multiple_of,
    })
}

fn count(map: &Map<String, Json>, key: &str) -> Result<Option<u64>, String> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| format!("`{key}` is a whole number from 0")),
    }
}

fn texts(key: &str, list: &Json) -> Result<Vec<String>, String> {
    let wrong = || format!("`{key}` is a list of texts");
    let list = list.as_array().ok_or_else(wrong)?;
    list.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

fn keys<'a>(map: &'a Map<String, Json>, key: &str) -> Result<Vec<&'a String>, String> {
    match map.get(key) {
        None => Ok(Vec::new()),
        Some(Json::Object(map)) => Ok(map.keys().collect()),
        Some(_) => Err(format!("`{key}` is an object")),
    }
}

/// Escapes a name for a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// `+` is literal in a fragment.
fn percent_decoded(path: &str) -> Vec<u8> {
    stillgate_plugin_api::query::decoded(path.replace('+', "%2B").as_bytes()).collect()
}

/// Most nested schemas for one value. It bounds the stack, together with the depth of a body.
const NESTED_MAX: u32 = 24;

#[derive(Clone, Copy)]
enum ItemState {
    Unseen,
    Open,
    /// Its depth in parts.
    Done(u32),
}

/// Number of nested parts that check one value, from this one on.
fn ends(index: Index, above: u32, parts: &[SchemaPart], states: &mut [ItemState]) -> Result<u32, String> {
    match states[index] {
        ItemState::Done(depth) => return Ok(depth),
        ItemState::Open => return Err("a `$ref` leads back to itself without going into the value".to_owned()),
        ItemState::Unseen => states[index] = ItemState::Open,
    }
    let too_deep = || format!("more than {NESTED_MAX} nested schemas for one value");
    if above > NESTED_MAX {
        return Err(too_deep());
    }
    let mut deepest = 0;
    let part = &parts[index];
    let dependencies = part.object.dependencies.iter().filter_map(|(_, dependency)| match dependency {
        Dependency::Schema(index) => Some(*index),
        Dependency::Names(_) => None,
    });
    let lists = part.all_of.iter().chain(&part.any_of).chain(&part.one_of).copied();
    let single = part.reference.into_iter().chain(part.not).chain(part.condition.into_iter().flatten().flatten());
    for below in lists.chain(single).chain(dependencies) {
        deepest = deepest.max(ends(below, above + 1, parts, states)? + 1);
    }
    if deepest > NESTED_MAX {
        return Err(too_deep());
    }
    states[index] = ItemState::Done(deepest);
    Ok(deepest)
}
