//! Who wrote the newest batches.

use lsm_tree::SeqNo;

use crate::batch::WriterId;

#[derive(Default)]
pub(crate) struct Newest {
    writer: Option<WriterId>,
    /// What was visible before the first of them: they are all that came since.
    since: SeqNo,
}

impl Newest {
    /// A batch, and what is visible before it is.
    pub(crate) fn note(&mut self, writer: Option<WriterId>, visible: SeqNo) {
        if writer.is_none() || writer != self.writer {
            (self.writer, self.since) = (writer, visible);
        }
    }

    /// Whether all batches behind `seqno` are this writer's.
    pub(crate) fn are_all_of(&self, writer: WriterId, seqno: SeqNo) -> bool {
        self.writer == Some(writer) && self.since <= seqno
    }
}
