//! Merged values of series: readers make them from all writers' parts, and encoders print them.

/// A merged value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Value of a counter, exact.
    Unsigned(u64),
    /// Value of a float counter, a gauge or an info.
    Float(f64),
    /// Value of a histogram.
    Histogram(&'a Distribution),
}

/// A histogram's state. Its count is not stored: it is the sum of the buckets, so that they cannot contradict each
/// other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    /// Sum of all observations.
    pub sum: f64,
    /// Observations per classic bucket, not cumulative, the `+Inf` bucket last; empty if all buckets are native.
    pub classic: Vec<u64>,
    /// The native buckets.
    pub native: Option<Exponential>,
}

/// The state of native buckets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exponential {
    /// The current resolution.
    pub schema: i8,
    /// Half the width of the zero bucket.
    pub zero_threshold: f64,
    /// Observations in the zero bucket.
    pub zero_count: u64,
    /// Bucket index and observations, ascending, without empty ones.
    pub positive: Vec<(i32, u64)>,
    /// Buckets of negative observations.
    pub negative: Vec<(i32, u64)>,
    /// NaN observations, which are counted but are in no bucket.
    pub nan_count: u64,
}

impl Distribution {
    /// Adds another writer's part of the same histogram.
    pub fn merge(&mut self, other: &Distribution) {
        self.sum += other.sum;
        if self.classic.is_empty() {
            self.classic.clone_from(&other.classic);
        } else {
            self.classic.iter_mut().zip(&other.classic).for_each(|(mine, theirs)| *mine += theirs);
        }
        match (&mut self.native, &other.native) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            (None, theirs) => self.native.clone_from(theirs),
            (Some(_), None) => {}
        }
    }

    /// Number of all observations.
    pub fn count(&self) -> u64 {
        match &self.native {
            Some(native) if self.classic.is_empty() => native.count(),
            _ => self.classic.iter().sum(),
        }
    }
}

impl Exponential {
    /// Adds another writer's part; the sum has the coarser schema.
    pub fn merge(&mut self, other: &Exponential) {
        let schema = self.schema.min(other.schema);
        self.zero_count += other.zero_count;
        self.nan_count += other.nan_count;
        self.zero_threshold = self.zero_threshold.max(other.zero_threshold);
        self.positive = merge_buckets(&self.positive, self.schema - schema, &other.positive, other.schema - schema);
        self.negative = merge_buckets(&self.negative, self.schema - schema, &other.negative, other.schema - schema);
        self.schema = schema;
    }

    /// Number of all observations.
    pub fn count(&self) -> u64 {
        let buckets = self.positive.iter().chain(&self.negative).map(|(_, count)| count).sum::<u64>();
        self.zero_count + self.nan_count + buckets
    }
}

/// Merges two ascending lists of buckets, each made coarser first.
fn merge_buckets(mine: &[(i32, u64)], mine_by: i8, theirs: &[(i32, u64)], theirs_by: i8) -> Vec<(i32, u64)> {
    let coarse =
        |buckets: &[(i32, u64)], by| buckets.iter().map(move |(i, n)| (coarser(*i, by), *n)).collect::<Vec<_>>();
    let mut all = coarse(mine, mine_by);
    all.extend(coarse(theirs, theirs_by));
    all.sort_unstable_by_key(|(index, _)| *index);
    all.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 += later.1;
        }
        same
    });
    all
}

/// A bucket's index at a schema lower by `shift`: two neighbours become one bucket.
#[inline]
pub(crate) fn coarser(index: i32, shift: i8) -> i32 {
    // Neither is trusted: the memory may be damaged.
    let shift = shift.clamp(0, 30);
    ((i64::from(index) + (1 << shift) - 1) >> shift) as i32
}

/// An example observation of a counter or bucket, with labels (usually a trace id) that lead to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    /// Which bucket it belongs to (index into the classic buckets, `+Inf` last); 0 for a counter.
    pub bucket: u32,
    /// Label text, escaped and joined as `name="value",…`, without braces.
    pub labels: Vec<u8>,
    /// The value that was observed, or added.
    pub value: f64,
    /// Time in milliseconds since the epoch.
    pub unix_ms: u64,
}
