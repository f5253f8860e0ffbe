//! A function's view of its request. The gateway implements it; the crate has no request of its own.
//!
//! An operation that is not possible in a phase fails with a message for the author of the function. The defaults are
//! those of a phase in which nothing of that kind exists.

use serde_json::Value as Json;
use std::time::Duration;

/// The message whose head is read or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageSide {
    /// The request.
    Request,
    /// The response.
    Response,
}

/// A change of a header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderChange<'a> {
    /// Replace all lines of the name.
    Set(&'a [u8]),
    /// Add a line.
    Add(&'a [u8]),
    /// Remove all lines of the name.
    Remove,
}

/// Documents of a request as JSON: a resource as it is written, or claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestDocument {
    /// The matched route.
    Route,
    /// Its service.
    Service,
    /// The claims of the token that admitted the request.
    Claims,
}

/// nginx's log levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NginxLevel {
    /// `ngx.ERR` and above.
    Error,
    /// `ngx.WARN`
    Warn,
    /// `ngx.NOTICE`
    Notice,
    /// `ngx.INFO`
    Info,
    /// `ngx.DEBUG`
    Debug,
}

/// The request that a function runs for.
pub trait Host {
    /// APISIX's name of the phase.
    fn phase(&self) -> &'static str;

    /// The reason why there is no request here, and what to do; `None`: there is one.
    fn no_request_reason(&self) -> Option<&'static str> {
        None
    }

    /// Appends the value of a variable; `false`: it has none.
    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String>;

    /// Sets a variable that changes the request; `false`: it does not, and its value is for functions only.
    fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<bool, String>;

    /// Calls `visit` with the value of each line of a header field.
    fn field(&self, side: MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        self.each_field(side, &mut |of, value| {
            if of.eq_ignore_ascii_case(name) {
                visit(value);
            }
        });
    }

    /// Calls `visit` with name and value of each header line.
    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8]));

    /// Changes a header.
    fn change_field(&mut self, side: MessageSide, name: &[u8], change: HeaderChange<'_>) -> Result<(), String>;

    /// The status of the response; `None`: there is no response yet.
    fn status(&self) -> Option<u16> {
        None
    }

    /// Sets the status of an existing response.
    fn set_status(&mut self, _status: u16) -> Result<(), String> {
        Err(format!("the status cannot be changed in the phase {}", self.phase()))
    }

    /// Sets the method of the request.
    fn set_method(&mut self, _method: &[u8]) -> Result<(), String> {
        Err(format!("the request cannot be changed in the phase {}", self.phase()))
    }

    /// Path and query as the upstream will receive them.
    fn target(&self) -> &[u8];

    /// Appends the path that the upstream will receive, without the query, if it was rewritten; `false`: it was not.
    fn rewritten_path(&self, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Sets path and query.
    fn set_target(&mut self, _target: &[u8]) -> Result<(), String> {
        Err(format!("the request cannot be changed in the phase {}", self.phase()))
    }

    /// The whole body of the request; `None`: it has not arrived yet, and can be waited for.
    fn body(&self) -> Result<Option<&[u8]>, String> {
        Err(format!("the body cannot be read in the phase {}", self.phase()))
    }

    /// Replaces the body of the request.
    fn set_body(&mut self, _body: &[u8]) -> Result<(), String> {
        Err(format!("the request cannot be changed in the phase {}", self.phase()))
    }

    /// In `body_filter`, the piece of the response's body, and whether it is the last.
    fn piece(&self) -> Option<(&[u8], bool)> {
        None
    }

    /// In `body_filter`, replaces the piece.
    fn set_piece(&mut self, _piece: &[u8]) -> Result<(), String> {
        Err("ngx.arg exists in the phase body_filter only".to_owned())
    }

    /// In `body_filter`, makes the piece the last one: later ones are dropped.
    fn end_body(&mut self) -> Result<(), String> {
        Err("ngx.arg exists in the phase body_filter only".to_owned())
    }

    /// Schedules a function to run later, outside of the request; returns the number for [`crate::run_timer`]; `None`:
    /// too many are waiting already.
    fn start_timer(&mut self, _delay: Duration) -> Result<Option<u64>, String> {
        Err("ngx.timer is not supported; docs/lua.md lists what is".to_owned())
    }

    /// Whether a function can wait in this phase.
    fn can_wait(&self) -> bool {
        false
    }

    /// Whether a function can answer in this phase.
    fn can_answer(&self) -> bool {
        false
    }

    /// Whether messages of a level are logged.
    fn is_logged(&self, level: NginxLevel) -> bool;

    /// Logs a message.
    fn log(&self, level: NginxLevel, text: &str);

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// The path pattern that has matched.
    fn matched_path(&mut self) -> Option<&str> {
        None
    }

    /// The consumer that a plugin has authenticated.
    fn consumer(&self) -> Option<Json> {
        None
    }

    /// A document of the request.
    fn document(&self, _of: RequestDocument) -> Option<&Json> {
        None
    }

    /// The metadata of a plugin, and a version number that changes with it; `None`: it has none.
    fn metadata(&self, _plugin: &str) -> Result<Option<(u64, &Json)>, String> {
        Err(match self.no_request_reason() {
            Some(why) => why.to_owned(),
            None => format!("apisix.plugin.plugin_metadata does not exist in the phase {}", self.phase()),
        })
    }

    /// Validates a value against a JSON Schema, and returns it with the defaults of the schema.
    fn check_schema(&self, _schema: &Json, _value: Json) -> Result<Json, String> {
        Err("core.schema.check is not supported here".to_owned())
    }
}
