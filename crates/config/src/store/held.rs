//! A resource as a store holds it: its document, whether that is right by itself, and the last one that was.

use crate::model::{Kind, Origin};
use crate::resources::{Catalog, Claim, Definition, Holder, Named, Written};
use serde_json::Value as Json;
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_schema::text::diagnostic::{Diagnostic, Fault, Path, Sink};
use stillgate_schema::text::json::{DOCUMENT, node};

pub(super) type Key = (Kind, Arc<str>);

#[derive(Debug)]
pub(super) struct Held {
    /// Who has what it claims is decided by this.
    pub(super) holder: Holder,
    pub(super) document: Arc<Json>,
    pub(super) origin: Origin,
    /// Why the document is refused by itself.
    pub(super) refusal: Option<Refusal>,
    /// The last one that was right, where this one is not.
    pub(super) previous: Option<(Arc<Json>, Origin)>,
    /// What it refers to.
    pub(super) references: Vec<Key>,
    /// Of the document that is served.
    pub(super) claims: Vec<Claim>,
}

/// Why a document is refused, whatever else there is.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// It is known which requests or connections it would have taken.
    pub(super) is_match_known: bool,
}

impl Held {
    /// Takes a document in that follows `before`. `nothing`: an empty catalog.
    pub(super) fn new(holder: Holder, document: Json, origin: Origin, before: Option<Held>, nothing: &Catalog) -> Held {
        let held = |document: Json, refusal, previous, claims| Held {
            holder: holder.clone(),
            document: document.into(),
            origin,
            refusal,
            previous,
            references: Vec::new(),
            claims,
        };
        match alone(holder.kind, &holder.id, &document, nothing) {
            Ok(claims) => held(document, None, None, claims),
            Err(refusal) => {
                let (previous, claims) = match before {
                    None => (None, Vec::new()),
                    Some(Held { refusal: None, document, origin, claims, .. }) => (Some((document, origin)), claims),
                    Some(Held { previous, claims, .. }) => (previous, claims),
                };
                held(document, Some(refusal), previous, claims)
            }
        }
    }

    /// The document that is served, if any can be.
    pub(super) fn served(&self) -> &Arc<Json> {
        self.previous.as_ref().map_or(&self.document, |(document, _)| document)
    }
}

/// Reads a document by itself; gives what it claims.
fn alone(kind: Kind, id: &str, document: &Json, nothing: &Catalog) -> Result<Vec<Claim>, Refusal> {
    let mut sink = Sink::alone().passing_unknown();
    let definition = define(kind, id, document, nothing, &mut sink);
    if !sink.has_errors() {
        let mut claims: Vec<Claim> =
            definition.iter().flat_map(|of| of.claims().into_iter().chain(of.credentials())).collect();
        // One that it has twice is one.
        let mut known = HashSet::new();
        claims.retain(|claim| known.insert(claim.what.clone()));
        return Ok(claims);
    }
    let errors = sink.into_errors().diagnostics;
    let is_match_known = definition.is_some_and(|definition| definition.has_match())
        && errors.iter().all(|error| !is_of_match(kind, &error.path));
    Err(Refusal { reason: reason(&errors), is_match_known })
}

/// What a document means among the others; `None`: that cannot be known, which has been reported.
pub(super) fn define(kind: Kind, id: &str, document: &Json, catalog: &Catalog, sink: &mut Sink) -> Option<Definition> {
    let root = &Path::Root;
    let node = node(document, root, sink);
    let written = Written::read(kind, &node, root, sink)?;
    if let Some(own) = written.id().filter(|own| own.value != id) {
        let key = if kind == Kind::Consumers { "username" } else { "id" };
        let fault = Fault::new(format!("the resource is {id:?}, and its document says {:?}", own.value));
        sink.error(DOCUMENT, &root.key(key), fault.hint("write the same"));
        return None;
    }
    catalog.define(written, Named { id, at: DOCUMENT, path: root }, sink)
}

/// What is wrong, in one line.
pub(super) fn reason(errors: &[Diagnostic]) -> String {
    let say = |error: &Diagnostic| Diagnostic { line: 0, excerpt: None, ..error.clone() }.to_string();
    errors.iter().map(say).collect::<Vec<_>>().join("; ")
}

/// Whether an error leaves it open what a resource takes.
fn is_of_match(kind: Kind, path: &str) -> bool {
    let key = path.split(['.', '[']).next().unwrap_or_default();
    match kind {
        Kind::Ssls => ["type", "status", "sni", "snis", "default"].contains(&key),
        _ => is_of_routes_match(key),
    }
}

/// A key that is not known may be one that would narrow the route, misspelt.
fn is_of_routes_match(key: &str) -> bool {
    // With "", what is wrong is of several keys, or one is missing.
    const OTHERS: [&str; 15] = [
        "",
        "id",
        "name",
        "desc",
        "labels",
        "create_time",
        "update_time",
        "upstream",
        "upstream_id",
        "service_id",
        "plugins",
        "plugin_config_id",
        "timeout",
        "enable_websocket",
        "on_change",
    ];
    !OTHERS.contains(&key)
}
