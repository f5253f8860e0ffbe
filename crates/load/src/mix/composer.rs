//! Composes the next request as bytes, without allocating once its buffers have grown.
//!
//! A variable has one value per request, even if it is used several times. A request without variables was written when
//! the mix was read.

use super::template::{Piece, Template};
use super::variable::{ValueSource, Variable};
use super::{Entry, EntryBytes, Mix};
use std::io::Write;
use std::ops::Range;
use stillgate_stats::Random;

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
