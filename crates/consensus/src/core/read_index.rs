//! Confirming that this member leads, for those who read (ReadIndex in the Raft dissertation, 6.4).

use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::log::Disk;
use crate::machine::PeerId;

impl<D: Disk> Core<D> {
    pub fn read_index(&mut self, question: Vec<u8>) {
        self.asking
            .begin(&question, self.node.store().membership().index);
        let before = self.node.raft.msgs.len();
        self.node.read_index(question);
        let mut at = 0;
        let asking = &self.asking;
        self.node.raft.msgs.retain(|message| {
            at += 1;
            let asks = message.msg_type == MessageType::MsgHeartbeat && !message.context.is_empty();
            at <= before || !asks || !asking.spares(message.to)
        });
    }

    /// Those who were asked take their time.
    pub fn ask_everybody(&mut self) {
        self.asking.everybody();
        self.node.ping();
    }

    pub(super) fn note_answer(&mut self, message: &Message) {
        let answer = message.msg_type == MessageType::MsgHeartbeatResponse;
        if !answer || message.context.is_empty() || message.term != self.term() {
            return;
        }
        let membership = self.membership();
        let voters = membership.voters().count();
        let votes = |id: PeerId| membership.get(id).is_some_and(|member| member.voter);
        if votes(self.settings.id) && votes(message.from) {
            self.asking.note(message.from, &message.context, voters / 2);
        }
    }
}
