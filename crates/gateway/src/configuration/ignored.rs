//! Plugins that `gateway.config.ignore_plugins` leaves out: how many of the served resources have each, for the log, the status and
//! the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stillgate_config::Config;
use stillgate_plugin_api::ChainEntry;
use tracing::warn;

/// Number of resources in which a plugin is ignored, by its name.
pub(crate) type Ignored = BTreeMap<&'static str, usize>;

/// The plugins of a configuration that are ignored. It checks each route, but costs nothing where no plugin is to be ignored.
pub(crate) fn of(config: &Config) -> Ignored {
    if config.gateway.config.ignore_plugins.is_empty() {
        return Ignored::new();
    }
    let chains = config.routes.iter().filter_map(|route| route.chain.as_ref()).chain([&config.plugins.global]);
    let of_chains = chains.flat_map(|chain| chain.left_out());
    let of_consumers = config.plugins.consumers.iter().flat_map(|consumer| consumer.plugins.iter());
    let is_ignored = |entry: &&Arc<ChainEntry>| entry.meta.is_ignored;
    let key = |entry: &'_ Arc<ChainEntry>| (entry.name, entry.origin.to_string());
    // Resources that routes share are in each of their chains.
    let resources: BTreeSet<(&'static str, String)> =
        of_chains.chain(of_consumers).filter(is_ignored).map(key).collect();
    let mut ignored = Ignored::new();
    for (name, _) in resources {
        *ignored.entry(name).or_default() += 1;
    }
    ignored
}

/// Logs plugins that are ignored and were not before.
pub(crate) fn warn_of(now: &Ignored, before: &Ignored) {
    for (plugin, resources) in now.iter().filter(|(plugin, _)| !before.contains_key(*plugin)) {
        warn!(plugin, resources, "requests are served without this plugin, as gateway.config.ignore_plugins says");
    }
}
