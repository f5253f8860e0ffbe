//! Declarations of families, checked once; all later code relies on that.
//!
//! Names follow Prometheus' data model: `[a-zA-Z_:][a-zA-Z0-9_:]*` for families, without the colon for labels, `le` and
//! names that begin with `__` reserved. Label *values* are any UTF-8 and are the business of `labels`.

use crate::value::{Distribution, Exponential, coarser};
use std::collections::BTreeMap;
use std::fmt;

/// Most labels of one family; collapsed labels are a bit mask.
pub const LABELS_MAX: usize = 32;
/// Longest name of a family or label.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest help text.
pub const HELP_BYTES_MAX: usize = 4096;
/// Most finite bounds of a classic histogram.
pub const BUCKETS_MAX: usize = 512;
/// Prefix of the names of internal families.
pub const INTERNAL_PREFIX: &str = "__";
/// The schemas of native histograms: a bucket's bound is `2^(2^-schema)` times the one before.
pub const NATIVE_SCHEMAS: std::ops::RangeInclusive<i8> = -4..=8;
/// Most buckets of each sign that a native histogram may have.
pub const NATIVE_BUCKETS_MAX: u16 = 320;
/// With fewer, some numbers would not fit, however coarse the schema is.
pub const NATIVE_BUCKETS_MIN: u16 = 136;

/// One family, as declared. Two values that compare equal are the same family.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Name in the text format; a counter ends in `_total`, unless older dashboards need another name. A name that
    /// begins with [`INTERNAL_PREFIX`] is internal: it is read by programs of the process, and never exposed.
    pub name: String,
    /// One sentence of description.
    pub help: String,
    /// OpenMetrics' unit: the name's last part (before `_total`), or empty.
    pub unit: String,
    /// Type of its series.
    pub kind: FamilyType,
    /// Label names, in the order in which values are given.
    pub labels: Vec<String>,
    /// Whether its counters or buckets may carry exemplars, which cost 192 bytes each.
    pub exemplars: bool,
}

impl Family {
    /// A counter of integers.
    pub fn counter(name: &str, help: &str, labels: &[&str]) -> Family {
        let labels = labels.iter().map(ToString::to_string).collect();
        Family {
            name: name.to_owned(),
            help: help.to_owned(),
            unit: String::new(),
            kind: FamilyType::Counter,
            labels,
            exemplars: false,
        }
    }
}

/// The type of a family's series.
#[derive(Debug, Clone, PartialEq)]
pub enum FamilyType {
    /// Only grows, by integers; 64 bits, exact.
    Counter,
    /// Only grows, by any amount.
    FloatCounter,
    /// Goes up and down.
    Gauge(Merge),
    /// Always 1; its information is in its labels.
    Info,
    /// Counts observations by size.
    Histogram(Buckets),
}

/// How several writers' values of one gauge are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Their sum.
    Sum,
    /// Their sum, which includes the last values of ended processes: for a gauge that only grows and is a gauge by
    /// contract.
    Total,
    /// The value that was set last.
    Last,
    /// The largest.
    Max,
}

/// The buckets of a histogram: classic, native or both.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// Finite upper bounds, ascending, without `+Inf`. Empty: only native buckets.
    pub classic: Vec<f64>,
    /// Exponential buckets, for the protobuf format.
    pub native: Option<Native>,
}

/// Exponential buckets as Prometheus defines them (its native histograms, "sparse high-resolution histograms").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Native {
    /// The initial resolution, -4 to 8; halved when an observation would need more than `buckets_max`.
    pub schema: i8,
    /// Observations not further from zero than this are in the zero bucket.
    pub zero_threshold: f64,
    /// Buckets of each sign, from [`NATIVE_BUCKETS_MIN`] to [`NATIVE_BUCKETS_MAX`].
    pub buckets_max: u16,
}

impl Default for Native {
    /// The defaults of `client_golang`: factor 1.1 gives schema 3; 160 buckets.
    fn default() -> Self {
        Native { schema: 3, zero_threshold: 2.938_735_877_055_719e-39, buckets_max: 160 }
    }
}

/// The reason why a family cannot be declared.
#[derive(Debug, Clone, PartialEq)]
pub enum FamilyError {
    /// The name does not match `[a-zA-Z_:][a-zA-Z0-9_:]*`, or is too long.
    Name(String),
    /// The help text is too long.
    Help(String),
    /// The name does not end in its unit.
    Unit(String, String),
    /// A label's name is not `[a-zA-Z_][a-zA-Z0-9_]*`, or reserved.
    Label(String, String),
    /// A label is listed twice.
    LabelTwice(String, String),
    /// Too many labels.
    Labels(String, usize),
    /// Bounds that are not ascending, not finite, or too many; or neither kind of buckets.
    Buckets(String),
    /// A schema, threshold or number of native buckets out of range.
    Native(String),
    /// The limit on the number of families is reached.
    TooMany(String),
}

impl fmt::Display for FamilyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FamilyError::Name(name) => {
                write!(
                    f,
                    "{name:?} is not a metric name; use letters, digits, '_' and ':', at most {NAME_BYTES_MAX} bytes"
                )
            }
            FamilyError::Help(name) => write!(f, "{name}: the help text is longer than {HELP_BYTES_MAX} bytes"),
            FamilyError::Unit(name, unit) => {
                write!(f, "{name}: the name must end in its unit, \"_{unit}\" (before \"_total\")")
            }
            FamilyError::Label(name, label) => {
                write!(
                    f,
                    "{name}: {label:?} is not a label name; use letters, digits and '_', not \"le\" and not a leading \"__\""
                )
            }
            FamilyError::LabelTwice(name, label) => write!(f, "{name}: the label {label} is given twice"),
            FamilyError::Labels(name, count) => {
                write!(f, "{name}: {count} labels exceed the limit of {LABELS_MAX}; remove some")
            }
            FamilyError::Buckets(name) => {
                write!(
                    f,
                    "{name}: bounds must be finite, ascending and at most {BUCKETS_MAX}; +Inf is added automatically"
                )
            }
            FamilyError::Native(name) => write!(
                f,
                "{name}: a native histogram needs a schema from -4 to 8, a threshold of 0 or more and {NATIVE_BUCKETS_MIN} to {NATIVE_BUCKETS_MAX} buckets"
            ),
            FamilyError::TooMany(name) => write!(f, "{name}: the limit on the number of families is reached"),
        }
    }
}

impl std::error::Error for FamilyError {}

impl Family {
    /// Checks the declaration and returns the first error.
    pub fn check(&self) -> Result<(), FamilyError> {
        let name = || self.name.clone();
        if !is_name(&self.name, true) {
            return Err(FamilyError::Name(name()));
        }
        if self.help.len() > HELP_BYTES_MAX {
            return Err(FamilyError::Help(name()));
        }
        let base = self.name.strip_suffix("_total").unwrap_or(&self.name);
        if !self.unit.is_empty() && !base.strip_suffix(self.unit.as_str()).is_some_and(|rest| rest.ends_with('_')) {
            return Err(FamilyError::Unit(name(), self.unit.clone()));
        }
        if self.labels.len() > LABELS_MAX {
            return Err(FamilyError::Labels(name(), self.labels.len()));
        }
        for (index, label) in self.labels.iter().enumerate() {
            if !is_name(label, false) || label == "le" || label.starts_with("__") {
                return Err(FamilyError::Label(name(), label.clone()));
            }
            if self.labels[..index].contains(label) {
                return Err(FamilyError::LabelTwice(name(), label.clone()));
            }
        }
        match &self.kind {
            FamilyType::Histogram(buckets) => buckets.check(&self.name),
            _ => Ok(()),
        }
    }

    /// Whether it is never exposed.
    pub fn is_internal(&self) -> bool {
        self.name.starts_with(INTERNAL_PREFIX)
    }

    /// Whether OpenMetrics has no type for it: a counter whose name does not end in `_total`.
    pub fn is_unknown_in_openmetrics(&self) -> bool {
        matches!(self.kind, FamilyType::Counter | FamilyType::FloatCounter) && !self.name.ends_with("_total")
    }

    /// Whether the two can share one `# TYPE` line: everything is equal but the labels, and the help text, which the
    /// next release may improve.
    pub fn agrees_with(&self, other: &Family) -> bool {
        self.name == other.name && self.unit == other.unit && self.kind == other.kind
    }
}

impl Buckets {
    fn check(&self, name: &str) -> Result<(), FamilyError> {
        let ascending = self.classic.windows(2).all(|pair| pair[0] < pair[1]);
        let finite = self.classic.iter().all(|bound| bound.is_finite());
        let none = self.classic.is_empty() && self.native.is_none();
        if !ascending || !finite || none || self.classic.len() > BUCKETS_MAX {
            return Err(FamilyError::Buckets(name.to_owned()));
        }
        let good = |native: &Native| {
            NATIVE_SCHEMAS.contains(&native.schema)
                && native.zero_threshold >= 0.0
                && native.zero_threshold.is_finite()
                && (NATIVE_BUCKETS_MIN..=NATIVE_BUCKETS_MAX).contains(&native.buckets_max)
        };
        match self.native.as_ref().is_none_or(good) {
            true => Ok(()),
            false => Err(FamilyError::Native(name.to_owned())),
        }
    }
}

fn is_name(name: &str, colons: bool) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || (colons && byte == b':');
    let mut bytes = name.bytes();
    name.len() <= NAME_BYTES_MAX
        && bytes.next().is_some_and(letter)
        && bytes.all(|byte| letter(byte) || byte.is_ascii_digit())
}

// The change of a histogram between two readings, and its quantiles.
//
// Observations are assumed to be spread evenly within a bucket: linearly in classic buckets, exponentially in native
// ones, like Prometheus' `histogram_quantile`. Observations below zero are not expected, since nothing measured here
// is negative.

impl Distribution {
    /// The observations since an earlier state of the same histogram. If the histogram was reset, buckets that have
    /// fewer observations than before count as empty.
    pub fn since(&self, earlier: &Distribution) -> Distribution {
        let before = |index: usize| earlier.classic.get(index).copied().unwrap_or(0);
        let classic = self.classic.iter().enumerate().map(|(index, now)| now.saturating_sub(before(index)));
        let native = self.native.as_ref().map(|native| match &earlier.native {
            Some(earlier) => native.since(earlier),
            None => native.clone(),
        });
        Distribution { sum: (self.sum - earlier.sum).max(0.0), classic: classic.collect(), native }
    }

    /// The smallest value that a share `q`, from 0 to 1, of the observations do not exceed; `None`: there are no
    /// observations.
    pub fn quantile(&self, q: f64, buckets: &Buckets) -> Option<f64> {
        match &self.native {
            Some(native) if native.count() > 0 => native.quantile(q),
            _ => classic_quantile(&self.classic, &buckets.classic, q),
        }
    }
}

impl Exponential {
    fn since(&self, earlier: &Exponential) -> Exponential {
        let schema = self.schema.min(earlier.schema);
        let coarse = |state: &Exponential| {
            let mut buckets: BTreeMap<i32, u64> = BTreeMap::new();
            for (index, count) in &state.positive {
                *buckets.entry(coarser(*index, state.schema - schema)).or_default() += count;
            }
            buckets
        };
        let before = coarse(earlier);
        let rest = |(index, now): (i32, u64)| {
            let more = now.saturating_sub(before.get(&index).copied().unwrap_or(0));
            (more > 0).then_some((index, more))
        };
        Exponential {
            schema,
            zero_count: self.zero_count.saturating_sub(earlier.zero_count),
            positive: coarse(self).into_iter().filter_map(rest).collect(),
            nan_count: self.nan_count.saturating_sub(earlier.nan_count),
            zero_threshold: self.zero_threshold,
            negative: Vec::new(),
        }
    }

    fn quantile(&self, q: f64) -> Option<f64> {
        let all: u64 = self.zero_count + self.positive.iter().map(|(_, count)| count).sum::<u64>();
        let rank = q * all as f64;
        let mut below = self.zero_count;
        if all == 0 || rank <= below as f64 {
            return (all > 0).then_some(0.0);
        }
        let width = (-f64::from(self.schema)).exp2();
        for (index, count) in &self.positive {
            below += count;
            if rank <= below as f64 {
                let share = 1.0 - (below as f64 - rank) / *count as f64;
                return Some(((f64::from(*index) - 1.0 + share) * width).exp2());
            }
        }
        None
    }
}

/// In the bucket beyond the last bound the result is that bound: no more is known.
fn classic_quantile(counts: &[u64], bounds: &[f64], q: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let rank = q * all as f64;
    let mut below = 0;
    for (index, count) in counts.iter().enumerate() {
        below += count;
        if *count > 0 && rank <= below as f64 {
            let Some(upper) = bounds.get(index) else { break };
            let lower = if index == 0 { 0.0 } else { bounds[index - 1] };
            let share = 1.0 - (below as f64 - rank) / *count as f64;
            return Some(lower + (upper - lower) * share);
        }
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(name: &str, labels: &[&str], kind: FamilyType) -> Family {
        Family {
            name: name.into(),
            help: "h".into(),
            unit: String::new(),
            kind,
            labels: labels.iter().map(|label| (*label).into()).collect(),
            exemplars: false,
        }
    }

    #[test]
    fn names() {
        let check = |name: &str, labels: &[&str], good: bool| {
            assert_eq!(family(name, labels, FamilyType::Counter).check().is_ok(), good, "{name} {labels:?}");
        };
        check("a_total", &["b", "c1"], true);
        check("ns:a", &[], true);
        check("", &[], false);
        check("1a", &[], false);
        check("a-b", &[], false);
        check("ä", &[], false);
        check("a", &["a:b"], false);
        check("a", &["le"], false);
        check("a", &["__name__"], false);
        check("a", &["b", "b"], false);
        check(&"a".repeat(256), &[], false);
    }

    #[test]
    fn units() {
        let mut seconds = family("a_seconds_total", &[], FamilyType::FloatCounter);
        seconds.unit = "seconds".into();
        assert_eq!(seconds.check(), Ok(()));
        seconds.unit = "onds".into();
        assert!(seconds.check().is_err());
    }

    #[test]
    fn buckets() {
        let check = |classic: &[f64], native: Option<Native>, good: bool| {
            let kind = FamilyType::Histogram(Buckets { classic: classic.into(), native });
            assert_eq!(family("a", &[], kind).check().is_ok(), good, "{classic:?} {native:?}");
        };
        check(&[0.1, 1.0], None, true);
        check(&[], Some(Native::default()), true);
        check(&[], None, false);
        check(&[1.0, 1.0], None, false);
        check(&[1.0, f64::INFINITY], None, false);
        check(&[f64::NAN], None, false);
        check(&[1.0], Some(Native { schema: 9, ..Native::default() }), false);
        check(&[1.0], Some(Native { zero_threshold: -1.0, ..Native::default() }), false);
    }
}

#[cfg(test)]
mod quantile_tests {
    use super::*;
    use crate::family::Native;

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, not {expected}");
    }

    #[test]
    fn classic_buckets_are_linear() {
        let buckets = Buckets { classic: vec![1.0, 2.0, 4.0], native: None };
        let state = |classic: [u64; 4]| Distribution { sum: 0.0, classic: classic.to_vec(), native: None };
        near(state([0, 10, 0, 0]).quantile(0.5, &buckets), 1.5);
        near(state([5, 0, 5, 0]).quantile(0.5, &buckets), 1.0);
        near(state([5, 0, 5, 0]).quantile(0.9, &buckets), 3.6);
        near(state([0, 0, 0, 3]).quantile(0.5, &buckets), 4.0);
        assert_eq!(state([0; 4]).quantile(0.5, &buckets), None);
    }

    #[test]
    fn native_buckets_are_exponential() {
        let buckets = Buckets { classic: Vec::new(), native: Some(Native::default()) };
        let state = |positive: &[(i32, u64)], zero_count| {
            let native = Exponential { schema: 0, positive: positive.to_vec(), zero_count, ..Exponential::default() };
            Distribution { native: Some(native), ..Distribution::default() }
        };
        // At schema 0, bucket 1 ranges from 1 to 2, bucket 2 from 2 to 4.
        near(state(&[(1, 4), (2, 4)], 0).quantile(0.5, &buckets), 2.0);
        near(state(&[(1, 4), (2, 4)], 0).quantile(1.0, &buckets), 4.0);
        near(state(&[(1, 4)], 0).quantile(0.5, &buckets), 2f64.sqrt());
        near(state(&[(1, 1)], 9).quantile(0.5, &buckets), 0.0);
        assert_eq!(state(&[], 0).quantile(0.5, &buckets), None);
    }

    #[test]
    fn what_has_happened_since_is_the_difference() {
        let fine = Exponential { schema: 1, positive: vec![(1, 2), (2, 3), (5, 1)], ..Exponential::default() };
        let coarse = Exponential { schema: 0, positive: vec![(1, 9), (3, 1)], zero_count: 4, ..Exponential::default() };
        let since = coarse.since(&fine);
        assert_eq!((since.schema, since.positive, since.zero_count), (0, vec![(1, 4)], 4));
        // The histogram was reset.
        let small = Distribution { sum: 1.0, classic: vec![1, 5], native: None };
        let large = Distribution { sum: 9.0, classic: vec![7, 2], native: None };
        assert_eq!(small.since(&large), Distribution { sum: 0.0, classic: vec![0, 3], native: None });
    }
}
