//! Bodies as fields: JSON, forms and XML.

use super::multipart;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::{Map, Value as Json};
use stillgate_plugin::query::decoded;

/// How a body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Xml,
    /// A form in the body.
    Encoded,
    /// The query.
    Args,
    /// Not at all.
    Plain,
    /// A form of several parts.
    Multipart,
}

impl Format {
    /// By the value of `Content-Type`; `None`: the template is filled without fields.
    pub(super) fn of(content_type: Option<&[u8]>) -> Option<Format> {
        let text = content_type?.to_ascii_lowercase();
        let has = |part: &str| memchr::memmem::find(&text, part.as_bytes()).is_some();
        match () {
            () if has("text/xml") => Some(Format::Xml),
            () if has("application/json") => Some(Format::Json),
            () if has("application/x-www-form-urlencoded") => Some(Format::Encoded),
            () if has("multipart/") => Some(Format::Multipart),
            () => None,
        }
    }

    /// The fields of a body; the error says what is wrong with it.
    pub(super) fn read(self, body: &[u8], query: &[u8], content_type: &[u8]) -> Result<Json, String> {
        match self {
            Format::Plain => Ok(Json::Object(Map::new())),
            Format::Json => match serde_json::from_slice(body) {
                Ok(json @ (Json::Object(_) | Json::Array(_))) => Ok(json),
                Ok(_) => Err("neither an object nor an array".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            Format::Encoded => Ok(form(body)),
            Format::Args => Ok(form(query)),
            Format::Xml => xml(body),
            Format::Multipart => multipart::fields(body, content_type),
        }
    }
}

/// Pairs of a form: several of one name are a list, one without `=` is `true`.
pub(crate) fn form(text: &[u8]) -> Json {
    let mut fields = Map::new();
    let lossy = |text: &[u8]| String::from_utf8_lossy(&decoded(text).collect::<Vec<u8>>()).into_owned();
    for pair in text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let name = lossy(parts.next().unwrap_or_default());
        let value = parts.next().map_or(Json::Bool(true), |value| Json::String(lossy(value)));
        add(&mut fields, name, value);
    }
    Json::Object(fields)
}

/// Several of one name become a list.
pub(crate) fn add(fields: &mut Map<String, Json>, name: String, value: Json) {
    match fields.get_mut(&name) {
        None => drop(fields.insert(name, value)),
        Some(Json::Array(items)) => items.push(value),
        Some(one) => *one = Json::Array(vec![one.take(), value]),
    }
}

/// Elements inside one another.
const DEPTH_MAX: usize = 128;

/// Elements by their names without prefix: one with text only is that text, one with attributes has them under `_attr` and its text
/// as the first item; several of one name are a list. Entities of the document's own are refused.
fn xml(body: &[u8]) -> Result<Json, String> {
    let mut reader = Reader::from_reader(body);
    // The root, and the elements that are open.
    let mut open: Vec<(String, Element)> = vec![(String::new(), Element::default())];
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(start) => {
                if open.len() > DEPTH_MAX {
                    return Err(format!("more than {DEPTH_MAX} elements inside one another"));
                }
                open.push((local_name(start.local_name().as_ref()), Element::begin(&start)?));
            }
            Event::Empty(start) => {
                let element = Element::begin(&start)?;
                let name = local_name(start.local_name().as_ref());
                if let Some((_, parent)) = open.last_mut() {
                    add(&mut parent.children, name, element.into_json());
                }
            }
            Event::End(_) => {
                let Some((name, element)) = open.pop() else { return Err("an end without a beginning".to_owned()) };
                let Some((_, parent)) = open.last_mut() else { return Err("an end without a beginning".to_owned()) };
                add(&mut parent.children, name, element.into_json());
            }
            Event::Text(text) => push_text(&mut open, &text.decode().map_err(|error| error.to_string())?),
            Event::CData(text) => push_text(&mut open, &text.decode().map_err(|error| error.to_string())?),
            Event::GeneralRef(reference) => {
                let name = reference.decode().map_err(|error| error.to_string())?;
                let character = reference.resolve_char_ref().map_err(|error| error.to_string())?;
                let text = match (character, quick_xml::escape::resolve_predefined_entity(&name)) {
                    (Some(character), _) => character.to_string(),
                    (None, Some(text)) => text.to_owned(),
                    (None, None) => return Err(format!("the entity {name:?} is not known")),
                };
                push_text(&mut open, &text);
            }
            Event::Eof if open.len() == 1 => break,
            Event::Eof => return Err("an element without an end".to_owned()),
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
    match open.pop() {
        Some((_, root)) if !root.children.is_empty() => Ok(Json::Object(root.children)),
        _ => Err("no element".to_owned()),
    }
}

fn push_text(open: &mut [(String, Element)], text: &str) {
    if let Some((_, element)) = open.last_mut() {
        element.text.push_str(text);
    }
}

fn local_name(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[derive(Default)]
struct Element {
    children: Map<String, Json>,
    attributes: Map<String, Json>,
    text: String,
}

impl Element {
    fn begin(start: &quick_xml::events::BytesStart<'_>) -> Result<Element, String> {
        let mut attributes = Map::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| error.to_string())?;
            let value = attribute.unescape_value().map_err(|error| error.to_string())?;
            attributes.insert(local_name(attribute.key.local_name().as_ref()), Json::String(value.into_owned()));
        }
        Ok(Element { attributes, ..Element::default() })
    }

    fn into_json(self) -> Json {
        let Element { mut children, attributes, text } = self;
        let text = text.trim();
        if children.is_empty() && attributes.is_empty() {
            return Json::String(text.to_owned());
        }
        if children.is_empty() && !text.is_empty() {
            // As a list, so that `[1]` is the text.
            return Json::Array(vec![Json::String(text.to_owned())]);
        }
        if !attributes.is_empty() {
            children.insert("_attr".to_owned(), Json::Object(attributes));
        }
        Json::Object(children)
    }
}
