//! Kong's steps of changing header fields, as `add`, `set` and `remove` here.
//!
//! Kong removes, renames, replaces, adds and appends, in this order; here fields are added, set and removed. So the
//! steps are played through for each field, and what comes out is written.

use super::translation::without_variables;
use crate::object::{Field, Object};
use serde_json::{Map, Value as Json, json};

/// Fields that frame a message or belong to one connection, which only the gateway sets.
const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether plugins here may change a field, and give it this value. If not, that is a loss.
fn is_usable(field: &Field, name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) || value.chars().any(char::is_control) {
        field.lost("no header field can have this name or value; it is left out");
        return false;
    }
    let is_framing = FRAMING.contains(&&*name.to_lowercase());
    if is_framing {
        field.lost("the gateway alone sets this header field; it is left out");
    }
    !is_framing
}

/// Whose fields are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Request,
    Response,
}

/// What has become of a field.
#[derive(Debug, Clone)]
enum FieldContent {
    /// It is as it came.
    Original,
    Absent,
    Fixed(String),
    /// What another field had.
    From(String),
    /// This text if the field is there.
    Replaced(String),
    /// This text if the field is not there.
    Default(String),
}

#[derive(Debug)]
struct HeaderField {
    name: String,
    content: FieldContent,
    appended: Vec<String>,
}

#[derive(Debug)]
struct Fields<'a> {
    list: Vec<HeaderField>,
    /// Fields that are removed before the steps.
    cleared: &'a [&'a str],
}

impl Fields<'_> {
    fn of(&mut self, name: &str) -> &mut HeaderField {
        let found = self.list.iter().position(|field| field.name.eq_ignore_ascii_case(name));
        let index = found.unwrap_or_else(|| {
            let is_cleared = self.cleared.iter().any(|cleared| cleared.eq_ignore_ascii_case(name));
            let content = if is_cleared { FieldContent::Absent } else { FieldContent::Original };
            self.list.push(HeaderField { name: name.to_owned(), content, appended: Vec::new() });
            self.list.len() - 1
        });
        &mut self.list[index]
    }
}

/// Reads `remove.headers`, `rename.headers` and so on; `None` if there is nothing to change.
/// `cleared`: fields of the client that are removed before. `value` makes a text with Kong's templates one with
/// variables; `None` if that is not possible.
pub(super) fn header_edits(
    config: &Object,
    of: Of,
    cleared: &[&str],
    value: impl Fn(&Field, &str) -> Option<String>,
) -> Option<Json> {
    let mut fields = Fields { list: Vec::new(), cleared };
    for field in self::fields(config, "remove") {
        let Some(text) = field.text() else { continue };
        let (name, only) = text.split_once(':').map_or((&*text, None), |(name, value)| (name, Some(value)));
        if !is_usable(&field, name, "") {
            continue;
        }
        if only.is_some_and(|only| !only.is_empty()) {
            field.lost("the field is removed whatever its value is");
        }
        fields.of(name).content = FieldContent::Absent;
    }
    for (old, new, _) in pairs(config, "rename") {
        let moved = std::mem::replace(&mut fields.of(&old).content, FieldContent::Absent);
        match moved {
            FieldContent::Original => fields.of(&new).content = FieldContent::From(old),
            FieldContent::Absent => {}
            moved => fields.of(&new).content = moved,
        }
    }
    for (name, text, field) in pairs(config, "replace") {
        let is_host = of == Of::Request && name.eq_ignore_ascii_case("host");
        let text = value(&field, &text);
        let known = fields.of(&name);
        let Some(text) = text else {
            // What came is not what the node should get.
            if !is_host {
                known.content = FieldContent::Absent;
            }
            continue;
        };
        known.content = match &known.content {
            FieldContent::Absent => FieldContent::Absent,
            FieldContent::Original if is_host => FieldContent::Fixed(text),
            FieldContent::Original => FieldContent::Replaced(text),
            _ => FieldContent::Fixed(text),
        };
    }
    for (name, text, field) in pairs(config, "add") {
        let Some(text) = value(&field, &text) else { continue };
        let known = fields.of(&name);
        match &known.content {
            FieldContent::Absent => known.content = FieldContent::Fixed(text),
            FieldContent::Original => known.content = FieldContent::Default(text),
            FieldContent::Replaced(_) => {
                field.lost("a field that is replaced cannot be added as well; it is set always")
            }
            _ => {}
        }
    }
    for (name, text, field) in pairs(config, "append") {
        let Some(text) = value(&field, &text) else { continue };
        fields.of(&name).appended.push(text);
    }
    written(config, of, fields)
}

fn written(config: &Object, of: Of, fields: Fields<'_>) -> Option<Json> {
    let (mut add, mut set, mut remove) = (Vec::new(), Map::new(), Vec::new());
    let prefix = if of == Of::Request { "http" } else { "upstream_http" };
    let variable = |name: &str| format!("{prefix}_{}", name.to_lowercase().replace('-', "_"));
    for HeaderField { name, content, appended } in fields.list {
        let first = match content {
            FieldContent::Original => {
                add.extend(appended.into_iter().map(|text| (name.clone(), text)));
                continue;
            }
            FieldContent::Absent if appended.is_empty() => {
                remove.push(name);
                continue;
            }
            FieldContent::Absent => None,
            FieldContent::Fixed(text) => Some(text),
            FieldContent::From(other) => {
                config.changed(format!("{name} is removed where a request or response has no {other}; Kong leaves it"));
                Some(format!("${{{}}}", variable(&other)))
            }
            FieldContent::Replaced(text) => {
                config.changed(format!("{name} is set always; Kong replaces it only where it is there"));
                Some(text)
            }
            FieldContent::Default(text) if text.contains(['}', '\\', '$']) => {
                config.changed(format!("{name} is set always; Kong adds it only where it is not there"));
                Some(text)
            }
            FieldContent::Default(text) => Some(format!("${{{} ?? {text}}}", variable(&name))),
        };
        let mut lines: Vec<String> = first.into_iter().chain(appended).collect();
        let value = match lines.len() {
            1 => lines.remove(0).into(),
            _ if of == Of::Request => Json::from(lines),
            _ => {
                config
                    .changed(format!("{name} gets one value; only a field that is not changed otherwise can get more"));
                lines.remove(0).into()
            }
        };
        set.insert(name, value);
    }
    let mut edits = Map::new();
    if !add.is_empty() {
        let lines = match of {
            Of::Request => add_lines(add),
            Of::Response => add.iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>().into(),
        };
        edits.insert("add".to_owned(), lines);
    }
    if !set.is_empty() {
        edits.insert("set".to_owned(), set.into());
    }
    if !remove.is_empty() {
        edits.insert("remove".to_owned(), json!(remove));
    }
    (!edits.is_empty()).then(|| edits.into())
}

/// Lines of one name go together.
fn add_lines(lines: Vec<(String, String)>) -> Json {
    let mut all = Map::new();
    for (name, text) in lines {
        match all.get_mut(&name) {
            None => drop(all.insert(name, text.into())),
            Some(Json::Array(list)) => list.push(text.into()),
            Some(one) => *one = json!([one.take(), text]),
        }
    }
    all.into()
}

fn fields(config: &Object, step: &str) -> Vec<Field> {
    config.object(step).map_or_else(Vec::new, |object| object.items("headers"))
}

/// `name:value` of a step.
fn pairs(config: &Object, step: &str) -> Vec<(String, String, Field)> {
    let mut pairs = Vec::new();
    for field in fields(config, step) {
        let Some(text) = field.text() else { continue };
        match text.split_once(':') {
            Some((name, value)) => {
                let value = value.trim_start_matches(':').trim();
                // The new name of a field is one as well.
                let is_name = step == "rename";
                if is_usable(&field, name.trim(), value) && (!is_name || is_usable(&field, value, "")) {
                    pairs.push((name.trim().to_owned(), value.to_owned(), field));
                }
            }
            None => field.lost("this is not `name:value`; it is left out"),
        }
    }
    pairs
}

/// A text without templates.
pub(super) fn plain(_: &Field, text: &str) -> Option<String> {
    Some(without_variables(text))
}
