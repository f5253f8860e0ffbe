//! The plugins: one file or folder each, and one line in [`TABLE`].
//!
//! A plugin depends on `stillgate-plugin-api` and not on the proxy. Names, keys, defaults, statuses, bodies and headers are
//! APISIX's; if a plugin differs, its file says why.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access_list;
mod acl;
mod api_breaker;
mod apisix;
mod attach_consumer_label;
mod authentication;
mod basic_auth;
mod body_fields;
mod body_transformer;
mod client_control;
mod compression;
mod consumer_restriction;
mod cors;
mod counters;
mod csrf;
mod decoding;
mod device_gateway;
mod digest_cache;
mod echo;
mod encoding;
mod error_page;
mod fault_injection;
mod forward_auth;
mod grpc_web;
mod header_edits;
mod hmac_auth;
mod ip_restriction;
mod json_path;
mod jwt_auth;
mod key_auth;
mod limit_conn;
mod limit_count;
mod limit_req;
mod linear_regex;
mod loggers;
mod lua;
mod mocking;
mod multi_auth;
mod noop_plugins;
mod number;
mod opa;
mod patterns;
mod prometheus;
mod proxy_mirror;
mod proxy_rewrite;
mod public_api;
mod random;
mod real_ip;
mod redirect;
mod referer_restriction;
mod request_id;
mod request_validation;
mod response_rewrite;
mod rule_set;
mod rules;
mod server_call;
mod tracing;
mod traffic_label;
mod traffic_split;
mod ua_restriction;
mod uri_blocker;
mod variable_texts;
mod workflow;

pub use lua::{module_of, required_paths};
pub use prometheus::disabled_labels;
pub use request_validation::check_json;
use stillgate_plugin_api::{CustomPlugins, Descriptor, Ignorable, PluginTable, Scripts};

/// All plugins.
pub const TABLE: PluginTable = PluginTable {
    plugins: PLUGINS,
    sought: apisix::NAMES,
    scripts: SCRIPTS,
    custom: CustomPlugins::NONE,
    ignorable: Ignorable::of(apisix::OBSERVERS),
    drops_underscores: true,
};

const SCRIPTS: Scripts = Scripts { precede: lua::precede, filter: lua::filter, plugins: lua::plugins };

const PLUGINS: &[Descriptor] = &[
    Descriptor::of::<acl::Acl>(),
    Descriptor::of::<attach_consumer_label::AttachConsumerLabel>(),
    Descriptor::of::<hmac_auth::HmacAuth>().authenticates::<hmac_auth::HmacAuth>(),
    Descriptor::of::<basic_auth::BasicAuth>().authenticates::<basic_auth::BasicAuth>(),
    Descriptor::of::<consumer_restriction::ConsumerRestriction>(),
    Descriptor::of::<jwt_auth::JwtAuth>().authenticates::<jwt_auth::JwtAuth>(),
    Descriptor::of::<multi_auth::MultiAuth>().authenticates_by_others(),
    Descriptor::of::<key_auth::KeyAuth>().authenticates::<key_auth::KeyAuth>(),
    Descriptor::of::<limit_count::LimitCount>().with_metadata::<limit_count::LimitCount>(),
    Descriptor::of::<limit_req::LimitReq>(),
    Descriptor::of::<ip_restriction::IpRestriction>(),
    Descriptor::of::<client_control::ClientControl>(),
    Descriptor::of::<csrf::Csrf>(),
    Descriptor::of::<fault_injection::FaultInjection>(),
    Descriptor::of::<ua_restriction::UaRestriction>(),
    Descriptor::of::<uri_blocker::UriBlocker>(),
    Descriptor::of::<referer_restriction::RefererRestriction>(),
    Descriptor::of::<real_ip::RealIp>(),
    Descriptor::of::<forward_auth::ForwardAuth>(),
    Descriptor::of::<opa::Opa>(),
    Descriptor::of::<api_breaker::ApiBreaker>(),
    Descriptor::of::<limit_conn::LimitConn>(),
    Descriptor::of::<proxy_mirror::ProxyMirror>(),
    Descriptor::of::<cors::Cors>().with_metadata::<cors::Cors>(),
    Descriptor::of::<proxy_rewrite::ProxyRewrite>(),
    Descriptor::of::<response_rewrite::ResponseRewrite>(),
    Descriptor::of::<request_id::RequestId>(),
    Descriptor::of::<request_validation::RequestValidation>(),
    Descriptor::of::<redirect::Redirect>().with_metadata::<redirect::Redirect>(),
    Descriptor::of::<mocking::Mocking>(),
    Descriptor::of::<echo::Echo>(),
    Descriptor::of::<error_page::ErrorPage>().with_metadata::<error_page::ErrorPage>(),
    Descriptor::of::<traffic_label::TrafficLabel>(),
    Descriptor::of::<traffic_split::TrafficSplit>(),
    Descriptor::of::<workflow::Workflow>(),
    Descriptor::of::<noop_plugins::ProxyControl>(),
    Descriptor::of::<public_api::PublicApi>(),
    Descriptor::of::<noop_plugins::NodeStatus>(),
    Descriptor::of::<noop_plugins::ServerInfo>(),
    Descriptor::of::<prometheus::Prometheus>().with_metadata::<prometheus::Prometheus>(),
    Descriptor::of::<grpc_web::GrpcWeb>(),
    Descriptor::of::<body_transformer::BodyTransformer>(),
    Descriptor::of::<compression::Gzip>(),
    Descriptor::of::<compression::Brotli>(),
    Descriptor::of::<compression::Zstd>(),
    Descriptor::of::<noop_plugins::ProxyBuffering>(),
    Descriptor::of::<tracing::Zipkin>().with_metadata::<tracing::Zipkin>(),
    Descriptor::of::<tracing::OpenTelemetry>().with_metadata::<tracing::OpenTelemetry>(),
    Descriptor::of::<device_gateway::DeviceGateway>(),
    Descriptor::of::<lua::PreFunction>(),
    Descriptor::of::<lua::PostFunction>(),
    Descriptor::of::<loggers::LokiLogger>().with_metadata::<loggers::LokiLogger>(),
    Descriptor::of::<loggers::ElasticsearchLogger>().with_metadata::<loggers::ElasticsearchLogger>(),
    Descriptor::of::<loggers::HttpLogger>().with_metadata::<loggers::HttpLogger>(),
    Descriptor::of::<loggers::TcpLogger>().with_metadata::<loggers::TcpLogger>(),
    Descriptor::of::<loggers::Syslog>().with_metadata::<loggers::Syslog>(),
    Descriptor::of::<loggers::UdpLogger>().with_metadata::<loggers::UdpLogger>(),
    Descriptor::of::<loggers::FileLogger>().with_metadata::<loggers::FileLogger>(),
];
