//! Parses one line of a log as a request: a JSON object whose keys are those of the access log, or names of variables; and
//! counts the lines that lack a field which some route reads.
//!
//! A null value was recorded as absent; a missing key was not recorded. A route that reads a field which was not recorded
//! sees it as absent, so the answer may be wrong. Lines with the same fields are counted together, so that a line costs one
//! look-up, however many fields routes read.

use crate::explain::explanation::{each_field, variable_of};
use crate::explain::request_head::{RequestHead, RequestLine};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use stillgate_config::{AccessField, AccessValue, Config};
use stillgate_plugin_api::query::decoded;
use stillgate_route::Variable;
use stillgate_route::condition::Field;

/// Bytes that must be encoded for the path to be parsed back to the same text.
const NOT_IN_PATHS: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'\\');

/// The most keys whose meaning is cached; that of others is determined again for each line.
const KEYS_MAX: usize = 4096;

/// Reads lines.
pub(super) struct RecordReader {
    needs: Needs,
    /// The meanings of keys.
    parts: HashMap<String, RecordPart>,
    held: LineFields,
    /// The route of the request according to the last line.
    pub(super) taken: RecordedRoute,
}

/// The route that took a request, according to the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordedRoute {
    /// The log does not contain it.
    NotRecorded,
    /// No route took it.
    ByNone,
    /// The route with this id.
    By(String),
}

/// The meaning of a key's value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RecordPart {
    /// Irrelevant for routing.
    Other,
    /// The id of the route that took it.
    RouteId,
    Method,
    /// Path and query as received.
    Target,
    Path,
    Query,
    /// With its position among the needed fields, like those below.
    Host(Option<usize>),
    /// With its port; it takes precedence over the other.
    HttpHost(Option<usize>),
    Scheme(Option<usize>),
    Client(Option<usize>),
    /// An object of all header fields.
    Headers,
    /// By its name. Cookies are kept whether or not the whole header is needed.
    Header(String, Option<usize>),
    /// A variable whose origin is unknown.
    Variable(Variable, usize),
}

/// The parts of a line that are combined once it is read completely, since keys are in any order.
#[derive(Default)]
struct Loose {
    target: Option<String>,
    path: Option<String>,
    query: Option<String>,
    /// Header fields that were recorded one by one.
    headers: Vec<(String, String)>,
}

impl RecordReader {
    /// `fields`: the access log fields of the configurations that may have written the log, since their keys can be chosen freely;
    /// the first one with a name counts.
    pub(super) fn new<'a>(needs: Needs, fields: impl Iterator<Item = &'a AccessField>) -> RecordReader {
        let mut reader = RecordReader {
            needs,
            parts: HashMap::new(),
            held: LineFields::default(),
            taken: RecordedRoute::NotRecorded,
        };
        for field in fields {
            if !reader.parts.contains_key(&field.name) && reader.parts.len() < KEYS_MAX {
                let part = match &field.value {
                    AccessValue::Variable(variable) => reader.part_of(variable),
                    AccessValue::RawArgument(name) => reader.part_of(&Variable::Arg(name.clone())),
                    AccessValue::RawCookie(name) => reader.part_of(&Variable::Cookie(name.clone())),
                    AccessValue::RouteId => RecordPart::RouteId,
                    _ => RecordPart::Other,
                };
                reader.parts.insert(field.name.clone(), part);
            }
        }
        reader
    }

    /// Parses a line into `head`; an error is a sentence for the user.
    pub(super) fn read(&mut self, line: &[u8], head: &mut RequestHead) -> Result<(), String> {
        let object: Map<String, Value> = serde_json::from_slice(line).map_err(|error| match error.classify() {
            // An error of the structure, not of the syntax.
            serde_json::error::Category::Data => "not a JSON object".to_owned(),
            _ => format!("not JSON: {error}"),
        })?;
        "GET".clone_into(&mut head.method);
        "http".clone_into(&mut head.scheme);
        head.client = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        head.authority.clear();
        head.headers.clear();
        head.known.clear();
        self.held.clear();
        self.taken = RecordedRoute::NotRecorded;
        let mut loose = Loose::default();
        for (key, value) in object {
            self.take(&key, value, head, &mut loose)?;
        }
        // If all header fields were recorded, these are included.
        if !self.held.headers {
            head.headers.append(&mut loose.headers);
        }
        self.held.query = loose.target.is_some() || loose.query.is_some();
        set_target(loose, head)?;
        if let Some(flaw) = head.flaw() {
            return Err(flaw);
        }
        let mut held = std::mem::take(&mut self.held);
        self.needs.count(&mut held);
        self.held = held;
        Ok(())
    }

    /// The fields that lines lack.
    pub(super) fn into_missing(self) -> Vec<UnloggedField> {
        self.needs.missing()
    }

    fn take(&mut self, key: &str, value: Value, head: &mut RequestHead, loose: &mut Loose) -> Result<(), String> {
        let part = match self.parts.get(key) {
            Some(part) => part.clone(),
            None => self.learn(key),
        };
        let position = match &part {
            RecordPart::Other => return Ok(()),
            RecordPart::Headers => return self.take_headers(key, value, head),
            RecordPart::Host(at)
            | RecordPart::HttpHost(at)
            | RecordPart::Scheme(at)
            | RecordPart::Client(at)
            | RecordPart::Header(_, at) => *at,
            RecordPart::Variable(_, at) => Some(*at),
            RecordPart::Method => self.needs.position("request_method"),
            RecordPart::RouteId | RecordPart::Target | RecordPart::Path | RecordPart::Query => None,
        };
        let text = text_of(key, value)?;
        match (part, text) {
            (RecordPart::Client(_), Some(text)) => match text.parse() {
                Ok(client) => head.client = client,
                // `unix:` and the like: the client's address was not recorded.
                Err(_) => return Ok(()),
            },
            (RecordPart::RouteId, text) => {
                self.taken = text.filter(|id| !id.is_empty()).map_or(RecordedRoute::ByNone, RecordedRoute::By)
            }
            (RecordPart::Method, Some(text)) => head.method = text,
            (RecordPart::Target, Some(text)) => loose.target = Some(text),
            (RecordPart::Path, Some(text)) => loose.path = Some(text),
            (RecordPart::Query, text) => loose.query = Some(text.unwrap_or_default()),
            (RecordPart::HttpHost(_), Some(text)) => head.authority = text,
            (RecordPart::Host(_), Some(text)) if head.authority.is_empty() => head.authority = text,
            (RecordPart::Scheme(_), Some(text)) => head.scheme = text,
            (RecordPart::Header(name, _), Some(text)) => {
                self.held.cookies |= name == "cookie";
                loose.headers.push((name, text));
            }
            (RecordPart::Header(name, _), None) => self.held.cookies |= name == "cookie",
            // Logs have it as it came.
            (RecordPart::Variable(variable @ Variable::Arg(_), _), Some(text)) => {
                let decoded: Vec<u8> = decoded(text.as_bytes()).collect();
                head.known.push((variable, String::from_utf8_lossy(&decoded).into_owned()));
            }
            (RecordPart::Variable(variable, _), Some(text)) => head.known.push((variable, text)),
            // Recorded as absent.
            _ => {}
        }
        position.into_iter().for_each(|position| self.held.add(position));
        Ok(())
    }

    /// `{"name": "value", "other": ["first line", "second line"]}`
    fn take_headers(&mut self, key: &str, value: Value, head: &mut RequestHead) -> Result<(), String> {
        let fields = match value {
            Value::Null => return Ok(()),
            Value::Object(fields) => fields,
            _ => return Err(format!("{key:?} is not an object of header fields")),
        };
        self.held.headers = true;
        for (name, value) in fields {
            let lines = match value {
                Value::Array(lines) => lines,
                line => vec![line],
            };
            let texts = lines.into_iter().filter_map(|line| text_of(&name, line).transpose());
            let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
            if name.eq_ignore_ascii_case("host") {
                let position = self.needs.position("host");
                position.into_iter().for_each(|position| self.held.add(position));
            }
            head.add_headers(texts.into_iter().map(|text| (name.clone(), text)));
        }
        Ok(())
    }

    /// Determines and caches the meaning of a key that no configuration defines.
    fn learn(&mut self, key: &str) -> RecordPart {
        let part = match key {
            "method" => RecordPart::Method,
            "headers" => RecordPart::Headers,
            "route_id" => RecordPart::RouteId,
            _ => Variable::parse(key).map_or(RecordPart::Other, |variable| self.part_of(&variable)),
        };
        if self.parts.len() < KEYS_MAX {
            self.parts.insert(key.to_owned(), part.clone());
        }
        part
    }

    fn part_of(&self, variable: &Variable) -> RecordPart {
        let position = || self.needs.position(&variable.to_string());
        match variable {
            Variable::RequestMethod => RecordPart::Method,
            Variable::RequestUri => RecordPart::Target,
            Variable::Uri => RecordPart::Path,
            Variable::Args => RecordPart::Query,
            Variable::Host => RecordPart::Host(position()),
            Variable::Header(name) => match (name.as_str(), position()) {
                ("host", _) => RecordPart::HttpHost(self.needs.position("host")),
                (name, at) if at.is_some() || name == "cookie" => RecordPart::Header(name.to_owned(), at),
                _ => RecordPart::Other,
            },
            Variable::Scheme => RecordPart::Scheme(position()),
            Variable::RemoteAddr => RecordPart::Client(position()),
            Variable::IsArgs | Variable::PathParam(_) => RecordPart::Other,
            other => position().map_or(RecordPart::Other, |position| RecordPart::Variable(other.clone(), position)),
        }
    }
}

fn set_target(loose: Loose, head: &mut RequestHead) -> Result<(), String> {
    let encoded = |path: String| utf8_percent_encode(&path, NOT_IN_PATHS).to_string();
    head.target = match loose {
        Loose { target: Some(target), .. } => target,
        Loose { path: Some(path), query: Some(query), .. } if !query.is_empty() => format!("{}?{query}", encoded(path)),
        Loose { path: Some(path), .. } => encoded(path),
        Loose { .. } => String::new(),
    };
    if head.target.is_empty() {
        return Err("no request_uri".to_owned());
    }
    if !head.target.starts_with('/')
        && let Ok(line) = RequestLine::new("GET", &head.target)
    {
        // In absolute form the URL's host takes precedence over the header's (RFC 9112 section 3.2.2).
        head.authority = line.authority.unwrap_or_default();
        head.target = line.target;
    }
    Ok(())
}

/// A value as text; `None` if it is null.
fn text_of(key: &str, value: Value) -> Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Bool(is) => Ok(Some(is.to_string())),
        Value::Array(_) | Value::Object(_) => Err(format!("{key:?} is not text")),
    }
}

/// The most sets of fields by which lines are counted.
const KINDS_MAX: usize = 4096;

/// The fields that routes read, by their names in the access log.
#[derive(Debug, Default)]
pub(super) struct Needs {
    needs: Vec<Need>,
    by_key: HashMap<String, usize>,
    /// Number of lines by the set of fields they contain.
    kinds: HashMap<LineFields, u64>,
    /// Lines whose set was beyond the maximum.
    uncounted: u64,
}

#[derive(Debug)]
struct Need {
    /// The name in the access log.
    key: String,
    /// The name in routes.
    field: String,
    routes: usize,
    of: LogFieldScope,
}

/// A group of fields that may contain the value of a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogFieldScope {
    Own,
    Header,
    Cookie,
    Query,
}

/// The needed fields that a line contains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LineFields {
    /// Positions of single fields, sorted.
    own: Vec<usize>,
    /// All header fields.
    pub(super) headers: bool,
    /// All cookies.
    cookies: bool,
    /// The whole query.
    pub(super) query: bool,
}

/// A field that routes read and lines lack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnloggedField {
    /// The name in routes.
    pub field: String,
    /// The name in the access log.
    pub key: String,
    /// Number of routes, of both configurations together, that read it.
    pub routes: usize,
    /// Number of lines that lack it.
    pub lines: u64,
}

impl Needs {
    /// Collects the fields of all routes. Routes with the same id are counted once.
    pub(super) fn of(configurations: &[&Config]) -> Needs {
        let mut needs = Needs::default();
        let mut readers: Vec<HashSet<&str>> = Vec::new();
        for route in configurations.iter().flat_map(|config| &config.routes) {
            let spec = &route.spec;
            each_field(spec, &mut |field| {
                let Some((key, family)) = key_of(field) else { return };
                let at = *needs.by_key.entry(key).or_insert_with_key(|key| {
                    let (key, field) = (key.clone(), field.to_string());
                    needs.needs.push(Need { key, field, routes: 0, of: family });
                    readers.push(HashSet::new());
                    needs.needs.len() - 1
                });
                readers[at].insert(&spec.id);
            });
        }
        for (need, readers) in needs.needs.iter_mut().zip(readers) {
            need.routes = readers.len();
        }
        needs
    }

    /// The position of a field, if some route reads it.
    pub(super) fn position(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// Counts a line.
    pub(super) fn count(&mut self, held: &mut LineFields) {
        held.own.sort_unstable();
        held.own.dedup();
        if let Some(count) = self.kinds.get_mut(held) {
            *count += 1;
        } else if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(held.clone(), 1);
        } else {
            self.uncounted += 1;
        }
    }

    /// The fields that lines lack, those of most routes first.
    pub(super) fn missing(&self) -> Vec<UnloggedField> {
        let mut missing: Vec<UnloggedField> = Vec::new();
        for (at, need) in self.needs.iter().enumerate() {
            let lacking = self.kinds.iter().filter(|(held, _)| !held.has(at, need.of));
            // A line whose fields were not counted may lack any of them.
            let lines = lacking.map(|(_, count)| count).sum::<u64>() + self.uncounted;
            if lines > 0 {
                let (field, key) = (need.field.clone(), need.key.clone());
                missing.push(UnloggedField { field, key, routes: need.routes, lines });
            }
        }
        missing.sort_by(|a, b| (b.routes, &a.key).cmp(&(a.routes, &b.key)));
        missing
    }
}

impl LineFields {
    pub(super) fn clear(&mut self) {
        self.own.clear();
        (self.headers, self.cookies, self.query) = (false, false, false);
    }

    pub(super) fn add(&mut self, position: usize) {
        self.own.push(position);
    }

    fn has(&self, at: usize, family: LogFieldScope) -> bool {
        let with_others = match family {
            LogFieldScope::Own => false,
            LogFieldScope::Header => self.headers,
            LogFieldScope::Cookie => self.headers || self.cookies,
            LogFieldScope::Query => self.query,
        };
        with_others || self.own.binary_search(&at).is_ok()
    }
}

/// The name of a field in the access log; `None`: every request has it.
fn key_of(field: &Field) -> Option<(String, LogFieldScope)> {
    let variable = variable_of(field)?;
    let family = match &variable {
        Variable::Uri | Variable::PathParam(_) => return None,
        Variable::RequestUri | Variable::Args | Variable::IsArgs | Variable::Arg(_) => LogFieldScope::Query,
        Variable::Header(name) if name.as_str() == "host" => {
            return Some((Variable::Host.to_string(), LogFieldScope::Own));
        }
        Variable::Header(_) => LogFieldScope::Header,
        Variable::Cookie(_) => LogFieldScope::Cookie,
        _ => LogFieldScope::Own,
    };
    Some((variable.to_string(), family))
}
