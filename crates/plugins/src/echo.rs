//! `echo`: adds texts before or after a response's body, or replaces it. For tests of a configuration.

use crate::body_fields::{CONTENT_ENCODING, forget_old_body};
use crate::decoding::{BodyCoding, Decoder};
use crate::header_edits::{FieldMap, Fields};
use std::sync::Arc;
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::{BodyError, BodyFilter, Compile, Define, Phase, Phases, Plugin, Response};
use stillgate_schema::{TEXT, object};

object! {
    /// Adds texts to responses.
    pub(crate) struct EchoKeys {
        /// Text before the body.
        before_body: String = TEXT => optional;
        /// Text that replaces the body.
        body: String = TEXT => optional;
        /// Text after the body.
        after_body: String = TEXT => optional;
        /// Header fields of the response.
        headers: Fields = FieldMap => default(Fields::default());
        any_of {
            "there is nothing to put anywhere": before_body | body | after_body;
        }
    }
}

/// The plugin.
pub(crate) struct Echo {
    before: Arc<[u8]>,
    /// Includes the texts around it.
    body: Option<Box<[u8]>>,
    after: Arc<[u8]>,
    fields: Fields,
}

impl Define for Echo {
    type Keys = EchoKeys;
    const NAME: &'static str = "echo";
    const PRIORITY: i32 = 412;
    const PHASES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(keys: EchoKeys, _: &mut Compile<'_>) -> Option<Echo> {
        let before = keys.before_body.unwrap_or_default();
        let after = keys.after_body.unwrap_or_default();
        let body = keys.body.map(|body| [&*before, &*body, &*after].concat().into_bytes().into());
        Some(Echo { before: before.into_bytes().into(), body, after: after.into_bytes().into(), fields: keys.headers })
    }
}

impl Plugin for Echo {
    fn header_filter(&self, response: &mut Response<'_>) {
        let coding = BodyCoding::of(response.header(CONTENT_ENCODING, &mut Vec::new()));
        forget_old_body(response);
        match &self.body {
            Some(body) => response.body.replace(body),
            None if coding == BodyCoding::Identity && self.before.is_empty() && self.after.is_empty() => {}
            None => response.body.filter(Box::new(TextWrapper {
                before: Some(self.before.clone()),
                after: self.after.clone(),
                decoder: (coding != BodyCoding::Identity).then(|| Decoder::new(coding, FILTER_BYTES_MAX)),
            })),
        }
        for (name, value) in &self.fields {
            response.set_header(name.name(), value.value());
        }
    }

    fn filters_responses(&self) -> bool {
        true
    }
}

/// Adds texts around a body.
struct TextWrapper {
    /// Until it has been sent.
    before: Option<Arc<[u8]>>,
    after: Arc<[u8]>,
    /// For a coded body, which is sent decoded.
    decoder: Option<Decoder>,
}

impl BodyFilter for TextWrapper {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        if let Some(decoder) = &mut self.decoder {
            return decoder.piece(piece);
        }
        self.put_before(out);
        out.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.put_before(out);
        if let Some(decoder) = &mut self.decoder {
            out.extend_from_slice(&decoder.end()?);
        }
        out.extend_from_slice(&self.after);
        Ok(())
    }

    fn length_of(&self, length: u64) -> Option<u64> {
        let before = self.before.as_ref().map_or(0, |before| before.len());
        self.decoder.is_none().then(|| length.checked_add((before + self.after.len()) as u64))?
    }

    fn held_bytes(&self) -> usize {
        self.decoder.as_ref().map_or(0, Decoder::held_bytes)
    }
}

impl TextWrapper {
    fn put_before(&mut self, out: &mut Vec<u8>) {
        if let Some(before) = self.before.take() {
            out.extend_from_slice(&before);
        }
    }
}
