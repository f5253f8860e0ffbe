//! The binary `stillgate-lab`: its experiments, its reports, and how they refuse invalid measurements.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod bisect;
mod churn;
mod compare;
mod connections;
mod devices;
mod explain;
mod history;
mod hosts;
mod load_protocols;
mod load_refusals;
mod load_results;
mod load_truth;
mod measure;
mod nightly;
mod processes;
mod profile;
mod report;
mod respond;
mod tail;
