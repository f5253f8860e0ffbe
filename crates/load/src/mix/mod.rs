//! The requests of a load: one, or a weighted mix from a YAML or HAR file.
//!
//! A mix is read and checked once, before the run; all its errors are reported at once, with their places. After that a
//! [`Composer`] for each thread makes requests from it that are ready to send. This module does not depend on
//! connections or time.

mod errors;
mod expect;
mod files;
mod har;
mod request;
mod template;
mod yaml;

use crate::target::Target;
pub use errors::{FINDINGS_MAX, Finding, MixErrors};
use errors::{Findings, Location};
pub use expect::Expect;
use expect::{BodyCheck, Statuses};
use request::{Draft, Positioned};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use stillgate_stats::Random;
use stillgate_wire::Method;
pub use stillgate_yaml::Position;
use template::{Piece, Template};

/// Requests with their weights; at least one. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mix {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    entries: Vec<Entry>,
    weights: Vec<u32>,
    choice: Choice,
    variables: Vec<Variable>,
    notes: Vec<String>,
}

/// One request of a mix, or many alike that differ in their variables.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name in the file, otherwise method and path.
    pub name: String,
    /// Its method, which affects where the answer ends.
    pub method: Method,
    /// The expected answer.
    pub expect: Expect,
    /// The names of its header fields, as written.
    pub(crate) fields: Vec<String>,
    sent: EntryBytes,
}

impl Entry {
    /// Its constant bytes; `None` if it has variables.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        match &self.sent {
            EntryBytes::Fixed(bytes) => Some(bytes),
            EntryBytes::Filled { .. } => None,
        }
    }
}

/// The bytes to send for an entry.
#[derive(Debug, Clone)]
enum EntryBytes {
    /// Always the same.
    Fixed(Arc<[u8]>),
    /// With variables.
    Filled {
        /// Everything, or everything before the length of a body with variables.
        head: Template,
        /// A body with variables.
        body: Option<Template>,
    },
}

impl Mix {
    /// A mix of one request, without variables. The Host field is `host` unless the headers have one.
    pub fn single(
        method: &str,
        path_and_query: &str,
        host: &str,
        headers: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<Mix, MixErrors> {
        let header =
            |(name, value): &(String, String)| (nowhere(name.clone()), nowhere(Template::literal(value.as_str())));
        let draft = Draft {
            name: None,
            method: nowhere(method.to_owned()),
            path: nowhere(Template::literal(path_and_query)),
            headers: headers.iter().map(header).collect(),
            body: (!body.is_empty()).then(|| Template::literal(body)),
            content_type: None,
            expect: Expect::default(),
        };
        let mut findings = Findings::default();
        match draft.entry(host, &[], &mut findings) {
            Some(entry) => Ok(Mix::new(vec![(entry, 1)], Vec::new(), Vec::new())),
            None => Err(findings.into_errors("the request", "")),
        }
    }

    /// Reads a mix from a file: HAR if its name ends in `.har` or `.json`, otherwise YAML.
    pub fn from_file(path: &Path, target: &Target) -> Result<Mix, MixErrors> {
        let origin = path.display().to_string();
        let bytes = files::read(path).map_err(|message| {
            let mut findings = Findings::default();
            findings.add(Location::Nowhere, message);
            findings.into_errors(&origin, "")
        })?;
        let text = text(&bytes, &origin)?;
        let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
        match ending.as_ref().and_then(|ending| ending.to_str()) {
            Some("har" | "json") => Mix::from_har(text, path, target),
            _ => Mix::from_yaml(text, path, target),
        }
    }

    /// Reads a mix written by hand. Files it names are looked up in the folder of `origin`.
    pub fn from_yaml(text: &str, origin: &Path, target: &Target) -> Result<Mix, MixErrors> {
        yaml::read(text, origin, target)
    }

    /// Reads a mix recorded by a browser or proxy, with its requests to the target's host.
    pub fn from_har(text: &str, origin: &Path, target: &Target) -> Result<Mix, MixErrors> {
        har::read(text, origin, target)
    }

    /// Its entries.
    pub fn entries(&self) -> &[Entry] {
        &self.inner.entries
    }

    /// The weights of its entries, in the same order.
    pub fn weights(&self) -> &[u32] {
        &self.inner.weights
    }

    /// Notes for the author of the file, for example about entries that were left out.
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    /// These requests, with other expectations of all answers if given: statuses (`200,301-303,4xx`), and a text
    /// that every body must contain. The error names an invalid status.
    pub fn expecting(&self, statuses: Option<&str>, body_contains: Option<&str>) -> Result<Mix, String> {
        if statuses.is_none() && body_contains.is_none() {
            return Ok(self.clone());
        }
        let statuses = statuses.map(Statuses::parse).transpose()?;
        let body = body_contains.map(|text| BodyCheck::Contains(text.as_bytes().into()));
        let Inner { entries, weights, choice, variables, notes } = &*self.inner;
        let entries = entries.iter().map(|entry| {
            let Expect { statuses: own, body: own_body } = &entry.expect;
            let expect = Expect { statuses: statuses.unwrap_or(*own), body: body.clone().or_else(|| own_body.clone()) };
            Entry { expect, ..entry.clone() }
        });
        let (entries, weights, choice) = (entries.collect(), weights.clone(), choice.clone());
        let (variables, notes) = (variables.clone(), notes.clone());
        Ok(Mix { inner: Arc::new(Inner { entries, weights, choice, variables, notes }) })
    }

    /// A mix of at least one entry.
    fn new(entries: Vec<(Entry, u32)>, variables: Vec<Variable>, notes: Vec<String>) -> Mix {
        let (entries, weights): (Vec<Entry>, Vec<u32>) = entries.into_iter().unzip();
        let choice = Choice::new(&weights);
        Mix { inner: Arc::new(Inner { entries, weights, choice, variables, notes }) }
    }
}

/// The text of a file, without a byte order mark.
fn text<'a>(bytes: &'a [u8], origin: &str) -> Result<&'a str, MixErrors> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let mut findings = Findings::default();
        findings.add(Location::Byte(before.len()), "the file is not UTF-8 from here on; save it as UTF-8");
        findings.into_errors(origin, &before)
    })
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn nowhere<T>(value: T) -> Positioned<T> {
    Positioned { at: Location::Nowhere, value }
}

// A choice among weighted alternatives in constant time: the alias method (Walker 1977, tables as in Vose 1991).

/// The tables of a weighted choice.
#[derive(Debug, Clone)]
struct Choice {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The part of this slot that belongs to its own alternative, of the total weight.
    own: u64,
    /// The alternative that the rest belongs to.
    alias: usize,
}

impl Choice {
    /// Tables for at least one weight; all above zero.
    fn new(weights: &[u32]) -> Choice {
        // In whole numbers: scaled by their count, the weights' mean is the total, and nothing is rounded.
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut left: Vec<u64> = weights.iter().map(|&weight| u64::from(weight) * weights.len() as u64).collect();
        let mut slots: Vec<Slot> = (0..weights.len()).map(|alias| Slot { own: total, alias }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..weights.len()).partition(|&i| left[i] < total);
        while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
            small.pop();
            slots[less] = Slot { own: left[less], alias: more };
            left[more] -= total - left[less];
            if left[more] < total {
                large.pop();
                small.push(more);
            }
        }
        for slot in &mut slots {
            // To thresholds of a draw of 64 bits.
            slot.own = ((u128::from(slot.own) << 64) / u128::from(total)).min(u128::from(u64::MAX)) as u64;
        }
        Choice { slots }
    }

    /// Draws the index of an alternative.
    fn draw(&self, random: &mut Random) -> usize {
        if self.slots.len() == 1 {
            return 0;
        }
        let index = random.below(self.slots.len() as u64) as usize;
        let Slot { own, alias } = self.slots[index];
        if own == u64::MAX || random.next_u64() < own { index } else { alias }
    }
}

// Composes the next request as bytes, without allocating once its buffers have grown.
//
// A variable has one value per request, even if it is used several times. A request without variables was written when
// the mix was read.

/// Makes one thread's requests; owns its random state and its share of the counters.
#[derive(Debug)]
pub struct Composer {
    mix: Mix,
    random: Random,
    /// By variable; for counters, this thread's next number.
    counters: Vec<u64>,
    /// The step of counters: the number of threads.
    step: u64,
    filled: FillBuffers,
}

/// A request ready to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComposedRequest<'a> {
    /// The index of its entry.
    pub entry: usize,
    /// Head and body.
    pub bytes: &'a [u8],
}

/// Buffers that are reused.
#[derive(Debug, Default)]
struct FillBuffers {
    request: Vec<u8>,
    body: Vec<u8>,
    /// The values, one behind the other.
    values: Vec<u8>,
    /// By variable, its part of `values`, if this request uses it.
    spans: Vec<Option<Range<usize>>>,
}

impl Composer {
    /// The composer of thread number `thread`, counted from zero, of `threads`. Its requests follow from the seed.
    pub fn new(mix: &Mix, seed: u64, thread: usize, threads: usize) -> Composer {
        let variables = &mix.inner.variables;
        let first = |variable: &Variable| match variable.source {
            ValueSource::Counter(start) => start.wrapping_add(thread as u64),
            _ => 0,
        };
        Composer {
            random: Random::new(seed.wrapping_add((thread as u64).wrapping_mul(THREAD_STRIDE))),
            counters: variables.iter().map(first).collect(),
            step: threads.max(1) as u64,
            filled: FillBuffers { spans: vec![None; variables.len()], ..FillBuffers::default() },
            mix: mix.clone(),
        }
    }

    /// The next request.
    pub fn compose(&mut self) -> ComposedRequest<'_> {
        let Composer { mix, random, counters, step, filled } = self;
        let entry = mix.inner.choice.draw(random);
        let (head, body) = match &mix.inner.entries[entry].sent {
            EntryBytes::Fixed(bytes) => return ComposedRequest { entry, bytes },
            EntryBytes::Filled { head, body } => (head, body.as_ref()),
        };
        filled.values.clear();
        filled.spans.fill(None);
        for index in head.variables().chain(body.into_iter().flat_map(Template::variables)) {
            if filled.spans[index].is_none() {
                let start = filled.values.len();
                mix.inner.variables[index].source.draw(random, &mut counters[index], *step, &mut filled.values);
                filled.spans[index] = Some(start..filled.values.len());
            }
        }
        filled.write(head, body);
        ComposedRequest { entry, bytes: &filled.request }
    }

    /// The entry of an index that [`Composer::compose`] gave.
    pub fn entry(&self, index: usize) -> &Entry {
        &self.mix.inner.entries[index]
    }
}

/// Far apart in the seeds, odd: no two threads have the same.
const THREAD_STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

impl FillBuffers {
    fn write(&mut self, head: &Template, body: Option<&Template>) {
        self.request.clear();
        put(head, &self.values, &self.spans, &mut self.request);
        let Some(body) = body else { return };
        self.body.clear();
        put(body, &self.values, &self.spans, &mut self.body);
        // Writing to a vector cannot fail.
        let _ = write!(self.request, "Content-Length: {}\r\n\r\n", self.body.len());
        self.request.extend_from_slice(&self.body);
    }
}

fn put(template: &Template, values: &[u8], spans: &[Option<Range<usize>>], out: &mut Vec<u8>) {
    for piece in &template.pieces {
        match piece {
            Piece::Literal(literal) => out.extend_from_slice(literal),
            Piece::Variable(index, escape) => {
                if let Some(span) = &spans[*index] {
                    escape.push(out, &values[span.clone()]);
                }
            }
        }
    }
}

// The value of `${name}`: a source of values, drawn again for each request.

/// A named source of values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Variable {
    name: String,
    source: ValueSource,
}

/// A source of values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ValueSource {
    /// A whole number of the range, both ends included, each as likely.
    Range(i64, i64),
    /// The numbers from this one on, each once over all threads.
    Counter(u64),
    /// One of the values, each as likely. At least one.
    Values(Vec<Box<[u8]>>),
    /// A random UUID (version 4).
    Uuid,
    /// A number of random hexadecimal digits.
    Hex(usize),
}

/// Most digits of [`ValueSource::Hex`].
const HEX_DIGITS_MAX: usize = 4096;

impl ValueSource {
    /// Whether its values are JSON numbers.
    fn is_number(&self) -> bool {
        matches!(self, ValueSource::Range(..) | ValueSource::Counter(_))
    }

    /// The number, counted from one, of the first value that `allowed` refuses, if any.
    fn refused_by(&self, allowed: impl Fn(&[u8]) -> bool) -> Option<usize> {
        match self {
            ValueSource::Values(values) => values.iter().position(|value| !allowed(value)).map(|index| index + 1),
            // Digits, hyphens and letters.
            _ => None,
        }
    }

    /// Appends the next value. `counter` is this thread's next number, `step` the number of threads.
    fn draw(&self, random: &mut Random, counter: &mut u64, step: u64, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        match self {
            ValueSource::Range(from, to) => {
                let width = to.abs_diff(*from);
                let offset = if width == u64::MAX { random.next_u64() } else { random.below(width + 1) };
                let _ = write!(out, "{}", from.wrapping_add_unsigned(offset));
            }
            ValueSource::Counter(_) => {
                let _ = write!(out, "{counter}");
                *counter = counter.wrapping_add(step);
            }
            ValueSource::Values(values) => {
                let index = random.below(values.len() as u64) as usize;
                out.extend_from_slice(&values[index]);
            }
            ValueSource::Uuid => {
                // RFC 9562 section 5.4: the version's four bits, then the variant's two.
                let high = random.next_u64() & !0xf000 | 0x4000;
                let low = random.next_u64() & !(0b11 << 62) | 0b10 << 62;
                let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
                let _ = write!(out, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff);
            }
            ValueSource::Hex(digits) => {
                let mut left = *digits;
                while left > 0 {
                    let mut bits = random.next_u64();
                    for _ in 0..left.min(16) {
                        out.push(b"0123456789abcdef"[(bits & 15) as usize]);
                        bits >>= 4;
                        left -= 1;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The share of each alternative that the tables give, in parts of the total weight.
    fn shares(choice: &Choice) -> Vec<f64> {
        let mut shares = vec![0.0; choice.slots.len()];
        for (index, slot) in choice.slots.iter().enumerate() {
            let own = slot.own as f64 / u64::MAX as f64;
            shares[index] += own / choice.slots.len() as f64;
            shares[slot.alias] += (1.0 - own) / choice.slots.len() as f64;
        }
        shares
    }

    proptest! {
        #[test]
        fn shares_are_the_weights(weights in prop::collection::vec(1u32..=1_000_000, 1..50)) {
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            for (share, weight) in shares(&Choice::new(&weights)).iter().zip(&weights) {
                prop_assert!((share - f64::from(*weight) / total).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        let choice = Choice::new(&[1, 2, 7]);
        let mut random = Random::new(1);
        let mut counts = [0u32; 3];
        for _ in 0..100_000 {
            counts[choice.draw(&mut random)] += 1;
        }
        // Five standard deviations.
        for (count, want) in counts.iter().zip([10_000.0, 20_000.0, 70_000.0]) {
            assert!((f64::from(*count) - want).abs() < 5.0 * 145.0, "{counts:?}");
        }
    }
}

#[cfg(test)]
mod variable_tests {
    use super::*;
    use std::collections::HashSet;

    fn drawn(source: &ValueSource, seed: u64, times: usize) -> Vec<String> {
        let (mut random, mut counter) = (Random::new(seed), 0);
        if let ValueSource::Counter(start) = source {
            counter = *start;
        }
        let mut draw = || {
            let mut out = Vec::new();
            source.draw(&mut random, &mut counter, 3, &mut out);
            String::from_utf8(out).unwrap()
        };
        (0..times).map(|_| draw()).collect()
    }

    #[test]
    fn ranges_reach_both_ends_and_no_further() {
        let seen: HashSet<String> = drawn(&ValueSource::Range(-1, 2), 7, 200).into_iter().collect();
        assert_eq!(seen, ["-1", "0", "1", "2"].map(str::to_owned).into());
        assert_eq!(drawn(&ValueSource::Range(5, 5), 7, 2), ["5", "5"]);
        for value in drawn(&ValueSource::Range(i64::MIN, i64::MAX), 7, 100) {
            value.parse::<i64>().unwrap();
        }
        let half: HashSet<bool> =
            drawn(&ValueSource::Range(0, i64::MAX), 7, 100).iter().map(|v| v.len() == 19).collect();
        assert!(half.contains(&true));
    }

    #[test]
    fn counters_step_by_the_threads() {
        assert_eq!(drawn(&ValueSource::Counter(10), 7, 3), ["10", "13", "16"]);
    }

    #[test]
    fn uuids_and_digits_have_their_form() {
        let form = regex::Regex::new("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$").unwrap();
        let uuids = drawn(&ValueSource::Uuid, 7, 1000);
        assert!(uuids.iter().all(|uuid| form.is_match(uuid)), "{uuids:?}");
        assert_eq!(uuids.iter().collect::<HashSet<_>>().len(), 1000);
        for digits in [1, 16, 17, 100] {
            let value = &drawn(&ValueSource::Hex(digits), 7, 1)[0];
            assert!(value.len() == digits && value.bytes().all(|b| b"0123456789abcdef".contains(&b)), "{value}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let values = ValueSource::Values(["a", "b", "c"].map(|v| v.as_bytes().into()).into());
        for source in [ValueSource::Range(0, 1_000_000), values, ValueSource::Uuid, ValueSource::Hex(8)] {
            assert_eq!(drawn(&source, 1, 50), drawn(&source, 1, 50));
            assert_ne!(drawn(&source, 1, 50), drawn(&source, 2, 50), "{source:?}");
        }
    }
}
