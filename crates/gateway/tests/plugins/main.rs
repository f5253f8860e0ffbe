//! Plugins through the binary: alone, together, in Lua, and with the servers that they depend on.

mod bodies;
mod bounds;
mod compression;
mod documents;
mod filters;
mod growth;
mod jwks;
mod limit_conn;
mod limit_count;
mod lookalikes;
mod lua;
mod lua_body;
mod lua_files;
mod lua_modules;
mod lua_oracle;
mod lua_redis;
mod masking;
mod meta;
mod pages;
mod plugins;
mod precedence;
mod reloading;
mod requests;
mod scripted;
mod secrets;
mod server_calls;
#[path = "../shared/mod.rs"]
mod shared;
mod smuggling;
mod splitting;
mod trailers;
mod vault;
