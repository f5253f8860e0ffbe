//! Matching with a route cache: the key of a request, and the result kept under it.
//!
//! A key is made of exactly those fields that some route reads: for each the number of its values, and each value with
//! its length before it. So values cannot run into one another, and absent, empty and repeated values differ. Requests
//! of equal keys are taken by the same route, whatever else they hold, unless a function is called: then nothing is
//! kept.

use crate::Variable;
use crate::cache::RouteCache;
use crate::condition::Field;
use crate::fields::variable_of;
use crate::layer::{Context, ValueSource};
use crate::match_request::MatchRequest;
use crate::matcher::{Match, Matcher, Scratch};
use crate::path::PathError;
use crate::values::NONE;

impl Matcher {
    /// Like [`Matcher::find`], but looks into the cache first and stores the result there. The cache must not have been
    /// used with another matcher since it was cleared.
    ///
    /// A path with `%2F` bypasses it.
    pub fn find_cached(
        &self,
        request: &MatchRequest<'_>,
        scratch: &mut Scratch,
        cache: &mut RouteCache,
    ) -> Result<Option<Match>, PathError> {
        if request.path.ambiguous().is_some() {
            return self.find(request, scratch);
        }
        self.begin(request, scratch)?;
        let mut key = std::mem::take(&mut scratch.key);
        let newest = self.newest();
        self.write_key(&mut scratch.context(request, &newest.layer.fields), &mut key);
        let found = cache.get(&key).unwrap_or_else(|| {
            // The fields of the key have been read already.
            let found = self.find_as_begun(request, scratch);
            // The decision of a function may depend on values outside of the key.
            if scratch.values.decided.is_empty() {
                cache.put(&key, found);
            }
            found
        });
        scratch.key = key;
        Ok(found)
    }

    /// Whether some route reads a value that nearly every request has another of, so that a cache could not pay.
    pub fn reads_unique_values(&self) -> bool {
        self.reads.iter().any(|read| match read {
            ValueSource::Int(slot) | ValueSource::Text(slot) => {
                self.newest().layer.fields.get(*slot).field.is_nearly_unique()
            }
            _ => false,
        })
    }

    /// Whether the route of a request may depend on a field of its header.
    pub fn reads_headers(&self) -> bool {
        let reads_header = |read: &ValueSource| match read {
            ValueSource::Text(slot) | ValueSource::Int(slot) | ValueSource::Ip(slot) => {
                let field = &self.newest().layer.fields.get(*slot).field;
                let of_header = matches!(
                    variable_of(field),
                    Some(Variable::Header(_) | Variable::Cookie(_) | Variable::RemoteUser)
                );
                of_header || matches!(field, Field::Header(_))
            }
            _ => false,
        };
        let layers = [Some(&self.base), self.delta.as_ref()].into_iter().flatten();
        self.reads.iter().any(reads_header) || layers.into_iter().any(|of| of.layer.has_functions)
    }

    fn write_key(&self, context: &mut Context<'_, '_>, key: &mut Vec<u8>) {
        key.clear();
        let request = context.request;
        for read in self.reads.iter() {
            match *read {
                ValueSource::Path => push(key, request.path.bytes()),
                ValueSource::Host => push(key, request.host),
                ValueSource::SourceIp => match context.client {
                    std::net::IpAddr::V4(address) => push(key, &address.octets()),
                    std::net::IpAddr::V6(address) => push(key, &address.octets()),
                },
                ValueSource::Method(_) if let Some(name) = request.method.name() => push(key, name.as_bytes()),
                ValueSource::Method(slot)
                | ValueSource::Text(slot)
                | ValueSource::Int(slot)
                | ValueSource::Ip(slot) => {
                    let mut entry = context.values.first(slot, context.fields, request);
                    // The count becomes known at the end.
                    let at = key.len();
                    key.extend_from_slice(&[0; 4]);
                    let mut count = 0u32;
                    while entry != NONE {
                        push(key, context.values.text(entry));
                        count += 1;
                        entry = context.values.next(entry);
                    }
                    key[at..at + 4].copy_from_slice(&count.to_le_bytes());
                }
                // Both are parts of the path, and are only read together with it.
                ValueSource::SegmentCount | ValueSource::Param => {}
            }
        }
    }
}

/// Appends a value with its length before it.
fn push(key: &mut Vec<u8>, value: &[u8]) {
    key.extend_from_slice(&(value.len() as u32).to_le_bytes());
    key.extend_from_slice(value);
}
