//! Texts with variables (`$name`) and groups of a regular expression (`$1`) in them.
//!
//! Unknown variables are empty, as in APISIX, and the configuration is accepted with a warning. Conditions and keys of
//! limits refuse them: an empty value there would turn a rule on or off, or count all clients as one.

use crate::linear_regex::Range;
use regex::bytes::CaptureLocations;
use stillgate_plugin_api::Template;
use stillgate_plugin_api::template::TemplatePart;
use stillgate_route::{Lookup, Variable, VariableError};
use stillgate_schema::{Fault, Path, Position, Sink};

/// Such a text, parsed. Its owner waits for the arguments of the body that it names. A group that did not take part in
/// the match is empty, and so is a variable that the request does not have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replacement(pub(crate) Box<[ReplacementPart]>);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ReplacementPart {
    Text(Box<[u8]>),
    /// With its default if the request does not have it.
    Variable(Variable, Box<[u8]>),
    Group(usize),
}

impl ReplacementPart {
    pub(crate) fn variable(&self) -> Option<&Variable> {
        match self {
            ReplacementPart::Variable(variable, _) => Some(variable),
            ReplacementPart::Text(_) | ReplacementPart::Group(_) => None,
        }
    }
}

/// The largest group number in a text; 0: it has none, or only that of the whole match.
pub(crate) fn group_max<'a>(parts: impl Iterator<Item = &'a ReplacementPart>) -> usize {
    let group = |part: &ReplacementPart| match part {
        ReplacementPart::Group(group) => *group,
        ReplacementPart::Text(_) | ReplacementPart::Variable(..) => 0,
    };
    parts.map(group).max().unwrap_or(0)
}

/// Warns about a group that no match fills: the text names `group`, and the regular expression has `groups`.
pub(crate) fn warn_of_group(group: usize, groups: usize, at: Position, path: &Path<'_>, sink: &mut Sink) {
    if group > groups {
        let has = match groups {
            0 => "there is no group".to_owned(),
            1 => "there is one group".to_owned(),
            groups => format!("there are {groups} groups"),
        };
        sink.warning(at, path, Fault::new(format!("{has}, so ${group} is always empty")));
    }
}

/// The syntax of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// APISIX's templates: groups and variables; `\$` is a literal dollar.
    Template,
    /// The template syntax for a replacement: `$$` is a literal dollar, too.
    Target,
    /// OpenResty's `ngx.re.sub`: groups only; `$$` is a literal dollar.
    Substitution,
}

/// The groups that a regular expression has captured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Groups<'a> {
    found: MatchedGroups<'a>,
    text: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
enum MatchedGroups<'a> {
    Nothing,
    Locations(&'a CaptureLocations),
    Ranges(&'a [Range]),
}

impl<'a> Groups<'a> {
    /// Groups without a match.
    pub(crate) const NONE: Groups<'static> = Groups { found: MatchedGroups::Nothing, text: &[] };

    /// The groups of a match in a text.
    pub(crate) fn of(locations: &'a CaptureLocations, text: &'a [u8]) -> Groups<'a> {
        Groups { found: MatchedGroups::Locations(locations), text }
    }

    /// The groups of a match by [`crate::linear_regex`].
    pub(crate) fn of_ranges(ranges: &'a [Range], text: &'a [u8]) -> Groups<'a> {
        Groups { found: MatchedGroups::Ranges(ranges), text }
    }

    /// A group; 0 is the match.
    pub(crate) fn get(&self, group: usize) -> &'a [u8] {
        let range = match self.found {
            MatchedGroups::Nothing => None,
            MatchedGroups::Locations(locations) => locations.get(group),
            MatchedGroups::Ranges(ranges) => ranges.get(group).copied(),
        };
        range.map_or(&[], |(begin, end)| &self.text[begin..end])
    }
}

impl Replacement {
    /// Parses a text; the error says what is wrong with it.
    pub(crate) fn parse(text: &str, language: Language, unknown: &mut Unknown<'_>) -> Result<Replacement, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut plain = String::new();
        while let Some((before, after)) = rest.split_once('$') {
            let is_escaped = language != Language::Substitution && before.ends_with('\\');
            plain.push_str(before);
            match group_of(after) {
                _ if is_escaped => {
                    plain.push('$');
                    rest = after;
                }
                Some((group, after)) => {
                    close(&mut plain, language, &mut parts, unknown);
                    parts.push(ReplacementPart::Group(group));
                    rest = after;
                }
                None if language != Language::Template && after.starts_with('$') => {
                    plain.push_str(if language == Language::Target { "\\$" } else { "$" });
                    rest = &after[1..];
                }
                None if language == Language::Substitution => {
                    return Err("\"$\" must be followed by the number of a group; write \"$$\" for a dollar".to_owned());
                }
                None => {
                    plain.push('$');
                    rest = after;
                }
            }
        }
        plain.push_str(rest);
        close(&mut plain, language, &mut parts, unknown);
        Ok(Replacement(parts.into()))
    }

    /// Length of its texts and groups, without variables.
    pub(crate) fn fixed_bytes(&self, groups: &Groups<'_>) -> usize {
        let of_part = |part: &ReplacementPart| match part {
            ReplacementPart::Text(text) => text.len(),
            ReplacementPart::Group(group) => groups.get(*group).len(),
            ReplacementPart::Variable(..) => 0,
        };
        self.0.iter().map(of_part).sum()
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(ReplacementPart::variable)
    }

    /// The text, if it has no groups or variables.
    pub(crate) fn constant(&self) -> Option<&[u8]> {
        match &*self.0 {
            [] => Some(&[]),
            [ReplacementPart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text with its values. `buffer` is for values that have to be assembled.
    pub(crate) fn write(&self, groups: &Groups<'_>, vars: &dyn Lookup, out: &mut Vec<u8>, buffer: &mut Vec<u8>) {
        for part in &self.0 {
            out.extend_from_slice(match part {
                ReplacementPart::Text(text) => text,
                ReplacementPart::Group(group) => groups.get(*group),
                ReplacementPart::Variable(variable, default) => vars.value(variable, buffer).unwrap_or(default),
            });
        }
    }
}

/// Adds the text between two groups.
fn close(plain: &mut String, language: Language, parts: &mut Vec<ReplacementPart>, unknown: &mut Unknown<'_>) {
    let plain = std::mem::take(plain);
    if language == Language::Substitution {
        if !plain.is_empty() {
            parts.push(ReplacementPart::Text(plain.into_bytes().into()));
        }
        return;
    }
    let template = Template::parse_lenient_with_body(&plain, unknown);
    parts.extend(template.into_parts().into_iter().map(|part| match part {
        TemplatePart::Text(text) => ReplacementPart::Text(text),
        TemplatePart::Variable(variable) => ReplacementPart::Variable(variable, Box::default()),
        TemplatePart::WithDefault(variable, default) => ReplacementPart::Variable(variable, default),
    }));
}

/// The number after a dollar, bare or in braces, and the rest.
fn group_of(text: &str) -> Option<(usize, &str)> {
    let (digits, after) = match text.strip_prefix('{') {
        Some(braced) => braced.split_once('}')?,
        None => text.split_at(text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len())),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large is that of no group.
    is_number.then(|| (digits.parse().unwrap_or(usize::MAX), after))
}

/// Called with each unknown variable.
pub(crate) type Unknown<'a> = dyn FnMut(VariableError) + 'a;

/// A text with variables, with its position in the configuration.
pub(crate) fn template(text: &str, at: Position, path: &Path<'_>, sink: &mut Sink) -> Template {
    Template::parse_lenient(text, &mut |error| warn_of_unknown(&error, at, path, sink))
}

/// Like [`template`], for a plugin that waits for the body if the text uses its arguments.
pub(crate) fn template_with_body(text: &str, at: Position, path: &Path<'_>, sink: &mut Sink) -> Template {
    Template::parse_lenient_with_body(text, &mut |error| warn_of_unknown(&error, at, path, sink))
}

/// Warns that a variable is empty.
pub(crate) fn warn_of_unknown(error: &VariableError, at: Position, path: &Path<'_>, sink: &mut Sink) {
    sink.warning(at, path, Fault::new(format!("{error}; it is empty here")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::bytes::Regex;

    struct Names;

    impl Lookup for Names {
        fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            buffer.clear();
            buffer.extend_from_slice(format!("<{variable}>").as_bytes());
            Some(buffer)
        }

        fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    }

    #[test]
    fn groups_and_variables_are_put_in() {
        let regex = Regex::new("(a)(b)?(c)").unwrap();
        let mut locations = regex.capture_locations();
        regex.captures_read(&mut locations, b"xacx").unwrap();
        let check = |text: &str, language, expected: Result<&str, &str>| {
            let written = Replacement::parse(text, language, &mut |_| {}).map(|replacement| {
                let (mut out, mut buffer) = (Vec::new(), Vec::new());
                replacement.write(&Groups::of(&locations, b"xacx"), &Names, &mut out, &mut buffer);
                String::from_utf8(out).unwrap()
            });
            assert_eq!(written.as_deref().map_err(|error| &error[..9]), expected, "{text}");
        };
        for language in [Language::Template, Language::Target, Language::Substitution] {
            check("", language, Ok(""));
            check("[$1$3] $2.${1}2 $0 $9 $99999999999999999999999", language, Ok("[ac] .a2 ac  "));
        }
        check("$1\\$1 \\$uri $uri$$ $", Language::Template, Ok("a$1 $uri <uri>$$ $"));
        check("$$1 $uri \\$2", Language::Target, Ok("$1 <uri> $2"));
        check("$$1 \\$1", Language::Substitution, Ok("$1 \\a"));
        check("$uri", Language::Substitution, Err("\"$\" must "));
        check("$", Language::Substitution, Err("\"$\" must "));
        let mut unknown = Vec::new();
        let replacement =
            Replacement::parse("$1/$no_such/$2", Language::Template, &mut |error| unknown.push(error.name));
        assert_eq!(replacement.unwrap().0.len(), 4);
        assert_eq!(unknown, ["no_such"]);
    }
}
