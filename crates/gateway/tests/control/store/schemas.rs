//! Schemas of plugins, as generators of forms read them.

use super::stage::Stage;
use serde_json::json;

#[test]
fn schemas_of_plugins_are_forms() {
    let stage = Stage::start();
    let schema = |name: &str, kind: &str| {
        let answer = stage.admin.ask("GET", &format!("/apisix/admin/schema/plugins/{name}?schema_type={kind}"), "");
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        answer.json()
    };
    let limit = schema("limit-count", "");
    assert_eq!((&limit["type"], &limit["properties"]["rejected_code"]["type"]), (&json!("object"), &json!("integer")));
    assert_eq!(limit["properties"]["rejected_code"]["minimum"], 200);
    assert!(
        limit["encrypt_fields"].is_null(),
        "counters cannot be kept in Redis yet, so there is no password: {limit}"
    );
    assert_eq!(limit["properties"]["_meta"]["type"], "object");
    for (name, kind, required, encrypted) in [
        ("key-auth", "consumer", "key", Some("key")),
        ("basic-auth", "consumer", "password", Some("password")),
        ("csrf", "", "key", Some("key")),
        ("forward-auth", "", "uri", None),
    ] {
        let schema = schema(name, kind);
        assert!(schema["required"].as_array().is_some_and(|names| names.contains(&json!(required))), "{schema}");
        let has = |field: &str| schema["encrypt_fields"].as_array().is_some_and(|list| list.contains(&json!(field)));
        assert!(encrypted.is_none_or(has), "{schema}");
        assert_eq!(schema["encrypt_fields"].is_array(), encrypted.is_some(), "{schema}");
    }
    // None has a reference to another document, and none accepts a text with an environment variable for a number.
    let all = stage.admin.ask("GET", "/apisix/admin/plugins?all=true", "").json();
    let all = all.as_object().expect("a map");
    assert!(all.len() > 40, "{}", all.len());
    for (name, plugin) in all {
        for part in ["schema", "consumer_schema", "metadata_schema"] {
            let Some(schema) = plugin.get(part) else { continue };
            let text = schema.to_string();
            assert!(!text.contains("$ref") && !text.contains("${"), "{name}: {part}: {text}");
            assert_eq!(schema["type"], "object", "{name}: {part}: {text}");
            assert!(schema["properties"].is_object(), "{name}: {part}: {text}");
        }
    }
    let auth: Vec<&String> = all.iter().filter(|(_, plugin)| plugin["type"] == "auth").map(|(name, _)| name).collect();
    assert!(auth.iter().any(|name| **name == "key-auth"), "{auth:?}");
}
