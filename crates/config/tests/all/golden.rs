//! Files as people write them: the result of reading each, or all its errors.
//!
//! `UPDATE_EXPECT=1 cargo test` rewrites the expected output; review the difference.

use expect_test::expect_file;
use std::path::PathBuf;
use stillgate_config::{OnChange, Route, load, metrics_reference, reference, schema};
use stillgate_plugin_api::{CustomPlugins, Ignorable, PluginTable, Scripts};
use stillgate_route::RouteMatch;

/// Real plugins are in crates that depend on this one.
const NO_PLUGINS: PluginTable = PluginTable {
    plugins: &[],
    sought: &[],
    scripts: Scripts::NONE,
    custom: CustomPlugins::NONE,
    ignorable: Ignorable::NONE,
    drops_underscores: true,
};

fn environment(name: &str) -> Option<String> {
    match name {
        "PORT" => Some("9080".to_owned()),
        "HOST" => Some("10.0.0.7".to_owned()),
        "ADMIN_KEY" => Some("12345678".to_owned()),
        "WEIGHT" => Some("3".to_owned()),
        "INJECTION" => Some("x\nroutes: []\n- a: {b: c}".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn data(prefix: &str) -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .filter(|p| p.file_name().unwrap().to_string_lossy().starts_with(prefix))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no {prefix}*.yaml");
    files
}

#[test]
fn bad_files_are_refused_with_every_error() {
    for file in data("bad-") {
        let text = std::fs::read(&file).unwrap();
        let errors = load(text, &environment).expect_err(&file.display().to_string());
        expect_file![file.with_extension("errors")].assert_eq(&format!("{errors}\n"));
    }
}

#[test]
fn good_files_are_read() {
    for file in data("good-") {
        expect_file![file.with_extension("config")].assert_eq(&show(&file));
    }
}

fn show(file: &std::path::Path) -> String {
    let loaded = load(std::fs::read(file).unwrap(), &environment).unwrap_or_else(|errors| panic!("{errors}"));
    let mut seen = format!("{:#?}\n{:#?}\n", loaded.config.gateway, loaded.config.upstreams);
    if !loaded.config.ssls.is_empty() {
        seen += &format!("{:#?}\n", loaded.config.ssls);
    }
    if !loaded.config.stream_routes.is_empty() {
        seen += &format!("{:#?}\n", loaded.config.stream_routes);
    }
    for (route, line) in loaded.config.routes.iter().zip(&loaded.config.route_lines) {
        seen += &show_route(route, *line);
    }
    for warning in loaded.warnings {
        seen += &format!("{warning}\n");
    }
    seen
}

/// Compared by what its parts print, since their representation is private to the `route` crate.
fn show_route(route: &Route, line: u32) -> String {
    let spec = &route.spec;
    let tunnels = match (route.upgrades, route.on_change) {
        (false, OnChange::Keep) => String::new(),
        (upgrades, on_change) => format!("  upgrades {upgrades}, on change {on_change:?}\n"),
    };
    if let RouteMatch::Expression(expression) = &spec.takes {
        return format!(
            "route {:?} of line {line} to upstream {:?}, service {:?}\n  expression {:?} priority {}\n  timeout {:?}\n{tunnels}",
            spec.id,
            route.target.key().unwrap(),
            route.service_id,
            expression.text(),
            spec.priority,
            route.timeout,
        );
    }
    let uri = spec.uri().unwrap();
    let paths: Vec<String> = uri.paths.iter().map(ToString::to_string).collect();
    let hosts: Vec<String> = uri.hosts.iter().map(ToString::to_string).collect();
    let vars = uri.vars.as_ref().map(ToString::to_string);
    format!(
        "route {:?} of line {} to upstream {:?}, service {:?}\n  paths {paths:?} hosts {hosts:?} methods {}\n  \
         remote_addrs {:?} priority {} vars {vars:?}\n  timeout {:?}\n{tunnels}",
        spec.id,
        line,
        route.target.key().unwrap(),
        route.service_id,
        uri.methods,
        uri.remote_addrs,
        spec.priority,
        route.timeout,
    )
}

#[test]
fn the_digest_is_of_the_bytes_as_loaded() {
    // The output of sha256sum for the same bytes.
    let loaded = load("\u{feff}routes: [] # ${UNSET}\n", &environment).unwrap();
    assert_eq!(loaded.config.digest, "d427c56b0037319674bc52df3f3e54367c0a1f85154760755ddd16ca70aac14f");
}

#[test]
fn good_files_are_valid_by_the_schema() {
    let validator = jsonschema::draft202012::new(&schema(&NO_PLUGINS)).unwrap();
    for file in data("good-") {
        let instance = yaml_to_json(&std::fs::read_to_string(&file).unwrap());
        let errors: Vec<String> =
            validator.iter_errors(&instance).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", file.display());
    }
    // The schema does not accept everything.
    let bad = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bad-keys.yaml");
    let instance = yaml_to_json(&std::fs::read_to_string(bad).unwrap());
    let errors = validator.iter_errors(&instance).count();
    assert!(errors > 10, "{errors}");
}

#[test]
fn schema_and_reference_have_every_key() {
    let schema = schema(&NO_PLUGINS);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    expect_file![format!("{folder}/schema.json")].assert_eq(&format!("{schema:#}\n"));
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    expect_file![guide].assert_eq(&reference());
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    expect_file![families].assert_eq(&metrics_reference());
    for key in ["routes", "upstreams", "services", "gateway", "consumers"] {
        assert!(schema["properties"][key]["description"].is_string(), "{key}");
    }
}

/// The documented defaults are the actual ones: a file with all defaults written out means the same as an empty one.
#[test]
fn defaults_are_what_the_schema_says() {
    let mut gateway = defaults(&schema(&NO_PLUGINS), "Gateway");
    // Without these keys the access log, the metrics and recorded profiles are off, rather than on with all defaults.
    gateway.as_object_mut().unwrap().remove("access_log");
    gateway.as_object_mut().unwrap().remove("metrics");
    gateway["debug"].as_object_mut().unwrap().remove("profiles");
    let written = load(serde_json::json!({"gateway": gateway, "routes": []}).to_string(), &|_| None).unwrap();
    let absent = load("routes: []", &|_| None).unwrap();
    assert_eq!(written.config.gateway, absent.config.gateway);

    let mut metrics = defaults(&schema(&NO_PLUGINS), "Metrics");
    metrics["address"] = "127.0.0.1:9091".into();
    assert_eq!(metrics["memory"], "256MiB");
    let written = load(serde_json::json!({"gateway": {"metrics": metrics}}).to_string(), &|_| None).unwrap();
    let absent = load("gateway: {metrics: {address: \"127.0.0.1:9091\"}}", &|_| None).unwrap();
    assert_eq!(written.config.gateway, absent.config.gateway);

    let mut upstream = defaults(&schema(&NO_PLUGINS), "Upstream");
    // Without these there is none, rather than one with all defaults.
    for key in ["checks", "retry_budget", "tls"] {
        upstream.as_object_mut().unwrap().remove(key);
    }
    upstream["id"] = "a".into();
    upstream["nodes"] = serde_json::json!({"a:80": 1});
    let written = load(serde_json::json!({"upstreams": [upstream]}).to_string(), &|_| None).unwrap();
    let absent = load("upstreams: [{id: a, nodes: {\"a:80\": 1}}]", &|_| None).unwrap();
    assert_eq!(written.config.upstreams, absent.config.upstreams);

    upstream["checks"] = defaults(&schema(&NO_PLUGINS), "Checks");
    assert_eq!(upstream["checks"]["active"]["healthy"]["interval"], "1s");
    let written = load(serde_json::json!({"upstreams": [upstream]}).to_string(), &|_| None).unwrap();
    let absent =
        load("upstreams: [{id: a, nodes: {\"a:80\": 1}, checks: {active: {}, passive: {}}}]", &|_| None).unwrap();
    assert_eq!(written.config.upstreams, absent.config.upstreams);
}

/// An object with every default of a definition, and of the objects in it.
fn defaults(schema: &serde_json::Value, definition: &str) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    for (key, property) in schema["$defs"][definition]["properties"].as_object().unwrap() {
        if let Some(default) = property.get("default") {
            object.insert(key.clone(), default.clone());
        } else if let Some(name) = property["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/"))
            && schema["$defs"][name].get("required").is_none()
        {
            object.insert(key.clone(), defaults(schema, name));
        }
    }
    serde_json::Value::Object(object)
}

/// By a reader other than ours, based on the same parser.
fn yaml_to_json(text: &str) -> serde_json::Value {
    use saphyr::{LoadableYamlNode, Scalar, Yaml};
    use serde_json::{Value, json};
    fn convert(yaml: &Yaml<'_>) -> Value {
        match yaml {
            Yaml::Value(Scalar::Null) => Value::Null,
            Yaml::Value(Scalar::Boolean(value)) => json!(value),
            Yaml::Value(Scalar::Integer(value)) => json!(value),
            Yaml::Value(Scalar::FloatingPoint(value)) => json!(value.into_inner()),
            Yaml::Value(Scalar::String(value)) => json!(value),
            Yaml::Sequence(items) => items.iter().map(convert).collect(),
            Yaml::Mapping(entries) => Value::Object(entries.iter().map(|(k, v)| (key(k), convert(v))).collect()),
            other => panic!("{other:?}"),
        }
    }
    fn key(yaml: &Yaml<'_>) -> String {
        match convert(yaml) {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }
    convert(&Yaml::load_from_str(text).unwrap()[0])
}

#[test]
fn published_admin_keys_are_reported() {
    let text = "gateway:\n  admin:\n    address: 127.0.0.1:9180\n    key: edd1c9f034335f136f87ad84b625c8f1\n    keys:\n      \
                - {name: a, key: a-long-random-text}\n      - {name: v, key: 4054f7cf07e344346cd3f287985e76a2, role: viewer}\n\
                routes: [{uri: /, upstream: {nodes: {a: 1}}}]\n";
    let warnings = load(text, &|_| None).unwrap().warnings;
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    let why = "this is APISIX's published default key, which scanners try; write a long random text, for example \
               from `openssl rand -hex 32`";
    assert_eq!(
        warnings,
        [
            format!("4:10: warning: gateway.admin.key: {why}"),
            format!("7:24: warning: gateway.admin.keys[1].key: {why}"),
        ]
    );
}
