//! Changes of a body on its way: filters that see it piece by piece, and bodies put in place of it.

use crate::flow::{Output, Work};
use std::fmt;

/// Which way a body goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the node.
    Request,
    /// To the client.
    Response,
}

/// What a filter may hold of one body, where its plugin has no key of its own for it.
pub const FILTER_BYTES_MAX: usize = 1024 * 1024;

/// Content codings that filters of responses undo, as `Accept-Encoding` has them. Nodes are asked for no others where a filter
/// needs the body as it is.
pub const UNDONE_CODINGS: [&str; 4] = ["gzip", "x-gzip", "deflate", "br"];

/// Sees a body piece by piece, in whatever pieces it comes, and says what goes on in its place.
///
/// A filter owns what it holds back, and has a bound for it.
pub trait BodyFilter {
    /// Takes the next piece; what of the body can go on is appended to `out`.
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// Nothing more of the body is here for now. What is held back only to be put together better is appended to `out`, so
    /// that the other side need not wait for what may come much later.
    fn pause(&mut self, _out: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }

    /// The body has ended; the rest is appended to `out`.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// How long what goes on is in all, of a body that is this long; `None`: that shows only as it comes. Asked before it comes.
    fn length_of(&self, _length: u64) -> Option<u64> {
        None
    }

    /// Bytes it holds back, as counted against the worker's bound.
    fn held_bytes(&self) -> usize;

    /// Most of a body that it takes at once without holding the worker up, which serves others in between.
    fn piece_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// What it has to have done on a thread that serves no requests, asked after each of the calls above and after
    /// [`BodyFilter::worked`]. Until then it is given nothing more. Work that may take long is done in parts, between which that
    /// of other requests has its turn.
    fn work(&mut self) -> Option<Work> {
        None
    }

    /// The work is done, with this result. What can go on is appended to `out`.
    fn worked(&mut self, _result: Output, _out: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }
}

/// Why a body cannot go on. A request is answered with the status; a response that has begun is cut, one that has not becomes
/// a 502.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// It is larger than the filter holds: 413 for a request.
    TooLarge,
    /// It is not what it says it is, such as broken gzip: 400 for a request.
    Malformed,
    /// What the configuration has run for it has failed.
    Failed,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::TooLarge => "the body is larger than a plugin may hold",
            BodyError::Malformed => "the body is not in the coding that its head names",
            BodyError::Failed => "a function of a plugin has failed",
        })
    }
}

/// One change of a body.
pub enum Change {
    /// This in place of it. What comes is read to its end and dropped.
    Replace(Vec<u8>),
    /// What the filter makes of it.
    Filter(Box<dyn BodyFilter>),
}

/// The changes of one body, in the order that its bytes meet them. Of most bodies there are none.
#[derive(Default)]
pub struct BodyChanges {
    list: Vec<(&'static str, Change)>,
    /// The plugin that is called now: what it changes is told under its name.
    pub plugin: &'static str,
    /// Memory for the next [`Change::Replace`].
    spare: Vec<u8>,
    /// What is kept of the body as it goes on.
    capture: Capture,
}

/// The beginning of a body as it goes on, kept for the phase `log`. It changes nothing.
#[derive(Default)]
pub struct Capture {
    bytes: Vec<u8>,
    /// Zero: nothing is kept.
    bytes_max: usize,
    /// There was more than is kept.
    is_cut: bool,
    is_ended: bool,
}

impl Capture {
    /// Whether something is kept.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// A piece of the body goes on.
    pub fn piece(&mut self, piece: &[u8]) {
        let room = self.bytes_max.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        self.is_cut |= piece.len() > room;
    }

    /// The body has gone on to its end.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// The body is sent again from its beginning.
    pub fn rewind(&mut self) {
        self.bytes.clear();
        (self.is_cut, self.is_ended) = (false, false);
    }

    /// There is no memory for it.
    pub fn give_up(&mut self) {
        *self = Capture::default();
    }

    /// What is kept; `None`: nothing is.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.is_on().then_some(&self.bytes)
    }

    /// Whether that is the body from its beginning to its end.
    pub fn is_whole(&self) -> bool {
        self.is_on() && self.is_ended && !self.is_cut
    }
}

impl BodyChanges {
    /// Whether the body goes on as it is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Puts `body` in place of what there is, with all changes made to that.
    pub fn replace(&mut self, body: &[u8]) {
        self.clear();
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.extend_from_slice(body);
        self.list.push((self.plugin, Change::Replace(bytes)));
    }

    /// [`BodyChanges::replace`] with memory of the caller's.
    pub fn replace_with(&mut self, body: Vec<u8>) {
        self.clear();
        self.list.push((self.plugin, Change::Replace(body)));
    }

    /// What was put in place of the body, where nothing changes that.
    pub fn replaced(&self) -> Option<&[u8]> {
        match &self.list[..] {
            [(_, Change::Replace(body))] => Some(body),
            _ => None,
        }
    }

    /// Takes what was put in place of the body out, where nothing changes that; [`BodyChanges::give_back`] undoes it.
    pub(crate) fn take_replaced(&mut self) -> Option<Vec<u8>> {
        match &mut self.list[..] {
            [(_, Change::Replace(body))] => Some(std::mem::take(body)),
            _ => None,
        }
    }

    /// Puts back what was taken.
    pub(crate) fn give_back(&mut self, body: Vec<u8>) {
        if let [(_, Change::Replace(place))] = &mut self.list[..] {
            *place = body;
        }
    }

    /// What a body takes that was put in place of another.
    pub fn replaced_bytes(&self) -> usize {
        match self.list.first() {
            Some((_, Change::Replace(body))) => body.capacity(),
            _ => 0,
        }
    }

    /// Adds a filter behind those that are there.
    pub fn filter(&mut self, filter: Box<dyn BodyFilter>) {
        self.list.push((self.plugin, Change::Filter(filter)));
    }

    /// How many changes there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The plugin of the last change, where that is a filter.
    pub fn last_filter(&self) -> Option<&'static str> {
        match self.list.last() {
            Some((plugin, Change::Filter(_))) => Some(plugin),
            _ => None,
        }
    }

    /// Takes the last change back.
    pub fn withdraw_last(&mut self) {
        self.list.pop();
    }

    /// Keeps the first bytes of the body as it goes on, so many and no fewer than was said before.
    pub fn capture(&mut self, bytes_max: usize) {
        self.capture.bytes_max = self.capture.bytes_max.max(bytes_max);
    }

    /// What is kept of the body.
    pub fn captured(&self) -> &Capture {
        &self.capture
    }

    /// The same, to be filled.
    pub fn captured_mut(&mut self) -> &mut Capture {
        &mut self.capture
    }

    /// The length of the body to come, where that is known whatever comes, and no filter changes it.
    pub fn length(&self) -> Option<u64> {
        self.replaced().map(|body| body.len() as u64)
    }

    /// The same, of a body that comes with this length, or without one.
    pub fn length_of(&self, length: Option<u64>) -> Option<u64> {
        self.list.iter().fold(length, |length, (_, change)| match change {
            Change::Replace(body) => Some(body.len() as u64),
            Change::Filter(filter) => length.and_then(|length| filter.length_of(length)),
        })
    }

    /// Whether what comes is dropped, since something else takes its place.
    pub fn drops_what_comes(&self) -> bool {
        matches!(self.list.first(), Some((_, Change::Replace(_))))
    }

    /// Most that the filters take at once without holding the worker up.
    pub fn piece_bytes_max(&self) -> usize {
        let of_filter = |(_, change): &(&str, Change)| match change {
            Change::Filter(filter) => filter.piece_bytes_max(),
            Change::Replace(_) => usize::MAX,
        };
        self.list.iter().map(of_filter).min().unwrap_or(usize::MAX)
    }

    /// The changes, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Change> {
        self.list.iter_mut().map(|(_, change)| change)
    }

    /// The filters, in order, each with its plugin's name.
    pub fn filters_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Box<dyn BodyFilter>)> {
        self.list.iter_mut().filter_map(|(plugin, change)| match change {
            Change::Filter(filter) => Some((*plugin, filter)),
            Change::Replace(_) => None,
        })
    }

    /// No changes, keeping some memory.
    pub fn clear(&mut self) {
        /// More than this is given back.
        const KEPT_BYTES_MAX: usize = 64 * 1024;
        for (_, change) in self.list.drain(..) {
            if let Change::Replace(mut bytes) = change
                && bytes.capacity() <= KEPT_BYTES_MAX
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }
}

impl fmt::Debug for BodyChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyChanges").field("count", &self.list.len()).finish_non_exhaustive()
    }
}
