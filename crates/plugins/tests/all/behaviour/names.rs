//! Names of APISIX's plugins that are not supported.

use crate::harness::refusal;
use expect_test::expect;
use stillgate_plugins::TABLE;

#[test]
fn what_is_not_built_is_refused_with_the_nearest_that_is() {
    for (name, nearest) in TABLE.sought {
        if TABLE.find(name).is_some() {
            continue;
        }
        let refusal = refusal(&format!("{name}: {{}}"));
        let expected = match nearest.iter().find(|name| TABLE.find(name).is_some()) {
            Some(nearest) => format!("Stillgate has no plugin {name:?}; the closest is {nearest:?}"),
            None => format!("Stillgate has no plugin {name:?}; remove it"),
        };
        assert!(refusal.contains(&expected), "{refusal}");
    }
    let text: String =
        ["graphql-limit-count: {}", "ai-rag: {}", "limit-cont: {}", "something: {}"].into_iter().map(refusal).collect();
    expect![[r#"
        1:1: graphql-limit-count: Stillgate has no plugin "graphql-limit-count"; the closest is "limit-count"
        1:1: ai-rag: Stillgate has no plugin "ai-rag"; remove it
        1:1: limit-cont: there is no plugin "limit-cont"; did you mean "limit-conn"?
        1:1: something: there is no plugin "something"
    "#]]
    .assert_eq(&text);
}

#[test]
fn all_plugins_of_apisix_are_known() {
    let is_known = |name: &str| TABLE.sought.iter().any(|(sought, _)| *sought == name);
    for plugin in TABLE.plugins.iter().filter(|plugin| !OWN.contains(&plugin.name)) {
        assert!(is_known(plugin.name), "{}", plugin.name);
    }
    assert!(TABLE.sought.is_sorted_by(|a, b| a.0 < b.0));
    for (_, nearest) in TABLE.sought {
        assert!(nearest.iter().all(|name| is_known(name) || OWN.contains(name)), "{nearest:?}");
    }
}

/// Plugins that APISIX does not have.
const OWN: [&str; 2] = ["device-gateway", "zstd"];
