//! Which keys take effect only at the next start.

use stillgate_config::{Gateway, Metrics};

/// The keys that differ and cannot be changed in a running process.
pub(crate) fn needs_restart(started: &Gateway, new: &Gateway) -> Vec<&'static str> {
    let admin = |gateway: &Gateway| gateway.admin.as_ref().map(|admin| admin.address);
    let tls = |gateway: &Gateway| gateway.admin.as_ref().and_then(|admin| admin.tls.clone());
    [
        ("gateway.workers", started.workers != new.workers),
        ("gateway.limits.counters_bytes", started.limits.counters_bytes != new.limits.counters_bytes),
        ("gateway.admin.address", admin(started) != admin(new)),
        ("gateway.config.store", started.config.store != new.config.store),
        ("gateway.config.etcd", started.config.etcd != new.config.etcd),
        ("gateway.data_encryption", started.data_encryption != new.data_encryption),
        ("gateway.admin.tls", tls(started) != tls(new)),
        ("gateway.pid_file", started.pid_file != new.pid_file),
        ("gateway.access_log", started.access_log != new.access_log),
        ("gateway.log.format", started.log.format != new.log.format),
        ("gateway.metrics", started.metrics.is_some() != new.metrics.is_some()),
        ("gateway.metrics.address", differs(started, new, |metrics| metrics.address)),
        ("gateway.metrics.memory", differs(started, new, |metrics| metrics.memory_bytes)),
        ("gateway.metrics.series_per_family", differs(started, new, |metrics| metrics.series_per_family)),
        ("gateway.metrics.shared", differs(started, new, |metrics| metrics.shared.clone())),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
    .collect()
}

/// Whether both have metrics that are not alike in this.
fn differs<T: PartialEq>(a: &Gateway, b: &Gateway, of: impl Fn(&Metrics) -> T) -> bool {
    a.metrics.as_ref().zip(b.metrics.as_ref()).is_some_and(|(a, b)| of(a) != of(b))
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
        let check =
            |keys: &str, expected: &[&str]| assert_eq!(needs_restart(&started, &gateway(keys)), expected, "{keys}");
        check("workers: 2", &[]);
        check("workers: 3", &["gateway.workers"]);
        check("workers: auto", &["gateway.workers"]);
        check("workers: 2\n  timeouts: {drain: 1s}\n  log: {level: debug}\n  server_header: false", &[]);
        check(
            "workers: 2\n  listeners: [{address: \"127.0.0.1:1\"}]\n  admin: {address: \"127.0.0.1:2\"}\n  access_log: {}\n  log: {format: json}",
            &["gateway.admin.address", "gateway.access_log", "gateway.log.format"],
        );
        check("workers: 2\n  limits: {headers: 9, counters_bytes: 1MiB}", &["gateway.limits.counters_bytes"]);
        check("workers: 2\n  pid_file: /run/a\n  timeouts: {upgrade: 1s}", &["gateway.pid_file"]);
        check("workers: 2\n  metrics: {address: \"127.0.0.1:3\"}", &["gateway.metrics"]);
        let measured = gateway("metrics: {address: \"127.0.0.1:3\"}");
        let changed = gateway(
            "metrics: {address: \"127.0.0.1:4\", memory: 8MiB, series_per_family: 1000, shared: /s, path: /m, expire: 1m, \
             dialect: apisix, native_histograms: true, created: false, exemplars: true, disable: {labels: [node]}}",
        );
        let expected = ["address", "memory", "series_per_family", "shared"].map(|key| format!("gateway.metrics.{key}"));
        assert_eq!(needs_restart(&measured, &changed), expected);
        assert_eq!(needs_restart(&measured, &gateway("log: {}")), ["gateway.metrics"]);
    }
}
