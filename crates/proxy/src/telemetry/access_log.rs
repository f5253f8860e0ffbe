//! The workers' half of the access log: lines are formatted into chunks and handed to the writer thread.
//!
//! A worker owns its [`Sink`], so recording takes no lock; a full chunk goes through a bounded channel and comes back empty through
//! another one, so nothing is allocated in the steady state. If the writer does not keep up (a full disk, a slow pipe) it runs out
//! of empty chunks: the line is dropped and counted, and the request does not wait. Writing to files is not done here; the control
//! side takes the [`Drain`] to a thread of its own.
//!
//! ```text
//!  worker 0: Sink ──chunk──┐                  ┌── writer thread: Drain
//!  worker 1: Sink ──chunk──┴─▶ one channel ──▶┤
//!      ▲                                      └──▶ destination
//!      └──────── empty chunks, a channel per worker ◀── give_back
//! ```

mod line;

use crate::random;
use line::LineLayout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use stillgate_config::{AccessFormat, AccessValue};
pub use stillgate_plugin_api::record::rfc3339;
pub use stillgate_plugin_api::record::written::VALUE_BYTES_MAX;
use stillgate_plugin_api::record::{Record, RecordScratch};
use stillgate_route::HeaderName;
use stillgate_wire::ResponseHead;

/// Capacity of a chunk, the unit in which lines travel.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// A chunk this full is sent; the rest is room for the line that crosses the mark.
const CHUNK_SEND_BYTES: usize = CHUNK_BYTES - 4 * 1024;

/// Chunks of one worker: 2 MiB, about a tenth of a second of lines at 100,000 requests a second.
pub const CHUNKS_PER_WORKER: usize = 32;

/// What a line contains.
pub(crate) struct LogLine<'a> {
    pub(crate) record: Record<'a>,
    /// Fields noted from the response's header; `None`: there is no response.
    pub(crate) fields: Option<&'a ResponseFields>,
}

/// Makes the two halves for this many workers; the sinks are in the workers' order.
pub fn channel(format: &AccessFormat, workers: usize) -> (Vec<Sink>, Drain) {
    // All existing chunks fit into it at once: sending can fail only if the writer is gone.
    let (filled, chunks) = sync_channel(workers * CHUNKS_PER_WORKER);
    let dropped = Arc::new(AtomicU64::new(0));
    let (layout, wanted) = (LineLayout::new(format), WantedFields::new(format));
    let mut sinks = Vec::with_capacity(workers);
    let mut empties = Vec::with_capacity(workers);
    for worker in 0..workers {
        let (give_back, empty) = sync_channel(CHUNKS_PER_WORKER);
        for _ in 0..CHUNKS_PER_WORKER {
            give_back.try_send(Vec::with_capacity(CHUNK_BYTES)).expect("the channel was made for exactly these");
        }
        empties.push(give_back);
        sinks.push(Sink {
            worker,
            layout: layout.clone(),
            wanted: wanted.clone(),
            scratch: RecordScratch::new([random::number(), random::number()]),
            current: Vec::new(),
            lines: 0,
            filled: filled.clone(),
            empty,
            dropped: dropped.clone(),
        });
    }
    let drain = Drain { chunks, empties, dropped };
    (sinks, drain)
}

/// A worker's end. Dropping it hands over the remaining lines.
pub struct Sink {
    worker: usize,
    layout: LineLayout,
    wanted: WantedFields,
    scratch: RecordScratch,
    /// The chunk being filled; without capacity while the worker holds none.
    current: Vec<u8>,
    /// Lines in `current`.
    lines: u64,
    filled: SyncSender<Chunk>,
    empty: Receiver<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

impl Sink {
    /// Which header fields of responses the lines show.
    pub(crate) fn wanted(&self) -> &WantedFields {
        &self.wanted
    }

    /// Adds one line, or drops and counts it where no chunk is free. Never blocks.
    pub(crate) fn record(&mut self, line: &LogLine<'_>) {
        if self.current.capacity() == 0 {
            match self.empty.try_recv() {
                Ok(chunk) => self.current = chunk,
                Err(_) => {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
        self.layout.push(line, &mut self.scratch, &mut self.current);
        self.lines += 1;
        if self.current.len() >= CHUNK_SEND_BYTES {
            self.flush();
        }
    }

    /// Hands what there is to the writer; called on the worker's tick so that lines of a quiet hour appear, too.
    pub fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        let chunk = Chunk {
            worker: self.worker,
            bytes: std::mem::take(&mut self.current),
            lines: std::mem::take(&mut self.lines),
        };
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) = self.filled.try_send(chunk) {
            self.dropped.fetch_add(lost.lines, Ordering::Relaxed);
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Whole lines of one worker, on their way to the writer.
pub struct Chunk {
    worker: usize,
    /// The lines, each with its newline.
    pub bytes: Vec<u8>,
    /// How many lines there are.
    pub lines: u64,
}

/// What [`Drain::next`] found.
pub enum DrainResult {
    /// Lines to be written; to be returned by [`Drain::return_chunk`].
    Chunk(Chunk),
    /// Nothing arrived in time.
    Quiet,
    /// All workers have ended and everything was received.
    Ended,
}

/// The writer's end.
pub struct Drain {
    chunks: Receiver<Chunk>,
    empties: Vec<SyncSender<Vec<u8>>>,
    dropped: Arc<AtomicU64>,
}

impl Drain {
    /// Waits at most this long for lines.
    pub fn next(&mut self, at_most: Duration) -> DrainResult {
        match self.chunks.recv_timeout(at_most) {
            Ok(chunk) => DrainResult::Chunk(chunk),
            Err(RecvTimeoutError::Timeout) => DrainResult::Quiet,
            Err(RecvTimeoutError::Disconnected) => DrainResult::Ended,
        }
    }

    /// Returns a chunk to the worker it came from.
    pub fn return_chunk(&mut self, chunk: Chunk) {
        let mut bytes = chunk.bytes;
        bytes.clear();
        // A line of many long values may have grown it; memory returns to its initial size.
        bytes.shrink_to(CHUNK_BYTES);
        // The worker may have ended, and then the chunk is freed. The channel is never full: every chunk has its place in it.
        let _ = self.empties[chunk.worker].try_send(bytes);
    }

    /// The count of lines that were dropped by a worker, or lost by the writer, which adds to it.
    pub fn dropped_lines(&self) -> Arc<AtomicU64> {
        self.dropped.clone()
    }
}

// Header fields of responses that the access log shows.
//
// When a line is written, its response is out and its memory is in other use. So the values that some field of the log needs are
// noted when the head passes; if none does, nothing is.

/// The side whose response it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseSide {
    /// The response as sent to the client.
    Sent,
    /// The response as received from the node.
    Node,
}

/// The fields that the log needs, in the order in which they are in a line.
#[derive(Debug, Clone, Default)]
pub(crate) struct WantedFields(Box<[(ResponseSide, HeaderName)]>);

/// Their values in one response, in the same order. Its memory is reused from request to request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResponseFields {
    text: Vec<u8>,
    /// Their positions in `text`; `None`: the response has no such field. Empty: none has been noted.
    values: Vec<Option<(usize, usize)>>,
}

impl WantedFields {
    pub(crate) fn new(format: &AccessFormat) -> WantedFields {
        let AccessFormat::Json(fields) = format else { return WantedFields::default() };
        let wanted = fields.iter().filter_map(|field| match &field.value {
            AccessValue::SentHeader(name) => Some((ResponseSide::Sent, name.clone())),
            AccessValue::UpstreamHeader(name) => Some((ResponseSide::Node, name.clone())),
            _ => None,
        });
        WantedFields(wanted.collect())
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ResponseFields {
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.values.clear();
    }

    /// Notes the fields of a node's response, and of the head that we have made of it for the client.
    #[inline]
    pub(crate) fn note_response(&mut self, wanted: &WantedFields, response: &ResponseHead, head: &[u8], sent: &[u8]) {
        if !wanted.is_empty() {
            let fields = response.fields.iter().map(|field| (field.name.of(head), field.value.of(head)));
            self.note(wanted, ResponseSide::Node, fields);
            self.note(wanted, ResponseSide::Sent, fields_of(sent));
        }
    }

    /// Notes the fields of an answer of our own.
    pub(crate) fn note_answer(&mut self, wanted: &WantedFields, sent: &[u8]) {
        if !wanted.is_empty() {
            self.note(wanted, ResponseSide::Sent, fields_of(sent));
        }
    }

    /// Notes the wanted fields of a response, replacing what was noted for that side before.
    fn note<'a>(
        &mut self,
        wanted: &WantedFields,
        side: ResponseSide,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) {
        self.values.resize(wanted.0.len(), None);
        for (slot, (_, name)) in wanted.0.iter().enumerate().filter(|(_, (of, _))| *of == side) {
            let start = self.text.len();
            let mut values = fields.clone().filter(|(field, _)| name.matches(field)).map(|(_, value)| value);
            self.values[slot] = values.next().map(|first| {
                self.text.extend_from_slice(first);
                for value in values {
                    self.text.extend_from_slice(b", ");
                    self.text.extend_from_slice(value);
                }
                (start, self.text.len())
            });
        }
    }

    /// The value of the `slot`th field in a line.
    pub(crate) fn get(&self, slot: usize) -> Option<&[u8]> {
        let (start, end) = (*self.values.get(slot)?)?;
        self.text.get(start..end)
    }
}

/// The fields of a head that we have written ourselves.
fn fields_of(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::sync::LazyLock;
    use stillgate_plugin_api::record::{NodeTries, NodeTry, RequestId, ServingProcess};
    use stillgate_route::{Lookup, Variable};

    /// The variables of a request, by name.
    pub(super) struct Vars<'v>(pub(super) Vec<(&'v str, &'v [u8])>);

    impl Lookup for Vars<'_> {
        fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            let asked = variable.to_string();
            self.0.iter().find(|(name, _)| *name == asked).map(|(_, value)| *value)
        }

        fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    }

    pub(super) const SEED: [u64; 2] = [1, 2];

    static PROCESS: LazyLock<ServingProcess> = LazyLock::new(ServingProcess::default);

    pub(super) static NO_TRIES: LazyLock<NodeTries> = LazyLock::new(NodeTries::default);

    /// One node that was connected to and answered.
    static ONE_TRY: LazyLock<NodeTries> = LazyLock::new(|| {
        let mut tries = NodeTries::default();
        tries.push(NodeTry { node: SocketAddr::from(([10, 0, 0, 1], 8080)), status: 200, connect_us: Some(345) });
        tries
    });

    /// A request that went well.
    pub(super) fn record<'a>(vars: &'a Vars<'a>) -> Record<'a> {
        Record {
            end_unix_ms: 1_795_220_833_042,
            status: 200,
            bytes_sent: 1234,
            body_bytes_sent: 1000,
            bytes_received: 78,
            request_time_us: 1_002_003,
            upstream_time_us: Some(999),
            asked_us: Some(1),
            node_time_us: Some(1_000),
            tries: &ONE_TRY,
            route_id: Some("orders"),
            service_id: Some("shop"),
            method: b"GET",
            target: b"/orders/7?a=b",
            version: "HTTP/1.1",
            client: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
            vars,
            trace: None,
            id: Box::leak(Box::new(RequestId::new())),
            given_id: b"",
            process: &PROCESS,
        }
    }

    /// Its line, without header fields.
    pub(super) fn line_of(record: Record<'_>) -> LogLine<'_> {
        LogLine { record, fields: None }
    }

    fn lines_of(next: DrainResult) -> u64 {
        match next {
            DrainResult::Chunk(chunk) => chunk.lines,
            DrainResult::Quiet => panic!("nothing came"),
            DrainResult::Ended => panic!("ended"),
        }
    }

    #[test]
    fn a_line_appears_after_a_flush_and_at_the_end() {
        let (mut sinks, mut drain) = channel(&AccessFormat::Combined, 2);
        let vars = Vars(vec![]);
        sinks[0].record(&line_of(record(&vars)));
        assert!(matches!(drain.next(Duration::ZERO), DrainResult::Quiet));
        sinks[0].flush();
        sinks[0].flush();
        assert_eq!(lines_of(drain.next(Duration::ZERO)), 1);
        sinks[1].record(&line_of(record(&vars)));
        sinks[1].record(&line_of(record(&vars)));
        drop(sinks);
        assert_eq!(lines_of(drain.next(Duration::ZERO)), 2);
        assert!(matches!(drain.next(Duration::ZERO), DrainResult::Ended));
    }

    #[test]
    fn a_writer_that_stalls_costs_counted_lines_only() {
        let (mut sinks, mut drain) = channel(&AccessFormat::Combined, 1);
        let vars = Vars(vec![]);
        let dropped = drain.dropped_lines();
        let mut recorded = 0;
        while dropped.load(Ordering::Relaxed) < 10 {
            sinks[0].record(&line_of(record(&vars)));
            recorded += 1;
        }
        let mut written = 0;
        let mut chunks = 0;
        while let DrainResult::Chunk(chunk) = drain.next(Duration::ZERO) {
            assert_eq!(chunk.bytes.capacity(), CHUNK_BYTES);
            assert_eq!(chunk.bytes.iter().filter(|&&byte| byte == b'\n').count() as u64, chunk.lines);
            written += chunk.lines;
            chunks += 1;
            drain.return_chunk(chunk);
        }
        assert_eq!(chunks, CHUNKS_PER_WORKER);
        assert_eq!(written + 10, recorded);

        sinks[0].record(&line_of(record(&vars)));
        sinks[0].flush();
        assert_eq!(lines_of(drain.next(Duration::ZERO)), 1);
        assert_eq!(dropped.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn lines_without_a_writer_are_counted() {
        let (mut sinks, drain) = channel(&AccessFormat::Combined, 1);
        let dropped = drain.dropped_lines();
        drop(drain);
        let vars = Vars(vec![]);
        sinks[0].record(&line_of(record(&vars)));
        drop(sinks);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}

#[cfg(test)]
mod response_fields_tests {
    use super::*;
    use stillgate_config::AccessField;

    #[test]
    fn the_values_of_a_response() {
        let name = |name: &str| HeaderName::from_variable(name).unwrap();
        let values = [
            AccessValue::SentHeader(name("x_a")),
            AccessValue::Status,
            AccessValue::UpstreamHeader(name("x_a")),
            AccessValue::SentHeader(name("set_cookie")),
            AccessValue::SentHeader(name("none")),
        ];
        let field = |value: AccessValue| AccessField { name: String::new(), value };
        let wanted = WantedFields::new(&AccessFormat::Json(values.into_iter().map(field).collect()));
        let mut noted = ResponseFields::default();
        let shown = |noted: &ResponseFields| -> Vec<Option<String>> {
            (0..4).map(|slot| noted.get(slot).map(|value| String::from_utf8(value.to_vec()).unwrap())).collect()
        };
        assert_eq!(shown(&noted), [None, None, None, None]);
        noted.note(&wanted, ResponseSide::Node, [(&b"X-a"[..], &b"node"[..])].into_iter());
        let head = b"HTTP/1.1 200 OK: yes\r\nX-A:  us \r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\n";
        noted.note(&wanted, ResponseSide::Sent, fields_of(head));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(shown(&noted), [some("us"), some("node"), some("a=1, b=2"), None]);
        noted.note(&wanted, ResponseSide::Sent, fields_of(b"HTTP/1.1 502 Bad Gateway\r\nx-a: again\r\n\r\n"));
        assert_eq!(shown(&noted), [some("again"), some("node"), None, None]);
        noted.clear();
        assert_eq!(shown(&noted), [None, None, None, None]);
    }
}
