//! `resty.jwt`: good tokens, and how others are refused.

use crate::fake::{Fake, program, run_with};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::sync::LazyLock;
use stillgate_lua::Context;

/// The example of RFC 7515 appendix A.1: HS256, whose key is not UTF-8.
const RFC_TOKEN: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const RFC_KEY: &str = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";

/// Private and public keys, as a table in Lua.
static KEYS: LazyLock<String> = LazyLock::new(|| {
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let of_rsa = AsDer::<Pkcs8V1Der<'_>>::as_der(&rsa).unwrap();
    let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let ed = Ed25519KeyPair::generate().unwrap();
    let entry = |name: &str, label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        format!("['{name}'] = '-----BEGIN {label}-----\\n{text}\\n-----END {label}-----\\n',")
    };
    let private = |name, der: &[u8]| entry(name, "PRIVATE KEY", der);
    let public = |name, der: &[u8]| entry(name, "PUBLIC KEY", der);
    [
        private("rsa", of_rsa.as_ref()),
        public("rsa.pub", rsa.public_key().as_der().unwrap().as_ref()),
        private("ec", ec.to_pkcs8v1().unwrap().as_ref()),
        public("ec.pub", ec.public_key().as_der().unwrap().as_ref()),
        private("ed", ed.to_pkcs8().unwrap().as_ref()),
        public("ed.pub", ed.public_key().as_der().unwrap().as_ref()),
    ]
    .concat()
});

/// The output of a function; `told` writes its arguments, and `t` is a good token of HS256 with the secret `s`.
fn say(body: &str) -> String {
    let keys = &*KEYS;
    let source = format!(
        "local jwt, validators = require('resty.jwt'), require('resty.jwt-validators')
         local keys = {{ {keys} }}
         local function sign(alg, key, payload, header)
            header = header or {{ typ = 'JWT' }}
            header.alg = alg
            return jwt:sign(key, {{ header = header, payload = payload or {{ sub = 'x' }} }})
         end
         return function()
            local function told(...) ngx.say((require('apisix.core').json.stably_encode({{ ... }}))) end
            -- verified, and why not
            local function tell(token) told(token.verified, token.reason) end
            local t = sign('HS256', 's')
            {body}
         end"
    );
    let outcome = run_with(&program(&[&source]), &mut Fake::default(), &mut Context::default());
    match outcome.strip_prefix("200 ") {
        Some(text) => serde_json::from_str::<String>(text).unwrap().trim_end().to_owned(),
        None => outcome,
    }
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        assert_eq!(say(body), *expected, "{body}");
    }
}

const GOOD: &str = r#"[true,"everything is awesome~ :p"]"#;

#[test]
fn a_good_token_has_the_shape_of_openresty() {
    check(&[
        (
            "local o = jwt:verify('s', t) told(o.verified, o.valid, o.reason, o.header, o.payload, o.raw_header .. '.' .. o.raw_payload .. '.' .. o.signature == t)",
            r#"[true,true,"everything is awesome~ :p",{"alg":"HS256","typ":"JWT"},{"sub":"x"},true]"#,
        ),
        (
            "local o = jwt:load_jwt(t) told(o.verified, o.valid, o.reason == nil, o.payload.sub)",
            r#"[false,true,true,"x"]"#,
        ),
        ("tell(jwt:verify_jwt_obj('s', jwt:load_jwt(t)))", GOOD),
        ("tell(jwt.new():verify('s', t))", GOOD),
        ("told(jwt:jwt_decode(jwt:jwt_encode('??>')), jwt:jwt_encode('??>'))", r#"["??>","Pz8-"]"#),
        ("told(jwt:load_jwt('a.b'))", r#"[{"reason":"invalid jwt string","valid":false,"verified":false}]"#),
        // A payload that is not JSON.
        ("local o = jwt:verify('s', sign('HS256', 's', 'text')) told(o.verified, o.payload)", r#"[true,"text"]"#),
    ]);
    let expired = r#"[false,"'exp' claim expired at Tue, 22 Mar 2011 18:43:00 GMT"]"#;
    let key = format!("require('ngx.base64').decode_base64url('{RFC_KEY}')");
    check(&[
        (&format!("tell(jwt:verify({key}, '{RFC_TOKEN}'))"), expired),
        (&format!("tell(jwt:verify({key}, '{RFC_TOKEN}', {{ iss = validators.equals('joe') }}))"), GOOD),
    ]);
}

#[test]
fn each_algorithm_signs_and_verifies() {
    for (alg, private, public) in [
        ("HS256", "'s'", "'s'"),
        ("HS384", "'s'", "'s'"),
        ("HS512", "'s'", "'s'"),
        ("RS256", "keys.rsa", "keys['rsa.pub']"),
        ("RS384", "keys.rsa", "keys['rsa.pub']"),
        ("RS512", "keys.rsa", "keys['rsa.pub']"),
        ("PS256", "keys.rsa", "keys['rsa.pub']"),
        ("PS512", "keys.rsa", "keys['rsa.pub']"),
        ("ES256", "keys.ec", "keys['ec.pub']"),
        ("EdDSA", "keys.ed", "keys['ed.pub']"),
        ("Ed25519", "keys.ed", "keys['ed.pub']"),
    ] {
        let good = say(&format!("tell(jwt:verify({public}, sign('{alg}', {private})))"));
        assert_eq!(good, GOOD, "{alg}");
        // Another payload with the same signature.
        let forged = say(&format!(
            "local token = sign('{alg}', {private})
             local head, signature = token:match('^([^.]*)%.[^.]*%.(.*)$')
             local o = jwt:verify({public}, head .. '.' .. jwt:jwt_encode('{{\"sub\":\"root\"}}') .. '.' .. signature)
             told(o.verified, o.reason ~= nil)"
        ));
        assert_eq!(forged, "[false,true]", "{alg}");
    }
}

#[test]
fn a_token_does_not_choose_how_it_is_verified() {
    let none = "jwt:jwt_encode('{\"alg\":\"none\"}') .. '.' .. jwt:jwt_encode('{\"sub\":\"x\"}') .. '.'";
    let with_alg = |alg: &str| format!("jwt:jwt_encode('{{\"alg\":{alg}}}') .. t:match('%..*$')");
    check(&[
        (&format!("tell(jwt:verify('s', {none}))"), r#"[false,"Unsupported algorithm none"]"#),
        (&format!("tell(jwt:verify('', {none}))"), r#"[false,"Unsupported algorithm none"]"#),
        (&format!("tell(jwt:verify('s', {}))", with_alg("\"None\"")), r#"[false,"Unsupported algorithm None"]"#),
        (&format!("tell(jwt:verify('s', {}))", with_alg("1")), r#"[false,"invalid alg: must be a string"]"#),
        (&format!("tell(jwt:verify('s', {}))", with_alg("null")), r#"[false,"invalid alg: must be a string"]"#),
        ("tell(jwt:verify('s', jwt:jwt_encode('{}') .. t:match('%..*$')))", r#"[false,"No algorithm supplied"]"#),
        // Keys are cached, so their texts are bounded.
        ("tell(jwt:verify(('\\n'):rep(60000) .. keys['rsa.pub'], sign('RS256', keys.rsa)))", GOOD),
        (
            "tell(jwt:verify(('\\n'):rep(70000) .. keys['rsa.pub'], sign('RS256', keys.rsa)))",
            r#"[false,"Decode secret is not a valid cert\/public key: a public key has at most 64 KiB"]"#,
        ),
        // A public key as the secret of HMAC, and the other way round.
        (
            "tell(jwt:verify(keys['rsa.pub'], t))",
            r#"[false,"invalid secret for HS256: PEM key material cannot be used as an HMAC secret"]"#,
        ),
        (
            "local ok, why = pcall(sign, 'HS256', keys['rsa.pub']) told(ok, why.reason)",
            r#"[false,"invalid secret for HS256: PEM key material cannot be used as an HMAC secret"]"#,
        ),
        (
            "tell(jwt:verify('s', sign('RS256', keys.rsa)))",
            r#"[false,"Decode secret is not a valid cert\/public key"]"#,
        ),
        ("tell(jwt:verify(nil, sign('RS256', keys.rsa)))", r#"[false,"No trusted certs loaded"]"#),
        // A private key, and keys of another kind.
        (
            "tell(jwt:verify(keys.rsa, sign('RS256', keys.rsa)))",
            r#"[false,"Decode secret is not a valid cert\/public key"]"#,
        ),
        (
            "tell(jwt:verify(keys['ec.pub'], sign('RS256', keys.rsa)))",
            r#"[false,"Decode secret is not a valid cert\/public key: the key is of another kind than `algorithm`"]"#,
        ),
        (
            "local o = jwt:verify(keys['rsa.pub'], jwt:jwt_encode('{\"alg\":\"ES256\"}') .. sign('RS256', keys.rsa):match('%..*$')) told(o.verified)",
            "[false]",
        ),
        // A signature of PSS is not valid for PKCS #1.
        (
            "tell(jwt:verify(keys['rsa.pub'], jwt:jwt_encode('{\"alg\":\"RS256\"}') .. sign('PS256', keys.rsa):match('%..*$')))",
            r#"[false,"Verification failed"]"#,
        ),
        (
            "tell(jwt:verify('s', sign('HS256', 's', nil, { crit = { 'exp' } })))",
            r#"[false,"Unsupported crit header"]"#,
        ),
    ]);
}

#[test]
fn a_signature_has_one_form() {
    check(&[
        (
            "told(jwt:verify('s', t .. '=').verified, jwt:verify('s', t .. 'A').verified, jwt:verify('S', t).verified)",
            "[false,false,false]",
        ),
        ("told(jwt:verify('s', (t:gsub('%.[^.]*$', '.'))).verified)", "[false]"),
        // The last digit has bits without a meaning.
        (
            "local last = t:sub(-1) local next_one = string.char(last:byte() + 1) told(jwt:verify('s', t:sub(1, -2) .. next_one).verified)",
            "[false]",
        ),
        (
            "tell(jwt:verify('s', t .. '.x'))",
            r#"[false,"invalid jwt string: encrypted tokens (JWE) are not supported"]"#,
        ),
        ("tell(jwt:verify('s', t .. '.x.y.z'))", r#"[false,"invalid jwt string"]"#),
        ("tell(jwt:verify('s', ''))", r#"[false,"invalid jwt string"]"#),
        ("tell(jwt:verify('s', nil))", r#"[false,"invalid jwt string"]"#),
        ("tell(jwt:verify('s', '*.e30.'))", r#"[false,"invalid header: *"]"#),
        ("tell(jwt:verify('s', 'e30.*.'))", r#"[false,"invalid payload: *"]"#),
        ("tell(jwt:verify('s', 'MQ.e30.'))", r#"[false,"invalid header: MQ"]"#),
        // Marks of an earlier verification are not trusted.
        (
            "local o = jwt:load_jwt(t) o.verified, o.reason = true, 'fine' tell(jwt:verify_jwt_obj('other', o))",
            &format!("[false,\"signature mismatch: {}\"]", say("ngx.say(t:match('[^.]*$'))")),
        ),
    ]);
}

#[test]
fn secrets_may_come_from_a_function() {
    let by_kid = "function(kid) if kid == 'k' then return 's' end end";
    let token = |header: &str| format!("sign('HS256', 's', nil, {header})");
    check(&[
        (&format!("tell(jwt:verify({by_kid}, {}))", token("{ kid = 'k' }")), GOOD),
        (
            &format!("tell(jwt:verify({by_kid}, {}))", token("{ kid = 'x' }")),
            r#"[false,"function returned nil for kid: x"]"#,
        ),
        (
            &format!("tell(jwt:verify({by_kid}, {}))", token("{ kid = 1 }")),
            r#"[false,"secret function specified with non-string kid in header"]"#,
        ),
        (&format!("tell(jwt:verify({by_kid}, t))"), r#"[false,"secret function specified without kid in header"]"#),
        (
            "tell(jwt:verify(function() return keys['rsa.pub'] end, sign('RS256', keys.rsa)))",
            r#"[false,"Decode secret is not a valid cert\/public key"]"#,
        ),
        ("tell(jwt:verify({}, t))", r#"[false,"invalid secret type (must be string or function)"]"#),
    ]);
}

#[test]
fn claims_are_validated() {
    // The clock of the test is at 1795220833.25.
    let with = |payload: &str, spec: &str| say(&format!("tell(jwt:verify('s', sign('HS256', 's', {payload}){spec}))"));
    for (payload, spec, expected) in [
        ("{ exp = 1795220834 }", "", GOOD),
        ("{ exp = 1795220833 }", "", r#"[false,"'exp' claim expired at Sat, 21 Nov 2026 00:27:13 GMT"]"#),
        ("{ nbf = 1795220834 }", "", r#"[false,"'nbf' claim not valid until Sat, 21 Nov 2026 00:27:14 GMT"]"#),
        ("{ exp = 'never' }", "", r#"[false,"'exp' is malformed.  Expected to be a positive numeric value."]"#),
        ("{ exp = -1 }", "", r#"[false,"'exp' is malformed.  Expected to be a positive numeric value."]"#),
        ("{ exp = 1795220833 }", ", { lifetime_grace_period = 10 }", GOOD),
        (
            "{ exp = 1795220800 }",
            ", { lifetime_grace_period = 10, require_exp_claim = true }",
            r#"[false,"'exp' claim expired at Sat, 21 Nov 2026 00:26:40 GMT"]"#,
        ),
        ("{ a = 1 }", ", { lifetime_grace_period = 10 }", r#"[false,"Missing one of claims - [ nbf, exp ]."]"#),
        ("{ a = 1 }", ", { require_exp_claim = true }", r#"[false,"'exp' claim is required."]"#),
        ("{ iss = 'b' }", ", { valid_issuers = { 'a' } }", r#"[false,"Claim 'iss' ('b') returned failure"]"#),
        ("{ iss = 'a' }", ", { valid_issuers = { 'a', 'b' } }", GOOD),
        ("{ sub = 'x' }", ", { sub = validators.matches('^%w$') }", GOOD),
        ("{ aud = { 'a', 'b' } }", ", { aud = validators.contains_any_of({ 'b' }) }", GOOD),
        (
            "{ aud = 'b' }",
            ", { aud = validators.contains_any_of({ 'b' }) }",
            r#"[false,"'aud' is malformed.  Expected to be a table."]"#,
        ),
        ("{ n = 5 }", ", { n = validators.chain(validators.greater_than(4), validators.less_than_or_equal(5)) }", GOOD),
        ("{ n = 5 }", ", { n = validators.opt_less_than(5) }", r#"[false,"Claim 'n' ('5') returned failure"]"#),
        ("{ n = 5 }", ", { m = validators.opt_less_than(5) }", GOOD),
        ("{ n = 5 }", ", { m = validators.required() }", r#"[false,"'m' claim is required."]"#),
        ("{ n = 5 }", ", { n = function() error('no good') end }", r#"[false,"no good"]"#),
        ("{ n = 5 }", ", { n = function() error({ reason = 'own' }) end }", r#"[false,"own"]"#),
        ("{ n = 5 }", ", { __jwt = validators.require_one_of({ 'n', 'm' }) }", GOOD),
        ("{ n = 5 }", ", { __jwt = function(o) return o.payload.n == 5 and o.header.alg == 'HS256' end }", GOOD),
        (
            "{ n = 5 }",
            ", { n = function() return false end }, { n = function() return true end }",
            r#"[false,"Claim 'n' ('5') returned failure"]"#,
        ),
        ("'text'", ", { sub = validators.opt_equals('x') }", GOOD),
    ] {
        assert_eq!(with(payload, spec), expected, "{payload}{spec}");
    }
    // A forged token reveals nothing of its claims.
    check(&[
        (
            "local o = jwt:verify('other', sign('HS256', 's', { exp = 1 })) told(o.reason:sub(1, 18))",
            r#"["signature mismatch"]"#,
        ),
        (
            "jwt:set_alg_whitelist({ RS256 = 1 }) local o = jwt:verify('s', t) jwt:set_alg_whitelist(nil) tell(o)",
            r#"[false,"whitelist unsupported alg: HS256"]"#,
        ),
        (
            "local own = jwt.new() own:set_alg_whitelist({ RS256 = 1 }) tell(own:verify('s', t)) tell(jwt:verify('s', t))",
            &format!("[false,\"whitelist unsupported alg: HS256\"]\n{GOOD}"),
        ),
    ]);
}

#[test]
fn what_is_not_built_is_named() {
    for (body, expected) in [
        ("jwt:set_trusted_certs_file('/etc/ca')", "resty.jwt.set_trusted_certs_file is not supported"),
        ("jwt.new():set_x5u_content_retriever(print)", "resty.jwt.set_x5u_content_retriever is not supported"),
        ("validators.typ_is('at+jwt')", "resty.jwt-validators.typ_is is not supported"),
        ("sign('HS256', 's', nil, { enc = 'A128GCM' })", "encrypted tokens (JWE) are not supported"),
        ("sign('HS1', 's')", "unsupported alg: HS1"),
        ("sign('none', 's')", "unsupported alg: none"),
        ("sign('RS256', 's')", "signer error: it is not PEM"),
        ("sign('RS256', keys['rsa.pub'])", "signer error: it is PEM of something else than a private key"),
        ("sign('ES384', keys.ec)", "signer error: the key is of another kind than `algorithm`"),
        ("validators.equals(nil)", "Cannot create validator for nil check_val."),
        ("validators.greater_than('a')", "Cannot create validator for non-number check_val."),
        ("jwt:verify('s', t, 5)", "Claim spec must be a table"),
        ("jwt:verify('s', t, { a = 5 })", "Claim spec value must be a function"),
        (
            "jwt:verify('s', t, { require_exp_claim = 1 })",
            "'require_exp_claim' validation option is expected to be a boolean.",
        ),
        ("jwt:verify('s', t, { lifetime_grace_period = -1 })", "leeway must be a non-negative number"),
    ] {
        let told = say(body);
        assert!(told.starts_with("error: ") && told.contains(expected), "{body}: {told}");
    }
}
