//! What an import loses or changes, gathered while the file is read.
//!
//! A loss has a place and a sentence. It never has a value of the file: values may be secrets.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;
use stillgate_yaml::Position;

/// One thing that the result does not do, or does in another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// How much it matters.
    pub severity: Severity,
    /// The place in the imported file, such as `services.shop.routes.orders.plugins.rate-limiting.minute`.
    pub path: String,
    /// Its line and column.
    pub at: Position,
    /// What is lost, and what to do.
    pub message: String,
}

/// How much a loss matters. The first ones are reported first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Requests that were admitted are refused, because what guards them cannot be imported.
    Closed,
    /// Something is missing or different.
    Changed,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.at.line, self.at.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Gathers losses. Clones share one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses {
    list: Rc<RefCell<Vec<Loss>>>,
    /// How many values could not be read.
    unreadable: Rc<Cell<usize>>,
}

impl Losses {
    /// Records a loss.
    pub(crate) fn changed(&self, path: impl Into<String>, at: Position, message: impl Into<String>) {
        self.push(Severity::Changed, path.into(), at, message.into());
    }

    /// Records that requests are refused from now on.
    pub(crate) fn closed(&self, path: impl Into<String>, at: Position, message: impl Into<String>) {
        self.push(Severity::Closed, path.into(), at, message.into());
    }

    /// Records a value that is there and cannot be read, so that it counts as absent.
    pub(crate) fn unreadable(&self, path: impl Into<String>, at: Position, message: impl Into<String>) {
        self.unreadable.set(self.unreadable.get() + 1);
        self.changed(path, at, message);
    }

    /// Runs `read`; also returns whether some value that it asked for could not be read.
    ///
    /// An absent value has a default, which may admit more than the file does. So whatever keeps requests out is read
    /// in here, and closed if something of it is missing.
    pub(crate) fn watch<T>(&self, read: impl FnOnce() -> T) -> (T, bool) {
        let before = self.unreadable.get();
        let value = read();
        (value, self.unreadable.get() > before)
    }

    fn push(&self, severity: Severity, path: String, at: Position, message: String) {
        self.list.borrow_mut().push(Loss { severity, path, at, message });
    }

    /// All losses, the gravest first, then in the order of the file, each once.
    pub(crate) fn sorted(&self) -> Vec<Loss> {
        let mut all = self.list.take();
        all.sort_by(|a, b| (a.severity, a.at, &a.path).cmp(&(b.severity, b.at, &b.path)));
        let mut seen = HashSet::new();
        all.retain(|loss| seen.insert((loss.at.line, loss.at.column, loss.path.clone(), loss.message.clone())));
        all
    }
}
