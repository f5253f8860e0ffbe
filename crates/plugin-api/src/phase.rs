//! The phases of a request, in their order, and sets of them.

/// When a plugin is called. The body has no call of its own: filters are set in `header_filter` (for a request's body
/// in any phase before the request is forwarded).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Before the consumer is known.
    Rewrite,
    /// Decides whether the request may continue.
    Access,
    /// Just before the request is forwarded.
    BeforeProxy,
    /// The head of the response.
    HeaderFilter,
    /// The body of the response.
    BodyFilter,
    /// After the response.
    Log,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Phase; 6] =
        [Phase::Rewrite, Phase::Access, Phase::BeforeProxy, Phase::HeaderFilter, Phase::BodyFilter, Phase::Log];

    /// APISIX's name, used in metrics and by `explain`.
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
    /// The empty set.
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

    /// The union of both sets.
    #[inline]
    pub const fn or(self, other: Phases) -> Phases {
        Phases(self.0 | other.0)
    }

    /// The intersection of both sets.
    #[inline]
    pub const fn and(self, other: Phases) -> Phases {
        Phases(self.0 & other.0)
    }

    /// The phases, in order.
    pub fn iter(self) -> impl Iterator<Item = Phase> {
        Phase::ALL.into_iter().filter(move |phase| self.contains(*phase))
    }
}
