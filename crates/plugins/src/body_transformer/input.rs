//! Parses bodies into fields: JSON, forms and XML. Memory is counted as it is used.

use super::multipart;
use super::xml;
use serde_json::{Map, Value as Json};
use stillgate_plugin_api::json::{self, Budget, BudgetExhausted};
use stillgate_plugin_api::query::decoded;

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputFormat {
    Json,
    Xml,
    /// A form in the body.
    Encoded,
    /// The query.
    Args,
    /// It is not parsed.
    Plain,
    /// A multipart form.
    Multipart,
}

impl InputFormat {
    /// The format for the value of `Content-Type`; `None`: the template is filled without fields.
    pub(super) fn of(content_type: Option<&[u8]>) -> Option<InputFormat> {
        let text = content_type?.to_ascii_lowercase();
        let has = |part: &str| memchr::memmem::find(&text, part.as_bytes()).is_some();
        match () {
            () if has("text/xml") => Some(InputFormat::Xml),
            () if has("application/json") => Some(InputFormat::Json),
            () if has("application/x-www-form-urlencoded") => Some(InputFormat::Encoded),
            () if has("multipart/") => Some(InputFormat::Multipart),
            () => None,
        }
    }

    /// Parses the fields of a body; the error says what is wrong with it.
    pub(super) fn read(
        self,
        body: &[u8],
        query: &[u8],
        content_type: &[u8],
        budget: &mut Budget,
    ) -> Result<Json, String> {
        let of_form = |text, budget| form(text, budget).map_err(|exhausted| exhausted.to_string());
        match self {
            InputFormat::Plain => Ok(Json::Object(Map::new())),
            InputFormat::Json => match json::read(body, budget) {
                Ok(json @ (Json::Object(_) | Json::Array(_))) => Ok(json),
                Ok(_) => Err("neither an object nor an array".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            InputFormat::Encoded => of_form(body, budget),
            InputFormat::Args => of_form(query, budget),
            InputFormat::Xml => xml::fields(body, budget),
            InputFormat::Multipart => multipart::fields(body, content_type, budget),
        }
    }
}

/// The pairs of a form: several of one name become a list, one without `=` is `true`.
pub(crate) fn form(text: &[u8], budget: &mut Budget) -> Result<Json, BudgetExhausted> {
    let mut fields = Map::new();
    let lossy = |text: &[u8]| String::from_utf8_lossy(&decoded(text).collect::<Vec<u8>>()).into_owned();
    for pair in text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let name = lossy(parts.next().unwrap_or_default());
        let value = parts.next().map_or(Json::Bool(true), |value| Json::String(lossy(value)));
        add_within(budget, &mut fields, name, value)?;
    }
    Ok(Json::Object(fields))
}

/// Like [`add`], within the budget. The content of the value has been counted.
pub(super) fn add_within(
    budget: &mut Budget,
    fields: &mut Map<String, Json>,
    name: String,
    value: Json,
) -> Result<(), BudgetExhausted> {
    if let Json::String(text) = &value {
        budget.take(text.len())?;
    }
    budget.take_value()?;
    if fields.is_empty() {
        budget.take_table()?;
    }
    budget.take_entry(&name)?;
    add(fields, name, value);
    Ok(())
}

/// Adds a field; several with one name become a list.
pub(crate) fn add(fields: &mut Map<String, Json>, name: String, value: Json) {
    match fields.get_mut(&name) {
        None => drop(fields.insert(name, value)),
        Some(Json::Array(items)) => items.push(value),
        Some(one) => *one = Json::Array(vec![one.take(), value]),
    }
}
