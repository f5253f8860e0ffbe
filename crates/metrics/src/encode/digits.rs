//! Writes an integer over another one of the same width, eight digits at a time.
//!
//! A scrape does this for each changed value. Making digits one after the other in a separate buffer and copying them
//! takes three times as long.

use std::ops::Range;

/// Digits that are made at once.
const STEP: usize = 8;

/// The smallest numbers with one digit more than their index: `10`, `100`, …
const POWERS: [u64; 16] = {
    let mut powers = [10; 16];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = powers[index - 1] * 10;
        index += 1;
    }
    powers
};

/// Writes the number there if it has exactly that width; returns whether it did. `None`: the width is not supported, or
/// the position is too near to the beginning.
#[inline]
pub(super) fn patch(bytes: &mut [u8], at: &Range<usize>, value: u64) -> Option<bool> {
    let width = at.end - at.start;
    if width == 0 || width > POWERS.len() || at.end < POWERS.len() {
        return None;
    }
    let is_as_wide = value < POWERS[width - 1] && (width == 1 || value >= POWERS[width - 2]);
    if is_as_wide {
        let low = bytes.get_mut(at.end - STEP..at.end)?;
        put(low, value % POWERS[STEP - 1], width.min(STEP));
        if width > STEP {
            let high = bytes.get_mut(at.end - 2 * STEP..at.end - STEP)?;
            put(high, value / POWERS[STEP - 1], width - STEP);
        }
    }
    Some(is_as_wide)
}

/// Writes the last digits of a number below 10^8 into the last of eight bytes; the other bytes keep their values.
#[inline]
fn put(bytes: &mut [u8], value: u64, digits: usize) {
    let Ok(eight) = <&mut [u8; STEP]>::try_from(bytes) else { return };
    let kept = u64::MAX.checked_shr(8 * digits as u32).unwrap_or(0);
    let new = (spell(value) & !kept) | (u64::from_le_bytes(*eight) & kept);
    *eight = new.to_le_bytes();
}

/// Eight digits with leading zeros, the first one in the lowest byte: split into halves three times, all parts at once.
#[inline]
fn spell(value: u64) -> u64 {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    // Division by 100, exact below 10,000.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    // Division by 10, exact below 100.
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    (tens | ((twos - tens * 10) << 8)) | 0x3030_3030_3030_3030
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_of_four_digits_are_spelt() {
        for value in 0..10_000 {
            assert_eq!(&spell(value).to_le_bytes(), format!("{value:08}").as_bytes());
            assert_eq!(&spell(value * 10_000).to_le_bytes(), format!("{:08}", value * 10_000).as_bytes());
        }
    }

    proptest! {
        #[test]
        fn only_as_wide_as_before(old in any::<u64>(), new in any::<u64>(), shifts in (0u32..64, 0u32..64)) {
            let (old, new) = (old >> shifts.0, new >> shifts.1);
            for name in ["name{a=\"bcdefghijk\"} ", "a "] {
                let before = format!("{name}{old}\nnext 5\n");
                let at = name.len()..name.len() + old.to_string().len();
                let mut bytes = before.clone().into_bytes();
                let same = old.to_string().len() == new.to_string().len();
                let expected = if same { format!("{name}{new}\nnext 5\n") } else { before };
                if let Some(done) = patch(&mut bytes, &at, new) {
                    prop_assert_eq!((done, std::str::from_utf8(&bytes).unwrap()), (same, expected.as_str()));
                }
            }
        }
    }
}
