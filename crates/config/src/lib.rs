//! Text to validated configuration, every key defined once.
//!
//! ```text
//! text ─▶ tree of nodes with positions, ${ENV} put in               text/
//!      ─▶ what was written: one table of keys per object, `object!`   keys/, made with schema/ and values/
//!      ─▶ Config: what it means                                       model/, made by resources/
//! ```
//!
//! `file/` and `store/` are the two kinds of sources: each passes resources through all stages, and has its own policy of refusal.
//! `chain_lint` looks for what is valid in a `Config` and hardly intended. Dependencies between the folders point one way: file,
//! store ─▶ resources ─▶ model ─▶ keys ─▶ values.
//!
//! The JSON Schema and the reference are generated from the same tables. Nothing here does IO; the environment is an argument.
//! Unknown input is refused, with every error that can be found at once.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chain_lint;
mod file;
mod keys;
mod model;
mod resources;
mod schemas;
pub mod secret_fields;
mod store;
mod values;

pub use chain_lint::{ChainFinding, ChainLint, chain_lint};
pub use file::{
    DigestedText, FILE_BYTES_MAX, FileDocument, IncrementalReader, MASK, documents, is_masked, load, load_with,
    pid_file,
};
pub use keys::acme::{ACME_NAMES_MAX, Acme, AcmeEab};
pub use keys::admin::{Admin, AdminKey, AdminTls, SHORT_KEY_NAME};
pub use keys::checks::{
    ActiveCheck, ActiveHealthy, ActiveUnhealthy, CHECK_CONCURRENCY_MAX, CHECK_COUNT_MAX, Checks, PassiveCheck,
    PassiveHealthy, PassiveUnhealthy, RetryBudget, UpstreamLimits,
};
pub use keys::control_plane::{ConfigSourceKeys, DataEncryption, EtcdKeys, EtcdTls, KEYRING_KEY_BYTES};
pub use keys::devices::{
    DEVICES_MAX, DeviceLimits, DevicePeer, Devices, MESSAGE_BYTES_MAX as DEVICE_MESSAGE_BYTES_MAX,
};
pub use keys::gateway::LuaKeys;
pub use keys::gateway::{
    CONNECTIONS_PER_WORKER_MAX, Gateway, HEAD_BYTES_MAX, HEADERS_MAX, HttpListener, Limits, Log, ROUTE_CACHE_BYTES_MAX,
    ROUTE_CACHE_ENTRIES_MAX, RecordedProfiles, RouteCache, Timeouts, WORKERS_MAX,
};
pub use keys::metrics::{EXTRA_LABELS_MAX, METRICS_PATH_BYTES_MAX, SERIES_PER_FAMILY_MAX};
pub use keys::nodes::{PRIORITY_MAX, WEIGHT_MAX};
pub use keys::resources::{
    KeepalivePool, POOL_REQUESTS_MAX, POOL_SIZE_MAX, RETRIES_MAX, ROUTE_PRIORITY_MAX, TimeoutKeys as RouteTimeouts,
    UpstreamOptions,
};
pub use keys::shared::ID_BYTES_MAX;
pub use keys::ssls::CLIENT_DEPTH_MAX;
pub use keys::stream_proxy::{StreamListener, StreamProxy, UDP_SESSIONS_PER_WORKER_MAX, UdpListener};
pub use keys::stream_routes::StreamTimeouts;
pub use model::*;
pub use resources::{PluginSet, ReadPluginFiles};
pub use schemas::{PluginSchemas, Schemas, schema};
pub use stillgate_schema::text::diagnostic::{DIAGNOSTICS_MAX, Diagnostic, Errors, Severity};
pub use stillgate_schema::text::environment::Lookup;
pub use stillgate_schema::text::tree::locate;
pub use store::{Attempt, Change, DocumentChecker, ELSEWHERE, ENCRYPTED_WITH, Store, path_of};
pub use values::*;

use keys::resources::File;
use stillgate_schema::description::reference_of;

/// All keys with their defaults, as Markdown.
pub fn reference() -> String {
    let mut reference = reference_of::<File>();
    reference.push_str(
        "\n## Plugins\n\nThe plugins of a resource, by name. Each has a page with its keys: [plugins](plugins/README.md).\n\
         \n## PluginMetadata\n\nAn `id` (the plugin's name), and the keys listed on that plugin's page.\n",
    );
    reference
}

/// All families that can be exposed, as Markdown.
pub fn metrics_reference() -> String {
    values::families_as_markdown()
}
