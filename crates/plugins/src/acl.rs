//! acl: admits consumers by their labels.
//!
//! A label is a text that can hold several values: a JSON array, or values between commas. If no consumer is attached,
//! the user in `ctx.external_user`, which functions in Lua set, is checked instead.

use crate::json_path::{JsonPath, TooLarge, is_json_path};
use crate::lua::fields_in_context;
use crate::patterns::{self, Flags};
use regex::bytes::Regex;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::json;
use std::fmt;
use stillgate_plugin_api::{Answer, Compile, Consumer, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::kind::{Text, read};
use stillgate_schema::{
    At, Choice, Definitions, Fault, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Value, int, object,
    report_expected, some, text,
};

object! {
    /// Admits consumers by their labels.
    pub struct AclKeys {
        /// Labels with values. The consumer must have one of the values of one label.
        allow_labels: Vec<(String, Vec<String>)> = LabelListsKind => optional;
        /// Labels with values. The consumer may have none of them.
        deny_labels: Vec<(String, Vec<String>)> = LabelListsKind => optional;
        /// The status for a request that is refused.
        rejected_code: u16 = int(200, 599) => default(403);
        /// `message` of that answer.
        rejected_msg: String = TEXT => optional;
        /// The JSONPath of the label in `ctx.external_user`, which functions in Lua set.
        external_user_label_field: String = JSON_PATH => default("groups".to_owned());
        /// The name of that label; without it, it is the JSONPath.
        external_user_label_field_key: String = NOT_EMPTY => optional;
        /// What the label must be: a text of several values, a JSON array in a text, or a list. Without it, a list, or a text as a
        /// consumer's label.
        external_user_label_field_parser: At<LabelParser> = LocatedKind(PARSER) => optional;
        /// For `segmented_text`: a regular expression of the separator. Blanks around it are ignored.
        external_user_label_field_separator: String = NOT_EMPTY => optional;
        any_of {
            "there are no labels": allow_labels | deny_labels;
        }
    }
}

const NOT_EMPTY: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the text is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
})
.shown();

const JSON_PATH: Text<String> = text("a JSONPath", |text| match is_json_path(text) {
    true => Ok(text.to_owned()),
    false => Err(Fault::new(format!("{text:?} is not a JSONPath")).hint("write it as in `$.orgs..team`")),
})
.shown();

/// How the label of an external user is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LabelParser {
    /// A text, with a separator.
    SegmentedText,
    /// A text that is a JSON array.
    Json,
    /// A list.
    Table,
}

const PARSER: Choice<LabelParser> = Choice {
    words: &[
        ("segmented_text", LabelParser::SegmentedText),
        ("json", LabelParser::Json),
        ("table", LabelParser::Table),
    ],
    unbuilt: &[],
};

/// A map of names and lists of texts.
struct LabelListsKind;

impl Kind for LabelListsKind {
    type Out = Vec<(String, Vec<String>)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Self::Out> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of labels such as {team: [a, b]}", node, path, sink);
            return None;
        };
        if entries.is_empty() {
            sink.error(node.at, path, Fault::new("there are no labels").hint("name one, or remove the key"));
            return None;
        }
        let lists = entries.iter().filter_map(|entry| {
            let values = read(&some(TEXT), &entry.value, &path.key(&entry.key), sink)?;
            Some((entry.key.to_string(), values))
        });
        Some(lists.collect())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let values = json!({"type": "array", "minItems": 1, "items": {"type": "string"}});
        json!({"type": "object", "minProperties": 1, "additionalProperties": values})
    }
}

/// acl with one configuration.
pub(crate) struct Acl {
    allow: Option<Box<[LabelCondition]>>,
    deny: Box<[LabelCondition]>,
    users: ExternalUserLabel,
    rejected: Answer,
}

/// The label of external users, who are not consumers.
struct ExternalUserLabel {
    name: String,
    path: JsonPath,
    parser: Option<LabelParser>,
    separator: Option<Regex>,
}

/// A label, and values of it.
type LabelCondition = (String, Vec<String>);

const MISSING: &str = "{\"message\":\"Missing authentication.\"}\n";
const FORBIDDEN: &str = "The consumer is forbidden.";

impl Define for Acl {
    type Keys = AclKeys;
    const NAME: &'static str = "acl";
    const PRIORITY: i32 = 2410;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(mut keys: AclKeys, cx: &mut Compile<'_>) -> Option<Acl> {
        let users = ExternalUserLabel::new(&mut keys, cx)?;
        let message = keys.rejected_msg.as_deref().unwrap_or(FORBIDDEN);
        let body = format!("{}\n", json!({"message": message}));
        Some(Acl {
            allow: keys.allow_labels.map(Vec::into),
            deny: keys.deny_labels.unwrap_or_default().into(),
            users,
            rejected: Answer::shared(keys.rejected_code, body.into_bytes().into()),
        })
    }
}

impl Plugin for Acl {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let who = match *request.consumer {
            Some(attached) => AuthenticatedUser::Consumer(request.consumers.of(attached)),
            None => match fields_in_context(request.settled, "external_user") {
                // As in Lua, `false` counts as absent.
                None | Some(Json::Bool(false)) => return Flow::Answer(Answer::text(401, MISSING)),
                Some(user) => AuthenticatedUser::User(user),
            },
        };
        let labels = match &who {
            AuthenticatedUser::Consumer(_) => Vec::new(),
            // It is unknown whether a denied value is further inside.
            AuthenticatedUser::User(user) => match self.users.path.all(user) {
                Ok(labels) => labels,
                Err(TooLarge) => return Flow::Answer(self.rejected.clone()),
            },
        };
        let has_one = |wanted: &[LabelCondition]| {
            wanted.iter().any(|(name, values)| match &who {
                AuthenticatedUser::Consumer(consumer) => consumer.label(name).is_some_and(|label| holds(label, values)),
                AuthenticatedUser::User(_) => *name == self.users.name && self.users.any_holds(&labels, values),
            })
        };
        match self.allow.as_deref().is_none_or(has_one) && !has_one(&self.deny) {
            true => Flow::Continue,
            false => Flow::Answer(self.rejected.clone()),
        }
    }

    fn reads_consumer(&self) -> bool {
        true
    }
}

/// The authenticated user.
enum AuthenticatedUser<'a> {
    Consumer(&'a Consumer),
    User(Json),
}

impl ExternalUserLabel {
    fn new(keys: &mut AclKeys, cx: &mut Compile<'_>) -> Option<ExternalUserLabel> {
        let (field, label) = (&keys.external_user_label_field, keys.external_user_label_field_key.take());
        let Some(path) = JsonPath::parse(field) else {
            // Denied labels would never be found.
            let fault = Fault::new(format!("{field:?}: filters, scripts, slices and unions are not supported"));
            let hint = "use only names, indexes, `*` and `..`";
            cx.sink.error(cx.at, &cx.path.key("external_user_label_field"), fault.hint(hint));
            return None;
        };
        let separator = match (&keys.external_user_label_field_parser, &keys.external_user_label_field_separator) {
            (Some(At { at, value: LabelParser::SegmentedText }), None) => {
                let fault = Fault::new("there is no separator").hint("add `external_user_label_field_separator`");
                cx.sink.error(*at, &cx.path.key("external_user_label_field_parser"), fault);
                return None;
            }
            (Some(At { value: LabelParser::SegmentedText, .. }), Some(text)) => {
                let compiled = patterns::compile(&format!(r"\s*{text}\s*"), Flags::default(), &cx.sink.budget());
                let path = cx.path.key("external_user_label_field_separator");
                Some(compiled.map_err(|fault| cx.sink.error(cx.at, &path, fault)).ok()?)
            }
            _ => None,
        };
        let parser = keys.external_user_label_field_parser.as_ref().map(|parser| parser.value);
        Some(ExternalUserLabel { name: label.unwrap_or_else(|| field.clone()), path, parser, separator })
    }

    /// Whether one of the labels has one of some values. As in APISIX, a list among several labels is one of values, whatever the
    /// parser.
    fn any_holds(&self, labels: &[&Json], wanted: &[String]) -> bool {
        labels.iter().any(|label| {
            let parser = self.parser.filter(|_| labels.len() == 1 || label.is_string());
            self.holds(label, parser, wanted)
        })
    }

    /// Whether a label has one of some values. A label of another form has none.
    fn holds(&self, label: &Json, parser: Option<LabelParser>, wanted: &[String]) -> bool {
        let is_wanted = |value: &[u8]| wanted.iter().any(|wanted| wanted.as_bytes() == value);
        match (parser, label) {
            (None | Some(LabelParser::Table), Json::Array(items)) => {
                items.iter().filter_map(Json::as_str).any(|item| is_wanted(item.as_bytes()))
            }
            (None, Json::String(text)) => holds(text, wanted),
            (Some(LabelParser::Json), Json::String(text)) => text.starts_with('[') && holds(text, wanted),
            (Some(LabelParser::SegmentedText), Json::String(text)) => {
                self.separator.as_ref().is_some_and(|separator| separator.split(text.as_bytes()).any(is_wanted))
            }
            _ => false,
        }
    }
}

/// Whether a label has one of some values.
fn holds(label: &str, wanted: &[String]) -> bool {
    let is_wanted = |value: &str| wanted.iter().any(|wanted| wanted == value);
    if label.starts_with('[') {
        // Invalid JSON has no values.
        let mut json = serde_json::Deserializer::from_str(label);
        let found = json.deserialize_seq(OneOf(wanted));
        return found.is_ok_and(|found| found && json.end().is_ok());
    }
    if !label.contains(',') {
        return is_wanted(label);
    }
    // Blanks count unless they are next to a comma, as in APISIX, which splits at commas with the blanks around them.
    let last = label.split(',').count() - 1;
    label.split(',').enumerate().any(|(at, value)| {
        let value = if at > 0 { value.trim_ascii_start() } else { value };
        is_wanted(if at < last { value.trim_ascii_end() } else { value })
    })
}

/// Whether a JSON array contains one of some texts; reads it to its end, without memory.
struct OneOf<'a>(&'a [String]);

impl<'de> Visitor<'de> for OneOf<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(is_wanted) = items.next_element_seed(Item(self.0))? {
            found |= is_wanted;
        }
        Ok(found)
    }
}

/// One item of the array.
struct Item<'a>(&'a [String]);

impl<'de> serde::de::DeserializeSeed<'de> for Item<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(self.0.iter().any(|wanted| wanted == text))
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut entries: A) -> Result<bool, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_one_value_or_several() {
        let wanted = ["a".to_owned(), "b c".to_owned()];
        let check = |label: &str, expected: bool| assert_eq!(holds(label, &wanted), expected, "{label}");
        check("a", true);
        check(" a", false);
        check("x,a", true);
        check("x , a ,y", true);
        check(" a,x", false);
        check("x,a ", false);
        check("b c,x", true);
        check("", false);
        check(",", false);
        check(r#"["x", "a"]"#, true);
        check(r#"["x", "\u0061", 1, null, [], {"a": 2}]"#, true);
        check(r#"[["a"], {"a": "a"}, 1.5, true]"#, false);
        check(r#"["a""#, false);
        check(r#"["a"] x"#, false);
        check("[a]", false);
        check("[a,a]", false);
        check(&"[".repeat(100_000), false);
    }
}
