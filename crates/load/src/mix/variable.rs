//! The value of `${name}`: a source of values, drawn again for each request.

use std::io::Write;
use stillgate_stats::Random;

/// A named source of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) source: ValueSource,
}

/// A source of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueSource {
    /// A whole number of the range, both ends included, each as likely.
    Range(i64, i64),
    /// The numbers from this one on, each once over all threads.
    Counter(u64),
    /// One of the values, each as likely. At least one.
    Values(Vec<Box<[u8]>>),
    /// A random UUID (version 4).
    Uuid,
    /// A number of random hexadecimal digits.
    Hex(usize),
}

/// Most digits of [`ValueSource::Hex`].
pub(super) const HEX_DIGITS_MAX: usize = 4096;

impl ValueSource {
    /// Whether its values are JSON numbers.
    pub(super) fn is_number(&self) -> bool {
        matches!(self, ValueSource::Range(..) | ValueSource::Counter(_))
    }

    /// The number, counted from one, of the first value that `allowed` refuses, if any.
    pub(super) fn refused_by(&self, allowed: impl Fn(&[u8]) -> bool) -> Option<usize> {
        match self {
            ValueSource::Values(values) => values.iter().position(|value| !allowed(value)).map(|index| index + 1),
            // Digits, hyphens and letters.
            _ => None,
        }
    }

    /// Appends the next value. `counter` is this thread's next number, `step` the number of threads.
    pub(super) fn draw(&self, random: &mut Random, counter: &mut u64, step: u64, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        match self {
            ValueSource::Range(from, to) => {
                let width = to.abs_diff(*from);
                let offset = if width == u64::MAX { random.next_u64() } else { random.below(width + 1) };
                let _ = write!(out, "{}", from.wrapping_add_unsigned(offset));
            }
            ValueSource::Counter(_) => {
                let _ = write!(out, "{counter}");
                *counter = counter.wrapping_add(step);
            }
            ValueSource::Values(values) => {
                let index = random.below(values.len() as u64) as usize;
                out.extend_from_slice(&values[index]);
            }
            ValueSource::Uuid => {
                // RFC 9562 section 5.4: the version's four bits, then the variant's two.
                let high = random.next_u64() & !0xf000 | 0x4000;
                let low = random.next_u64() & !(0b11 << 62) | 0b10 << 62;
                let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
                let _ = write!(out, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff);
            }
            ValueSource::Hex(digits) => {
                let mut left = *digits;
                while left > 0 {
                    let mut bits = random.next_u64();
                    for _ in 0..left.min(16) {
                        out.push(b"0123456789abcdef"[(bits & 15) as usize]);
                        bits >>= 4;
                        left -= 1;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn drawn(source: &ValueSource, seed: u64, times: usize) -> Vec<String> {
        let (mut random, mut counter) = (Random::new(seed), 0);
        if let ValueSource::Counter(start) = source {
            counter = *start;
        }
        let mut draw = || {
            let mut out = Vec::new();
            source.draw(&mut random, &mut counter, 3, &mut out);
            String::from_utf8(out).unwrap()
        };
        (0..times).map(|_| draw()).collect()
    }

    #[test]
    fn ranges_reach_both_ends_and_no_further() {
        let seen: HashSet<String> = drawn(&ValueSource::Range(-1, 2), 7, 200).into_iter().collect();
        assert_eq!(seen, ["-1", "0", "1", "2"].map(str::to_owned).into());
        assert_eq!(drawn(&ValueSource::Range(5, 5), 7, 2), ["5", "5"]);
        for value in drawn(&ValueSource::Range(i64::MIN, i64::MAX), 7, 100) {
            value.parse::<i64>().unwrap();
        }
        let half: HashSet<bool> =
            drawn(&ValueSource::Range(0, i64::MAX), 7, 100).iter().map(|v| v.len() == 19).collect();
        assert!(half.contains(&true));
    }

    #[test]
    fn counters_step_by_the_threads() {
        assert_eq!(drawn(&ValueSource::Counter(10), 7, 3), ["10", "13", "16"]);
    }

    #[test]
    fn uuids_and_digits_have_their_form() {
        let form = regex::Regex::new("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$").unwrap();
        let uuids = drawn(&ValueSource::Uuid, 7, 1000);
        assert!(uuids.iter().all(|uuid| form.is_match(uuid)), "{uuids:?}");
        assert_eq!(uuids.iter().collect::<HashSet<_>>().len(), 1000);
        for digits in [1, 16, 17, 100] {
            let value = &drawn(&ValueSource::Hex(digits), 7, 1)[0];
            assert!(value.len() == digits && value.bytes().all(|b| b"0123456789abcdef".contains(&b)), "{value}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let values = ValueSource::Values(["a", "b", "c"].map(|v| v.as_bytes().into()).into());
        for source in [ValueSource::Range(0, 1_000_000), values, ValueSource::Uuid, ValueSource::Hex(8)] {
            assert_eq!(drawn(&source, 1, 50), drawn(&source, 1, 50));
            assert_ne!(drawn(&source, 1, 50), drawn(&source, 2, 50), "{source:?}");
        }
    }
}
