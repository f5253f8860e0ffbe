//! The only bridge from Lua to the gateway: a C function that the prelude calls by `ffi`.
//!
//! LuaJIT compiles calls of `ffi` into its traces, where callbacks of `mlua` end them. Arguments and results are
//! numbers and bytes; the function never calls Lua, so the memory that it borrows does not move. User code cannot reach
//! it: the prelude keeps it in locals, and `debug` is not available.

use crate::host::{Host, MessageSide, NginxLevel};
use crate::operations::{self, Operation, PublicKeys};
use crate::pattern;
use crate::regexes::Regexes;
use serde_json::Value as Json;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;

/// A buffer that has become larger than this is freed after a run.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// The layout of a reply in C; the prelude declares the same.
#[repr(C)]
pub(crate) struct ReplyLayout {
    at: *const u8,
    length: usize,
    number: f64,
    /// User flags of a value in a shared dictionary; zero: none.
    flags: u32,
}

/// The result of an operation. Texts and spans are in the bridge's buffers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OperationResult {
    Nil,
    Text,
    Number(f64),
    True,
    False,
    /// Pairs of positions in the searched text.
    Spans,
    /// An error, whose text is in the buffer.
    Error,
}

/// The state of one VM's bridge.
#[derive(Default)]
pub(crate) struct Bridge {
    host: Cell<Option<NonNull<dyn Host>>>,
    buffers: RefCell<Buffers>,
}

/// Buffers for replies, and compiled patterns.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) out: Vec<u8>,
    /// See [`ReplyLayout::flags`].
    pub(crate) flags: u32,
    /// Pairs of positions; -1: no match.
    pub(crate) positions: Vec<i32>,
    pub(crate) spans: Vec<pattern::Span>,
    pub(crate) groups: Vec<Option<pattern::Span>>,
    pub(crate) regexes: Regexes,
    pub(crate) keys: PublicKeys,
}

/// Removes the host when a run is over.
struct HostGuard<'a>(&'a Bridge);

impl Drop for HostGuard<'_> {
    fn drop(&mut self) {
        self.0.host.set(None);
    }
}

impl Bridge {
    /// Runs `run` with a host that Lua can call.
    #[inline]
    pub(crate) fn run_with_host<R>(&self, host: &mut dyn Host, run: impl FnOnce() -> R) -> R {
        // SAFETY: only the lifetime is erased. The pointer is used by `serve` while `run` runs, which borrows `host`
        // for itself all the while, and `HostGuard` removes it before this function returns.
        let host: NonNull<dyn Host> =
            unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host + 'static>>(NonNull::from(host)) };
        self.host.set(Some(host));
        let _lent = HostGuard(self);
        run()
    }

    /// Frees large buffers.
    #[inline]
    pub(crate) fn trim(&self) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.out.capacity() > KEPT_BYTES_MAX {
            buffers.out = Vec::new();
        }
    }

    /// Calls the host of the run, or a placeholder without a request if there is none.
    pub(crate) fn with_host<R>(&self, then: impl FnOnce(&mut dyn Host) -> R) -> R {
        // Taken while it is used, so that there is never a second reference.
        let taken = self.host.take();
        let mut none = NoRequest { check_schema: None, why: WHILE_LOADING };
        let host: &mut dyn Host = match taken {
            // SAFETY: see `run_with_host`.
            Some(mut host) => unsafe { host.as_mut() },
            None => &mut none,
        };
        let result = then(host);
        self.host.set(taken);
        result
    }

    fn serve(&self, operation: i32, a: &[u8], b: &[u8], number: f64, reply: &mut ReplyLayout) -> OperationResult {
        let mut buffers = self.buffers.borrow_mut();
        let buffers = &mut *buffers;
        buffers.out.clear();
        buffers.flags = 0;
        let given = match usize::try_from(operation).ok().and_then(|at| Operation::ALL.get(at)) {
            Some(operation) => self.with_host(|host| operations::perform(*operation, host, (a, b, number), buffers)),
            None => OperationResult::Nil,
        };
        match given {
            OperationResult::Text | OperationResult::Error => {
                (reply.at, reply.length) = (buffers.out.as_ptr(), buffers.out.len())
            }
            OperationResult::Spans => {
                (reply.at, reply.length) = (buffers.positions.as_ptr().cast(), buffers.positions.len() / 2);
            }
            OperationResult::Number(number) => reply.number = number,
            OperationResult::Nil | OperationResult::True | OperationResult::False => {}
        }
        reply.flags = buffers.flags;
        given
    }
}

/// The type of [`call`], in C.
pub(crate) const DECLARATIONS: &str = "typedef struct { const char *at; size_t length; double number; uint32_t flags; } stillgate_reply;
typedef int (*stillgate_call)(const void *, int, const char *, size_t, const char *, size_t, double, stillgate_reply *);";

/// The function that Lua calls; returns the type of the reply.
pub(crate) extern "C" fn call(
    bridge: *const Bridge,
    operation: i32,
    a: *const u8,
    a_length: usize,
    b: *const u8,
    b_length: usize,
    number: f64,
    reply: *mut ReplyLayout,
) -> i32 {
    // SAFETY: only the prelude calls, with the address of its VM's bridge, with Lua's strings (never null, alive during
    // the call) and their lengths, and with a reply of its own.
    let (bridge, a, b, reply) =
        unsafe { (&*bridge, slice::from_raw_parts(a, a_length), slice::from_raw_parts(b, b_length), &mut *reply) };
    // A panic must not unwind through LuaJIT's frames.
    let given = catch_unwind(AssertUnwindSafe(|| bridge.serve(operation, a, b, number, reply)));
    match given.unwrap_or_else(|_| report_bug(reply)) {
        OperationResult::Nil => 0,
        OperationResult::Text => 1,
        OperationResult::Number(_) => 2,
        OperationResult::True => 3,
        OperationResult::Spans => 4,
        OperationResult::Error => 5,
        OperationResult::False => 6,
    }
}

#[cold]
fn report_bug(reply: &mut ReplyLayout) -> OperationResult {
    const TEXT: &[u8] = b"the gateway has failed here; this is a bug of it";
    (reply.at, reply.length) = (TEXT.as_ptr(), TEXT.len());
    OperationResult::Error
}

/// Validates a value against a JSON Schema, and returns it with the defaults of the schema.
pub type CheckSchema = fn(&Json, Json) -> Result<Json, String>;

/// The host while a text is loaded, and on a thread of `ngx.run_worker_thread`: there is no request.
pub(crate) struct NoRequest {
    pub(crate) check_schema: Option<CheckSchema>,
    /// The reason, and what to do instead.
    pub(crate) why: &'static str,
}

pub(crate) const WHILE_LOADING: &str = "there is no request while the configuration is loaded; do it in the function";
pub(crate) const ON_A_THREAD: &str = "there is no request on this thread; give it what it needs as arguments";

impl Host for NoRequest {
    fn phase(&self) -> &'static str {
        "init"
    }

    fn no_request_reason(&self) -> Option<&'static str> {
        Some(self.why)
    }

    fn variable(&self, _: &str, _: &mut Vec<u8>) -> Result<bool, String> {
        Err(self.why.to_owned())
    }

    fn set_variable(&mut self, _: &str, _: &[u8]) -> Result<bool, String> {
        Err(self.why.to_owned())
    }

    fn field(&self, _: MessageSide, _: &[u8], _: &mut dyn FnMut(&[u8])) {}

    fn each_field(&self, _: MessageSide, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn change_field(&mut self, _: MessageSide, _: &[u8], _: crate::host::HeaderChange<'_>) -> Result<(), String> {
        Err(self.why.to_owned())
    }

    fn target(&self) -> &[u8] {
        b"/"
    }

    fn is_logged(&self, _: NginxLevel) -> bool {
        false
    }

    fn log(&self, _: NginxLevel, _: &str) {}

    fn check_schema(&self, schema: &Json, value: Json) -> Result<Json, String> {
        match self.check_schema {
            Some(check) => check(schema, value),
            None => Err(self.why.to_owned()),
        }
    }
}
