//! The server names that nodes accept over TLS, so that a name which fails can be told from a node which fails.
//!
//! With `pass_host: pass` the name comes with the request, and a client may send any. If no node has accepted the name,
//! its failure shows nothing of the node. If another node has accepted it, the node is at fault, unless it serves other
//! names well. Only new connections look here; there is neither IO nor a clock.

/// Names remembered of one upstream in one worker. A name is added only after a node has proved it, so clients without a
/// certificate to match cannot fill the list.
pub const NAMES_MAX: usize = 64;

/// What a failed handshake with a name of a request means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameFault {
    /// No node accepts the name: the request is to blame, and another node would fail it as well.
    Name,
    /// Another node accepts the name; this one does not, but it accepts other names.
    Pair,
    /// The node accepted the name before, or accepts none while others accept this one.
    Node,
}

/// Who accepts which names; the name accepted last is the last of the list.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<Accepted>);

#[derive(Debug)]
struct Accepted {
    name: Box<str>,
    /// Never empty.
    nodes: Vec<Node>,
}

/// An endpoint's index and the generation of its slot, so that one endpoint is never taken for another.
pub(crate) type Node = (usize, u32);

impl Names {
    /// A handshake with the node has succeeded.
    pub(crate) fn accept(&mut self, node: Node, name: &str) {
        match self.0.iter().position(|accepted| *accepted.name == *name) {
            Some(at) => self.0[at..].rotate_left(1),
            None => {
                if self.0.len() == NAMES_MAX {
                    self.0.remove(0);
                }
                self.0.push(Accepted { name: name.into(), nodes: Vec::new() });
            }
        }
        if let Some(accepted) = self.0.last_mut()
            && !accepted.nodes.contains(&node)
        {
            accepted.nodes.push(node);
        }
    }

    /// A handshake with the node has failed. A node that accepted the name before is no longer remembered for it.
    pub(crate) fn refuse(&mut self, node: Node, name: &str) -> NameFault {
        let Some(at) = self.0.iter().position(|accepted| *accepted.name == *name) else { return NameFault::Name };
        let nodes = &mut self.0[at].nodes;
        if let Some(place) = nodes.iter().position(|accepted| *accepted == node) {
            nodes.swap_remove(place);
            if nodes.is_empty() {
                self.0.remove(at);
            }
            return NameFault::Node;
        }
        match self.0.iter().any(|accepted| accepted.nodes.contains(&node)) {
            true => NameFault::Pair,
            false => NameFault::Node,
        }
    }

    /// Forgets the nodes that are no longer there.
    pub(crate) fn retain(&mut self, is_there: impl Fn(Node) -> bool) {
        self.0.retain_mut(|accepted| {
            accepted.nodes.retain(|node| is_there(*node));
            !accepted.nodes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_node_accepts_is_to_blame_itself() {
        let mut names = Names::default();
        assert_eq!(names.refuse((0, 0), "evil.test"), NameFault::Name, "nothing is known");
        (0..3).for_each(|node| names.accept((node, 0), "a.test"));
        for node in 0..4 {
            assert_eq!(names.refuse((node, 0), "evil.test"), NameFault::Name);
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
        assert_eq!(names.refuse((0, 0), "a.test"), NameFault::Name, "no node is left that accepts it");
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
        assert_eq!(names.0.len(), NAMES_MAX);
        assert_eq!(names.refuse((7, 0), "used.test"), NameFault::Node);
        assert_eq!(names.refuse((0, 0), "1.test"), NameFault::Name);
        assert_eq!(names.refuse((0, 0), &format!("{}.test", 2 * NAMES_MAX - 1)), NameFault::Node);
    }

    #[test]
    fn nodes_that_are_gone_are_forgotten() {
        let mut names = Names::default();
        names.accept((0, 0), "a.test");
        names.accept((1, 0), "a.test");
        names.accept((0, 0), "b.test");
        names.retain(|node| node == (1, 0));
        assert_eq!(names.refuse((0, 1), "b.test"), NameFault::Name);
        assert_eq!(names.refuse((0, 1), "a.test"), NameFault::Node);
        names.retain(|_| false);
        assert_eq!(names.refuse((1, 0), "a.test"), NameFault::Name);
    }
}
