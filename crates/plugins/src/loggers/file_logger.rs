//! `file-logger`: appends entries to a file, one a line.
//!
//! Entries are written as soon as they come, by a separate thread. A file that was moved away is created again.

use super::coded::BodyDecoding;
use super::keys::{PENDING_ENTRIES_MAX, logger_keys, logger_metadata};
use super::logger::{Concatenation, Logger, PHASES, compiled, of_metadata};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::metadata::MetadataTable;
use stillgate_plugin_api::outbox::{BatchPolicy, FileReceiver, Outlet, PENDING_BYTES_MAX, Receiver};
use stillgate_plugin_api::{Compile, Define, Filter, Flow, Identity, Metadata, Phases, Plugin, Request, Response};
use stillgate_route::vars::Expr;
use stillgate_schema::kind::list;
use stillgate_schema::{
    At, Definitions, Fault, Json, Kind, LateVars, LocatedKind, Node, Path, Sink, Text, Value, text,
};

const NAME: &str = "file-logger";

/// Most entries that are written at once.
const BATCH_ENTRIES: usize = 1000;

logger_keys! {
    /// Appends entries to a file.
    pub(crate) struct FileLoggerKeys {
        /// The file; the default is that of the plugin's metadata.
        path: LogFile = FILE => optional;
        /// Lists of conditions as in `vars` of a route: a request is logged if all conditions of one list hold.
        r#match: Vec<At<Expr>> = Cases => optional;
    }
}

logger_metadata!(FileLoggerMetadata {
    /// Default of the plugin's `path`.
    path: LogFile = FILE => optional;
});

/// Lists of conditions; a single list is also accepted.
pub(crate) struct Cases;

impl Kind for Cases {
    type Out = Vec<At<Expr>>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<At<Expr>>> {
        // A list of conditions begins with a condition, or with the word that joins them.
        let is_several = |item: &Node| match &item.value {
            Value::List(conditions) => conditions.first().is_some_and(|first| match &first.value {
                Value::List(_) => true,
                Value::Scalar(word) => ["OR", "AND", "!OR", "!AND"].iter().any(|of| word.text.eq_ignore_ascii_case(of)),
                _ => false,
            }),
            _ => false,
        };
        match &node.value {
            Value::List(items) if items.iter().all(is_several) => list(LocatedKind(LateVars)).read(node, path, sink),
            _ => Some(vec![LocatedKind(LateVars).read(node, path, sink)?]),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        list(LateVars).schema(definitions)
    }
}

/// A file, and its outlet.
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
        return Err(Fault::new("this is not a path of a file"));
    }
    let batching = BatchPolicy {
        entries_max: BATCH_ENTRIES,
        inactive_timeout: Duration::ZERO,
        buffer_duration: Duration::ZERO,
        retries_max: 0,
        retry_delay: Duration::ZERO,
        pending_bytes_max: PENDING_BYTES_MAX,
        pending_entries_max: PENDING_ENTRIES_MAX,
    };
    // All configurations that write to one file share an identity, so that their entries are serialised.
    let identity = Identity::of(&[NAME.as_bytes(), text.as_bytes()]);
    let receiver = Receiver::File(FileReceiver { path: text.to_owned() });
    let outlet =
        Outlet::new((NAME, text.to_owned()), identity, batching, receiver, Box::new(BodyDecoding(Concatenation)));
    Ok(LogFile { path: text.into(), outlet: Arc::new(outlet) })
});

/// The plugin.
pub(crate) struct FileLogger {
    logger: Logger,
    file: Option<LogFile>,
    /// Conditions, of which one must hold; empty: every request is logged.
    cases: Box<[Filter]>,
}

impl Define for FileLogger {
    type Keys = FileLoggerKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 399;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: FileLoggerKeys, cx: &mut Compile<'_>) -> Option<FileLogger> {
        let logger = Logger::new(keys.contents(), cx)?;
        let mut cases = Vec::new();
        for case in keys.r#match.unwrap_or_default() {
            cases.push(compiled(case, "match", cx)?);
        }
        Some(FileLogger { logger, file: keys.path, cases: cases.into() })
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
        let holds = |case: &Filter| case.holds(&response.facts, response);
        if !self.cases.is_empty() && !self.cases.iter().any(holds) {
            return;
        }
        let metadata = response.metadata.get::<FileLoggerMetadata>(NAME);
        let shared = metadata.and_then(|metadata| metadata.path.as_ref());
        if let Some(file) = self.file.as_ref().or(shared) {
            let formats = of_metadata::<FileLoggerMetadata>(NAME, response);
            self.logger.log(formats, &file.outlet, response, |_, _, _| {}, b"\n");
        }
    }

    fn lacks(&self, metadata: &MetadataTable) -> Option<&'static str> {
        let shared = metadata.get::<FileLoggerMetadata>(NAME).and_then(|metadata| metadata.path.as_ref());
        let has_path = self.file.is_some() || shared.is_some();
        (!has_path).then_some("property \"path\" is not set in either the plugin conf or the metadata")
    }

    fn phases(&self) -> Phases {
        self.logger.phases()
    }
}
