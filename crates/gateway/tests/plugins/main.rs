//! Plugins through the binary: alone, together, in Lua, and with the servers that they ask.

mod asking;
mod bodies;
mod bounds;
mod compression;
mod documents;
mod filters;
mod jwks;
mod limit_conn;
mod limit_count;
mod lua;
mod lua_files;
mod lua_oracle;
mod meta;
mod pages;
mod plugins;
mod precedence;
mod reloading;
mod requests;
mod scripted;
mod secrets;
#[path = "../shared/mod.rs"]
mod shared;
mod smuggling;
mod splitting;
mod vault;
