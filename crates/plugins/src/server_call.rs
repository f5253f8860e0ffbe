//! Common parts of plugins that call another server: its URL, names of header fields, keeping connections.

use std::time::Duration;
use stillgate_plugin_api::{Compile, Keep, Url};
use stillgate_schema::{At, Fault, Text, text};
use stillgate_wire::OwnedFieldName;

/// The name of a header field.
pub(crate) const FIELD_NAME: Text<OwnedFieldName> = text("the name of a header field", |text| {
    OwnedFieldName::new(text.as_bytes()).map_err(|error| Fault::new(format!("{text:?}: {error}")))
});

/// Parses the URL under a key.
pub(crate) fn url(text: &At<String>, verifies: bool, key: &str, cx: &mut Compile<'_>) -> Option<Url> {
    Url::parse(&text.value, verifies).map_err(|why| cx.sink.error(text.at, &cx.path.key(key), Fault::new(why))).ok()
}

/// `keepalive`, `keepalive_timeout` and `keepalive_pool`.
pub(crate) fn keepalive(is_kept: bool, idle_ms: u32, connections_max: u32) -> Option<Keep> {
    let idle = Duration::from_millis(u64::from(idle_ms));
    is_kept.then_some(Keep { idle, connections_max: connections_max as usize })
}
