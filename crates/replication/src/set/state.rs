//! What a member is at the moment, in MongoDB's words and numbers.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    Startup,
    Primary,
    Secondary,
    Recovering,
    Startup2,
    Unknown,
    Arbiter,
    Down,
    Removed,
}

impl MemberState {
    pub fn number(self) -> i32 {
        match self {
            MemberState::Startup => 0,
            MemberState::Primary => 1,
            MemberState::Secondary => 2,
            MemberState::Recovering => 3,
            MemberState::Startup2 => 5,
            MemberState::Unknown => 6,
            MemberState::Arbiter => 7,
            MemberState::Down => 8,
            MemberState::Removed => 10,
        }
    }

    pub fn from_number(number: i32) -> MemberState {
        match number {
            0 => MemberState::Startup,
            1 => MemberState::Primary,
            2 => MemberState::Secondary,
            3 => MemberState::Recovering,
            5 => MemberState::Startup2,
            7 => MemberState::Arbiter,
            8 => MemberState::Down,
            10 => MemberState::Removed,
            _ => MemberState::Unknown,
        }
    }

    /// As `stateStr` shows it.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Startup => "STARTUP",
            MemberState::Primary => "PRIMARY",
            MemberState::Secondary => "SECONDARY",
            MemberState::Recovering => "RECOVERING",
            MemberState::Startup2 => "STARTUP2",
            MemberState::Unknown => "UNKNOWN",
            MemberState::Arbiter => "ARBITER",
            MemberState::Down => "(not reachable/healthy)",
            MemberState::Removed => "REMOVED",
        }
    }

    pub fn is_readable(self) -> bool {
        matches!(self, MemberState::Primary | MemberState::Secondary)
    }
}
