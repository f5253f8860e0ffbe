//! `stillgate-lab host-agent`: the agent that `--hosts` runs on other machines.

use crate::error::Result;
use crate::hosts;
use clap::Args;

/// `stillgate-lab host-agent`.
#[derive(Debug, Args)]
pub(crate) struct HostAgent {}

pub(crate) fn run(_: &HostAgent) -> Result<u8> {
    hosts::serve().map(|()| 0)
}
