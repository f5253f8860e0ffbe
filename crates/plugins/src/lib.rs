//! The plugins: one file or folder each, and one line in [`TABLE`].
//!
//! A plugin knows `stillgate-plugin` and nothing of the proxy. Names, keys, defaults, statuses, bodies and headers are APISIX's;
//! where a plugin differs, its file says why.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cors;
mod header_edits;
mod ip_restriction;
mod key_auth;
mod limit_count;
mod lists;
mod patterns;
mod proxy_rewrite;
mod referer_restriction;
mod replacement;
mod response_rewrite;

use stillgate_plugin::{Descriptor, Table};

/// All plugins.
pub const TABLE: Table = Table(PLUGINS);

const PLUGINS: &[Descriptor] = &[
    Descriptor::of::<key_auth::KeyAuth>().authenticates::<key_auth::KeyAuth>(),
    Descriptor::of::<limit_count::LimitCount>().with_metadata::<limit_count::LimitCount>(),
    Descriptor::of::<ip_restriction::IpRestriction>(),
    Descriptor::of::<referer_restriction::RefererRestriction>(),
    Descriptor::of::<cors::Cors>().with_metadata::<cors::Cors>(),
    Descriptor::of::<proxy_rewrite::ProxyRewrite>(),
    Descriptor::of::<response_rewrite::ResponseRewrite>(),
];
