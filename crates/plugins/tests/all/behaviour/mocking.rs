//! `mocking`

use super::{check, harness, run};
use expect_test::expect;
use harness::{OK, refusal};

const GET: &str = "GET /a?b=c HTTP/1.1\nHost: h\n\n";

fn body(config: &str) -> String {
    let transcript = run(config, GET, OK);
    let line = transcript.lines().last().expect("a body");
    serde_json::from_str(line.strip_prefix("< ").expect("a body")).expect("a text that is quoted as JSON is")
}

#[test]
fn an_example_is_answered_with() {
    check(
        "mocking: {response_example: '{\"a\":1,\"b\":2}', response_status: 201}",
        GET,
        expect![[r#"
        > mocking answers
        < 201
        < Content-Type: application/json;charset=utf8
        < x-mock-by: Stillgate
        < "{\"a\":1,\"b\":2}"
    "#]],
    );
    check(
        "mocking: {response_example: 'hello $arg_b from $remote_addr, \\$5', content_type: text/plain, \
         with_mock_header: false, response_headers: {X-A: b, X-Number: 7, x-a: c, X-Uri: '$uri?$arg_b', X-None: $arg_none}}",
        GET,
        expect![[r#"
            > mocking answers
            < 200
            < Content-Type: text/plain
            < X-A: b
            < X-Number: 7
            < x-a: c
            < X-Uri: /a?c
            < X-None: 
            < "hello c from 192.0.2.7, $5"
        "#]],
    );
}

#[test]
fn an_answer_can_take_its_time() {
    assert_eq!(body("mocking: {response_example: 'of $arg_b', delay: 3600}"), "of c");
}

#[test]
fn data_is_made_up_after_a_schema() {
    let schema = "{type: object, properties: {\
        s: {type: string, example: 'x $arg_b \" y'}, n: {type: number, example: 123.12}, i: {type: integer, example: 155.55}, \
        b: {type: Boolean, example: true}, o: {type: object, properties: {t: {type: string}}}, e: {type: object}, \
        a: {type: array, items: {type: integer, example: 7}}, none: {type: array}}}";
    let text = body(&format!("mocking: {{response_schema: {schema}}}"));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["s"], "x c \" y");
    assert_eq!(
        (&json["n"], &json["i"], &json["b"], &json["e"]),
        (&123.12.into(), &155.into(), &true.into(), &serde_json::json!({}))
    );
    assert!(json["o"]["t"].as_str().is_some_and(|text| (1..=10).contains(&text.len())), "{text}");
    let items = json["a"].as_array().expect("a list");
    assert!((1..=3).contains(&items.len()) && items.iter().all(|item| *item == 7), "{text}");
    assert!(json.get("none").is_none());
    let names: Vec<&String> = json.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["s", "n", "i", "b", "o", "e", "a"]);
    let xml = "{properties: {s: {type: string, example: 'a<b'}, n: {type: integer, example: 1}, \
        o: {type: object, properties: {t: {type: boolean, example: false}}}}}";
    assert_eq!(
        body(&format!("mocking: {{content_type: text/xml, response_schema: {xml}}}")),
        "<data>\n  <s>a&lt;b</s>\n  <n>1</n>\n  <o>\n    <t>false</t>\n  </o>\n</data>\n"
    );
    assert_eq!(body(&format!("mocking: {{content_type: text/html, response_schema: {xml}}}")), "");
    let made_up =
        "mocking: {response_schema: {properties: {n: {type: number}, i: {type: integer}, b: {type: boolean}}}}";
    for _ in 0..100 {
        let json: serde_json::Value = serde_json::from_str(&body(made_up)).expect("JSON");
        assert!(json["n"].as_f64().is_some_and(|number| (0.0..10_000.0).contains(&number)));
        assert!(json["i"].as_i64().is_some_and(|number| (1..=10_000).contains(&number)));
        assert!(json["b"].is_boolean());
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "mocking: {}",
        "mocking: {response_example: a, content_type: image/png}",
        "mocking: {response_example: a, response_status: 100}",
        "mocking: {response_example: $no_such_variable}",
        "mocking: {response_example: a, response_headers: {}}",
        "mocking: {response_example: a, response_headers: {Content-Length: 1}}",
        "mocking: {response_example: a, response_headers: {X: \"a\\r\\nb\"}}",
        "mocking: {response_example: a, content_type: \"text/plain;\\r\\na\"}",
        "mocking: {response_schema: {properties: {a: {type: date}}}}",
        "mocking: {response_schema: {properties: {a: {}}}}",
        "mocking: {response_schema: a}",
        "mocking: {response_example: a, delay: 3601}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:10: mocking: there is nothing to answer with; add response_example or response_schema
        1:46: mocking.content_type: unsupported content type!; write application/json, application/xml, text/plain, text/html or text/xml
        1:49: mocking.response_status: expected a whole number from 200 to 599, found the number 100
        accepted
        1:50: mocking.response_headers: an empty map; name at least one field, or remove the key
        1:51: mocking.response_headers.Content-Length: this field frames the message or belongs to one connection; the gateway sets it
        1:51: mocking.response_headers.X: a header value cannot hold control characters such as line breaks
        1:46: mocking.content_type: a header value cannot hold control characters such as line breaks
        1:28: mocking.response_schema: a: the type "date" cannot be made up
        1:28: mocking.response_schema: a: a `type` is missing; write string, number, integer, boolean, array or object
        1:28: mocking.response_schema: expected a JSON Schema of an object
        1:39: mocking.delay: expected a whole number from 0 to 3600, found the number 3601
    "#]].assert_eq(&text);
}
