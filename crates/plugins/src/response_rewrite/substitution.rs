//! Replacements in a body: it is held until its end, since a match may lie across its pieces, and until then nothing is sent.

use super::{ResponseFilterKeys, Scope};
use crate::decoding::{Decoder, Decoding};
use crate::patterns::{Flags, compile};
use crate::replacement::{Groups, Language, Replacement};
use regex::bytes::{CaptureLocations, Regex};
use std::sync::Arc;
use stillgate_plugin::{BodyError, BodyFilter, Compile};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Fault, Path, Sink};

/// One of `filters`, compiled. Each worker searches with a copy, since searching takes memory.
#[derive(Clone)]
pub(super) struct Substitution {
    regex: Regex,
    /// `$` without the option `m`: it matches before a line break that ends the body, too, as in PCRE.
    has_end: bool,
    scope: Scope,
    replacement: Replacement,
}

impl Substitution {
    /// Compiles all of them; `None`: something was wrong and has been reported.
    pub(super) fn compile_all(
        filters: &At<Vec<ResponseFilterKeys>>,
        cx: &mut Compile<'_>,
    ) -> Option<Box<[Substitution]>> {
        let path = cx.path.key("filters");
        let mut compiled = Vec::new();
        for (index, keys) in filters.value.iter().enumerate() {
            let path = path.index(index);
            compiled.extend(Substitution::compile(keys, &path, cx.sink));
        }
        (compiled.len() == filters.value.len()).then(|| compiled.into())
    }

    fn compile(keys: &ResponseFilterKeys, path: &Path<'_>, sink: &mut Sink) -> Option<Substitution> {
        let mut report = |key, at, fault: Fault| sink.error(at, &path.key(key), fault);
        let replacement = Replacement::parse(&keys.replace.value, Language::Substitution, &mut |_| {});
        let options = Options::parse(&keys.options.value, keys.scope);
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
        // Read alone first: `)` cannot close what is put around it.
        let regex = compile(pattern, options.flags).and_then(|regex| match options.is_anchored {
            // A comment may end the expression.
            true if options.flags.ignores_blanks => compile(&format!("\\A(?:{pattern}\n)"), options.flags),
            true => compile(&format!("\\A(?:{pattern})"), options.flags),
            false => Ok(regex),
        });
        match regex {
            Ok(regex) => {
                let has_end = has_end(pattern, options.flags);
                Some(Substitution { regex, has_end, scope: keys.scope, replacement })
            }
            Err(fault) => {
                report("regex", keys.regex.at, fault);
                None
            }
        }
    }

    /// Puts the body with its replacements into `to.out`, as far as one part goes; `true`: all of it is there.
    fn write(&self, body: &[u8], bytes_max: usize, to: &mut Replaced) -> Result<bool, BodyError> {
        let mut locations = self.regex.capture_locations();
        for _ in 0..PART_MATCHES {
            let found = (to.at <= body.len()).then(|| self.find(body, to.at, &mut locations)).flatten();
            let Some((start, end)) = found else { return to.finish(body, bytes_max) };
            to.out.extend_from_slice(&body[to.written..start]);
            self.replacement.write(&Groups::of(&locations, body), &NoVariables, &mut to.out, &mut Vec::new());
            to.written = end;
            // Behind an empty match the search goes on at the next byte.
            to.at = if end == start { end + 1 } else { end };
            if to.out.len() > bytes_max {
                return Err(BodyError::TooLarge);
            }
            if self.scope == Scope::Once {
                return to.finish(body, bytes_max);
            }
        }
        Ok(false)
    }

    /// The first match from a place on.
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

/// Whether `$` (or `\z`) without the option `m` is in it.
fn has_end(pattern: &str, flags: Flags) -> bool {
    let mut parser = regex_syntax::ParserBuilder::new();
    parser.utf8(false).unicode(flags.unicode).ignore_whitespace(flags.ignores_blanks).multi_line(flags.multi_line);
    let parsed = parser.build().parse(pattern);
    parsed.is_ok_and(|hir| hir.properties().look_set().contains(regex_syntax::hir::Look::End))
}

struct Options {
    flags: Flags,
    is_anchored: bool,
}

impl Options {
    fn parse(text: &str, scope: Scope) -> Result<Options, Fault> {
        let mut options = Options { flags: Flags::default(), is_anchored: false };
        for letter in text.chars() {
            match letter {
                'i' => options.flags.ignores_case = true,
                'm' => options.flags.multi_line = true,
                's' => options.flags.dot_is_newline = true,
                'x' => options.flags.ignores_blanks = true,
                'u' => options.flags.unicode = true,
                'a' => options.is_anchored = true,
                // How PCRE goes about it.
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

/// A [`Replacement`] of [`Language::Substitution`] has none.
struct NoVariables;

impl Lookup for NoVariables {
    fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        None
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

/// Matches that are replaced at once; the time that a body takes is looked at between the parts.
const PART_MATCHES: usize = 256;

/// A body that is being put together.
#[derive(Default)]
struct Replaced {
    out: Vec<u8>,
    /// How far the body it is made of is written.
    written: usize,
    /// Where the next search begins.
    at: usize,
}

impl Replaced {
    /// There is no further match.
    fn finish(&mut self, body: &[u8], bytes_max: usize) -> Result<bool, BodyError> {
        self.out.extend_from_slice(&body[self.written..]);
        if self.out.len() > bytes_max { Err(BodyError::TooLarge) } else { Ok(true) }
    }
}

/// Holds a body, and replaces in all of it when it is there.
pub(super) struct WholeBody {
    substitutions: Arc<[Substitution]>,
    decoder: Decoder,
    bytes_max: usize,
    /// From the body's end on.
    whole: Option<Whole>,
}

/// A body that is there, as far as the replacements have come.
struct Whole {
    body: Vec<u8>,
    /// The replacement under way; that of the last is done.
    step: usize,
    replaced: Replaced,
}

impl WholeBody {
    pub(super) fn new(substitutions: Arc<[Substitution]>, decoding: Decoding, bytes_max: usize) -> WholeBody {
        WholeBody { substitutions, decoder: Decoder::new(decoding, bytes_max), bytes_max, whole: None }
    }
}

impl BodyFilter for WholeBody {
    fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
        self.decoder.piece(piece)
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let mut whole = match self.whole.take() {
            Some(whole) => whole,
            None => Whole { body: self.decoder.end()?, step: 0, replaced: Replaced::default() },
        };
        let Some(substitution) = self.substitutions.get(whole.step) else {
            out.extend_from_slice(&whole.body);
            return Ok(());
        };
        if substitution.write(&whole.body, self.bytes_max, &mut whole.replaced)? {
            whole.body = std::mem::take(&mut whole.replaced).out;
            whole.step += 1;
        }
        self.whole = Some(whole);
        Ok(())
    }

    fn has_more(&self) -> bool {
        self.whole.is_some()
    }

    fn held_bytes(&self) -> usize {
        self.decoder.held_bytes()
    }
}
