//! Looks up the values of a request that a dispatch reads, and goes on with the children they lead to.

use super::assemble::regex_key;
use super::filing::network_key;
use super::search::Search;
use super::{Child, DispatchFields, Space};
use crate::condition::parse_address;
use crate::fields::SlotId;
use crate::layer::TextHash;
use crate::tree::Root;
use crate::values;
use std::ops::ControlFlow;

impl Search<'_, '_> {
    #[inline]
    pub(super) fn path(&mut self, space: Option<u32>, tree: Option<Root>, is_ranked: bool, path: &[u8]) {
        let (layer, before) = (self.layer, self.best);
        if let Some(space) = space
            && let Some(child) = layer.table.get(space, path, TextHash::new(path))
        {
            self.child(Child(child));
            if is_ranked && self.best < before {
                return;
            }
        }
        if let Some(tree) = tree {
            layer.forest.search(tree, path, |child| {
                self.child(Child(child));
                if is_ranked && self.best < before { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
    }

    /// Like [`Search::path`], for a path in lower case. Rare, so its text is copied to release the
    /// values.
    pub(super) fn slot_path(&mut self, space: Option<u32>, tree: Option<Root>, is_ranked: bool, slot: SlotId) {
        let first = self.values.first(slot, self.fields, self.request);
        if first == values::NONE {
            return;
        }
        let text = self.values.lend(first);
        self.path(space, tree, is_ranked, &text);
        self.values.take_back(text);
    }

    pub(super) fn prefix(&mut self, tree: Root, slot: SlotId, any: bool) {
        let layer = self.layer;
        let mut entry = self.values.first(slot, self.fields, self.request);
        let is_single = entry == values::NONE || self.values.next(entry) == values::NONE;
        while entry != values::NONE {
            let text = self.values.lend(entry);
            layer.forest.search(tree, &text, |child| {
                match is_single {
                    true => self.child(Child(child)),
                    false => self.child_once(Child(child)),
                }
                ControlFlow::Continue(())
            });
            self.values.take_back(text);
            // If all values must begin with the text, looking up the first one is enough.
            entry = if any { self.values.next(entry) } else { values::NONE };
        }
    }

    pub(super) fn network(&mut self, slot: Option<SlotId>, space: u32, prefixes: &[(u8, u8)]) {
        let layer = self.layer;
        let address = match slot {
            None => Some(self.client),
            Some(slot) => {
                let first = self.values.first(slot, self.fields, self.request);
                if first == values::NONE { None } else { parse_address(self.values.text(first)) }
            }
        };
        let Some(address) = address else { return };
        for &(_, bits) in prefixes.iter().filter(|(family, _)| *family == u8::from(address.is_ipv6())) {
            let key = network_key(address, bits);
            if let Some(child) = layer.table.get(space, &key, TextHash::new(&key)) {
                self.child(Child(child));
            }
        }
    }

    #[inline]
    pub(super) fn host(&mut self, space: u32, suffix_bytes_max: usize) {
        let (layer, host) = (self.layer, self.request.host);
        if host.is_empty() {
            return;
        }
        if let Some(child) = layer.table.get(space, host, TextHash::new(host)) {
            self.child(Child(child));
        }
        // From the left, so the longest suffix first; none is looked up that is longer than every key.
        let start = host.len().saturating_sub(suffix_bytes_max).max(1);
        for dot in memchr::memchr_iter(b'.', host.get(start..).unwrap_or_default()) {
            let suffix = &host[start + dot..];
            if let Some(child) = layer.table.get(space, suffix, TextHash::new(suffix)) {
                self.child(Child(child));
            }
        }
    }

    pub(super) fn equal(&mut self, of: DispatchFields, spaces: &[Space]) {
        /// Up to this many fields are looked up one by one; for more, the request's own fields are
        /// walked.
        const ONE_BY_ONE_MAX: usize = 4;
        let present = match of {
            _ if spaces.len() <= ONE_BY_ONE_MAX => None,
            DispatchFields::Header => Some(self.values.headers_present(self.fields, self.request)),
            DispatchFields::Argument => Some(self.values.arguments_present(self.fields, self.request)),
            DispatchFields::Other(_) => None,
        };
        let Some(present) = present else {
            spaces.iter().for_each(|space| self.equal_in(space));
            return;
        };
        for index in 0..present {
            let slot = match of {
                DispatchFields::Header => self.values.header_present(index),
                _ => self.values.argument_present(index),
            };
            let from = spaces.partition_point(|space| space.slot < slot);
            for space in spaces[from..].iter().take_while(|space| space.slot == slot) {
                self.equal_in(space);
            }
        }
        // Fields in lower case have slots of their own.
        for space in spaces.iter().filter(|space| self.fields.get(space.slot).lower_of.is_some()) {
            self.equal_in(space);
        }
    }

    fn equal_in(&mut self, &Space { slot, any, space }: &Space) {
        let layer = self.layer;
        let mut entry = self.values.first(slot, self.fields, self.request);
        if entry == values::NONE {
            return;
        }
        if !any {
            // All values must equal the one that is looked up.
            let text = self.values.text(entry);
            if self.values.chain(entry).all(|other| other == text)
                && let Some(child) = layer.table.get(space, text, TextHash::new(text))
            {
                self.child(Child(child));
            }
            return;
        }
        let is_single = self.values.next(entry) == values::NONE;
        while entry != values::NONE {
            let text = self.values.text(entry);
            match layer.table.get(space, text, TextHash::new(text)) {
                Some(child) if is_single => self.child(Child(child)),
                Some(child) => self.child_once(Child(child)),
                None => {}
            }
            entry = self.values.next(entry);
        }
    }

    pub(super) fn regex(&mut self, group: u32, space: u32) {
        let layer = self.layer;
        self.search_group(group);
        let mut index = 0;
        while let Some(&pattern) = self.own.groups[group as usize].regexes.hits_any().get(index) {
            index += 1;
            let all = self.own.groups[group as usize].regexes.all(pattern as usize);
            for any in [false, true] {
                let key = regex_key(pattern, any);
                if (any || all)
                    && let Some(child) = layer.table.get(space, &key, TextHash::new(&key))
                {
                    self.child(Child(child));
                }
            }
        }
    }
}
