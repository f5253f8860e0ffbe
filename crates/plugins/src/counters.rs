//! Common parts of limits: their keys and counters. Counters are in the process; APISIX's keys and values for counters
//! in Redis are refused by name.

use stillgate_plugin_api::Plugin;
use stillgate_route::Variable;
use stillgate_schema::object::Foreign;
use stillgate_schema::{Choice, Definitions, Fault, Json, Kind, Node, Path, Sink, Value};

/// Whether a limit depends on the consumer.
pub(crate) fn reads_consumer(limit: &impl Plugin) -> bool {
    let mut reads = false;
    limit.each_variable(&mut |variable| {
        reads |= matches!(variable, Variable::ConsumerName | Variable::ConsumerGroupId);
    });
    reads
}

/// `policy`
pub(crate) struct CounterPolicy;

const LOCAL: Choice<()> = Choice { words: &[("local", ())], unbuilt: &[] };
const REDIS: [&str; 3] = ["redis", "redis-cluster", "redis-sentinel"];

/// The keys of counters in Redis.
pub(crate) const OF_REDIS: Foreign = Foreign {
    keys: &[
        "key_ttl",
        "redis_cluster_name",
        "redis_cluster_nodes",
        "redis_cluster_ssl",
        "redis_cluster_ssl_verify",
        "redis_database",
        "redis_host",
        "redis_keepalive_pool",
        "redis_keepalive_timeout",
        "redis_master_name",
        "redis_password",
        "redis_port",
        "redis_role",
        "redis_sentinels",
        "redis_ssl",
        "redis_ssl_verify",
        "redis_timeout",
        "redis_username",
        "sentinel_password",
        "sentinel_username",
    ],
    what: "counters cannot be kept in Redis yet",
    hint: "remove the key; `policy: local` counts over all workers of this gateway",
};

impl Kind for CounterPolicy {
    type Out = ();

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<()> {
        if let Value::Scalar(scalar) = &node.value
            && REDIS.contains(&&*scalar.text)
        {
            let fault = Fault::new(format!("{:?}: counters cannot be kept in Redis yet", &*scalar.text));
            sink.error(node.at, path, fault.hint("write `local`, which counts over all workers of this gateway; several gateways count each for themselves"));
            return None;
        }
        LOCAL.read(node, path, sink)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        LOCAL.schema(definitions)
    }

    fn show(&self, value: &()) -> Json {
        LOCAL.show(value)
    }
}
