//! The tables of keys in `docs/plugins` are those of the plugins. `UPDATE_EXPECT=1` writes them.

use expect_test::{ExpectFile, expect_file};
use stillgate_plugins::TABLE;
use stillgate_schema::Definitions;

/// Between these two lines stands the table of an object.
const BEGIN: &str = "<!-- keys: ";
const END: &str = "<!-- end -->";

#[test]
fn the_tables_of_keys_are_those_of_the_plugins() {
    check("cors", expect_file!["../../../docs/plugins/cors.md"]);
    check("ip-restriction", expect_file!["../../../docs/plugins/ip-restriction.md"]);
    check("proxy-rewrite", expect_file!["../../../docs/plugins/proxy-rewrite.md"]);
    check("referer-restriction", expect_file!["../../../docs/plugins/referer-restriction.md"]);
    check("response-rewrite", expect_file!["../../../docs/plugins/response-rewrite.md"]);
}

fn check(plugin: &str, page: ExpectFile) {
    let (_, descriptor) = TABLE.find(plugin).expect("a plugin");
    let mut definitions = Definitions::default();
    (descriptor.schema)(&mut definitions);
    if let Some(metadata) = descriptor.metadata {
        (metadata.schema)(&mut definitions);
    }
    let text = page.data();
    let mut parts = text.split(BEGIN);
    let mut written = parts.next().expect("a first part").to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").expect("a name");
        let (_, rest) = rest.split_once(END).expect("an end");
        let table = definitions.table(name).expect("an object of the plugin");
        written.push_str(&format!("{BEGIN}{name} -->\n{table}{END}{rest}"));
    }
    page.assert_eq(&written);
}
