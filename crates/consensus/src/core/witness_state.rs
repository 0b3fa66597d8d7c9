//! What a member knows of witnesses (see `witness`).

use crate::machine::PeerId;

#[derive(Default)]
pub(super) struct WitnessState {
    /// This member is a witness.
    pub witness: bool,
    /// The witnesses among the members, as far as this one was told.
    pub witnesses: Vec<PeerId>,
    /// Ticks without a leader.
    pub leaderless: u64,
    /// Somebody asked for a vote who lacks entries that this member has.
    pub needed: bool,
    /// Ticks in office.
    pub leading: u64,
}

impl WitnessState {
    pub fn is_witness(&self) -> bool {
        self.witness
    }

    pub fn is_without_data(&self, id: PeerId) -> bool {
        self.witnesses.contains(&id)
    }
}
