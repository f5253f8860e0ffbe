//! `workflow`

use super::{check, harness};
use expect_test::expect;
use harness::refusal;

#[test]
fn the_first_rule_that_matches_is_done() {
    let config = "workflow: {rules: [\
        {case: [[uri, '==', /none]], actions: []}, \
        {case: [[uri, '==', /a]], actions: [[return, {code: 403}]]}, \
        {case: [OR, [arg_v, '==', '1'], [http_x, '==', '2']], actions: [[return, {code: 429}], [return, {code: 200}]]}]}";
    let request = |target: &str| format!("GET {target} HTTP/1.1\nHost: h\n\n");
    check(
        config,
        &request("/none?v=1"),
        expect![[r#"
        > GET /none?v=1
        > Host: h
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    check(
        config,
        &request("/a?v=1"),
        expect![[r#"
        > workflow answers
        < 403
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
    check(
        config,
        &request("/b?v=1"),
        expect![[r#"
        > workflow answers
        < 429
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
    check(
        config,
        &request("/b"),
        expect![[r#"
        > GET /b
        > Host: h
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    check(
        "workflow: {rules: []}",
        &request("/b"),
        expect![[r#"
        > GET /b
        > Host: h
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
}

/// Neither rule is the safe one: the request is refused.
#[test]
fn a_case_that_cannot_be_evaluated_refuses_the_request() {
    let config = "workflow: {rules: [\
        {case: [[uri, '==', /open]], actions: []}, \
        {case: [[arg_v, '==', '1']], actions: [[return, {code: 403}]]}]}";
    check(
        config,
        "GET /a%2F../open HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        > workflow answers
        < 400
        < "<html>\r\n<head><title>400 Bad Request</title></head>\r\n<body>\r\n<center><h1>400 Bad Request</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "workflow: {}",
        "workflow: {rules: [{case: [[uri, '==', /a]]}]}",
        "workflow: {rules: [{case: [], actions: [[return, {code: 403}]]}]}",
        "workflow: {rules: [{actions: [[return]]}]}",
        "workflow: {rules: [{actions: [[return, {}]]}]}",
        "workflow: {rules: [{actions: [[return, {code: 600}]]}]}",
        "workflow: {rules: [{actions: [[fly, {}]]}]}",
        "workflow: {rules: [{actions: [{return: {}}]}]}",
        "workflow: {rules: [{case: [[uri, '?', a]], actions: [[return, {code: 403}]]}]}",
        "workflow: {rules: [{actions: [[limit-count, {count: 1}]]}]}",
        "workflow: {rules: [{actions: [[limit-count, {count: 1, time_window: 1, key: no_such_variable}]]}]}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:11: workflow: the key "rules" is missing; add it
        1:20: workflow.rules[0]: the key "actions" is missing; add it
        1:27: workflow.rules[0].case: an empty list; name at least one, or remove the key
        1:31: workflow.rules[0].actions[0]: expected an action such as [return, {code: 403}], found a list
        1:40: workflow.rules[0].actions[0][1]: the key "code" is missing; add it
        1:47: workflow.rules[0].actions[0][1].code: expected a whole number from 200 to 599, found the number 600
        1:32: workflow.rules[0].actions[0][0]: unsupported action: fly; write return or limit-count or limit-conn
        1:31: workflow.rules[0].actions[0]: expected an action such as [return, {code: 403}], found a map
        1:34: workflow.rules[0].case[0][1]: "?": unknown operator; write one of "==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch"
        1:11: workflow.rules[0].actions[0][1]: there is no limit; add `count` and `time_window`, or `rules`
        1:77: workflow.rules[0].actions[0][1].key: "no_such_variable": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
    "#]].assert_eq(&text);
}
