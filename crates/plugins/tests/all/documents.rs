//! The tables of keys in `docs/plugins` equal those of the plugins, and each plugin has its page. `UPDATE_EXPECT=1`
//! writes them.

use expect_test::ExpectFile;
use std::fmt::Write;
use std::path::PathBuf;
use stillgate_plugin_api::Descriptor;
use stillgate_plugins::TABLE;
use stillgate_schema::Definitions;

/// The table of an object is between these two lines.
const BEGIN: &str = "<!-- keys: ";
const END: &str = "<!-- end -->";
/// The list of plugins that are not supported is between this line and [`END`].
const UNBUILT: &str = "<!-- not built -->\n";

#[test]
fn the_tables_of_keys_are_those_of_the_plugins() {
    TABLE.plugins.iter().for_each(check);
}

fn page(name: &str) -> ExpectFile {
    let path = PathBuf::from(format!("../../../../docs/plugins/{name}.md"));
    ExpectFile { path, position: file!() }
}

/// The page about metadata has a row for each plugin that has some.
#[test]
fn plugins_with_metadata_are_on_its_page() {
    let page = include_str!("../../../../docs/plugins/plugin-metadata.md");
    for plugin in TABLE.plugins {
        let has_row = page.lines().any(|line| line.starts_with(&format!("| [`{0}`]({0}.md", plugin.name)));
        assert_eq!(has_row, plugin.metadata.is_some(), "{}: a row of docs/plugins/plugin-metadata.md", plugin.name);
    }
}

fn check(descriptor: &Descriptor) {
    let mut definitions = Definitions::default();
    let mut objects = vec![(descriptor.schema)(&mut definitions)];
    objects.extend(descriptor.credential.map(|credential| (credential.schema)(&mut definitions)));
    objects.extend(descriptor.metadata.map(|metadata| (metadata.schema)(&mut definitions)));
    let page = page(descriptor.name);
    let text = page.data();
    for object in &objects {
        let name = object["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()).expect("an object");
        let has_keys = definitions.table(name).is_some_and(|table| table.contains("| `"));
        let has_table = text.contains(&format!("{BEGIN}{name} -->\n"));
        assert!(has_table || !has_keys, "docs/plugins/{}.md: no \"{BEGIN}{name} -->\", \"{END}\"", descriptor.name);
    }
    let mut parts = text.split(BEGIN);
    let mut written = parts.next().expect("a first part").to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").expect("a name");
        let (_, rest) = rest.split_once(END).expect("an end");
        let table = definitions.table(name).unwrap_or_else(|| panic!("{}: no object {name}", descriptor.name));
        written.push_str(&format!("{BEGIN}{name} -->\n{table}{END}{rest}"));
    }
    page.assert_eq(&written);
}

#[test]
fn what_is_not_built_is_listed() {
    let page = page("README");
    let text = page.data();
    let (before, rest) = text.split_once(UNBUILT).expect("a beginning");
    let (_, after) = rest.split_once(END).expect("an end");
    let mut table = "| plugin of APISIX | nearest |\n|---|---|\n".to_owned();
    for (name, _) in TABLE.sought.iter().filter(|(name, _)| TABLE.find(name).is_none()) {
        let nearest = TABLE.nearest(name).flatten().map_or(String::new(), |nearest| format!(" `{nearest}`"));
        writeln!(table, "| `{name}` |{nearest} |").expect("writing to a text does not fail");
    }
    page.assert_eq(&format!("{before}{UNBUILT}{table}{END}{after}"));
    for plugin in TABLE.plugins {
        let row = format!("| `{0}` | [{0}]({0}.md) | {1} |", plugin.name, plugin.priority);
        assert!(text.contains(&row), "docs/plugins/README.md has no row that begins with {row}");
    }
}
