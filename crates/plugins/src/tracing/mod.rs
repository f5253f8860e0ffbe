//! The plugins that trace requests: contexts in and out, and spans to a collector.
//!
//! A request's context is read and passed on in `rewrite`, whether it is recorded or not. A span is written when the response is
//! out, from what is known then.

mod b3;
mod opentelemetry;
mod otlp;
mod sampling;
mod w3c;
mod zipkin;

pub(crate) use opentelemetry::OpenTelemetry;
pub(crate) use zipkin::Zipkin;
