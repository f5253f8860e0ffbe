//! Compiles resources by themselves and with their references, independently of their source.
//!
//! ```text
//!  keys ─▶ Written ─▶ Catalog::define, among what is in the catalog ─▶ Definition ─▶ Catalog::put, for those that refer to it
//!                                                                        │ claims: what only one may have
//!                                                                        ▼
//!                              the source: what is refused, what is served, in which order
//! ```
//!
//! References are resolved, services are merged into routes, and defaults that depend on other values are filled in. Checks that
//! need more than one value are here and nowhere else. An error in one resource does not hide those of others. All look-ups are by
//! hash, so that the time for 100,000 routes stays linear.

mod addresses;
mod catalog;
mod catalog_item;
mod checks;
mod claims;
mod consumers;
mod definition;
mod plugins;
mod refusal;
mod remembered_secrets;
mod resource_id;
mod secrets;
mod ssls;
mod stream_routes;
mod stream_upstreams;
mod takes;
mod unavailable;
mod upstream;

pub(crate) use addresses::{check_nodes, check_own_addresses};
pub(crate) use catalog::Catalog;
pub(crate) use claims::{Claim, Claims, Holder};
pub(crate) use definition::{Definition, ResourceKeys, own_upstreams};
pub(crate) use plugins::{LeftOut, List, Metadata, first_of_each, merge, metadata_table};
pub use plugins::{OwnFiles, PluginSet};
pub(crate) use plugins::{check_ignored, with_own};
pub(crate) use remembered_secrets::{RememberedSecrets, SecretHashes};
pub(crate) use resource_id::ResourceId;
pub(crate) use secrets::with_managers;
pub(crate) use unavailable::unavailable;

use std::collections::HashMap;
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Sink};

/// Records the line of an id; reports one that is taken.
pub(crate) fn take_id(
    lines: &mut HashMap<String, u32>,
    id: &At<String>,
    line: u32,
    path: &Path<'_>,
    sink: &mut Sink,
) -> bool {
    if let Some(first) = lines.get(&id.value) {
        let message = format!("the id {:?} is taken by the one in line {first}", id.value);
        sink.error(id.at, &path.key("id"), Fault::new(message).hint("write another"));
        return false;
    }
    lines.insert(id.value.clone(), line);
    true
}
