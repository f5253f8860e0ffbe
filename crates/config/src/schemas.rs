//! JSON Schemas: of a file, and of single kinds and plugins, cut out of it with their references.

use crate::keys::plugins::{METADATA_SCHEMA, PLUGINS_SCHEMA};
use crate::keys::resources::File;
use crate::model::ResourceKind;
use crate::secret_fields::encrypted_fields;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use stillgate_plugin_api::PluginTable;
use stillgate_schema::description::{ENVIRONMENT, schema_of};

/// The JSON Schema (draft 2020-12) of a configuration file with these plugins.
pub fn schema(plugins: &PluginTable) -> Json {
    schema_of::<File>(|definitions| {
        let (own, metadata) = plugins.schemas(definitions);
        definitions.insert(PLUGINS_SCHEMA, own);
        definitions.insert(METADATA_SCHEMA, metadata);
    })
}

/// The schemas of one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginSchemas {
    /// The schema of its configuration.
    pub own: Json,
    /// The schema of a consumer's credential; `None`: it does not authenticate with one.
    pub credential: Option<Json>,
    /// The schema of its metadata; `None`: it has none.
    pub metadata: Option<Json>,
}

/// All schemas, generated once: that takes milliseconds.
#[derive(Debug, Clone)]
pub struct Schemas {
    definitions: Map<String, Json>,
    plugins: PluginTable,
}

const REF: &str = "$ref";
const PREFIX: &str = "#/$defs/";

impl Schemas {
    /// With these plugins.
    pub fn new(plugins: PluginTable) -> Schemas {
        Schemas { definitions: definitions_of(schema(&plugins)), plugins }
    }

    /// The schema of a kind's documents.
    pub fn kind(&self, kind: ResourceKind) -> Option<Json> {
        self.definitions.get(name_of(kind)).map(|schema| self.with_definitions(schema.clone()))
    }

    /// The schemas of a plugin in APISIX's form, for programs that generate forms; `None`: the plugin does not exist. They describe
    /// documents of a store: nothing in them refers to an environment variable or to another schema.
    pub fn plugin(&self, name: &str) -> Option<PluginSchemas> {
        let (_, descriptor) = self.plugins.find(name)?;
        let keys = self.definitions.get("Plugins")?.get("properties")?.get(name)?;
        let (own, credential) = match keys.get("anyOf").and_then(Json::as_array).map(Vec::as_slice) {
            Some([own, credential]) if descriptor.credential.is_some() => (own, Some(credential)),
            _ => (keys, None),
        };
        let metadata = descriptor.metadata.and_then(|_| {
            let all = self.definitions.get("PluginMetadata")?.get("anyOf")?.as_array()?;
            all.iter().find(|schema| self.is_metadata_of(schema, name))
        });
        let whole = |schema: &Json| {
            let mut schema = self.inlined(schema, &mut Vec::new());
            let encrypted: Vec<String> = encrypted_fields(name)
                .filter(|path| schema["properties"].get(path[0]).is_some())
                .map(|path| path.join("."))
                .collect();
            if !encrypted.is_empty() {
                schema["encrypt_fields"] = encrypted.into();
            }
            schema
        };
        Some(PluginSchemas { own: whole(own), credential: credential.map(whole), metadata: metadata.map(whole) })
    }

    fn is_metadata_of(&self, schema: &Json, name: &str) -> bool {
        self.resolved(schema).pointer("/properties/id/const").and_then(Json::as_str) == Some(name)
    }

    /// The target of a reference.
    fn resolved(&self, schema: &Json) -> Json {
        let name = schema.get(REF).and_then(Json::as_str).and_then(|name| name.strip_prefix(PREFIX));
        name.and_then(|name| self.definitions.get(name)).unwrap_or(schema).clone()
    }

    /// A schema without references and without alternatives that only a file has. `within`: the names that led here.
    fn inlined<'a>(&'a self, schema: &'a Json, within: &mut Vec<&'a str>) -> Json {
        let fields = match schema {
            Json::Object(fields) => fields,
            Json::Array(items) => return items.iter().map(|item| self.inlined(item, within)).collect(),
            other => return other.clone(),
        };
        let mut own = Map::new();
        for (name, field) in fields {
            match (name.as_str(), field) {
                (REF, Json::String(reference)) => {
                    let target = reference.strip_prefix(PREFIX).unwrap_or(reference);
                    let definition = self.definitions.get(target).filter(|_| !within.contains(&target));
                    within.push(target);
                    // A recursive schema allows anything below that.
                    let inlined = definition.map_or_else(|| json!({}), |definition| self.inlined(definition, within));
                    within.pop();
                    own = beside(inlined, own);
                }
                ("anyOf", Json::Array(options)) if options.iter().any(is_environment) => {
                    let mut others = options.iter().filter(|option| !is_environment(option));
                    let first = others.next().map(|option| self.inlined(option, within)).unwrap_or_default();
                    own = beside(first, own);
                }
                ("type", Json::Array(types)) if types.len() == 2 && types[1] == "null" => {
                    own.insert(name.clone(), types[0].clone());
                }
                _ => drop(own.insert(name.clone(), self.inlined(field, within))),
            }
        }
        Json::Object(own)
    }

    /// A schema with everything it refers to, directly or indirectly.
    fn with_definitions(&self, mut schema: Json) -> Json {
        let mut names = BTreeSet::new();
        let mut new = references(&schema);
        while let Some(name) = new.pop_first() {
            if let Some(definition) = self.definitions.get(&name).filter(|_| !names.contains(&name)) {
                new.extend(references(definition));
                names.insert(name);
            }
        }
        let definitions: Map<String, Json> =
            names.into_iter().filter_map(|name| Some((name.clone(), self.definitions.get(&name)?.clone()))).collect();
        if let Some(schema) = schema.as_object_mut().filter(|_| !definitions.is_empty()) {
            schema.insert("$defs".to_owned(), json!(definitions));
        }
        schema
    }
}

fn definitions_of(mut schema: Json) -> Map<String, Json> {
    match schema.get_mut("$defs").map(Json::take) {
        Some(Json::Object(definitions)) => definitions,
        _ => Map::new(),
    }
}

/// Whether a schema matches texts with an environment variable.
fn is_environment(schema: &Json) -> bool {
    schema.get(REF).and_then(Json::as_str).and_then(|name| name.strip_prefix(PREFIX)) == Some(ENVIRONMENT)
}

/// The fields of the referenced schema, overridden by the fields next to the reference.
fn beside(schema: Json, own: Map<String, Json>) -> Map<String, Json> {
    let mut fields = match schema {
        Json::Object(fields) => fields,
        _ => Map::new(),
    };
    fields.extend(own);
    fields
}

/// The names that a schema refers to.
fn references(schema: &Json) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    collect(schema, &mut names);
    names
}

fn collect(schema: &Json, names: &mut BTreeSet<String>) {
    match schema {
        Json::Object(fields) => {
            let name = fields.get(REF).and_then(Json::as_str).and_then(|name| name.strip_prefix(PREFIX));
            names.extend(name.map(str::to_owned));
            fields.values().for_each(|field| collect(field, names));
        }
        Json::Array(items) => items.iter().for_each(|item| collect(item, names)),
        _ => {}
    }
}

/// The name of a kind's definition.
fn name_of(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Secrets => "SecretManager",
        ResourceKind::Ssls => "Ssl",
        ResourceKind::Upstreams => "Upstream",
        ResourceKind::PluginMetadata => "PluginMetadata",
        ResourceKind::PluginConfigs => "PluginConfig",
        ResourceKind::ConsumerGroups => "ConsumerGroup",
        ResourceKind::Services => "Service",
        ResourceKind::Credentials => "Credential",
        ResourceKind::Consumers => "Consumer",
        ResourceKind::GlobalRules => "GlobalRule",
        ResourceKind::StreamRoutes => "StreamRoute",
        ResourceKind::Routes => "Route",
        ResourceKind::Protos => "Proto",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin_api::{CustomPlugins, Ignorable, Scripts};

    #[test]
    fn every_kind_has_a_schema_that_is_whole() {
        let schemas = Schemas::new(PluginTable {
            plugins: &[],
            sought: &[],
            scripts: Scripts::NONE,
            custom: CustomPlugins::NONE,
            ignorable: Ignorable::NONE,
            drops_underscores: true,
        });
        for kind in ResourceKind::all() {
            let schema = schemas.kind(kind).unwrap_or_else(|| panic!("{kind:?}"));
            let known: BTreeSet<String> = schema
                .get("$defs")
                .and_then(Json::as_object)
                .into_iter()
                .flat_map(|defs| defs.keys().cloned())
                .collect();
            assert!(references(&schema).is_subset(&known), "{kind:?}");
        }
        let route = schemas.kind(ResourceKind::Routes).unwrap();
        assert!(route.pointer("/properties/uri").is_some() && route.pointer("/$defs/Upstream").is_some());
        assert!(route.pointer("/$defs/Gateway").is_none());
        assert!(schemas.kind(ResourceKind::Protos).unwrap().pointer("/properties/content").is_some());
    }
}
