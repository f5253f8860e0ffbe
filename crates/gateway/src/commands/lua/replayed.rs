//! A request without a connection, as functions in Lua see it. What they change of it is there for them, and goes nowhere.

use crate::explaining::request_head::{Buffers, RequestHead};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_lua::{Change, Host, Level, Side};
use stillgate_route::Variable;

thread_local! {
    /// Names of variables, parsed once, as the gateway does it.
    static PARSED: RefCell<HashMap<String, Option<Rc<Variable>>>> = RefCell::default();
}

/// One run's request.
pub(super) struct Replayed<'a> {
    head: &'a RequestHead,
    target: Option<Vec<u8>>,
    /// `None`: as it came.
    request: Option<Vec<Field>>,
    response: Vec<Field>,
}

type Field = (Vec<u8>, Vec<u8>);

impl<'a> Replayed<'a> {
    pub(super) fn new(head: &'a RequestHead) -> Replayed<'a> {
        Replayed { head, target: None, request: None, response: Vec::new() }
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

impl Host for Replayed<'_> {
    fn phase(&self) -> &'static str {
        "access"
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

    fn field(&self, side: Side, name: &[u8], visit: &mut dyn FnMut(&[u8])) {
        self.each_field(side, &mut |of, value| {
            if of.eq_ignore_ascii_case(name) {
                visit(value);
            }
        });
    }

    fn each_field(&self, side: Side, visit: &mut dyn FnMut(&[u8], &[u8])) {
        match (side, &self.request) {
            (Side::Response, _) => self.response.iter().for_each(|(name, value)| visit(name, value)),
            (Side::Request, Some(fields)) => fields.iter().for_each(|(name, value)| visit(name, value)),
            (Side::Request, None) => {
                visit(b"Host", self.head.authority.as_bytes());
                self.head.headers.iter().for_each(|(name, value)| visit(name.as_bytes(), value.as_bytes()));
            }
        }
    }

    fn change_field(&mut self, side: Side, name: &[u8], change: Change<'_>) -> Result<(), String> {
        let mut fields = Vec::new();
        self.each_field(side, &mut |of, value| fields.push((of.to_vec(), value.to_vec())));
        if !matches!(change, Change::Add(_)) {
            fields.retain(|(of, _)| !of.eq_ignore_ascii_case(name));
        }
        if let Change::Set(value) | Change::Add(value) = change {
            fields.push((name.to_vec(), value.to_vec()));
        }
        match side {
            Side::Request => self.request = Some(fields),
            Side::Response => self.response = fields,
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

    fn can_wait(&self) -> bool {
        true
    }

    fn can_answer(&self) -> bool {
        true
    }

    fn is_logged(&self, _: Level) -> bool {
        false
    }

    fn log(&self, _: Level, _: &str) {}

    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
