//! What may be typed: one table of keys per object, with the kinds that only these keys have.
//!
//! What needs more than one object is left to the room `resources`.

pub(crate) mod access_log;
pub(crate) mod acme;
pub(crate) mod admin;
pub(crate) mod checks;
pub(crate) mod control_plane;
pub(crate) mod devices;
pub(crate) mod files;
pub(crate) mod gateway;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod plugins;
pub(crate) mod resource_list;
pub(crate) mod resources;
pub(crate) mod secrets;
pub(crate) mod shared;
pub(crate) mod ssls;
pub(crate) mod stream_proxy;
pub(crate) mod stream_routes;
