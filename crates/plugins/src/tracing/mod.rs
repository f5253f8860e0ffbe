//! The tracing plugins: they propagate contexts, and send spans to a collector.
//!
//! A request's context is read and propagated in `rewrite`, whether it is sampled or not. A span is written when the
//! response is finished, from what is known then.

mod b3;
mod opentelemetry;
mod otlp;
mod sampling;
mod w3c;
mod zipkin;

pub(crate) use opentelemetry::OpenTelemetry;
pub(crate) use zipkin::Zipkin;
