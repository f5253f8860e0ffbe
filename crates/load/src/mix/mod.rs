//! The requests of a load: one, or a weighted mix from a YAML or HAR file.
//!
//! A mix is read and checked once, before the run; all its errors are reported at once, with their places. After that a
//! [`Composer`] for each thread makes requests from it that are ready to send. This module does not depend on
//! connections or time. Files that a mix is made of are read whole and with a bound.

mod errors;
mod har;
mod request;
mod template;
mod yaml;

use crate::target::Target;
pub use errors::{FINDINGS_MAX, Finding, MixErrors};
use errors::{Findings, Location};
pub use request::Expect;
use request::{BodyCheck, Draft, StatusSet, ValueAt};
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use stillgate_stats::Random;
use stillgate_wire::Method;
pub use stillgate_yaml::Position;
use template::{Piece, Template, ValueSource, Variable};

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
        let bytes = read_file(path).map_err(|message| {
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
        let statuses = statuses.map(StatusSet::parse).transpose()?;
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

fn nowhere<T>(value: T) -> ValueAt<T> {
    ValueAt { at: Location::Nowhere, value }
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
        fill_template(head, &self.values, &self.spans, &mut self.request);
        let Some(body) = body else { return };
        self.body.clear();
        fill_template(body, &self.values, &self.spans, &mut self.body);
        // Writing to a vector cannot fail.
        let _ = write!(self.request, "Content-Length: {}\r\n\r\n", self.body.len());
        self.request.extend_from_slice(&self.body);
    }
}

fn fill_template(template: &Template, values: &[u8], spans: &[Option<Range<usize>>], out: &mut Vec<u8>) {
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

/// Largest file of requests, of a body or of values.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// All of a file; the error is a message.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("cannot be read ({error}); check the path and its permissions"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("has more than {} MiB; use a part of it", FILE_BYTES_MAX >> 20));
    }
    Ok(bytes)
}

/// The lines of a file that are not empty; at least one.
fn lines_of_file(path: &Path) -> Result<Vec<Box<[u8]>>, String> {
    let bytes = read_file(path)?;
    let lines = bytes.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let lines: Vec<Box<[u8]>> = lines.filter(|line| !line.is_empty()).map(Box::from).collect();
    if lines.is_empty() {
        return Err("has no values; write one per line".to_owned());
    }
    Ok(lines)
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
