//! Validates a value against a schema, with APISIX's error messages.
//!
//! Each check of a schema, a name, a text or an item takes steps of a budget, so that neither a schema nor a body can
//! block a thread for long: the number of checks may grow exponentially with the depth of a body.

use super::schema::{Dependency, Index, Schema, SchemaPart};
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use stillgate_plugin_api::json::Budget;
use stillgate_route::regex::{BoundedSearch, RegexWork, TooMuchWork};

/// Most levels of nested schemas and values, which bounds the stack.
const DEPTH_MAX: u32 = 600;
/// Bytes of a text that are checked in one step, or steps of a regular expression.
const STEP_BYTES: usize = 16;

/// The reason why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bad {
    /// It is invalid, for this reason.
    Value(String),
    /// The budget was used up.
    OutOfSteps,
    /// Schemas and values go too deep.
    TooDeep,
}

type CheckResult = Result<(), Bad>;

fn bad(message: impl Into<String>) -> Bad {
    Bad::Value(message.into())
}

/// Prepends `before` to a reason.
fn within(result: CheckResult, before: impl FnOnce() -> String) -> CheckResult {
    result.map_err(|why| match why {
        Bad::Value(message) => Bad::Value(before() + &message),
        stop => stop,
    })
}

impl Schema {
    /// Validates a value in so many steps at most.
    pub(super) fn check(&self, value: &Json, steps: u64) -> CheckResult {
        ValidationRun { schema: self, steps, depth: 0 }.part(0, value)
    }

    /// Adds the defaults of missing properties to a valid value. An object of two bytes may get many.
    pub(super) fn fill(&self, value: &mut Json, steps: u64, budget: &mut Budget) -> CheckResult {
        ValidationRun { schema: self, steps, depth: 0 }.fill(0, value, budget)
    }
}

struct ValidationRun<'s> {
    schema: &'s Schema,
    steps: u64,
    depth: u32,
}

impl<'s> ValidationRun<'s> {
    fn take(&mut self, steps: usize) -> CheckResult {
        self.steps = self.steps.checked_sub(steps as u64).ok_or(Bad::OutOfSteps)?;
        Ok(())
    }

    fn matches(&mut self, regex: &BoundedSearch, text: &str) -> Result<bool, Bad> {
        self.take(1)?;
        let all = usize::try_from(self.steps).unwrap_or(usize::MAX).saturating_mul(STEP_BYTES);
        let work = RegexWork::of_steps(all);
        let found = regex.is_match(text.as_bytes(), &work);
        self.take((all - work.steps_left()) / STEP_BYTES)?;
        found.map_err(|TooMuchWork| Bad::OutOfSteps)
    }

    /// Whether a schema accepts a value; the error says that this is unknown.
    fn takes(&mut self, index: Index, value: &Json) -> Result<bool, Bad> {
        match self.part(index, value) {
            Ok(()) => Ok(true),
            Err(Bad::Value(_)) => Ok(false),
            Err(stop) => Err(stop),
        }
    }

    fn part(&mut self, index: Index, value: &Json) -> CheckResult {
        self.take(1)?;
        if self.depth == DEPTH_MAX {
            return Err(Bad::TooDeep);
        }
        self.depth += 1;
        let part = &self.schema.parts[index];
        let result = match part.reference {
            Some(index) => self.part(index, value),
            None => self.keywords(part, value),
        };
        self.depth -= 1;
        result
    }

    fn keywords(&mut self, part: &'s SchemaPart, value: &Json) -> CheckResult {
        if part.is_never {
            return Err(bad("expect false always"));
        }
        if !part.types.is_empty() && !part.types.iter().any(|name| is_of(value, name)) {
            let expected = match &part.types[..] {
                [one] => one.clone(),
                several => format!("one of {}", several.join(", ")),
            };
            return Err(bad(format!("wrong type: expected {expected}, got {}", lua_type(value))));
        }
        match value {
            Json::Object(map) => self.object(part, map)?,
            Json::Array(list) => self.list(part, list)?,
            Json::String(text) => self.text(part, text)?,
            Json::Number(_) => number(part, value)?,
            _ => {}
        }
        self.constants(part, value)?;
        self.compound(part, value)
    }

    fn constants(&mut self, part: &SchemaPart, value: &Json) -> CheckResult {
        if let Some(choices) = &part.choices {
            self.take(choices.len())?;
            if !choices.iter().any(|choice| is_same(choice, value)) {
                return Err(bad("matches none of the enum values"));
            }
        }
        match &part.constant {
            Some(constant) if !is_same(constant, value) => Err(bad("failed to check const value")),
            _ => Ok(()),
        }
    }

    fn compound(&mut self, part: &SchemaPart, value: &Json) -> CheckResult {
        for (at, index) in part.all_of.iter().enumerate() {
            within(self.part(*index, value), || format!("allOf {} failed: ", at + 1))?;
        }
        if !part.any_of.is_empty() {
            self.any_of(&part.any_of, value)?;
        }
        if !part.one_of.is_empty() {
            self.one_of(&part.one_of, value)?;
        }
        if let Some(not) = part.not
            && self.takes(not, value)?
        {
            return Err(bad("value wasn't supposed to match schema"));
        }
        if let Some([Some(condition), then, other]) = part.condition {
            let branch = if self.takes(condition, value)? { then } else { other };
            branch.map_or(Ok(()), |index| self.part(index, value))?;
        }
        Ok(())
    }

    fn any_of(&mut self, schemas: &[Index], value: &Json) -> CheckResult {
        for index in schemas {
            if self.takes(*index, value)? {
                return Ok(());
            }
        }
        let parts = &self.schema.parts;
        let required: Vec<&str> = schemas.iter().filter_map(|index| parts[*index].required_json.as_deref()).collect();
        let names = if required.is_empty() { String::new() } else { format!(": {}", required.join(" or ")) };
        Err(bad(format!("object matches none of the required{names}")))
    }

    fn one_of(&mut self, schemas: &[Index], value: &Json) -> CheckResult {
        let mut matched = None;
        for (at, index) in schemas.iter().enumerate() {
            if self.takes(*index, value)?
                && let Some(first) = matched.replace(at + 1)
            {
                let both = format!("{first} and {}", at + 1);
                return Err(bad(format!("value should match only one schema, but matches both schemas {both}")));
            }
        }
        matched.map(|_| ()).ok_or_else(|| bad("value should match only one schema, but matches none"))
    }

    fn object(&mut self, part: &SchemaPart, map: &Map<String, Json>) -> CheckResult {
        let object = &part.object;
        self.take(object.properties.len() + object.required.len() + object.dependencies.len())?;
        for (name, index) in &object.properties {
            match map.get(name) {
                Some(value) => {
                    within(self.part(*index, value), || format!("property {name:?} validation failed: "))?;
                }
                None if object.required.contains(name) => return Err(bad(format!("property {name:?} is required"))),
                None => {}
            }
        }
        if let Some(name) = object.required.iter().find(|name| !map.contains_key(*name)) {
            return Err(bad(format!("property {name:?} is required")));
        }
        self.dependencies(part, map)?;
        self.other_properties(part, map)?;
        let count = map.len() as u64;
        if let Some(min) = object.min.filter(|min| count < *min) {
            return Err(bad(format!("expect object to have at least {min} properties")));
        }
        match object.max.filter(|max| count > *max) {
            Some(max) => Err(bad(format!("expect object to have at most {max} properties"))),
            None => Ok(()),
        }
    }

    fn dependencies(&mut self, part: &SchemaPart, map: &Map<String, Json>) -> CheckResult {
        for (name, dependency) in part.object.dependencies.iter().filter(|(name, _)| map.contains_key(name)) {
            match dependency {
                Dependency::Names(names) => {
                    self.take(names.len())?;
                    if let Some(missing) = names.iter().find(|name| !map.contains_key(*name)) {
                        return Err(bad(format!("property {missing:?} is required when {name:?} is set")));
                    }
                }
                Dependency::Schema(index) => {
                    // Copied, as a schema checks values. It counts as steps, and is rare.
                    self.take(1 + map.len())?;
                    let value = Json::Object(map.clone());
                    let before = || format!("failed to validate dependent schema for {name:?}: ");
                    within(self.part(*index, &value), before)?;
                }
            }
        }
        Ok(())
    }

    fn other_properties(&mut self, part: &SchemaPart, map: &Map<String, Json>) -> CheckResult {
        let object = &part.object;
        if object.patterns.is_empty() && object.additional.is_none() && object.names.is_none() {
            return Ok(());
        }
        for (name, value) in map {
            self.take(1)?;
            if let Some(index) = object.names {
                let value = Json::String(name.clone());
                within(self.part(index, &value), || format!("failed to validate property name {name:?}: "))?;
            }
            let mut is_known = object.properties.contains_key(name);
            for (pattern, regex, index) in &object.patterns {
                if self.matches(regex, name)? {
                    is_known = true;
                    let before = || format!("failed to validate {name} (matching {pattern:?}): ");
                    within(self.part(*index, value), before)?;
                }
            }
            if let Some(index) = object.additional.filter(|_| !is_known) {
                if self.schema.parts[index].is_never {
                    return Err(bad(format!("additional properties forbidden, found {name}")));
                }
                within(self.part(index, value), || format!("failed to validate additional property {name}: "))?;
            }
        }
        Ok(())
    }

    fn list(&mut self, part: &SchemaPart, items: &[Json]) -> CheckResult {
        let (list, count) = (&part.list, items.len() as u64);
        if let Some(min) = list.min.filter(|min| count < *min) {
            return Err(bad(format!("expect array to have at least {min} items")));
        }
        if let Some(max) = list.max.filter(|max| count > *max) {
            return Err(bad(format!("expect array to have at most {max} items")));
        }
        for (at, item) in items.iter().enumerate() {
            let (index, what) = match &list.tuple {
                None => (list.each, "item"),
                Some(tuple) if at < tuple.len() => (Some(tuple[at]), "item"),
                Some(_) => (list.additional, "additional item"),
            };
            let Some(index) = index else { break };
            if what != "item" && self.schema.parts[index].is_never {
                return Err(bad("found unexpected extra items in array"));
            }
            within(self.part(index, item), || format!("failed to validate {what} {}: ", at + 1))?;
        }
        if list.is_unique {
            self.unique(items)?;
        }
        let Some(index) = list.contains else { return Ok(()) };
        for item in items {
            if self.takes(index, item)? {
                return Ok(());
            }
        }
        Err(bad(if items.is_empty() { "check contains: empty array is invalid" } else { "failed to check contains" }))
    }

    fn unique(&mut self, items: &[Json]) -> CheckResult {
        let mut seen = HashMap::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let mut text = String::new();
            canonical(item, &mut text);
            self.take(1 + text.len() / STEP_BYTES)?;
            if let Some(first) = seen.insert(text, at + 1) {
                return Err(bad(format!("expected unique items but items {first} and {} are equal", at + 1)));
            }
        }
        Ok(())
    }

    fn text(&mut self, part: &SchemaPart, text: &str) -> CheckResult {
        let rules = &part.text;
        if rules.min.is_some() || rules.max.is_some() {
            self.take(1 + text.len() / STEP_BYTES)?;
            let count = text.chars().count() as u64;
            if let Some(min) = rules.min.filter(|min| count < *min) {
                return Err(bad(format!("string too short, expected at least {min}, got {count}")));
            }
            if let Some(max) = rules.max.filter(|max| count > *max) {
                return Err(bad(format!("string too long, expected at most {max}, got {count}")));
            }
        }
        if let Some((pattern, regex)) = &rules.pattern
            && !self.matches(regex, text)?
        {
            return Err(bad(format!("failed to match pattern {pattern:?} with {text:?}")));
        }
        self.take(text.len() / STEP_BYTES)?;
        let kind = match rules.format.as_deref() {
            Some("email") if !is_email(text) => "email",
            Some("ipv4") if text.parse::<Ipv4Addr>().is_err() => "ipv4",
            Some("ipv6") if text.parse::<Ipv6Addr>().is_err() => "ipv6",
            Some("hostname") if !is_host(text) => "hostname",
            _ => return Ok(()),
        };
        let kind = if kind == "hostname" { kind.to_owned() } else { format!("{kind} address") };
        Err(bad(format!("expect valid {kind} but got: {text}")))
    }

    /// Not below `anyOf`, `oneOf` and `if`: filling in may change which of their schemas applies.
    fn fill(&mut self, index: Index, value: &mut Json, budget: &mut Budget) -> CheckResult {
        self.take(1)?;
        if self.depth == DEPTH_MAX {
            return Err(Bad::TooDeep);
        }
        self.depth += 1;
        let part = &self.schema.parts[index];
        for below in part.reference.iter().chain(&part.all_of) {
            self.fill(*below, value, budget)?;
        }
        match value {
            Json::Object(map) => {
                for (name, index) in &part.object.properties {
                    match (map.get_mut(name), &self.schema.parts[*index].default) {
                        (Some(value), _) => self.fill(*index, value, budget)?,
                        (None, Some(default)) => {
                            let table = if map.is_empty() { budget.take_table() } else { Ok(()) };
                            let taken = table.and_then(|()| budget.take_entry(name));
                            let taken = taken.and_then(|()| budget.take_copy(default));
                            taken.map_err(|exhausted| bad(exhausted.to_string()))?;
                            map.insert(name.clone(), default.clone());
                        }
                        (None, None) => {}
                    }
                }
            }
            Json::Array(items) => {
                for (item, index) in items.iter_mut().zip(part.list.each.iter().cycle()) {
                    self.fill(*index, item, budget)?;
                }
            }
            _ => {}
        }
        self.depth -= 1;
        Ok(())
    }
}

fn number(part: &SchemaPart, value: &Json) -> CheckResult {
    let rules = &part.number;
    let Some(number) = value.as_f64() else { return Ok(()) };
    let is_no_multiple = |of: &f64| {
        let quotient = number / of;
        quotient.fract() != 0.0
    };
    let (relation, bound) = if let Some(min) = rules.min.filter(|min| number < *min) {
        ("greater than", min)
    } else if let Some(above) = rules.above.filter(|above| number <= *above) {
        ("strictly greater than", above)
    } else if let Some(max) = rules.max.filter(|max| number > *max) {
        ("smaller than", max)
    } else if let Some(below) = rules.below.filter(|below| number >= *below) {
        ("strictly smaller than", below)
    } else if let Some(of) = rules.multiple_of.filter(is_no_multiple) {
        ("a multiple of", of)
    } else {
        return Ok(());
    };
    Err(bad(format!("expected {number} to be {relation} {bound}")))
}

fn is_of(value: &Json, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "table" => value.is_object() || value.is_array(),
        "function" => false,
        _ => value.as_f64().is_some_and(|number| number.fract() == 0.0),
    }
}

/// Lua's name of the type.
fn lua_type(value: &Json) -> &'static str {
    match value {
        Json::Object(_) | Json::Array(_) => "table",
        Json::String(_) => "string",
        Json::Number(_) => "number",
        Json::Bool(_) => "boolean",
        Json::Null => "userdata",
    }
}

/// 1 and 1.0 are equal.
fn is_same(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Number(a), Json::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        _ => one == other,
    }
}

/// A text that is equal for equal values.
fn canonical(value: &Json, out: &mut String) {
    match value {
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&float.to_string()),
            _ => out.push_str(&number.to_string()),
        },
        Json::Array(items) => {
            out.push('[');
            for item in items {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        Json::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in entries {
                out.push_str(&format!("{name:?}:"));
                canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn is_email(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let Some((user, host)) = text.split_once('@') else { return false };
    let Some((host, top)) = host.rsplit_once('.') else { return false };
    let is_top = (2..=4).contains(&top.len()) && top.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_top && [user, host].iter().all(|part| !part.is_empty() && part.bytes().all(is_word))
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stillgate_schema::CompileBudget;

    /// A text that was made for a regular expression leads its automaton to a new state with every byte.
    #[test]
    fn a_text_made_for_a_pattern_takes_steps_for_its_states() {
        let schema = json!({"type": "string", "pattern": "union.{0,1000}select"});
        let schema = Schema::compile(&schema, &CompileBudget::default()).unwrap();
        let check = |text: &str, steps: u64| schema.check(&Json::from(text), steps);
        let mut state = 1_u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ["union", "u", "un", "x", "s"][(state >> 40) as usize % 5]
        };
        let hostile: String = std::iter::repeat_with(next).take(100_000).collect();
        // As many as a body of this length has on another thread.
        assert_eq!(check(&hostile, 1_000_000 + 10 * hostile.len() as u64), Err(Bad::OutOfSteps));
        let harmless = "a long text that selects nothing ".repeat(30_000);
        assert!(matches!(check(&harmless, 200_000), Err(Bad::Value(_))), "no match, found soon");
        assert_eq!(check("a union of selects", 5_000), Ok(()));
    }
}
