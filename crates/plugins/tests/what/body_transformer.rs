//! `body-transformer`

use super::harness;
use expect_test::expect;
use harness::{plugins, refusal};

const OK: &str = "HTTP/1.1 200 OK\nContent-Type: application/json\nETag: \"a\"\n\n{\"a\": [1, {\"b\": \"x<y\"}]}";

fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What the body of a request becomes, or the answer.
fn request(format: &str, template: &str, content_type: &str, body: &str) -> String {
    let config = format!("body-transformer: {{request: {{{format}template: {}}}}}", yaml(template));
    let request = format!("POST /?q=1&q=2&r HTTP/1.1\nHost: h\nContent-Type: {content_type}\n\n{body}");
    let plugins = plugins(&config).unwrap_or_else(|why| panic!("{why}"));
    plugins.body_of_request(&request)
}

/// What the body of a response becomes.
fn response(template: &str, response: &str) -> String {
    let config = format!("body-transformer: {{response: {{template: {}}}}}", yaml(template));
    let transcript = plugins(&config).unwrap().run("GET /?q=1 HTTP/1.1\nHost: h\n\n", response);
    transcript.lines().last().unwrap_or_default().strip_prefix("< ").unwrap_or_default().to_owned()
}

#[test]
fn templates_are_filled_with_fields() {
    let check = |template: &str, expected: &str| {
        let body = r#"{"name": "a \"b\" <c>", "age": 20, "half": 0.5, "one": 1.0, "yes": true, "no": null, "list": ["x", {"y": "z"}], "o": {"p q": "r"}}"#;
        assert_eq!(request("", template, "application/json; charset=utf-8", body), expected, "{template}");
    };
    check("plain {text} {\"a\":{\"b\":1}}", "plain {text} {\"a\":{\"b\":1}}");
    check("{{name}}|{*name*}", "a &quot;b&quot; &lt;c&gt;|a \"b\" <c>");
    check("{\"age\":{{age}}}", "{\"age\":20}");
    check("{{ half }} {{one}} {{yes}} [{{no}}] [{{none}}]", "0.5 1 true [] []");
    check("{{list[1]}} {{list[2].y}} {{list[3]}} {{o[\"p q\"]}} {{context.age}}", "x z  r 20");
    check(
        "{*_escape_json(name)*} {*_escape_json(list)*} {*_escape_xml(name)*}",
        "\"a \\\"b\\\" <c>\" [\"x\",{\"y\":\"z\"}] a &quot;b&quot; &lt;c&gt;",
    );
    check("{{name .. \" world\"}} {*age..'.'..age*}", "a &quot;b&quot; &lt;c&gt; world 20.20");
    check("a{# nothing {{here}} #}\nb", "ab");
    check("{{_ctx.var.arg_q}} {{_ctx.var.request_method}} {{_ctx.var.arg_none}}.", "1 POST .");
    check(
        "{*_body*}",
        "{\"name\": \"a \\\"b\\\" <c>\", \"age\": 20, \"half\": 0.5, \"one\": 1.0, \"yes\": true, \"no\": null, \"list\": [\"x\", {\"y\": \"z\"}], \"o\": {\"p q\": \"r\"}}",
    );
    check(
        "{{none.at.all}}",
        "503 {\"message\":\"request template rendering: attempt to index a nil value at \\\"at\\\"\"}\n",
    );
    check("{{none .. 'a'}}", "503 {\"message\":\"request template rendering: attempt to concatenate a nil value\"}\n");
    check("eyMgYmFzZTY0ICN9e3thZ2V9fQ==", "20");
}

#[test]
fn bodies_are_read_in_their_formats() {
    let form = "application/x-www-form-urlencoded";
    assert_eq!(request("", "{{a}} {{b[2]}} {{c}} {*d*}", form, "a=1&b=2&b=3&c&d=%3C+%3E"), "1 3 true < >");
    assert_eq!(request("input_format: args, ", "{{q[2]}} {{r}}", "x/y", "body"), "2 true");
    assert_eq!(request("input_format: plain, ", "[{{_body}}]", "application/json", "not json"), "[not json]");
    assert_eq!(request("", "[{{_body}}]", "x/y", "not json"), "[not json]");
    assert_eq!(request("input_format: json, ", "[{{a}}]", "x/y", "{\"a\":1}"), "[1]");
    assert_eq!(request("", "[{{a}}]", "application/json", ""), "[]");
    let refused = request("", "[{{a}}]", "application/json", "{\"a\":");
    assert!(refused.starts_with("400 {\"message\":\"request body decode: EOF"), "{refused}");
    let soap = "<?xml version=\"1.0\"?><!-- c --><s:E xmlns:s=\"u\"><s:B><n:name k=\"v\">Spain &amp; &#65;</n:name>\
        <n:c>1</n:c><n:c>2</n:c><n:e/><n:t> <![CDATA[<x>]]> </n:t></s:B></s:E>";
    let template = "{*E.B.name[1]*}|{{E.B.c[2]}}|{{E.B.e}}|{*E.B.t*}";
    assert_eq!(request("", template, "text/xml", soap), "Spain & A|2||<x>");
    for bad in ["<a>", "<a></b>", "", "text", "<a>&custom;</a>", "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>"] {
        let refused = request("input_format: xml, ", "{{a}}", "x/y", &format!("{bad} "));
        assert!(refused.starts_with("400 {\"message\":\"request body decode: "), "{bad}: {refused}");
    }
    let deep = format!("{}{}", "<a>".repeat(1000), "</a>".repeat(1000));
    assert!(request("", "{{a}}", "text/xml", &deep).starts_with("400 "));
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(100_000));
    assert_eq!(request("", "{{a}}", "application/json", &long), "x".repeat(100_000));
}

#[test]
fn responses_are_transformed() {
    assert_eq!(response("{{a[1]}} {*a[2].b*} {{_ctx.var.status}} {{_ctx.var.arg_q}}", OK), "\"1 x<y 200 1\"");
    assert_eq!(
        response("{{a}}", "HTTP/1.1 200 OK\nContent-Type: application/json\n\n{"),
        "502, since the body is not in the coding that its head names"
    );
    assert_eq!(response("[{{_body}}]", "HTTP/1.1 200 OK\n\nabc"), "\"[abc]\"");
    let config = "body-transformer: {response: {template: '{{_body}}'}, max_resp_body_size: 4}";
    let run = |body: &str| {
        plugins(config).unwrap().run("GET / HTTP/1.1\nHost: h\n\n", &format!("HTTP/1.1 200 OK\nETag: \"a\"\n\n{body}"))
    };
    expect![[r#"
        > GET /
        > Host: h
        < 200
        < "abcd"
    "#]]
    .assert_eq(&run("abcd"));
    expect![[r#"
        > GET /
        > Host: h
        < 502, since the body is larger than a plugin may hold
    "#]]
    .assert_eq(&run("abcde"));
}

#[test]
fn what_needs_lua_is_refused() {
    let all = [
        "{% if a then %}b{% end %}",
        "{{age+10}}",
        "{* string.gsub(_body, 'a', 'b') *}",
        "{(file.html)}",
        "{[a]}",
        "{{_multipart}}",
        "{{_ctx.consumer}}",
        "{{_ctx.var.no_such_variable}}",
        "{{a['b}}",
        "{{}}",
        "{{a..}}",
        "{{a[}}",
        "{{a:upper()}}",
    ];
    let text: String = all
        .into_iter()
        .map(|template| refusal(&format!("body-transformer: {{request: {{template: {}}}}}", yaml(template))))
        .collect();
    expect![[r#"
        1:40: body-transformer.request.template: {% … %} needs Lua, which is not built
        1:40: body-transformer.request.template: "age+10" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "string.gsub(_body, 'a', 'b')" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: {( … )} needs Lua, which is not built
        1:40: body-transformer.request.template: {[ … ]} needs Lua, which is not built
        1:40: body-transformer.request.template: "_multipart" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "_ctx.consumer" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "no_such_variable": unknown variable; write one of uri, request_uri, args, query_string, is_args, host, request_method, scheme, server_protocol, protocol, remote_addr, remote_port, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        1:40: body-transformer.request.template: "a['b" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "a.." needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "a[" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
        1:40: body-transformer.request.template: "a:upper()" needs Lua, which is not built; fields, texts, "..", _body, _ctx.var and _escape_… are
    "#]].assert_eq(&text);
    let all = [
        "body-transformer: {}",
        "body-transformer: {request: {}}",
        "body-transformer: {response: {template: a, input_format: multipart}}",
        "body-transformer: {request: {template: a}, max_req_body_size: 0}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:19: body-transformer: there is nothing to transform; add request or response
        1:29: body-transformer.request: the key "template" is missing; add it
        1:58: body-transformer.response.input_format: "multipart" is not built yet; write json, xml, encoded, args or plain
        1:63: body-transformer.max_req_body_size: expected a whole number from 1 to 1073741824, found the number 0
    "#]].assert_eq(&text);
}
