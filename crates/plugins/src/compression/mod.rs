//! `gzip`, `brotli` and `zstd`: compress responses for clients that accept it.
//!
//! All three compress the same responses ([`Policy`]); only the encoders differ. The bytes of a body are sent as soon
//! as possible, behind all other filters: an encoder is flushed when the node has no more for now, so that a response
//! is never held back for its coding.

mod brotli;
mod filter;
mod gzip;
mod policy;

pub(crate) use brotli::Brotli;
use filter::{Encoder, IdleEncoders};
pub(crate) use gzip::Gzip;
use policy::{HTTP_VERSION, HttpVersion, Policy, Types, TypesKind};
use stillgate_plugin_api::{BodyError, Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::{Flag, int, object};
use zstd_safe::zstd_sys::ZSTD_EndDirective as Directive;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

// `zstd`, which APISIX does not have (RFC 8878): at its default level about as small as gzip at 6, at half the CPU of gzip at 1.

object! {
    /// Compresses responses with zstd.
    pub(crate) struct ZstdKeys {
        /// Media types of responses that are compressed, without parameters; or `*`: all.
        types: Types = TypesKind => default(Types::default());
        /// Shortest body that is compressed. One of unknown length is compressed.
        min_length: u64 = int(1, i64::MAX) => default(20);
        /// From 1, the fastest, to 9, the smallest.
        comp_level: i32 = int(1, 9) => default(3);
        /// Lowest version of HTTP of requests whose responses are compressed.
        http_version: HttpVersion = HTTP_VERSION => default(HttpVersion::Http11);
        /// Whether `Vary: Accept-Encoding` is added to responses that are compressed for clients that accept it.
        vary: bool = Flag => default(false);
    }
}

/// The plugin.
pub(crate) struct Zstd {
    policy: Policy,
    level: i32,
    piece_bytes_max: usize,
}

impl Define for Zstd {
    type Keys = ZstdKeys;
    const NAME: &'static str = "zstd";
    /// Before brotli (996) and gzip (995): for equal weights the first one is used.
    const PRIORITY: i32 = 997;
    const PHASES: Phases = Phases::of(&[Phase::BodyFilter]);

    fn compile(keys: ZstdKeys, _: &mut Compile<'_>) -> Option<Zstd> {
        Some(Zstd {
            policy: Policy {
                coding: "zstd",
                types: keys.types,
                min_length: keys.min_length,
                http_version: keys.http_version,
                vary: keys.vary,
                is_strict: false,
            },
            level: keys.comp_level,
            piece_bytes_max: piece_bytes_max(keys.comp_level),
        })
    }
}

impl Plugin for Zstd {
    fn phases(&self) -> Phases {
        Self::PHASES
    }

    fn codes_content(&self) -> bool {
        true
    }

    fn code_content(&self, response: &mut Response<'_>) {
        let level = self.level;
        filter::begin(&self.policy, response, ENCODER_BYTES, self.piece_bytes_max, move || ZstdEncoder::begin(level));
    }
}

/// Largest piece that takes about 100 µs: 16 KiB take 55 µs at level 3, 110 µs at 5 and 380 µs at 9
/// (`docs/benchmarks.md`).
fn piece_bytes_max(level: i32) -> usize {
    match level {
        ..=4 => 16 * 1024,
        5..=6 => 8 * 1024,
        _ => 4 * 1024,
    }
}

/// Longest distance of matches, as a power of two. Every client accepts it (RFC 9659 allows 8 MiB), and it bounds the
/// memory.
const WINDOW_LOG: u32 = 18;
/// Most memory of an encoder with that window: its tables, the window, and pending output.
const ENCODER_BYTES: usize = 3 * 1024 * 1024;
/// Most idle encoders that a worker keeps.
const IDLE_MAX: usize = 2;

thread_local! {
    static IDLE: IdleEncoders<CCtx<'static>> = const { IdleEncoders::new(IDLE_MAX) };
}

struct ZstdEncoder {
    level: i32,
    /// `None`: it has been returned.
    context: Option<CCtx<'static>>,
}

impl ZstdEncoder {
    /// `None`: memory has run out.
    fn begin(level: i32) -> Option<ZstdEncoder> {
        let context = match IDLE.with(|idle| idle.take(level)) {
            Some(mut context) => {
                context.reset(ResetDirective::SessionOnly).ok()?;
                context
            }
            None => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
                context.set_parameter(CParameter::WindowLog(WINDOW_LOG)).ok()?;
                context
            }
        };
        Some(ZstdEncoder { level, context: Some(context) })
    }

    fn run(&mut self, input: &[u8], directive: Directive, out: &mut Vec<u8>) -> Result<(), BodyError> {
        /// Smallest free space for output.
        const ROOM_BYTES: usize = 1024;
        let context = self.context.as_mut().ok_or(BodyError::Malformed)?;
        let mut input = InBuffer::around(input);
        loop {
            out.reserve(ROOM_BYTES + (input.src.len() - input.pos()) / 2);
            let written = out.len();
            let mut output = OutBuffer::around_pos(out, written);
            let left = context.compress_stream2(&mut output, &mut input, directive);
            let left = left.map_err(|_| BodyError::Malformed)?;
            let is_done = match directive {
                Directive::ZSTD_e_continue => input.pos() == input.src.len(),
                _ => left == 0,
            };
            if is_done {
                return Ok(());
            }
        }
    }
}

impl Encoder for ZstdEncoder {
    fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.run(piece, Directive::ZSTD_e_continue, out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.run(&[], Directive::ZSTD_e_flush, out)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.run(&[], Directive::ZSTD_e_end, out)
    }
}

impl Drop for ZstdEncoder {
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        // A thread that is ending keeps nothing.
        let _ = IDLE.try_with(|idle| idle.give(self.level, context));
    }
}
