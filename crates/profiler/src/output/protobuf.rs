//! The part of protobuf's wire format that pprof's messages need.
//!
//! Written by hand, because there are only eight messages and generated code would be larger than this. Tests read the
//! output with `prost` and with Go.

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
