//! Observability through the binary: metrics, access logs, logs and traces of plugins, profiles.

mod access_log;
mod access_log_values;
mod admin_metrics;
mod exporter;
mod log_receivers;
mod logs;
mod lua_jit;
mod lua_profile;
mod metrics;
mod metrics_workers;
mod profile_page;
mod profile_storm;
mod profiling;
mod public_metrics;
mod series_life;
#[path = "../shared/mod.rs"]
mod shared;
mod shares;
