//! Common parts of plugins that authenticate: the anonymous consumer, the answer to other requests without credentials,
//! and types of keys.

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use stillgate_plugin_api::{Answer, ConsumerRef, Flow, Request};
use stillgate_schema::kind::Text;
use stillgate_schema::{Fault, text};
use stillgate_wire::{FieldName, OwnedFieldValue};

/// The name of a header field.
pub(crate) const HEADER: Text<String> =
    text("the name of a header field", |text| match FieldName::new(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Fault::new(format!("{text:?}: {error}"))),
    })
    .shown();

/// A realm.
pub(crate) const REALM: Text<String> = text("a realm", |text| {
    let is_bad = |byte: u8| !(b' '..=b'~').contains(&byte) || matches!(byte, b'"' | b'\\');
    match text.is_empty() || text.bytes().any(is_bad) {
        true => Err(Fault::new(format!("{text:?} is not a realm"))
            .hint("use printable ASCII characters other than '\"' and '\\'")),
        false => Ok(text.to_owned()),
    }
})
.pattern(r"^[ -!#-[\]-~]+$")
.shown();

/// The header field of a 401 that says how to authenticate.
pub(crate) const CHALLENGE: FieldName<'static> = FieldName::constant("WWW-Authenticate");
/// The field that carries the credentials of most schemes.
pub(crate) const AUTHORIZATION: FieldName<'static> = FieldName::constant("Authorization");

/// Like nginx's decoder: padding is optional.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

const NO_ANONYMOUS: &str = "{\"message\":\"Invalid user authorization\"}\n";

/// How requests without valid credentials are handled.
pub(crate) struct Strangers {
    /// The consumer that they are attached to.
    anonymous: Option<Box<str>>,
    /// The value of `WWW-Authenticate`.
    challenge: OwnedFieldValue,
}

impl Strangers {
    /// Creates it from the keys `anonymous_consumer` and `realm`.
    pub(crate) fn new(anonymous: Option<String>, scheme: &str, realm: &str) -> Strangers {
        let challenge = OwnedFieldValue::new(format!("{scheme} realm=\"{realm}\"").as_bytes());
        let challenge = challenge.expect("a realm has no control characters");
        Strangers { anonymous: anonymous.map(String::into), challenge }
    }

    /// Attaches the anonymous consumer, or answers with 401 and this body.
    pub(crate) fn admit(&self, body: &'static str, request: &mut Request<'_>) -> Result<ConsumerRef, Flow> {
        let Some(name) = &self.anonymous else { return Err(self.refuse(body, request)) };
        request.consumers.find_by_name(name).ok_or_else(|| self.refuse(NO_ANONYMOUS, request))
    }

    /// The name of the anonymous consumer.
    pub(crate) fn anonymous(&self) -> Option<&str> {
        self.anonymous.as_deref()
    }

    fn refuse(&self, body: &'static str, request: &mut Request<'_>) -> Flow {
        request.response.add(CHALLENGE, self.challenge.value());
        Flow::Answer(Answer::text(401, body))
    }
}
