//! `ngx.re` on the `regex` crate: linear in time whatever the pattern. Of PCRE it has no look-around, no references back to a
//! group and no atomic groups; a pattern that needs one is an error that says so.

use crate::pattern::Span;
use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use std::collections::HashMap;

/// Compiled patterns that a worker keeps; when there are more, all are dropped.
const KEPT_MAX: usize = 512;
/// Memory of one pattern's program.
const PROGRAM_BYTES_MAX: usize = 1 << 20;

/// The options of `ngx.re` that change what a pattern means, as bits.
pub(crate) const CASELESS: u32 = 1;
pub(crate) const MULTILINE: u32 = 2;
pub(crate) const DOTALL: u32 = 4;
pub(crate) const EXTENDED: u32 = 8;
pub(crate) const UNICODE: u32 = 16;
pub(crate) const ANCHORED: u32 = 32;

/// The patterns of one worker.
#[derive(Default)]
pub(crate) struct Regexes {
    kept: HashMap<u32, HashMap<Box<[u8]>, Kept>>,
    count: usize,
}

struct Kept {
    regex: Regex,
    locations: CaptureLocations,
}

impl Regexes {
    /// Finds a pattern from a place on; the first span is the whole match, and groups follow. One that has not matched is
    /// `None`.
    pub(crate) fn find(
        &mut self,
        text: &[u8],
        pattern: &[u8],
        options: u32,
        from: usize,
        spans: &mut Vec<Option<Span>>,
    ) -> Result<bool, String> {
        spans.clear();
        let Kept { regex, locations } = self.kept(pattern, options)?;
        if from > text.len() || regex.captures_read_at(locations, text, from).is_none() {
            return Ok(false);
        }
        if options & ANCHORED != 0 && locations.get(0).is_none_or(|(start, _)| start != from) {
            return Ok(false);
        }
        spans.extend((0..locations.len()).map(|at| locations.get(at).map(|(from, to)| (from, Some(to)))));
        Ok(true)
    }

    /// The names of a pattern's groups, each as `NUMBER NAME` and a line end.
    pub(crate) fn names(&mut self, pattern: &[u8], options: u32, out: &mut Vec<u8>) -> Result<(), String> {
        let Kept { regex, .. } = self.kept(pattern, options)?;
        for (at, name) in regex.capture_names().enumerate() {
            if let Some(name) = name {
                out.extend_from_slice(format!("{at} {name}\n").as_bytes());
            }
        }
        Ok(())
    }

    fn kept(&mut self, pattern: &[u8], options: u32) -> Result<&mut Kept, String> {
        let is_known = self.kept.get(&options).is_some_and(|kept| kept.contains_key(pattern));
        if !is_known {
            let kept = compile(pattern, options)?;
            if self.count >= KEPT_MAX {
                self.kept.clear();
                self.count = 0;
            }
            self.count += 1;
            self.kept.entry(options).or_default().insert(pattern.into(), kept);
        }
        Ok(self.kept.get_mut(&options).and_then(|kept| kept.get_mut(pattern)).expect("inserted above"))
    }
}

fn compile(pattern: &[u8], options: u32) -> Result<Kept, String> {
    let text =
        std::str::from_utf8(pattern).map_err(|_| "a pattern has to be UTF-8; write bytes as \\xHH".to_owned())?;
    let is = |option: u32| options & option != 0;
    let regex = RegexBuilder::new(text)
        .case_insensitive(is(CASELESS))
        .multi_line(is(MULTILINE))
        .dot_matches_new_line(is(DOTALL))
        .ignore_whitespace(is(EXTENDED))
        .unicode(is(UNICODE))
        .size_limit(PROGRAM_BYTES_MAX)
        .dfa_size_limit(PROGRAM_BYTES_MAX)
        .build()
        .map_err(|error| {
            let reason = error.to_string();
            format!("the pattern {text:?} cannot be compiled: {}", reason.lines().last().unwrap_or_default())
        })?;
    let locations = regex.capture_locations();
    Ok(Kept { regex, locations })
}
