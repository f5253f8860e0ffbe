//! A resource in a store: its document, whether that is valid by itself, and the last valid one.

use super::path_of;
use super::served::{Store, consumer_of};
use crate::model::{Origin, Replacement, ResourceKind, Upstream};
use crate::resources::{Catalog, Claim, CompiledResource, Holder, ResourceId, ResourceKeys};
use crate::secret_fields::hide;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::{Consumer, Credential};
use stillgate_schema::CompileBudget;
use stillgate_schema::json::{DOCUMENT, node};
use stillgate_schema::partial_json::PartialDocument;
use stillgate_schema::text::diagnostic::{Diagnostic, Fault, Path, Sink, shortened};
use stillgate_schema::text::tree::Node;

/// The most bytes of a segment of an id. APISIX's ids have up to 64; names of secret managers and plugins fit, too.
const ID_BYTES_MAX: usize = 256;

pub(super) type Key = (ResourceKind, Arc<str>);

/// The key of a document whose secrets are still encrypted, because no key of the keyring decrypts them: its value identifies the
/// key. Such a document is refused, or its ciphertext would be taken for the secret.
pub const ENCRYPTED_WITH: &str = "$encrypted_with";

/// Rare parts are boxed: there may be a hundred thousand resources.
#[derive(Debug, Clone)]
pub(super) struct StoredResource {
    /// Determines which of two conflicting claims wins.
    pub(super) created: u64,
    /// JSON text.
    pub(super) document: Arc<str>,
    pub(super) origin: Origin,
    /// Its references; shared with others that have the same.
    pub(super) references: Arc<[Key]>,
    seldom: Option<Box<RareParts>>,
}

/// Parts of a resource that has claims, was changed, or is refused.
#[derive(Debug, Clone, Default)]
struct RareParts {
    /// The claims of the served document.
    claims: Box<[Claim]>,
    /// Why the document by itself is refused.
    refusal: Option<Arc<str>>,
    /// The last valid document, if this one is not valid.
    previous: Option<(Arc<str>, Origin)>,
    /// The previously served document, in case this one turns out to be unusable after all.
    replaced: Option<(Arc<str>, Origin)>,
}

impl RareParts {
    fn is_some(&self) -> bool {
        !self.claims.is_empty() || self.refusal.is_some() || self.previous.is_some() || self.replaced.is_some()
    }
}

impl StoredResource {
    /// Makes a resource from a document that follows `before`. `nothing`: an empty catalog.
    pub(super) fn new(
        (kind, id): &Key,
        created: u64,
        document: Arc<str>,
        origin: Origin,
        before: Option<StoredResource>,
        (nothing, budget): (&Catalog, &Rc<CompileBudget>),
    ) -> StoredResource {
        let replaced = before.as_ref().and_then(StoredResource::usable);
        let Alone { claims, refusal } = evaluate_alone(*kind, id, &document, nothing, budget);
        let claims = match (&refusal, before) {
            (Some(_), Some(before)) if replaced.is_some() => before.claims().into(),
            // Its readable parts are its own, so that no later resource answers in its place.
            _ => claims,
        };
        let previous = replaced.clone().filter(|_| refusal.is_some());
        let seldom = Some(RareParts { claims, refusal, previous, replaced }).filter(RareParts::is_some).map(Box::new);
        StoredResource { created, document, origin, references: Arc::default(), seldom }
    }

    /// Its identity among resources with the same claims.
    pub(super) fn holder(&self, (kind, id): &Key) -> Holder {
        Holder { created: self.created, kind: *kind, id: id.clone(), line: 0 }
    }

    /// The claims of the served document.
    pub(super) fn claims(&self) -> &[Claim] {
        self.seldom.as_ref().map_or(&[], |seldom| &seldom.claims)
    }

    /// Why the document by itself is refused.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.seldom.as_ref()?.refusal.as_deref()
    }

    /// The last valid document, if this one is not valid.
    pub(super) fn previous(&self) -> Option<&(Arc<str>, Origin)> {
        self.seldom.as_ref()?.previous.as_ref()
    }

    /// The document if it is valid by itself.
    fn usable(&self) -> Option<(Arc<str>, Origin)> {
        match self.refusal() {
            None => Some((self.document.clone(), self.origin.clone())),
            Some(_) => self.previous().cloned(),
        }
    }

    /// Refuses a document that is valid by itself, for a reason outside of it; the caller re-evaluates those with the same claims
    /// as the previous document.
    pub(super) fn refuse(&mut self, (kind, id): &Key, reason: String, nothing: &Catalog) {
        let seldom = self.seldom.get_or_insert_default();
        seldom.previous = seldom.replaced.take();
        seldom.refusal = Some(reason.into());
        // Without a previous document its requests are answered with 503, so it keeps its claims.
        if let Some((document, _)) = &seldom.previous {
            seldom.claims = evaluate_alone(*kind, id, document, nothing, &Rc::default()).claims;
        }
    }

    /// The served document, if there is one.
    pub(super) fn last_valid_document(&self) -> &Arc<str> {
        self.previous().map_or(&self.document, |(document, _)| document)
    }
}

/// The evaluation of a document by itself.
struct Alone {
    /// The claims of its readable parts.
    claims: Box<[Claim]>,
    /// Why it is refused, whatever other resources exist.
    refusal: Option<Arc<str>>,
}

/// Evaluates a document by itself.
fn evaluate_alone(
    kind: ResourceKind,
    id: &str,
    document: &str,
    nothing: &Catalog,
    budget: &Rc<CompileBudget>,
) -> Alone {
    let mut sink = Sink::for_single_resource().passing_unknown().paying_from(budget);
    let compiled = compile(kind, id, document, nothing, &mut sink);
    let is_refused = sink.has_errors();
    let compiled = match kind {
        // Its names are its own, whatever else is unreadable.
        ResourceKind::Ssls if is_refused => {
            let document = readable(kind, id, document);
            document.and_then(|document| nothing.refusal(kind, id, &document, "")).map(|refusal| refusal.compiled)
        }
        _ => compiled,
    };
    let mut claims: Vec<Claim> =
        compiled.iter().flat_map(|of| of.claims().into_iter().chain(of.credentials())).collect();
    // A duplicate within the document counts once. A group guards nothing, so a refused member gives it up.
    let mut known = HashSet::new();
    claims.retain(|claim| !(is_refused && claim.is_plugin_state_group()) && known.insert(claim.what.clone()));
    let refusal = is_refused.then(|| reason(&sink.into_errors().diagnostics).into());
    Alone { claims: claims.into(), refusal }
}

/// Validates a document by itself, under the id in it.
pub(super) fn check(kind: ResourceKind, document: &str, nothing: &Catalog) -> Result<(), String> {
    let json: Option<Json> = serde_json::from_str(document).ok();
    let own = |key: &str| json.as_ref().and_then(|json| json.get(key)).and_then(Json::as_str).map(str::to_owned);
    let id = if kind == ResourceKind::Consumers { own("username") } else { own("id") };
    let id = id.unwrap_or_else(|| "1".to_owned());
    // By itself, neither contains the parent's id.
    let id = match kind {
        ResourceKind::Secrets if !id.contains('/') => format!("vault/{id}"),
        ResourceKind::Credentials if !id.contains('/') => format!("consumer/{id}"),
        _ => id,
    };
    evaluate_alone(kind, &id, document, nothing, &Rc::default())
        .refusal
        .map_or(Ok(()), |reason| Err(reason.to_string()))
}

/// Compiles a document with its references; `None`: that is impossible, which has been reported.
pub(super) fn compile(
    kind: ResourceKind,
    id: &str,
    document: &str,
    catalog: &Catalog,
    sink: &mut Sink,
) -> Option<CompiledResource> {
    let root = &Path::Root;
    if let Some(fault) = unusable_id(kind, id) {
        sink.error(DOCUMENT, root, fault);
    }
    let Tree { node, is_encrypted } = tree(kind, id, document, sink)?;
    if is_encrypted && matches!(kind, ResourceKind::Consumers | ResourceKind::Credentials) {
        // Ciphertext is not a credential.
        return None;
    }
    let written = ResourceKeys::read(kind, &node, root, sink)?;
    if let Some(own) = written.id().filter(|own| !is_id(kind, id, &own.value)) {
        let fault = Fault::new(format!("the resource is {id:?}, and its document says {:?}", own.value));
        // A consumer is identified by its name. Any other resource is identified by its key, as in APISIX.
        if kind == ResourceKind::Consumers {
            sink.error(DOCUMENT, &root.key("username"), fault.hint("write the same"));
            return None;
        }
        sink.warning(DOCUMENT, &root.key("id"), fault.hint("write the same"));
    }
    catalog.compile_resource(written, ResourceId { id, at: DOCUMENT, path: root, node: &node }, sink)
}

/// The readable parts of a document, whether it is usable or not.
pub(super) fn readable(kind: ResourceKind, id: &str, document: &str) -> Option<Node> {
    tree(kind, id, document, &mut Sink::for_single_resource()).map(|tree| tree.node)
}

/// A document as a tree of nodes.
struct Tree {
    node: Node,
    /// Whether its secrets are still encrypted, which has been reported.
    is_encrypted: bool,
}

/// Parses a document, and refuses values that are not JSON; `None`: it is not a resource. Both have been reported.
fn tree(kind: ResourceKind, id: &str, document: &str, sink: &mut Sink) -> Option<Tree> {
    let root = &Path::Root;
    let read = PartialDocument::read(document);
    if read.is_none() {
        sink.error(DOCUMENT, root, Fault::new("the value is empty, or APISIX's marker of a directory"));
    }
    let read = read?;
    for fault in read.faults() {
        sink.error(DOCUMENT, root, Fault::new(fault));
    }
    let mut document = with_id(kind, id, read.json);
    let with = document.as_object_mut().and_then(|keys| keys.remove(ENCRYPTED_WITH));
    if let Some(with) = &with {
        sink.error(DOCUMENT, root, lacking_key_fault(with.as_str().unwrap_or_default()));
    }
    // The status, logs and answers repeat the errors of a document.
    hide(kind.name(), &mut document, sink);
    Some(Tree { node: node(&document, root, sink), is_encrypted: with.is_some() })
}

fn lacking_key_fault(with: &str) -> Fault {
    let fault =
        Fault::new(format!("its secrets are encrypted with a key ({with}) that gateway.data_encryption.keyring lacks"));
    fault.hint("put that key back and restart, or write the resource again, with its secrets in plain text")
}

/// A document with its id, which that of a secret manager need not contain.
fn with_id(kind: ResourceKind, id: &str, mut document: Json) -> Json {
    if kind == ResourceKind::Secrets
        && let Some(keys) = document.as_object_mut()
        && keys.get("id").is_none_or(|own| own.as_str().is_some_and(|own| is_id(kind, id, own)))
    {
        keys.insert("id".to_owned(), json!(id));
    }
    document
}

/// Why a resource cannot have this id. In etcd anybody can write any key, and APISIX serves them: such a resource is refused here,
/// but not ignored.
fn unusable_id(kind: ResourceKind, id: &str) -> Option<Fault> {
    let segments = if matches!(kind, ResourceKind::Credentials | ResourceKind::Secrets) { 2 } else { 1 };
    let is_good = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.len() <= ID_BYTES_MAX
            && !segment.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER)
    };
    if id.split('/').count() == segments && id.split('/').all(is_good) {
        return None;
    }
    let path = path_of(kind, id);
    let fault = Fault::new(format!("its key {:?} is not the key of a {}", shortened(&path), kind.singular()));
    Some(fault.hint("write it with an id without slashes and control characters"))
}

/// Whether `written` is the id of the resource `id`; for credentials and secret managers, its last segment.
fn is_id(kind: ResourceKind, id: &str, written: &str) -> bool {
    let is_part = matches!(kind, ResourceKind::Credentials | ResourceKind::Secrets);
    written == id || is_part && id.rsplit_once('/').is_some_and(|(_, last)| last == written)
}

/// The errors in one line.
pub(super) fn reason(errors: &[Diagnostic]) -> String {
    let say = |error: &Diagnostic| Diagnostic { line: 0, excerpt: None, ..error.clone() }.to_string();
    errors.iter().map(say).collect::<Vec<_>>().join("; ")
}

// The lookup tables of a store's compiled definitions.

impl Store {
    /// Adds a compiled resource; `None`: removes it. Returns whether it changed for those that refer to it.
    pub(super) fn place(&mut self, (kind, id): &Key, created: u64, compiled: Option<CompiledResource>) -> bool {
        let rank = (created, id.clone());
        let mut is_other = self.catalog.put(*kind, id, 0, compiled.as_ref());
        if *kind == ResourceKind::PluginMetadata {
            let rejected = self.rejected.get(&(*kind, id.clone()));
            let is_refused = rejected.is_some_and(|rejected| rejected.serving == Replacement::Unavailable);
            is_other |= self.catalog.refuse_metadata(id, is_refused);
        }
        if *kind == ResourceKind::Services {
            let refused = self.rejected.contains_key(&(*kind, id.clone())) && compiled.is_none();
            let held = self.held.get(&(*kind, id.clone())).filter(|_| refused);
            let document = held.map(|held| readable(*kind, id, held.last_valid_document()));
            is_other |= self.catalog.refuse_service(id, document.as_ref().map(Option::as_ref));
        }
        let upstreams = compiled.as_ref().map_or(Vec::new(), CompiledResource::upstreams);
        self.place_upstreams(*kind, id, upstreams);
        match (kind, compiled) {
            (ResourceKind::Ssls, Some(CompiledResource::Ssl(ssl, _))) => set(&mut self.ssls, rank, ssl),
            (ResourceKind::Ssls, _) => set(&mut self.ssls, rank, None),
            (ResourceKind::PluginMetadata, Some(CompiledResource::Metadata(of))) => {
                set(&mut self.metadata, id.clone(), Some(of))
            }
            (ResourceKind::PluginMetadata, _) => set(&mut self.metadata, id.clone(), None),
            (ResourceKind::GlobalRules, Some(CompiledResource::GlobalRule(list))) => {
                set(&mut self.global_rules, rank, Some(list))
            }
            (ResourceKind::GlobalRules, _) => set(&mut self.global_rules, rank, None),
            (ResourceKind::StreamRoutes, Some(CompiledResource::StreamRoute(route))) => {
                set(&mut self.stream_routes, rank, route)
            }
            (ResourceKind::StreamRoutes, _) => set(&mut self.stream_routes, rank, None),
            (ResourceKind::Routes, Some(CompiledResource::Route(Some(route)))) => self.routes.put(created, route),
            (ResourceKind::Routes, _) => self.routes.remove(created, id),
            (ResourceKind::Credentials, compiled) => {
                let credential = match compiled {
                    Some(CompiledResource::Credential(credential)) => Some(credential),
                    _ => None,
                };
                set(&mut self.credentials, id.clone(), credential);
                self.dirty.insert((ResourceKind::Consumers, consumer_of(id).into()));
            }
            (ResourceKind::Consumers, compiled) => self.place_consumer(id, compiled),
            (
                ResourceKind::Secrets
                | ResourceKind::PluginConfigs
                | ResourceKind::ConsumerGroups
                | ResourceKind::Upstreams
                | ResourceKind::Services
                | ResourceKind::Protos,
                _,
            ) => {}
        }
        is_other
    }

    /// Replaces the upstreams of a resource.
    fn place_upstreams(&mut self, kind: ResourceKind, id: &str, upstreams: Vec<Arc<Upstream>>) {
        if id.is_empty() || id.contains('/') {
            // It is refused, so it has none; and `routes/1` as the id of an upstream is the key of a route's inline one.
            return;
        }
        let own = if kind == ResourceKind::Upstreams { id.to_owned() } else { format!("{}/{id}", kind.name()) };
        let mut new: BTreeMap<String, Arc<Upstream>> =
            upstreams.into_iter().map(|upstream| (upstream.key.clone(), upstream)).collect();
        // The upstreams of its plugins. Ids contain no slash, and "0" is the next character.
        let of_plugins = self.upstreams.range(format!("{own}/")..format!("{own}0")).map(|(key, _)| key.clone());
        for key in [own].into_iter().chain(of_plugins.collect::<Vec<_>>()) {
            let upstream = new.remove(&key);
            set(&mut self.upstreams, key, upstream);
        }
        new.into_iter().for_each(|(key, upstream)| set(&mut self.upstreams, key, Some(upstream)));
    }

    /// A consumer, including the credentials that are stored separately.
    fn with_own_credentials(
        &self,
        consumer: Consumer,
        mut credentials: Vec<Credential>,
    ) -> (Consumer, Vec<Credential>) {
        let (from, to) = (format!("{}/", consumer.name), format!("{}0", consumer.name));
        let range = (Bound::Included(&*from), Bound::Excluded(&*to));
        let mut ids = consumer.credentials.into_vec();
        for (id, credential) in self.credentials.range::<str, _>(range) {
            credentials.push(Credential { place: u16::try_from(ids.len()).ok(), ..credential.clone() });
            ids.push(id[from.len()..].into());
        }
        (Consumer { credentials: ids.into(), ..consumer }, credentials)
    }

    fn place_consumer(&mut self, name: &str, compiled: Option<CompiledResource>) {
        match compiled {
            Some(CompiledResource::Consumer(consumer, credentials)) => {
                let (consumer, credentials) = self.with_own_credentials(consumer, credentials);
                // No other consumer has one of them: claims ensure that. A duplicate of its own is found by the first.
                let _ = Arc::make_mut(&mut self.consumers).replace(consumer, credentials);
            }
            _ if self.consumers.find_by_name(name).is_some() => drop(Arc::make_mut(&mut self.consumers).remove(name)),
            _ => {}
        }
    }
}

/// Adds or removes a value. An equal one is not replaced.
fn set<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) if map.get(&key) == Some(&value) => {}
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;
    use crate::model::{Replacement, Target};
    use crate::resources::PluginSet;
    use crate::store::{Change, Store};

    fn put(kind: ResourceKind, id: &str, document: &str) -> Change {
        Change::Put { kind, id: id.into(), document: document.into(), created: 1, origin: Origin::Revision(1) }
    }

    /// APISIX serves any key below a collection, so none may be ignored.
    #[test]
    fn a_key_of_no_resource_is_refused_and_guards() {
        let gateway = load("upstreams: []\n", &|_| None).unwrap().config.gateway;
        let mut store = Store::new(gateway, PluginSet::default());
        let nodes = r#""upstream": {"type": "roundrobin", "nodes": {"10.0.0.1:1": 1}}"#;
        store.apply([put(ResourceKind::Routes, "1", &format!(r#"{{"uri": "/*", {nodes}}}"#))]);
        let guarded = format!(r#"{{"uri": "/guarded/*", {nodes}}}"#);
        for id in ["", "a/b", "a/", "/a", "a/b/c/d/e", "..", "a\nb", "\u{fffd}ff", "../routes_old/1", &"x".repeat(257)]
        {
            store.apply([put(ResourceKind::Routes, id, &guarded)]);
            let rejected: Vec<_> = store.rejected().map(|of| (of.id.clone(), of.serving)).collect();
            assert_eq!(rejected, [(id.to_owned(), Replacement::Unavailable)]);
            let refused = store.routes.iter().find(|route| route.spec.id == id).expect("it takes its requests");
            assert!(matches!(refused.target, Target::Unavailable(_)), "{id:?}");
            store.apply([Change::Delete { kind: ResourceKind::Routes, id: id.to_owned() }]);
            assert_eq!((store.rejected().count(), store.routes.len()), (0, 1));
        }
        // The key of a route's inline upstream.
        store.apply([put(ResourceKind::Upstreams, "routes/1", r#"{"nodes": {"10.0.0.2:1": 1}}"#)]);
        assert_eq!(store.rejected().count(), 1);
        assert_eq!(store.upstreams["routes/1"].nodes.len(), 1);
        store.apply([Change::Delete { kind: ResourceKind::Upstreams, id: "routes/1".to_owned() }]);
        assert!(store.upstreams.contains_key("routes/1"));
        for (kind, id) in [
            (ResourceKind::Consumers, ""),
            (ResourceKind::Consumers, "jack/keys/1"),
            (ResourceKind::Credentials, "jack/1/2"),
            (ResourceKind::GlobalRules, "a/b"),
            (ResourceKind::GlobalRules, ""),
            (ResourceKind::Secrets, "1"),
            (ResourceKind::Secrets, "vault/1/2"),
            (ResourceKind::Secrets, ""),
            (ResourceKind::Upstreams, ""),
            (ResourceKind::Ssls, "../ssls"),
        ] {
            store.apply([put(kind, id, r#"{"username": "jack", "plugins": {}}"#)]);
            assert_eq!(store.rejected().map(|of| of.id.as_str()).collect::<Vec<_>>(), [id]);
            store.apply([Change::Delete { kind, id: id.to_owned() }]);
        }
        assert_eq!(store.rejected().count(), 0);
        for kind in ResourceKind::all() {
            // The id is not its error.
            let refusal = store.checker().check(kind, r#"{"id": "a", "username": "a"}"#).err().unwrap_or_default();
            assert!(!refusal.contains("is not the key of"), "{refusal}");
        }
    }
}
