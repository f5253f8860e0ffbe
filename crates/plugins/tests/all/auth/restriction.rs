//! `consumer-restriction`, `acl` and `attach-consumer-label`: plugins that depend on the consumer.

use super::consumers::consumers;
use super::outcome;
use crate::harness::refusal;
use expect_test::{Expect, expect};
use stillgate_plugin_api::Consumers;

fn known() -> Consumers {
    consumers(&[
        ("jack", &[("team", "a,b"), ("role", "admin")], "key-auth: {key: jack}"),
        ("rose", &[], "key-auth: {key: rose}"),
        ("nobody", &[("team", "c")], "{}"),
    ])
}

/// The answers to jack, to rose and to an unknown client, each by method: the status, and the body of a refusal.
fn seen(config: &str) -> String {
    let mut seen = String::new();
    for who in ["jack", "rose", "stranger"] {
        let answers: Vec<String> = ["GET", "POST"].map(|method| answer(config, who, method)).into();
        seen.push_str(&format!("{who}: {}\n", answers.join("; ")));
    }
    seen
}

fn answer(config: &str, who: &str, method: &str) -> String {
    let config = format!("key-auth: {{anonymous_consumer: nobody}}\n{config}");
    let head = format!("{method} / HTTP/1.1\nHost: h\napikey: {who}");
    let outcome = outcome(&config, &known(), &head);
    match outcome.starts_with('>') {
        true => "goes on".to_owned(),
        false => outcome.replace("< ", "").trim_end().replace('\n', " "),
    }
}

#[track_caller]
fn check(config: &str, expected: Expect) {
    expected.assert_eq(&seen(config));
}

#[test]
fn consumers_are_restricted_by_name() {
    check(
        "consumer-restriction: {whitelist: [rose, jack]}",
        expect![[r#"
        jack: goes on; goes on
        rose: goes on; goes on
        stranger: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
    "#]],
    );
    check(
        "consumer-restriction: {blacklist: [jack], rejected_code: 418, rejected_msg: 'say \"why\"'}",
        expect![[r#"
        jack: 418 "{\"message\":\"say \\\"why\\\"\"}\n"; 418 "{\"message\":\"say \\\"why\\\"\"}\n"
        rose: goes on; goes on
        stranger: goes on; goes on
    "#]],
    );
    // The blacklist takes precedence.
    check(
        "consumer-restriction: {blacklist: [jack], whitelist: [jack]}",
        expect![[r#"
        jack: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
        rose: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
        stranger: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
    "#]],
    );
}

#[test]
fn methods_are_restricted_by_name() {
    let methods = "allowed_by_methods: [{user: jack, methods: [GET]}, {user: jack, methods: [POST]}]";
    check(
        &format!("consumer-restriction: {{{methods}}}"),
        expect![[r#"
        jack: goes on; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
        rose: goes on; goes on
        stranger: goes on; goes on
    "#]],
    );
    // Names in the whitelist may use all methods, and others none.
    check(
        &format!("consumer-restriction: {{whitelist: [jack], {methods}}}"),
        expect![[r#"
            jack: goes on; goes on
            rose: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
            stranger: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
        "#]],
    );
    check(
        &format!("consumer-restriction: {{whitelist: [rose], {methods}}}"),
        expect![[r#"
            jack: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
            rose: goes on; goes on
            stranger: 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_name is forbidden.\"}\n"
        "#]],
    );
}

#[test]
fn groups_services_and_routes_are_restricted() {
    check(
        "consumer-restriction: {type: consumer_group_id, whitelist: [g]}",
        expect![[r#"
        jack: goes on; goes on
        rose: goes on; goes on
        stranger: goes on; goes on
    "#]],
    );
    check(
        "consumer-restriction: {type: consumer_group_id, blacklist: [g]}",
        expect![[r#"
        jack: 403 "{\"message\":\"The consumer_group_id is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_group_id is forbidden.\"}\n"
        rose: 403 "{\"message\":\"The consumer_group_id is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_group_id is forbidden.\"}\n"
        stranger: 403 "{\"message\":\"The consumer_group_id is forbidden.\"}\n"; 403 "{\"message\":\"The consumer_group_id is forbidden.\"}\n"
    "#]],
    );
    // Without service and route here; the transcripts have them.
    check(
        "consumer-restriction: {type: service_id, whitelist: [s]}",
        expect![[r#"
        jack: 401 "{\"message\":\"The request is rejected, please check the service_id for this request\"}\n"; 401 "{\"message\":\"The request is rejected, please check the service_id for this request\"}\n"
        rose: 401 "{\"message\":\"The request is rejected, please check the service_id for this request\"}\n"; 401 "{\"message\":\"The request is rejected, please check the service_id for this request\"}\n"
        stranger: 401 "{\"message\":\"The request is rejected, please check the service_id for this request\"}\n"; 401 "{\"message\":\"The request is rejected, please check the service_id for this request\"}\n"
    "#]],
    );
    check(
        "consumer-restriction: {type: route_id, blacklist: [r]}",
        expect![[r#"
        jack: 401 "{\"message\":\"The request is rejected, please check the route_id for this request\"}\n"; 401 "{\"message\":\"The request is rejected, please check the route_id for this request\"}\n"
        rose: 401 "{\"message\":\"The request is rejected, please check the route_id for this request\"}\n"; 401 "{\"message\":\"The request is rejected, please check the route_id for this request\"}\n"
        stranger: 401 "{\"message\":\"The request is rejected, please check the route_id for this request\"}\n"; 401 "{\"message\":\"The request is rejected, please check the route_id for this request\"}\n"
    "#]],
    );
}

#[test]
fn nobody_is_refused_where_consumers_are_restricted() {
    let check = |config: &str, expected: Expect| {
        expected.assert_eq(&outcome(config, &known(), "GET / HTTP/1.1\nHost: h"));
    };
    check(
        "consumer-restriction: {blacklist: [jack]}",
        expect![[r#"
        < 401
        < "{\"message\":\"The request is rejected, please check the consumer_name for this request\"}\n"
    "#]],
    );
    check(
        "consumer-restriction: {type: consumer_group_id, blacklist: [jack]}",
        expect![[r#"
        < 401
        < "{\"message\":\"The request is rejected, please check the consumer_group_id for this request\"}\n"
    "#]],
    );
    check(
        "acl: {deny_labels: {team: [a]}}",
        expect![[r#"
        < 401
        < "{\"message\":\"Missing authentication.\"}\n"
    "#]],
    );
}

#[test]
fn consumers_are_restricted_by_label() {
    check(
        "acl: {allow_labels: {team: [b, x]}}",
        expect![[r#"
        jack: goes on; goes on
        rose: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
        stranger: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
    "#]],
    );
    check(
        "acl: {allow_labels: {team: [x], role: [admin]}}",
        expect![[r#"
        jack: goes on; goes on
        rose: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
        stranger: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
    "#]],
    );
    check(
        "acl: {deny_labels: {team: [c, a]}, rejected_code: 404, rejected_msg: none}",
        expect![[r#"
        jack: 404 "{\"message\":\"none\"}\n"; 404 "{\"message\":\"none\"}\n"
        rose: goes on; goes on
        stranger: 404 "{\"message\":\"none\"}\n"; 404 "{\"message\":\"none\"}\n"
    "#]],
    );
    check(
        "acl: {deny_labels: {role: [admin]}, allow_labels: {team: [a, c]}}",
        expect![[r#"
        jack: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
        rose: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
        stranger: goes on; goes on
    "#]],
    );
    // Keys for external users change nothing for consumers.
    check(
        "acl: {allow_labels: {team: [b]}, external_user_label_field: groups}",
        expect![[r#"
        jack: goes on; goes on
        rose: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
        stranger: 403 "{\"message\":\"The consumer is forbidden.\"}\n"; 403 "{\"message\":\"The consumer is forbidden.\"}\n"
    "#]],
    );
}

/// What clients in PHP and Lua write for an empty map.
#[test]
fn an_empty_list_is_a_configuration_without_keys() {
    let outcome = outcome("key-auth: []", &known(), "GET / HTTP/1.1\nHost: h");
    assert!(outcome.starts_with("< 401"), "{outcome}");
}

/// APISIX's tests of `ctx.external_user`.
#[test]
fn labels_of_users_that_functions_set_let_through() {
    let check = |user: &str, acl: &str, expected: &str| {
        let source = format!("return function(conf, ctx) ctx.external_user = {user} end");
        let source = serde_json::to_string(&source).unwrap();
        let config = format!("serverless-pre-function: {{phase: access, functions: [{source}]}}\nacl: {{{acl}}}");
        let outcome = outcome(&config, &known(), "GET / HTTP/1.1\nHost: h");
        let status = outcome.lines().next().unwrap().trim_start_matches("< ");
        assert_eq!(if outcome.starts_with('>') { "goes on" } else { status }, expected, "{user} {acl}");
    };
    let allow = "allow_labels: {org: [api7], team: [cloud, infra]}, external_user_label_field";
    let path = format!("{allow}: $.orgs..team, external_user_label_field_key: team, external_user_label_field_parser");
    let of_api7 = |team: &str| format!("{{ orgs = {{ api7 = {{ team = {team} }} }} }}");
    check("{ team = { 'infra', 'fake' } }", &format!("{allow}: team"), "goes on");
    check("{ team = { 'fake' } }", &format!("{allow}: team"), "403");
    check("{ team = 'x, cloud' }", &format!("{allow}: team"), "goes on");
    check("{ team = 1 }", &format!("{allow}: team"), "403");
    check("nil", &format!("{allow}: team"), "401");
    check("false", "deny_labels: {team: [cloud]}, external_user_label_field: team", "401");
    check("print", "deny_labels: {team: [cloud]}, external_user_label_field: team", "401");
    let padded = "(function() local all = {} for at = 1, 20000 do all[at] = at end return { a = all, z = { team = 'cloud' } } end)()";
    check(
        padded,
        "deny_labels: {team: [cloud]}, external_user_label_field: $..team, external_user_label_field_key: team",
        "403",
    );
    check("'cloud'", &format!("{allow}: team"), "403");
    check(&of_api7("{ 'cloud' }"), &format!("{path}: table"), "goes on");
    check(&of_api7("'cloud,infra'"), &format!("{path}: table"), "403");
    let segmented = format!("{path}: segmented_text, external_user_label_field_separator");
    check(&of_api7("'x | infra'"), &format!("{segmented}: '\\|'"), "goes on");
    check(&of_api7("'cloud|infra'"), &format!("{segmented}: '|'"), "403");
    check(&of_api7("{ 'cloud' }"), &format!("{segmented}: '\\|'"), "403");
    check(&of_api7("'[\"x\", \"cloud\"]'"), &format!("{path}: json"), "goes on");
    for broken in ["{ 'cloud' }", "'cloud'", "'[cloud'"] {
        check(&of_api7(broken), &format!("{path}: json"), "403");
    }
    // Several values count together, and without a key the path is the label's name.
    let two = "{ orgs = { api7 = { team = 'cloud' }, apache = { team = 'qa' } } }";
    check(two, &format!("{segmented}: '\\|'"), "goes on");
    let named = "external_user_label_field_key: name, external_user_label_field";
    let teams = "{ teams = { { name = 'cloud' }, { name = 'infra,qa' } } }";
    let parts = "external_user_label_field_parser: segmented_text, external_user_label_field_separator: ','";
    check(teams, &format!("deny_labels: {{name: [infra]}}, {named}: $..name, {parts}"), "403");
    check(teams, &format!("deny_labels: {{name: [infr]}}, {named}: $..name, {parts}"), "goes on");
    let roles = "{ roles = { { name = 'staff' }, { name = { 'guest', 'suspended' } } } }";
    for parser in ["", ", external_user_label_field_parser: json"] {
        check(roles, &format!("deny_labels: {{name: [suspended]}}, {named}: '$.roles[*].name'{parser}"), "403");
    }
    check(&of_api7("'cloud'"), &format!("{allow}: $..team"), "403");
    check(&of_api7("'cloud'"), "deny_labels: {$..team: [cloud]}, external_user_label_field: $..team", "403");
    check(&of_api7("'cloud'"), "deny_labels: {team: [cloud]}, external_user_label_field: $..team", "goes on");
}

#[test]
fn labels_are_attached() {
    let check = |who: &str, expected: Expect| {
        let config = "key-auth: {hide_credentials: true}\nattach-consumer-label: {headers: {X-Team: $team, x-role: $role, X-None: $none}}";
        let head = format!("GET / HTTP/1.1\nHost: h\nx-team: forged\nX-None: forged\napikey: {who}");
        expected.assert_eq(&outcome(config, &known(), &head));
    };
    check(
        "jack",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: jack
        > X-Team: a,b
        > x-role: admin
    "#]],
    );
    check(
        "rose",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: rose
    "#]],
    );
    let config = "attach-consumer-label: {headers: {X-Team: $team}}";
    let nobody = outcome(config, &known(), "GET / HTTP/1.1\nHost: h\nX-Team: forged");
    expect![[r#"
        > GET /
        > Host: h
    "#]]
    .assert_eq(&nobody);
}

#[test]
fn what_cannot_work_is_refused() {
    let check = |yaml: &str, expected: Expect| expected.assert_eq(&refusal(yaml));
    check(
        "consumer-restriction: {}",
        expect![[r#"
        1:23: consumer-restriction: nothing is restricted; add whitelist, blacklist or allowed_by_methods
    "#]],
    );
    check(
        "consumer-restriction: {whitelist: []}",
        expect![[r#"
        1:35: consumer-restriction.whitelist: an empty list; name at least one, or remove the key
    "#]],
    );
    check(
        "consumer-restriction: {type: consumer, whitelist: [a]}",
        expect![[r#"
        1:30: consumer-restriction.type: expected consumer_name, consumer_group_id, service_id or route_id, found the text "consumer"; did you mean "consumer_name"?
    "#]],
    );
    check(
        "consumer-restriction: {allowed_by_methods: [{user: a, methods: [get]}]}",
        expect![[r#"
        1:65: consumer-restriction.allowed_by_methods[0].methods[0]: "get" is not a method; use one of GET, POST, PUT, DELETE, PATCH, HEAD, OPTIONS, CONNECT, TRACE, PURGE
    "#]],
    );
    check(
        "consumer-restriction: {allowed_by_methods: [{methods: [GET]}]}",
        expect![[r#"
        1:45: consumer-restriction.allowed_by_methods[0]: the key "user" is missing; add it
    "#]],
    );
    check(
        "consumer-restriction: {blacklist: [a], rejected_code: 199}",
        expect![[r#"
        1:55: consumer-restriction.rejected_code: expected a whole number from 200 to 599, found the number 199
    "#]],
    );
    check(
        "acl: {rejected_code: 403}",
        expect![[r#"
        1:6: acl: there are no labels; add allow_labels or deny_labels
    "#]],
    );
    check(
        "acl: {allow_labels: {}}",
        expect![[r#"
        1:21: acl.allow_labels: there are no labels; name one, or remove the key
    "#]],
    );
    check(
        "acl: {allow_labels: {team: a}}",
        expect![[r#"
        1:28: acl.allow_labels.team: expected a list, found a text
    "#]],
    );
    check(
        "acl: {allow_labels: {team: [a]}, external_user_label_field: \"$..([invalid\"}",
        expect![[r#"
            1:61: acl.external_user_label_field: "$..([invalid" is not a JSONPath; write it as in `$.orgs..team`
        "#]],
    );
    check(
        "acl: {deny_labels: {team: [a]}, external_user_label_field: \"$.teams[1:3]\"}",
        expect![[r#"
            1:6: acl.external_user_label_field: "$.teams[1:3]": filters, scripts, slices and unions are not supported; use only names, indexes, `*` and `..`
        "#]],
    );
    check(
        "acl: {allow_labels: {team: [a]}, external_user_label_field_parser: segmented_text}",
        expect![[r#"
            1:68: acl.external_user_label_field_parser: there is no separator; add `external_user_label_field_separator`
        "#]],
    );
    check(
        "acl: {allow_labels: {team: [a]}, external_user_label_field_parser: segmented_text, external_user_label_field_separator: '(a'}",
        expect![[r#"
            1:6: acl.external_user_label_field_separator: not a regular expression: unclosed group
        "#]],
    );
    check(
        "acl: {allow_labels: {team: []}, external_user_label_field_parser: xml}",
        expect![[r#"
        1:28: acl.allow_labels.team: an empty list; name at least one, or remove the key
        1:67: acl.external_user_label_field_parser: expected segmented_text, json or table, found the text "xml"
    "#]],
    );
    check(
        "attach-consumer-label: {}",
        expect![[r#"
        1:24: attach-consumer-label: the key "headers" is missing; add it
    "#]],
    );
    check(
        "attach-consumer-label: {headers: {}}",
        expect![[r#"
        1:34: attach-consumer-label.headers: the map is empty; name one, or remove the plugin
    "#]],
    );
    check(
        "attach-consumer-label: {headers: {X-A: a, 'X B': $b, Connection: $c, hOst: $d, X-E: $}}",
        expect![[r#"
        1:40: attach-consumer-label.headers.X-A: "a" does not name a label; write a dollar and the name: $department
        1:50: attach-consumer-label.headers["X B"]: "X B": not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        1:66: attach-consumer-label.headers.Connection: "Connection": this field frames the message or belongs to one connection; the gateway sets it
        1:76: attach-consumer-label.headers.hOst: the node's host cannot be a label; use another header field
        1:85: attach-consumer-label.headers.X-E: "$" does not name a label; write a dollar and the name: $department
    "#]],
    );
}
