//! The tools of an operator: the command line, the Admin API, stores, etcd, the dashboard, the documentation.

mod adc;
mod admin;
mod apply;
mod apply_places;
mod apply_strangers;
mod check_admin;
mod cli;
mod crash;
mod dashboard;
mod dashboard_access;
mod dashboard_figures;
mod dashboard_forms;
mod demo;
mod documents;
mod end_flag;
mod etcd;
mod explain;
mod explain_api;
mod file_secrets;
mod import;
mod lua_check;
mod proxy;
mod replay;
#[path = "../shared/mod.rs"]
mod shared;
mod store;
mod transfer;
