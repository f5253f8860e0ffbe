//! `stillgate-lab host-agent`: what `--hosts` runs on the other machines.

use crate::error::Result;
use crate::hosts;

pub(crate) fn run() -> Result<u8> {
    hosts::serve().map(|()| 0)
}
