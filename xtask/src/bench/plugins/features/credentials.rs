//! Authentication: rows of plugins that authenticate, and of those that check the consumer.

use super::{ENVOY, Envoy, Feature, KEY_AUTH, NONE, Seen, file, location};
use serde_json::json;

/// The consumer of all credentials except keys.
pub(in super::super) const USER: &str = "bench";
pub(in super::super) const PASSWORD: &str = "bench-password";
pub(in super::super) const AUTHORIZATION: &str = "Basic YmVuY2g6YmVuY2gtcGFzc3dvcmQ=";
/// SHA-1 of the password in Base64: the only format that Envoy supports.
const PASSWORD_SHA1: &str = "o3cOkwHD7Gf2y1wTOReNwr96zYY=";
/// The request header of tokens.
pub(in super::super) const TOKEN_HEADER: &str = "X-Token";
pub(in super::super) const TOKEN_SECRET: &str = "bench-secret-of-some-length-0123456789";
/// `TOKEN_SECRET` in Base64 for URLs.
const TOKEN_SECRET_BASE64: &str = "YmVuY2gtc2VjcmV0LW9mLXNvbWUtbGVuZ3RoLTAxMjM0NTY3ODk";
/// HMAC with the same secret of the date in the requests, which stays valid for long.
pub(in super::super) const DATE: &str = "Thu, 26 Nov 2026 00:00:00 GMT";
const SIGNATURE: &str = "Signature keyId=\"bench\",algorithm=\"hmac-sha256\",headers=\"date\",signature=\"9ybwiesMTA0LpFVk2hetu416pnGjDHPZvy9z9/7aiyQ=\"";
/// HS256 of `{"key":"bench","exp":1999999999}`.
pub(in super::super) const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJrZXkiOiJiZW5jaCIsImV4cCI6MTk5OTk5OTk5OX0.i15WrTWF_N4F_hXpUsHCs1FlJ6yfzpwSB06GyBp37Mw";

pub(super) static ROWS: &[Feature] = &[
    Feature {
        name: "basic-auth",
        stillgate: |_| ("basic-auth", json!({})),
        nginx: Some(|dir| {
            let users = file(dir, "nginx.users", &format!("{USER}:{{PLAIN}}{PASSWORD}\n"))?;
            location(format!("auth_basic bench; auth_basic_user_file {}; ", users.display()))
        }),
        // A list of users is not part of a frontend; one user by an exact match is the cheapest form.
        haproxy: Some(|_| {
            Ok(format!(
                "  http-request deny deny_status 401 unless {{ req.hdr(authorization) -m str \"{AUTHORIZATION}\" }}\n"
            ))
        }),
        envoy: Some(|| Envoy {
            filter: Some((
                "basic_auth.v3.BasicAuth",
                json!({ "users": { "inline_string": format!("{USER}:{{SHA}}{PASSWORD_SHA1}") } }),
            )),
            ..ENVOY
        }),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "jwt-auth, HS256",
        stillgate: |_| ("jwt-auth", json!({ "header": TOKEN_HEADER })),
        haproxy: Some(|_| {
            Ok(format!(
                "  http-request deny deny_status 401 unless {{ req.hdr({TOKEN_HEADER}),jwt_verify(HS256,{TOKEN_SECRET}) -m int 1 }}\n"
            ))
        }),
        envoy: Some(|| {
            let key = json!({ "kty": "oct", "alg": "HS256", "kid": "1", "k": TOKEN_SECRET_BASE64 });
            let keys = json!({ "keys": [key] }).to_string();
            let provider = json!({
                "local_jwks": { "inline_string": keys }, "from_headers": [{ "name": TOKEN_HEADER }],
                "jwt_cache_config": { "jwt_cache_size": 1000 },
            });
            let rule = json!({ "match": { "prefix": "/" }, "requires": { "provider_name": "p" } });
            let typed = json!({ "providers": { "p": provider }, "rules": [rule] });
            Envoy { filter: Some(("jwt_authn.v3.JwtAuthentication", typed)), ..ENVOY }
        }),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "hmac-auth",
        stillgate: |_| ("hmac-auth", json!({ "clock_skew": 10_000_000_000_i64 })),
        authorization: Some(SIGNATURE),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "multi-auth, basic and key",
        stillgate: |_| ("multi-auth", json!({ "auth_plugins": [{ "basic-auth": {} }, { "key-auth": {} }] })),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "key-auth, consumer-restriction",
        stillgate: |_| ("consumer-restriction", json!({ "whitelist": ["consumer_500"] })),
        beside: Some(&KEY_AUTH),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "key-auth, acl",
        stillgate: |_| ("acl", json!({ "allow_labels": { "team": ["a"] } })),
        beside: Some(&KEY_AUTH),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "key-auth, attach-consumer-label",
        stillgate: |_| ("attach-consumer-label", json!({ "headers": { "X-Team": "$team" } })),
        beside: Some(&KEY_AUTH),
        seen: Seen::Refused,
        ..NONE
    },
];
