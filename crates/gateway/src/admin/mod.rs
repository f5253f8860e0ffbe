//! The admin address: its access rules, the gateway's answers there, and how the Admin API reaches the datastore.
//!
//! The Admin API itself is the crate `admin`. Nothing here owns state: the control loop and the keeper of the datastore do.

pub(crate) mod cardinality;
pub(crate) mod context;
pub(crate) mod devices;
pub(crate) mod fleet;
mod live;
mod lua;
pub(crate) mod lua_profile;
pub(crate) mod pages;
pub(crate) mod profiling;
pub(crate) mod resources;
mod route_list;
mod routes;
pub(crate) mod status;
pub(crate) mod upstreams;
