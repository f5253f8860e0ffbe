//! Undoes the Content-Encoding of a body piece by piece, into a buffer with a bound: a small body can become a large one.

use brotli_decompressor::DecompressorWriter;
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use std::io::{self, Write};
use stillgate_plugin::BodyError;

/// The coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    /// One that we cannot undo, or several.
    Unknown,
}

impl Decoding {
    /// By the value of `Content-Encoding`.
    pub(crate) fn of(coding: Option<&[u8]>) -> Decoding {
        let is = |name: &str| coding.is_some_and(|coding| coding.eq_ignore_ascii_case(name.as_bytes()));
        match coding {
            None | Some(b"") => Decoding::Identity,
            _ if is("identity") => Decoding::Identity,
            _ if is("gzip") || is("x-gzip") => Decoding::Gzip,
            _ if is("deflate") => Decoding::Deflate,
            _ if is("br") => Decoding::Brotli,
            _ => Decoding::Unknown,
        }
    }
}

/// Takes a body in its coding, holds it without.
pub(crate) struct Decoder(State);

enum State {
    Identity(Bounded),
    Gzip(MultiGzDecoder<Bounded>),
    /// Its first bytes tell whether there is a zlib header, as RFC 9110 section 8.4.1.2 has it, or none, as some send it.
    Unsettled {
        first: Option<u8>,
        out: Bounded,
    },
    Deflate(Inflate),
    Brotli(Box<DecompressorWriter<Bounded>>),
    Unknown,
    /// Nothing has come yet of a body in a coding: an empty one is complete.
    Empty(Decoding, Bounded),
}

impl Decoder {
    pub(crate) fn new(decoding: Decoding, bytes_max: usize) -> Decoder {
        let out = Bounded { bytes: Vec::new(), bytes_max };
        Decoder(match decoding {
            Decoding::Identity => State::Identity(out),
            Decoding::Unknown => State::Unknown,
            other => State::Empty(other, out),
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
            State::Identity(out) => out.write_all(piece),
            State::Gzip(decoder) => decoder.write_all(piece),
            State::Deflate(inflate) => return inflate.piece(piece),
            State::Brotli(decoder) => decoder.write_all(piece),
            State::Unsettled { .. } => Ok(()),
            State::Unknown | State::Empty(..) => return Err(BodyError::Malformed),
        };
        written.map_err(|error| why(&error))
    }

    /// The body has ended: what it is without its coding.
    pub(crate) fn end(&mut self) -> Result<Vec<u8>, BodyError> {
        let state = std::mem::replace(&mut self.0, State::Unknown);
        let out = match state {
            State::Identity(out) | State::Empty(_, out) => out,
            State::Gzip(decoder) => decoder.finish().map_err(|error| why(&error))?,
            State::Deflate(inflate) if inflate.has_ended => inflate.out,
            State::Brotli(mut decoder) => {
                decoder.close().map_err(|error| why(&error))?;
                decoder.into_inner().map_err(|_| BodyError::Malformed)?
            }
            State::Deflate(_) | State::Unsettled { .. } | State::Unknown => return Err(BodyError::Malformed),
        };
        Ok(out.bytes)
    }

    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> usize {
        let out = match &self.0 {
            State::Identity(out) | State::Empty(_, out) | State::Unsettled { out, .. } => out,
            State::Gzip(decoder) => decoder.get_ref(),
            State::Deflate(inflate) => &inflate.out,
            State::Brotli(decoder) => decoder.get_ref(),
            State::Unknown => return 0,
        };
        out.bytes.len()
    }

    /// A decoder is made when there is something to decode.
    fn begin(&mut self) {
        if let State::Empty(decoding, out) = &mut self.0 {
            let out = std::mem::take(out);
            self.0 = match decoding {
                Decoding::Gzip => State::Gzip(MultiGzDecoder::new(out)),
                Decoding::Deflate => State::Unsettled { first: None, out },
                Decoding::Brotli => State::Brotli(Box::new(DecompressorWriter::new(out, BROTLI_BUFFER_BYTES))),
                Decoding::Identity => State::Identity(out),
                Decoding::Unknown => State::Unknown,
            };
        }
    }

    /// Finds out which kind of `deflate` it is, once two bytes are there; gives what is still to be decoded.
    fn settle<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let State::Unsettled { first, out } = &mut self.0 else { return piece };
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
            // What is wrong with it is found with what follows.
            let _ = inflate.piece(&[byte]);
        }
        self.0 = State::Deflate(inflate);
        rest
    }
}

/// `deflate`, which says itself where it ends. (The writers of `flate2` take a part of it for the whole.)
struct Inflate {
    state: Decompress,
    out: Bounded,
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
        // Nothing can follow the end; before it everything is taken.
        if piece.is_empty() { Ok(()) } else { Err(BodyError::Malformed) }
    }
}

const BROTLI_BUFFER_BYTES: usize = 4096;

/// A buffer that takes no more than its bound.
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Write for Bounded {
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
