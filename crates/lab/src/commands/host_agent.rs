//! `stillgate-lab host-agent`: the agent that `--hosts` runs on other machines.

use crate::error::Result;
use crate::hosts;

pub(crate) fn run() -> Result<u8> {
    hosts::serve().map(|()| 0)
}
