//! `gzip`

use super::filter::{self, Encoder, IdleEncoders};
use super::policy::{HTTP_VERSION, HttpVersion, Policy, Types, TypesKind};
use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress, Status};
use libdeflater::{CompressionLvl, Compressor};
use stillgate_plugin_api::{BodyError, Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::{Flag, int, map, object};

object! {
    /// Compresses responses with gzip.
    pub(crate) struct GzipKeys {
        /// Media types of responses that are compressed, without parameters; or `*`: all.
        types: Types = TypesKind => default(Types::default());
        /// Shortest body that is compressed. One of unknown length is compressed.
        min_length: u64 = int(1, i64::MAX) => default(20);
        /// From 1, the fastest, to 9, the smallest.
        comp_level: u32 = int(1, 9) => default(1);
        /// Lowest version of HTTP of requests whose responses are compressed.
        http_version: HttpVersion = HTTP_VERSION => default(HttpVersion::Http11);
        /// No effect: compressed bytes are sent at once.
        buffers: BuffersKeys = map() => nested;
        /// Whether `Vary: Accept-Encoding` is added to responses that are compressed for clients that accept it.
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
    const PHASES: Phases = Phases::of(&[Phase::BodyFilter]);

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
            level: keys.comp_level as i32,
            piece_bytes_max: piece_bytes_max(keys.comp_level),
        })
    }
}

impl Plugin for Gzip {
    fn phases(&self) -> Phases {
        Self::PHASES
    }

    fn codes_content(&self) -> bool {
        true
    }

    fn code_content(&self, response: &mut Response<'_>) {
        let level = self.level;
        filter::begin(&self.policy, response, ENCODER_BYTES, self.piece_bytes_max, move || {
            Some(GzipEncoder::new(level))
        });
    }
}

/// Largest piece that takes about 100 µs: 16 KiB take 60 µs at level 2, 130 µs at 6 and 200 µs at 9
/// (`docs/benchmarks.md`).
fn piece_bytes_max(comp_level: u32) -> usize {
    match comp_level {
        ..=3 => WHOLE_BYTES_MAX,
        4..=8 => 12 * 1024,
        _ => 8 * 1024,
    }
}

/// A body up to this length that comes in one piece is coded as a whole. This is the size of the pieces that filters
/// get.
const WHOLE_BYTES_MAX: usize = 16 * 1024;
/// Memory of an encoder: a window of 32 KiB twice, chains, hash table, and pending output; or the held piece.
const ENCODER_BYTES: usize = 352 * 1024;
/// Most idle encoders that a worker keeps, of each kind.
const IDLE_MAX: usize = 4;

thread_local! {
    static STREAMS: IdleEncoders<Compress> = const { IdleEncoders::new(IDLE_MAX) };
    /// For whole bodies. A worker has one for each configured level, each in use only during a call.
    static WHOLES: IdleEncoders<Compressor> = const { IdleEncoders::new(IDLE_MAX) };
}

/// The header that nginx writes: no name, no time, system Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// The format (RFC 1952) around raw deflate.
///
/// Most bodies are short and available as a whole. They are coded with libdeflate, which takes less time but cannot
/// stream; all others with zlib-rs, which can.
struct GzipEncoder {
    level: i32,
    /// The first piece, as long as it may be the whole body.
    held: Vec<u8>,
    /// `None`: only `held` has come, or it has been returned.
    stream: Option<Compress>,
    checksum: Hasher,
    has_header: bool,
}

impl GzipEncoder {
    fn new(level: i32) -> GzipEncoder {
        GzipEncoder { level, held: Vec::new(), stream: None, checksum: Hasher::new(), has_header: false }
    }

    /// Codes the held piece, which is the whole body.
    fn code_whole(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let level = CompressionLvl::new(self.level).map_err(|_| BodyError::Malformed)?;
        let mut encoder = WHOLES.with(|idle| idle.take(self.level)).unwrap_or_else(|| Compressor::new(level));
        out.extend_from_slice(&HEADER);
        let begin = out.len();
        out.resize(begin + encoder.deflate_compress_bound(self.held.len()), 0);
        let length = encoder.deflate_compress(&self.held, &mut out[begin..]).map_err(|_| BodyError::Malformed)?;
        out.truncate(begin + length);
        WHOLES.with(|idle| idle.give(self.level, encoder));
        end(out, crc32fast::hash(&self.held), self.held.len() as u64);
        Ok(())
    }

    /// Starts to stream, as the held piece is not the whole body.
    fn begin_stream(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        // Level 1 of zlib-rs is cheaper than the lowest of others, and makes bodies a quarter larger. Its level 2 is
        // smaller and cheaper than zlib's level 1.
        let level = self.level.max(2);
        let stream = STREAMS.with(|idle| idle.take(level)).map(|mut stream| {
            stream.reset();
            stream
        });
        self.stream = Some(stream.unwrap_or_else(|| Compress::new(Compression::new(level.unsigned_abs()), false)));
        let held = std::mem::take(&mut self.held);
        self.deflate(&held, FlushCompress::None, out)
    }

    fn deflate(&mut self, mut input: &[u8], flush: FlushCompress, out: &mut Vec<u8>) -> Result<(), BodyError> {
        /// Smallest free space for output.
        const ROOM_BYTES: usize = 1024;
        let begin = out.len();
        if !self.has_header {
            out.extend_from_slice(&HEADER);
        }
        let headed = out.len();
        self.checksum.update(input);
        let stream = self.stream.as_mut().ok_or(BodyError::Malformed)?;
        loop {
            out.reserve(ROOM_BYTES + input.len() / 2);
            let before = stream.total_in();
            let status = stream.compress_vec(input, out, flush).map_err(|_| BodyError::Malformed)?;
            input = &input[(stream.total_in() - before) as usize..];
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                // If space is left, no output is pending.
                _ => input.is_empty() && out.len() < out.capacity(),
            };
            if is_done {
                break;
            }
        }
        self.has_header |= out.len() > headed;
        if !self.has_header {
            // Alone it would be a write of its own.
            out.truncate(begin);
        }
        Ok(())
    }
}

/// Writes the trailer of the coded body. The length counts modulo 2^32.
fn end(out: &mut Vec<u8>, checksum: u32, length: u64) {
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(&(length as u32).to_le_bytes());
}

impl Encoder for GzipEncoder {
    fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.stream.is_none() {
            if self.held.is_empty() && piece.len() <= WHOLE_BYTES_MAX {
                self.held.extend_from_slice(piece);
                return Ok(());
            }
            self.begin_stream(out)?;
        }
        self.deflate(piece, FlushCompress::None, out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.stream.is_none() {
            self.begin_stream(out)?;
        }
        self.deflate(&[], FlushCompress::Sync, out)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.stream.is_none() {
            return self.code_whole(out);
        }
        self.deflate(&[], FlushCompress::Finish, out)?;
        let length = self.stream.as_ref().map_or(0, Compress::total_in);
        end(out, self.checksum.clone().finalize(), length);
        Ok(())
    }
}

impl Drop for GzipEncoder {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        // A thread that is ending keeps nothing.
        let _ = STREAMS.try_with(|idle| idle.give(self.level.max(2), stream));
    }
}
