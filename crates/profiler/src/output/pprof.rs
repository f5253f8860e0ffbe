//! pprof's format: a gzipped protobuf message, as `go tool pprof` reads it (`google/pprof`, `proto/profile.proto`).
//!
//! The command line reads profiles in this form from a gateway and shows them in others. Reading checks everything that
//! a [`Profile`] guarantees, so a damaged file is refused and not shown in part.

use crate::profile::{CodeMapping, Function, Label, Line, Location, Profile, Sample, ValueType};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Write};

/// Most bytes of a profile that is read, after decompression.
const BYTES_MAX: u64 = 256 << 20;

/// Why a file cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// The file is not gzip, or damaged.
    Gzip,
    /// More than 256 MiB.
    TooLarge,
    /// The content is not a message of this format.
    Message,
    /// An index is out of range.
    Reference,
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ReadError::Gzip => "not a profile: not gzip, or damaged",
            ReadError::TooLarge => "not a profile: more than 256 MiB unpacked",
            ReadError::Message => "not a profile in pprof's format",
            ReadError::Reference => "not a profile: a reference in it leads to nothing",
        })
    }
}

impl std::error::Error for ReadError {}

impl From<ProtobufError> for ReadError {
    fn from(_: ProtobufError) -> ReadError {
        ReadError::Message
    }
}

/// Texts by number; the first is empty.
#[derive(Default)]
struct StringTable<'a>(HashMap<&'a str, i64>, Vec<&'a str>);

impl<'a> StringTable<'a> {
    fn number(&mut self, text: &'a str) -> i64 {
        if self.1.is_empty() {
            self.0.insert("", 0);
            self.1.push("");
        }
        let next = self.1.len() as i64;
        *self.0.entry(text).or_insert_with(|| {
            self.1.push(text);
            next
        })
    }

    fn value_type(&mut self, of: &'a ValueType) -> Vec<u8> {
        let mut message = ProtobufWriter::default();
        message.number(1, self.number(&of.kind));
        message.number(2, self.number(&of.unit));
        message.0
    }
}

/// Writes a profile, gzipped.
pub fn write(profile: &Profile) -> Vec<u8> {
    let message = message(profile);
    let mut gzip = GzEncoder::new(Vec::with_capacity(message.len() / 4), Compression::default());
    gzip.write_all(&message).expect("writing to a Vec does not fail");
    gzip.finish().expect("writing to a Vec does not fail")
}

fn message(profile: &Profile) -> Vec<u8> {
    let (mut out, mut texts) = (ProtobufWriter::default(), StringTable::default());
    for of in &profile.values {
        out.bytes(1, &texts.value_type(of));
    }
    for sample in &profile.samples {
        out.bytes(2, &sample_message(sample, &mut texts));
    }
    for (index, mapping) in profile.mappings.iter().enumerate() {
        let mut message = ProtobufWriter::default();
        message.number(1, index as i64 + 1);
        message.number(2, mapping.start as i64);
        message.number(3, mapping.end as i64);
        message.number(4, mapping.offset as i64);
        message.number(5, texts.number(&mapping.path));
        // Functions, files, lines and inlined functions are included, so readers need not look them up.
        (7..=10).for_each(|field| message.number(field, 1));
        out.bytes(3, &message.0);
    }
    for (index, location) in profile.locations.iter().enumerate() {
        let mut message = ProtobufWriter::default();
        message.number(1, index as i64 + 1);
        message.number(2, location.mapping.map_or(0, |mapping| mapping as i64 + 1));
        message.number(3, location.address as i64);
        for line in &location.lines {
            let mut inner = ProtobufWriter::default();
            inner.number(1, line.function as i64 + 1);
            inner.number(2, line.line);
            message.bytes(4, &inner.0);
        }
        out.bytes(4, &message.0);
    }
    for (index, function) in profile.functions.iter().enumerate() {
        let mut message = ProtobufWriter::default();
        message.number(1, index as i64 + 1);
        let name = texts.number(&function.name);
        message.number(2, name);
        message.number(3, name);
        message.number(4, texts.number(&function.file));
        out.bytes(5, &message.0);
    }
    out.number(9, profile.time_ns);
    out.number(10, profile.duration_ns);
    out.bytes(11, &texts.value_type(&profile.period.0));
    out.number(12, profile.period.1);
    let notes: Vec<i64> = profile.notes.iter().map(|note| texts.number(note)).collect();
    out.packed(13, notes.into_iter());
    out.number(14, profile.values.get(profile.main).map_or(0, |of| texts.number(&of.kind)));
    for text in texts.1 {
        out.bytes(6, text.as_bytes());
    }
    out.0
}

fn sample_message<'a>(sample: &'a Sample, texts: &mut StringTable<'a>) -> Vec<u8> {
    let mut message = ProtobufWriter::default();
    message.packed(1, sample.stack.iter().map(|place| *place as i64 + 1));
    message.packed(2, sample.values.iter().copied());
    for (key, label) in &sample.labels {
        let mut inner = ProtobufWriter::default();
        inner.number(1, texts.number(key));
        match label {
            Label::Text(text) => inner.number(2, texts.number(text)),
            Label::Number(number, unit) => {
                inner.number(3, *number);
                inner.number(4, texts.number(unit));
            }
        }
        message.bytes(3, &inner.0);
    }
    message.0
}

/// Reads a profile.
pub fn read(bytes: &[u8]) -> Result<Profile, ReadError> {
    let mut message = Vec::new();
    GzDecoder::new(bytes).take(BYTES_MAX + 1).read_to_end(&mut message).map_err(|_| ReadError::Gzip)?;
    if message.len() as u64 > BYTES_MAX {
        return Err(ReadError::TooLarge);
    }
    Parts::of(&message)?.profile()
}

type Message<'a> = Vec<(u64, FieldContent<'a>)>;

/// The parts of a message; references are not resolved yet.
#[derive(Default)]
struct Parts<'a> {
    texts: Vec<String>,
    values: Vec<Message<'a>>,
    samples: Vec<Message<'a>>,
    mappings: Vec<Message<'a>>,
    locations: Vec<Message<'a>>,
    functions: Vec<Message<'a>>,
    period: Message<'a>,
    notes: Vec<i64>,
    /// The numeric fields.
    numbers: HashMap<u64, i64>,
}

fn fields(value: FieldContent<'_>) -> Result<Message<'_>, ReadError> {
    let bytes = value.bytes().ok_or(ReadError::Message)?;
    Ok(FieldReader(bytes).collect::<Result<_, _>>()?)
}

fn number(message: &Message<'_>, field: u64) -> i64 {
    message.iter().rev().find(|(of, _)| *of == field).and_then(|(_, value)| value.number()).unwrap_or(0)
}

fn numbers(message: &Message<'_>, field: u64) -> Result<Vec<i64>, ReadError> {
    let values = message.iter().filter(|(of, _)| *of == field);
    let all: Option<Vec<Vec<i64>>> = values.map(|(_, value)| value.numbers()).collect();
    Ok(all.ok_or(ReadError::Message)?.concat())
}

impl<'a> Parts<'a> {
    fn of(message: &'a [u8]) -> Result<Parts<'a>, ReadError> {
        let mut parts = Parts::default();
        for field in FieldReader(message) {
            match field? {
                (1, value) => parts.values.push(fields(value)?),
                (2, value) => parts.samples.push(fields(value)?),
                (3, value) => parts.mappings.push(fields(value)?),
                (4, value) => parts.locations.push(fields(value)?),
                (5, value) => parts.functions.push(fields(value)?),
                (6, value) => {
                    let text = std::str::from_utf8(value.bytes().ok_or(ReadError::Message)?);
                    parts.texts.push(text.map_err(|_| ReadError::Message)?.to_owned());
                }
                (11, value) => parts.period = fields(value)?,
                (13, value) => parts.notes.extend(value.numbers().ok_or(ReadError::Message)?),
                (field, FieldContent::Number(number)) => {
                    parts.numbers.insert(field, number);
                }
                // A field of a later version of the format.
                (_, FieldContent::Bytes(_)) => {}
            }
        }
        Ok(parts)
    }

    fn text(&self, number: i64) -> Result<String, ReadError> {
        let text = usize::try_from(number).ok().and_then(|number| self.texts.get(number));
        text.cloned().ok_or(ReadError::Reference)
    }

    fn value_type(&self, message: &Message<'_>) -> Result<ValueType, ReadError> {
        Ok(ValueType { kind: self.text(number(message, 1))?, unit: self.text(number(message, 2))? })
    }

    fn single(&self, field: u64) -> i64 {
        self.numbers.get(&field).copied().unwrap_or(0)
    }

    fn profile(&self) -> Result<Profile, ReadError> {
        let by_id = |messages: &[Message<'_>]| -> HashMap<i64, usize> {
            messages.iter().enumerate().map(|(index, message)| (number(message, 1), index)).collect()
        };
        let find = |ids: &HashMap<i64, usize>, id| ids.get(&id).copied().ok_or(ReadError::Reference);
        let (mappings, locations, functions) = (by_id(&self.mappings), by_id(&self.locations), by_id(&self.functions));
        let values: Vec<_> = self.values.iter().map(|message| self.value_type(message)).collect::<Result<_, _>>()?;
        let main = self.text(self.single(14))?;
        let main = values.iter().position(|of| of.kind == main).unwrap_or(values.len().saturating_sub(1));
        let mut profile = Profile {
            main,
            period: (self.value_type(&self.period)?, self.single(12)),
            time_ns: self.single(9),
            duration_ns: self.single(10),
            notes: self.notes.iter().map(|note| self.text(*note)).collect::<Result<_, _>>()?,
            mappings: Vec::new(),
            functions: Vec::new(),
            locations: Vec::new(),
            samples: Vec::new(),
            values,
        };
        for message in &self.mappings {
            let part = |field| number(message, field) as u64;
            let path = self.text(number(message, 5))?;
            profile.mappings.push(CodeMapping { start: part(2), end: part(3), offset: part(4), path });
        }
        for message in &self.functions {
            let (name, file) = (self.text(number(message, 2))?, self.text(number(message, 4))?);
            profile.functions.push(Function { name, file });
        }
        for message in &self.locations {
            let mapping = Some(number(message, 2)).filter(|id| *id != 0).map(|id| find(&mappings, id)).transpose()?;
            let mut lines = Vec::new();
            for (_, value) in message.iter().filter(|(field, _)| *field == 4) {
                let line = fields(*value)?;
                lines.push(Line { function: find(&functions, number(&line, 1))?, line: number(&line, 2) });
            }
            profile.locations.push(Location { address: number(message, 3) as u64, mapping, lines });
        }
        for message in &self.samples {
            let stack = numbers(message, 1)?.into_iter().map(|id| find(&locations, id)).collect::<Result<_, _>>()?;
            let values = numbers(message, 2)?;
            if values.len() != profile.values.len() {
                return Err(ReadError::Reference);
            }
            let mut labels = Vec::new();
            for (_, value) in message.iter().filter(|(field, _)| *field == 3) {
                let label = fields(*value)?;
                let said = match number(&label, 2) {
                    0 => Label::Number(number(&label, 3), self.text(number(&label, 4))?),
                    text => Label::Text(self.text(text)?),
                };
                labels.push((self.text(number(&label, 1))?, said));
            }
            profile.samples.push(Sample { stack, values, labels });
        }
        Ok(profile)
    }
}

// The part of protobuf's wire format that pprof's messages need.
//
// Written by hand, because there are only eight messages and generated code would be larger than this. Tests read the
// output with `prost` and with Go.

/// Writes fields of a message.
#[derive(Debug, Default)]
pub(super) struct ProtobufWriter(pub(super) Vec<u8>);

impl ProtobufWriter {
    /// A number; zero is the default and not written.
    pub(super) fn number(&mut self, field: u64, value: i64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value as u64);
        }
    }

    /// A text or a message.
    pub(super) fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Numbers in one field.
    pub(super) fn packed(&mut self, field: u64, values: impl Iterator<Item = i64>) {
        let mut packed = ProtobufWriter::default();
        values.for_each(|value| packed.varint(value as u64));
        self.bytes(field, &packed.0);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The content of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldContent<'a> {
    Number(i64),
    Bytes(&'a [u8]),
}

impl<'a> FieldContent<'a> {
    pub(super) fn number(self) -> Option<i64> {
        match self {
            FieldContent::Number(number) => Some(number),
            FieldContent::Bytes(_) => None,
        }
    }

    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            FieldContent::Bytes(bytes) => Some(bytes),
            FieldContent::Number(_) => None,
        }
    }

    /// Numbers in one field, or one number.
    pub(super) fn numbers(self) -> Option<Vec<i64>> {
        match self {
            FieldContent::Number(number) => Some(vec![number]),
            FieldContent::Bytes(mut bytes) => {
                let mut numbers = Vec::new();
                while !bytes.is_empty() {
                    numbers.push(varint(&mut bytes)? as i64);
                }
                Some(numbers)
            }
        }
    }
}

/// Reads fields of a message: number and value. Ends with `Err` if the bytes are not a message.
#[derive(Debug)]
pub(super) struct FieldReader<'a>(pub(super) &'a [u8]);

/// The bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProtobufError;

impl<'a> Iterator for FieldReader<'a> {
    type Item = Result<(u64, FieldContent<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(ProtobufError))
    }
}

impl<'a> FieldReader<'a> {
    fn field(&mut self) -> Option<(u64, FieldContent<'a>)> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => FieldContent::Number(varint(&mut self.0)? as i64),
            1 => FieldContent::Bytes(self.take(8)?),
            2 => {
                let length = varint(&mut self.0)?;
                FieldContent::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => FieldContent::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;

    #[test]
    fn what_is_written_is_read_back() {
        let profile = example();
        assert_eq!(read(&write(&profile)), Ok(profile));
    }

    #[test]
    fn damage_is_refused() {
        let good = write(&example());
        assert_eq!(read(b"profile"), Err(ReadError::Gzip));
        assert_eq!(read(&good[..good.len() - 9]), Err(ReadError::Gzip));
        let mut message = message(&example());
        let pack = |message: &[u8]| {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(message).unwrap();
            gzip.finish().unwrap()
        };
        assert_eq!(read(&pack(&message[..message.len() - 1])), Err(ReadError::Message));
        // A stack with a location that does not exist.
        message.extend([2 << 3 | 2, 3, 1 << 3 | 2, 1, 99]);
        assert_eq!(read(&pack(&message)), Err(ReadError::Reference));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            at in proptest::prelude::any::<proptest::sample::Index>(),
            byte in proptest::prelude::any::<u8>(),
        ) {
            let mut damaged = message(&example());
            let at = at.index(damaged.len());
            damaged[at] = byte;
            if let Ok(profile) = Parts::of(&damaged).and_then(|parts| parts.profile()) {
                for sample in &profile.samples {
                    profile.functions_of(sample).for_each(|line| assert!(line.function < profile.functions.len()));
                }
            }
        }
    }
}
