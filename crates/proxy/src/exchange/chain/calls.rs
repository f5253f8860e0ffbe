//! The calls of plugins with a response.

use super::super::receiver::Receiver;
use super::super::record::Moment;
use super::{FilterResults, PluginFailed, ResponseSource, head_of, holds};
use crate::worker::Worker;
use crate::worker::plugins::{PanickedAt, PluginRefusal, call_each, timed};
use std::cell::Cell;
use stillgate_plugin::body::Capture;
use stillgate_plugin::{BodyChanges, Chain, Phase, Response};

/// When a phase of a response is called.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallMoment {
    /// The response has just arrived, and its buffer is still here.
    At(ResponseSource),
    /// The response has been sent.
    Behind(Moment),
}

impl CallMoment {
    /// Head of the node's response; `kept`: once its buffer is gone.
    pub(super) fn head<'a>(self, from_node: &'a Receiver, kept: &'a [u8]) -> &'a [u8] {
        match self {
            CallMoment::At(answered) => head_of(from_node, answered),
            CallMoment::Behind(_) => kept,
        }
    }

    /// When the response was sent; `None`: it has not been.
    pub(super) fn moment(self) -> Option<Moment> {
        match self {
            CallMoment::At(_) => None,
            CallMoment::Behind(moment) => Some(moment),
        }
    }

    /// Lends out what was kept of the body, together with its changes, until it is put back.
    pub(super) fn lend(self, changes: &mut BodyChanges) -> Capture {
        match self {
            CallMoment::Behind(_) => std::mem::take(changes.captured_mut()),
            CallMoment::At(_) => Capture::default(),
        }
    }
}

/// Arguments of the plugins of a chain in one phase.
pub(super) struct Calls<'a> {
    pub(super) worker: &'a Worker,
    pub(super) phase: Phase,
    pub(super) is_timed: bool,
    pub(super) judged: &'a mut FilterResults,
    pub(super) is_head_refused: &'a mut bool,
}

impl Calls<'_> {
    /// Calls each plugin. In the phase `log` a plugin that panics has been counted, and the others are still called.
    pub(super) fn run(self, chain: &Chain, answer: &mut Response<'_>) -> Result<(), PluginFailed> {
        let (worker, phase, mut from) = (self.worker, self.phase, 0);
        let mut this = self;
        loop {
            match call_each(worker, chain, phase, |called| this.run_from(from, chain, answer, called)) {
                Ok(done) => return done,
                Err(PanickedAt(place)) if phase == Phase::Log => from = place + 1,
                Err(_) => return Err(PluginFailed),
            }
        }
    }

    #[inline(always)]
    fn run_from(
        &mut self,
        from: usize,
        chain: &Chain,
        answer: &mut Response<'_>,
        called: &Cell<usize>,
    ) -> Result<(), PluginFailed> {
        let Calls { worker, phase, is_timed, judged, is_head_refused } = self;
        for (at, entry) in chain.of_from(*phase, from) {
            if *phase == Phase::BodyFilter && !entry.plugin.codes_content() {
                continue;
            }
            called.set(at);
            if judged.skips(at, entry, || holds(entry, answer.facts, answer)) {
                continue;
            }
            answer.body.plugin = entry.name;
            timed(worker, entry, *phase, *is_timed, || match phase {
                Phase::Log => entry.plugin.log(answer),
                Phase::BodyFilter => entry.plugin.code_content(answer),
                _ => entry.plugin.header_filter(answer),
            });
            if *phase != Phase::Log && answer.edits.fields.is_too_large() {
                if !std::mem::replace(*is_head_refused, true) {
                    worker.note_refusal(entry.name, PluginRefusal::Head);
                }
                return Err(PluginFailed);
            }
        }
        Ok(())
    }
}
