//! `proxy-rewrite`: changes target, host, method and header fields of a request before it is forwarded.

use crate::encoding::{Percent, encode};
use crate::header_edits::{HeaderEdits, Headers};
use crate::linear_regex::{LinearRegex, Range};
use crate::patterns::{Flags, GroupsRegex};
use crate::variable_texts::{
    Groups, Language, Replacement, ReplacementPart, Unknown, group_max, warn_of_group, warn_of_unknown,
};
use regex::bytes::CaptureLocations;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, PerWorker, Phase, Phases, Plugin, Request};
use stillgate_route::path::target_path;
use stillgate_route::regex::TooMuchWork;
use stillgate_route::{Lookup, Variable};
use stillgate_schema::kind::list;
use stillgate_schema::{At, Choice, Fault, Flag, LocatedKind, Position, TEXT, Text, object, text};
use stillgate_wire::{EditError, OwnedFieldValue, is_host};

object! {
    /// Changes a request before it is forwarded.
    pub(crate) struct ProxyRewriteKeys {
        /// The path for the node, with a query if it has a `?`; with variables. The query of the request is added to
        /// it.
        uri: At<String> = LocatedKind(URI) => optional;
        /// The method for the node.
        method: &'static str = METHOD => optional;
        /// Pairs of a regular expression and the replacement of its match in the path; `$1` is a group. The first that
        /// matches is used. `uri` takes precedence.
        regex_uri: At<Vec<String>> = LocatedKind(list(TEXT)) => optional;
        /// The `Host` for the node, which overrides the upstream's `pass_host`.
        host: OwnedFieldValue = NODE_HOST => optional;
        /// Header fields: `add`, `set` (an empty value removes the field) and `remove`, in this order; or a map that is set.
        /// Values can have variables and the groups of `regex_uri`; a list under `add` or `set` makes several lines.
        headers: HeaderEdits = Headers::OfRequest => default(HeaderEdits::default());
        /// Uses path and query as the client sent them, and encodes nothing. The node may then get another path than
        /// the one that was matched.
        use_real_request_uri_unsafe: bool = Flag => default(false);
        any_of {
            "nothing to rewrite": uri | method | regex_uri | host | headers | use_real_request_uri_unsafe;
        }
    }
}

/// The plugin.
pub(crate) struct ProxyRewrite {
    method: Option<&'static str>,
    host: Option<OwnedFieldValue>,
    target: TargetSource,
    headers: HeaderEdits,
    own: PerWorker<Search>,
}

impl Define for ProxyRewrite {
    type Keys = ProxyRewriteKeys;
    const NAME: &'static str = "proxy-rewrite";
    const PRIORITY: i32 = 1008;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: ProxyRewriteKeys, cx: &mut Compile<'_>) -> Option<ProxyRewrite> {
        let is_raw = keys.use_real_request_uri_unsafe;
        // Parsed in any case, so that errors in it are reported.
        let by_regex = match &keys.regex_uri {
            Some(At { at, value }) => Some(TargetSource::by_regex(value, is_raw, *at, cx)?),
            None => None,
        };
        let target = match (&keys.uri, by_regex) {
            (Some(At { at, value }), _) => TargetSource::to(value, is_raw, *at, cx)?,
            (None, Some(by_regex)) => by_regex,
            (None, None) => TargetSource::None,
        };
        warn_of_group(keys.headers.group_max(), target.groups(), cx.at, &cx.path.key("headers"), cx.sink);
        Some(ProxyRewrite {
            method: keys.method,
            host: keys.host,
            target,
            headers: keys.headers,
            own: PerWorker::new(),
        })
    }
}

impl Plugin for ProxyRewrite {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let outcome = match &self.target {
            TargetSource::None => self.edit(request, &Groups::NONE).map_err(TargetError::from),
            target => self.own.with(
                || Search::new(target),
                |search| search.rewrite(target, request).and_then(|groups| Ok(self.edit(request, &groups)?)),
            ),
        };
        match outcome {
            Ok(()) => Flow::Continue,
            Err(error) => Flow::Answer(error_answer(error)),
        }
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.target.each_variable(visit);
        self.headers.each_variable(visit);
    }
}

impl ProxyRewrite {
    /// Applies all edits but the target.
    fn edit(&self, request: &mut Request<'_>, groups: &Groups<'_>) -> Result<(), EditError> {
        if let Some(host) = &self.host {
            request.edits.set_host(host.value().bytes())?;
        }
        self.headers.apply(request, request.worker, groups)?;
        match self.method {
            Some(method) => request.edits.set_method(method.as_bytes()),
            None => Ok(()),
        }
    }
}

/// A value with variables cannot be sent: the request is not forwarded.
fn error_answer(error: TargetError) -> Answer {
    let (status, message) = match error {
        TargetError::Edit(error) => (500, error.to_string()),
        TargetError::DotSegment => (400, "a value leads to another path".to_owned()),
        TargetError::TooMuchWork => (400, "matching the path would take too long".to_owned()),
    };
    let message = serde_json::json!({"error_msg": format!("proxy-rewrite: {message}")});
    Answer::owned(status, format!("{message}\n").into_bytes())
}

const URI: Text<String> = text("a path", |text| match text.starts_with('/') && text.chars().count() <= 4096 {
    true => Ok(text.to_owned()),
    false => Err(Fault::new("a path begins with \"/\" and has at most 4096 characters")),
})
.pattern("^/");

const METHOD: Choice<&'static str> = Choice {
    words: &[
        ("GET", "GET"),
        ("POST", "POST"),
        ("PUT", "PUT"),
        ("HEAD", "HEAD"),
        ("DELETE", "DELETE"),
        ("OPTIONS", "OPTIONS"),
        ("MKCOL", "MKCOL"),
        ("COPY", "COPY"),
        ("MOVE", "MOVE"),
        ("PROPFIND", "PROPFIND"),
        ("LOCK", "LOCK"),
        ("UNLOCK", "UNLOCK"),
        ("PATCH", "PATCH"),
        ("TRACE", "TRACE"),
    ],
    unbuilt: &[],
};

const NODE_HOST: Text<OwnedFieldValue> = text("a host", |text| {
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    let is_port = |port: &str| matches!(port.len(), 1..=5) && port.bytes().all(|b| b.is_ascii_digit());
    match is_name && port.is_none_or(is_port) && is_host(text.as_bytes()) {
        true => OwnedFieldValue::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string())),
        false => {
            Err(Fault::new(format!("{text:?} is not a host")).hint("write it like \"a.example\" or \"a.example:8080\""))
        }
    }
})
.pattern(r"^[0-9a-zA-Z.-]+(:\d{1,5})?$");

// Computes the target for the node.
//
// Path and query are assembled separately: values in the path are percent-encoded, so that they cannot become a query.
// Regular expressions see the decoded path; groups are encoded again.
// A path with values must stay below the text around them: segments that lead elsewhere are refused.

/// Source of the target.
enum TargetSource {
    /// It is unchanged.
    None,
    /// `uri`
    To { target: TargetTemplate, is_raw: bool },
    /// `regex_uri`
    ByRegex { pairs: Box<[(Pattern, TargetTemplate)]>, is_raw: bool },
}

/// A regular expression, with the cheapest engine for it.
enum Pattern {
    LinearRegex(LinearRegex),
    Regex(GroupsRegex),
}

/// A worker's state for a search: the groups, and a copy of the regular expression, since searching takes memory.
enum Finder {
    LinearRegex(Box<[Range]>),
    Regex(GroupsRegex, CaptureLocations),
}

/// A target with variables and groups, its constant parts encoded.
struct TargetTemplate {
    parts: Box<[(TargetPart, ReplacementPart)]>,
    /// The part of the target at its end.
    ends_in: TargetPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetPart {
    /// Values are encoded.
    Path,
    /// Values from the path and arguments are encoded; others keep their bytes, except `?`.
    Query,
}

/// A worker's buffers for targets.
struct Search {
    /// One for each of the plugin's patterns.
    finders: Box<[Finder]>,
    target: Vec<u8>,
    /// The ranges of the target's path that come from values.
    values: Vec<(usize, usize)>,
    buffer: Vec<u8>,
    /// The path's text, where it has to be decoded.
    decoded: Vec<u8>,
}

/// The reason why a target is invalid.
#[derive(Debug, PartialEq, Eq)]
enum TargetError {
    /// It is not allowed in a head.
    Edit(EditError),
    /// A value of the request contains the segment `..` or `.`, which a node would resolve to another path.
    DotSegment,
    /// The path was made for the regular expression, or is too long for it.
    TooMuchWork,
}

impl From<TooMuchWork> for TargetError {
    fn from(TooMuchWork: TooMuchWork) -> TargetError {
        TargetError::TooMuchWork
    }
}

impl From<EditError> for TargetError {
    fn from(error: EditError) -> TargetError {
        TargetError::Edit(error)
    }
}

impl TargetSource {
    /// Compiles `uri`.
    fn to(uri: &str, is_raw: bool, at: Position, cx: &mut Compile<'_>) -> Option<TargetSource> {
        let path = cx.path.key("uri");
        let unknown = &mut |error| warn_of_unknown(&error, at, &path, cx.sink);
        match TargetTemplate::parse(uri, Language::Template, is_raw, unknown) {
            Ok(target) => {
                warn_of_group(target.group_max(), 0, at, &path, cx.sink);
                Some(TargetSource::To { target, is_raw })
            }
            Err(message) => {
                cx.sink.error(at, &path, Fault::new(message));
                None
            }
        }
    }

    /// Compiles `regex_uri`.
    fn by_regex(pairs: &[String], is_raw: bool, at: Position, cx: &mut Compile<'_>) -> Option<TargetSource> {
        let path = cx.path.key("regex_uri");
        if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
            let fault = Fault::new("The length of regex_uri should be an even number");
            cx.sink.error(at, &path, fault.hint("write pairs of a regular expression and what takes its place"));
            return None;
        }
        let mut compiled = Vec::new();
        for (index, pair) in pairs.chunks_exact(2).enumerate() {
            let regex = GroupsRegex::compile(&pair[0], Flags::default(), &cx.sink.budget());
            let unknown = &mut |error| warn_of_unknown(&error, at, &path.index(2 * index + 1), cx.sink);
            let template = TargetTemplate::parse(&pair[1], Language::Target, is_raw, unknown).map_err(Fault::new);
            match (regex, template) {
                (Ok(regex), Ok(template)) => {
                    let groups = regex.regex().captures_len() - 1;
                    warn_of_group(template.group_max(), groups, at, &path.index(2 * index + 1), cx.sink);
                    compiled.push((Pattern::new(regex), template));
                }
                (Err(fault), _) => cx.sink.error(at, &path.index(2 * index), fault),
                (_, Err(fault)) => cx.sink.error(at, &path.index(2 * index + 1), fault),
            }
        }
        let is_whole = compiled.len() == pairs.len() / 2;
        is_whole.then(|| TargetSource::ByRegex { pairs: compiled.into(), is_raw })
    }

    /// The largest number of groups in one of its regular expressions.
    fn groups(&self) -> usize {
        match self {
            TargetSource::ByRegex { pairs, .. } => pairs.iter().map(|(pattern, _)| pattern.groups()).max().unwrap_or(0),
            TargetSource::None | TargetSource::To { .. } => 0,
        }
    }

    /// The variables in it.
    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        match self {
            TargetSource::None => {}
            TargetSource::To { target, .. } => target.variables().for_each(visit),
            TargetSource::ByRegex { pairs, .. } => {
                pairs.iter().flat_map(|(_, target)| target.variables()).for_each(visit);
            }
        }
    }
}

impl Pattern {
    fn new(regex: GroupsRegex) -> Pattern {
        LinearRegex::new(regex.regex().as_str()).map_or(Pattern::Regex(regex), Pattern::LinearRegex)
    }

    fn groups(&self) -> usize {
        match self {
            Pattern::LinearRegex(linear) => linear.groups().len() - 1,
            Pattern::Regex(regex) => regex.regex().captures_len() - 1,
        }
    }

    fn finder(&self) -> Finder {
        match self {
            Pattern::LinearRegex(linear) => Finder::LinearRegex(linear.groups()),
            Pattern::Regex(regex) => Finder::Regex(regex.clone(), regex.regex().capture_locations()),
        }
    }
}

impl Finder {
    /// The match of a pattern, with its groups.
    fn find<'a>(&'a mut self, pattern: &Pattern, text: &'a [u8]) -> Result<Option<(Range, Groups<'a>)>, TooMuchWork> {
        Ok(match (self, pattern) {
            (Finder::LinearRegex(ranges), Pattern::LinearRegex(linear)) => {
                linear.find(text, ranges).then(|| (ranges[0], Groups::of_ranges(ranges, text)))
            }
            (Finder::Regex(regex, locations), _) => {
                regex.find(locations, text)?.map(|found| ((found.start(), found.end()), Groups::of(locations, text)))
            }
            (Finder::LinearRegex(_), Pattern::Regex(_)) => None,
        })
    }
}

impl TargetTemplate {
    fn parse(
        text: &str,
        language: Language,
        is_raw: bool,
        unknown: &mut Unknown<'_>,
    ) -> Result<TargetTemplate, String> {
        let mut place = if is_raw { TargetPart::Query } else { TargetPart::Path };
        let mut parts = Vec::new();
        for part in Replacement::parse(text, language, unknown)?.0 {
            let part = match part {
                ReplacementPart::Text(text) => {
                    let path = match place {
                        TargetPart::Query => 0,
                        TargetPart::Path => text.iter().position(|byte| *byte == b'?').unwrap_or(text.len()),
                    };
                    let mut encoded = Vec::new();
                    encode(&text[..path], Percent::Encoded, &mut encoded);
                    // No node would accept it as a request.
                    if let Some(byte) = text[path..].iter().find(|byte| byte.is_ascii_control() || **byte == b' ') {
                        return Err(format!("a target cannot hold {:?}; percent-encode it", char::from(*byte)));
                    }
                    encoded.extend_from_slice(&text[path..]);
                    if path < text.len() {
                        place = TargetPart::Query;
                    }
                    ReplacementPart::Text(encoded.into())
                }
                part => part,
            };
            parts.push((place, part));
        }
        Ok(TargetTemplate { parts: parts.into(), ends_in: place })
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.parts.iter().filter_map(|(_, part)| part.variable())
    }

    fn group_max(&self) -> usize {
        group_max(self.parts.iter().map(|(_, part)| part))
    }

    /// `percent`: of the groups. `values`: collects the ranges of the path that come from values.
    fn write(
        &self,
        groups: &Groups<'_>,
        percent: Percent,
        vars: &dyn Lookup,
        out: &mut Vec<u8>,
        values: &mut Vec<(usize, usize)>,
        buffer: &mut Vec<u8>,
    ) {
        for (place, part) in &self.parts {
            let begin = out.len();
            match part {
                ReplacementPart::Text(text) => out.extend_from_slice(text),
                ReplacementPart::Group(group) => place.write(groups.get(*group), percent, out),
                ReplacementPart::Variable(variable, default) => {
                    let value = vars.value(variable, buffer).unwrap_or(default);
                    match (place, variable) {
                        (TargetPart::Path, _) => encode(value, Percent::Encoded, out),
                        (TargetPart::Query, Variable::Arg(_) | Variable::RouteParam(_) | Variable::Uri) => {
                            write_argument(value, out);
                        }
                        (TargetPart::Query, _) => write_query(value, out),
                    }
                }
            }
            if *place == TargetPart::Path && !matches!(part, ReplacementPart::Text(_)) {
                values.push((begin, out.len()));
            }
        }
    }
}

impl TargetPart {
    /// Appends text of the request's own target.
    fn write(self, text: &[u8], percent: Percent, out: &mut Vec<u8>) {
        match (self, percent) {
            (TargetPart::Query, Percent::Kept) => out.extend_from_slice(text),
            _ => encode(text, percent, out),
        }
    }
}

impl Search {
    fn new(rewriting: &TargetSource) -> Search {
        let finders: Box<[_]> = match rewriting {
            TargetSource::ByRegex { pairs, .. } => pairs.iter().map(|(pattern, _)| pattern.finder()).collect(),
            _ => Box::default(),
        };
        Search { finders, target: Vec::new(), values: Vec::new(), buffer: Vec::new(), decoded: Vec::new() }
    }

    /// Sets the target; returns the captured groups.
    fn rewrite<'s, 'r: 's>(
        &'s mut self,
        rewriting: &TargetSource,
        request: &mut Request<'r>,
    ) -> Result<Groups<'s>, TargetError> {
        self.target.clear();
        self.values.clear();
        match rewriting {
            TargetSource::None => Ok(Groups::NONE),
            TargetSource::To { target, is_raw } => {
                target.write(
                    &Groups::NONE,
                    Percent::Kept,
                    request,
                    &mut self.target,
                    &mut self.values,
                    &mut self.buffer,
                );
                check_segments(&self.target, &self.values)?;
                let has_query = match is_raw {
                    true => self.target.contains(&b'?'),
                    false => target.ends_in == TargetPart::Query,
                };
                finish(&mut self.target, *is_raw, has_query, request)?;
                Ok(Groups::NONE)
            }
            TargetSource::ByRegex { pairs, is_raw } => {
                let facts = request.facts;
                let path = match is_raw {
                    true => match request.edited_query() {
                        None => facts.path_and_query(),
                        Some(query) => {
                            self.decoded.clear();
                            self.decoded.extend_from_slice(target_path(facts.path_and_query()).0);
                            if !query.is_empty() {
                                self.decoded.push(b'?');
                                self.decoded.extend_from_slice(query);
                            }
                            &self.decoded
                        }
                    },
                    false => match facts.path {
                        Some(path) => path.text(&mut self.decoded),
                        None => b"/",
                    },
                };
                let mut found = self.finders.iter_mut().zip(pairs).filter_map(|(finder, (pattern, template))| {
                    finder.find(pattern, path).map(|found| found.map(|found| (found, template))).transpose()
                });
                let Some((((start, end), groups), template)) = found.next().transpose()? else {
                    return Ok(Groups::NONE);
                };
                // A raw target is encoded as it came, the path is decoded.
                let (before, percent) = match is_raw {
                    true => (TargetPart::Query, Percent::Kept),
                    false => (TargetPart::Path, Percent::Encoded),
                };
                before.write(&path[..start], percent, &mut self.target);
                if !is_raw {
                    self.values.push((0, self.target.len()));
                }
                template.write(&groups, percent, request, &mut self.target, &mut self.values, &mut self.buffer);
                let behind = self.target.len();
                template.ends_in.write(&path[end..], percent, &mut self.target);
                if template.ends_in == TargetPart::Path {
                    self.values.push((behind, self.target.len()));
                }
                check_segments(&self.target, &self.values)?;
                match is_raw {
                    // The query is part of the rewritten text.
                    true => request.edits.set_target(&self.target)?,
                    false => finish(&mut self.target, false, template.ends_in == TargetPart::Query, request)?,
                }
                Ok(groups)
            }
        }
    }
}

/// Adds the query of the request; a raw one as it came, even an empty one.
fn finish(target: &mut Vec<u8>, is_raw: bool, has_query: bool, request: &mut Request<'_>) -> Result<(), EditError> {
    // An empty query of the client's is kept, but not one that hidden credentials have left.
    let keeps_empty = is_raw && request.edited_query().is_none();
    if let Some(query) = request.query().filter(|query| keeps_empty || !query.is_empty()) {
        target.push(if has_query { b'&' } else { b'?' });
        target.extend_from_slice(query);
    }
    request.edits.set_target(target)
}

/// Refuses a dot segment that contains a part of a value, in any form that a node may accept: `%2e`, after `%2f`, `\`
/// or `%5c`, or with parameters after `;`.
fn check_segments(target: &[u8], values: &[(usize, usize)]) -> Result<(), TargetError> {
    let (Some((begin, _)), Some((_, end))) = (values.first(), values.last()) else { return Ok(()) };
    if !target[*begin..*end].iter().any(|byte| matches!(byte, b'.' | b'%')) && !has_dot_beside(target, values) {
        return Ok(());
    }
    let path = memchr::memchr(b'?', target).map_or(target, |at| &target[..at]);
    let (mut at, mut segment, mut dots) = (0, 0, Some(0));
    loop {
        let (byte, len) = decoded_at(path, at);
        match byte {
            None | Some(b'/' | b'\\' | b';') => {
                let is_of_value = || values.iter().any(|(begin, end)| *begin <= at && segment <= *end);
                if matches!(dots, Some(1 | 2)) && is_of_value() {
                    return Err(TargetError::DotSegment);
                }
                match byte {
                    None => return Ok(()),
                    Some(b';') => dots = None,
                    Some(_) => (segment, dots) = (at + len, Some(0)),
                }
            }
            Some(b'.') => dots = dots.map(|dots| dots + 1),
            Some(_) => dots = None,
        }
        at += len;
    }
}

/// Whether a dot is next to a value: `/.$1` becomes a dot segment even if the value has no dot.
fn has_dot_beside(target: &[u8], values: &[(usize, usize)]) -> bool {
    let is_dot = |byte: Option<&u8>| byte == Some(&b'.');
    values.iter().any(|(begin, end)| is_dot(target[..*begin].last()) || is_dot(target.get(*end)))
}

/// The decoded byte at `at`, and its encoded length.
fn decoded_at(text: &[u8], at: usize) -> (Option<u8>, usize) {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    match (text.get(at), digit(at + 1), digit(at + 2)) {
        (Some(b'%'), Some(high), Some(low)) => (Some((high * 16 + low) as u8), 3),
        (byte, ..) => (byte.copied(), 1),
    }
}

/// An argument of the request stays one value, however it was written.
fn write_argument(value: &[u8], out: &mut Vec<u8>) {
    for part in value.split_inclusive(|byte| matches!(byte, b'&' | b'+')) {
        match part.split_last() {
            Some((b'&', before)) => {
                encode(before, Percent::Encoded, out);
                out.extend_from_slice(b"%26");
            }
            Some((b'+', before)) => {
                encode(before, Percent::Encoded, out);
                out.extend_from_slice(b"%2B");
            }
            _ => encode(part, Percent::Encoded, out),
        }
    }
}

/// A value from the request cannot begin a query of its own.
fn write_query(value: &[u8], out: &mut Vec<u8>) {
    for byte in value {
        match byte {
            b'?' => out.extend_from_slice(b"%3F"),
            _ => out.push(*byte),
        }
    }
}
