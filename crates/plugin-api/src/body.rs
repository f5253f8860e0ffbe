//! Changes of a body in transit: filters that see it piece by piece, and replacements.

use crate::work::{Output, Work};
use std::fmt;

/// Direction of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the node.
    Request,
    /// To the client.
    Response,
}

/// Most bytes that a filter may hold of one body, unless its plugin has a key for it.
pub const FILTER_BYTES_MAX: usize = 1024 * 1024;

/// Content codings that response filters decode, as in `Accept-Encoding`. If a filter needs the decoded body, nodes are
/// asked for no others.
pub const UNDONE_CODINGS: [&str; 4] = ["gzip", "x-gzip", "deflate", "br"];

/// Sees a body piece by piece, in pieces of any size, and returns their replacement.
///
/// A filter owns the bytes that it holds back, and limits them.
pub trait BodyFilter {
    /// Takes the next piece; appends the bytes that can be forwarded to `out`.
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// No more of the body is available for now. Bytes that are held back only to form larger pieces are appended to
    /// `out`, so that the other side need not wait for bytes that may come much later.
    fn pause(&mut self, _out: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }

    /// The body has ended; appends the rest to `out`.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// Length of the output for a body of this length; `None`: it is not known in advance. Called before the body.
    fn length_of(&self, _length: u64) -> Option<u64> {
        None
    }

    /// Bytes held back, which are counted against the worker's limit.
    fn held_bytes(&self) -> usize;

    /// Largest piece that it processes without blocking the worker for too long.
    fn piece_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Whether no byte can cost it much more than another, as with codings of content: its time does not count against
    /// the bound of a body, so that no body is cut off for what it holds.
    fn is_of_bounded_cost(&self) -> bool {
        false
    }

    /// Work for a thread that does not serve requests; polled after each of the calls above and after
    /// [`BodyFilter::on_work_done`]. Until it is done, the filter gets nothing more. Long work is done in parts, so that the
    /// work of other requests gets its turn.
    fn work(&mut self) -> Option<Work> {
        None
    }

    /// The work is done, with this result. Appends bytes that can be forwarded to `out`.
    fn on_work_done(&mut self, _result: Output, _out: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }
}

/// The reason why a body cannot be forwarded. A request is answered with the status; a response that has begun is
/// truncated, and one that has not becomes a 502.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// It is larger than the filter can hold: 413 for a request.
    TooLarge,
    /// Its content does not match its head, such as broken gzip: 400 for a request.
    Malformed,
    /// A function of the configuration has failed.
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

/// A change of a body.
pub enum BodyChange {
    /// Replaces the body. The original is read to its end and dropped.
    Replace(Vec<u8>),
    /// Passes the body through a filter.
    Filter(Box<dyn BodyFilter>),
}

/// The changes of one body, in the order in which they apply. Most bodies have none.
#[derive(Default)]
pub struct BodyChanges {
    list: Vec<(&'static str, BodyChange)>,
    /// The plugin that is being called: its changes are reported under its name.
    pub plugin: &'static str,
    /// A spare buffer for the next [`BodyChange::Replace`].
    spare: Vec<u8>,
    /// The captured beginning of the forwarded body.
    capture: Capture,
}

/// The beginning of a forwarded body, captured for the phase `log`. It changes nothing.
#[derive(Default)]
pub struct Capture {
    bytes: Vec<u8>,
    /// Zero: nothing is captured.
    bytes_max: usize,
    /// The body was longer than the limit.
    is_cut: bool,
    is_ended: bool,
}

impl Capture {
    /// Whether the body is captured.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// Records a forwarded piece of the body.
    pub fn piece(&mut self, piece: &[u8]) {
        let room = self.bytes_max.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        self.is_cut |= piece.len() > room;
    }

    /// Records that the body was forwarded to its end.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Starts again, as the body is sent again from its beginning.
    pub fn rewind(&mut self) {
        self.bytes.clear();
        (self.is_cut, self.is_ended) = (false, false);
    }

    /// Drops the capture, as there is no memory for it.
    pub fn give_up(&mut self) {
        *self = Capture::default();
    }

    /// The captured bytes; `None`: nothing is captured.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.is_on().then_some(&self.bytes)
    }

    /// Whether the capture is the whole body.
    pub fn is_whole(&self) -> bool {
        self.is_on() && self.is_ended && !self.is_cut
    }
}

impl BodyChanges {
    /// Whether the body is unchanged.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Replaces the body, with all changes made to it, by `body`.
    pub fn replace(&mut self, body: &[u8]) {
        self.clear();
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.extend_from_slice(body);
        self.list.push((self.plugin, BodyChange::Replace(bytes)));
    }

    /// Like [`BodyChanges::replace`], with the caller's memory.
    pub fn replace_with(&mut self, body: Vec<u8>) {
        self.clear();
        self.list.push((self.plugin, BodyChange::Replace(body)));
    }

    /// The replacement, if no filter changes it.
    pub fn replaced(&self) -> Option<&[u8]> {
        match &self.list[..] {
            [(_, BodyChange::Replace(body))] => Some(body),
            _ => None,
        }
    }

    /// Takes the replacement, if no filter changes it; [`BodyChanges::restore_replacement`] undoes this.
    pub(crate) fn take_replaced(&mut self) -> Option<Vec<u8>> {
        match &mut self.list[..] {
            [(_, BodyChange::Replace(body))] => Some(std::mem::take(body)),
            _ => None,
        }
    }

    /// Puts a taken replacement back.
    pub(crate) fn restore_replacement(&mut self, body: Vec<u8>) {
        if let [(_, BodyChange::Replace(place))] = &mut self.list[..] {
            *place = body;
        }
    }

    /// Bytes of memory of the replacement.
    pub fn replaced_bytes(&self) -> usize {
        match self.list.first() {
            Some((_, BodyChange::Replace(body))) => body.capacity(),
            _ => 0,
        }
    }

    /// Appends a filter.
    pub fn filter(&mut self, filter: Box<dyn BodyFilter>) {
        self.list.push((self.plugin, BodyChange::Filter(filter)));
    }

    /// Number of changes.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The plugin of the last change, if that is a filter.
    pub fn last_filter(&self) -> Option<&'static str> {
        match self.list.last() {
            Some((plugin, BodyChange::Filter(_))) => Some(plugin),
            _ => None,
        }
    }

    /// Removes the last change.
    pub fn withdraw_last(&mut self) {
        self.list.pop();
    }

    /// Captures the first bytes of the forwarded body, at least as many as requested before.
    pub fn capture(&mut self, bytes_max: usize) {
        self.capture.bytes_max = self.capture.bytes_max.max(bytes_max);
    }

    /// The captured part of the body.
    pub fn captured(&self) -> &Capture {
        &self.capture
    }

    /// The capture, for recording.
    pub fn captured_mut(&mut self) -> &mut Capture {
        &mut self.capture
    }

    /// The length of the resulting body, if it is known in advance and no filter changes it.
    pub fn length(&self) -> Option<u64> {
        self.replaced().map(|body| body.len() as u64)
    }

    /// The length of the resulting body, for an incoming body with this length, or without one.
    pub fn length_of(&self, length: Option<u64>) -> Option<u64> {
        self.list.iter().fold(length, |length, (_, change)| match change {
            BodyChange::Replace(body) => Some(body.len() as u64),
            BodyChange::Filter(filter) => length.and_then(|length| filter.length_of(length)),
        })
    }

    /// Whether the incoming body is dropped because it is replaced.
    pub fn drops_what_comes(&self) -> bool {
        matches!(self.list.first(), Some((_, BodyChange::Replace(_))))
    }

    /// Largest piece that the filters process without blocking the worker for too long.
    pub fn piece_bytes_max(&self) -> usize {
        let of_filter = |(_, change): &(&str, BodyChange)| match change {
            BodyChange::Filter(filter) => filter.piece_bytes_max(),
            BodyChange::Replace(_) => usize::MAX,
        };
        self.list.iter().map(of_filter).min().unwrap_or(usize::MAX)
    }

    /// The changes, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut BodyChange> {
        self.list.iter_mut().map(|(_, change)| change)
    }

    /// The filters, in order, each with its plugin's name.
    pub fn filters_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Box<dyn BodyFilter>)> {
        self.list.iter_mut().filter_map(|(plugin, change)| match change {
            BodyChange::Filter(filter) => Some((*plugin, filter)),
            BodyChange::Replace(_) => None,
        })
    }

    /// Removes all changes, and keeps some memory.
    pub fn clear(&mut self) {
        /// Larger buffers are freed.
        const KEPT_BYTES_MAX: usize = 64 * 1024;
        for (_, change) in self.list.drain(..) {
            if let BodyChange::Replace(mut bytes) = change
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
