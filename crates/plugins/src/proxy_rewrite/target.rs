//! Computes the target for the node.
//!
//! Path and query are assembled separately: values in the path are percent-encoded, so that they cannot become a query.
//! Regular expressions see the normalised path, in which characters are encoded where needed; it is not encoded twice.
//! A path with values must stay below the text around them: segments that lead elsewhere are refused.

use crate::encoding::{Percent, encode};
use crate::linear_regex::{LinearRegex, Range};
use crate::patterns::{Flags, compile};
use crate::replacement::{Groups, Language, Replacement, ReplacementPart, group_max, warn_of_group};
use crate::unknown::{Unknown, warn};
use regex::bytes::{CaptureLocations, Regex};
use stillgate_plugin::{Compile, Request};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{Fault, Position};
use stillgate_wire::EditError;

/// Source of the target.
pub(super) enum TargetSource {
    /// It is unchanged.
    None,
    /// `uri`
    To { target: TargetTemplate, is_raw: bool },
    /// `regex_uri`
    ByRegex { pairs: Box<[(Pattern, TargetTemplate)]>, is_raw: bool },
}

/// A regular expression, with the cheapest engine for it.
pub(super) enum Pattern {
    LinearRegex(LinearRegex),
    Regex(Regex),
}

/// A worker's state for a search: the groups, and a copy of the regular expression, since searching takes memory.
enum Finder {
    LinearRegex(Box<[Range]>),
    Regex(Regex, CaptureLocations),
}

/// A target with variables and groups, its constant parts encoded.
pub(super) struct TargetTemplate {
    parts: Box<[(TargetPart, ReplacementPart)]>,
    /// The part of the target at its end.
    ends_in: TargetPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetPart {
    /// Values are encoded.
    Path,
    /// Values keep their bytes, except `?`.
    Query,
}

/// A worker's buffers for targets.
pub(super) struct Search {
    /// One for each of the plugin's patterns.
    finders: Box<[Finder]>,
    target: Vec<u8>,
    /// The ranges of the target's path that come from values.
    values: Vec<(usize, usize)>,
    buffer: Vec<u8>,
    /// The path as nodes read it, where that is not its normal form.
    decoded: Vec<u8>,
}

/// The reason why a target is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TargetError {
    /// It is not allowed in a head.
    Edit(EditError),
    /// A value of the request contains the segment `..` or `.`, which a node would resolve to another path.
    DotSegment,
}

impl From<EditError> for TargetError {
    fn from(error: EditError) -> TargetError {
        TargetError::Edit(error)
    }
}

impl TargetSource {
    /// Compiles `uri`.
    pub(super) fn to(uri: &str, is_raw: bool, at: Position, cx: &mut Compile<'_>) -> Option<TargetSource> {
        let path = cx.path.key("uri");
        let unknown = &mut |error| warn(&error, at, &path, cx.sink);
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
    pub(super) fn by_regex(pairs: &[String], is_raw: bool, at: Position, cx: &mut Compile<'_>) -> Option<TargetSource> {
        let path = cx.path.key("regex_uri");
        if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
            let fault = Fault::new("The length of regex_uri should be an even number");
            cx.sink.error(at, &path, fault.hint("write pairs of a regular expression and what takes its place"));
            return None;
        }
        let mut compiled = Vec::new();
        for (index, pair) in pairs.chunks_exact(2).enumerate() {
            let regex = compile(&pair[0], Flags::default());
            let unknown = &mut |error| warn(&error, at, &path.index(2 * index + 1), cx.sink);
            let template = TargetTemplate::parse(&pair[1], Language::Target, is_raw, unknown).map_err(Fault::new);
            match (regex, template) {
                (Ok(regex), Ok(template)) => {
                    let groups = regex.captures_len() - 1;
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
    pub(super) fn groups(&self) -> usize {
        match self {
            TargetSource::ByRegex { pairs, .. } => pairs.iter().map(|(pattern, _)| pattern.groups()).max().unwrap_or(0),
            TargetSource::None | TargetSource::To { .. } => 0,
        }
    }

    /// The variables in it.
    pub(super) fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
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
    fn new(regex: Regex) -> Pattern {
        LinearRegex::new(regex.as_str()).map_or(Pattern::Regex(regex), Pattern::LinearRegex)
    }

    fn groups(&self) -> usize {
        match self {
            Pattern::LinearRegex(linear) => linear.groups().len() - 1,
            Pattern::Regex(regex) => regex.captures_len() - 1,
        }
    }

    fn finder(&self) -> Finder {
        match self {
            Pattern::LinearRegex(linear) => Finder::LinearRegex(linear.groups()),
            Pattern::Regex(regex) => Finder::Regex(regex.clone(), regex.capture_locations()),
        }
    }
}

impl Finder {
    /// The match of a pattern, with its groups.
    fn find<'a>(&'a mut self, pattern: &Pattern, text: &'a [u8]) -> Option<(Range, Groups<'a>)> {
        match (self, pattern) {
            (Finder::LinearRegex(ranges), Pattern::LinearRegex(linear)) => {
                linear.find(text, ranges).then(|| (ranges[0], Groups::of_ranges(ranges, text)))
            }
            (Finder::Regex(regex, locations), _) => {
                let found = regex.captures_read(locations, text)?;
                Some(((found.start(), found.end()), Groups::of(locations, text)))
            }
            (Finder::LinearRegex(_), Pattern::Regex(_)) => None,
        }
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

    /// `values`: collects the ranges of the path that come from values.
    fn write(
        &self,
        groups: &Groups<'_>,
        vars: &dyn Lookup,
        out: &mut Vec<u8>,
        values: &mut Vec<(usize, usize)>,
        buffer: &mut Vec<u8>,
    ) {
        for (place, part) in &self.parts {
            let begin = out.len();
            match part {
                ReplacementPart::Text(text) => out.extend_from_slice(text),
                ReplacementPart::Group(group) => place.write(groups.get(*group), Percent::Kept, out),
                ReplacementPart::Variable(variable, default) => {
                    let value = vars.value(variable, buffer).unwrap_or(default);
                    match (place, variable) {
                        (TargetPart::Path, Variable::Uri | Variable::PathParam(_)) => encode(value, Percent::Kept, out),
                        (TargetPart::Path, _) => encode(value, Percent::Encoded, out),
                        (TargetPart::Query, Variable::Arg(_)) => write_argument(value, out),
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
        match self {
            TargetPart::Path => encode(text, percent, out),
            TargetPart::Query => out.extend_from_slice(text),
        }
    }
}

impl Search {
    pub(super) fn new(rewriting: &TargetSource) -> Search {
        let finders: Box<[_]> = match rewriting {
            TargetSource::ByRegex { pairs, .. } => pairs.iter().map(|(pattern, _)| pattern.finder()).collect(),
            _ => Box::default(),
        };
        Search { finders, target: Vec::new(), values: Vec::new(), buffer: Vec::new(), decoded: Vec::new() }
    }

    /// Sets the target; returns the captured groups.
    pub(super) fn rewrite<'s, 'r: 's>(
        &'s mut self,
        rewriting: &TargetSource,
        request: &mut Request<'r>,
    ) -> Result<Groups<'s>, TargetError> {
        self.target.clear();
        self.values.clear();
        match rewriting {
            TargetSource::None => Ok(Groups::NONE),
            TargetSource::To { target, is_raw } => {
                target.write(&Groups::NONE, request, &mut self.target, &mut self.values, &mut self.buffer);
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
                    true => facts.path_and_query(),
                    false => match facts.path {
                        Some(path) => path.as_nodes_read(&mut self.decoded),
                        None => b"/",
                    },
                };
                let found = self.finders.iter_mut().zip(pairs).find_map(|(finder, (pattern, template))| {
                    finder.find(pattern, path).map(|found| (found, template))
                });
                let Some((((start, end), groups), template)) = found else { return Ok(Groups::NONE) };
                let before = if *is_raw { TargetPart::Query } else { TargetPart::Path };
                before.write(&path[..start], Percent::Kept, &mut self.target);
                if !is_raw {
                    self.values.push((0, self.target.len()));
                }
                template.write(&groups, request, &mut self.target, &mut self.values, &mut self.buffer);
                let behind = self.target.len();
                template.ends_in.write(&path[end..], Percent::Kept, &mut self.target);
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
    if let Some(query) = request.facts.query().filter(|query| is_raw || !query.is_empty()) {
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
