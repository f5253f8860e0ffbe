//! `brotli`: its encoder takes too long for a worker: 0.3 ms for 16 KiB at the default level, 17 ms at the highest.
//!
//! So the work is done on a thread that does not serve requests, a block at a time, and the body continues when the
//! block is done. Only short bodies are coded at once.

use super::filter::ReservedMemory;
use super::policy::{HTTP_VERSION, HttpVersion, Policy, Types, TypesKind};
use stillgate_brotli::{Encoder, Params, Then};
use stillgate_plugin_api::work::{Output, Work};
use stillgate_plugin_api::{BodyError, BodyFilter, Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::{Choice, Flag, int, object};

object! {
    /// Compresses responses with brotli.
    pub(crate) struct BrotliKeys {
        /// Media types of responses that are compressed, without parameters; or `*`: all.
        types: Types = TypesKind => default(Types::default());
        /// Shortest body that is compressed. One of unknown length is compressed.
        min_length: u64 = int(1, i64::MAX) => default(20);
        /// The type of content: 0: any, 1: text in UTF-8, 2: fonts (WOFF 2.0).
        mode: u8 = int(0, 2) => default(0);
        /// From 0, the fastest, to 11, the smallest. 7, 8 and 9 count as 6, which makes bodies as small in less time and
        /// memory.
        comp_level: u8 = int(0, 11) => default(6);
        /// How far back matches reach, as a power of two; 0: the least. Above 20 counts as 20.
        lgwin: u8 = WINDOW => default(19);
        /// Size of a block that is processed at once, as a power of two; 0: 16. Above 18 counts as 18, and at levels 10
        /// and 11 as 16.
        lgblock: u8 = BLOCK => default(0);
        /// Lowest version of HTTP of requests whose responses are compressed.
        http_version: HttpVersion = HTTP_VERSION => default(HttpVersion::Http11);
        /// Whether `Vary: Accept-Encoding` is added to responses that are compressed for clients that accept it.
        vary: bool = Flag => default(false);
    }
}

const WINDOW: Choice<u8> = Choice {
    words: &[
        ("0", 0),
        ("10", 10),
        ("11", 11),
        ("12", 12),
        ("13", 13),
        ("14", 14),
        ("15", 15),
        ("16", 16),
        ("17", 17),
        ("18", 18),
        ("19", 19),
        ("20", 20),
        ("21", 21),
        ("22", 22),
        ("23", 23),
        ("24", 24),
    ],
    unbuilt: &[],
};

const BLOCK: Choice<u8> = Choice {
    words: &[
        ("0", 0),
        ("16", 16),
        ("17", 17),
        ("18", 18),
        ("19", 19),
        ("20", 20),
        ("21", 21),
        ("22", 22),
        ("23", 23),
        ("24", 24),
    ],
    unbuilt: &[],
};

/// The plugin.
pub(crate) struct Brotli {
    policy: Policy,
    params: Params,
}

impl Define for Brotli {
    type Keys = BrotliKeys;
    const NAME: &'static str = "brotli";
    const PRIORITY: i32 = 996;
    const PHASES: Phases = Phases::of(&[Phase::BodyFilter]);

    fn compile(keys: BrotliKeys, _: &mut Compile<'_>) -> Option<Brotli> {
        let quality = if (7..=9).contains(&keys.comp_level) { 6 } else { keys.comp_level };
        let lgwin = keys.lgwin.clamp(LGWIN_MIN, LGWIN_MAX);
        // A block never exceeds the window.
        let most = if quality < 10 { LGBLOCK_MAX.min(lgwin) } else { LGBLOCK_MIN };
        let lgblock = keys.lgblock.clamp(LGBLOCK_MIN, most.max(LGBLOCK_MIN));
        let params = Params { mode: keys.mode, quality, lgwin, lgblock };
        Some(Brotli {
            policy: Policy {
                coding: "br",
                types: keys.types,
                min_length: keys.min_length,
                http_version: keys.http_version,
                vary: keys.vary,
                is_strict: false,
            },
            params,
        })
    }
}

/// Smallest and largest window, as powers of two. The format allows up to 24; a window is held twice.
const LGWIN_MIN: u8 = 10;
const LGWIN_MAX: u8 = 20;
/// Short bodies do not reduce the window below this: at levels 5 to 9 the encoder has other tables for smaller ones,
/// which take twice the time.
const LGWIN_SHORT_MIN: u8 = 17;
/// Smallest and largest block. The format allows up to 24, for which the encoder takes ten times as much, and 70 times
/// at levels 10 and 11.
const LGBLOCK_MIN: u8 = 16;
const LGBLOCK_MAX: u8 = 18;

impl Plugin for Brotli {
    fn phases(&self) -> Phases {
        Self::PHASES
    }

    fn codes_content(&self) -> bool {
        true
    }

    fn code_content(&self, response: &mut Response<'_>) {
        let mut params = self.params;
        // A window larger than the body wastes memory.
        if let Some(length) = response.length.filter(|_| response.body.is_empty()) {
            let needed = (u64::BITS - length.leading_zeros()) as u8;
            params.lgwin = params.lgwin.min(needed.max(LGWIN_SHORT_MIN));
        }
        let mut reserved = None;
        let begins = self.policy.begin(response, || {
            reserved = ReservedMemory::take(params.bytes_max());
            reserved.is_some()
        });
        if let Some(reserved) = reserved.filter(|_| begins) {
            response.body.filter(Box::new(BrotliFilter::new(params, reserved)));
        }
    }
}

/// Size of a block for the encoder.
const BLOCK_BYTES: usize = 64 * 1024;

/// Longest body that is coded by the worker: it takes less than 100 µs (`docs/benchmarks.md`).
fn short_bytes_max(quality: u8) -> usize {
    match quality {
        ..=1 => 16 * 1024,
        2..=4 => 8 * 1024,
        5..=9 => 4 * 1024,
        _ => 0,
    }
}

/// The result from the thread: the encoder, unless the body has ended, and its output.
type BlockResult = Option<(Option<Encoder>, Vec<u8>)>;

struct BrotliFilter {
    params: Params,
    /// `None`: not created yet, at work, or done.
    encoder: Option<Encoder>,
    /// Bytes that the encoder has not got yet.
    pending: Vec<u8>,
    then: Then,
    /// Bytes were given since the last flush.
    is_dirty: bool,
    reserved: Option<ReservedMemory>,
    held_bytes: usize,
}

impl BrotliFilter {
    fn new(params: Params, reserved: ReservedMemory) -> BrotliFilter {
        let held_bytes = params.bytes_max();
        let reserved = Some(reserved);
        BrotliFilter {
            params,
            encoder: None,
            pending: Vec::new(),
            then: Then::More,
            is_dirty: false,
            reserved,
            held_bytes,
        }
    }

    fn release(&mut self) {
        self.reserved = None;
        self.held_bytes = 0;
    }
}

/// Passes a block to the encoder, or to a new one.
fn code(encoder: Option<Encoder>, params: Params, block: &[u8], then: Then) -> BlockResult {
    let mut encoder = encoder.or_else(|| Encoder::new(params))?;
    let mut out = Vec::new();
    encoder.code(block, then, &mut out)?;
    Some(((then != Then::End).then_some(encoder), out))
}

impl BodyFilter for BrotliFilter {
    fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
        self.is_dirty |= !piece.is_empty();
        self.pending.extend_from_slice(piece);
        Ok(())
    }

    fn pause(&mut self, _: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.is_dirty {
            self.then = Then::Flush;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.encoder.is_none() && self.pending.len() <= short_bytes_max(self.params.quality) {
            let (_, coded) = code(None, self.params, &self.pending, Then::End).ok_or(BodyError::Failed)?;
            out.extend_from_slice(&coded);
            self.pending = Vec::new();
            self.release();
        } else {
            self.then = Then::End;
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes + self.pending.capacity()
    }

    fn work(&mut self) -> Option<Work> {
        if self.then == Then::More && self.pending.len() < BLOCK_BYTES {
            return None;
        }
        let (encoder, params) = (self.encoder.take(), self.params);
        let block = std::mem::take(&mut self.pending);
        let then = std::mem::replace(&mut self.then, Then::More);
        self.is_dirty &= then == Then::More;
        Some(Box::new(move || -> Output { Box::new(code(encoder, params, &block, then)) }))
    }

    fn on_work_done(&mut self, result: Output, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let coded = result.downcast::<BlockResult>().ok().and_then(|coded| *coded);
        let (encoder, coded) = coded.ok_or(BodyError::Failed)?;
        out.extend_from_slice(&coded);
        self.encoder = encoder;
        if self.encoder.is_none() {
            self.release();
        }
        Ok(())
    }

    fn is_of_bounded_cost(&self) -> bool {
        true
    }
}
