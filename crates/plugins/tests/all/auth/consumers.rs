//! Builds consumers like a configuration does.

use stillgate_plugin_api::{Consumer, Consumers, Credential};
use stillgate_plugins::TABLE;
use stillgate_schema::text::tree;
use stillgate_schema::{Path, Sink, Value};

/// A name, labels, and the text under `plugins`.
pub(crate) type Written<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

/// Consumers with their labels and plugins; the error is the message for a file.
pub(crate) fn try_consumers(list: &[Written<'_>]) -> Result<Consumers, String> {
    let mut all = Consumers::default();
    for (name, labels, plugins) in list {
        let credentials = credentials(plugins)?;
        let mut labels: Vec<_> = labels.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        labels.sort();
        let consumer = Consumer {
            name: (*name).into(),
            group: Some("g".into()),
            labels: labels.into(),
            plugins: Default::default(),
            credentials: Default::default(),
        };
        all.insert(consumer, credentials).map_err(|taken| format!("{taken:?}"))?;
    }
    Ok(all)
}

/// Valid consumers.
#[track_caller]
pub(crate) fn consumers(list: &[Written<'_>]) -> Consumers {
    try_consumers(list).expect("good consumers")
}

/// The error of a credential.
#[track_caller]
pub(crate) fn refusal(plugins: &str) -> String {
    try_consumers(&[("jack", &[], plugins)]).expect_err("it was accepted") + "\n"
}

fn credentials(plugins: &str) -> Result<Vec<Credential>, String> {
    let mut sink = Sink::default();
    let root = tree::parse(0, plugins, None, &mut sink).expect("YAML").root;
    let mut out = Vec::new();
    if let Value::Map(entries) = &root.value {
        for entry in entries.iter() {
            let (_, plugin) = TABLE.find(&entry.key).expect("a plugin");
            let part = plugin.credential.expect("a plugin that authenticates");
            if let Some((lookup, verifier)) = (part.read)(&entry.value, &Path::Root.key(&entry.key), &mut sink) {
                out.push(Credential { plugin: plugin.name, lookup, place: None, verifier });
            }
        }
    }
    match sink.has_errors() {
        true => Err(sink.into_errors().to_string()),
        false => Ok(out),
    }
}
