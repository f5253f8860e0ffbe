//! Text to validated configuration, every key defined once.
//!
//! ```text
//! text ── tree ──> nodes with positions, ${ENV} put in
//!      ── gateway, metrics, access_log, resources ──> what was written: one table of keys per object (`object!`)
//!      ── resolve ──> Config: what it means
//! ```
//!
//! The same tables give the JSON Schema and the reference. Nothing here does IO; the environment is
//! an argument. What is not understood in full is refused in full, with every error that can be found at once.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access_log;
mod acme;
mod addresses;
mod checks;
mod diagnostic;
mod dialect;
mod environment;
mod gateway;
mod incremental;
mod kind;
mod layout;
mod locate;
mod matching;
mod metrics;
mod model;
mod nearest;
mod nodes;
mod object;
mod quantity;
mod resolve;
mod resolve_tls;
mod resources;
mod scalar;
mod schema;
mod ssls;
mod stream_proxy;
mod stream_routes;
mod stream_upstreams;
mod takes;
mod tree;

pub use access_log::{AccessField, AccessFormat, AccessLog, AccessValue, LogDestination};
pub use acme::{ACME_NAMES_MAX, Acme, AcmeChallenge, AcmeEab, HmacKey};
pub use checks::{
    ActiveCheck, ActiveHealthy, ActiveUnhealthy, CHECK_CONCURRENCY_MAX, CHECK_COUNT_MAX, CheckType, Checks,
    PassiveCheck, PassiveHealthy, PassiveUnhealthy, RetryBudget, UpstreamLimits,
};
pub use diagnostic::{DIAGNOSTICS_MAX, Diagnostic, Errors, Severity};
pub use dialect::{Dialect, FamilyKind, FamilySpec, Label, Measure};
pub use environment::Lookup;
pub use gateway::{
    Admin, CONNECTIONS_PER_WORKER_MAX, Gateway, HEAD_BYTES_MAX, HEADERS_MAX, Limits, Listener, Log, LogFormat,
    ROUTE_CACHE_BYTES_MAX, ROUTE_CACHE_ENTRIES_MAX, RouteCache, RouteCacheMode, Timeouts, WORKERS_MAX,
};
pub use incremental::{Reader, Text};
pub use locate::locate;
pub use metrics::{EXTRA_LABELS_MAX, METRICS_PATH_BYTES_MAX, Metrics, SERIES_PER_FAMILY_MAX, Source};
pub use model::*;
pub use nodes::{PRIORITY_MAX, WEIGHT_MAX};
pub use resources::{ID_BYTES_MAX, KeepalivePool, POOL_REQUESTS_MAX, POOL_SIZE_MAX, RETRIES_MAX, ROUTE_PRIORITY_MAX};
pub use ssls::CLIENT_DEPTH_MAX;
pub use stream_proxy::{StreamListener, StreamProxy, UDP_SESSIONS_PER_WORKER_MAX, UdpListener};
pub use stream_routes::StreamTimeouts;

use diagnostic::{Path, Position, Sink};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The largest configuration file.
pub const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A configuration that can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// What the file means.
    pub config: Config,
    /// What its author should know all the same, in the order of the file.
    pub warnings: Vec<Diagnostic>,
}

/// Reads a configuration from its text. `environment` answers for `${NAME}`. One text after the other is read by a
/// [`Reader`], in proportion to what changed.
pub fn load(text: impl AsRef<[u8]>, environment: Lookup<'_>) -> Result<Loaded, Errors> {
    let text = text.as_ref();
    let mut sink = Sink::default();
    let config = read(text, environment, &mut sink)
        .map(|written| resolve(written.file, digest(text), written.tree.root.at, &mut sink).0);
    finish(config, sink)
}

/// The JSON Schema (draft 2020-12) of a configuration file.
pub fn schema() -> serde_json::Value {
    schema::schema_of::<resources::File>()
}

/// All keys with their defaults, as Markdown.
pub fn reference() -> String {
    schema::reference_of::<resources::File>()
}

/// All families that can be exposed, as Markdown.
pub fn metrics_reference() -> String {
    dialect::reference()
}

/// What a text says, before it is known what it means.
struct Written {
    tree: tree::Tree,
    file: resources::File,
}

fn read(bytes: &[u8], environment: Lookup<'_>, sink: &mut Sink) -> Option<Written> {
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        sink.error(Position::NOWHERE, &Path::Root, message);
        return None;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = position_of(&bytes[..error.valid_up_to()]);
            let fault = diagnostic::Fault::new("not UTF-8").hint("save the file as UTF-8");
            sink.error(at, &Path::Root, fault);
            return None;
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let tree = tree::parse(0, text, environment, sink)?;
    let file = kind::read(&object::map::<resources::File>(), &tree.root, &Path::Root, sink)?;
    Some(Written { tree, file })
}

fn resolve(file: resources::File, digest: String, root: Position, sink: &mut Sink) -> (Config, resolve::Shared) {
    let no_routes = file.routes.is_empty();
    let streams = &file.gateway.stream_proxy;
    let has_idle_listeners = file.stream_routes.is_empty() && !(streams.tcp.is_empty() && streams.udp.is_empty());
    let resolved = resolve::resolve(file, digest, sink);
    if no_routes && !sink.has_errors() {
        sink.warning(root, &Path::Root.key("routes"), "no routes; every request is answered 404");
    }
    if has_idle_listeners && !sink.has_errors() {
        let message = "no stream routes; every connection to gateway.stream_proxy is closed";
        sink.warning(root, &Path::Root.key("stream_routes"), message);
    }
    resolved
}

fn finish(config: Option<Config>, sink: Sink) -> Result<Loaded, Errors> {
    match config {
        Some(config) if !sink.has_errors() => Ok(Loaded { config, warnings: sink.into_warnings() }),
        _ => Err(sink.into_errors()),
    }
}

/// Where the byte after `before` is.
fn position_of(before: &[u8]) -> Position {
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let lines = before.iter().filter(|b| **b == b'\n').count();
    let columns = String::from_utf8_lossy(&before[line_start..]).chars().count();
    Position { line: lines as u32 + 1, column: columns as u32 + 1 }
}

/// SHA-256 of a file's bytes, as [`Config::digest`] has it.
pub fn digest(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
