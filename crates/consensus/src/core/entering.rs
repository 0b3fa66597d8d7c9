//! Which terms are believed.
//!
//! A term is entered on the word of one message, and never left again. One that was made up could
//! use up all terms there are, or take a member into a history that nobody leads.
//!
//! - **Within an epoch** a term counts elections. There cannot have been more of them than the time
//!   allows, however long a member was away: so its clock gives the bound, and not the term that it
//!   knows itself. Whatever a message brings up to there, members that were told different terms
//!   still believe each other, and elections go on from there.
//! - **A higher epoch** begins with a forced change, of which no count is known. Whoever speaks as
//!   its leader is asked a question first, at the address that it gives: a read (`MsgReadIndex`) that
//!   only a leader answers. A single message, from somebody who hears no answers, changes nothing.

use raft::eraftpb::{Entry, Message, MessageType};

use super::forced::{EPOCH_SHIFT, epoch, leads};
use super::mix::mix;
use super::{Core, Outlet};
use crate::log::Disk;
use crate::message;
use crate::surroundings;

/// 2024-01-01: no group is older.
const OLDEST_GROUP_S: u64 = 1_704_067_200;
/// More often than elections can follow each other for long: the shortest of timeouts leave a new
/// leader more time than that to be of any use.
const ELECTIONS_PER_SECOND: u64 = 4;
/// By so much the clocks of members may differ.
const CLOCKS_DIFFER_S: u64 = 24 * 3600;
/// Believed whatever the clock says, for one that has not been set.
const TERMS_MIN: u64 = 1 << 20;
/// The highest of an epoch are left for elections that really take place.
const TERMS_MAX: u64 = (1 << EPOCH_SHIFT) - (1 << 24);

/// The highest term that is believed in the epoch of a term, at a time in milliseconds since 1970.
pub(super) fn term_max(term: u64, now_ms: i64) -> u64 {
    let now = u64::try_from(now_ms).unwrap_or(0) / 1000;
    let seconds = now.saturating_sub(OLDEST_GROUP_S) + CLOCKS_DIFFER_S;
    let elections = seconds.saturating_mul(ELECTIONS_PER_SECOND);
    (epoch(term) << EPOCH_SHIFT) + elections.clamp(TERMS_MIN, TERMS_MAX)
}

impl<D: Disk> Core<D> {
    /// The highest term that is believed now in the epoch of a term.
    pub(super) fn term_max(&self, term: u64) -> u64 {
        term_max(term, surroundings::wall_ms())
    }

    /// A leader has shown that it leads in the epoch of its message.
    pub(super) fn is_confirmed(&self, message: &Message) -> bool {
        self.confirmed == Some((message.from, epoch(message.term)))
    }

    /// Asks whoever speaks as the leader of a higher epoch whether it is that, and takes the answer.
    pub(super) fn doubt(&mut self, message: &Message, address: &str, outlet: &mut impl Outlet) {
        let own = self.settings.id;
        let to = message.from;
        if message.to != own || to == 0 || to == own || epoch(message.term) <= epoch(self.term()) {
            return;
        }
        let question = self.question(message);
        if message.msg_type == MessageType::MsgReadIndexResp {
            if matches!(message.entries.as_slice(), [only] if only.data == question) {
                self.confirmed = Some((to, epoch(message.term)));
            }
            return;
        }
        if !leads(message) {
            return;
        }
        // A leader of another history may have moved since this member last heard of it.
        let known = self.membership().get(to);
        let address = match known {
            Some(known) if address.is_empty() => known.address.clone(),
            _ => address.to_owned(),
        };
        if address.is_empty() {
            return;
        }
        let mut read = Message::default();
        read.set_msg_type(MessageType::MsgReadIndex);
        (read.from, read.to) = (own, to);
        read.set_entries(
            vec![Entry {
                data: question.into(),
                ..Entry::default()
            }]
            .into(),
        );
        let membership = self.membership();
        let here = membership.get(own).map_or("", |own| own.address.as_str());
        outlet.send(to, &address, message::encode(here, &read));
        outlet.flush();
    }

    /// Nobody else can tell what it is, and nothing has to be remembered of it.
    fn question(&self, message: &Message) -> Vec<u8> {
        let of = mix(message.from) ^ mix(epoch(message.term)).rotate_left(1);
        let question = mix(self.settings.seed ^ mix(of ^ self.settings.id));
        question.to_le_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_believed_as_far_as_there_was_time_for_elections() {
        let year_ms = 365 * 24 * 3600 * 1000;
        let in_2026 = OLDEST_GROUP_S as i64 * 1000 + 2 * year_ms;
        let most = term_max(5, in_2026);
        assert!(most > 200_000_000 && most < 300_000_000, "{most}");
        // A clock that was never set, one that runs ahead of everything, and another epoch.
        assert_eq!(term_max(5, 0), TERMS_MIN);
        assert_eq!(term_max(5, -1), TERMS_MIN);
        assert_eq!(term_max(5, i64::MAX), TERMS_MAX);
        let later = 7 << EPOCH_SHIFT;
        assert_eq!(term_max(later + 9, in_2026), later + most);
        assert_eq!(epoch(term_max(later, i64::MAX)), 7);
    }
}
