//! A request without a connection, as functions in Lua see it. Their changes are visible to them, and go nowhere else.

use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_lua::{HeaderChange, Host, MessageSide, NginxLevel};
use stillgate_plugins::check_json;
use stillgate_replay::explain::request_head::{Buffers, RequestHead};
use stillgate_route::Variable;

/// The body of the response.
const BODY: &[u8] = b"{\"message\":\"hello\"}\n";

thread_local! {
    /// Names of variables, parsed once, as the gateway does it.
    static PARSED: RefCell<HashMap<String, Option<Rc<Variable>>>> = RefCell::default();
}

/// One run's request.
pub(super) struct ReplayedRequest<'a> {
    head: &'a RequestHead,
    phase: &'static str,
    target: Option<Vec<u8>>,
    /// `None`: as it came.
    request: Option<Vec<Field>>,
    response: Vec<Field>,
    /// The current piece of the response's body.
    piece: Vec<u8>,
}

type Field = (Vec<u8>, Vec<u8>);

impl<'a> ReplayedRequest<'a> {
    pub(super) fn new(head: &'a RequestHead, phase: &'static str) -> ReplayedRequest<'a> {
        ReplayedRequest { head, phase, target: None, request: None, response: Vec::new(), piece: BODY.to_vec() }
    }

    fn is_behind_head(&self) -> bool {
        matches!(self.phase, "header_filter" | "body_filter" | "log")
    }
}

fn parsed(name: &str) -> Option<Rc<Variable>> {
    PARSED.with_borrow_mut(|parsed| match parsed.get(name) {
        Some(known) => known.clone(),
        None => {
            let variable = Variable::parse(name).ok().map(Rc::new);
            parsed.insert(name.to_owned(), variable.clone());
            variable
        }
    })
}

impl Host for ReplayedRequest<'_> {
    fn phase(&self) -> &'static str {
        self.phase
    }

    fn variable(&self, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        if name == "upstream_uri" {
            out.extend_from_slice(self.target());
            return Ok(true);
        }
        let Some(variable) = parsed(name) else { return Ok(false) };
        let (mut buffers, mut buffer) = (Buffers::default(), Vec::new());
        let found = self.head.with_request(&mut buffers, |request| {
            let value = request.vars.value(&variable, &mut buffer);
            value.map(|value| out.extend_from_slice(value)).is_some()
        });
        found.map_err(|error| format!("{error:?}"))
    }

    fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<bool, String> {
        if name == "upstream_uri" {
            self.target = Some(value.to_vec());
        }
        Ok(matches!(name, "upstream_uri" | "upstream_host" | "args"))
    }

    fn field(&self, side: MessageSide, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        self.each_field(side, &mut |of, value| {
            if of.eq_ignore_ascii_case(name) {
                visit(value);
            }
        });
    }

    fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        match (side, &self.request) {
            (MessageSide::Response, _) => self.response.iter().for_each(|(name, value)| visit(name, value)),
            (MessageSide::Request, Some(fields)) => fields.iter().for_each(|(name, value)| visit(name, value)),
            (MessageSide::Request, None) => {
                visit(b"Host", self.head.authority.as_bytes());
                self.head.headers.iter().for_each(|(name, value)| visit(name.as_bytes(), value.as_bytes()));
            }
        }
    }

    fn change_field(&mut self, side: MessageSide, name: &[u8], change: HeaderChange<'_>) -> Result<(), String> {
        let mut fields = Vec::new();
        self.each_field(side, &mut |of, value| fields.push((of.to_vec(), value.to_vec())));
        if !matches!(change, HeaderChange::Add(_)) {
            fields.retain(|(of, _)| !of.eq_ignore_ascii_case(name));
        }
        if let HeaderChange::Set(value) | HeaderChange::Add(value) = change {
            fields.push((name.to_vec(), value.to_vec()));
        }
        match side {
            MessageSide::Request => self.request = Some(fields),
            MessageSide::Response => self.response = fields,
        }
        Ok(())
    }

    fn set_method(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn target(&self) -> &[u8] {
        self.target.as_deref().unwrap_or(self.head.target.as_bytes())
    }

    fn set_target(&mut self, target: &[u8]) -> Result<(), String> {
        self.target = Some(target.to_vec());
        Ok(())
    }

    fn body(&self) -> Result<Option<&[u8]>, String> {
        Ok(Some(b""))
    }

    fn set_body(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn status(&self) -> Option<u16> {
        self.is_behind_head().then_some(200)
    }

    fn set_status(&mut self, _: u16) -> Result<(), String> {
        Ok(())
    }

    fn piece(&self) -> Option<(&[u8], bool)> {
        (self.phase == "body_filter").then_some((&self.piece, true))
    }

    fn set_piece(&mut self, piece: &[u8]) -> Result<(), String> {
        self.piece = piece.to_vec();
        Ok(())
    }

    /// It is the last already.
    fn end_body(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn rewritten_path(&self, out: &mut Vec<u8>) -> bool {
        let path = self.target.as_ref().and_then(|target| target.split(|byte| *byte == b'?').next());
        path.map(|path| out.extend_from_slice(path)).is_some()
    }

    /// None runs here.
    fn start_timer(&mut self, _: Duration) -> Result<Option<u64>, String> {
        Ok(None)
    }

    fn can_wait(&self) -> bool {
        matches!(self.phase, "rewrite" | "access")
    }

    fn can_answer(&self) -> bool {
        !self.is_behind_head()
    }

    fn check_schema(&self, schema: &Json, value: Json) -> Result<Json, String> {
        check_json(schema, value)
    }

    fn is_logged(&self, _: NginxLevel) -> bool {
        false
    }

    fn log(&self, _: NginxLevel, _: &str) {}

    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
