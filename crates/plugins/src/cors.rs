//! `cors`: lets pages of other origins read responses (CORS), and answers the browser's preflight requests.
//!
//! All lines that do not depend on the request are prepared when the configuration is read.

use crate::patterns::PATTERN;
use crate::rule_set::{RuleError, RuleSet};
use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use stillgate_plugin_api::{
    Answer, Compile, Define, Flow, Metadata, MetadataTable, Phase, Phases, Plugin, Request, Response,
};
use stillgate_schema::kind::{some, unique, unplaced};
use stillgate_schema::{
    At, Definitions, Fault, Flag, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Text, Value, int, object, read,
    report_expected, text,
};
use stillgate_wire::{Edits, FieldName, FieldValue, OwnedFieldValue, OwnedLine};

object! {
    /// Lets pages of other origins read responses.
    pub(crate) struct CorsKeys {
        /// Origins that may read responses, such as `https://a.example:8443`, separated by commas. `*`: all. `**`: all,
        /// and the answer names the requesting origin, so that credentials can be allowed; unsafe unless all sites are
        /// trusted.
        allow_origins: At<Origins> = LocatedKind(ORIGINS) => default(unplaced(Origins::Any));
        /// Methods that may be used, separated by commas. `*`: all. `**`: all, by name.
        allow_methods: String = TEXT.shown() => default("*".to_owned());
        /// Request header fields that may be sent, separated by commas. `*`: all. `**`: those that the preflight
        /// requests.
        allow_headers: String = TEXT.shown() => default("*".to_owned());
        /// Response header fields that pages may read, separated by commas. `*`: all.
        expose_headers: String = TEXT => optional;
        /// Seconds that browsers may keep the answer to a preflight request; -1: none.
        max_age: i64 = int(i64::MIN, i64::MAX) => default(5);
        /// Whether requests may carry credentials such as cookies. Then no other key can be `*`.
        allow_credential: bool = Flag => default(false);
        /// Regular expressions of origins that may read responses, instead of `allow_origins`.
        allow_origins_by_regex: Vec<String> = unique(some(PATTERN)) => optional;
        /// Names of origins in the plugin's metadata. With this key, `*` in `allow_origins` is ignored.
        allow_origins_by_metadata: Vec<String> = unique(some(NAME)) => optional;
        /// Origins that may read resource timings, as `allow_origins`.
        timing_allow_origins: Origins = ORIGINS => optional;
        /// Regular expressions of origins that may read resource timings, instead of `timing_allow_origins`.
        timing_allow_origins_by_regex: Vec<String> = unique(some(PATTERN)) => optional;
    }
}

object! {
    /// Origins that configurations of `cors` refer to by name.
    pub(crate) struct CorsMetadata {
        /// Origins by name, in the form of the plugin's `allow_origins`.
        allow_origins: BTreeMap<String, Origins> = NamedOrigins => default(BTreeMap::new());
    }
}

/// The plugin.
pub(crate) struct Cors {
    /// The rules for reading.
    access: OriginAccess,
    /// The rule for reading timings.
    timing: Option<OriginRule>,
    /// Lines that are the same for all origins.
    lines: Edits,
    /// Lines for each listed origin, including the one that allows it.
    lines_of: Box<[Edits]>,
    /// Whether `allow_headers` is `**`.
    echoes_headers: bool,
    /// Set if the response depends on the origin.
    vary: Option<OwnedLine>,
    /// The names of [`ACCESS`] and [`TIMING`]. Each worker searches with a copy, since searching takes memory.
    patterns: [Option<Arc<RuleSet>>; 2],
}

const ACCESS: usize = 0;
const TIMING: usize = 1;

struct OriginAccess {
    /// `None`: only the metadata decides.
    rule: Option<OriginRule>,
    metadata: Box<[String]>,
}

enum OriginRule {
    Listed(Origins),
    /// Index of its patterns.
    Matching(usize),
}

/// A set of origins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origins {
    /// `*`
    Any,
    /// `**`
    Each,
    /// The listed ones.
    Listed(Box<[OwnedFieldValue]>),
}

const ORIGIN: FieldName<'static> = FieldName::constant("Origin");
const REQUEST_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Request-Headers");
const ALLOW_ORIGIN: FieldName<'static> = FieldName::constant("Access-Control-Allow-Origin");
const ALLOW_METHODS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Methods");
const ALLOW_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Headers");
const ALLOW_CREDENTIALS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Credentials");
const EXPOSE_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Expose-Headers");
const MAX_AGE: FieldName<'static> = FieldName::constant("Access-Control-Max-Age");
const TIMING_ALLOW_ORIGIN: FieldName<'static> = FieldName::constant("Timing-Allow-Origin");
const VARY: FieldName<'static> = FieldName::constant("Vary");

/// Most steps, of about a nanosecond, for matching an origin: one that takes longer is not allowed.
const ORIGIN_STEPS_MAX: usize = 2_000_000;

/// The value of `**` in `allow_methods`.
const ALL_METHODS: &str = "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE";

impl Define for Cors {
    type Keys = CorsKeys;
    const NAME: &'static str = "cors";
    const PRIORITY: i32 = 4000;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite, Phase::HeaderFilter]);

    fn compile(keys: CorsKeys, cx: &mut Compile<'_>) -> Option<Cors> {
        no_star_with_credentials(&keys, cx)?;
        let lines = constant_lines(&keys, cx)?;
        let metadata = keys.allow_origins_by_metadata.unwrap_or_default();
        let origins = keys.allow_origins.value;
        let timing_origins = keys.timing_allow_origins;
        let patterns = [
            pattern_set(keys.allow_origins_by_regex, "allow_origins_by_regex", cx)?,
            pattern_set(keys.timing_allow_origins_by_regex, "timing_allow_origins_by_regex", cx)?,
        ];
        let matching = |at: usize| patterns[at].is_some().then_some(OriginRule::Matching(at));
        let varies = origins != Origins::Any
            || patterns.iter().any(Option::is_some)
            || !metadata.is_empty()
            || timing_origins.as_ref().is_some_and(|origins| *origins != Origins::Any);
        let listed = (metadata.is_empty() || origins != Origins::Any).then_some(OriginRule::Listed(origins));
        let rule = matching(ACCESS).or(listed);
        let with_line = |origin: &OwnedFieldValue| {
            let mut lines = lines.clone();
            lines.add(ALLOW_ORIGIN, origin.value());
            lines
        };
        let lines_of = match &rule {
            Some(OriginRule::Listed(Origins::Listed(list))) => list.iter().map(with_line).collect(),
            _ => Box::default(),
        };
        Some(Cors {
            access: OriginAccess { rule, metadata: metadata.into() },
            timing: matching(TIMING).or(timing_origins.map(OriginRule::Listed)),
            lines,
            lines_of,
            echoes_headers: keys.allow_headers == "**",
            vary: varies.then(|| OwnedLine::new(VARY, FieldValue::constant("Origin"))),
            patterns,
        })
    }
}

impl Metadata for Cors {
    type Metadata = CorsMetadata;
}

impl Plugin for Cors {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        match request.facts.method() == b"OPTIONS" {
            true => Flow::Answer(Answer::empty(200)),
            false => Flow::Continue,
        }
    }

    fn header_filter(&self, response: &mut Response<'_>) {
        let facts = response.facts;
        let value_of = |name: FieldName<'_>| name.value_in(&facts.request.fields, facts.head);
        let origin = value_of(ORIGIN);
        if let Some(vary) = &self.vary {
            response.edits.fields.add_line(vary);
        }
        let matches = |at: usize, origin: &[u8]| {
            let patterns = self.patterns[at].as_ref();
            patterns.is_some_and(|patterns| patterns.search(iter::once(origin), ORIGIN_STEPS_MAX) == Ok(true))
        };
        let edits = &mut response.edits.fields;
        let is_allowed = match self.access.listed(origin) {
            Some(place) => {
                edits.overlay(response.fields, response.head, &self.lines_of[place]);
                true
            }
            None => {
                // If origins are listed, it is not one of them.
                let rule = self.access.rule.as_ref().filter(|_| self.lines_of.is_empty());
                let allowed = rule.and_then(|rule| rule.allows(origin, matches));
                let allowed = allowed.or_else(|| self.access.by_name(origin, response.metadata));
                if let Some(allowed) = allowed {
                    edits.overlay(response.fields, response.head, &self.lines);
                    edits.set(response.fields, response.head, ALLOW_ORIGIN, allowed);
                }
                allowed.is_some()
            }
        };
        if is_allowed && self.echoes_headers {
            match value_of(REQUEST_HEADERS) {
                Some(asked) => response.set_header(ALLOW_HEADERS, asked),
                None => response.remove_header(ALLOW_HEADERS),
            }
        }
        if let Some(allowed) = self.timing.as_ref().and_then(|rule| rule.allows(origin, matches)) {
            response.set_header(TIMING_ALLOW_ORIGIN, allowed);
        }
    }
}

impl OriginAccess {
    /// Index of the requesting origin among the listed ones.
    fn listed(&self, origin: Option<FieldValue<'_>>) -> Option<usize> {
        let Some(OriginRule::Listed(Origins::Listed(list))) = &self.rule else { return None };
        let origin = origin?;
        list.iter().position(|listed| listed.value().bytes() == origin.bytes())
    }

    /// The requesting origin, if the metadata has it under one of the names.
    fn by_name<'a>(&self, origin: Option<FieldValue<'a>>, metadata: &MetadataTable) -> Option<FieldValue<'a>> {
        if self.metadata.is_empty() {
            return None;
        }
        let named = &metadata.get::<CorsMetadata>(Cors::NAME)?.allow_origins;
        let mut origins = self.metadata.iter().filter_map(|name| named.get(name));
        origins.find_map(|origins| origins.allow(origin)).and(origin)
    }
}

impl OriginRule {
    fn allows<'a>(
        &self,
        origin: Option<FieldValue<'a>>,
        matches: impl Fn(usize, &[u8]) -> bool,
    ) -> Option<FieldValue<'a>> {
        match self {
            OriginRule::Listed(origins) => origins.allow(origin),
            OriginRule::Matching(at) => origin.filter(|origin| matches(*at, origin.bytes())),
        }
    }
}

impl Origins {
    fn allow<'a>(&self, origin: Option<FieldValue<'a>>) -> Option<FieldValue<'a>> {
        const ANY: FieldValue<'static> = FieldValue::constant("*");
        match self {
            Origins::Any => Some(ANY),
            Origins::Each => Some(origin.unwrap_or(ANY)),
            Origins::Listed(list) => {
                origin.filter(|origin| list.iter().any(|listed| listed.value().bytes() == origin.bytes()))
            }
        }
    }
}

fn no_star_with_credentials(keys: &CorsKeys, cx: &mut Compile<'_>) -> Option<()> {
    let stars = [
        ("allow_origins", keys.allow_origins.value == Origins::Any),
        ("allow_methods", keys.allow_methods == "*"),
        ("allow_headers", keys.allow_headers == "*"),
        ("expose_headers", keys.expose_headers.as_deref() == Some("*")),
        ("timing_allow_origins", keys.timing_allow_origins == Some(Origins::Any)),
    ];
    let (key, _) = match stars.into_iter().find(|(_, is_star)| keys.allow_credential && *is_star) {
        None => return Some(()),
        Some(star) => star,
    };
    let fault = Fault::new("you can not set '*' for other option when 'allow_credential' is true");
    let hint = match key {
        "allow_origins" | "timing_allow_origins" => format!("list the origins in `{key}`; its default is `*`"),
        "allow_methods" | "allow_headers" => format!("list them in `{key}`; its default is `*`"),
        _ => format!("list the fields in `{key}`"),
    };
    cx.sink.error(cx.at, &cx.path.key(key), fault.hint(hint));
    None
}

fn constant_lines(keys: &CorsKeys, cx: &mut Compile<'_>) -> Option<Edits> {
    let methods = if keys.allow_methods == "**" { ALL_METHODS } else { &keys.allow_methods };
    let max_age = keys.max_age.to_string();
    let headers = Some(&*keys.allow_headers).filter(|headers| *headers != "**");
    let values = [
        ("allow_methods", ALLOW_METHODS, Some(methods)),
        ("allow_headers", ALLOW_HEADERS, headers),
        ("expose_headers", EXPOSE_HEADERS, keys.expose_headers.as_deref()),
        ("max_age", MAX_AGE, Some(&*max_age)),
        ("allow_credential", ALLOW_CREDENTIALS, keys.allow_credential.then_some("true")),
    ];
    let mut lines = Edits::default();
    for (key, name, value) in values {
        let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
        match FieldValue::new(value.as_bytes()) {
            Ok(value) => lines.add(name, value),
            Err(error) => {
                cx.sink.error(cx.at, &cx.path.key(key), Fault::new(error.to_string()));
                return None;
            }
        }
    }
    Some(lines)
}

/// `None`: an error was reported.
#[expect(clippy::option_option, reason = "the outer says whether the configuration is good")]
fn pattern_set(patterns: Option<Vec<String>>, key: &'static str, cx: &mut Compile<'_>) -> Option<Option<Arc<RuleSet>>> {
    let Some(patterns) = patterns else { return Some(None) };
    let set = RuleSet::of(&patterns, &cx.sink.budget());
    let report = |RuleError { rule, fault }| cx.sink.error(cx.at, &cx.path.key(key).index(rule), fault);
    set.map_err(report).ok().map(Some)
}

const NAME: Text<String> = text("a name", |text| match text.is_empty() || text.chars().count() > 4096 {
    true => Err(Fault::new("a name has from 1 to 4096 characters")),
    false => Ok(text.to_owned()),
});

const ORIGINS: Text<Origins> = text("origins", parse_origins).pattern(r"^(\*|\*\*|null|\w+://[^,]+(,\w+://[^,]+)*)$");

fn parse_origins(text: &str) -> Result<Origins, Fault> {
    let is_origin = |origin: &str| {
        origin.split_once("://").is_some_and(|(scheme, rest)| {
            !rest.is_empty() && !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
    };
    match text {
        "*" => return Ok(Origins::Any),
        "**" => return Ok(Origins::Each),
        _ => {}
    }
    if text != "null" && !text.split(',').all(is_origin) {
        let fault = Fault::new(format!("{text:?} is not a list of origins"));
        return Err(
            fault.hint("write \"*\", \"**\", \"null\" or origins such as \"https://a.example,https://b.example\"")
        );
    }
    let listed = text.split(',').map(|origin| OwnedFieldValue::new(origin.as_bytes()));
    let listed: Result<Box<[_]>, _> = listed.collect();
    listed.map(Origins::Listed).map_err(|error| Fault::new(error.to_string()))
}

/// A map of names and origins.
struct NamedOrigins;

impl Kind for NamedOrigins {
    type Out = BTreeMap<String, Origins>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Self::Out> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of names and origins", node, path, sink);
            return None;
        };
        let named = entries.iter().filter_map(|entry| {
            Some((entry.key.to_string(), read(&ORIGINS, &entry.value, &path.key(&entry.key), sink)?))
        });
        Some(named.collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        serde_json::json!({"type": "object", "additionalProperties": ORIGINS.schema(definitions)})
    }
}
