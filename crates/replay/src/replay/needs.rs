//! The fields that a log must contain because some route reads them, and the lines that lack them.
//!
//! A route that reads a field which was not recorded sees it as absent, so the answer may be wrong. Lines with the same fields are
//! counted together, so that a line costs one look-up, however many fields routes read.

use crate::fields_read::{each_field, variable_of};
use std::collections::{HashMap, HashSet};
use stillgate_config::Config;
use stillgate_route::Variable;
use stillgate_route::condition::Field;

/// The most sets of fields by which lines are counted.
const KINDS_MAX: usize = 4096;

/// The fields that routes read, by their names in the access log.
#[derive(Debug, Default)]
pub(super) struct Needs {
    needs: Vec<Need>,
    by_key: HashMap<String, usize>,
    /// Number of lines by the set of fields they contain.
    kinds: HashMap<LineFields, u64>,
    /// Lines whose set was beyond the maximum.
    uncounted: u64,
}

#[derive(Debug)]
struct Need {
    /// The name in the access log.
    key: String,
    /// The name in routes.
    field: String,
    routes: usize,
    of: FieldGroup,
}

/// A group of fields that may contain the value of a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldGroup {
    Own,
    Header,
    Cookie,
    Query,
}

/// The needed fields that a line contains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LineFields {
    /// Positions of single fields, sorted.
    own: Vec<usize>,
    /// All header fields.
    pub(super) headers: bool,
    /// All cookies.
    pub(super) cookies: bool,
    /// The whole query.
    pub(super) query: bool,
}

/// A field that routes read and lines lack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnloggedField {
    /// The name in routes.
    pub field: String,
    /// The name in the access log.
    pub key: String,
    /// Number of routes, of both configurations together, that read it.
    pub routes: usize,
    /// Number of lines that lack it.
    pub lines: u64,
}

impl Needs {
    /// Collects the fields of all routes. Routes with the same id are counted once.
    pub(super) fn of(configurations: &[&Config]) -> Needs {
        let mut needs = Needs::default();
        let mut readers: Vec<HashSet<&str>> = Vec::new();
        for route in configurations.iter().flat_map(|config| &config.routes) {
            let spec = &route.spec;
            each_field(spec, &mut |field| {
                let Some((key, family)) = key_of(field) else { return };
                let at = *needs.by_key.entry(key).or_insert_with_key(|key| {
                    let (key, field) = (key.clone(), field.to_string());
                    needs.needs.push(Need { key, field, routes: 0, of: family });
                    readers.push(HashSet::new());
                    needs.needs.len() - 1
                });
                readers[at].insert(&spec.id);
            });
        }
        for (need, readers) in needs.needs.iter_mut().zip(readers) {
            need.routes = readers.len();
        }
        needs
    }

    /// The position of a field, if some route reads it.
    pub(super) fn position(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// Counts a line.
    pub(super) fn count(&mut self, held: &mut LineFields) {
        held.own.sort_unstable();
        held.own.dedup();
        if let Some(count) = self.kinds.get_mut(held) {
            *count += 1;
        } else if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(held.clone(), 1);
        } else {
            self.uncounted += 1;
        }
    }

    /// The fields that lines lack, those of most routes first.
    pub(super) fn missing(&self) -> Vec<UnloggedField> {
        let mut missing: Vec<UnloggedField> = Vec::new();
        for (at, need) in self.needs.iter().enumerate() {
            let lacking = self.kinds.iter().filter(|(held, _)| !held.has(at, need.of));
            // A line whose fields were not counted may lack any of them.
            let lines = lacking.map(|(_, count)| count).sum::<u64>() + self.uncounted;
            if lines > 0 {
                let (field, key) = (need.field.clone(), need.key.clone());
                missing.push(UnloggedField { field, key, routes: need.routes, lines });
            }
        }
        missing.sort_by(|a, b| (b.routes, &a.key).cmp(&(a.routes, &b.key)));
        missing
    }
}

impl LineFields {
    pub(super) fn clear(&mut self) {
        self.own.clear();
        (self.headers, self.cookies, self.query) = (false, false, false);
    }

    pub(super) fn add(&mut self, position: usize) {
        self.own.push(position);
    }

    fn has(&self, at: usize, family: FieldGroup) -> bool {
        let with_others = match family {
            FieldGroup::Own => false,
            FieldGroup::Header => self.headers,
            FieldGroup::Cookie => self.headers || self.cookies,
            FieldGroup::Query => self.query,
        };
        with_others || self.own.binary_search(&at).is_ok()
    }
}

/// The name of a field in the access log; `None`: every request has it.
fn key_of(field: &Field) -> Option<(String, FieldGroup)> {
    let variable = variable_of(field)?;
    let family = match &variable {
        Variable::Uri | Variable::PathParam(_) => return None,
        Variable::RequestUri | Variable::Args | Variable::IsArgs | Variable::Arg(_) => FieldGroup::Query,
        Variable::Header(name) if name.as_str() == "host" => {
            return Some((Variable::Host.to_string(), FieldGroup::Own));
        }
        Variable::Header(_) => FieldGroup::Header,
        Variable::Cookie(_) => FieldGroup::Cookie,
        _ => FieldGroup::Own,
    };
    Some((variable.to_string(), family))
}
