//! `response-rewrite`: changes status, header fields and body of a response, from a node or the gateway itself.

use crate::body_fields::{CONTENT_ENCODING, forget_old_body};
use crate::decoding::{BodyCoding, Decoder};
use crate::header_edits::{HeaderEdits, Headers};
use crate::patterns::{Flags, compile};
use crate::variable_texts::{Groups, Language, Replacement, group_max, warn_of_group};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use regex::bytes::{CaptureLocations, Regex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::work::{Output, Work};
use stillgate_plugin_api::{
    BodyError, BodyFilter, Compile, Define, Filter, PerWorker, Phase, Phases, Plugin, Response,
};
use stillgate_route::vars::Expr;
use stillgate_route::{Lookup, Variable};
use stillgate_schema::kind::some;
use stillgate_schema::{At, BodyVars, Choice, Fault, Flag, LocatedKind, Path, TEXT, Text, int, map, object, text};
use stillgate_wire::EditError;

object! {
    /// Changes a response.
    pub(crate) struct ResponseRewriteKeys {
        /// The new status.
        status_code: u16 = int(200, 598) => optional;
        /// The new body.
        body: At<String> = LocatedKind(TEXT) => optional;
        /// Whether `body` is written in Base64.
        body_base64: bool = Flag => default(false);
        /// Header fields: `add`, `set` (an empty value removes the field) and `remove`, in this order; or a map that is set.
        /// Values can have variables.
        headers: HeaderEdits = Headers::OfResponse => default(HeaderEdits::default());
        /// Conditions as in `vars` of a route, with `status`: the plugin acts if they hold.
        vars: At<Expr> = LocatedKind(BodyVars) => optional;
        /// Replacements in the body, one after the other. Cannot be combined with `body`.
        filters: At<Vec<ResponseFilterKeys>> = LocatedKind(some(map())) => optional;
        /// Most bytes of a body for `filters`, before and after each; above it the response is a 502. APISIX's default
        /// is 67108864.
        max_resp_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
    }
}

/// Upper bound of `max_resp_body_size`.
const BODY_BYTES_MAX: usize = 1024 * 1024 * 1024;

object! {
    /// A replacement in a body.
    pub(crate) struct ResponseFilterKeys {
        /// Regular expression of the replaced text.
        regex: At<String> = LocatedKind(NOT_EMPTY) => required;
        /// `once`: the first match. `global`: every match.
        scope: Scope = SCOPE => default(Scope::Once);
        /// The replacement; `$1` is a group, `$$` a dollar.
        replace: At<String> = LocatedKind(TEXT) => required;
        /// Letters: `i` ignores case, `m` lets `^` and `$` match at lines, `s` lets `.` match line breaks, `x` ignores
        /// blanks in the expression, `u` reads the body as UTF-8, `a` matches at the beginning only. `j`, `o`, `d` and
        /// `U` have no effect.
        options: At<String> = LocatedKind(TEXT.shown()) => default(stillgate_schema::kind::unplaced("jo".to_owned()));
    }
}

/// How many matches a filter replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Once,
    Global,
}

const SCOPE: Choice<Scope> = Choice { words: &[("once", Scope::Once), ("global", Scope::Global)], unbuilt: &[] };

const NOT_EMPTY: Text<String> = text("a regular expression", |text| match text.is_empty() {
    true => Err(Fault::new("an empty regular expression").hint("write what is to be replaced")),
    false => Ok(text.to_owned()),
});

/// The plugin.
pub(crate) struct ResponseRewrite {
    status: Option<u16>,
    headers: HeaderEdits,
    condition: Option<Filter>,
    body: NewBody,
    own: PerWorker<Arc<[Substitution]>>,
}

enum NewBody {
    Kept,
    Replaced(Box<[u8]>),
    Filtered { substitutions: Box<[Substitution]>, bytes_max: usize },
}

impl Define for ResponseRewrite {
    type Keys = ResponseRewriteKeys;
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const PHASES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(keys: ResponseRewriteKeys, cx: &mut Compile<'_>) -> Option<ResponseRewrite> {
        let condition = match keys.vars {
            None => None,
            Some(At { at, value }) => match Filter::new(value) {
                Ok(filter) => Some(filter),
                Err(error) => {
                    cx.sink.error(at, &cx.path.key("vars"), Fault::new(error.to_string()));
                    return None;
                }
            },
        };
        let body = match (keys.body, keys.filters) {
            (Some(_), Some(filters)) => {
                let fault = Fault::new("`filters` and `body` cannot be combined").hint("remove one of them");
                cx.sink.error(filters.at, &cx.path.key("filters"), fault);
                return None;
            }
            (None, Some(filters)) => {
                let substitutions = Substitution::compile_all(&filters, cx)?;
                NewBody::Filtered { substitutions, bytes_max: keys.max_resp_body_size }
            }
            (Some(body), None) => NewBody::Replaced(decoded(&body, keys.body_base64, cx)?),
            (None, None) if keys.body_base64 => {
                let fault = Fault::new("invalid base64 content").hint("`body_base64` needs a `body`");
                cx.sink.error(cx.at, &cx.path.key("body_base64"), fault);
                return None;
            }
            (None, None) => NewBody::Kept,
        };
        Some(ResponseRewrite {
            status: keys.status_code,
            headers: keys.headers,
            condition,
            body,
            own: PerWorker::new(),
        })
    }
}

/// The decoded body.
fn decoded(body: &At<String>, is_base64: bool, cx: &mut Compile<'_>) -> Option<Box<[u8]>> {
    /// Like OpenResty, accepts text without padding.
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    if !is_base64 {
        return Some(body.value.as_bytes().into());
    }
    match LENIENT.decode(&body.value) {
        Ok(bytes) if !bytes.is_empty() => Some(bytes.into()),
        _ => {
            cx.sink.error(body.at, &cx.path.key("body"), Fault::new("invalid base64 content"));
            None
        }
    }
}

impl Plugin for ResponseRewrite {
    fn header_filter(&self, response: &mut Response<'_>) {
        if self.condition.as_ref().is_some_and(|condition| !condition.holds(&response.facts, response)) {
            return;
        }
        if self.edit(response).is_err() {
            fail(response);
        }
    }

    fn filters_responses(&self) -> bool {
        !matches!(self.body, NewBody::Kept)
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.condition.iter().for_each(|condition| condition.each_variable(visit));
        self.headers.each_variable(visit);
    }
}

impl ResponseRewrite {
    fn edit(&self, response: &mut Response<'_>) -> Result<(), EditError> {
        if let Some(status) = self.status {
            response.edits.set_status(status)?;
        }
        match &self.body {
            NewBody::Kept => {}
            NewBody::Replaced(body) => {
                forget_old_body(response);
                response.body.replace(body);
            }
            NewBody::Filtered { substitutions, bytes_max } => {
                let decoding = BodyCoding::of(response.header(CONTENT_ENCODING, &mut Vec::new()));
                forget_old_body(response);
                let own = || Arc::<[Substitution]>::from(substitutions.clone());
                let substitutions = self.own.with(own, |own| own.clone());
                response.body.filter(Box::new(WholeBody::new(substitutions, decoding, *bytes_max)));
            }
        }
        self.headers.apply(response, response.worker, &Groups::NONE)
    }
}

/// A value with variables cannot be sent. The response that the plugin was to change must not be seen either.
fn fail(response: &mut Response<'_>) {
    forget_old_body(response);
    response.body.replace(b"");
    response.edits.set_status(500).expect("500 is a status");
}

// Replacements in a body: it is buffered until its end, since a match may span its pieces, and nothing is sent before.
//
// The cost of a search depends on the expression and on the body: from one nanosecond a byte to several hundred, and
// as much again for each match. So all but short bodies are searched by a thread that does not serve requests, in
// turns.

/// A compiled filter of `filters`. Each worker has a copy, since searching takes memory.
#[derive(Clone)]
struct Substitution {
    regex: Regex,
    /// It has `$` without the option `m`, which also matches before a final line break, as in PCRE.
    has_end: bool,
    scope: Scope,
    replacement: Replacement,
}

impl Substitution {
    /// Compiles all filters; `None`: errors were reported.
    fn compile_all(filters: &At<Vec<ResponseFilterKeys>>, cx: &mut Compile<'_>) -> Option<Box<[Substitution]>> {
        let path = cx.path.key("filters");
        let mut compiled = Vec::new();
        for (index, keys) in filters.value.iter().enumerate() {
            let path = path.index(index);
            compiled.extend(Substitution::compile(keys, &path, cx));
        }
        (compiled.len() == filters.value.len()).then(|| compiled.into())
    }

    fn compile(keys: &ResponseFilterKeys, path: &Path<'_>, cx: &mut Compile<'_>) -> Option<Substitution> {
        let budget = cx.sink.budget();
        let sink = &mut *cx.sink;
        let mut report = |key, at, fault: Fault| sink.error(at, &path.key(key), fault);
        let replacement = Replacement::parse(&keys.replace.value, Language::Substitution, &mut |_| {});
        let options = SubstitutionOptions::parse(&keys.options.value, keys.scope);
        let (replacement, options) = match (replacement, options) {
            (Ok(replacement), Ok(options)) => (replacement, options),
            (Err(message), _) => {
                report("replace", keys.replace.at, Fault::new(message));
                return None;
            }
            (_, Err(fault)) => {
                report("options", keys.options.at, fault);
                return None;
            }
        };
        let pattern = &keys.regex.value;
        // Parsed alone first: `)` must not close what is put around it.
        let regex = compile(pattern, options.flags, &budget).and_then(|regex| match options.is_anchored {
            // A comment may end the expression.
            true if options.flags.ignores_blanks => compile(&format!("\\A(?:{pattern}\n)"), options.flags, &budget),
            true => compile(&format!("\\A(?:{pattern})"), options.flags, &budget),
            false => Ok(regex),
        });
        match regex {
            Ok(regex) => {
                let (named, groups) = (group_max(replacement.0.iter()), regex.captures_len() - 1);
                warn_of_group(named, groups, keys.replace.at, &path.key("replace"), sink);
                let has_end = has_end(pattern, options.flags);
                Some(Substitution { regex, has_end, scope: keys.scope, replacement })
            }
            Err(fault) => {
                report("regex", keys.regex.at, fault);
                None
            }
        }
    }

    /// Appends the body with its replacements to `to.out`, as far as one part goes; `true`: it is complete.
    fn write(&self, body: &[u8], bytes_max: usize, to: &mut SubstitutionProgress) -> Result<bool, BodyError> {
        let mut locations = to.locations.take().unwrap_or_else(|| self.regex.capture_locations());
        for _ in 0..PART_MATCHES {
            let found = (to.at <= body.len()).then(|| self.find(body, to.at, &mut locations)).flatten();
            let Some((start, end)) = found else { return to.finish(body, bytes_max) };
            // A match may be the whole body, and occur in the replacement many times.
            let groups = Groups::of(&locations, body);
            let new_bytes = start - to.written + self.replacement.fixed_bytes(&groups);
            if to.out.len().saturating_add(new_bytes) > bytes_max {
                return Err(BodyError::TooLarge);
            }
            to.out.extend_from_slice(&body[to.written..start]);
            self.replacement.write(&groups, &NoVariables, &mut to.out, &mut Vec::new());
            to.written = end;
            // After an empty match the search continues at the next byte.
            to.at = if end == start { end + 1 } else { end };
            if self.scope == Scope::Once {
                return to.finish(body, bytes_max);
            }
        }
        to.locations = Some(locations);
        Ok(false)
    }

    /// The first match from a position on.
    fn find(&self, body: &[u8], at: usize, locations: &mut CaptureLocations) -> Option<(usize, usize)> {
        let whole = self.regex.captures_read_at(locations, body, at).map(|found| (found.start(), found.end()));
        let Some(line) = body.strip_suffix(b"\n").filter(|line| self.has_end && at <= line.len()) else { return whole };
        let mut of_line = self.regex.capture_locations();
        let before_break =
            self.regex.captures_read_at(&mut of_line, line, at).map(|found| (found.start(), found.end()));
        match (whole, before_break) {
            (Some((start, _)), Some((earlier, _))) if earlier >= start => whole,
            (_, None) => whole,
            (_, found) => {
                *locations = of_line;
                found
            }
        }
    }
}

/// Whether it contains `$` (or `\z`) without the option `m`.
fn has_end(pattern: &str, flags: Flags) -> bool {
    let mut parser = regex_syntax::ParserBuilder::new();
    parser.utf8(false).unicode(flags.unicode).ignore_whitespace(flags.ignores_blanks).multi_line(flags.multi_line);
    let parsed = parser.build().parse(pattern);
    parsed.is_ok_and(|hir| hir.properties().look_set().contains(regex_syntax::hir::Look::End))
}

struct SubstitutionOptions {
    flags: Flags,
    is_anchored: bool,
}

impl SubstitutionOptions {
    fn parse(text: &str, scope: Scope) -> Result<SubstitutionOptions, Fault> {
        let mut options = SubstitutionOptions { flags: Flags::default(), is_anchored: false };
        for letter in text.chars() {
            match letter {
                'i' => options.flags.ignores_case = true,
                'm' => options.flags.multi_line = true,
                's' => options.flags.dot_is_newline = true,
                'x' => options.flags.ignores_blanks = true,
                'u' => options.flags.unicode = true,
                'a' => options.is_anchored = true,
                // These select an implementation of PCRE.
                'j' | 'o' | 'd' | 'U' => {}
                'D' | 'J' => {
                    return Err(Fault::new(format!("the option {letter:?} (names of groups) is not supported")));
                }
                _ => return Err(Fault::new(format!("unknown flag {letter:?} (flags {text:?})"))),
            }
        }
        if options.is_anchored && scope == Scope::Global {
            return Err(Fault::new("the option 'a' with the scope \"global\" is not supported"));
        }
        Ok(options)
    }
}

/// A [`Replacement`] of [`Language::Substitution`] has no variables.
struct NoVariables;

impl Lookup for NoVariables {
    fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        None
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

/// Number of matches that are replaced between two checks of the time.
const PART_MATCHES: usize = 8;
/// Longest body that is searched by the worker: the slowest expressions take about 1 ms for it, and too long for longer
/// ones.
const SHORT_BYTES_MAX: usize = 4 * 1024;
/// Longest time that the worker searches: each match of a body may need a search to its end.
const WORKER_TIME_MAX: Duration = Duration::from_micros(500);
/// Longest time that another thread searches before other bodies have their turn. A running search is not interrupted.
const TURN_TIME_MAX: Duration = Duration::from_millis(20);

/// A body being assembled.
#[derive(Default)]
struct SubstitutionProgress {
    out: Vec<u8>,
    /// How much of the original body has been written.
    written: usize,
    /// Start of the next search.
    at: usize,
    /// Buffers of the search, between parts.
    locations: Option<CaptureLocations>,
}

impl SubstitutionProgress {
    /// No further match was found: appends the rest.
    fn finish(&mut self, body: &[u8], bytes_max: usize) -> Result<bool, BodyError> {
        self.out.extend_from_slice(&body[self.written..]);
        if self.out.len() > bytes_max { Err(BodyError::TooLarge) } else { Ok(true) }
    }
}

/// Buffers a body, and replaces in it when it is complete.
struct WholeBody {
    substitutions: Arc<[Substitution]>,
    decoder: Decoder,
    bytes_max: usize,
    /// State for the next turn on another thread.
    whole: Option<CompleteBody>,
    /// Bytes of the body on another thread.
    held_bytes: usize,
}

/// A complete body, with the progress of its replacements.
struct CompleteBody {
    body: Vec<u8>,
    /// The current replacement; the last one is done when it equals their number.
    step: usize,
    replaced: SubstitutionProgress,
}

/// The result of a turn on another thread: whether all is done.
type SubstitutionTurn = Result<(bool, CompleteBody), BodyError>;

impl CompleteBody {
    /// Continues for so long; `true`: all is replaced.
    fn go_on(
        &mut self,
        substitutions: &[Substitution],
        bytes_max: usize,
        time_max: Duration,
    ) -> Result<bool, BodyError> {
        let began = Instant::now();
        while let Some(substitution) = substitutions.get(self.step) {
            if substitution.write(&self.body, bytes_max, &mut self.replaced)? {
                self.body = std::mem::take(&mut self.replaced).out;
                self.step += 1;
            } else if began.elapsed() >= time_max {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl WholeBody {
    fn new(substitutions: Arc<[Substitution]>, decoding: BodyCoding, bytes_max: usize) -> WholeBody {
        let decoder = Decoder::new(decoding, bytes_max);
        WholeBody { substitutions, decoder, bytes_max, whole: None, held_bytes: 0 }
    }

    /// Continues on another thread.
    fn hand_on(&mut self, whole: CompleteBody) {
        // The new body is usually as long.
        self.held_bytes = whole.body.capacity() + whole.body.len().max(whole.replaced.out.capacity());
        self.whole = Some(whole);
    }
}

impl BodyFilter for WholeBody {
    fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
        self.decoder.piece(piece)
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let mut whole = CompleteBody { body: self.decoder.end()?, step: 0, replaced: SubstitutionProgress::default() };
        let is_short = whole.body.len() <= SHORT_BYTES_MAX;
        if is_short && whole.go_on(&self.substitutions, self.bytes_max, WORKER_TIME_MAX)? {
            out.extend_from_slice(&whole.body);
        } else {
            self.hand_on(whole);
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.held_bytes
    }

    fn work(&mut self) -> Option<Work> {
        let mut whole = self.whole.take()?;
        let (substitutions, bytes_max) = (self.substitutions.clone(), self.bytes_max);
        Some(Box::new(move || -> Output {
            let done = whole.go_on(&substitutions, bytes_max, TURN_TIME_MAX);
            Box::new(done.map(|is_all| (is_all, whole)))
        }))
    }

    fn on_work_done(&mut self, result: Output, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let turn = result.downcast::<SubstitutionTurn>().map_err(|_| BodyError::Failed)?;
        match (*turn)? {
            (true, whole) => {
                self.held_bytes = 0;
                out.extend_from_slice(&whole.body);
            }
            (false, whole) => self.hand_on(whole),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter_with(pattern: &str, replace: &str) -> WholeBody {
        let replacement = Replacement::parse(replace, Language::Substitution, &mut |_| {}).unwrap();
        let regex = Regex::new(pattern).unwrap();
        let substitution = Substitution { regex, has_end: false, scope: Scope::Global, replacement };
        WholeBody::new([substitution].into(), BodyCoding::Identity, 1 << 20)
    }

    fn filter(pattern: &str) -> WholeBody {
        filter_with(pattern, "-")
    }

    /// The resulting body, and the number of turns on another thread.
    fn run(filter: &mut WholeBody, body: &[u8]) -> (Vec<u8>, usize) {
        let (mut out, mut turns) = (Vec::new(), 0);
        filter.piece(body, &mut out).unwrap();
        filter.end(&mut out).unwrap();
        while let Some(work) = filter.work() {
            assert!(filter.held_bytes() >= body.len(), "what another thread has counts, too");
            filter.on_work_done(work(), &mut out).unwrap();
            turns += 1;
        }
        assert_eq!(filter.held_bytes(), 0);
        (out, turns)
    }

    #[test]
    fn long_bodies_are_searched_elsewhere() {
        let short = vec![b'a'; SHORT_BYTES_MAX / 2];
        assert_eq!(run(&mut filter("b"), &short), (short.clone(), 0));
        let long = vec![b'a'; SHORT_BYTES_MAX + 1];
        let (out, turns) = run(&mut filter("b"), &long);
        assert_eq!((out, turns), (long, 1));
    }

    /// It is refused before it is built.
    #[test]
    fn a_replacement_of_many_groups_is_bounded() {
        let mut filter = filter_with("(?s).+", &"$0".repeat(100_000));
        let body = vec![b'a'; 1 << 20];
        filter.piece(&body, &mut Vec::new()).unwrap();
        filter.end(&mut Vec::new()).unwrap();
        let work = filter.work().unwrap();
        assert_eq!(filter.on_work_done(work(), &mut Vec::new()), Err(BodyError::TooLarge));
    }

    /// Each search reads the body to its end: together they take the square of its length.
    #[test]
    fn what_takes_long_is_done_in_turns() {
        const SLOW: &str = "a.*b|a";
        let (out, turns) = run(&mut filter(SLOW), &[b'a'; 16 * 1024]);
        assert!(out.iter().all(|byte| *byte == b'-') && out.len() == 16 * 1024);
        assert!(turns > 1, "{turns}");
        // A short body is started by the worker, and moves to another thread when it takes long.
        let mut filter = filter(SLOW);
        filter.piece(&[b'a'; SHORT_BYTES_MAX], &mut Vec::new()).unwrap();
        let mut out = Vec::new();
        let began = Instant::now();
        filter.end(&mut out).unwrap();
        let is_done = filter.whole.is_none();
        assert!(!is_done || began.elapsed() < WORKER_TIME_MAX * 2);
        while let Some(work) = filter.work() {
            filter.on_work_done(work(), &mut out).unwrap();
        }
        assert_eq!(out.len(), SHORT_BYTES_MAX);
    }
}
