//! `client-control`: limits the body of requests.

use stillgate_plugin_api::{Answer, BodyError, BodyFilter, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{int, object};
use stillgate_wire::Framing;

object! {
    /// Limits the body of requests.
    pub(crate) struct ClientControlKeys {
        /// Most bytes of a request's body; 0: unlimited.
        max_body_size: u64 = int(0, i64::MAX) => optional;
    }
}

/// The plugin.
pub(crate) struct ClientControl {
    /// `None`: unlimited.
    bytes_max: Option<u64>,
}

impl Define for ClientControl {
    type Keys = ClientControlKeys;
    const NAME: &'static str = "client-control";
    const PRIORITY: i32 = 22000;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: ClientControlKeys, _: &mut Compile<'_>) -> Option<ClientControl> {
        Some(ClientControl { bytes_max: keys.max_body_size.filter(|bytes| *bytes > 0) })
    }
}

impl Plugin for ClientControl {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let Some(bytes_max) = self.bytes_max else { return Flow::Continue };
        match request.facts.request.framing {
            Framing::Length(bytes) if bytes > bytes_max => return Flow::Answer(Answer::page(413)),
            Framing::None | Framing::Length(_) => {}
            // The length is known only when the body has ended.
            Framing::Chunked | Framing::UntilClose => request.body.filter(Box::new(LengthLimit { left: bytes_max })),
        }
        Flow::Continue
    }
}

/// Passes at most so many bytes.
struct LengthLimit {
    left: u64,
}

impl BodyFilter for LengthLimit {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.left = self.left.checked_sub(piece.len() as u64).ok_or(BodyError::TooLarge)?;
        out.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        0
    }
}
