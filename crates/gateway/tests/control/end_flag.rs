//! `#END`, the last line of APISIX's files: half of a file that had it is never served, whichever way it is read.

use crate::shared::STILLGATE;
use crate::transfer::{KEY, Site, run};
use std::fs::{File, OpenOptions};
use std::io::Write;
use stillgate_testkit::{Gateway, Setup, Upstream, eventually, sha256};

const RESOURCES: &str = r#"
upstreams:
  - {id: node, nodes: {"NODE": 1}}
routes:
  - {id: open, uri: /*, upstream_id: node}
  - {id: guard, uri: /admin/*, upstream_id: node, plugins: {key-auth: {}}}
"#;

fn resources(node: &Upstream) -> String {
    RESOURCES.replace("NODE", &node.addr().to_string())
}

/// The file without the route that guards a part of the other.
fn half(text: &str) -> &str {
    &text[..text.find("  - {id: guard").expect("a route")]
}

fn last_error(gateway: &Gateway) -> String {
    gateway.status()["config"]["last_error"].to_string()
}

fn is_guarded(gateway: &Gateway) -> bool {
    gateway.get("/admin/x").head.status() == 401
}

#[test]
fn a_file_that_is_written_in_two_goes_is_served_when_it_is_whole() {
    let node = Upstream::echo();
    let text = |more: &str| format!("{}{more}#END\n", resources(&node));
    let mut gateway = Gateway::start(STILLGATE, &Setup::resources(text("")));
    assert!(is_guarded(&gateway));
    let file = gateway.config_path();
    let before = std::fs::read_to_string(&file).expect("the file");
    let generation = |gateway: &Gateway| gateway.status()["config"]["generation"].as_u64();

    // Closed in between, as by two commands, and also where the writer never closes it and SIGHUP arrives.
    for (number, (closes, more)) in [(true, "# one\n"), (false, "# two\n")].into_iter().enumerate() {
        let whole = before.replace("#END\n", &format!("{more}#END\n"));
        let errors = last_error(&gateway);
        let mut writer = File::create(&file).expect("write the file");
        writer.write_all(half(&whole).as_bytes()).expect("write half");
        if closes {
            drop(writer);
            writer = OpenOptions::new().append(true).open(&file).expect("open it again");
        } else {
            gateway.signal("HUP");
        }
        eventually("the half to be refused", || {
            let error = last_error(&gateway);
            error != errors && error.contains("an earlier version of the file ended with `#END`, and `#END` is missing")
        });
        assert!(is_guarded(&gateway));
        writer.write_all(&whole.as_bytes()[half(&whole).len()..]).expect("write the rest");
        drop(writer);
        eventually("the whole to be served", || gateway.status()["config"]["digest"] == sha256(whole.as_bytes()));
        assert_eq!((generation(&gateway), last_error(&gateway).as_str()), (Some(number as u64 + 2), "null"));
        assert!(is_guarded(&gateway));
    }

    // A comment that ends with the flag is not the end of the file.
    let whole = before.replace("  - {id: guard", "  # All guards, up to the line #END\n  - {id: guard");
    let cut = &whole[..whole.find("line #END").expect("the comment") + "line #END".len()];
    gateway.write_config_text(cut);
    eventually("the cut to be refused", || {
        last_error(&gateway).contains("there is other text before it in the last line")
    });
    assert!(is_guarded(&gateway));
    gateway.write_config_text(&whole);
    eventually("the whole to be served", || gateway.status()["config"]["digest"] == sha256(whole.as_bytes()));
    assert!(is_guarded(&gateway));

    // The requirement holds until the next start, and a file in JSON needs no flag.
    let json = before.replace("#END\n", "");
    gateway.write_config_text(&json);
    eventually("the flag to be missed", || last_error(&gateway).contains("`#END` is missing"));
    let json = serde_json::json!({
        "gateway": {"listeners": [{"address": gateway.addr().to_string()}], "admin": {"address": gateway.admin_addr().to_string()}},
        "upstreams": [{"id": "node", "nodes": {(node.addr().to_string()): 1}}],
        "routes": [{"id": "json", "uri": "/admin/*", "upstream_id": "node"}],
    });
    gateway.write_config_text(&json.to_string());
    eventually("the file in JSON to be served", || gateway.get("/admin/x").head.status() == 200);
    gateway.assert_healthy();
}

#[test]
fn a_file_named_as_apisix_names_it_needs_the_flag() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Upstream::echo();
    for name in ["apisix.yaml", "apisix-dev.yaml"] {
        let file = folder.path().join(name);
        let path = file.display().to_string();
        std::fs::write(&file, half(&resources(&node))).expect("write half");
        let expected =
            format!("{path}: the file may be cut off: a file named {name} must end with `#END`, as in APISIX");
        for arguments in [
            vec!["run", "--config", &path],
            vec!["check", &path],
            vec!["check", "--offline", &path],
            vec!["explain", &path, "--request", "GET http://a/"],
        ] {
            let refused = run("", &arguments).expect(1);
            let said = format!("{}{}", refused.out, refused.err);
            assert!(said.contains(&expected), "{arguments:?}: {said}");
        }
        std::fs::write(&file, resources(&node) + "#END\n").expect("write it whole");
        run("", &["check", "--offline", &path]).expect(0);
    }
    // A file that replaces one with the flag must have it, too.
    let (old, new) = (folder.path().join("apisix.yaml"), folder.path().join("new.yaml"));
    let log = folder.path().join("access.log");
    std::fs::write(&log, "").expect("write a log");
    std::fs::write(&new, half(&resources(&node))).expect("write half");
    let paths = [&new, &old, &log].map(|path| path.display().to_string());
    run("", &["check", "--offline", &paths[0]]).expect(0);
    let refused =
        run("", &["check", "--offline", &paths[0], "--against", &paths[1], "--requests", &paths[2]]).expect(1);
    assert!(refused.out.contains("an earlier version of the file ended with `#END`"), "{refused:?}");
}

#[test]
fn half_of_an_export_is_refused() {
    let (site, node) = (Site::new(), Upstream::echo());
    site.apply(&resources(&node), &[]).expect(0);
    let exported = site.export();
    assert!(exported.ends_with("\n#END\n"), "{exported}");
    let file = site.file("half.yaml", &exported[..exported.len() - "END\n".len()]);
    let path = file.display().to_string();
    let expected = "the first comment of the file says that it ends with `#END`, and `#END` is missing";
    for refused in [
        site.run("apply", &file, &["--prune"]),
        site.run("apply", &file, &["--prune", "--dry-run"]),
        site.run("diff", &file, &[]),
        run(KEY, &["check", "--offline", &path]),
        run(KEY, &["run", "--config", &path]),
    ] {
        let said = format!("{}{}", refused.out, refused.err);
        assert!(refused.code == 1 && said.contains(expected), "{refused:?}");
    }
    assert!(is_guarded(&site.gateway));
}
