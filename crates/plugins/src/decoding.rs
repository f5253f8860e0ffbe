//! Decodes the Content-Encoding of a body piece by piece, into a bounded buffer: a small body can become a large one.

use brotli_decompressor::{Allocator, BrotliDecompressStream, BrotliResult, BrotliState, SliceWrapper, StandardAlloc};
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use stillgate_plugin_api::BodyError;

/// Most coded bytes that are decoded at once when streaming: with gzip and deflate the output is at most about a
/// thousand times as long. With brotli its length is not limited, so [`STEP_BYTES`] cuts it.
const CODED_BYTES: usize = 512;
/// Approximate length of brotli's output in one step.
const STEP_BYTES: usize = 64 * 1024;
/// Longest output of one piece when streaming.
pub(crate) const PLAIN_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest piece for [`Decoder::stream`]: more could be too much work for a worker at once.
pub(crate) const STREAMED_BYTES: usize = 2 * CODED_BYTES;

/// The coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyCoding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    /// A coding that cannot be decoded, or several codings.
    Unknown,
}

impl BodyCoding {
    /// The coding for a value of `Content-Encoding`.
    pub(crate) fn of(coding: Option<&[u8]>) -> BodyCoding {
        let is = |name: &str| coding.is_some_and(|coding| coding.eq_ignore_ascii_case(name.as_bytes()));
        match coding {
            None | Some(b"") => BodyCoding::Identity,
            _ if is("identity") => BodyCoding::Identity,
            _ if is("gzip") || is("x-gzip") => BodyCoding::Gzip,
            _ if is("deflate") => BodyCoding::Deflate,
            _ if is("br") => BodyCoding::Brotli,
            _ => BodyCoding::Unknown,
        }
    }
}

/// Takes a coded body, and holds the decoded one.
pub(crate) struct Decoder(DecoderState);

enum DecoderState {
    Identity(BoundedBuffer),
    Gzip(MultiGzDecoder<BoundedBuffer>),
    /// The first bytes show whether there is a zlib header, as RFC 9110 section 8.4.1.2 requires, or none, as some
    /// servers do.
    Unsettled {
        first: Option<u8>,
        out: BoundedBuffer,
    },
    Deflate(Inflate),
    Brotli(Box<Brotli>),
    Unknown,
    /// Nothing of a coded body has come yet: an empty one is complete.
    Empty(BodyCoding, BoundedBuffer),
}

impl Decoder {
    pub(crate) fn new(decoding: BodyCoding, bytes_max: usize) -> Decoder {
        let out = BoundedBuffer { bytes: Vec::new(), bytes_max };
        Decoder(match decoding {
            BodyCoding::Identity => DecoderState::Identity(out),
            BodyCoding::Unknown => DecoderState::Unknown,
            other => DecoderState::Empty(other, out),
        })
    }

    /// Takes the next piece.
    pub(crate) fn piece(&mut self, piece: &[u8]) -> Result<(), BodyError> {
        if piece.is_empty() {
            return Ok(());
        }
        self.begin();
        let piece = self.settle(piece);
        let written = match &mut self.0 {
            DecoderState::Identity(out) => out.write_all(piece),
            DecoderState::Gzip(decoder) => decoder.write_all(piece),
            DecoderState::Deflate(inflate) => return inflate.piece(piece),
            DecoderState::Brotli(brotli) => return brotli.piece(piece),
            DecoderState::Unsettled { .. } => Ok(()),
            DecoderState::Unknown | DecoderState::Empty(..) => return Err(BodyError::Malformed),
        };
        written.map_err(|error| why(&error))
    }

    /// Takes the next piece, and passes its output to `then`, step by step, so that little of it is held at once. A
    /// short piece is refused only if its output exceeds [`PLAIN_BYTES_MAX`].
    pub(crate) fn stream(
        &mut self,
        piece: &[u8],
        then: &mut dyn FnMut(&[u8]) -> Result<(), BodyError>,
    ) -> Result<(), BodyError> {
        let mut plain_bytes = 0;
        if !piece.is_empty() {
            self.begin();
        }
        for mut coded in piece.chunks(CODED_BYTES) {
            loop {
                let is_full = match &mut self.0 {
                    DecoderState::Brotli(brotli) => brotli.step(&mut coded, STEP_BYTES)?,
                    _ => {
                        self.piece(std::mem::take(&mut coded))?;
                        false
                    }
                };
                let decoded = self.take();
                plain_bytes += decoded.len();
                if plain_bytes > PLAIN_BYTES_MAX {
                    return Err(BodyError::TooLarge);
                }
                then(&decoded)?;
                if !is_full && coded.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The body has ended: returns the decoded one.
    pub(crate) fn end(&mut self) -> Result<Vec<u8>, BodyError> {
        let state = std::mem::replace(&mut self.0, DecoderState::Unknown);
        let out = match state {
            DecoderState::Identity(out) | DecoderState::Empty(_, out) => out,
            DecoderState::Gzip(decoder) => decoder.finish().map_err(|error| why(&error))?,
            DecoderState::Deflate(inflate) if inflate.has_ended => inflate.out,
            DecoderState::Brotli(brotli) if brotli.has_ended => brotli.out,
            DecoderState::Deflate(_)
            | DecoderState::Brotli(_)
            | DecoderState::Unsettled { .. }
            | DecoderState::Unknown => {
                return Err(BodyError::Malformed);
            }
        };
        Ok(out.bytes)
    }

    /// Takes the output so far, for a filter that streams.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let out = match &mut self.0 {
            DecoderState::Identity(out) | DecoderState::Empty(_, out) | DecoderState::Unsettled { out, .. } => out,
            DecoderState::Gzip(decoder) => decoder.get_mut(),
            DecoderState::Deflate(inflate) => &mut inflate.out,
            DecoderState::Brotli(brotli) => &mut brotli.out,
            DecoderState::Unknown => return Vec::new(),
        };
        std::mem::take(&mut out.bytes)
    }

    /// Bytes held, including the decoder's memory.
    pub(crate) fn held_bytes(&self) -> usize {
        let (out, own) = match &self.0 {
            DecoderState::Identity(out) | DecoderState::Empty(_, out) | DecoderState::Unsettled { out, .. } => (out, 0),
            DecoderState::Gzip(decoder) => (decoder.get_ref(), INFLATE_BYTES),
            DecoderState::Deflate(inflate) => (&inflate.out, INFLATE_BYTES),
            DecoderState::Brotli(brotli) => (&brotli.out, brotli.memory.0.get()),
            DecoderState::Unknown => return 0,
        };
        out.bytes.capacity() + own
    }

    /// Creates the decoder when there is something to decode.
    fn begin(&mut self) {
        if let DecoderState::Empty(decoding, out) = &mut self.0 {
            let out = std::mem::take(out);
            self.0 = match decoding {
                BodyCoding::Gzip => DecoderState::Gzip(MultiGzDecoder::new(out)),
                BodyCoding::Deflate => DecoderState::Unsettled { first: None, out },
                BodyCoding::Brotli => DecoderState::Brotli(Box::new(Brotli::new(out))),
                BodyCoding::Identity => DecoderState::Identity(out),
                BodyCoding::Unknown => DecoderState::Unknown,
            };
        }
    }

    /// Detects the kind of `deflate` once two bytes are available; returns the bytes still to decode.
    fn settle<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let DecoderState::Unsettled { first, out } = &mut self.0 else { return piece };
        let (one, two, rest) = match (*first, piece) {
            (None, [one]) => {
                *first = Some(*one);
                return &[];
            }
            (None, [one, two, ..]) => (*one, *two, piece),
            (Some(one), [two, ..]) => (one, *two, piece),
            (_, []) => return piece,
        };
        let has_header = one & 0x0f == 8 && (u16::from(one) << 8 | u16::from(two)).is_multiple_of(31);
        let held_back = *first;
        let mut inflate = Inflate { state: Decompress::new(has_header), out: std::mem::take(out), has_ended: false };
        if let Some(byte) = held_back {
            // Errors in it are found with the following bytes.
            let _ = inflate.piece(&[byte]);
        }
        self.0 = DecoderState::Deflate(inflate);
        rest
    }
}

/// `deflate`, which marks its own end. (The writers of `flate2` accept a truncated body.)
struct Inflate {
    state: Decompress,
    out: BoundedBuffer,
    has_ended: bool,
}

impl Inflate {
    fn piece(&mut self, mut piece: &[u8]) -> Result<(), BodyError> {
        let mut decoded = [0; 8 * 1024];
        while !self.has_ended {
            let (taken, given) = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(piece, &mut decoded, FlushDecompress::None);
            let status = status.map_err(|_| BodyError::Malformed)?;
            let (taken, given) = (self.state.total_in() - taken, self.state.total_out() - given);
            self.out.write_all(&decoded[..given as usize]).map_err(|error| why(&error))?;
            piece = &piece[taken as usize..];
            self.has_ended = status == Status::StreamEnd;
            if (taken, given) == (0, 0) {
                break;
            }
        }
        // Nothing can follow the end; before it everything is consumed.
        if piece.is_empty() { Ok(()) } else { Err(BodyError::Malformed) }
    }
}

/// Memory for decoding `gzip` or `deflate`: a window of 32 KiB, tables, and an output buffer of 32 KiB.
const INFLATE_BYTES: usize = 80 * 1024;

/// `br`. The body can request a window of 16 MiB, so its memory is counted as it is allocated.
struct Brotli {
    state: BrotliState<CountingAllocator, CountingAllocator, CountingAllocator>,
    memory: CountingAllocator,
    out: BoundedBuffer,
    has_ended: bool,
}

impl Brotli {
    fn new(out: BoundedBuffer) -> Brotli {
        let memory = CountingAllocator::default();
        let state = BrotliState::new(memory.clone(), memory.clone(), memory.clone());
        Brotli { state, memory, out, has_ended: false }
    }

    fn piece(&mut self, mut piece: &[u8]) -> Result<(), BodyError> {
        self.step(&mut piece, usize::MAX).map(|_| ())
    }

    /// Decodes from a piece until about `bytes` of output; returns whether there is more output or input.
    fn step(&mut self, coded: &mut &[u8], bytes: usize) -> Result<bool, BodyError> {
        let piece = *coded;
        let (mut decoded, mut total) = ([0; 8 * 1024], 0);
        let (mut left, mut at) = (piece.len(), 0);
        while !self.has_ended {
            if self.out.bytes.len() >= bytes {
                *coded = &piece[at..];
                return Ok(true);
            }
            let (mut room, mut given) = (decoded.len(), 0);
            let result = BrotliDecompressStream(
                &mut left,
                &mut at,
                piece,
                &mut room,
                &mut given,
                &mut decoded,
                &mut total,
                &mut self.state,
            );
            self.out.write_all(&decoded[..given]).map_err(|error| why(&error))?;
            match result {
                BrotliResult::ResultSuccess => self.has_ended = true,
                BrotliResult::NeedsMoreOutput => {}
                BrotliResult::NeedsMoreInput => break,
                BrotliResult::ResultFailure => return Err(BodyError::Malformed),
            }
        }
        *coded = &[];
        // Nothing can follow the end; before it everything is consumed.
        if left == 0 { Ok(false) } else { Err(BodyError::Malformed) }
    }
}

/// Number of bytes that are allocated.
#[derive(Clone, Default)]
struct CountingAllocator(Rc<Cell<usize>>);

impl<T: Clone + Default> Allocator<T> for CountingAllocator {
    type AllocatedMemory = <StandardAlloc as Allocator<T>>::AllocatedMemory;

    fn alloc_cell(&mut self, len: usize) -> Self::AllocatedMemory {
        self.0.set(self.0.get() + len * size_of::<T>());
        StandardAlloc::default().alloc_cell(len)
    }

    fn free_cell(&mut self, memory: Self::AllocatedMemory) {
        self.0.set(self.0.get() - size_of_val(memory.slice()));
        StandardAlloc::default().free_cell(memory);
    }
}

/// A buffer with a limit.
#[derive(Default)]
struct BoundedBuffer {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn why(error: &io::Error) -> BodyError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => BodyError::TooLarge,
        _ => BodyError::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_brotli::{Encoder, Params, Then};

    /// A window of 16 MiB, ten literal bytes, and the end.
    const BROTLI: [u8; 14] = [0x8f, 0x04, 0x80, b'0', b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'8', b'9', 0x03];

    #[test]
    fn what_decoding_takes_is_counted() {
        let mut brotli = Decoder::new(BodyCoding::Brotli, 100);
        assert_eq!(brotli.held_bytes(), 0);
        brotli.piece(&BROTLI[..8]).unwrap();
        let DecoderState::Brotli(state) = &brotli.0 else { panic!("it has begun") };
        let allocated = state.memory.0.clone();
        assert!(allocated.get() > 1024, "{}", allocated.get());
        assert!(brotli.held_bytes() >= allocated.get());
        brotli.piece(&BROTLI[8..]).unwrap();
        assert_eq!(brotli.end().unwrap(), b"0123456789");
        assert_eq!(allocated.get(), 0);
        let mut gzip = Decoder::new(BodyCoding::Gzip, 100);
        assert_eq!(gzip.held_bytes(), 0);
        gzip.piece(&[0x1f]).unwrap();
        assert_eq!(gzip.held_bytes(), INFLATE_BYTES);
    }

    #[test]
    fn what_nodes_are_asked_for_can_be_undone() {
        for coding in stillgate_plugin_api::body::UNDONE_CODINGS {
            assert!(
                !matches!(BodyCoding::of(Some(coding.as_bytes())), BodyCoding::Unknown | BodyCoding::Identity),
                "{coding}"
            );
        }
    }

    #[test]
    fn what_is_decoded_can_be_taken_as_it_comes() {
        let mut brotli = Decoder::new(BodyCoding::Brotli, 4);
        let mut taken = Vec::new();
        for byte in BROTLI {
            brotli.piece(&[byte]).unwrap();
            taken.append(&mut brotli.take());
        }
        taken.append(&mut brotli.end().unwrap());
        assert_eq!(taken, b"0123456789");
    }

    #[test]
    fn a_short_body_may_become_a_long_one() {
        let plain = |bytes: usize| {
            let (mut coded, params) = (Vec::new(), Params { mode: 0, quality: 9, lgwin: 24, lgblock: 24 });
            Encoder::new(params).unwrap().code(&vec![b'a'; bytes], Then::End, &mut coded).unwrap();
            coded
        };
        let decoded = |coded: &[u8], piece: usize| {
            let (mut decoder, mut bytes, mut longest) = (Decoder::new(BodyCoding::Brotli, 1024 * 1024), 0, 0);
            for piece in coded.chunks(piece) {
                decoder.stream(piece, &mut |decoded| {
                    assert!(decoded.iter().all(|byte| *byte == b'a'));
                    bytes += decoded.len();
                    longest = longest.max(decoded.len());
                    Ok(())
                })?;
            }
            assert!(longest < STEP_BYTES + 16 * 1024, "{longest}");
            bytes += decoder.end()?.len();
            Ok::<usize, BodyError>(bytes)
        };
        for bytes in [1_000_000, 5_000_000, PLAIN_BYTES_MAX] {
            let coded = plain(bytes);
            assert!(coded.len() * 2_000 < bytes, "{} bytes for {bytes}", coded.len());
            for piece in [1, 7, 512, STREAMED_BYTES] {
                assert_eq!(decoded(&coded, piece), Ok(bytes), "in pieces of {piece}");
            }
        }
        assert_eq!(decoded(&plain(PLAIN_BYTES_MAX + 1), STREAMED_BYTES), Err(BodyError::TooLarge));
        let mut cut = plain(1_000_000);
        cut.pop();
        assert_eq!(decoded(&cut, 512), Err(BodyError::Malformed));
        let with_more = [plain(1_000_000), b"more".to_vec()].concat();
        assert_eq!(decoded(&with_more, 512), Err(BodyError::Malformed));
    }

    #[test]
    fn brotli_ends_where_it_says() {
        for split in 1..BROTLI.len() {
            let mut decoder = Decoder::new(BodyCoding::Brotli, 10);
            decoder.piece(&BROTLI[..split]).unwrap();
            decoder.piece(&BROTLI[split..]).unwrap();
            assert_eq!(decoder.piece(b"more"), Err(BodyError::Malformed));
        }
        let mut short = Decoder::new(BodyCoding::Brotli, 9);
        assert_eq!(short.piece(&BROTLI), Err(BodyError::TooLarge));
        let mut cut = Decoder::new(BodyCoding::Brotli, 10);
        cut.piece(&BROTLI[..13]).unwrap();
        assert_eq!(cut.end(), Err(BodyError::Malformed));
    }
}
