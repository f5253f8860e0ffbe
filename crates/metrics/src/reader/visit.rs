//! Reads the current values of one family, for programs that compute with them rather than expose them.
//!
//! The result is not cached, and nothing is encoded. The work is in proportion to the family's series, so frequent
//! callers should read small families.

use super::Reader;
use super::chunk::value_of;
use crate::family::{Family, FamilyType};
use crate::value::{Distribution, Value};

impl Reader {
    /// Visits the merged value of every series of a family, exposed or internal, with its labels as
    /// [`Pairs`](crate::labels::Pairs) reads them. The series are those of the last refresh; the values are current.
    /// `None`: the family does not exist.
    pub(crate) fn visit(&self, name: &str, mut visit: impl FnMut(&[u8], Value<'_>)) -> Option<&Family> {
        let merged = self.order.families.find(name)?;
        let kind = &merged.family.kind;
        let (mut part, mut whole) = (Distribution::default(), Distribution::default());
        let slots = merged.chunks.iter().flat_map(|id| &self.store.slots[*id as usize]);
        for slot in slots.filter(|slot| !slot.is_dead()) {
            let value = match kind {
                FamilyType::Histogram(_) => {
                    // A histogram in the middle of a change may lack an observation, which is seen the next time.
                    let _ = self.store.histogram(&merged.shape, *slot, &mut part, &mut whole);
                    Value::Histogram(&whole)
                }
                _ => value_of(kind, self.store.single(kind, *slot)),
            };
            visit(self.store.text(*slot), value);
        }
        Some(&merged.family)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Desk, Pen, counter, histogram};
    use super::*;

    #[test]
    fn a_family_is_read_over_all_writers() {
        let (mut a, mut b) = (Pen::new(1, 1 << 20), Pen::new(2, 1 << 20));
        let (counted, timed) = (counter(), histogram());
        for (pen, amount) in [(&mut a, 3), (&mut b, 4)] {
            let (requests, seconds) = (pen.family(&counted), pen.family(&timed));
            let ink = pen.series(requests, "a=\"1\"");
            pen.add(ink, amount);
            let ink = pen.series(seconds, "a=\"1\"");
            pen.observe(ink, 0.05 * amount as f64);
        }
        let mut desk = Desk::new(&[a.mount(), b.mount()]);
        desk.refresh();
        let mut seen = Vec::new();
        let found =
            desk.reader.visit(&counted.name, |labels, value| seen.push((labels.to_vec(), format!("{value:?}"))));
        assert_eq!(found.map(|family| &family.name), Some(&counted.name));
        assert_eq!(seen, [(b"a=\"1\"".to_vec(), "Unsigned(7)".to_owned())]);
        let mut counts = Vec::new();
        desk.reader.visit(&timed.name, |_, value| match value {
            Value::Histogram(state) => counts.push(state.count()),
            other => panic!("{other:?}"),
        });
        assert_eq!(counts, [2]);
        assert!(desk.reader.visit("no_such_family", |_, _| panic!("there is none")).is_none());
    }

    #[test]
    fn an_internal_family_is_read_and_not_exposed() {
        let mut pen = Pen::new(1, 1 << 20);
        let internal = Family { name: "__a_seconds".to_owned(), ..histogram() };
        for family in [&internal, &counter()] {
            let number = pen.family(family);
            let ink = pen.series(number, "a=\"1\"");
            match family.kind {
                FamilyType::Histogram(_) => pen.observe(ink, 0.05),
                _ => pen.add(ink, 1),
            }
        }
        let mut desk = Desk::new(&[pen.mount()]);
        assert_eq!(desk.refresh().hidden_families, 0);
        let text = desk.scrape();
        assert!(text.contains(&counter().name) && !text.contains("__a"), "{text}");
        assert_eq!(desk.reader.cardinality().len(), 1);
        let mut counts = Vec::new();
        let found = desk.reader.visit("__a_seconds", |_, value| match value {
            Value::Histogram(state) => counts.push(state.count()),
            other => panic!("{other:?}"),
        });
        assert_eq!((found, counts), (Some(&internal), vec![1]));
    }
}
