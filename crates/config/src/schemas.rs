//! JSON Schemas: of a file, and of single kinds of resources and single plugins, cut out of it with what they refer to.

use crate::keys::plugins::{METADATA_SCHEMA, PLUGINS_SCHEMA};
use crate::keys::resources::File;
use crate::model::Kind;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use stillgate_plugin::Table;
use stillgate_schema::description::schema_of;

/// The JSON Schema (draft 2020-12) of a configuration file with these plugins.
pub fn schema(plugins: &Table) -> Json {
    schema_of::<File>(|definitions| {
        let (own, metadata) = plugins.schemas(definitions);
        definitions.insert(PLUGINS_SCHEMA, own);
        definitions.insert(METADATA_SCHEMA, metadata);
    })
}

/// The schemas of one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginSchemas {
    /// Of its configuration.
    pub own: Json,
    /// Of a consumer's credential; `None`: it does not authenticate by any.
    pub credential: Option<Json>,
    /// Of its metadata; `None`: it has none.
    pub metadata: Option<Json>,
}

/// All schemas, made once: they take milliseconds.
#[derive(Debug, Clone)]
pub struct Schemas {
    definitions: Map<String, Json>,
    plugins: Table,
}

const REF: &str = "$ref";
const PREFIX: &str = "#/$defs/";

impl Schemas {
    /// With these plugins.
    pub fn new(plugins: Table) -> Schemas {
        Schemas { definitions: definitions_of(schema(&plugins)), plugins }
    }

    /// Of the documents of a kind.
    pub fn kind(&self, kind: Kind) -> Option<Json> {
        self.definitions.get(name_of(kind)).map(|schema| self.with_definitions(schema.clone()))
    }

    /// Of a plugin; `None`: there is none of that name.
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
        let whole = |schema: &Json| self.with_definitions(self.resolved(schema));
        Some(PluginSchemas { own: whole(own), credential: credential.map(whole), metadata: metadata.map(whole) })
    }

    fn is_metadata_of(&self, schema: &Json, name: &str) -> bool {
        self.resolved(schema).pointer("/properties/id/const").and_then(Json::as_str) == Some(name)
    }

    /// What a reference leads to.
    fn resolved(&self, schema: &Json) -> Json {
        let name = schema.get(REF).and_then(Json::as_str).and_then(|name| name.strip_prefix(PREFIX));
        name.and_then(|name| self.definitions.get(name)).unwrap_or(schema).clone()
    }

    /// A schema with all that it refers to, and what that does.
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

/// The names of what a schema refers to.
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
fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Secrets => "SecretManager",
        Kind::Ssls => "Ssl",
        Kind::Upstreams => "Upstream",
        Kind::PluginMetadata => "PluginMetadata",
        Kind::PluginConfigs => "PluginConfig",
        Kind::ConsumerGroups => "ConsumerGroup",
        Kind::Services => "Service",
        Kind::Credentials => "Credential",
        Kind::Consumers => "Consumer",
        Kind::GlobalRules => "GlobalRule",
        Kind::StreamRoutes => "StreamRoute",
        Kind::Routes => "Route",
        Kind::Protos => "Proto",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin::{OwnPlugins, Scripts};

    #[test]
    fn every_kind_has_a_schema_that_is_whole() {
        let schemas = Schemas::new(Table { plugins: &[], sought: &[], scripts: Scripts::NONE, own: OwnPlugins::NONE });
        for kind in Kind::all() {
            let schema = schemas.kind(kind).unwrap_or_else(|| panic!("{kind:?}"));
            let known: BTreeSet<String> = schema
                .get("$defs")
                .and_then(Json::as_object)
                .into_iter()
                .flat_map(|defs| defs.keys().cloned())
                .collect();
            assert!(references(&schema).is_subset(&known), "{kind:?}");
        }
        let route = schemas.kind(Kind::Routes).unwrap();
        assert!(route.pointer("/properties/uri").is_some() && route.pointer("/$defs/Upstream").is_some());
        assert!(route.pointer("/$defs/Gateway").is_none());
        assert!(schemas.kind(Kind::Protos).unwrap().pointer("/properties/content").is_some());
    }
}
