//! The families about the source of resources, which both dialects have.

use super::FamilyKind::Gauge;
use super::Label::Plugin;
use super::tables::of_process;
use super::{FamilySpec, Measure};
use stillgate_metrics::Merge::Last;

/// All of them.
pub(super) const SOURCE: &[FamilySpec] = &[
    of_process(
        Measure::ConfigIgnoredPlugins,
        "stillgate_config_ignored_plugins",
        "",
        Gauge(Last),
        &[Plugin],
        "Resources that have a plugin which gateway.config.ignore_plugins leaves out.",
    ),
    of_process(
        Measure::ConfigSourceUp,
        "stillgate_config_source_up",
        "",
        Gauge(Last),
        &[],
        "Whether the store or etcd can be followed: 1, or 0 where changes in it cannot be seen or made; /v1/status says why. \
         Absent where resources come from the file.",
    ),
    of_process(
        Measure::ConfigSourceRevision,
        "stillgate_config_source_revision",
        "",
        Gauge(Last),
        &[],
        "The revision of the store or etcd that was read last; the same on all gateways of one etcd that have seen the same changes.",
    ),
    of_process(
        Measure::ConfigSourceContactTime,
        "stillgate_config_source_last_contact_timestamp_seconds",
        "seconds",
        Gauge(Last),
        &[],
        "When the store or etcd last answered, in seconds since 1970; etcd is asked every five seconds. Absent before the first answer.",
    ),
];
