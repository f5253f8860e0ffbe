//! `http-logger`: posts entries to an HTTP server.

use super::keys::{HeaderSecret, URL, UrlText, batching_logger_keys, logger_metadata};
use super::logger::{JsonArray, LineEncoding, Logger, PHASES, of_metadata, plugin_of_logger};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{Encode, HttpReceiver, Outlet, Receiver};
use stillgate_plugin_api::secrets::VeiledKind;
use stillgate_plugin_api::{Compile, Define, Phases, Response, Secret};
use stillgate_schema::{Choice, Flag, int};

const NAME: &str = "http-logger";

/// How long a connection is kept for the next batch.
const KEEPALIVE: Duration = Duration::from_secs(60);

batching_logger_keys! {
    /// Posts entries to an HTTP server.
    pub(crate) struct HttpLoggerKeys named "http logger" {
        /// The URL to post to.
        uri: UrlText = URL => required;
        /// The value of `Authorization`.
        auth_header: Option<Secret> = VeiledKind(HeaderSecret) => default(None);
        /// Timeout of one request, in seconds.
        timeout: u64 = int(1, 3600) => default(3);
        /// How a batch is encoded: `json`, an array; `new_line`, one object on each line. A batch of one is the object
        /// alone.
        concat_method: Concat = CONCAT => default(Concat::Json);
        /// Whether the server's certificate is verified.
        ssl_verify: bool = Flag => default(false);
    }
}

/// The encoding of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concat {
    /// As an array.
    Json,
    /// One object on each line.
    NewLine,
}

const CONCAT: Choice<Concat> = Choice { words: &[("json", Concat::Json), ("new_line", Concat::NewLine)], unbuilt: &[] };

/// The plugin.
pub(crate) struct HttpLogger {
    logger: Logger,
    outlet: Arc<Outlet>,
}

impl Define for HttpLogger {
    type Keys = HttpLoggerKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 410;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: HttpLoggerKeys, cx: &mut Compile<'_>) -> Option<HttpLogger> {
        let mut logger = Logger::new(keys.contents(), cx)?;
        logger.unmatched = Some("no-matched");
        let content_type = match keys.concat_method {
            Concat::Json => "application/json",
            Concat::NewLine => "text/plain",
        };
        let mut headers = vec![("Content-Type".to_owned(), content_type.to_owned())];
        if let Some(value) = &keys.auth_header {
            headers.push(("Authorization".to_owned(), value.reveal().to_owned()));
        }
        let encode: Box<dyn Encode> = match keys.concat_method {
            Concat::Json => logger.encode(JsonArray { is_single: keys.batch_max_size == 1 }),
            Concat::NewLine => logger.encode(LineEncoding),
        };
        let (batching, name) = (keys.batching(), (NAME, keys.name));
        let receiver = Receiver::Http(Box::new(HttpReceiver {
            urls: vec![keys.uri.0],
            headers,
            verifies: keys.ssl_verify,
            timeout: Duration::from_secs(keys.timeout),
            keepalive: Some(KEEPALIVE),
            status_below: 400,
            question: None,
            refused: None,
        }));
        Some(HttpLogger { logger, outlet: Arc::new(Outlet::new(name, cx.identity, batching, receiver, encode)) })
    }
}

impl HttpLogger {
    fn send(&self, response: &Response<'_>) {
        self.logger.log(of_metadata::<HttpLoggerMetadata>(NAME, response), &self.outlet, response, |_, _, _| {}, b"");
    }
}

logger_metadata!(HttpLoggerMetadata {});
plugin_of_logger!(HttpLogger, HttpLoggerMetadata);
