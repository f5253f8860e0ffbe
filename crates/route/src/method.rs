//! Request methods as routes name them: a closed set that fits a bit mask.
//!
//! Other methods can still be routed, by routes that name none.

use std::fmt;
use stillgate_wire::Method;

/// Parses a method of a configuration.
pub fn parse_method(name: &str) -> Result<Method, MethodError> {
    match Method::from_bytes(name.as_bytes()) {
        Method::Other => Err(MethodError { name: name.to_owned() }),
        method => Ok(method),
    }
}

fn bit(method: Method) -> u16 {
    match method {
        Method::Other => 0,
        method => 1 << method as u16,
    }
}

/// A name that is not one of the methods that routes can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodError {
    /// The text as written.
    pub name: String,
}

impl fmt::Display for MethodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upper = self.name.to_ascii_uppercase();
        if Method::from_bytes(upper.as_bytes()) != Method::Other {
            return write!(f, "\"{}\": methods are upper case; write \"{upper}\"", self.name);
        }
        write!(f, "\"{}\": unknown method; write one of ", self.name)?;
        for (index, (_, name)) in Method::NAMED.iter().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for MethodError {}

/// A set of methods. As the condition of a route the empty set means any method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct MethodSet(u16);

impl MethodSet {
    /// Adds a method; [`Method::Other`] adds nothing.
    pub fn insert(&mut self, method: Method) {
        self.0 |= bit(method);
    }

    /// Whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The method, where there is exactly one.
    pub fn only(self) -> Option<Method> {
        let mut named = Method::NAMED.iter().filter(|(method, _)| self.0 & bit(*method) != 0);
        let (only, _) = named.next()?;
        named.next().is_none().then_some(*only)
    }

    /// Whether a route with this set takes the method: it is in it, or the set is empty.
    pub fn admits(self, method: Method) -> bool {
        self.0 == 0 || self.0 & bit(method) != 0
    }

    /// Whether a route with the other set takes all methods that one with this set takes.
    pub(crate) fn is_subset(self, other: MethodSet) -> bool {
        other.0 == 0 || self.0 != 0 && self.0 & !other.0 == 0
    }

    /// Whether no method is taken by both.
    pub(crate) fn is_disjoint(self, other: MethodSet) -> bool {
        self.0 != 0 && other.0 != 0 && self.0 & other.0 == 0
    }
}

impl FromIterator<Method> for MethodSet {
    fn from_iter<I: IntoIterator<Item = Method>>(methods: I) -> MethodSet {
        let mut set = MethodSet::default();
        methods.into_iter().for_each(|method| set.insert(method));
        set
    }
}

impl fmt::Display for MethodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Method::NAMED.iter().filter(|(method, _)| self.0 & bit(*method) != 0);
        for (index, (_, name)) in names.enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_own_bit_and_parses_to_itself() {
        for (method, name) in Method::NAMED {
            assert_eq!(parse_method(name), Ok(method));
            let set = MethodSet::from_iter([method]);
            assert_eq!(set.to_string(), name);
            for (other, _) in Method::NAMED {
                assert_eq!(set.admits(other), other == method);
            }
            assert!(!set.admits(Method::Other));
        }
    }

    #[test]
    fn the_empty_set_admits_what_has_no_name() {
        assert!(MethodSet::default().admits(Method::Other));
        assert!(MethodSet::default().admits(Method::Get));
    }

    #[test]
    fn errors_say_what_to_write() {
        let check = |name: &str, message: &str| {
            assert_eq!(parse_method(name).unwrap_err().to_string(), message);
        };
        check("get", "\"get\": methods are upper case; write \"GET\"");
        check(
            "BREW",
            "\"BREW\": unknown method; write one of GET, POST, PUT, DELETE, PATCH, HEAD, OPTIONS, CONNECT, TRACE, PURGE",
        );
    }
}
