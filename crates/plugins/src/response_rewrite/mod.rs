//! `response-rewrite`: changes status, header fields and body of a response, from a node or the gateway itself.

mod substitution;

use crate::body_fields::{CONTENT_ENCODING, forget_old_body};
use crate::decoding::BodyCoding;
use crate::header_edits::{HeaderEdits, Headers};
use crate::replacement::Groups;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::sync::Arc;
use stillgate_plugin::body::FILTER_BYTES_MAX;
use stillgate_plugin::{Compile, Define, Filter, PerWorker, Phase, Phases, Plugin, Response};
use stillgate_route::Variable;
use stillgate_route::vars::Expr;
use stillgate_schema::kind::some;
use stillgate_schema::{At, BodyVars, Choice, Fault, Flag, LocatedKind, TEXT, Text, int, map, object, text};
use stillgate_wire::EditError;
use substitution::{Substitution, WholeBody};

object! {
    /// Changes a response.
    pub(crate) struct ResponseRewriteKeys {
        /// The new status.
        status_code: u16 = int(200, 598) => optional;
        /// The new body.
        body: At<String> = LocatedKind(TEXT) => optional;
        /// Whether `body` is written in Base64.
        body_base64: bool = Flag => default(false);
        /// Header fields: `add`, `set` (an empty value removes the field) and `remove`, in this order; or a map that is set.
        /// Values can have variables.
        headers: HeaderEdits = Headers::OfResponse => default(HeaderEdits::default());
        /// Conditions as in `vars` of a route, with `status`: the plugin acts if they hold.
        vars: At<Expr> = LocatedKind(BodyVars) => optional;
        /// Replacements in the body, one after the other. Cannot be combined with `body`.
        filters: At<Vec<ResponseFilterKeys>> = LocatedKind(some(map())) => optional;
        /// Most bytes of a body for `filters`, before and after each; above it the response is a 502. APISIX's default
        /// is 67108864.
        max_resp_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
    }
}

/// Upper bound of `max_resp_body_size`.
const BODY_BYTES_MAX: usize = 1024 * 1024 * 1024;

object! {
    /// A replacement in a body.
    pub(crate) struct ResponseFilterKeys {
        /// Regular expression of the replaced text.
        regex: At<String> = LocatedKind(NOT_EMPTY) => required;
        /// `once`: the first match. `global`: every match.
        scope: Scope = SCOPE => default(Scope::Once);
        /// The replacement; `$1` is a group, `$$` a dollar.
        replace: At<String> = LocatedKind(TEXT) => required;
        /// Letters: `i` ignores case, `m` lets `^` and `$` match at lines, `s` lets `.` match line breaks, `x` ignores
        /// blanks in the expression, `u` reads the body as UTF-8, `a` matches at the beginning only. `j`, `o`, `d` and
        /// `U` have no effect.
        options: At<String> = LocatedKind(TEXT.shown()) => default(stillgate_schema::kind::unplaced("jo".to_owned()));
    }
}

/// How many matches a filter replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Once,
    Global,
}

const SCOPE: Choice<Scope> = Choice { words: &[("once", Scope::Once), ("global", Scope::Global)], unbuilt: &[] };

const NOT_EMPTY: Text<String> = text("a regular expression", |text| match text.is_empty() {
    true => Err(Fault::new("an empty regular expression").hint("write what is to be replaced")),
    false => Ok(text.to_owned()),
});

/// The plugin.
pub(crate) struct ResponseRewrite {
    status: Option<u16>,
    headers: HeaderEdits,
    condition: Option<Filter>,
    body: NewBody,
    own: PerWorker<Arc<[Substitution]>>,
}

enum NewBody {
    Kept,
    Replaced(Box<[u8]>),
    Filtered { substitutions: Box<[Substitution]>, bytes_max: usize },
}

impl Define for ResponseRewrite {
    type Keys = ResponseRewriteKeys;
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const PHASES: Phases = Phases::of(&[Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(keys: ResponseRewriteKeys, cx: &mut Compile<'_>) -> Option<ResponseRewrite> {
        let condition = match keys.vars {
            None => None,
            Some(At { at, value }) => match Filter::new(value) {
                Ok(filter) => Some(filter),
                Err(error) => {
                    cx.sink.error(at, &cx.path.key("vars"), Fault::new(error.to_string()));
                    return None;
                }
            },
        };
        let body = match (keys.body, keys.filters) {
            (Some(_), Some(filters)) => {
                let fault = Fault::new("`filters` and `body` cannot be combined").hint("remove one of them");
                cx.sink.error(filters.at, &cx.path.key("filters"), fault);
                return None;
            }
            (None, Some(filters)) => {
                let substitutions = Substitution::compile_all(&filters, cx)?;
                NewBody::Filtered { substitutions, bytes_max: keys.max_resp_body_size }
            }
            (Some(body), None) => NewBody::Replaced(decoded(&body, keys.body_base64, cx)?),
            (None, None) if keys.body_base64 => {
                let fault = Fault::new("invalid base64 content").hint("`body_base64` needs a `body`");
                cx.sink.error(cx.at, &cx.path.key("body_base64"), fault);
                return None;
            }
            (None, None) => NewBody::Kept,
        };
        Some(ResponseRewrite {
            status: keys.status_code,
            headers: keys.headers,
            condition,
            body,
            own: PerWorker::new(),
        })
    }
}

/// The decoded body.
fn decoded(body: &At<String>, is_base64: bool, cx: &mut Compile<'_>) -> Option<Box<[u8]>> {
    /// Like OpenResty, accepts text without padding.
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    if !is_base64 {
        return Some(body.value.as_bytes().into());
    }
    match LENIENT.decode(&body.value) {
        Ok(bytes) if !bytes.is_empty() => Some(bytes.into()),
        _ => {
            cx.sink.error(body.at, &cx.path.key("body"), Fault::new("invalid base64 content"));
            None
        }
    }
}

impl Plugin for ResponseRewrite {
    fn header_filter(&self, response: &mut Response<'_>) {
        if self.condition.as_ref().is_some_and(|condition| !condition.holds(&response.facts, response)) {
            return;
        }
        if self.edit(response).is_err() {
            fail(response);
        }
    }

    fn filters_responses(&self) -> bool {
        !matches!(self.body, NewBody::Kept)
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.condition.iter().for_each(|condition| condition.each_variable(visit));
        self.headers.each_variable(visit);
    }
}

impl ResponseRewrite {
    fn edit(&self, response: &mut Response<'_>) -> Result<(), EditError> {
        if let Some(status) = self.status {
            response.edits.set_status(status)?;
        }
        match &self.body {
            NewBody::Kept => {}
            NewBody::Replaced(body) => {
                forget_old_body(response);
                response.body.replace(body);
            }
            NewBody::Filtered { substitutions, bytes_max } => {
                let decoding = BodyCoding::of(response.header(CONTENT_ENCODING, &mut Vec::new()));
                forget_old_body(response);
                let own = || Arc::<[Substitution]>::from(substitutions.clone());
                let substitutions = self.own.with(own, |own| own.clone());
                response.body.filter(Box::new(WholeBody::new(substitutions, decoding, *bytes_max)));
            }
        }
        self.headers.apply(response, response.worker, &Groups::NONE)
    }
}

/// A value with variables cannot be sent. The response that the plugin was to change must not be seen either.
fn fail(response: &mut Response<'_>) {
    forget_old_body(response);
    response.body.replace(b"");
    response.edits.set_status(500).expect("500 is a status");
}
