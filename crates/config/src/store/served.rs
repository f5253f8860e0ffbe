//! Resources by kind and id, and the effects of a change on other resources.

use super::stored_resource::{Key, StoredResource, compile, readable, reason};
use super::{Change, path_of};
use crate::keys::gateway::Gateway;
use crate::model::{
    Config, LoadedConfig, Origin, RejectedResource, Replacement, ResourceKind, RouteList, SharedPlugins, Ssl,
    StreamRoute, Upstream,
};
use crate::resources::addresses::check_nodes;
use crate::resources::{
    Catalog, Claims, CompiledResource, Metadata, PluginList, PluginSet, RememberedSecrets, SkippedPlugin,
    deduplicate_global_rules, metadata_table, unavailable,
};
use crate::values::RejectedGlobalRule;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::secrets::{Managers, Secrets as _};
use stillgate_plugin_api::{Chain, Consumers, Credential, CustomPlugins, PluginLevel};
use stillgate_schema::CompileBudget;
use stillgate_schema::json::DOCUMENT;
use stillgate_schema::text::diagnostic::{Diagnostic, Fault, Path, Severity, Sink};

/// All resources of a store, with their compiled forms.
#[derive(Debug)]
pub struct Store {
    pub(super) gateway: Gateway,
    /// Without the secret managers that are resources of the store.
    plugins: PluginSet,
    /// The values of its secrets.
    pub(super) secrets: Arc<RememberedSecrets>,
    pub(super) catalog: Catalog,
    /// The empty catalog, for reading documents by themselves.
    pub(super) nothing: Arc<Catalog>,
    pub(super) held: BTreeMap<Key, Box<StoredResource>>,
    claims: Claims,
    /// The resources that refer to a resource, whether that exists or not.
    dependants: HashMap<Key, BTreeSet<Key>>,
    /// Number of changes since maps were shrunk.
    changes: usize,
    /// Resources to be compiled again.
    pub(super) dirty: BTreeSet<Key>,
    pub(super) rejected: BTreeMap<Key, RejectedResource>,
    /// Rejected resources that others cannot refer to, by kind.
    unusable: Arc<HashSet<(&'static str, String)>>,
    pub(super) warnings: BTreeMap<Key, Vec<Diagnostic>>,
    /// By [`Upstream::key`].
    pub(super) upstreams: BTreeMap<String, Arc<Upstream>>,
    pub(super) routes: RouteList,
    pub(super) stream_routes: BTreeMap<Rank, Arc<StreamRoute>>,
    pub(super) ssls: BTreeMap<Rank, Arc<Ssl>>,
    pub(super) global_rules: BTreeMap<Rank, PluginList>,
    pub(super) metadata: BTreeMap<Arc<str>, Metadata>,
    pub(super) consumers: Arc<Consumers>,
    /// Whether nothing has been read yet.
    is_waiting: bool,
    /// What compiling may still cost in a change that is only tried out.
    pub(super) trial: Option<usize>,
    /// Resources whose changes are only tried out.
    pub(super) attempted: BTreeSet<Key>,
    /// The credentials that are stored separately, by `CONSUMER/ID`.
    pub(super) credentials: BTreeMap<Arc<str>, Credential>,
}

/// The most references to secrets whose values are remembered to detect changes.
const REFERENCES_MAX: usize = 100_000;

/// Number of changes after which maps are shrunk; with many resources a quarter of their number, so that it costs little.
const SHRINK_AFTER: usize = 1_000;

/// The creation of a resource, and its id: the sort key.
type Rank = (u64, Arc<str>);

impl Store {
    /// An empty store.
    pub fn new(gateway: Gateway, plugins: PluginSet) -> Store {
        Store::with(gateway, plugins, &Managers::default())
    }

    fn with(gateway: Gateway, plugins: PluginSet, managers: &Managers) -> Store {
        let secrets = Arc::new(RememberedSecrets::new(plugins.secrets.clone(), REFERENCES_MAX));
        let used = secrets.with_managers(managers).unwrap_or_else(|| secrets.clone());
        let used = PluginSet { secrets: used, ..plugins.clone() };
        Store {
            catalog: Catalog::new(&gateway, used.clone()),
            nothing: Arc::new(Catalog::new(&gateway, used)),
            gateway,
            plugins,
            secrets,
            held: BTreeMap::new(),
            claims: Claims::default(),
            dependants: HashMap::new(),
            changes: 0,
            dirty: BTreeSet::new(),
            rejected: BTreeMap::new(),
            unusable: Arc::default(),
            warnings: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            routes: RouteList::default(),
            stream_routes: BTreeMap::new(),
            ssls: BTreeMap::new(),
            global_rules: BTreeMap::new(),
            metadata: BTreeMap::new(),
            consumers: Arc::default(),
            is_waiting: false,
            trial: None,
            attempted: BTreeSet::new(),
            credentials: BTreeMap::new(),
        }
    }

    /// Applies changes in order. Compiles the changed resources again, and those that refer to something that changed by that.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        let mut has_managers = false;
        for change in changes {
            has_managers |= change.of().0 == ResourceKind::Secrets;
            self.hold(change);
            self.changes += 1;
        }
        match has_managers {
            // The value of any reference may have changed.
            true => {
                self.reread(self.gateway.clone());
                self.report_secrets();
            }
            false => self.settle_all(),
        }
        if self.changes > SHRINK_AFTER.max(self.held.len() / 4) {
            self.shrink();
        }
    }

    pub(super) fn settle_all(&mut self) {
        // No credential may stay registered for its former owner.
        let names = self.dirty.iter().filter_map(|(kind, id)| match kind {
            ResourceKind::Consumers => Some(&**id),
            ResourceKind::Credentials => Some(consumer_of(id)),
            _ => None,
        });
        for name in names {
            if self.consumers.find_by_name(name).is_some() {
                Arc::make_mut(&mut self.consumers).remove(name);
            }
        }
        // References always come from later kinds.
        while let Some(key) = self.dirty.pop_first() {
            if self.settle(&key) {
                self.dirty.extend(self.dependants.get(&key).into_iter().flatten().cloned());
            }
        }
    }

    /// Reads everything again: because of another `gateway:` section or other plugin files, or because secrets may have changed.
    pub fn renew(&mut self, gateway: Gateway, custom: CustomPlugins) {
        self.plugins.table.custom = custom;
        self.reread(gateway);
        self.report_secrets();
    }

    /// Values of secrets that nothing uses any more may be forgotten, unless a change is only tried out.
    fn report_secrets(&self) {
        if self.trial.is_none() {
            self.secrets.report_in_use();
        }
    }

    /// What compiling a resource may cost.
    fn budget(&self) -> Rc<CompileBudget> {
        Rc::new(CompileBudget::of_change(self.trial.unwrap_or(usize::MAX)))
    }

    /// Notes what compiling a resource has left of a budget.
    fn note_budget(&mut self, budget: &CompileBudget) {
        self.trial = self.trial.map(|_| budget.remaining_of_change());
    }

    /// Answers everything with 503: the resources have not been read yet.
    pub fn wait(&mut self) {
        self.is_waiting = true;
    }

    /// Serves its resources.
    pub fn go_on(&mut self) {
        self.is_waiting = false;
    }

    /// Whether every secret in use is unchanged.
    pub fn has_current_secrets(&self) -> bool {
        self.secrets.is_unchanged()
    }

    /// The references to secrets that are in use.
    pub fn secret_references(&self) -> Vec<String> {
        self.secrets.references()
    }

    /// Refuses a resource that is valid by itself, for a reason outside of it: an unusable certificate.
    pub fn refuse(&mut self, kind: ResourceKind, id: &str, reason: &str) {
        let key: Key = (kind, id.into());
        let Some(mut held) = self.forget(&key) else { return };
        if held.refusal().is_none() {
            held.refuse(&key, reason.to_owned(), &self.nothing);
        }
        self.reinsert(&key, Some(held));
        self.settle_all();
    }

    /// The last valid documents of resources whose newest is invalid: a restart should serve those, too.
    pub fn previous(&self) -> impl Iterator<Item = (ResourceKind, &str, &Arc<str>)> {
        // A resource with one is rejected; this is fast because there are few of them.
        self.rejected.keys().filter_map(|key| {
            let (document, _) = self.held.get(key)?.previous()?;
            Some((key.0, &*key.1, document))
        })
    }

    /// Whether anything that is served needs a certificate, a key or roots.
    pub fn uses_tls(&self) -> bool {
        !self.ssls.is_empty() || self.upstreams.values().any(|upstream| upstream.tls.is_some())
    }

    /// Reads everything again, secret managers first.
    pub(super) fn reread(&mut self, gateway: Gateway) {
        let changes = self.list();
        let (managers, is_waiting, trial) = (self.managers(), self.is_waiting, self.trial);
        let attempted = std::mem::take(&mut self.attempted);
        *self = Store { is_waiting, trial, attempted, ..Store::with(gateway, self.plugins.clone(), &managers) };
        self.checker().fetch(changes.iter().filter_map(Change::document));
        changes.into_iter().for_each(|change| self.hold(change));
        self.settle_all();
    }

    /// The usable secret managers.
    fn managers(&self) -> Managers {
        let mut managers = Managers::default();
        let first: Key = (ResourceKind::Secrets, "".into());
        let held = self.held.range(first..).take_while(|((kind, _), _)| *kind == ResourceKind::Secrets);
        for ((kind, id), held) in held {
            let mut sink = Sink::of_one().passing_unknown();
            let compiled = compile(*kind, id, held.last_valid_document(), &self.nothing, &mut sink);
            if let Some(CompiledResource::Secret(manager)) = compiled.filter(|_| !sink.has_errors()) {
                managers.0.insert(id.rsplit('/').next().unwrap_or(id).into(), manager);
            }
        }
        managers
    }

    /// Everything as changes that recreate the store.
    pub fn list(&self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.held.len());
        for ((kind, id), held) in &self.held {
            let put = |document: &Arc<str>, origin: &Origin| Change::Put {
                kind: *kind,
                id: id.to_string(),
                document: document.clone(),
                created: held.created,
                origin: origin.clone(),
            };
            changes.extend(held.previous().map(|(document, origin)| put(document, origin)));
            changes.push(put(&held.document, &held.origin));
        }
        changes
    }

    /// The resources that are not served as they were put.
    pub fn rejected(&self) -> impl Iterator<Item = &RejectedResource> {
        self.rejected.values()
    }

    /// The served configuration, with the rejected resources. `revision` takes the place of a file's digest.
    pub fn load(&self, revision: &str) -> LoadedConfig {
        let (global, mut warnings) = self.global();
        warnings.extend(self.warnings.values().flatten().cloned());
        let config = Config {
            gateway: self.gateway.clone(),
            listeners: self.catalog.listeners.clone(),
            upstreams: self.upstreams.values().cloned().collect(),
            routes: self.routes.clone(),
            route_lines: vec![0; self.routes.len()],
            stream_routes: self.stream_routes.values().cloned().collect(),
            ssls: self.ssls.values().cloned().collect(),
            plugins: SharedPlugins {
                custom: self.plugins.table.custom.clone(),
                global,
                consumers: self.consumers.clone(),
                metadata: Arc::new(metadata_table(self.metadata.values())),
            },
            digest: revision.to_owned(),
        };
        let rejected = self.rejected.values().cloned().collect();
        LoadedConfig { config, warnings, warnings_beside: Vec::new(), rejected }
    }

    /// The plugins of every request, and those that are left out.
    fn global(&self) -> (Arc<Chain>, Vec<Diagnostic>) {
        if self.is_waiting {
            return (deny_all_chain(""), Vec::new());
        }
        let is_denying =
            |of: &&RejectedResource| of.kind == ResourceKind::GlobalRules && of.serving == Replacement::Unavailable;
        if let Some(rule) = self.rejected.values().find(is_denying) {
            return (deny_all_chain(&rule.id), Vec::new());
        }
        let (kept, skipped) = deduplicate_global_rules(self.global_rules.values());
        let warnings = skipped.iter().map(|skipped| {
            let SkippedPlugin { entry, .. } = skipped;
            let key = (ResourceKind::GlobalRules, Arc::from(&*entry.origin.id));
            let fault = skipped.fault();
            let path = format!("plugins.{}", entry.name);
            let (severity, message, hint) = (Severity::Warning, fault.message, fault.hint);
            of_resource(&key, Diagnostic { severity, path, line: 0, column: 0, message, hint, excerpt: None })
        });
        match Chain::of_all(kept) {
            Ok(chain) => (Arc::new(chain), warnings.collect()),
            // It is undetermined which of the rules is one too many.
            Err(_) => (deny_all_chain(""), warnings.collect()),
        }
    }

    /// Adds a document, whether it is valid or not.
    fn hold(&mut self, change: Change) {
        let (kind, id, put) = match change {
            Change::Delete { kind, id } => (kind, id, None),
            Change::Put { kind, id, document, created, origin } => (kind, id, Some((document, created, origin))),
        };
        let key = (kind, Arc::from(id));
        let before = self.forget(&key);
        let budget = self.budget();
        let held = put.map(|(document, created, origin)| {
            let before = before.map(|before| *before);
            Box::new(StoredResource::new(&key, created, document, origin, before, (&self.nothing, &budget)))
        });
        self.note_budget(&budget);
        self.reinsert(&key, held);
    }

    /// Adds a new resource.
    pub(super) fn reinsert(&mut self, key: &Key, held: Option<Box<StoredResource>>) {
        if let Some(held) = held {
            self.claims.add(held.claims(), &held.holder(key));
            self.touch_claimants(key, &held);
            self.held.insert(key.clone(), held);
        }
        self.dirty.insert(key.clone());
        // Its consumer determines whether it is usable; and a consumer includes those that are stored separately.
        match key.0 {
            ResourceKind::Consumers => {
                let own = self.held.range(of_consumer(&key.1)).map(|(key, _)| key.clone());
                self.dirty.extend(own.collect::<Vec<_>>());
            }
            ResourceKind::Credentials => drop(self.dirty.insert((ResourceKind::Consumers, consumer_of(&key.1).into()))),
            _ => {}
        }
    }

    /// Removes a resource, including its place among the others of its kind.
    pub(super) fn forget(&mut self, key: &Key) -> Option<Box<StoredResource>> {
        let held = self.held.remove(key)?;
        self.claims.remove(held.claims(), &held.holder(key));
        self.touch_claimants(key, &held);
        for reference in held.references.iter() {
            if let Some(dependants) = self.dependants.get_mut(reference) {
                dependants.remove(key);
                if dependants.is_empty() {
                    self.dependants.remove(reference);
                }
            }
        }
        let rank = (held.created, key.1.clone());
        match key.0 {
            ResourceKind::Routes => self.routes.remove(rank.0, &rank.1),
            ResourceKind::StreamRoutes => drop(self.stream_routes.remove(&rank)),
            ResourceKind::Ssls => drop(self.ssls.remove(&rank)),
            ResourceKind::GlobalRules => drop(self.global_rules.remove(&rank)),
            ResourceKind::Credentials => drop(self.credentials.remove(&key.1)),
            _ => {}
        }
        Some(held)
    }

    /// Schedules the resources with the same claims.
    fn touch_claimants(&mut self, key: &Key, held: &StoredResource) {
        let own = held.holder(key);
        let others = self.claims.holders(held.claims()).filter(|other| **other != own);
        self.dirty.extend(others.map(|other| (other.kind, other.id.clone())));
    }

    /// Returns unused memory after many changes: nodes of maps that grew one by one are half empty.
    fn shrink(&mut self) {
        self.changes = 0;
        self.held = std::mem::take(&mut self.held).into_iter().collect();
        for of in self.dependants.values_mut() {
            *of = std::mem::take(of).into_iter().collect();
        }
        self.dependants.shrink_to_fit();
    }

    /// Compiles a resource; returns whether it changed for those that refer to it.
    fn settle(&mut self, key: &Key) -> bool {
        self.rejected.remove(key);
        self.warnings.remove(key);
        let Some(held) = self.held.get(key) else {
            let is_other = self.note_unusable(key);
            return self.place(key, 0, None) || is_other;
        };
        let created = held.created;
        let mut sink = Sink::of_one().passing_unknown().with_unusable(&self.unusable).paying_from(&self.budget());
        let compiled = compile(key.0, &key.1, held.last_valid_document(), &self.catalog, &mut sink);
        let budget = sink.budget();
        for upstream in compiled.as_ref().map_or(Vec::new(), CompiledResource::upstreams) {
            check_nodes(&self.catalog.listeners, &upstream, &mut sink);
        }
        let mut is_late = false;
        if key.0 == ResourceKind::Credentials
            && !self.held.contains_key(&(ResourceKind::Consumers, consumer_of(&key.1).into()))
        {
            let message = format!("there is no consumer {:?}", consumer_of(&key.1));
            sink.error(DOCUMENT, &Path::Root, Fault::new(message).hint("add it to `consumers`"));
        }
        for claim in held.claims() {
            if let Some(first) = self.claims.in_the_way(claim, &held.holder(key)) {
                claim.report(first, &Path::Root, &mut sink);
                is_late = true;
            } else if let Some(first) = self.claims.invalid_name_before(claim, &held.holder(key)) {
                claim.report_invalid_name(first, &Path::Root, &mut sink);
                is_late = true;
            }
        }
        self.note_budget(&budget);
        self.refer(key, sink.take_references());
        let failed = sink.has_errors().then(|| reason(&std::mem::take(&mut sink).into_errors().diagnostics));
        let warnings: Vec<Diagnostic> = sink.into_warnings().into_iter().map(|found| of_resource(key, found)).collect();
        if !warnings.is_empty() {
            self.warnings.insert(key.clone(), warnings);
        }
        let compiled = self.judge(key, compiled, failed, is_late);
        let is_other = self.note_unusable(key);
        self.place(key, created, compiled) || is_other
    }

    /// Records whether others can refer to a resource; returns whether that changed. Their errors are reported with them.
    fn note_unusable(&mut self, key: &Key) -> bool {
        let of = (key.0.name(), key.1.to_string());
        let is_unusable = self.rejected.get(key).is_some_and(|of| of.serving != Replacement::Previous);
        if self.unusable.contains(&of) == is_unusable {
            return false;
        }
        let unusable = Arc::make_mut(&mut self.unusable);
        if is_unusable { unusable.insert(of) } else { unusable.remove(&of) }
    }

    /// Determines what is served for a resource that may have errors; records whether that is not what was put.
    /// `is_late`: an older resource has one of its claims.
    fn judge(
        &mut self,
        key: &Key,
        compiled: Option<CompiledResource>,
        failed: Option<String>,
        is_late: bool,
    ) -> Option<CompiledResource> {
        let held = self.held.get(key)?;
        let failed = failed.or_else(|| compiled.as_ref().and_then(CompiledResource::unavailable_reason));
        let is_previous = failed.is_none() && held.previous().is_some();
        let mut reason = match (held.refusal(), failed) {
            (None, None) => return compiled,
            (Some(reason), _) => reason.to_owned(),
            (None, Some(failed)) => failed,
        };
        let (serving, compiled) = match is_previous {
            true => (Replacement::Previous, compiled),
            false => self.refusal_of(key, held, compiled, is_late, &mut reason),
        };
        let origin = match &held.origin {
            Origin::Revision(revision) => {
                Origin::named(format!("{}{} @ {revision}", self.prefix(), path_of(key.0, &key.1)))
            }
            named => named.clone(),
        };
        let rejected = RejectedResource { kind: key.0, id: key.1.to_string(), reason, origin, serving };
        self.rejected.insert(key.clone(), rejected);
        compiled
    }

    /// The replacement of a resource without a valid version. `reason` is extended by the keys by which the refusal is broader than
    /// the resource.
    fn refusal_of(
        &self,
        key: &Key,
        held: &StoredResource,
        compiled: Option<CompiledResource>,
        is_late: bool,
        reason: &mut String,
    ) -> (Replacement, Option<CompiledResource>) {
        let (kind, id) = key;
        let taking = |compiled: Option<CompiledResource>| match compiled {
            Some(compiled) => (Replacement::Unavailable, Some(compiled)),
            None => (Replacement::Nothing, None),
        };
        match kind {
            ResourceKind::Routes | ResourceKind::StreamRoutes | ResourceKind::Ssls => {
                let document = readable(*kind, id, held.last_valid_document());
                let refusal = document.and_then(|document| self.catalog.refusal(*kind, id, &document, reason));
                // A change that is only tried out and refused changes nothing for other requests.
                let serving = refusal.as_ref().filter(|_| !self.attempted.contains(key));
                if let Some(refusal) = serving.filter(|refusal| !refusal.widened.is_empty()) {
                    let any = refusal.widened.join(" and any ");
                    *reason = format!("{reason}; so that no other answers in its place, it refuses any {any}");
                }
                if serving.is_some_and(|refusal| refusal.compiled.asks_clients()) {
                    reason.push_str(
                        "; handshakes for its names are refused unless another entry asks for client certificates",
                    );
                }
                taking(refusal.map(|refusal| refusal.compiled))
            }
            // Its readable credentials identify it, unless another consumer has them.
            ResourceKind::Consumers => {
                let (from, to) = (format!("{id}/"), format!("{id}0"));
                let mut apart = self.credentials.range::<str, _>((Bound::Included(&*from), Bound::Excluded(&*to)));
                let has_any = |of: &CompiledResource| of.credentials().next().is_some();
                let is_known =
                    |of: &CompiledResource| held.refusal().is_none() || has_any(of) || apart.next().is_some();
                taking(compiled.filter(|_| !is_late).filter(is_known).and_then(CompiledResource::into_refused_consumer))
            }
            // Clients that present it are unknown.
            ResourceKind::Credentials | ResourceKind::Protos => (Replacement::Nothing, None),
            ResourceKind::GlobalRules if self.gateway.config.rejected_global_rule == RejectedGlobalRule::Ignore => {
                (Replacement::Nothing, None)
            }
            // The resources that refer to it.
            _ => (Replacement::Unavailable, None),
        }
    }

    /// The prefix of paths in origins: that of the keys, with a slash.
    fn prefix(&self) -> String {
        match self.gateway.config.key_prefix() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        }
    }

    fn refer(&mut self, key: &Key, references: Vec<(&'static str, String)>) {
        let of = |(kind, id): (&str, String)| {
            let key: Key = (ResourceKind::from_name(kind)?, id.into());
            // All resources that refer to it share its name.
            Some(self.dependants.get_key_value(&key).map_or(key, |(known, _)| known.clone()))
        };
        let references: Vec<Key> = references.into_iter().filter_map(of).collect();
        let references = self.shared(&references).unwrap_or_else(|| references.into());
        let Some(held) = self.held.get_mut(key) else { return };
        for gone in std::mem::replace(&mut held.references, references.clone()).iter() {
            if let Some(dependants) = self.dependants.get_mut(gone) {
                dependants.remove(key);
            }
        }
        for reference in references.iter() {
            self.dependants.entry(reference.clone()).or_default().insert(key.clone());
        }
    }

    /// The references of a neighbour, if they are equal.
    fn shared(&self, references: &[Key]) -> Option<Arc<[Key]>> {
        let dependants = self.dependants.get(references.first()?)?;
        let neighbours = [dependants.first(), dependants.last()].into_iter().flatten();
        let mut theirs = neighbours.filter_map(|key| Some(&self.held.get(key)?.references));
        theirs.find(|theirs| ***theirs == *references).cloned()
    }
}

/// The keys of credentials that are stored separately from a consumer: those below `NAME/`.
fn of_consumer(name: &str) -> std::ops::Range<Key> {
    // "0" is the character after the slash.
    (ResourceKind::Credentials, format!("{name}/").into())..(ResourceKind::Credentials, format!("{name}0").into())
}

/// The consumer of the credential `NAME/ID`.
pub(super) fn consumer_of(credential: &str) -> &str {
    credential.split_once('/').map_or(credential, |(name, _)| name)
}

/// A finding about a resource.
fn of_resource((kind, id): &Key, found: Diagnostic) -> Diagnostic {
    let path = match found.path.as_str() {
        "" => format!("{}/{id}", kind.name()),
        path => format!("{}/{id}: {path}", kind.name()),
    };
    Diagnostic { path, line: 0, column: 0, ..found }
}

/// Replaces all global rules if one is unusable: it may be what keeps clients out.
fn deny_all_chain(rule: &str) -> Arc<Chain> {
    Chain::merge([&[unavailable(PluginLevel::GlobalRule, rule)][..]]).map(Arc::new).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn put(kind: ResourceKind, id: &str, document: &str) -> Change {
        Change::Put { kind, id: id.into(), document: document.into(), created: 1, origin: Origin::Revision(1) }
    }

    /// A hundred thousand routes to one upstream share one list of references, and shrinking loses nothing.
    #[test]
    fn who_refers_to_the_same_shares_the_list() {
        let gateway = load("upstreams: []\n", &|_| None).unwrap().config.gateway;
        let mut store = Store::new(gateway, PluginSet::default());
        store.apply(
            ["u", "v"]
                .map(|id| put(ResourceKind::Upstreams, id, r#"{"type": "roundrobin", "nodes": {"10.0.0.1:1": 1}}"#)),
        );
        let route = |number: usize, upstream: &str| {
            put(
                ResourceKind::Routes,
                &number.to_string(),
                &format!(r#"{{"uri": "/{number}", "upstream_id": "{upstream}"}}"#),
            )
        };
        let count = SHRINK_AFTER + 1;
        store.apply((0..count).map(|number| route(number, "u")));
        assert_eq!((store.changes, store.held.len()), (0, count + 2));
        store.apply([route(7, "v")]);
        let references =
            |number: usize| store.held[&(ResourceKind::Routes, number.to_string().into())].references.clone();
        let dependants = |id: &str| store.dependants[&(ResourceKind::Upstreams, id.into())].len();
        assert!(Arc::ptr_eq(&references(1), &references(2)));
        assert_eq!((&*references(7)[0].1, dependants("u"), dependants("v")), ("v", count - 1, 1));
    }
}
