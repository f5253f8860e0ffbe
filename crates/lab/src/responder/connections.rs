//! All open connections, each in its own slot, with tokens that do not outlive them.

use super::connection::Connection;

/// Names a connection: its slot, and a number that counts the slot's tenants. An event or an answer for an ended
/// connection finds none, even if the slot is in use again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    place: u32,
    tenancy: u32,
}

impl Token {
    /// As data of an epoll event.
    pub(super) fn to_u64(self) -> u64 {
        (u64::from(self.tenancy) << 32) | u64::from(self.place)
    }

    /// The inverse.
    pub(super) fn from_u64(data: u64) -> Token {
        Token { place: data as u32, tenancy: (data >> 32) as u32 }
    }
}

/// The largest tenancy: all numbers above are free for other events.
const TENANCY_MAX: u32 = u32::MAX / 2;

#[derive(Debug, Default)]
struct Slot {
    tenancy: u32,
    connection: Option<Connection>,
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    places: Vec<Slot>,
    free: Vec<u32>,
}

impl Connections {
    /// The number of open connections.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// A token for the next one.
    pub(super) fn vacancy(&mut self) -> Token {
        let place = self.free.last().copied().unwrap_or_else(|| {
            self.places.push(Slot::default());
            self.free.push(self.places.len() as u32 - 1);
            self.places.len() as u32 - 1
        });
        Token { place, tenancy: self.places[place as usize].tenancy }
    }

    /// Opens a connection under the token of the last [`Connections::vacancy`].
    pub(super) fn insert(&mut self, token: Token, connection: Connection) {
        debug_assert_eq!(self.free.last(), Some(&token.place));
        self.free.pop();
        self.places[token.place as usize].connection = Some(connection);
    }

    /// An open connection.
    pub(super) fn get(&mut self, token: Token) -> Option<&mut Connection> {
        let place = self.places.get_mut(token.place as usize)?;
        place.connection.as_mut().filter(|_| place.tenancy == token.tenancy)
    }

    /// Closes a connection; its socket leaves epoll with its descriptor.
    pub(super) fn close(&mut self, token: Token) {
        if self.get(token).is_some() {
            let place = &mut self.places[token.place as usize];
            place.connection = None;
            place.tenancy = (place.tenancy + 1) % TENANCY_MAX;
            self.free.push(token.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn open(connections: &mut Connections) -> Token {
        let token = connections.vacancy();
        connections.insert(token, Connection::new(OwnedFd::from(UnixStream::pair().unwrap().0)));
        token
    }

    #[test]
    fn a_token_never_finds_another_connection() {
        let mut connections = Connections::default();
        let (first, second) = (open(&mut connections), open(&mut connections));
        assert_ne!(first, second);
        connections.close(first);
        connections.close(first);
        assert_eq!(connections.len(), 1);
        let third = open(&mut connections);
        assert_eq!(third.place, first.place);
        assert!(connections.get(first).is_none() && connections.get(third).is_some());
        assert_eq!(Token::from_u64(third.to_u64()), third);
        assert!(connections.get(Token::from_u64(u64::MAX)).is_none());
    }
}
