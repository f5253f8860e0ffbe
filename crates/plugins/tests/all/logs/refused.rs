//! Refused configurations of loggers, whose messages show no secrets.

use crate::harness::refusal;
use expect_test::{Expect, expect};

fn check(yaml: &str, expected: Expect) {
    let refused = refusal(yaml);
    assert!(!refused.contains("planted"), "{refused}");
    expected.assert_eq(&refused);
}

#[test]
fn addresses() {
    check(
        "http-logger: {}",
        expect![[r#"
        1:14: http-logger: the key "uri" is missing; add it
    "#]],
    );
    check(
        "http-logger: {uri: \"logs.example\"}",
        expect![[r#"
        1:20: http-logger.uri: not an address: it does not begin with http:// or https://; write http://HOST:PORT/PATH
    "#]],
    );
    check(
        "http-logger: {uri: \"http://u:planted@a\"}",
        expect![[r#"
        1:20: http-logger.uri: not an address: it has a user's name; use the keys for that; write http://HOST:PORT/PATH
    "#]],
    );
    check(
        "tcp-logger: {host: \"a b\", port: 70000}",
        expect![[r#"
        1:20: tcp-logger.host: not a host's name or address
        1:33: tcp-logger.port: expected a whole number from 0 to 65535, found the number 70000
    "#]],
    );
    check(
        "loki-logger: {endpoint_addrs: []}",
        expect![[r#"
        1:31: loki-logger.endpoint_addrs: an empty list; name at least one, or remove the key
    "#]],
    );
    check(
        "loki-logger: {endpoint_addrs: [\"http://a\"], endpoint_uri: push}",
        expect![[r#"
        1:59: loki-logger.endpoint_uri: not a path; begin it with /, and write other characters than ASCII as %XX
    "#]],
    );
    check(
        "elasticsearch-logger: {endpoint_addr: \"http://a\", endpoint_addrs: [\"http://a\"], field: {index: i}}",
        expect![[r#"
            1:23: elasticsearch-logger: there must be one of `endpoint_addr` and `endpoint_addrs`; write `endpoint_addrs`
        "#]],
    );
    check(
        "elasticsearch-logger: {endpoint_addrs: [\"http://a/\"], field: {index: i}}",
        expect![[r#"
            1:41: elasticsearch-logger.endpoint_addrs[0]: the address ends in "/"; leave it out
        "#]],
    );
    check(
        "file-logger: {path: \"\"}",
        expect![[r#"
        1:21: file-logger.path: this is not a path of a file
    "#]],
    );
    check(
        "zipkin: {endpoint: \"http://a\", sample_ratio: 2}",
        expect![[r#"
        1:46: zipkin.sample_ratio: expected a number from 0.00001 to 1, found the number 2
    "#]],
    );
}

#[test]
fn contents() {
    check(
        "http-logger: {uri: \"http://a\", log_format: {a: $remote_adr}}",
        expect![[r#"
            accepted
        "#]],
    );
    check(
        "http-logger: {uri: \"http://a\", log_format: {a: [b]}}",
        expect![[r#"
        1:48: http-logger.log_format.a: expected a text, or a map of names and values, found a list
    "#]],
    );
    check(
        "udp-logger: {host: a, port: 1, log_format: {a: {b: {c: {d: {e: {f: g}}}}}}}",
        expect![[r#"
            accepted
        "#]],
    );
    check(
        "syslog: {host: a, port: 1, include_resp_body_expr: [[a]]}",
        expect![[r#"
        1:53: syslog.include_resp_body_expr[0]: a condition is [variable, operator, value] or [variable, "!", operator, value]
    "#]],
    );
    check(
        "syslog: {host: a, port: 1, include_req_body_expr: []}",
        expect![[r#"
        1:51: syslog.include_req_body_expr: an empty list; name at least one, or remove the key
    "#]],
    );
    check(
        "syslog: {host: a, port: 1, sock_type: unix}",
        expect![[r#"
        1:39: syslog.sock_type: expected tcp or udp, found the text "unix"
    "#]],
    );
    check(
        "http-logger: {uri: \"http://a\", max_req_body_bytes: 0, batch_max_size: 0}",
        expect![[r#"
        1:52: http-logger.max_req_body_bytes: expected a whole number from 1 to 1048576, found the number 0
        1:71: http-logger.batch_max_size: expected a whole number from 1 to 1000000, found the number 0
    "#]],
    );
    check(
        "elasticsearch-logger: {endpoint_addrs: [\"http://a\"], field: {index: \"a-{%Q}\"}}",
        expect![[r#"
            1:69: elasticsearch-logger.field.index: a part of the time is not known; write %Y, %y, %m, %d, %F, %H, %M or %S
        "#]],
    );
    check(
        "loki-logger: {endpoint_addrs: [\"http://a\"], log_labels: {a: \"\", b: $no_such}}",
        expect![[r#"
        1:61: loki-logger.log_labels.a: a label cannot be empty
    "#]],
    );
}

#[test]
fn secrets() {
    check(
        "http-logger: {uri: \"http://a\", auth_header: \"planted\\r\\nX: y\"}",
        expect![[r#"
        1:45: http-logger.auth_header: this is not a valid value of a header field
    "#]],
    );
    check(
        "elasticsearch-logger: {endpoint_addrs: [\"http://a\"], field: {index: i}, auth: {username: planted}}",
        expect![[r#"
            1:79: elasticsearch-logger.auth: the key "password" is missing; add it
        "#]],
    );
    check(
        "loki-logger: {endpoint_addrs: [\"http://a\"], headers: {X-A: \"planted\\n\", \"b c\": d}}",
        expect![[r#"
        1:73: loki-logger.headers["b c"]: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
    "#]],
    );
    check(
        "opentelemetry: {sampler: {name: sometimes}, additional_attributes: [no_such]}",
        expect![[r#"
            1:33: opentelemetry.sampler.name: expected always_off, always_on, trace_id_ratio or parent_base, found the text "sometimes"
            1:69: opentelemetry.additional_attributes[0]: "no_such": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        "#]],
    );
}

#[test]
fn all_keys_of_apisix_are_taken() {
    for yaml in [
        "file-logger: {path: /tmp/a, log_format: {a: $host}, log_format_extra: {b: $status}, match: [[uri, ==, /]], \
         include_req_body: true, include_req_body_expr: [[uri, ==, /]], include_resp_body: true, \
         include_resp_body_expr: [[status, ==, 200]], max_req_body_bytes: 1, max_resp_body_bytes: 1}",
        "http-logger: {uri: \"http://a\", auth_header: \"\", timeout: 1, name: n, concat_method: new_line, ssl_verify: true, \
         batch_max_size: 1, inactive_timeout: 1, buffer_duration: 1, max_retry_count: 0, retry_delay: 0}",
        "tcp-logger: {host: a, port: 0, tls: true, tls_options: b, timeout: 1}",
        "udp-logger: {host: \"::1\", port: 1, timeout: 1}",
        "syslog: {host: a, port: 1, flush_limit: 1, drop_limit: 1, timeout: 1, sock_type: udp, pool_size: 5, tls: false}",
        "loki-logger: {endpoint_addrs: [\"http://a\"], endpoint_uri: /p, tenant_id: t, headers: {A: b}, log_labels: {a: $host}, \
         ssl_verify: true, timeout: 1, keepalive: false, keepalive_timeout: 1000, keepalive_pool: 1}",
        "elasticsearch-logger: {endpoint_addr: \"http://a:9200\", field: {index: \"a$host-{%Y.%m.%d}\"}, \
         auth: {username: u, password: p}, headers: {A: b}, ssl_verify: false, timeout: 1}",
        "zipkin: {endpoint: \"http://a\", sample_ratio: 0.5, service_name: s, server_addr: 10.0.0.1, span_version: 1}",
        "opentelemetry: {sampler: {name: parent_base, options: {fraction: 1, root: {name: always_on, options: {fraction: 0}}}}, \
         additional_attributes: [http_host], additional_header_prefix_attributes: [a, \"b*\"]}",
    ] {
        assert_eq!(refusal(yaml), "accepted\n", "{yaml}");
    }
}
