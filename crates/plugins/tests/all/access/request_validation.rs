//! `request-validation`

use super::harness;
use super::outcome;
use harness::{plugins, refusal};
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// The body for the node, or status and body of the answer.
fn of_body(config: &Json, content_type: &str, body: &str) -> String {
    let config = json!({ "request-validation": config }).to_string();
    let plugins = plugins(&config).unwrap_or_else(|why| panic!("{why}"));
    plugins.body_of_request(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}\n\n{body}"))
}

fn checked(schema: Json, body: &str) -> String {
    of_body(&json!({ "body_schema": schema }), "application/json", body)
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bodies_are_good_or_say_why_not() {
    let check = |schema: Json, body: &str, expected: &str| {
        assert_eq!(checked(schema.clone(), body), expected, "{schema} {body}");
    };
    let named = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
    check(named.clone(), r#"{"name": "a"}"#, r#"{"name":"a"}"#);
    check(named.clone(), "{}", r#"400 property "name" is required"#);
    check(
        named.clone(),
        r#"{"name": 1}"#,
        r#"400 property "name" validation failed: wrong type: expected string, got number"#,
    );
    check(named.clone(), "[1]", "400 wrong type: expected object, got table");
    check(
        named,
        r#"{"name": "a", "name": 1}"#,
        r#"400 property "name" validation failed: wrong type: expected string, got number"#,
    );
    check(json!({"type": ["string", "null"]}), "null", "null");
    check(json!({"type": "table"}), "[{}]", "[{}]");
    check(json!({"type": "table"}), "{}", "{}");
    check(json!({"type": "table"}), "1", "400 wrong type: expected table, got number");
    check(json!({"type": "function"}), "1", "400 wrong type: expected function, got number");
    check(json!({"type": ["string", "null"]}), "1", "400 wrong type: expected one of string, null, got number");
    check(json!({"type": "integer"}), "1.0", "1.0");
    check(json!({"type": "integer"}), "1.5", "400 wrong type: expected integer, got number");
    check(json!({"enum": ["a", {"b": 1}]}), r#"{"b": 1.0}"#, r#"{"b":1.0}"#);
    check(json!({"enum": ["a"]}), r#""b""#, "400 matches none of the enum values");
    check(json!({"const": 1}), "2", "400 failed to check const value");
    check(json!({"minimum": 2}), "1", "400 expected 1 to be greater than 2");
    check(json!({"exclusiveMaximum": 2}), "2", "400 expected 2 to be strictly smaller than 2");
    check(json!({"multipleOf": 0.5}), "0.7", "400 expected 0.7 to be a multiple of 0.5");
    check(json!({"minLength": 2}), r#""ü""#, "400 string too short, expected at least 2, got 1");
    check(json!({"pattern": "^a\\/b"}), r#""a/c""#, r#"400 failed to match pattern "^a\\/b" with "a/c""#);
    check(json!({"format": "ipv4"}), r#""1.2.3""#, "400 expect valid ipv4 address but got: 1.2.3");
    check(json!({"format": "email"}), r#""a@b.de""#, r#""a@b.de""#);
    check(
        json!({"items": {"type": "string"}}),
        r#"["a", 1]"#,
        "400 failed to validate item 2: wrong type: expected string, got number",
    );
    check(json!({"items": [{}], "additionalItems": false}), "[1, 2]", "400 found unexpected extra items in array");
    check(
        json!({"uniqueItems": true}),
        r#"[1, {"a": 1, "b": 2}, {"b": 2, "a": 1}]"#,
        "400 expected unique items but items 2 and 3 are equal",
    );
    check(json!({"contains": {"const": 1}}), "[2, 1]", "[2,1]");
    check(json!({"contains": {"const": 1}}), "[2]", "400 failed to check contains");
    check(json!({"minItems": 1}), "[]", "400 expect array to have at least 1 items");
    check(
        json!({"additionalProperties": false, "properties": {"a": {}}}),
        r#"{"b": 1}"#,
        "400 additional properties forbidden, found b",
    );
    check(
        json!({"patternProperties": {"^x": {"type": "string"}}}),
        r#"{"xy": 1}"#,
        r#"400 failed to validate xy (matching "^x"): wrong type: expected string, got number"#,
    );
    check(json!({"dependencies": {"a": ["b"]}}), r#"{"a": 1}"#, r#"400 property "b" is required when "a" is set"#);
    check(json!({"maxProperties": 1}), r#"{"a": 1, "b": 2}"#, "400 expect object to have at most 1 properties");
    check(
        json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        "{}",
        r#"400 object matches none of the required: ["a"] or ["b"]"#,
    );
    check(json!({"oneOf": [{}, {}]}), "1", "400 value should match only one schema, but matches both schemas 1 and 2");
    check(json!({"oneOf": [false]}), "1", "400 value should match only one schema, but matches none");
    check(json!({"allOf": [{}, {"type": "null"}]}), "1", "400 allOf 2 failed: wrong type: expected null, got number");
    check(json!({"not": {"type": "number"}}), "1", "400 value wasn't supposed to match schema");
    check(json!({"if": {"const": 1}, "then": false, "else": {"const": 2}}), "2", "2");
    check(json!({"if": {"const": 1}, "then": false, "else": {"const": 2}}), "1", "400 expect false always");
    check(
        json!({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}}),
        "1",
        "400 wrong type: expected null, got number",
    );
    check(json!({"type": "object"}), "{", "400 EOF while parsing an object at line 1 column 1");
    check(
        json!({"properties": {"a": {"default": 3}, "b": {"items": {"properties": {"c": {"default": "d"}}}}}}),
        r#"{"b": [{}]}"#,
        r#"{"b":[{"c":"d"}],"a":3}"#,
    );
}

#[test]
fn forms_are_objects_of_texts() {
    let config =
        json!({"body_schema": {"required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}});
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    assert_eq!(of_body(&config, form, "a=1&b=1&b=2"), "");
    assert_eq!(of_body(&config, form, "b=1&b=2"), "400 property \"a\" is required");
    assert_eq!(
        of_body(&config, form, "a"),
        "400 property \"a\" validation failed: wrong type: expected string, got boolean"
    );
}

#[test]
fn the_answer_is_what_is_configured() {
    let config = |more: &str| format!("request-validation: {{body_schema: {{type: 'null'}}, {more}}}");
    let check = |more: &str, body: &str, expected: &str| {
        let answer = outcome(&config(more), &format!("POST / HTTP/1.1\nHost: h\n\n{body}"));
        assert_eq!(answer, expected, "{more}");
    };
    check("rejected_code: 422", "1", "422 \"wrong type: expected null, got number\"");
    check("rejected_msg: no", "1", "400 \"no\"");
    check("rejected_code: 200, rejected_msg: no", "", "200 \"no\"");
    check("rejected_code: 418", "", "418 \"\"");
    check("max_req_body_size: 1, rejected_code: 422, rejected_msg: no", "12", "422 \"no\"");
    check("max_req_body_size: 1, rejected_code: 418", "12", "418 \"\"");
    let long = "x".repeat(257);
    for bad in ["''", &long] {
        let refused = refusal(&config(&format!("rejected_msg: {bad}")));
        assert!(refused.contains("from 1 to 256 characters"), "{refused}");
    }
    assert!(plugins(&config(&format!("rejected_msg: {}", "ü".repeat(256)))).is_ok());
}

/// Otherwise a client could choose how we read its body, and how the node does.
#[test]
fn two_content_types_are_refused() {
    let check = |more: &str, first: &str, second: &str, expected: &str| {
        let config = format!("request-validation: {{body_schema: {{required: [a]}}{more}}}");
        let asked = format!("POST / HTTP/1.1\nHost: h\nContent-Type: {first}\ncontent-type: {second}\n\n{{\"a\":1}}");
        assert_eq!(outcome(&config, &asked), expected, "{first} {second}");
    };
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    check(", rejected_msg: no, rejected_code: 422", form, json, "422 \"no\"");
    check(", rejected_msg: no", json, form, "400 \"no\"");
    check("", json, json, "400 \"duplicated Content-Type header\"");
    let of_header = "request-validation: {header_schema: {required: [a]}}";
    let asked = "POST / HTTP/1.1\nHost: h\nA: 1\nContent-Type: a/b\nContent-Type: c/d\n\n1";
    assert_eq!(outcome(of_header, asked), "passes");
}

#[test]
fn headers_are_found_in_any_case() {
    let config = "request-validation: {header_schema: {type: object, required: [User-Agent, x_y], additionalProperties: false, \
                  properties: {User-Agent: {pattern: ^curl/}, x_y: {type: array}, host: {}}}}";
    let check = |fields: &str, expected: &str| {
        assert_eq!(outcome(config, &format!("GET / HTTP/1.1\nHost: h\n{fields}")), expected, "{fields}");
    };
    check("USER-AGENT: curl/8\nX-Y: 1\nx-y: 2", "passes");
    check("X-Y: 1\nx-y: 2", "400 \"property \\\"User-Agent\\\" is required\"");
    check(
        "User-Agent: cli\nX-Y: 1\nx-y: 2",
        "400 \"property \\\"User-Agent\\\" validation failed: failed to match pattern \\\"^curl/\\\" with \\\"cli\\\"\"",
    );
    check("User-Agent: curl/\nX-Y: 1\nx-y: 2\nother: 1", "400 \"additional properties forbidden, found other\"");
}

#[test]
fn bad_schemas_are_refused() {
    let check = |schema: &str, part: &str| {
        let refused = refusal(&format!("request-validation: {{body_schema: {schema}}}"));
        assert!(refused.contains(part), "{schema}: {refused}");
    };
    check("{type: strin}", "the type \"strin\" is not known");
    check("{properties: {a: {pattern: '(?=a)'}}}", "/properties/a: \"(?=a)\" is not a regular expression");
    check("{pattern: '(?=a)'}", "matching takes linear time");
    check("{$ref: 'http://h.example/a.json'}", "nothing is fetched");
    check("{$ref: 'file:///etc/passwd'}", "nothing is fetched");
    check("{$ref: '#/definitions/a'}", "\"/definitions/a\" leads nowhere");
    check("{$ref: '#'}", "leads back to itself");
    check("{anyOf: [{$ref: '#/definitions/a'}], definitions: {a: {allOf: [{$ref: '#'}]}}}", "leads back to itself");
    check("{prefixItems: [{}]}", "`prefixItems` is not known");
    check("{$schema: 'https://json-schema.org/draft/2020-12/schema'}", "write the schema in draft 7");
    check("[a]", "expected a JSON Schema of an object");
    assert!(refusal("request-validation: {}").contains("there is nothing to validate"));
}

/// Each of them would take years, or the whole stack.
#[test]
fn hostile_schemas_and_bodies_end() {
    let begin = Instant::now();
    let mut definitions = serde_json::Map::new();
    for level in 0..20 {
        let next = json!({"$ref": format!("#/definitions/a{}", level + 1)});
        definitions.insert(format!("a{level}"), json!({"allOf": [next, next, next, next]}));
    }
    definitions.insert("a20".to_owned(), json!({}));
    let refused = refusal(
        &json!({"request-validation": {"body_schema": {"$ref": "#/definitions/a0", "definitions": definitions}}})
            .to_string(),
    );
    assert!(refused.contains("nested schemas for one value"), "{refused}");
    let mut short = serde_json::Map::new();
    for level in 0..10 {
        let next = json!({"$ref": format!("#/definitions/a{}", level + 1)});
        short.insert(format!("a{level}"), json!({"allOf": vec![next; 30]}));
    }
    short.insert("a10".to_owned(), json!({}));
    assert_eq!(
        checked(json!({"$ref": "#/definitions/a0", "definitions": short}), "1"),
        "400 validation takes too many steps"
    );
    // A schema that checks each nested value twice: the number of checks doubles with each level of the body.
    let twice = json!({"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["x"]}, {"properties": {"a": {"$ref": "#"}}, "required": ["y"]}]});
    let deep = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    assert_eq!(checked(twice, &deep(100)), "400 validation takes too many steps");
    let any = json!({"items": {"$ref": "#"}, "properties": {"a": {"$ref": "#"}}});
    assert!(checked(any.clone(), &deep(10_000)).starts_with("400 recursion limit exceeded"));
    assert_eq!(checked(any, &deep(120)), deep(120));
    let huge: Vec<u32> = (0..3000).collect();
    let list = format!("[{}1]", "-1,".repeat(100_000));
    assert_eq!(
        checked(json!({"items": {"enum": huge}}), &list),
        "400 failed to validate item 1: matches none of the enum values"
    );
    assert_eq!(checked(json!({"items": {"not": {"enum": huge}}}), &list), "400 validation takes too many steps");
    assert!(begin.elapsed() < Duration::from_secs(600), "{:?}", begin.elapsed());
}

/// The validator in the schemas' own test suite agrees.
#[test]
fn verdicts_are_those_of_another_validator() {
    let schemas = [
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 1}}, "additionalProperties": {"type": "string"}}),
        json!({"items": [{"type": "string"}, {"$ref": "#"}], "additionalItems": {"type": "null"}}),
        json!({"oneOf": [{"type": "number"}, {"multipleOf": 2}], "not": {"const": 4}}),
        json!({"if": {"type": "array"}, "then": {"uniqueItems": true, "contains": {"type": "integer"}}, "else": {"type": ["string", "object", "null"]}}),
        json!({"dependencies": {"a": {"required": ["b"]}}, "propertyNames": {"maxLength": 1}, "patternProperties": {"^b": {"enum": [1, "x", null]}}}),
    ];
    let values = [
        json!(null),
        json!(1),
        json!(1.0),
        json!(1.5),
        json!(4),
        json!("x"),
        json!("long"),
        json!([]),
        json!([1, 1.0]),
        json!(["x", ["x", [], null]]),
        json!(["x", ["x", 1], 1]),
        json!(["x", 2]),
        json!({}),
        json!({"a": 1}),
        json!({"a": 0, "b": 1}),
        json!({"a": 1, "b": "x"}),
        json!({"a": 1, "bb": null}),
        json!({"b": 2}),
        json!({"a": 1.0, "c": []}),
    ];
    for schema in schemas {
        let other = jsonschema::draft7::new(&schema).expect("a good schema");
        for value in &values {
            let ours = !checked(schema.clone(), &value.to_string()).starts_with("400 ");
            assert_eq!(ours, other.is_valid(value), "{schema} {value}");
        }
    }
}
