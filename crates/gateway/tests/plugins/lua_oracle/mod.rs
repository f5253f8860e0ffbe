//! Runs the same script here and under nginx's Lua module.

use crate::lua::{pre, text};
use crate::shared::reflect::{ask, reflecting};
use stillgate_testkit::Nginx;

const CASES: &str = include_str!("cases.lua");

/// Cases where another engine of regular expressions has another wording.
const OTHERWISE: &[&str] = &["ngx.re.match('x', '(')"];

#[test]
fn the_same_script_gives_the_same_under_nginx() {
    let node = reflecting();
    // One function after the other has 50 ms, so the cases are one run.
    let source = format!("return function(conf, ctx)\n{}\nend", CASES.replace("${", "$${"));
    let gateway = crate::shared::reflect::gateway(node.addr(), &format!("routes:\n{}", pre("/a/b", "access", &source)));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cases.lua");
    std::fs::write(&file, CASES).expect("write");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("nginx may read it");
    let nginx = Nginx::with_lua(&format!(
        "lua_shared_dict oracle 1m;\nserver {{ listen 127.0.0.1:{{port}}; location / {{ content_by_lua_file {}; }} }}",
        file.display()
    ));
    let fields = ["X-One: 1", "X-Two: a", "X-Two: b", "Cookie: c=d; e=f"];
    let ours = ask(&mut gateway.client(), "GET /a/b?a=1&b=%20x&a=2&c", &fields);
    let theirs = ask(&mut nginx.client(), "GET /a/b?a=1&b=%20x&a=2&c", &fields);
    assert_eq!((ours.head.status(), theirs.head.status()), (200, 200), "{ours:?}\n{theirs:?}");
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (text(&ours).lines().collect(), text(&theirs).lines().collect());
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.len() > 200, "{} cases", ours.len());
    let is_meant = |line: &str| OTHERWISE.iter().any(|of| line.starts_with(of));
    let others: Vec<String> = ours
        .iter()
        .zip(&theirs)
        .filter(|(ours, theirs)| ours != theirs && !is_meant(ours))
        .map(|(ours, theirs)| {
            let (case, got) = ours.split_once(" -> ").expect("as written");
            format!("{case}\n  here:  {got}\n  nginx: {}", theirs.split_once(" -> ").expect("as written").1)
        })
        .collect();
    assert!(others.is_empty(), "{} of {} differ:\n{}", others.len(), ours.len(), others.join("\n"));
}
