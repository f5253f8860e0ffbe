//! key-auth: authenticates consumers by a key in a header field or in the query.
//!
//! Statuses, bodies and header fields are APISIX's. It differs in three points, each because APISIX's behaviour is
//! unsafe or changes too much: an empty key is refused in the configuration (an empty header field would match it);
//! with `hide_credentials` an unknown key is hidden too when the request continues as the anonymous consumer; and the
//! other query arguments keep their order and spelling when the key is removed.

use crate::authentication::{HEADER, REALM, Strangers};
use stillgate_plugin_api::query::{Argument, argument, decoded};
use stillgate_plugin_api::secrets::SECRET;
use stillgate_plugin_api::{
    Authenticate, Compile, CompileCredential, ConsumerRef, Define, Flow, Phase, Phases, Plugin, Request, Secret,
};
use stillgate_route::path::target_path;
use stillgate_schema::{Flag, TEXT, object};
use stillgate_wire::OwnedFieldName;

object! {
    /// Authenticates a consumer by its key.
    pub struct KeyAuthKeys {
        /// The header field that contains the key. It takes precedence over the query.
        header: String = HEADER => default("apikey".to_owned());
        /// The query argument that contains the key if the header field is absent.
        query: String = TEXT.shown() => default("apikey".to_owned());
        /// Do not forward the key to the node.
        hide_credentials: bool = Flag => default(false);
        /// The consumer for requests without a valid key. Without this key they are answered with 401.
        anonymous_consumer: String = TEXT => optional;
        /// The realm in `WWW-Authenticate` of an answer with 401.
        realm: String = REALM => default("key".to_owned());
    }
}

object! {
    /// A consumer's key.
    pub struct KeyAuthCredential {
        /// The key that requests carry. No two consumers can have the same.
        key: Secret = SECRET => required;
    }
}

/// key-auth with one configuration.
pub(crate) struct KeyAuth {
    header: OwnedFieldName,
    query: Box<[u8]>,
    hide_credentials: bool,
    strangers: Strangers,
}

impl Define for KeyAuth {
    type Keys = KeyAuthKeys;
    const NAME: &'static str = "key-auth";
    const PRIORITY: i32 = 2500;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: KeyAuthKeys, _: &mut Compile<'_>) -> Option<KeyAuth> {
        Some(KeyAuth {
            header: OwnedFieldName::new(keys.header.as_bytes()).expect("checked when it was read"),
            query: keys.query.into_bytes().into(),
            hide_credentials: keys.hide_credentials,
            strangers: Strangers::new(keys.anonymous_consumer, "apikey", &keys.realm),
        })
    }
}

impl Authenticate for KeyAuth {
    type Credential = KeyAuthCredential;
    type Verifier = ();

    fn lookup(credential: &KeyAuthCredential) -> &[u8] {
        credential.key.reveal().as_bytes()
    }

    fn verifier(_: KeyAuthCredential, _: &mut CompileCredential<'_>) -> Option<()> {
        Some(())
    }
}

const MISSING: &str = "{\"message\":\"Missing API key in request\"}\n";
const INVALID: &str = "{\"message\":\"Invalid API key in request\"}\n";

impl Plugin for KeyAuth {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        match self.find(request) {
            Ok(attached) => {
                self.hide(request);
                request.attach(attached);
            }
            Err(message) => {
                let attached = match self.strangers.admit(message, request) {
                    Ok(attached) => attached,
                    Err(answer) => return answer,
                };
                self.hide(request);
                request.attach_anonymous(attached);
            }
        }
        Flow::Continue
    }

    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        visit("header", self.header.name().bytes());
    }

    fn named_consumer(&self) -> Option<&str> {
        self.strangers.anonymous()
    }

    fn hide_credentials(&self, request: &mut Request<'_>) {
        self.hide(request);
    }
}

impl KeyAuth {
    /// The consumer of the key, or the reason for refusing it.
    fn find(&self, request: &Request<'_>) -> Result<ConsumerRef, &'static str> {
        let consumers = request.consumers;
        if let Some(key) = request.first_header(self.header.name()) {
            return consumers.find(Self::NAME, key).ok_or(INVALID);
        }
        let query = target_path(request.target()).1.unwrap_or_default();
        match argument(query, &self.query) {
            Argument::Absent => Err(MISSING),
            Argument::Other => Err(INVALID),
            Argument::One(value) => request.worker.with_buffers(|key, _| {
                key.extend(decoded(value));
                consumers.find(Self::NAME, key).ok_or(INVALID)
            }),
        }
    }

    /// Takes keys out wherever they may be: beside the one that was found there may be another.
    fn hide(&self, request: &mut Request<'_>) {
        if !self.hide_credentials {
            return;
        }
        let worker = request.worker;
        request.remove_header(self.header.name());
        worker.with_buffers(|buffer, _| request.hide_argument(&self.query, buffer));
    }
}
