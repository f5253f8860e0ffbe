//! The number of series of each family, to find the label that explodes.

use super::Reader;
use super::families::MergedFamily;
use super::mount::FamilyId;
use crate::labels::LabelPairs;

/// Most distinct values of a label that are shown.
pub(super) const SAMPLES_MAX: usize = 5;
/// Most series of a family that are searched for them, spread over all.
const LOOKED_AT_MAX: usize = 20_000;

/// One family's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyCardinality {
    /// The family's name.
    pub name: String,
    /// Its series, merged over all writers.
    pub series: usize,
    /// Bytes of their records in the segments.
    pub bytes: usize,
    /// Its labels, in the order of the declaration.
    pub labels: Vec<LabelCardinality>,
}

/// A label of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelCardinality {
    /// The label's name.
    pub name: String,
    /// About how many distinct values it has had, including values that are counted as `__other__`; 0: not known here.
    pub distinct: u64,
    /// Whether its values are counted as `__other__`.
    pub collapsed: bool,
    /// Some of its values.
    pub samples: Vec<String>,
}

impl LabelCardinality {
    fn of(name: &str) -> LabelCardinality {
        LabelCardinality { name: name.to_owned(), distinct: 0, collapsed: false, samples: Vec::new() }
    }
}

impl Reader {
    /// All exposed families, sorted by the memory of their records, largest first: folded series still take some.
    pub fn cardinality(&self) -> Vec<FamilyCardinality> {
        let families = self.order.families.exposed.iter().map(|id| (*id, self.order.families.get(*id)));
        let mut all: Vec<FamilyCardinality> = families.map(|(id, merged)| self.cardinality_of(id, merged)).collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        all
    }

    fn cardinality_of(&self, id: FamilyId, merged: &MergedFamily) -> FamilyCardinality {
        let series = || merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]).copied();
        let records = series().flat_map(|series| self.store.places(series));
        let words = records.map(|(place, each)| {
            let head = self.store.mounted(place.mount).head(each.record());
            // The epoch word of the series belongs to it.
            head.map_or(0, |head| head.words as usize * 8 + 4)
        });
        let label = |name: &String| {
            let samples = self.folding.samples(id, name).take(SAMPLES_MAX).cloned().collect();
            LabelCardinality { samples, ..LabelCardinality::of(name) }
        };
        let mut labels: Vec<LabelCardinality> = merged.labels.iter().map(label).collect();
        let step = merged.series.div_ceil(LOOKED_AT_MAX).max(1);
        for series in series().step_by(step) {
            if labels.iter().all(|label| label.samples.len() == SAMPLES_MAX) {
                break;
            }
            for (name, value) in LabelPairs::new(self.store.text(series)) {
                let label = labels.iter_mut().find(|label| label.name == name);
                if let Some(label) = label.filter(|label| label.samples.len() < SAMPLES_MAX)
                    && !label.samples.iter().any(|sample| *sample == value)
                {
                    label.samples.push(value.into_owned());
                }
            }
        }
        FamilyCardinality { name: merged.family.name.clone(), series: merged.series, bytes: words.sum(), labels }
    }
}
