//! The way from the configuration to what is served: finding, reading and watching its files, and reloading it.

pub(crate) mod background;
pub(crate) mod end_flag;
pub(crate) mod environment;
pub(crate) mod kept;
pub(crate) mod lua_files;
pub(crate) mod names;
pub(crate) mod reading;
pub(crate) mod reload;
mod restart;
pub(crate) mod secrets;
pub(crate) mod source;
pub(crate) mod sources;
pub(crate) mod status;
pub(crate) mod tls_material;
mod vault;
pub(crate) mod watch;
