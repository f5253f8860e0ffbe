//! The families about plugins, which both dialects have.

use super::FamilyKind::{Counter, Gauge, Histogram};
use super::Label::{Code, Phase, Plugin, Reason};
use super::tables::of_process;
use super::{FamilySpec, Measure};
use stillgate_metrics::Merge::Last;

/// Seconds one call of a plugin takes: most look at a few fields, the slowest decode a body.
const PLUGIN_SECONDS: &[f64] = &[
    0.00000025, 0.0000005, 0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.001, 0.01, 0.1,
];

/// The families about plugins.
pub(super) const PLUGINS: &[FamilySpec] = &[
    of_process(
        Measure::PluginDuration,
        "stillgate_plugin_seconds",
        "seconds",
        Histogram(PLUGIN_SECONDS),
        &[Plugin, Phase],
        "Time of one call of a plugin, measured in one of 1000 requests that have plugins.",
    ),
    of_process(
        Measure::PluginAnswers,
        "stillgate_plugin_answers_total",
        "",
        Counter,
        &[Plugin, Code],
        "Requests that a plugin answered itself, such as those it refused.",
    ),
    of_process(
        Measure::PluginPanics,
        "stillgate_plugin_panics_total",
        "",
        Counter,
        &[Plugin],
        "Calls of a plugin that panicked, a bug of the plugin. The request is answered 500 if its response has not begun.",
    ),
    of_process(
        Measure::PluginOffloads,
        "stillgate_plugin_offloads_total",
        "",
        Counter,
        &[Plugin],
        "Work of plugins that a thread beside the workers was given.",
    ),
    of_process(
        Measure::PluginOffloadsRefused,
        "stillgate_plugin_offloads_refused_total",
        "",
        Counter,
        &[Plugin],
        "Work of plugins that was refused because as much waited as may; the request is answered 503 or as the plugin says.",
    ),
    of_process(
        Measure::PluginWaits,
        "stillgate_plugin_waits_total",
        "",
        Counter,
        &[Plugin],
        "Times that a plugin let its request wait: for another server, a delay, or the body.",
    ),
    of_process(
        Measure::PluginWaitsRefused,
        "stillgate_plugin_waits_refused_total",
        "",
        Counter,
        &[Plugin],
        "Requests answered 503 because as many of their worker waited for plugins as may.",
    ),
    of_process(
        Measure::WorkerCount("calls_refused"),
        "stillgate_plugin_calls_refused_total",
        "",
        Counter,
        &[],
        "Calls of plugins to a server that were not made because connecting to it had failed repeatedly.",
    ),
    of_process(
        Measure::PluginHeadsRefused,
        "stillgate_plugin_heads_refused_total",
        "",
        Counter,
        &[Plugin],
        "Requests answered 500 because a plugin added more to a head than 64 KiB.",
    ),
    of_process(
        Measure::PluginBodiesRefused,
        "stillgate_plugin_bodies_refused_total",
        "",
        Counter,
        &[Plugin, Reason],
        "Bodies that a plugin did not let go on.",
    ),
    of_process(
        Measure::PluginFailures,
        "stillgate_plugin_failures_total",
        "",
        Counter,
        &[Plugin],
        "Runs of a plugin's functions (Lua) that failed: an error, too much time or memory.",
    ),
    of_process(
        Measure::PluginSendsDropped,
        "stillgate_plugin_sends_dropped_total",
        "",
        Counter,
        &[Plugin],
        "Calls that a plugin sends without waiting for a response, such as mirrored requests, that were dropped because too many were under way, or failed.",
    ),
    of_process(
        Measure::LoggerSent,
        "stillgate_logger_sent_total",
        "",
        Counter,
        &[Plugin],
        "Entries of plugins that log or trace, taken by their receiver.",
    ),
    of_process(
        Measure::LoggerSentBytes,
        "stillgate_logger_sent_bytes_total",
        "bytes",
        Counter,
        &[Plugin],
        "Bytes that these entries were sent in.",
    ),
    of_process(
        Measure::LoggerDropped,
        "stillgate_logger_dropped_total",
        "",
        Counter,
        &[Plugin, Reason],
        "Entries that are lost: `queue` and `full` have no room, `failed` was tried as often as it may be, `too_large`, `ended`.",
    ),
    of_process(
        Measure::LoggerBytes,
        "stillgate_logger_bytes",
        "bytes",
        Gauge(Last),
        &[Plugin],
        "Bytes of entries that wait to be sent.",
    ),
];
