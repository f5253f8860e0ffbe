//! The server names that nodes accept over TLS, to distinguish a failing name from a failing node.
//!
//! With `pass_host: pass` the name comes with the request, and a client may send any. A name that no node is known to accept
//! is unproved: the next node shows whether the name or the first node is at fault. If another node accepts it, the node is
//! at fault, unless it serves other names well. Only new connections look here; there is neither IO nor a clock.
//!
//! Names are remembered as requests send them, and not as the certificate's pattern: a node may refuse `a.test.example`
//! although its certificate for `*.test.example` covers it, and then a client could have every node blamed for it.

/// Names remembered of one upstream in one worker. A name is added only after a node has proved it, so clients without a
/// certificate to match cannot fill the list. Those who have one can: a name that was forgotten is unproved again.
pub const NAMES_MAX: usize = 64;

/// What a failed handshake with a name of a request means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameFault {
    /// No node is known to accept the name: another node shows whether the name or the node is to blame.
    Unproved,
    /// Another node accepts the name; this one does not, but it accepts other names.
    Pair,
    /// The node accepted the name before, or accepts none while others accept this one.
    Node,
}

/// The names that each node accepts.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The name accepted last is the last of the list.
    accepted: Vec<AcceptedName>,
    /// Nodes that have refused an unproved name and accepted none since then.
    doubted: Vec<Node>,
}

#[derive(Debug)]
struct AcceptedName {
    name: Box<str>,
    /// Never empty.
    nodes: Vec<Node>,
}

/// An endpoint's index and the generation of its slot, so that one endpoint is never taken for another.
pub(crate) type Node = (usize, u32);

impl Names {
    /// A handshake with the node has succeeded.
    pub(crate) fn accept(&mut self, node: Node, name: &str) {
        self.doubted.retain(|doubted| *doubted != node);
        match self.accepted.iter().position(|accepted| *accepted.name == *name) {
            Some(at) => self.accepted[at..].rotate_left(1),
            None => {
                if self.accepted.len() == NAMES_MAX {
                    self.accepted.remove(0);
                }
                self.accepted.push(AcceptedName { name: name.into(), nodes: Vec::new() });
            }
        }
        if let Some(accepted) = self.accepted.last_mut()
            && !accepted.nodes.contains(&node)
        {
            accepted.nodes.push(node);
        }
    }

    /// A handshake with the node has failed. A node that accepted the name before is no longer remembered for it.
    pub(crate) fn refuse(&mut self, node: Node, name: &str) -> NameFault {
        let Some(at) = self.accepted.iter().position(|accepted| *accepted.name == *name) else {
            if !self.doubted.contains(&node) {
                self.doubted.push(node);
            }
            return NameFault::Unproved;
        };
        let nodes = &mut self.accepted[at].nodes;
        if let Some(place) = nodes.iter().position(|accepted| *accepted == node) {
            nodes.swap_remove(place);
            if nodes.is_empty() {
                self.accepted.remove(at);
            }
            return NameFault::Node;
        }
        match self.accepted.iter().any(|accepted| accepted.nodes.contains(&node)) {
            true => NameFault::Pair,
            false => NameFault::Node,
        }
    }

    /// Indices of the nodes that have refused an unproved name and accepted none since then.
    pub(crate) fn doubted_indices(&self) -> impl Iterator<Item = usize> {
        self.doubted.iter().map(|(index, _)| *index)
    }

    /// Forgets the nodes that are no longer there.
    pub(crate) fn retain(&mut self, is_there: impl Fn(Node) -> bool) {
        self.doubted.retain(|node| is_there(*node));
        self.accepted.retain_mut(|accepted| {
            accepted.nodes.retain(|node| is_there(*node));
            !accepted.nodes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_node_accepts_is_unproved() {
        let mut names = Names::default();
        assert_eq!(names.refuse((0, 0), "evil.test"), NameFault::Unproved, "nothing is known");
        (0..3).for_each(|node| names.accept((node, 0), "a.test"));
        for node in 0..4 {
            assert_eq!(names.refuse((node, 0), "evil.test"), NameFault::Unproved);
        }
    }

    #[test]
    fn a_node_is_to_blame_for_a_name_that_worked() {
        let mut names = Names::default();
        (0..2).for_each(|node| names.accept((node, 0), "a.test"));
        assert_eq!(names.refuse((1, 0), "a.test"), NameFault::Node, "it accepted the name before");
        assert_eq!(
            names.refuse((1, 0), "a.test"),
            NameFault::Node,
            "it accepts no name, and another node accepts this one"
        );
        assert_eq!(names.refuse((2, 0), "a.test"), NameFault::Node, "it has accepted none");
        assert_eq!(names.refuse((0, 0), "a.test"), NameFault::Node);
        assert_eq!(names.refuse((0, 0), "a.test"), NameFault::Unproved, "no node is left that accepts it");
    }

    #[test]
    fn a_node_of_other_names_is_not_to_blame() {
        let mut names = Names::default();
        names.accept((0, 0), "a.test");
        names.accept((1, 0), "b.test");
        assert_eq!(names.refuse((1, 0), "a.test"), NameFault::Pair);
        assert_eq!(names.refuse((1, 0), "a.test"), NameFault::Pair);
        assert_eq!(names.refuse((1, 0), "b.test"), NameFault::Node);
    }

    #[test]
    fn the_names_accepted_last_are_remembered() {
        let mut names = Names::default();
        names.accept((7, 0), "used.test");
        for number in 0..2 * NAMES_MAX {
            names.accept((0, 0), &format!("{number}.test"));
            names.accept((7, 0), "used.test");
        }
        assert_eq!(names.accepted.len(), NAMES_MAX);
        assert_eq!(names.refuse((7, 0), "used.test"), NameFault::Node);
        assert_eq!(names.refuse((0, 0), "1.test"), NameFault::Unproved);
        assert_eq!(names.refuse((0, 0), &format!("{}.test", 2 * NAMES_MAX - 1)), NameFault::Node);
    }

    #[test]
    fn nodes_that_are_gone_are_forgotten() {
        let mut names = Names::default();
        names.accept((0, 0), "a.test");
        names.accept((1, 0), "a.test");
        names.accept((0, 0), "b.test");
        names.retain(|node| node == (1, 0));
        assert_eq!(names.refuse((0, 1), "b.test"), NameFault::Unproved);
        assert_eq!(names.refuse((0, 1), "a.test"), NameFault::Node);
        names.retain(|_| false);
        assert_eq!(names.refuse((1, 0), "a.test"), NameFault::Unproved);
    }

    /// More names than are remembered, all served by both nodes, until one breaks: it is to blame before long.
    #[test]
    fn names_beyond_the_bound_do_not_hide_a_node_that_breaks() {
        let mut names = Names::default();
        let served: Vec<String> = (0..2 * NAMES_MAX).map(|number| format!("{number}.test")).collect();
        for name in &served {
            (0..2).for_each(|node| names.accept((node, 0), name));
        }
        let mut faults = served.iter().map(|name| {
            assert_eq!(names.refuse((1, 0), name), NameFault::Unproved, "{name} was forgotten");
            names.accept((0, 0), name);
            names.refuse((1, 0), name)
        });
        assert!(faults.by_ref().take(NAMES_MAX - 1).all(|fault| fault == NameFault::Pair));
        assert!(faults.all(|fault| fault == NameFault::Node), "nothing that it accepted is remembered");
    }

    #[test]
    fn a_node_is_doubted_until_it_accepts_a_name() {
        let mut names = Names::default();
        let doubted = |names: &Names| names.doubted_indices().collect::<Vec<_>>();
        for name in ["evil.test", "worse.test"] {
            names.refuse((0, 0), name);
            names.refuse((1, 0), name);
        }
        assert_eq!(doubted(&names), [0, 1]);
        names.accept((0, 0), "a.test");
        names.refuse((1, 0), "a.test");
        names.refuse((2, 0), "a.test");
        assert_eq!(doubted(&names), [1], "a proved name shows more than a doubt");
        names.retain(|_| false);
        assert_eq!(doubted(&names), [0; 0]);
    }
}
