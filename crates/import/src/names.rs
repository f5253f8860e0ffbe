//! Ids and user names of the result: those of the file where they are valid here, otherwise the nearest that are.

use std::collections::HashMap;

/// Longest id here, in bytes.
const ID_BYTES_MAX: usize = 64;
/// Longest user name here, in bytes.
const USERNAME_BYTES_MAX: usize = 100;

/// The ids of one kind that are taken.
#[derive(Debug, Default)]
pub(crate) struct Ids(HashMap<String, usize>);

// The number is that of the last suffix, so that thousands of equal names do not search for theirs again and again.

impl Ids {
    /// An id that is like `wanted`, and no other's.
    pub(crate) fn id(&mut self, wanted: &str) -> String {
        self.take(wanted, ID_BYTES_MAX, |c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    }

    /// A user name that is like `wanted`, and no other's.
    pub(crate) fn username(&mut self, wanted: &str) -> String {
        self.take(wanted, USERNAME_BYTES_MAX, |c| c.is_ascii_alphanumeric() || "-_".contains(c))
    }

    fn take(&mut self, wanted: &str, bytes_max: usize, allowed: impl Fn(char) -> bool) -> String {
        let mut base: String = wanted.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
        base.truncate(bytes_max);
        if base.is_empty() {
            base.push_str("unnamed");
        }
        let first = base.clone();
        let mut name = base.clone();
        let mut number = self.0.get(&first).copied().unwrap_or(0);
        while self.0.contains_key(&name) {
            number += 1;
            let suffix = format!("-{}", number + 1);
            base.truncate(bytes_max - suffix.len());
            name = format!("{base}{suffix}");
        }
        self.0.insert(first, number);
        self.0.entry(name.clone()).or_insert(0);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_valid_and_stay_different() {
        let mut ids = Ids::default();
        let long = "x".repeat(80);
        for (wanted, want) in [
            ("shop.v1", "shop.v1"),
            ("shop v1", "shop_v1"),
            ("shop/v1", "shop_v1-2"),
            ("", "unnamed"),
            (&long, &long[..64]),
            (&long, &format!("{}-2", &long[..62])),
        ] {
            assert_eq!(ids.id(wanted), want);
        }
        assert_eq!(Ids::default().username("jack@shop.example"), "jack_shop_example");
    }
}
