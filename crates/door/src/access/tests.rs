//! The table of access decisions.

use super::*;
use std::borrow::Cow;

const LOCAL: &str = "127.0.0.1";
const REMOTE: &str = "192.0.2.1";

fn key(name: &str, role: Role) -> Arc<AdminKey> {
    Arc::new(AdminKey { name: name.to_owned(), key: format!("key-of-{name}"), role })
}

fn access(keys: Vec<Arc<AdminKey>>) -> Access {
    let is_loopback_reader = keys.is_empty();
    let remote = "192.0.2.0/24".parse().unwrap();
    let allow = loopback().into_iter().chain([remote]).collect();
    Access {
        section: "gateway.admin",
        is_loopback_writer: false,
        keys,
        allow,
        hosts: Hosts::new("gateway.admin.hosts", []),
        is_loopback_reader,
    }
}

fn facts<'a>(peer: &str, area: Area, is_read: bool, given: CallerCredential<'a>) -> Facts<'a> {
    Facts { peer: peer.parse().unwrap(), area, is_read, given, stranger: None, origin: Origin::Absent }
}

fn given(key: &str) -> CallerCredential<'_> {
    CallerCredential::Key { key: Cow::Borrowed(key.as_bytes()), is_ambient: false }
}

fn session(key: Option<Arc<AdminKey>>, role: Role, has_token: bool) -> CallerCredential<'static> {
    let mut sessions = sessions::Sessions::default();
    let now = tokio::time::Instant::now();
    let (token, _) = sessions.open(Caller { name: "s".to_owned(), role, key }, now);
    CallerCredential::Session { session: sessions.get(&token, now).unwrap(), has_token }
}

fn outcome(access: &Access, facts: &Facts<'_>) -> String {
    match decide(access, facts) {
        Ok(caller) => format!("{} {}", caller.role.name(), caller.name).trim_end().to_owned(),
        Err(refusal) => format!("{refusal:?}"),
    }
}

#[test]
fn with_keys() {
    let access = access(vec![key("ci", Role::Admin), key("tv", Role::Viewer)]);
    let check = |peer: &str, area: Area, is_read: bool, text: Option<&str>, expected: &str| {
        let found = outcome(&access, &facts(peer, area, is_read, text.map_or(CallerCredential::Nothing, given)));
        assert_eq!(found, expected, "{peer} {area:?} read={is_read} {text:?}");
    };
    for peer in [LOCAL, "::1", "::ffff:127.0.0.1", REMOTE, "::ffff:192.0.2.1"] {
        check(peer, Area::Data, true, Some("key-of-ci"), "admin ci");
        check(peer, Area::Data, false, Some("key-of-ci"), "admin ci");
        check(peer, Area::Data, true, Some("key-of-tv"), "viewer tv");
        check(peer, Area::Data, false, Some("key-of-tv"), "ViewerWrites");
        check(peer, Area::Data, true, Some("key-of-c"), "KeyWrong");
        check(peer, Area::Data, true, Some("key-of-cii"), "KeyWrong");
        check(peer, Area::Data, false, Some(""), "KeyWrong");
        check(peer, Area::Data, true, None, "KeyMissing");
        check(peer, Area::Data, false, None, "KeyMissing");
        check(peer, Area::SignIn, false, None, "viewer");
        check(peer, Area::SignIn, false, Some("key-of-tv"), "viewer tv");
        check(peer, Area::Open, false, None, "KeyMissing");
    }
    check(LOCAL, Area::Open, true, None, "viewer");
    check(LOCAL, Area::Open, true, Some("wrong"), "viewer");
    check(REMOTE, Area::Open, true, None, "KeyMissing");
    check(REMOTE, Area::Files, true, None, "viewer");
    check(REMOTE, Area::Files, true, Some("wrong"), "viewer");
    check(REMOTE, Area::Files, false, None, "KeyMissing");
    check(REMOTE, Area::Open, true, Some("wrong"), "KeyMissing");
    check("198.51.100.1", Area::Data, true, Some("key-of-ci"), "NotAllowed(\"gateway.admin\")");
    check("0.0.0.0", Area::Open, true, None, "NotAllowed(\"gateway.admin\")");
}

#[test]
fn without_keys_loopback_reads() {
    let access = access(Vec::new());
    let check = |peer: &str, area: Area, is_read: bool, text: Option<&str>, expected: &str| {
        let found = outcome(&access, &facts(peer, area, is_read, text.map_or(CallerCredential::Nothing, given)));
        assert_eq!(found, expected, "{peer} {area:?} read={is_read} {text:?}");
    };
    check(LOCAL, Area::Data, true, None, "viewer");
    check(LOCAL, Area::Data, true, Some("whatever"), "viewer");
    check(LOCAL, Area::Data, false, None, "KeyMissing");
    check(LOCAL, Area::Data, false, Some(""), "KeyMissing");
    check(REMOTE, Area::Data, true, None, "LoopbackOnly(\"gateway.admin\")");
    check(REMOTE, Area::Files, true, None, "LoopbackOnly(\"gateway.admin\")");
    check("198.51.100.1", Area::Data, true, None, "LoopbackOnly(\"gateway.admin\")");
}

#[test]
fn strangers_and_forgers() {
    let access = access(vec![key("ci", Role::Admin)]);
    let rebound = || Stranger::Host { host: "evil.example".to_owned(), key: "gateway.admin.hosts" };
    let check = |facts: Facts<'_>, expected: &str| assert_eq!(outcome(&access, &facts), expected, "{facts:?}");
    let ambient = || CallerCredential::Key { key: Cow::Borrowed(b"key-of-ci"), is_ambient: true };
    let open = facts(LOCAL, Area::Open, true, CallerCredential::Nothing);
    check(
        Facts { stranger: Some(rebound()), ..open },
        "Stranger(Host { host: \"evil.example\", key: \"gateway.admin.hosts\" })",
    );
    let sign_in = || facts(LOCAL, Area::SignIn, false, CallerCredential::Nothing);
    check(Facts { stranger: Some(Stranger::CrossSite), ..sign_in() }, "Stranger(CrossSite)");
    check(Facts { origin: Origin::Foreign, ..sign_in() }, "ForeignOrigin");
    // A key that a page had to receive explicitly is sufficient proof.
    let with_key = facts(LOCAL, Area::Data, false, given("key-of-ci"));
    check(Facts { stranger: Some(rebound()), origin: Origin::Foreign, ..with_key }, "admin ci");
    let with_cookie = || facts(LOCAL, Area::Data, false, ambient());
    check(with_cookie(), "admin ci");
    check(Facts { origin: Origin::Own, ..with_cookie() }, "admin ci");
    check(Facts { origin: Origin::Foreign, ..with_cookie() }, "ForeignOrigin");
    check(Facts { stranger: Some(Stranger::CrossSite), ..with_cookie() }, "ForeignOrigin");
}

#[test]
fn sessions_write_with_their_token_only() {
    let ci = key("ci", Role::Admin);
    let access = access(vec![ci.clone()]);
    let check = |is_read: bool, origin: Origin, given: CallerCredential<'_>, expected: &str| {
        let facts = Facts { origin, ..facts(REMOTE, Area::Data, is_read, given) };
        assert_eq!(outcome(&access, &facts), expected, "{facts:?}");
    };
    let of_key = |has_token| session(Some(ci.clone()), Role::Admin, has_token);
    check(true, Origin::Absent, of_key(false), "admin s");
    check(false, Origin::Own, of_key(true), "admin s");
    check(false, Origin::Own, of_key(false), "TokenMissing");
    check(false, Origin::Foreign, of_key(true), "ForeignOrigin");
    check(false, Origin::Own, session(Some(ci.clone()), Role::Viewer, true), "ViewerWrites");
    check(false, Origin::Own, session(None, Role::Admin, true), "admin s");
    let changed = Arc::new(AdminKey { key: "another".to_owned(), ..(*ci).clone() });
    check(true, Origin::Own, session(Some(changed), Role::Admin, true), "KeyMissing");
}
