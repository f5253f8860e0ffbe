//! The phases of a request, in their order, and sets of them.

/// When a plugin is called. The body has no call of its own: filters are set in `header_filter` (for a request's body in any
/// phase before the node is asked).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Before the consumer is known.
    Rewrite,
    /// Whether the request may go on.
    Access,
    /// Just before the node is asked.
    BeforeProxy,
    /// The head of the response.
    HeaderFilter,
    /// The body of the response.
    BodyFilter,
    /// After the response.
    Log,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 6] =
        [Phase::Rewrite, Phase::Access, Phase::BeforeProxy, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log];

    /// APISIX's name, as metrics and `explain` show it.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Rewrite => "rewrite",
            Phase::Access => "access",
            Phase::BeforeProxy => "before_proxy",
            Phase::HeaderFilter => "header_filter",
            Phase::BodyFilter => "body_filter",
            Phase::Log => "log",
        }
    }
}

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases(u8);

impl Phases {
    /// No phase.
    pub const NONE: Phases = Phases(0);

    /// These phases.
    pub const fn of(phases: &[Phase]) -> Phases {
        let (mut set, mut at) = (0, 0);
        while at < phases.len() {
            set |= 1 << phases[at] as u8;
            at += 1;
        }
        Phases(set)
    }

    /// Whether a phase is in the set.
    #[inline]
    pub const fn contains(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }

    /// The phases of either.
    #[inline]
    pub const fn or(self, other: Phases) -> Phases {
        Phases(self.0 | other.0)
    }

    /// The phases of both.
    #[inline]
    pub const fn and(self, other: Phases) -> Phases {
        Phases(self.0 & other.0)
    }

    /// The phases, in order.
    pub fn iter(self) -> impl Iterator<Item = Phase> {
        Phase::ALL.into_iter().filter(move |phase| self.contains(*phase))
    }
}
