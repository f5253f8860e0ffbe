//! The target that the node gets.
//!
//! Path and query are put together apart: what is put into the path is percent-encoded, so that it cannot become a query. The
//! path that regular expressions see is the normal one, in which what needs encoding is encoded already; it is not encoded
//! twice.

use crate::encoding::{Percent, encode};
use crate::patterns::{Flags, compile};
use crate::replacement::{Groups, Language, Part, Replacement};
use crate::straight::{Range, Straight};
use crate::unknown::{Unknown, warn};
use regex::bytes::{CaptureLocations, Regex};
use stillgate_plugin::{Compile, Request};
use stillgate_route::{Lookup, NormalPath, Variable};
use stillgate_schema::{Fault, Position};
use stillgate_wire::EditError;

/// Where the target comes from.
pub(super) enum Rewriting {
    /// It stays.
    None,
    /// `uri`
    To { target: TargetTemplate, is_raw: bool },
    /// `regex_uri`
    ByRegex { pairs: Box<[(Pattern, TargetTemplate)]>, is_raw: bool },
}

/// A regular expression, with what takes least to search by it.
pub(super) enum Pattern {
    Straight(Straight),
    Regex(Regex),
}

/// What a worker needs to search by it: what was found, and a copy of the regular expression, since searching takes memory.
enum Finder {
    Straight(Box<[Range]>),
    Regex(Regex, CaptureLocations),
}

/// A target with variables and groups in it, its constant parts encoded.
pub(super) struct TargetTemplate {
    parts: Box<[(TargetPart, Part)]>,
    /// Where the text behind it stands.
    ends_in: TargetPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetPart {
    /// Values are encoded.
    Path,
    /// Values keep their bytes, but for `?`.
    Query,
}

/// What a worker needs to make targets.
pub(super) struct Search {
    /// One for each of the plugin's patterns.
    finders: Box<[Finder]>,
    target: Vec<u8>,
    buffer: Vec<u8>,
}

impl Rewriting {
    /// Of `uri`.
    pub(super) fn to(uri: &str, is_raw: bool, at: Position, cx: &mut Compile<'_>) -> Option<Rewriting> {
        let path = cx.path.key("uri");
        let unknown = &mut |error| warn(&error, at, &path, cx.sink);
        match TargetTemplate::parse(uri, Language::Template, is_raw, unknown) {
            Ok(target) => Some(Rewriting::To { target, is_raw }),
            Err(message) => {
                cx.sink.error(at, &path, Fault::new(message));
                None
            }
        }
    }

    /// Of `regex_uri`.
    pub(super) fn by_regex(pairs: &[String], is_raw: bool, at: Position, cx: &mut Compile<'_>) -> Option<Rewriting> {
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
                (Ok(regex), Ok(template)) => compiled.push((Pattern::new(regex), template)),
                (Err(fault), _) => cx.sink.error(at, &path.index(2 * index), fault),
                (_, Err(fault)) => cx.sink.error(at, &path.index(2 * index + 1), fault),
            }
        }
        let is_whole = compiled.len() == pairs.len() / 2;
        is_whole.then(|| Rewriting::ByRegex { pairs: compiled.into(), is_raw })
    }

    /// The variables in it.
    pub(super) fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        match self {
            Rewriting::None => {}
            Rewriting::To { target, .. } => target.variables().for_each(visit),
            Rewriting::ByRegex { pairs, .. } => {
                pairs.iter().flat_map(|(_, target)| target.variables()).for_each(visit);
            }
        }
    }
}

impl Pattern {
    fn new(regex: Regex) -> Pattern {
        Straight::new(regex.as_str()).map_or(Pattern::Regex(regex), Pattern::Straight)
    }

    fn finder(&self) -> Finder {
        match self {
            Pattern::Straight(straight) => Finder::Straight(straight.groups()),
            Pattern::Regex(regex) => Finder::Regex(regex.clone(), regex.capture_locations()),
        }
    }
}

impl Finder {
    /// Where a pattern matches, and its groups.
    fn find<'a>(&'a mut self, pattern: &Pattern, text: &'a [u8]) -> Option<(Range, Groups<'a>)> {
        match (self, pattern) {
            (Finder::Straight(ranges), Pattern::Straight(straight)) => {
                straight.find(text, ranges).then(|| (ranges[0], Groups::of_ranges(ranges, text)))
            }
            (Finder::Regex(regex, locations), _) => {
                let found = regex.captures_read(locations, text)?;
                Some(((found.start(), found.end()), Groups::of(locations, text)))
            }
            (Finder::Straight(_), Pattern::Regex(_)) => None,
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
                Part::Text(text) => {
                    let path = match place {
                        TargetPart::Query => 0,
                        TargetPart::Path => text.iter().position(|byte| *byte == b'?').unwrap_or(text.len()),
                    };
                    let mut encoded = Vec::new();
                    encode(&text[..path], Percent::Encoded, &mut encoded);
                    // It would be no request to any node.
                    if let Some(byte) = text[path..].iter().find(|byte| byte.is_ascii_control() || **byte == b' ') {
                        return Err(format!("a target cannot hold {:?}; percent-encode it", char::from(*byte)));
                    }
                    encoded.extend_from_slice(&text[path..]);
                    if path < text.len() {
                        place = TargetPart::Query;
                    }
                    Part::Text(encoded.into())
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

    fn write(&self, groups: &Groups<'_>, vars: &dyn Lookup, out: &mut Vec<u8>, buffer: &mut Vec<u8>) {
        for (place, part) in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Group(group) => place.write(groups.get(*group), Percent::Kept, out),
                Part::Variable(variable, default) => {
                    let value = vars.value(variable, buffer).unwrap_or(default);
                    match (place, variable) {
                        (TargetPart::Path, Variable::Uri | Variable::PathParam(_)) => encode(value, Percent::Kept, out),
                        (TargetPart::Path, _) => encode(value, Percent::Encoded, out),
                        (TargetPart::Query, Variable::Arg(_)) => write_argument(value, out),
                        (TargetPart::Query, _) => write_query(value, out),
                    }
                }
            }
        }
    }
}

impl TargetPart {
    /// Text of the request's own target.
    fn write(self, text: &[u8], percent: Percent, out: &mut Vec<u8>) {
        match self {
            TargetPart::Path => encode(text, percent, out),
            TargetPart::Query => out.extend_from_slice(text),
        }
    }
}

impl Search {
    pub(super) fn new(rewriting: &Rewriting) -> Search {
        let finders: Box<[_]> = match rewriting {
            Rewriting::ByRegex { pairs, .. } => pairs.iter().map(|(pattern, _)| pattern.finder()).collect(),
            _ => Box::default(),
        };
        Search { finders, target: Vec::new(), buffer: Vec::new() }
    }

    /// Sets the target; gives what was captured on the way.
    pub(super) fn rewrite<'s, 'r: 's>(
        &'s mut self,
        rewriting: &Rewriting,
        request: &mut Request<'r>,
    ) -> Result<Groups<'s>, EditError> {
        self.target.clear();
        match rewriting {
            Rewriting::None => Ok(Groups::NONE),
            Rewriting::To { target, is_raw } => {
                target.write(&Groups::NONE, request, &mut self.target, &mut self.buffer);
                finish(&mut self.target, *is_raw, target.ends_in, request)?;
                Ok(Groups::NONE)
            }
            Rewriting::ByRegex { pairs, is_raw } => {
                let facts = request.facts;
                let path = match is_raw {
                    true => facts.path_and_query(),
                    false => facts.path.map_or(&b"/"[..], NormalPath::bytes),
                };
                let found = self.finders.iter_mut().zip(pairs).find_map(|(finder, (pattern, template))| {
                    finder.find(pattern, path).map(|found| (found, template))
                });
                let Some((((start, end), groups), template)) = found else { return Ok(Groups::NONE) };
                let before = if *is_raw { TargetPart::Query } else { TargetPart::Path };
                before.write(&path[..start], Percent::Kept, &mut self.target);
                template.write(&groups, request, &mut self.target, &mut self.buffer);
                template.ends_in.write(&path[end..], Percent::Kept, &mut self.target);
                finish(&mut self.target, *is_raw, template.ends_in, request)?;
                Ok(groups)
            }
        }
    }
}

/// Adds the query of the request, unless the target is made of that already.
fn finish(target: &mut Vec<u8>, is_raw: bool, place: TargetPart, request: &mut Request<'_>) -> Result<(), EditError> {
    if let Some(query) = request.facts.query().filter(|query| !is_raw && !query.is_empty()) {
        target.push(if place == TargetPart::Query { b'&' } else { b'?' });
        target.extend_from_slice(query);
    }
    request.edits.set_target(target)
}

/// An argument of the request stays one value, whatever it was written with.
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

/// A value that the request has made cannot begin a query of its own.
fn write_query(value: &[u8], out: &mut Vec<u8>) {
    for byte in value {
        match byte {
            b'?' => out.extend_from_slice(b"%3F"),
            _ => out.push(*byte),
        }
    }
}
