//! How far the state has come.

use banyan_consensus::Position;

use crate::sessions::LastWrite;

/// The last applied entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    pub position: Position,
    /// As [`clock::to_bits`].
    pub time: u64,
    pub wall_ms: i64,
}

impl Applied {
    pub(super) fn encode(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&self.position.term.to_le_bytes());
        out[8..16].copy_from_slice(&self.position.index.to_le_bytes());
        out[16..24].copy_from_slice(&self.time.to_le_bytes());
        out[24..].copy_from_slice(&self.wall_ms.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Applied> {
        let (term, rest) = bytes.split_first_chunk()?;
        let (index, rest) = rest.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let (wall_ms, _) = rest.split_first_chunk()?;
        let position = Position {
            term: u64::from_le_bytes(*term),
            index: u64::from_le_bytes(*index),
        };
        let (time, wall_ms) = (u64::from_le_bytes(*time), i64::from_le_bytes(*wall_ms));
        Some(Applied {
            position,
            time,
            wall_ms,
        })
    }
}

impl From<Applied> for LastWrite {
    fn from(applied: Applied) -> LastWrite {
        LastWrite {
            wall_ms: applied.wall_ms,
            time_bits: applied.time,
            raft_term: applied.position.term,
        }
    }
}
