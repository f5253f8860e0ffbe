//! `brotli`, whose encoder takes too long for a worker: 0.7 ms for 16 KiB at the default level, 19 ms at the highest.
//!
//! So the work is done on a thread that serves no requests, a block at a time, and the body goes on when the block is done.
//! Only the shortest bodies are coded at once.

use super::filter::Reserved;
use super::policy::{HTTP_VERSION, HttpVersion, Policy, Types, TypesKind};
use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use std::io::Write;
use stillgate_plugin::flow::{Output, Work};
use stillgate_plugin::{BodyError, BodyFilter, Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::{Choice, Flag, int, object};

object! {
    /// Compresses responses with brotli.
    pub(crate) struct BrotliKeys {
        /// Media types of responses that are compressed, without parameters; or `*`: all.
        types: Types = TypesKind => default(Types::default());
        /// Least bytes of a body that is compressed. One whose length is not known is compressed.
        min_length: u64 = int(1, i64::MAX) => default(20);
        /// What bodies are: 0: anything, 1: text in UTF-8, 2: fonts (WOFF 2.0).
        mode: u8 = int(0, 2) => default(0);
        /// From 0, the fastest, to 11, the smallest. 7, 8 and 9 count as 6, which makes bodies as small in less time and
        /// memory.
        comp_level: i32 = int(0, 11) => default(6);
        /// How far back matches reach, as a power of two; 0: the least. Above 20 counts as 20, and at levels 5 to 9 below 17 as 17.
        lgwin: i32 = WINDOW => default(19);
        /// Bytes that are looked at together, as a power of two; 0: by the level.
        lgblock: i32 = BLOCK => default(0);
        /// Lowest version of HTTP of requests whose responses are compressed.
        http_version: HttpVersion = HTTP_VERSION => default(HttpVersion::Http11);
        /// Whether `Vary: Accept-Encoding` is added to responses that are compressed for clients that take it.
        vary: bool = Flag => default(false);
    }
}

const WINDOW: Choice<i32> = Choice {
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

const BLOCK: Choice<i32> = Choice {
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
    params: BrotliEncoderParams,
}

impl Define for Brotli {
    type Keys = BrotliKeys;
    const NAME: &'static str = "brotli";
    const PRIORITY: i32 = 996;
    const PHASES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(keys: BrotliKeys, _: &mut Compile<'_>) -> Option<Brotli> {
        let mode = match keys.mode {
            1 => BrotliEncoderMode::BROTLI_MODE_TEXT,
            2 => BrotliEncoderMode::BROTLI_MODE_FONT,
            _ => BrotliEncoderMode::BROTLI_MODE_GENERIC,
        };
        let quality = if (7..=9).contains(&keys.comp_level) { 6 } else { keys.comp_level };
        let lgwin = keys.lgwin.clamp(lgwin_min(quality), LGWIN_MAX);
        // A block is never more than the window.
        let lgblock = if keys.lgblock == 0 { 0 } else { keys.lgblock.min(lgwin.max(16)) };
        let params = BrotliEncoderParams { mode, quality, lgwin, lgblock, ..BrotliEncoderParams::default() };
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

/// Least and most of a window, as powers of two. The format knows up to 24; a window is held twice.
const LGWIN_MIN: i32 = 10;
const LGWIN_MAX: i32 = 20;

/// With smaller windows at these levels, the crate takes tables of 32 MiB, which it clears for each body: it lacks the ones that are
/// meant for them.
fn lgwin_min(quality: i32) -> i32 {
    if (5..=9).contains(&quality) { 17 } else { LGWIN_MIN }
}

impl Plugin for Brotli {
    fn header_filter(&self, response: &mut Response<'_>) {
        let mut params = self.params.clone();
        // A window that is larger than the body takes memory for nothing.
        if let Some(length) = response.length.filter(|_| response.body.is_empty()) {
            let needed = (u64::BITS - length.leading_zeros()) as i32;
            params.lgwin = params.lgwin.min(needed.max(lgwin_min(params.quality)));
        }
        let mut reserved = None;
        let begins = self.policy.begin(response, || {
            reserved = Reserved::take(encoder_bytes(&params));
            reserved.is_some()
        });
        if let Some(reserved) = reserved.filter(|_| begins) {
            response.body.filter(Box::new(BrotliFilter::new(params, reserved)));
        }
    }
}

/// What an encoder takes at most: its window twice, and the tables of its level.
fn encoder_bytes(params: &BrotliEncoderParams) -> usize {
    const MIB: usize = 1024 * 1024;
    let tables = match params.quality {
        ..=4 => MIB,
        5..=9 => 3 * MIB,
        _ => 12 * MIB,
    };
    tables + (2 << params.lgwin) + BLOCK_BYTES
}

/// What is given to the encoder at once. It looks at blocks of that length.
const BLOCK_BYTES: usize = 64 * 1024;
/// Bodies up to this length take less than 100 µs at most levels, and are coded by the worker.
const SHORT_BYTES_MAX: usize = 1024;
/// Levels up to this one are that fast.
const SHORT_LEVEL_MAX: i32 = 6;

/// The encoder, which goes from the worker to the thread and back.
type Encoder = CompressorWriter<Vec<u8>>;

/// What a block is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    More,
    Flush,
    End,
}

/// What comes back from the thread: the encoder, unless the body has ended, and what it gave.
type Coded = Option<(Option<Encoder>, Vec<u8>)>;

struct BrotliFilter {
    params: BrotliEncoderParams,
    /// `None`: not made yet, at work, or done.
    encoder: Option<Encoder>,
    /// What the encoder has not been given yet.
    pending: Vec<u8>,
    then: Then,
    /// Something was given since the last flush.
    is_dirty: bool,
    reserved: Option<Reserved>,
    held_bytes: usize,
}

impl BrotliFilter {
    fn new(params: BrotliEncoderParams, reserved: Reserved) -> BrotliFilter {
        let held_bytes = encoder_bytes(&params);
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

    fn take_encoder(&mut self) -> Encoder {
        /// What goes from the encoder to its output at once.
        const BUFFER_BYTES: usize = 4096;
        let made = || CompressorWriter::with_params(Vec::new(), BUFFER_BYTES, &self.params);
        self.encoder.take().unwrap_or_else(made)
    }

    fn release(&mut self) {
        self.reserved = None;
        self.held_bytes = 0;
    }
}

/// Gives a block to the encoder.
fn code(mut encoder: Encoder, block: &[u8], then: Then) -> Coded {
    encoder.write_all(block).ok()?;
    match then {
        Then::End => Some((None, encoder.into_inner())),
        Then::Flush => {
            encoder.flush().ok()?;
            let out = std::mem::take(encoder.get_mut());
            Some((Some(encoder), out))
        }
        Then::More => {
            let out = std::mem::take(encoder.get_mut());
            Some((Some(encoder), out))
        }
    }
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
        let is_short = self.encoder.is_none() && self.pending.len() <= SHORT_BYTES_MAX;
        if is_short && self.params.quality <= SHORT_LEVEL_MAX {
            let encoder = self.take_encoder();
            let (_, coded) = code(encoder, &self.pending, Then::End).ok_or(BodyError::Malformed)?;
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
        let (encoder, block) = (self.take_encoder(), std::mem::take(&mut self.pending));
        let then = std::mem::replace(&mut self.then, Then::More);
        self.is_dirty &= then == Then::More;
        Some(Box::new(move || -> Output { Box::new(code(encoder, &block, then)) }))
    }

    fn worked(&mut self, result: Output, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let coded = result.downcast::<Coded>().ok().and_then(|coded| *coded);
        let (encoder, coded) = coded.ok_or(BodyError::Malformed)?;
        out.extend_from_slice(&coded);
        self.encoder = encoder;
        if self.encoder.is_none() {
            self.release();
        }
        Ok(())
    }
}
