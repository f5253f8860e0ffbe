//! Kong's declarative file as lists of entities: nesting undone, references resolved, defaults of `_info` below.
//!
//! Entities are nested (`services[].routes[].plugins[]`) or at the top with a reference by name or id. Both forms end
//! up in the same lists here. What an entity's keys mean is read elsewhere.

use crate::object::{Field, Object};
use std::collections::HashMap;

/// The format before Kong 3, whose paths of routes are read in another way.
const OLD_FORMATS: [&str; 2] = ["1.1", "2.1"];
const FORMAT: &str = "3.0";

/// Lists at the top that nothing here can take, with the reason.
const FOREIGN_LISTS: [(&str, &str); 13] = [
    ("filter_chains", "filters in WebAssembly cannot run here; rewrite them as functions in Lua, or leave them out"),
    ("keys", "keys of `jwe-decrypt` and the like have no use here"),
    ("key_sets", "sets of keys have no use here"),
    ("licenses", "a licence of Kong has no use here"),
    ("rbac_roles", "roles of Kong's Admin API are not imported; see `gateway.admin.keys`"),
    ("rbac_endpoint_permissions", "permissions of Kong's Admin API are not imported; see `gateway.admin.keys`"),
    ("custom_entities", "entities of other plugins are not imported"),
    ("custom_plugins", "plugins in Lua are not imported; see docs/lua.md for writing them here"),
    ("cloned_plugins", "cloned plugins are not imported"),
    ("partials", "parts of plugins that are shared are not imported; write them into each plugin before the import"),
    ("service_packages", "service packages have no use here"),
    ("workspaces", "workspaces are not imported; import the file of each on its own"),
    ("oauth2_tokens", "OAuth tokens are not imported; use `jwt-auth` with an identity provider"),
];

/// A named thing of the file.
#[derive(Debug, Clone)]
pub(crate) struct Entity {
    pub(crate) object: Object,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) entity: Entity,
    pub(crate) service: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct KongUpstream {
    pub(crate) entity: Entity,
    pub(crate) targets: Vec<Object>,
}

#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) entity: Entity,
    pub(crate) snis: Vec<String>,
}

/// A credential's kind and keys.
#[derive(Debug)]
pub(crate) struct Credential {
    pub(crate) kind: CredentialKind,
    pub(crate) object: Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CredentialKind {
    Key,
    Basic,
    Jwt,
    Hmac,
    AclGroup,
    /// A credential of an authentication that does not exist here.
    Foreign,
}

/// The lists of credentials, by their names in the file.
const CREDENTIAL_LISTS: [(&str, CredentialKind); 8] = [
    ("keyauth_credentials", CredentialKind::Key),
    ("basicauth_credentials", CredentialKind::Basic),
    ("jwt_secrets", CredentialKind::Jwt),
    ("hmacauth_credentials", CredentialKind::Hmac),
    ("acls", CredentialKind::AclGroup),
    ("oauth2_credentials", CredentialKind::Foreign),
    ("mtls_auth_credentials", CredentialKind::Foreign),
    ("keyauth_enc_credentials", CredentialKind::Foreign),
];

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) entity: Entity,
    pub(crate) credentials: Vec<Credential>,
    /// Indexes into the consumer groups.
    pub(crate) groups: Vec<usize>,
    /// Whether a group of it is unknown, because a variable names it.
    pub(crate) has_unknown_groups: bool,
}

/// Where a plugin applies: everywhere if nothing is named, otherwise where all that is named agrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Scope {
    pub(crate) route: Option<usize>,
    pub(crate) service: Option<usize>,
    pub(crate) consumer: Option<usize>,
    pub(crate) group: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) name: String,
    pub(crate) object: Object,
    pub(crate) config: Object,
    pub(crate) scope: Scope,
    /// Whether it runs for TCP, TLS and UDP, and not for requests.
    pub(crate) is_for_streams: bool,
    /// Whether it runs for TCP, TLS and UDP, if the file says so.
    pub(crate) runs_for_streams: Option<bool>,
    /// Whether a part of it could not be read.
    pub(crate) is_incomplete: bool,
    /// Whether it is unknown where it applies, so that `scope` is too wide.
    pub(crate) is_of_unknown_scope: bool,
}

/// The whole file.
#[derive(Debug)]
pub(crate) struct KongFile {
    /// Whether paths of routes are those of Kong 2: regexes have no `~`.
    pub(crate) is_old_format: bool,
    /// Whether passwords are hashes already.
    pub(crate) has_hashed_passwords: bool,
    pub(crate) services: Vec<Entity>,
    pub(crate) routes: Vec<Route>,
    pub(crate) upstreams: Vec<KongUpstream>,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) groups: Vec<Entity>,
    pub(crate) certificates: Vec<Certificate>,
    pub(crate) ca_certificates: Vec<Entity>,
    pub(crate) vaults: Vec<Object>,
    pub(crate) plugins: Vec<Plugin>,
}

/// Entities by name and by id.
struct Names(HashMap<String, usize>);

impl Names {
    fn of<'a>(kind: &str, entities: impl Iterator<Item = &'a Entity>) -> Names {
        let mut names = HashMap::new();
        for (index, entity) in entities.enumerate() {
            for name in [&entity.id, &entity.name].into_iter().flatten() {
                if names.insert(name.clone(), index).is_some_and(|other| other != index) {
                    entity
                        .object
                        .changed(format!("another {kind} has the same name or id; references lead to this one"));
                }
            }
        }
        Names(names)
    }

    /// The entity that a key refers to. `Err`, with a loss, if there is none.
    fn find(&self, object: &Object, key: &str) -> Result<Option<usize>, ()> {
        let Some(field) = object.field(key) else { return Ok(None) };
        self.resolve(&field).map(Some)
    }

    fn resolve(&self, field: &Field) -> Result<usize, ()> {
        let reference = if field.is_object() {
            let inner = field.object().ok_or(())?;
            ["id", "name", "username"]
                .iter()
                .filter_map(|key| inner.text(key))
                .find_map(|name| self.0.get(&name).copied())
        } else {
            field.text().and_then(|name| self.0.get(&name).copied())
        };
        reference.ok_or_else(|| field.lost("this refers to something that is not in the file"))
    }
}

impl Entity {
    fn of(object: Object, name: &str) -> Entity {
        object.skip(&["ws_id", "_ignore", "_comment"]);
        Entity { id: object.text("id"), name: object.text(name), object }
    }

    /// The name for messages and ids.
    pub(crate) fn label(&self) -> Option<&str> {
        self.name.as_deref().or(self.id.as_deref())
    }
}

impl KongFile {
    /// Reads the lists of a file. `Err` says why it is not Kong's.
    pub(crate) fn read(root: &Object) -> Result<KongFile, String> {
        let Some(format) = root.text("_format_version") else {
            return Err(
                "this is not a declarative configuration of Kong: the key `_format_version` is missing".to_owned()
            );
        };
        let is_old_format = OLD_FORMATS.contains(&&*format);
        if !is_old_format && format != FORMAT {
            root.lost("_format_version", "the importer knows the formats 1.1, 2.1 and 3.0; it reads this one as 3.0");
        }
        root.skip(&["_comment", "_ignore"]);
        root.lost("_workspace", "workspaces do not exist here; the names of all imported files must differ");
        root.lost("_konnect", "the file belongs to a control plane of Konnect, which is left out");
        let has_hashed_passwords = root.has("_transform") && root.flag("_transform") != Some(true);
        for (list, message) in FOREIGN_LISTS {
            root.lost(list, message);
        }
        let defaults = Defaults::read(root);
        let lists = Lists::read(root, &defaults);
        let plugins = lists.plugins(root);
        let Lists { services, routes, upstreams, consumers, groups, certificates, ca_certificates, .. } = lists;
        let vaults = root.objects("vaults");
        root.finish();
        Ok(KongFile {
            is_old_format,
            has_hashed_passwords,
            services,
            routes,
            upstreams,
            consumers,
            groups,
            certificates,
            ca_certificates,
            vaults,
            plugins,
        })
    }
}

/// decK's `_info.defaults`.
struct Defaults {
    service: Option<Object>,
    route: Option<Object>,
    upstream: Option<Object>,
    target: Option<Object>,
}

impl Defaults {
    fn read(root: &Object) -> Defaults {
        let info = root.object("_info");
        let all = info.as_ref().and_then(|info| info.object("defaults"));
        let of = |kind: &str| all.as_ref().and_then(|all| all.object(kind));
        let defaults =
            Defaults { service: of("service"), route: of("route"), upstream: of("upstream"), target: of("target") };
        if let Some(info) = &info {
            info.skip(&[
                "select_tags",
                "default_lookup_tags",
                "consumer_group_policy_overrides",
                "include_plugin_definitions",
            ]);
            info.lost_if_set(
                "skip_hash_for_basic_auth",
                "passwords of basic authentication may be hashes of Kong's, which are of no use here",
            );
            info.finish();
        }
        if let Some(all) = &all {
            all.finish();
        }
        defaults
    }

    fn below(object: Object, defaults: Option<&Object>) -> Object {
        defaults.map_or(object.clone(), |defaults| object.with_defaults(defaults))
    }
}

/// The lists before plugins are read, with names for references.
struct Lists {
    services: Vec<Entity>,
    routes: Vec<Route>,
    upstreams: Vec<KongUpstream>,
    consumers: Vec<Consumer>,
    groups: Vec<Entity>,
    certificates: Vec<Certificate>,
    ca_certificates: Vec<Entity>,
    service_names: Names,
    route_names: Names,
    consumer_names: Names,
    group_names: Names,
}

impl Lists {
    fn read(root: &Object, defaults: &Defaults) -> Lists {
        let entities = |key: &str, name: &str| -> Vec<Entity> {
            root.objects(key).into_iter().map(|object| Entity::of(object, name)).collect()
        };
        let below_service = |entity: Entity| Entity {
            object: Defaults::below(entity.object.clone(), defaults.service.as_ref()),
            ..entity
        };
        let services: Vec<Entity> = entities("services", "name").into_iter().map(below_service).collect();
        let service_names = Names::of("service", services.iter());
        let routes = routes(root, &services, &service_names, defaults);
        let route_names = Names::of("route", routes.iter().map(|route| &route.entity));
        let groups = entities("consumer_groups", "name");
        let group_names = Names::of("consumer group", groups.iter());
        let mut consumers: Vec<Consumer> =
            entities("consumers", "username").into_iter().map(|entity| consumer(entity, &group_names)).collect();
        let consumer_names = Names::of("consumer", consumers.iter().map(|consumer| &consumer.entity));
        members(&groups, &mut consumers, &consumer_names);
        for (list, kind) in CREDENTIAL_LISTS {
            for object in root.objects(list) {
                match consumer_names.find(&object, "consumer") {
                    Ok(Some(owner)) => consumers[owner].credentials.push(Credential { kind, object }),
                    Ok(None) => object.changed("the credential belongs to no consumer; it is left out"),
                    Err(()) => {}
                }
            }
        }
        Lists {
            upstreams: upstreams(root, defaults),
            certificates: certificates(root),
            ca_certificates: entities("ca_certificates", "name"),
            services,
            routes,
            consumers,
            groups,
            service_names,
            route_names,
            consumer_names,
            group_names,
        }
    }

    /// All plugins, wherever they are written.
    fn plugins(&self, root: &Object) -> Vec<Plugin> {
        let shared: HashMap<String, Object> = root.object("_plugin_configs").map_or_else(HashMap::new, |all| {
            all.all().into_iter().filter_map(|(name, field)| Some((name, field.object()?))).collect()
        });
        let mut plugins = Vec::new();
        let mut add = |owner: &Object, scope: Scope| {
            // Anything but a map still counts as a plugin, and so does anything but a list of them: without it the route may be open.
            let object = |field: Field| {
                field.object().unwrap_or_else(|| Object::empty(field.path.clone(), field.at, owner.losses()))
            };
            let objects = match owner.field("plugins") {
                None => Vec::new(),
                Some(list) if list.is_list() => list.items().into_iter().map(object).collect(),
                Some(other) => {
                    let _: Option<()> = other.wrong("a list");
                    vec![Object::empty(other.path.clone(), other.at, owner.losses())]
                }
            };
            plugins.extend(objects.into_iter().filter_map(|object| self.plugin(object, scope, &shared)));
        };
        add(root, Scope::default());
        for (index, service) in self.services.iter().enumerate() {
            add(&service.object, Scope { service: Some(index), ..Scope::default() });
        }
        for (index, route) in self.routes.iter().enumerate() {
            add(&route.entity.object, Scope { route: Some(index), ..Scope::default() });
        }
        for (index, consumer) in self.consumers.iter().enumerate() {
            add(&consumer.entity.object, Scope { consumer: Some(index), ..Scope::default() });
        }
        for (index, group) in self.groups.iter().enumerate() {
            add(&group.object, Scope { group: Some(index), ..Scope::default() });
        }
        plugins
    }

    fn plugin(&self, object: Object, nested: Scope, shared: &HashMap<String, Object>) -> Option<Plugin> {
        let name = object.text("name").unwrap_or_else(|| {
            object.changed("the plugin has no name that can be read");
            "(no name)".to_owned()
        });
        object.skip(&["id", "instance_name", "created_at", "updated_at", "tags", "_comment", "_ignore"]);
        let mut is_of_unknown_scope = false;
        // A reference to something that is not in the file concerns none of its routes. With a variable it may.
        let mut find = |names: &Names, key: &str, nested: Option<usize>| match names.find(&object, key) {
            Ok(named) => Some(named.or(nested)),
            Err(()) if object.field(key).is_some_and(|field| names_variable(&field)) => {
                is_of_unknown_scope = true;
                Some(nested)
            }
            Err(()) => None,
        };
        let scope = Scope {
            route: find(&self.route_names, "route", nested.route)?,
            service: find(&self.service_names, "service", nested.service)?,
            consumer: find(&self.consumer_names, "consumer", nested.consumer)?,
            group: find(&self.group_names, "consumer_group", nested.group)?,
        };
        let ((config, protocols), is_incomplete) =
            object.losses().watch(|| (plugin_config(&object, shared), object.texts("protocols")));
        let is_of_stream = |protocol: &String| is_stream_protocol(protocol);
        let is_for_streams = !is_incomplete && !protocols.is_empty() && protocols.iter().all(is_of_stream);
        let runs_for_streams =
            (is_incomplete || !protocols.is_empty()).then(|| is_incomplete || protocols.iter().any(is_of_stream));
        Some(Plugin {
            name,
            object,
            config,
            scope,
            is_for_streams,
            runs_for_streams,
            is_incomplete,
            is_of_unknown_scope,
        })
    }
}

/// The configuration of a plugin, with the shared one that it names.
fn plugin_config(object: &Object, shared: &HashMap<String, Object>) -> Object {
    let own = object.object("config");
    let config =
        own.unwrap_or_else(|| Object::empty(format!("{}.config", object.path()), object.at(), object.losses()));
    let Some(source) = object.field("_config") else { return config };
    match source.text().and_then(|source| shared.get(&source)) {
        Some(shared) => config.with_defaults(shared),
        None => {
            let _: Option<()> = source.unreadable("`_plugin_configs` has no entry of this name");
            config
        }
    }
}

fn routes(root: &Object, services: &[Entity], names: &Names, defaults: &Defaults) -> Vec<Route> {
    let read = |object: Object, service| {
        let entity = Entity::of(Defaults::below(object, defaults.route.as_ref()), "name");
        entity.object.lost("filter_chains", "filters in WebAssembly cannot run here");
        Route { entity, service }
    };
    let mut routes = Vec::new();
    for (index, service) in services.iter().enumerate() {
        service.object.lost("filter_chains", "filters in WebAssembly cannot run here");
        for object in service.object.objects("routes") {
            object.skip(&["service"]);
            routes.push(read(object, Some(index)));
        }
    }
    for object in root.objects("routes") {
        let service = names.find(&object, "service").unwrap_or(None);
        routes.push(read(object, service));
    }
    routes
}

fn upstreams(root: &Object, defaults: &Defaults) -> Vec<KongUpstream> {
    let below_target = |object: Object| Defaults::below(object, defaults.target.as_ref());
    let read = |object: Object| {
        let entity = Entity::of(Defaults::below(object, defaults.upstream.as_ref()), "name");
        let targets = entity.object.objects("targets").into_iter().map(below_target).collect();
        KongUpstream { entity, targets }
    };
    let mut upstreams: Vec<KongUpstream> = root.objects("upstreams").into_iter().map(read).collect();
    let names = Names::of("upstream", upstreams.iter().map(|upstream| &upstream.entity));
    for object in root.objects("targets") {
        match names.find(&object, "upstream") {
            Ok(Some(index)) => upstreams[index].targets.push(below_target(object)),
            Ok(None) => object.changed("the target belongs to no upstream; it is left out"),
            Err(()) => {}
        }
    }
    upstreams
}

fn certificates(root: &Object) -> Vec<Certificate> {
    let name_of = |field: &Field| {
        if !field.is_object() {
            return field.text();
        }
        let sni = field.object()?;
        sni.skip(&["id", "created_at", "updated_at", "tags"]);
        let name = sni.text("name");
        sni.finish();
        name
    };
    let read = |object: Object| {
        let entity = Entity::of(object, "name");
        let snis = entity.object.items("snis").iter().filter_map(name_of).collect();
        Certificate { entity, snis }
    };
    let mut certificates: Vec<Certificate> = root.objects("certificates").into_iter().map(read).collect();
    let names = Names::of("certificate", certificates.iter().map(|certificate| &certificate.entity));
    for sni in root.objects("snis") {
        sni.skip(&["id", "created_at", "updated_at", "tags"]);
        match (names.find(&sni, "certificate"), sni.text("name")) {
            (Ok(Some(index)), Some(name)) => certificates[index].snis.push(name),
            (Ok(_), _) => sni.changed("the name belongs to no certificate; it is left out"),
            (Err(()), _) => {}
        }
        sni.finish();
    }
    certificates
}

/// Whether a reference, a name or a map with one, has a variable.
fn names_variable(field: &Field) -> bool {
    match field.is_object() {
        true => field.object().is_some_and(|object| object.all().iter().any(|(_, field)| field.is_variable())),
        false => field.is_variable(),
    }
}

fn consumer(entity: Entity, groups: &Names) -> Consumer {
    let mut credentials = Vec::new();
    for (list, kind) in CREDENTIAL_LISTS {
        for object in entity.object.objects(list) {
            object.skip(&["consumer"]);
            credentials.push(Credential { kind, object });
        }
    }
    let fields = entity.object.items("groups");
    let resolved: Vec<Option<usize>> = fields.iter().map(|field| groups.resolve(field).ok()).collect();
    let has_unknown_groups =
        fields.iter().zip(&resolved).any(|(field, resolved)| resolved.is_none() && names_variable(field));
    Consumer { entity, credentials, groups: resolved.into_iter().flatten().collect(), has_unknown_groups }
}

/// The other way of saying who is in a group: in the group.
fn members(groups: &[Entity], consumers: &mut [Consumer], names: &Names) {
    for (index, group) in groups.iter().enumerate() {
        for member in group.object.items("consumers").iter().filter_map(|field| names.resolve(field).ok()) {
            if !consumers[member].groups.contains(&index) {
                consumers[member].groups.push(index);
            }
        }
    }
}

/// Whether a protocol is not for requests.
pub(crate) fn is_stream_protocol(name: &str) -> bool {
    matches!(name, "tcp" | "tls" | "udp" | "tls_passthrough")
}
