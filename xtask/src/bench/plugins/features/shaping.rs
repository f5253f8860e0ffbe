//! Content: rows of plugins that answer, and that change heads and bodies.

use super::super::super::peers::NGINX_PASS;
use super::super::envoy::EXTENSIONS;
use super::{ENVOY, Envoy, Feature, NONE, Nginx, REQUEST_FIELD, Seen, location, set};
use serde_json::{Value, json};

/// Reads a header field and a variable, and sets a field of the request and one of the response, with OpenResty's API.
const FUNCTION: &str = r#"local key, path = ngx.var.http_apikey, ngx.var.uri if key and path then ngx.req.set_header("X-Path", path) ngx.header["X-Answer"] = "bench" end"#;

pub(super) static ROWS: &[Feature] = &[
    Feature {
        name: "fault-injection, abort",
        stillgate: |_| ("fault-injection", json!({ "abort": { "http_status": 200, "body": "fault" } })),
        nginx: Some(|_| location("default_type text/plain; return 200 fault; ".to_owned())),
        haproxy: Some(|_| Ok("  http-request return status 200 content-type text/plain string fault\n".to_owned())),
        envoy: Some(|| {
            let abort = json!({ "http_status": 200, "percentage": { "numerator": 100 } });
            Envoy { filter: Some(("fault.v3.HTTPFault", json!({ "abort": abort }))), ..ENVOY }
        }),
        ..NONE
    },
    Feature {
        name: "serverless-pre-function",
        stillgate: |_| {
            let function = format!("return function(conf, ctx) {FUNCTION} end");
            ("serverless-pre-function", json!({ "phase": "access", "functions": [function] }))
        },
        nginx: Some(|_| location(format!("access_by_lua_block {{ {FUNCTION} }} "))),
        seen: Seen::Header("x-answer", "bench"),
        ..NONE
    },
    Feature {
        name: "real-ip",
        stillgate: |_| ("real-ip", json!({ "source": "http_x_real_ip", "trusted_addresses": ["127.0.0.0/8"] })),
        nginx: Some(|_| location("set_real_ip_from 127.0.0.0/8; real_ip_header X-Real-IP; ".to_owned())),
        haproxy: Some(|_| Ok("  http-request set-src req.hdr(x-real-ip) if { src 127.0.0.0/8 }\n".to_owned())),
        envoy: Some(|| Envoy {
            manager: |manager| {
                let kind = "http.original_ip_detection.custom_header";
                let typed = json!({
                    "@type": format!("{EXTENSIONS}.{kind}.v3.CustomHeaderConfig"),
                    "header_name": "x-real-ip", "allow_extension_to_set_address_as_trusted": true,
                });
                manager["use_remote_address"] = json!(false);
                manager["original_ip_detection_extensions"] =
                    json!([{ "name": format!("envoy.{kind}"), "typed_config": typed }]);
            },
            ..ENVOY
        }),
        ..NONE
    },
    Feature {
        name: "error-page, good answers",
        stillgate: |_| ("error-page", json!({})),
        nginx: Some(|_| location("proxy_intercept_errors on; error_page 502 /sorry; ".to_owned())),
        haproxy: Some(|_| {
            Ok("  http-response return status 502 content-type text/plain string sorry if { status 502 }\n".to_owned())
        }),
        metadata: Some(|_| json!({ "id": "error-page", "enable": true, "error_502": { "body": "sorry" } })),
        ..NONE
    },
    Feature {
        name: "traffic-label",
        stillgate: |_| {
            let action = json!({ "set_headers": { REQUEST_FIELD.0: REQUEST_FIELD.1 } });
            ("traffic-label", json!({ "rules": [{ "match": [["http_origin", "~=", "a"]], "actions": [action] }] }))
        },
        nginx: Some(|_| {
            Ok(Nginx {
                http: format!("map $http_origin $label {{ default {}; a \"\"; }}\n ", REQUEST_FIELD.1),
                location: format!("proxy_set_header {} $label; ", REQUEST_FIELD.0),
                ..Nginx::default()
            })
        }),
        haproxy: Some(|_| {
            let (name, value) = REQUEST_FIELD;
            Ok(format!("  http-request set-header {name} {value} unless {{ req.hdr(origin) -m str a }}\n"))
        }),
        ..NONE
    },
    Feature {
        name: "response-rewrite, vars",
        stillgate: |_| ("response-rewrite", json!({ "headers": set(REQUEST_FIELD), "vars": [["status", "==", 200]] })),
        haproxy: Some(|_| {
            Ok(format!("  http-response set-header {} {} if {{ status 200 }}\n", REQUEST_FIELD.0, REQUEST_FIELD.1))
        }),
        seen: Seen::Header("x-bench", REQUEST_FIELD.1),
        ..NONE
    },
    Feature {
        name: "response-rewrite, filters, 16 KiB",
        stillgate: |_| {
            let filter = json!({ "regex": "gateway", "replace": "GATEWAY", "scope": "global" });
            ("response-rewrite", json!({ "filters": [filter] }))
        },
        nginx: Some(|_| {
            location("sub_filter gateway GATEWAY; sub_filter_once off; sub_filter_types text/plain; ".to_owned())
        }),
        is_large: true,
        ..NONE
    },
    Feature {
        name: "body-transformer, response",
        stillgate: |_| {
            let template = r#"{"of":"{{_ctx.var.request_method}}","got":"{*_escape_json(_body)*}"}"#;
            ("body-transformer", json!({ "response": { "input_format": "plain", "template": template } }))
        },
        ..NONE
    },
    Feature {
        name: "traffic-split",
        stillgate: |_| {
            let parts = json!([{ "upstream_id": "u", "weight": 1 }, { "weight": 9 }]);
            ("traffic-split", json!({ "rules": [{ "weighted_upstreams": parts }] }))
        },
        nginx: Some(|_| {
            Ok(Nginx {
                // The same servers under another name.
                http: "split_clients $request_id $part { 10% u; * v; }\n ".to_owned(),
                pass: NGINX_PASS.replace("http://u", "http://$part"),
                ..Nginx::default()
            })
        }),
        haproxy: Some(|_| Ok("  use_backend b if { rand(10) lt 1 }\n".to_owned())),
        envoy: Some(|| Envoy {
            route: |route| {
                let part = |weight: u32| json!({ "name": "u", "weight": weight });
                route["route"] = json!({ "weighted_clusters": { "clusters": [part(1), part(9)] } });
            },
            ..ENVOY
        }),
        ..NONE
    },
    Feature {
        name: "grpc-web",
        stillgate: |_| ("grpc-web", json!({})),
        is_post: true,
        seen: Seen::Header("access-control-allow-origin", "*"),
        ..NONE
    },
    Feature {
        name: "gzip, level 1, 16 KiB",
        stillgate: |_| ("gzip", compression(1)),
        nginx: Some(|_| location(nginx_gzip(1))),
        haproxy: Some(|_| {
            Ok("  filter compression\n  compression algo gzip\n  compression type text/plain\n".to_owned())
        }),
        envoy: Some(|| {
            compressor("gzip", "Gzip", json!({ "compression_level": "COMPRESSION_LEVEL_1", "memory_level": 8 }))
        }),
        seen: Seen::Header("content-encoding", "gzip"),
        is_large: true,
        ..NONE
    },
    Feature {
        name: "gzip, level 6, 16 KiB",
        stillgate: |_| ("gzip", compression(6)),
        nginx: Some(|_| location(nginx_gzip(6))),
        envoy: Some(|| {
            compressor("gzip", "Gzip", json!({ "compression_level": "COMPRESSION_LEVEL_6", "memory_level": 8 }))
        }),
        seen: Seen::Header("content-encoding", "gzip"),
        is_large: true,
        ..NONE
    },
    Feature {
        name: "brotli, level 5, 16 KiB",
        stillgate: |_| ("brotli", compression(5)),
        // From Debian's module.
        nginx: Some(|_| {
            location("brotli on; brotli_comp_level 5; brotli_types text/plain; brotli_min_length 20; ".to_owned())
        }),
        envoy: Some(|| compressor("brotli", "Brotli", json!({ "quality": 5 }))),
        seen: Seen::Header("content-encoding", "br"),
        is_large: true,
        ..NONE
    },
    Feature {
        name: "zstd, level 3, 16 KiB",
        stillgate: |_| ("zstd", compression(3)),
        envoy: Some(|| compressor("zstd", "Zstd", json!({ "compression_level": 3 }))),
        seen: Seen::Header("content-encoding", "zstd"),
        is_large: true,
        ..NONE
    },
];

fn compression(level: u32) -> Value {
    json!({ "types": ["text/plain"], "comp_level": level })
}

fn nginx_gzip(level: u32) -> String {
    format!("gzip on; gzip_comp_level {level}; gzip_types text/plain; gzip_min_length 20; ")
}

fn compressor(name: &str, kind: &str, mut typed: Value) -> Envoy {
    typed["@type"] = json!(format!("{EXTENSIONS}.compression.{name}.compressor.v3.{kind}"));
    let common = json!({ "min_content_length": 20, "content_type": ["text/plain"] });
    let typed = json!({
        "response_direction_config": { "common_config": common },
        "compressor_library": { "name": name, "typed_config": typed },
    });
    Envoy { filter: Some(("compressor.v3.Compressor", typed)), ..ENVOY }
}
