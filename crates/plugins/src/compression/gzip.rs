//! `gzip`

use super::filter::{self, Encoder, Idle};
use super::policy::{HTTP_VERSION, HttpVersion, Policy, Types, TypesKind};
use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress, Status};
use stillgate_plugin::{BodyError, Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::{Flag, int, map, object};

object! {
    /// Compresses responses with gzip.
    pub(crate) struct GzipKeys {
        /// Media types of responses that are compressed, without parameters; or `*`: all.
        types: Types = TypesKind => default(Types::default());
        /// Least bytes of a body that is compressed. One whose length is not known is compressed.
        min_length: u64 = int(1, i64::MAX) => default(20);
        /// From 1, the fastest, to 9, the smallest.
        comp_level: u32 = int(1, 9) => default(1);
        /// Lowest version of HTTP of requests whose responses are compressed.
        http_version: HttpVersion = HTTP_VERSION => default(HttpVersion::Http11);
        /// No effect: what is compressed goes on at once.
        buffers: BuffersKeys = map() => nested;
        /// Whether `Vary: Accept-Encoding` is added to responses that are compressed for clients that take it.
        vary: bool = Flag => default(false);
    }
}

object! {
    /// Buffers of nginx, without effect here.
    pub(crate) struct BuffersKeys {
        /// No effect.
        number: u64 = int(1, i64::MAX) => default(32);
        /// No effect.
        size: u64 = int(1, i64::MAX) => default(4096);
    }
}

/// The plugin.
pub(crate) struct Gzip {
    policy: Policy,
    level: i32,
    piece_bytes_max: usize,
}

impl Define for Gzip {
    type Keys = GzipKeys;
    const NAME: &'static str = "gzip";
    const PRIORITY: i32 = 995;
    const PHASES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(keys: GzipKeys, _: &mut Compile<'_>) -> Option<Gzip> {
        Some(Gzip {
            policy: Policy {
                coding: "gzip",
                types: keys.types,
                min_length: keys.min_length,
                http_version: keys.http_version,
                vary: keys.vary,
                is_strict: true,
            },
            level: level_of(keys.comp_level),
            piece_bytes_max: piece_bytes_max(keys.comp_level),
        })
    }
}

impl Plugin for Gzip {
    fn header_filter(&self, response: &mut Response<'_>) {
        let level = self.level;
        filter::begin(&self.policy, response, ENCODER_BYTES, self.piece_bytes_max, move || {
            Some(GzipEncoder::begin(level))
        });
    }
}

/// What zlib-rs calls level 1 is cheaper than the least that others have, and makes bodies a quarter larger. Its level 2
/// is smaller and cheaper than zlib's level 1.
fn level_of(comp_level: u32) -> i32 {
    comp_level.clamp(2, 9) as i32
}

/// What takes about 100 µs: 16 KiB take 80 µs at level 2, 130 µs at 6 and 200 µs at 9 (`docs/benchmarks.md`).
fn piece_bytes_max(comp_level: u32) -> usize {
    match comp_level {
        ..=3 => 16 * 1024,
        4..=8 => 12 * 1024,
        _ => 8 * 1024,
    }
}

/// What an encoder takes: a window of 32 KiB twice, chains, hash table, and what is not written yet.
const ENCODER_BYTES: usize = 352 * 1024;
/// Encoders that a worker keeps for later.
const IDLE_MAX: usize = 4;

thread_local! {
    static IDLE: Idle<Compress> = const { Idle::new(IDLE_MAX) };
}

/// As nginx writes it: no name, no time, of Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// The format (RFC 1952) around raw deflate.
struct GzipEncoder {
    level: i32,
    /// `None`: it has been given back.
    deflate: Option<Compress>,
    checksum: Hasher,
    has_header: bool,
}

impl GzipEncoder {
    fn begin(level: i32) -> GzipEncoder {
        let deflate = match IDLE.with(|idle| idle.take(level)) {
            Some(mut deflate) => {
                deflate.reset();
                deflate
            }
            None => Compress::new(Compression::new(level.unsigned_abs()), false),
        };
        GzipEncoder { level, deflate: Some(deflate), checksum: Hasher::new(), has_header: false }
    }

    fn deflate(&mut self, mut input: &[u8], flush: FlushCompress, out: &mut Vec<u8>) -> Result<(), BodyError> {
        /// Least room for what comes.
        const ROOM_BYTES: usize = 1024;
        if !self.has_header {
            out.extend_from_slice(&HEADER);
            self.has_header = true;
        }
        self.checksum.update(input);
        let deflate = self.deflate.as_mut().ok_or(BodyError::Malformed)?;
        loop {
            out.reserve(ROOM_BYTES + input.len() / 2);
            let before = deflate.total_in();
            let status = deflate.compress_vec(input, out, flush).map_err(|_| BodyError::Malformed)?;
            input = &input[(deflate.total_in() - before) as usize..];
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                // With room left, nothing waits for it.
                _ => input.is_empty() && out.len() < out.capacity(),
            };
            if is_done {
                return Ok(());
            }
        }
    }
}

impl Encoder for GzipEncoder {
    fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.deflate(piece, FlushCompress::None, out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.deflate(&[], FlushCompress::Sync, out)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.deflate(&[], FlushCompress::Finish, out)?;
        let length = self.deflate.as_ref().map_or(0, Compress::total_in);
        out.extend_from_slice(&self.checksum.clone().finalize().to_le_bytes());
        // Modulo 2^32, as the format has it.
        out.extend_from_slice(&(length as u32).to_le_bytes());
        Ok(())
    }
}

impl Drop for GzipEncoder {
    fn drop(&mut self) {
        let Some(deflate) = self.deflate.take() else { return };
        // A thread that ends keeps nothing.
        let _ = IDLE.try_with(|idle| idle.give(self.level, deflate));
    }
}
