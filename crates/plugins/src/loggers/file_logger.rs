//! `file-logger`: appends entries to a file, one a line.
//!
//! Entries are written as soon as they come, by a thread of their own. A file that was moved away is made anew.

use super::encoding::Joined;
use super::keys::{logger_keys, logger_metadata};
use super::logger::{Logger, PHASES, compiled, of_metadata};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin::outbox::{Batching, FileReceiver, Outlet, PENDING_BYTES_MAX, Receiver};
use stillgate_plugin::{Compile, Define, Filter, Flow, Identity, Metadata, Phases, Plugin, Request, Response};
use stillgate_route::vars::Expr;
use stillgate_schema::{At, Fault, LateVars, Located, Text, text};

const NAME: &str = "file-logger";

/// What is written at once.
const BATCH_ENTRIES: usize = 1000;

logger_keys! {
    /// Appends entries to a file.
    pub(crate) struct FileLoggerKeys {
        /// The file. Without it that of the plugin's metadata.
        path: LogFile = FILE => optional;
        /// Conditions as in `vars` of a route: only requests for which they hold are logged.
        r#match: At<Expr> = Located(LateVars) => optional;
    }
}

logger_metadata!(FileLoggerMetadata {
    /// As `path` of the plugin.
    path: LogFile = FILE => optional;
});

/// A file, and the way to it.
#[derive(Debug, Clone)]
pub(crate) struct LogFile {
    path: Box<str>,
    outlet: Arc<Outlet>,
}

impl PartialEq for LogFile {
    fn eq(&self, other: &LogFile) -> bool {
        self.path == other.path
    }
}

const FILE: Text<LogFile> = text("the path of a file", |text| {
    if text.is_empty() || text.contains('\0') {
        return Err(Fault::new("no file has this path"));
    }
    let batching = Batching {
        entries_max: BATCH_ENTRIES,
        inactive_timeout: Duration::ZERO,
        buffer_duration: Duration::ZERO,
        retries_max: 0,
        retry_delay: Duration::ZERO,
        pending_bytes_max: PENDING_BYTES_MAX,
        pending_entries_max: usize::MAX,
    };
    // All who write to a file do so one behind the other.
    let identity = Identity::of(&[NAME.as_bytes(), text.as_bytes()]);
    let receiver = Receiver::File(FileReceiver { path: text.to_owned() });
    let outlet = Outlet::new((NAME, text.to_owned()), identity, batching, receiver, Box::new(Joined));
    Ok(LogFile { path: text.into(), outlet: Arc::new(outlet) })
});

/// The plugin.
pub(crate) struct FileLogger {
    logger: Logger,
    file: Option<LogFile>,
    condition: Option<Filter>,
}

impl Define for FileLogger {
    type Keys = FileLoggerKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 399;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: FileLoggerKeys, cx: &mut Compile<'_>) -> Option<FileLogger> {
        let logger = Logger::new(keys.contents(), cx)?;
        let condition = match keys.r#match {
            None => None,
            Some(condition) => Some(compiled(condition, "match", cx)?),
        };
        Some(FileLogger { logger, file: keys.path, condition })
    }
}

impl Metadata for FileLogger {
    type Metadata = FileLoggerMetadata;
}

impl Plugin for FileLogger {
    fn before_proxy(&self, request: &mut Request<'_>) -> Flow {
        self.logger.before_proxy(request);
        Flow::Continue
    }

    fn header_filter(&self, response: &mut Response<'_>) {
        self.logger.header_filter(response);
    }

    fn log(&self, response: &mut Response<'_>) {
        let holds = |condition: &Filter| condition.holds(&response.facts, response);
        if !self.condition.as_ref().is_none_or(holds) {
            return;
        }
        let metadata = response.metadata.get::<FileLoggerMetadata>(NAME);
        let shared = metadata.and_then(|metadata| metadata.path.as_ref());
        if let Some(file) = self.file.as_ref().or(shared) {
            let formats = of_metadata::<FileLoggerMetadata>(NAME, response);
            self.logger.log(formats, &file.outlet, response, |_, _, _| {}, b"\n");
        }
    }

    fn phases(&self) -> Phases {
        self.logger.phases()
    }
}
