//! Encodes a family's declaration for a segment and decodes it: this makes a segment readable on its own.
//!
//! The bytes are not trusted: the file may be another version's, or damaged.

use crate::family::{Buckets, Family, FamilyType, Merge, Native};

/// The bytes that follow a family record's head.
pub(crate) fn encode(family: &Family) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + family.help.len());
    let code = match &family.kind {
        FamilyType::Counter => 0,
        FamilyType::FloatCounter => 1,
        FamilyType::Gauge(Merge::Sum) => 2,
        FamilyType::Gauge(Merge::Last) => 3,
        FamilyType::Gauge(Merge::Max) => 4,
        FamilyType::Info => 5,
        FamilyType::Histogram(_) => 6,
        FamilyType::Gauge(Merge::Total) => 7,
    };
    out.extend([code, u8::from(family.exemplars), family.labels.len() as u8]);
    let labels = family.labels.iter();
    for text in [&family.name, &family.help, &family.unit].into_iter().chain(labels) {
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text.as_bytes());
    }
    if let FamilyType::Histogram(buckets) = &family.kind {
        out.extend((buckets.classic.len() as u16).to_le_bytes());
        buckets.classic.iter().for_each(|bound| out.extend(bound.to_le_bytes()));
        if let Some(native) = &buckets.native {
            out.push(native.schema.cast_unsigned());
            out.extend(native.zero_threshold.to_le_bytes());
            out.extend(native.buckets_max.to_le_bytes());
        }
    }
    out
}

/// The declaration; `None` if the bytes do not encode one that passes [`Family::check`].
pub(crate) fn decode(bytes: &[u8]) -> Option<Family> {
    let mut rest = Rest(bytes);
    let [code, exemplars, labels] = rest.array()?;
    let name = rest.text()?;
    let help = rest.text()?;
    let unit = rest.text()?;
    let labels = (0..labels).map(|_| rest.text()).collect::<Option<Vec<String>>>()?;
    let kind = match code {
        0 => FamilyType::Counter,
        1 => FamilyType::FloatCounter,
        2 => FamilyType::Gauge(Merge::Sum),
        3 => FamilyType::Gauge(Merge::Last),
        4 => FamilyType::Gauge(Merge::Max),
        5 => FamilyType::Info,
        6 => {
            let count = u16::from_le_bytes(rest.array()?);
            let classic = (0..count).map(|_| rest.array().map(f64::from_le_bytes)).collect::<Option<Vec<f64>>>()?;
            let native = match rest.0.is_empty() {
                true => None,
                false => Some(Native {
                    schema: rest.array::<1>()?[0].cast_signed(),
                    zero_threshold: f64::from_le_bytes(rest.array()?),
                    buckets_max: u16::from_le_bytes(rest.array()?),
                }),
            };
            FamilyType::Histogram(Buckets { classic, native })
        }
        7 => FamilyType::Gauge(Merge::Total),
        _ => return None,
    };
    let family = Family { name, help, unit, kind, labels, exemplars: exemplars == 1 };
    (rest.0.is_empty() && family.check().is_ok()).then_some(family)
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn text(&mut self) -> Option<String> {
        let length = u16::from_le_bytes(self.array()?) as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let check = |kind: FamilyType, labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            let (name, help, unit) = ("a_bytes_total".into(), "What.\n\"x\"".into(), "bytes".into());
            let family = Family { name, help, unit, kind, labels, exemplars: true };
            let bytes = encode(&family);
            assert_eq!(decode(&bytes).as_ref(), Some(&family));
            for end in 0..bytes.len() {
                // A truncated declaration of a histogram may still be one of a histogram without native buckets.
                let cut = decode(&bytes[..end]);
                assert!(cut.is_none_or(|cut| cut.kind != family.kind), "{end}");
            }
        };
        check(FamilyType::Counter, &["a", "b"]);
        check(FamilyType::FloatCounter, &[]);
        for merge in [Merge::Sum, Merge::Total, Merge::Last, Merge::Max] {
            check(FamilyType::Gauge(merge), &["a"]);
        }
        check(FamilyType::Info, &["version"]);
        check(FamilyType::Histogram(Buckets { classic: vec![0.1, 2.5], native: None }), &[]);
        check(FamilyType::Histogram(Buckets { classic: vec![], native: Some(Native::default()) }), &["a"]);
    }

    #[test]
    fn rubbish_is_refused() {
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[9, 0, 0, 1, 0, b'a', 0, 0, 0, 0]), None);
        assert_eq!(decode(&[0, 0, 0, 1, 0, b'-', 0, 0, 0, 0]), None);
        assert_eq!(decode(&[0, 0, 0, 255, 255, b'a']), None);
    }
}
