//! `body-transformer`

use super::harness;
use expect_test::expect;
use harness::{plugins, refusal};

const OK: &str = "HTTP/1.1 200 OK\nContent-Type: application/json\nETag: \"a\"\n\n{\"a\": [1, {\"b\": \"x<y\"}]}";

fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The resulting body of a request, or the answer.
fn request(format: &str, template: &str, content_type: &str, body: &str) -> String {
    let config = format!("body-transformer: {{request: {{{format}template: {}}}}}", yaml(template));
    let request = format!("POST /?q=1&q=2&r HTTP/1.1\nHost: h\nContent-Type: {content_type}\n\n{body}");
    let plugins = plugins(&config).unwrap_or_else(|why| panic!("{why}"));
    plugins.body_of_request(&request)
}

/// The resulting body of a response.
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
fn templates_calculate_and_choose() {
    let check = |template: &str, expected: &str| {
        let body =
            r#"{"name": "hello", "age": 20, "s": "7", "list": [1, 2, {"a": "x"}], "empty": [], "f": false, "n": null}"#;
        assert_eq!(request("", template, "application/json", body), expected, "{template}");
    };
    check("{\"foo\":\"{{name .. \" world\"}}\",\"bar\":{{age+10}}}", "{\"foo\":\"hello world\",\"bar\":30}");
    check("{{age - 1}} {{age*2+1}} {{age/8}} {{-age%7}} {{(age+1)*2}} {{s+1}} {{1 .. 2}}", "19 41 2.5 1 42 8 12");
    check(
        "{{age > 10 and \"old\" or \"young\"}} {{not f}} {{n == nil}} {{s == 7}} {{tonumber(s) == 7}}",
        "old true true false true",
    );
    check(
        "{{tostring(age) == \"20\"}} {{#list}} {{#name}} {{none or 'd'}} {{age ~= 20}} {{'a' < 'b'}}",
        "true 3 5 d false true",
    );
    check("{% if age >= 18 then %}adult{% elseif age > 12 then %}teen{% else %}child{% end %}.", "adult.");
    check("{% if f then %}a{% elseif (age == 20) then %}b{% else %}c{% end %}", "b");
    check("{% if n ~= nil then %}a{% else %}{% if name then %}b{% end %}c{% end %}", "bc");
    check(
        "{% for i, v in ipairs(list) do %}{{i}}={{v.a or v}};{% end %}",
        "503 {\"message\":\"request template rendering: attempt to index a nil value at \\\"a\\\"\"}\n",
    );
    check(
        "[{% for i, v in ipairs(list) do %}{% if i > 1 then %},{% end %}{*_escape_json(v)*}{% end %}]{% for _, x in ipairs(empty) do %}!{% end %}",
        "[1,2,{\"a\":\"x\"}]",
    );
    check(
        "{{name() .. \" world\"}}",
        "503 {\"message\":\"request template rendering: attempt to call a string value\"}\n",
    );
    check(
        "{{name + 1}}",
        "503 {\"message\":\"request template rendering: attempt to perform arithmetic on a string value\"}\n",
    );
    check("{{name < 1}}", "503 {\"message\":\"request template rendering: attempt to compare string with number\"}\n");
    check("{{_ctx.var.no_such_variable}}.", ".");
    let many = format!("{{\"list\": [{}0]}}", "0,".repeat(1000));
    let nested = "{% for _, a in ipairs(list) do %}{% for _, b in ipairs(list) do %}{% end %}{% end %}";
    assert!(request("", nested, "application/json", &many).contains("too many items"));
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
    let parts = "--b\nContent-Disposition: form-data; name=\"a\"\n\n1\n--b\nContent-Disposition: form-data; name=\"a\"\n\n2\n--b--";
    assert_eq!(request("", "[{{a[2]}}]", "multipart/form-data; boundary=b", parts), "[2]");
    assert!(request("input_format: multipart, ", "{{a}}", "x/y", parts).starts_with("400 "));
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
        "{% local a = 1 %}b",
        "{% if a then %}b",
        "{% end %}",
        "{% else %}",
        "{% for k, v in pairs(a) do %}{% end %}",
        "{{a ^ 2}}",
        "{{math.floor(a)}}",
        "{* string.gsub(_body, 'a', 'b') *}",
        "{(file.html)}",
        "{[a]}",
        "{{_multipart}}",
        "{{_ctx.consumer}}",
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
        1:40: body-transformer.request.template: {% local a = 1 %} needs Lua, which is not supported; if, elseif, else, for … in ipairs and end are
        1:40: body-transformer.request.template: a block has no {% end %}
        1:40: body-transformer.request.template: {% end %} ends nothing
        1:40: body-transformer.request.template: {% else %} needs Lua, which is not supported; if, elseif, else, for … in ipairs and end are
        1:40: body-transformer.request.template: {% for k, v in pairs(a) do %} needs Lua, which is not supported; if, elseif, else, for … in ipairs and end are
        1:40: body-transformer.request.template: "a ^ 2" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "math.floor(a)" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "string.gsub(_body, 'a', 'b')" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: {( … )} needs Lua, which is not supported
        1:40: body-transformer.request.template: {[ … ]} needs Lua, which is not supported
        1:40: body-transformer.request.template: "_multipart" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "_ctx.consumer" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "a['b" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "a.." needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "a[" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
        1:40: body-transformer.request.template: "a:upper()" needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, tonumber and tostring are
    "#]].assert_eq(&text);
    let all = [
        "body-transformer: {}",
        "body-transformer: {request: {}}",
        "body-transformer: {response: {template: a, input_format: csv}}",
        "body-transformer: {request: {template: a}, max_req_body_size: 0}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:19: body-transformer: there is nothing to transform; add request or response
        1:29: body-transformer.request: the key "template" is missing; add it
        1:58: body-transformer.response.input_format: expected json, xml, encoded, args, plain or multipart, found the text "csv"
        1:63: body-transformer.max_req_body_size: expected a whole number from 1 to 1073741824, found the number 0
    "#]].assert_eq(&text);
}
