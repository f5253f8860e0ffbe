//! The results of parsing YAML, with APISIX's differences, and the refused texts.

use super::*;

/// The text as JSON would write it, or the errors.
fn read(text: &str) -> String {
    let mut sink = Sink::default();
    let environment = |name: &str| (name == "A").then(|| "a".to_owned());
    let tree = parse(0, text, Some(&environment), &mut sink);
    match (sink.has_errors(), tree) {
        (false, Some(tree)) => written(&tree.root),
        _ => sink.into_errors().to_string(),
    }
}

fn written(node: &Node) -> String {
    match &node.value {
        Value::List(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(",")),
        Value::Map(entries) => {
            let entry = |entry: &Entry| format!("{}:{}", entry.key, written(&entry.value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
        }
        Value::Scalar(scalar) => format!("{:?}", scalar.meaning()),
        Value::Refused => "refused".to_owned(),
    }
}

fn check(text: &str, expected: &str) {
    let found = read(text);
    assert!(found.contains(expected), "{text}\n{found}");
}

#[test]
fn merge_keys_put_the_keys_of_other_maps_in() {
    let base = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\n";
    check(&format!("{base}c: {{<<: *a, y: 5}}"), "c:{y:Int(5),x:Int(1)}");
    // Keys before and behind have equal effect, and the first of two maps wins.
    check(&format!("{base}c:\n  y: 5\n  <<: [*a, *b]"), "c:{y:Int(5),x:Int(1),z:Int(4)}");
    check(&format!("{base}c:\n  <<: *b\n  <<: *a"), "c:{y:Int(3),z:Int(4),x:Int(1)}");
    check("a: &a {x: 1}\nb: &b {<<: *a}\nc: {<<: *b}", "c:{x:Int(1)}");
    check("c: {<<: {x: 1}}", "c:{x:Int(1)}");
    check("c: {<<: []}", "c:{}");
    for wrong in ["<<: 1", "<<:", "<<: [1]", "<<: [[{a: 1}]]", "<<: text"] {
        check(wrong, "to merge");
    }
    check("<<: {a: 1, a: 2}", "twice");
}

#[test]
fn merging_is_bounded() {
    let keys: String = (0..1000).map(|n| format!("  k{n}: {n}\n")).collect();
    let merges = "- {<<: *a}\n".repeat(1000);
    check(&format!("a: &a\n{keys}b:\n{merges}"), "aliases add more than");
}

#[test]
fn tags_of_the_core_schema_are_known() {
    check(
        "a: !!map {b: !!seq [!!str 1, !!int '2', !!bool on, !!null '', !!float 1.5]}",
        "Text(\"1\"),Int(2),Bool(true),Null,Float(1.5)",
    );
    check("!!int a", "not of the type !!int");
    check("!!bool '1'", "not of the type !!bool");
    check("!!map [a]", "!!map is not supported");
    check("!!binary aGk=", "!!binary is not supported");
    check("!own a", "a tag is not supported");
}

#[test]
fn keys_may_hold_apisix_variables() {
    check("nodes: {\"${{A}}:80\": 1, \"${A}:80\": 2}", "{a:80:Int(1),${A}:80:Int(2)}");
    check("{\"${{A}}\": 1, a: 2}", "twice");
    check("{\"${{B}}\": 1}", "environment variable B is not set");
}

#[test]
fn flow_collections_may_end_left_of_their_key() {
    check("r:\n  - p: {\n  a: {\n}\n}\n    u: [\n1,\n2]\n", "{r:[{p:{a:{}},u:[Int(1),Int(2)]}]}");
    check("a:\n  b: {c: 1\n}\n  d: 2", "{a:{b:{c:Int(1)},d:Int(2)}}");
    check("a:\n  b: [x,\n# a comment ]\ny\n]\nd: z", "{a:{b:[Text(\"x\"),Text(\"y\")]},d:Text(\"z\")}");
    // Positions refer to the file.
    check("a:\n  b: {\nx: 1, x: 2}\n", "3:7: a.b: \"x\"");
    // Other errors are still found, once, and blocks keep their rules.
    check("a:\n  b: {\nx: 1}}\n", "not valid YAML");
    check("a:\n  b: 1\n c: 2\n", "not valid YAML");
    check("a: {b: 1, b: 2}\nc:\n  d: {\n}\n", "1:11: a: \"b\"");
    assert_eq!(read("a: {b: 1, b: 2}\nc:\n  d: {\n}\n").matches("twice").count(), 1);
    let many = "a:\n  b: [\n".to_owned() + &"1,\n".repeat(3000) + "]\n";
    check(&many, "not valid YAML");
}

#[test]
fn the_nearest_value_is_found() {
    let text = "gateway:\n  listeners:\n    - address: \"a\"\n    - {address: \"b\"}\n  access_log:\n    path: /x\n";
    let check = |path: &str, expected| assert_eq!(locate(text.as_bytes(), &|_| None, path), expected, "{path}");
    check("gateway.listeners[0].address", Some((3, 16)));
    check("gateway.listeners[1].address", Some((4, 17)));
    check("gateway.access_log.path", Some((6, 11)));
    check("gateway.access_log.format", Some((6, 5)));
    check("gateway.metrics.shared", Some((2, 3)));
    check("elsewhere", Some((1, 1)));
    assert_eq!(locate(b"", &|_| None, "gateway"), None);
}
