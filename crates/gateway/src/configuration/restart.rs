//! Lists the keys that take effect only at the next start.
//!
//! Each table of keys is destructured in full: a new key does not compile until this file says when it takes effect.

use stillgate_config::{Admin, ConfigSourceKeys, Devices, Gateway, Limits, Log, Metrics};

/// The keys that differ and cannot be changed in a running process.
pub(crate) fn keys_that_need_restart(started: &Gateway, new: &Gateway) -> Vec<&'static str> {
    let Gateway {
        workers,
        limits,
        admin,
        devices,
        config,
        data_encryption,
        pid_file,
        access_log,
        log,
        metrics,
        listeners: _,
        stream_proxy: _,
        acme: _,
        trusted_proxies: _,
        server_header: _,
        underscores_in_headers: _,
        path_parameters: _,
        timeouts: _,
        route_cache: _,
        debug: _,
        lua: _,
    } = started;
    let mut keys = vec![
        ("gateway.workers", *workers != new.workers),
        ("gateway.data_encryption", *data_encryption != new.data_encryption),
        ("gateway.pid_file", *pid_file != new.pid_file),
        ("gateway.access_log", *access_log != new.access_log),
    ];
    keys.extend(of_limits(limits, &new.limits));
    keys.extend(of_config(config, &new.config));
    keys.extend(of_log(log, &new.log));
    match (admin, &new.admin) {
        (Some(admin), Some(new)) => keys.extend(of_admin(admin, new)),
        (admin, new) => keys.push(("gateway.admin", admin.is_some() != new.is_some())),
    }
    match (devices, &new.devices) {
        (Some(devices), Some(new)) => keys.extend(of_devices(devices, new)),
        (devices, new) => keys.push(("gateway.devices", devices.is_some() != new.is_some())),
    }
    match (metrics, &new.metrics) {
        (Some(metrics), Some(new)) => keys.extend(of_metrics(metrics, new)),
        (metrics, new) => keys.push(("gateway.metrics.enabled", metrics.is_some() != new.is_some())),
    }
    keys.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
}

/// Keys that need a restart, and whether they differ.
type Keys<const COUNT: usize> = [(&'static str, bool); COUNT];

fn of_limits(started: &Limits, new: &Limits) -> Keys<1> {
    let Limits { counters_bytes, head_bytes: _, target_bytes: _, headers: _, connections_per_worker: _ } = started;
    [("gateway.limits.counters_bytes", *counters_bytes != new.counters_bytes)]
}

/// Another `source` is refused.
fn of_config(started: &ConfigSourceKeys, new: &ConfigSourceKeys) -> Keys<4> {
    let ConfigSourceKeys {
        store,
        history_changes,
        history_age,
        etcd,
        source: _,
        secret_folders: _,
        rejected_global_rule: _,
        ignore_plugins: _,
    } = started;
    [
        ("gateway.config.store", *store != new.store),
        ("gateway.config.history_changes", *history_changes != new.history_changes),
        ("gateway.config.history_age", *history_age != new.history_age),
        ("gateway.config.etcd", *etcd != new.etcd),
    ]
}

fn of_log(started: &Log, new: &Log) -> Keys<1> {
    let Log { format, level: _ } = started;
    [("gateway.log.format", *format != new.format)]
}

fn of_admin(started: &Admin, new: &Admin) -> Keys<2> {
    let Admin { address, tls, key: _, keys: _, allow: _, hosts: _ } = started;
    [("gateway.admin.address", *address != new.address), ("gateway.admin.tls", *tls != new.tls)]
}

/// Compares what only a restart changes; a reload applies the access rules of the API.
fn of_devices(started: &Devices, new: &Devices) -> Keys<6> {
    let Devices { node, address, tls, peer, registry, limits, key: _, keys: _, allow: _, hosts: _ } = started;
    [
        ("gateway.devices.node", *node != new.node),
        ("gateway.devices.address", *address != new.address),
        ("gateway.devices.tls", *tls != new.tls),
        ("gateway.devices.peer", *peer != new.peer),
        ("gateway.devices.registry", *registry != new.registry),
        ("gateway.devices.limits", *limits != new.limits),
    ]
}

fn of_metrics(started: &Metrics, new: &Metrics) -> Keys<4> {
    let Metrics {
        address,
        memory_bytes,
        series_per_family,
        shared,
        path: _,
        hosts: _,
        dialect: _,
        expire: _,
        disabled_families: _,
        disabled_labels: _,
        emptied_labels: _,
        live_routes: _,
        enabled_labels: _,
        extra_labels: _,
        native_histograms: _,
        created: _,
        exemplars: _,
    } = started;
    [
        ("gateway.metrics.address", *address != new.address),
        ("gateway.metrics.memory", *memory_bytes != new.memory_bytes),
        ("gateway.metrics.series_per_family", *series_per_family != new.series_per_family),
        ("gateway.metrics.shared", *shared != new.shared),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::source::ConfigSource;

    #[test]
    fn what_needs_a_restart_is_named() {
        let gateway = |keys: &str| {
            let text = format!("gateway:\n  {keys}\nroutes: []\n");
            ConfigSource::Text(text.clone()).parse(text.as_bytes()).unwrap().config.gateway
        };
        let started = gateway("workers: 2");
        let check = |keys: &str, expected: &[&str]| {
            assert_eq!(keys_that_need_restart(&started, &gateway(keys)), expected, "{keys}")
        };
        check("workers: 2", &[]);
        check("workers: 3", &["gateway.workers"]);
        check("workers: auto", &["gateway.workers"]);
        check("workers: 2\n  timeouts: {drain: 1s}\n  log: {level: debug}\n  server_header: false", &[]);
        check(
            "workers: 2\n  listeners: [{address: \"127.0.0.1:1\"}]\n  admin: {address: \"127.0.0.1:2\"}\n  access_log: {}\n  log: {format: json}",
            &["gateway.access_log", "gateway.log.format", "gateway.admin"],
        );
        check("workers: 2\n  limits: {headers: 9, counters_bytes: 1MiB}", &["gateway.limits.counters_bytes"]);
        check("workers: 2\n  pid_file: /run/a\n  timeouts: {upgrade: 1s}", &["gateway.pid_file"]);
        check(
            "workers: 2\n  config: {history_changes: 10, history_age: 1h, rejected_global_rule: ignore}",
            &["gateway.config.history_changes", "gateway.config.history_age"],
        );
        check("workers: 2\n  metrics: {dialect: apisix, expire: 1m}", &[]);
        check("workers: 2\n  metrics: {address: \"127.0.0.1:3\"}", &["gateway.metrics.address"]);
        check("workers: 2\n  metrics: {enabled: false}", &["gateway.metrics.enabled"]);
        let measured = gateway("metrics: {address: \"127.0.0.1:3\"}");
        let changed = gateway(
            "metrics: {address: \"127.0.0.1:4\", memory: 8MiB, series_per_family: 1000, shared: /s, path: /m, expire: 1m, \
             dialect: apisix, native_histograms: true, created: false, exemplars: true, disable: {labels: [node]}}",
        );
        let expected = ["address", "memory", "series_per_family", "shared"].map(|key| format!("gateway.metrics.{key}"));
        assert_eq!(keys_that_need_restart(&measured, &changed), expected);
        assert_eq!(keys_that_need_restart(&measured, &gateway("log: {}")), ["gateway.metrics.address"]);
    }
}
