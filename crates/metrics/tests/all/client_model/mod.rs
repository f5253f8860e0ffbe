//! `io.prometheus.client` as messages of another protobuf implementation, to read what the encoder wrote.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LabelPair {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Gauge {
    #[prost(double, required, tag = "1")]
    pub(crate) value: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Counter {
    #[prost(double, required, tag = "1")]
    pub(crate) value: f64,
    #[prost(message, optional, tag = "2")]
    pub(crate) exemplar: Option<Exemplar>,
    #[prost(message, optional, tag = "3")]
    pub(crate) created_timestamp: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(uint64, required, tag = "1")]
    pub(crate) sample_count: u64,
    #[prost(double, required, tag = "2")]
    pub(crate) sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    pub(crate) schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    pub(crate) zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    pub(crate) zero_count: Option<u64>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) negative_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "10")]
    pub(crate) negative_delta: Vec<i64>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    pub(crate) positive_delta: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    pub(crate) created_timestamp: Option<Timestamp>,
    #[prost(message, repeated, tag = "16")]
    pub(crate) exemplars: Vec<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Bucket {
    #[prost(uint64, required, tag = "1")]
    pub(crate) cumulative_count: u64,
    #[prost(double, required, tag = "2")]
    pub(crate) upper_bound: f64,
    #[prost(message, optional, tag = "3")]
    pub(crate) exemplar: Option<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BucketSpan {
    #[prost(sint32, required, tag = "1")]
    pub(crate) offset: i32,
    #[prost(uint32, required, tag = "2")]
    pub(crate) length: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    pub(crate) label: Vec<LabelPair>,
    #[prost(double, required, tag = "2")]
    pub(crate) value: f64,
    #[prost(message, optional, tag = "3")]
    pub(crate) timestamp: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, required, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, required, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(crate) label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(crate) gauge: Option<Gauge>,
    #[prost(message, optional, tag = "3")]
    pub(crate) counter: Option<Counter>,
    #[prost(message, optional, tag = "7")]
    pub(crate) histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricFamily {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, optional, tag = "2")]
    pub(crate) help: Option<String>,
    #[prost(int32, required, tag = "3")]
    pub(crate) r#type: i32,
    #[prost(message, repeated, tag = "4")]
    pub(crate) metric: Vec<Metric>,
    #[prost(string, optional, tag = "5")]
    pub(crate) unit: Option<String>,
}
