//! acl: consumers are let through by their labels.
//!
//! A label is a text that can hold several values: a JSON array, or values between commas. APISIX reads the same of users that
//! other plugins bring (openid-connect); the keys for these are read and mean nothing here.

use crate::json_path::is_json_path;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::json;
use std::fmt;
use stillgate_plugin::{Answer, Compile, Consumer, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::kind::{Text, read};
use stillgate_schema::{
    At, Choice, Definitions, Fault, Json, Kind, Located, Node, Path, Sink, TEXT, Value, expected, int, object, some,
    text,
};

object! {
    /// Lets consumers through by their labels.
    pub struct AclKeys {
        /// Labels with values. The consumer must have one of the values of one label.
        allow_labels: Vec<(String, Vec<String>)> = LabelLists => optional;
        /// Labels with values. The consumer may have none of them.
        deny_labels: Vec<(String, Vec<String>)> = LabelLists => optional;
        /// The status of a request that is not let through.
        rejected_code: u16 = int(200, 599) => default(403);
        /// `message` of its answer.
        rejected_msg: String = TEXT => optional;
        /// For users that are no consumers, which no plugin here brings; has no effect.
        external_user_label_field: String = JSON_PATH => default("groups".to_owned());
        /// As `external_user_label_field`.
        external_user_label_field_key: String = NOT_EMPTY => optional;
        /// As `external_user_label_field`.
        external_user_label_field_parser: At<bool> = Located(PARSER) => optional;
        /// As `external_user_label_field`.
        external_user_label_field_separator: String = NOT_EMPTY => optional;
        any_of {
            "no label is named": allow_labels | deny_labels;
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
    false => Err(Fault::new(format!("{text:?} is no JSONPath")).hint("write it as in `$.orgs..team`")),
})
.shown();

/// Whether it needs a separator.
const PARSER: Choice<bool> =
    Choice { words: &[("segmented_text", true), ("json", false), ("table", false)], unbuilt: &[] };

/// A map of names and lists of texts.
struct LabelLists;

impl Kind for LabelLists {
    type Out = Vec<(String, Vec<String>)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Self::Out> {
        let Value::Map(entries) = &node.value else {
            expected("a map of labels such as {team: [a, b]}", node, path, sink);
            return None;
        };
        if entries.is_empty() {
            sink.error(node.at, path, Fault::new("no label is named").hint("name one, or remove the key"));
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
    allow: Option<Box<[Wanted]>>,
    deny: Box<[Wanted]>,
    rejected: Answer,
}

/// A label, and values of it.
type Wanted = (String, Vec<String>);

const MISSING: &str = "{\"message\":\"Missing authentication.\"}\n";
const FORBIDDEN: &str = "The consumer is forbidden.";

impl Define for Acl {
    type Keys = AclKeys;
    const NAME: &'static str = "acl";
    const PRIORITY: i32 = 2410;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: AclKeys, cx: &mut Compile<'_>) -> Option<Acl> {
        if let Some(At { at, value: true }) = keys.external_user_label_field_parser
            && keys.external_user_label_field_separator.is_none()
        {
            let fault = Fault::new("there is no separator").hint("add `external_user_label_field_separator`");
            cx.sink.error(at, &cx.path.key("external_user_label_field_parser"), fault);
            return None;
        }
        let message = keys.rejected_msg.as_deref().unwrap_or(FORBIDDEN);
        let body = format!("{}\n", json!({"message": message}));
        Some(Acl {
            allow: keys.allow_labels.map(Vec::into),
            deny: keys.deny_labels.unwrap_or_default().into(),
            rejected: Answer::shared(keys.rejected_code, body.into_bytes().into()),
        })
    }
}

impl Plugin for Acl {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let Some(attached) = *request.consumer else { return Flow::Answer(Answer::text(401, MISSING)) };
        let consumer = request.consumers.of(attached);
        let is_allowed = self.allow.as_deref().is_none_or(|wanted| has_one(consumer, wanted));
        match is_allowed && !has_one(consumer, &self.deny) {
            true => Flow::Continue,
            false => Flow::Answer(self.rejected.clone()),
        }
    }

    fn reads_consumer(&self) -> bool {
        true
    }
}

fn has_one(consumer: &Consumer, wanted: &[Wanted]) -> bool {
    wanted.iter().any(|(name, values)| consumer.label(name).is_some_and(|label| holds(label, values)))
}

/// Whether a label holds one of some values.
fn holds(label: &str, wanted: &[String]) -> bool {
    let is_wanted = |value: &str| wanted.iter().any(|wanted| wanted == value);
    if label.starts_with('[') {
        // What is no JSON holds nothing.
        let mut json = serde_json::Deserializer::from_str(label);
        let found = json.deserialize_seq(OneOf(wanted));
        return found.is_ok_and(|found| found && json.end().is_ok());
    }
    if !label.contains(',') {
        return is_wanted(label);
    }
    // Blanks count where no comma is beside them, as in APISIX, which splits at commas with the blanks around them.
    let last = label.split(',').count() - 1;
    label.split(',').enumerate().any(|(at, value)| {
        let value = if at > 0 { value.trim_ascii_start() } else { value };
        is_wanted(if at < last { value.trim_ascii_end() } else { value })
    })
}

/// Whether an array of JSON holds one of some texts; read to its end, without memory.
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
