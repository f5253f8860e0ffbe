//! Arguments of the body in conditions, keys and texts: the body is read before a plugin is called.

use super::{outcome, verdict};
use crate::harness::{OK, Plugins, plugins, refusal, said_of_store};
use expect_test::expect;
use std::sync::{Arc, OnceLock};
use stillgate_limits::Limits;
use stillgate_plugin_api::Worker;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

fn post(content_type: &str, body: &str) -> String {
    format!("POST /a HTTP/1.1\nHost: h\nContent-Type: {content_type}\n\n{body}")
}

/// The node's value of a field, or the plugin that answers.
fn field(plugins: &Plugins, name: &str, request: &str) -> String {
    let text = plugins.run(request, OK);
    let is_told = |line: &&str| line.contains(" answers") || line.contains(name);
    text.lines().filter(is_told).collect::<Vec<_>>().join(", ")
}

#[test]
fn filters_of_all_plugins_read_them() {
    let keys = "ip-restriction: {whitelist: [10.0.0.1], _meta: {filter: [[post_arg.user.role, '==', admin]]}}";
    let of = |content_type: &str, body: &str| {
        let text = outcome(keys, &post(content_type, body));
        text.split(' ').next().unwrap_or_default().to_owned()
    };
    assert_eq!(of(JSON, r#"{"user":{"role":"admin"}}"#), "403");
    assert_eq!(of(JSON, r#"{"user":{"role":"guest"}}"#), "passes");
    assert_eq!(of("text/plain", r#"{"user":{"role":"admin"}}"#), "passes");
    // On a thread for such work; a larger body is answered.
    let padded = |bytes: usize| format!(r#"{{"pad":"{}","user":{{"role":"admin"}}}}"#, "x".repeat(bytes));
    assert_eq!(of(JSON, &padded(100_000)), "403");
    assert!(outcome(keys, &post(JSON, &padded(1024 * 1024))).starts_with("413"));
    assert_eq!(of("text/plain", &padded(1024 * 1024)), "passes");
    // A plugin that runs before its filter could wait does wait.
    let keys = "response-rewrite: {status_code: 201, _meta: {filter: [[post_arg_a, '==', '1']]}}";
    let plugins = plugins(keys).unwrap();
    assert!(plugins.run(&post(FORM, "a=1"), OK).contains("< 201"));
}

#[test]
fn conditions_of_plugins_read_them() {
    let case =
        "workflow: {rules: [{case: [['post_arg.messages[*].kind', has, image]], actions: [[return, {code: 403}]]}]}";
    let of = |body: &str| outcome(case, &post(JSON, body)).get(..3).unwrap_or_default().to_owned();
    assert_eq!(of(r#"{"messages":[{"kind":"text"},{"kind":"image"}]}"#), "403");
    assert_eq!(of(r#"{"messages":[{"kind":"images"}]}"#), "pas");

    let fault =
        "fault-injection: {abort: {http_status: 418, body: \"no $post_arg_a\", vars: [[[post_arg_a, '==', tea]]]}}";
    assert_eq!(outcome(fault, &post(FORM, "a=tea&b")), "418 \"no tea\"");
    assert_eq!(outcome(fault, &post(FORM, "a=coffee")), "passes");
    let delay = "fault-injection: {delay: {duration: 1, vars: [[[post_arg_a, '==', tea]]]}}";
    let (delaying, server) = plugins(delay).unwrap().answered_by(&[]);
    for body in ["a=tea", "a=b"] {
        delaying.run(&post(FORM, body), OK);
    }
    assert_eq!(server.slept.borrow().len(), 1);

    let label = "traffic-label: {rules: [{match: [[post_arg.a, '==', '1']], actions: [{set_headers: {X-Label: \"<$post_arg.b>\"}}]}]}";
    let label = plugins(label).unwrap();
    assert_eq!(field(&label, "X-Label", &post(JSON, r#"{"a":1,"b":true}"#)), "> X-Label: <true>");
    assert_eq!(field(&label, "X-Label", &post(JSON, r#"{"a":2,"b":true}"#)), "");

    let rewrite =
        "response-rewrite: {headers: {set: {X-Model: $post_arg.model}}, vars: [[post_arg.model, '~~', '^gpt']]}";
    let rewrite = plugins(rewrite).unwrap();
    assert_eq!(field(&rewrite, "X-Model", &post(JSON, r#"{"model":"gpt-9"}"#)), "< X-Model: gpt-9");
    assert_eq!(field(&rewrite, "X-Model", &post(JSON, r#"{"model":"other"}"#)), "");
}

#[test]
fn texts_of_plugins_that_rewrite_read_them() {
    let keys = "proxy-rewrite: {uri: \"/to/$post_arg.a.b/$${post_arg.list[1] ?? none}\", \
                headers: {X-All: \"$${post_arg.list[*]}\"}}";
    let plugins = plugins(keys).unwrap();
    let told = |body: &str| {
        let text = plugins.run(&post(JSON, body), OK);
        text.lines()
            .filter(|line| line.contains("> POST") || line.contains("X-All") || line.contains("answers"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    assert_eq!(told(r#"{"a":{"b":"c/d?"},"list":["x","y"]}"#), "> POST /to/c/d%3F/y, > X-All: x, y");
    assert_eq!(told(r#"{"a":{"b":1}}"#), "> POST /to/1/none");
    // Values that would lead to another path, or split the head, are not sent.
    assert_eq!(told(r#"{"a":{"b":"c/../d"}}"#), "> proxy-rewrite answers");
    assert_eq!(told(r#"{"a":{"b":1},"list":["x\r\nX-Evil: 1"]}"#), "> proxy-rewrite answers");
}

/// A node may be able to read what this gateway cannot; so a condition that may hold is not a reason to continue.
#[test]
fn what_cannot_be_read_is_answered() {
    let parts = |part: &str| format!("--B\r\nContent-Disposition: form-data; {part}\r\n\r\nadmin\r\n--B--");
    let long = format!("{{\"role\":\"admin{}\"}}", " ".repeat(70_000));
    let deep = format!("{{\"role\":\"admin\",\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let (multipart, gzip) = ("multipart/form-data; boundary=B", "application/json\nContent-Encoding: gzip");
    let cases = [
        (JSON, r#"{"role":"admin"}"#, "runs"),
        (JSON, r#"{"role":"guest"}"#, "passes"),
        (JSON, "", "passes"),
        (JSON, r#"["role"]"#, "passes"),
        (JSON, r#"{"role":"admin""#, "400"),
        (JSON, r#"{"role":"admin","x":NaN}"#, "400"),
        (JSON, r#"{"role":"admin","x":010}"#, "400"),
        (JSON, "{'role':'admin'}", "400"),
        (JSON, "\u{feff}{\"role\":\"admin\"}", "400"),
        (JSON, &deep, "400"),
        (JSON, &long, "413"),
        (gzip, r#"{"role":"admin"}"#, "400"),
        ("text/plain, application/json", r#"{"role":"admin"}"#, "runs"),
        ("application/json-patch+json", r#"{"role":"admin""#, "400"),
        (FORM, "role=admin", "runs"),
        (FORM, "%72ole=%61dmin&%", "runs"),
        ("application/x-www-form-urlencoded\nContent-Encoding: br", "role=guest", "400"),
        (multipart, &parts("name=role"), "runs"),
        (multipart, &parts("name=other"), "passes"),
        (multipart, &parts("filename=role"), "400"),
        (multipart, &parts("name=other; name*=utf-8''role"), "400"),
        (multipart, &parts("name=role").replace("--B--", "--B"), "400"),
        ("multipart/form-data", &parts("name=role"), "400"),
        ("text/plain", r#"{"role":"admin""#, "passes"),
    ];
    for (keys, runs) in [
        ("ip-restriction: {whitelist: [10.0.0.1], _meta: {filter: [[post_arg.role, '==', admin]]}}", "403"),
        ("workflow: {rules: [{case: [[post_arg.role, '==', admin]], actions: [[return, {code: 418}]]}]}", "418"),
        ("fault-injection: {abort: {http_status: 401, vars: [[[post_arg.role, '==', admin]]]}}", "401"),
    ] {
        for (content_type, body, expected) in cases {
            let found = outcome(keys, &post(content_type, body));
            let expected = if expected == "runs" { runs } else { expected };
            assert_eq!(found.split(' ').next(), Some(expected), "{keys}: {content_type} {body:.100}");
        }
    }
    // A plugin that only watches neither refuses a request nor runs.
    let watching = "prometheus: {_meta: {filter: [[post_arg.role, '==', admin]]}}\n";
    for body in [r#"{"role":"admin""#, &long] {
        assert_eq!(outcome(watching, &post(JSON, body)), "passes");
        // The failed look-up changes nothing for others.
        let guard = "ip-restriction: {whitelist: [10.0.0.1], _meta: {filter: [[post_arg.role, '==', admin]]}}";
        let found = outcome(&format!("{watching}{guard}"), &post(JSON, body));
        assert!(found.starts_with("400") || found.starts_with("413"), "{found}");
    }
}

/// How many of three requests with each of the bodies continue.
fn passed(limit: &str, bodies: &[&str]) -> Vec<usize> {
    let mut plugins = plugins(limit).unwrap();
    plugins.worker = Worker::new(Arc::new(OnceLock::from(Arc::new(Limits::create(64 << 10).unwrap()))));
    plugins.worker.set_now_ms(1_795_220_833_000);
    let of = |body: &&str| (0..3).filter(|_| verdict(&plugins, &post(JSON, body)) == "passes").count();
    bodies.iter().map(of).collect()
}

#[test]
fn limits_count_by_them() {
    let bodies = [r#"{"user":"a","max":2}"#, r#"{"user":"b","max":1}"#, r#"{"max":1,"user":"a"}"#, "{}", "[]"];
    for key in ["key: post_arg.user", "key: \"$host $post_arg.user\", key_type: var_combination"] {
        let count = format!("limit-count: {{count: 1, time_window: 60, {key}}}");
        assert_eq!(passed(&count, &bodies), [1, 1, 0, 1, 0], "{count}");
        let rate = format!("limit-req: {{rate: 0.001, burst: 0, {key}}}");
        assert_eq!(passed(&rate, &bodies), [1, 1, 0, 1, 0], "{rate}");
    }
    let by_body = "limit-count: {time_window: 60, key: post_arg.user, count: \"$${post_arg.max ?? 3}\"}";
    assert_eq!(passed(by_body, &bodies), [2, 1, 0, 3, 0]);
    let rules = "limit-count: {rules: [{key: $post_arg.user, count: 1, time_window: 60}]}";
    // As no rule applies to a request without a user, it is not counted.
    assert_eq!(passed(rules, &bodies), [1, 1, 0, 0, 0]);
    let conn = "limit-conn: {conn: 1, burst: 0, default_conn_delay: 1, key: post_arg.user}";
    assert_eq!(passed(conn, &bodies), [3, 3, 3, 3, 3]);
    let conn = "limit-conn: {conn: \"$post_arg.max\", burst: 0, default_conn_delay: 1, key: post_arg.user}";
    assert_eq!(passed(conn, &bodies), [3, 3, 3, 0, 0]);
    let in_workflow =
        "workflow: {rules: [{actions: [[limit-count, {count: 1, time_window: 60, key: post_arg.user}]]}]}";
    assert_eq!(passed(in_workflow, &bodies), [1, 1, 0, 1, 0]);
}

#[test]
fn who_does_not_wait_cannot_ask() {
    let refused: String = [
        "http-logger: {uri: \"http://a\", include_req_body_expr: [[post_arg_a, '==', '1']]}",
        "ip-restriction: {whitelist: [10.0.0.1], _meta: {filter: [['post_arg.a..b', '==', '1']]}}",
        "limit-req: {rate: 1, burst: 1, key: post_arg_}",
        "limit-count: {count: 1, time_window: 1, key: \"$${post_arg.a[x]}\", key_type: var_combination}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:57: http-logger.include_req_body_expr[0][0]: "post_arg_a": not known before the body is; conditions of plugins and keys of limits may use it
        1:59: ip-restriction._meta.filter[0][0]: "post_arg.a..b": the name part is missing, too long, or holds a character it cannot; write post_arg.a, post_arg.a.b, post_arg.a[0] or post_arg.a[*].b
        1:37: limit-req.key: "post_arg_": the name part is missing, too long, or holds a character it cannot; write post_arg_NAME
        1:46: limit-count.key: "post_arg.a[x]": the name part is missing, too long, or holds a character it cannot; write post_arg.a, post_arg.a.b, post_arg.a[0] or post_arg.a[*].b
    "#]].assert_eq(&refused);
    let said: String = ["redirect: {uri: \"/$post_arg.a\"}", "proxy-rewrite: {uri: \"/$${post_arg.a..b}\"}"]
        .map(said_of_store)
        .concat();
    expect![[r#"
        1:17: warning: redirect.uri: "post_arg": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME; it is empty here
        1:22: warning: proxy-rewrite.uri: "post_arg.a..b": the name part is missing, too long, or holds a character it cannot; write post_arg.a, post_arg.a.b, post_arg.a[0] or post_arg.a[*].b; it is empty here
    "#]].assert_eq(&said);
}
