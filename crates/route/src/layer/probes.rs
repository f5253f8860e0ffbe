//! The probes of dispatches: groups of filings, each with its key and its child, stored where a search looks them
//! up.

use super::build::Builder;
use super::{Child, DispatchFields, Space, TreeProbe};
use crate::fields::SlotId;
use crate::pattern::PARAM;
use crate::tree::Root;
use std::collections::BTreeSet;
use std::ops::Range;

impl Builder<'_> {
    pub(super) fn path_probe(&mut self, slot: Option<SlotId>, is_ranked: bool, groups: &[(u32, Child)]) -> TreeProbe {
        let is_exact = |atom: u32| !self.atoms[atom as usize].key.iter().any(|byte| *byte >= PARAM);
        let (exact, patterns): (Vec<_>, Vec<_>) = groups.iter().partition(|(atom, _)| is_exact(*atom));
        let space = (!exact.is_empty()).then(|| self.out.new_space());
        if let Some(space) = space {
            self.insert_all(space, &exact);
        }
        let tree = (!patterns.is_empty()).then(|| self.plant(&patterns));
        TreeProbe::Path { space, tree, slot, is_ranked }
    }

    /// A tree of keys, which are sorted.
    pub(super) fn plant(&mut self, groups: &[(u32, Child)]) -> Root {
        let key = |(atom, child): &(u32, Child)| (&*self.atoms[*atom as usize].key, child.0);
        let keys: Vec<(&[u8], u32)> = groups.iter().map(key).collect();
        self.out.forest.plant(&keys)
    }

    /// The prefix lengths of the networks are kept, so that only those are looked up.
    pub(super) fn network_probe(&mut self, slot: Option<SlotId>, groups: &[(u32, Child)]) -> TreeProbe {
        let space = self.out.new_space();
        self.insert_all(space, groups);
        let first = self.out.prefixes.len() as u32;
        let prefixes = groups.iter().filter_map(|(atom, _)| match *self.atoms[*atom as usize].key {
            [family, bits, ..] => Some((family, bits)),
            _ => None,
        });
        let prefixes: BTreeSet<(u8, u8)> = prefixes.collect();
        self.out.prefixes.extend(prefixes);
        TreeProbe::Network { slot, space, first, count: self.out.prefixes.len() as u32 - first }
    }

    pub(super) fn host_probe(&mut self, groups: &[(u32, Child)]) -> TreeProbe {
        let space = self.out.new_space();
        self.insert_all(space, groups);
        let suffixes =
            groups.iter().map(|(atom, _)| &self.atoms[*atom as usize].key).filter(|key| key.starts_with(b"."));
        let suffix_bytes_max = suffixes.map(|key| key.len()).max().unwrap_or(0) as u32;
        TreeProbe::Host { space, suffix_bytes_max }
    }

    /// Groups are sorted by their field, so the groups of each field are contiguous.
    pub(super) fn equal_probe(&mut self, of: DispatchFields, groups: &[(u32, Child)]) -> TreeProbe {
        let mut spaces = Vec::new();
        let field = |atom: u32| {
            let (_, slot, any, _) = self.atoms[atom as usize].key();
            (slot, any)
        };
        let runs: Vec<Range<usize>> = {
            let mut at = 0;
            groups
                .chunk_by(|a, b| field(a.0) == field(b.0))
                .map(|run| {
                    at += run.len();
                    at - run.len()..at
                })
                .collect()
        };
        for run in runs {
            let (slot, any) = field(groups[run.start].0);
            spaces.push((slot, any, run));
        }
        let first = self.out.spaces.len() as u32;
        let count = spaces.len() as u32;
        for (slot, any, run) in spaces {
            let space = self.out.new_space();
            self.out.spaces.push(Space { slot, any, space });
            self.insert_all(space, &groups[run]);
        }
        TreeProbe::Equal { of, first, count }
    }

    pub(super) fn insert_all(&mut self, space: u32, groups: &[(u32, Child)]) {
        for (atom, child) in groups {
            self.out.table.insert(space, &self.atoms[*atom as usize].key, child.0);
        }
    }
}
