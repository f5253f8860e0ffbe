//! Common parts of plugins that authenticate: the anonymous consumer, the answer to other requests without credentials,
//! and types of keys.

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use stillgate_plugin_api::{Answer, ConsumerRef, Flow, Request};
use stillgate_schema::kind::Text;
use stillgate_schema::{Fault, text};
use stillgate_wire::{FieldName, FieldValue, OwnedFieldValue};

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

/// Removes the lines of a header field that are a plugin's credentials. Others stay: several schemes share `Authorization`, and
/// not each of them may be hidden.
pub(crate) fn hide_lines(name: FieldName<'_>, is_own: impl Fn(&[u8]) -> bool, request: &mut Request<'_>) {
    let lines = || request.edits.fields.values(&request.facts.request.fields, request.facts.head, name);
    if !lines().any(&is_own) {
        return;
    }
    let others: Vec<Vec<u8>> = lines().filter(|line| !is_own(line)).map(<[u8]>::to_vec).collect();
    request.remove_header(name);
    for line in &others {
        request.add_header(name, FieldValue::of_head(line));
    }
}

/// Whether a value of `Authorization` begins with a scheme, whatever follows.
pub(crate) fn is_of_scheme(value: &[u8], scheme: &[u8]) -> bool {
    value.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

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
