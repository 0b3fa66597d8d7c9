//! The tables and the newest writes that a snapshot reads.

use std::ops::Deref;
use std::sync::Arc;

use fjall::AbstractTree;
use lsm_tree::file_accessor::FileAccessor;
use lsm_tree::table::block::BlockType;
use lsm_tree::table::util::load_block;
use lsm_tree::table::{Block, BlockHandle};
use lsm_tree::{AnyTree, GlobalTableId, Memtable, SeqNo, Table, TreeId};
use parking_lot::Mutex;

use crate::checkpoint::requests::Requests;

/// What lies in memory is written to a table once it has been read so many times as a whole while
/// nothing was written: a table is read several times as fast as the list of what was written last.
const READS_OF_ALL: u64 = 2;
/// What is smaller is not worth a table of its own.
const TABLE_BYTES_MIN: u64 = 1024 * 1024;

/// Tables without keys in common, in the order of their keys.
pub(super) type Run = Arc<dyn Deref<Target = [Table]> + Send + Sync>;

/// What was committed, as of some moment. It keeps its tables and what is in memory.
pub(crate) struct State {
    /// The newest writes. `None`: there are none.
    pub(super) memory: Option<Arc<Memtable>>,
    pub(super) runs: Vec<Run>,
    tree: TreeId,
    files: FileAccessor,
    checkpoints: Requests,
    reads: Arc<Mutex<Reads>>,
}

/// How much of what lies in memory was read since something was written there last.
#[derive(Default)]
struct Reads {
    memory: u64,
    last_write: Option<SeqNo>,
    entries: u64,
}

/// What is known of the versions of one tree's tables.
pub(crate) struct States {
    newest: Mutex<Option<Known>>,
    checkpoints: Requests,
    reads: Arc<Mutex<Reads>>,
}

/// A version, and from which snapshot on it is the one to read.
#[derive(Clone, Copy)]
struct Known {
    version: u64,
    since: SeqNo,
}

impl States {
    pub(crate) fn new(checkpoints: Requests) -> States {
        States {
            newest: Mutex::default(),
            checkpoints,
            reads: Arc::default(),
        }
    }

    /// The state for a snapshot of `seqno`, if it is at hand: nothing waits to be written to a table,
    /// and the newest version of the tables is not newer than the snapshot. `visible` is the seqno
    /// that a snapshot would have now.
    pub(crate) fn capture(
        &self,
        keyspace: &fjall::Keyspace,
        seqno: SeqNo,
        visible: impl Fn() -> SeqNo,
    ) -> Option<State> {
        let AnyTree::Standard(tree) = &keyspace.tree else {
            return None;
        };
        let files = tree.config.descriptor_table.clone()?;
        let version = tree.current_version();
        // A version is made visible before anybody else can see it: snapshots from now on read it.
        // One of before may still need what a version does without, such as tables of what was dropped.
        if self.since(version.id(), visible) > seqno {
            return None;
        }
        // Writes move from what is active to what is sealed, and from there into a new version. Where
        // both ends of that way were the same all along, and nothing was in its middle, they hold all.
        let active = tree.active_memtable();
        if tree.sealed_memtable_count() > 0
            || tree.current_version().id() != version.id()
            || !Arc::ptr_eq(&active, &tree.active_memtable())
        {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        for run in version.iter_levels().flat_map(|level| level.iter()) {
            if !run.is_empty() {
                runs.push(run.clone());
            }
        }
        Some(State {
            memory: (!active.is_empty()).then_some(active),
            runs,
            tree: tree.id(),
            files: FileAccessor::DescriptorTable(files),
            checkpoints: self.checkpoints.clone(),
            reads: self.reads.clone(),
        })
    }

    fn since(&self, version: u64, visible: impl Fn() -> SeqNo) -> SeqNo {
        let mut newest = self.newest.lock();
        match *newest {
            Some(known) if known.version == version => known.since,
            Some(known) if known.version > version => visible(),
            _ => {
                let since = visible();
                *newest = Some(Known { version, since });
                since
            }
        }
    }
}

impl State {
    /// So many entries were read that lie in memory.
    pub(super) fn note_reads(&self, entries: u64) {
        let Some(memory) = self.memory.as_ref().filter(|_| entries > 0) else {
            return;
        };
        {
            let mut reads = self.reads.lock();
            let last_write = memory.get_highest_seqno();
            if reads.memory != memory.id() || reads.last_write != last_write {
                *reads = Reads {
                    memory: memory.id(),
                    last_write,
                    entries: 0,
                };
            }
            reads.entries += entries;
            let is_much = reads.entries >= READS_OF_ALL * memory.len() as u64;
            if !is_much || memory.size() < TABLE_BYTES_MIN {
                return;
            }
            reads.entries = 0;
        }
        self.checkpoints.checkpoint();
    }

    /// A block, from the engine's cache or through it.
    pub(super) fn block(
        &self,
        table: &Table,
        handle: &BlockHandle,
        kind: BlockType,
    ) -> Result<Block, lsm_tree::Error> {
        let compression = match kind {
            BlockType::Data => table.metadata.data_block_compression,
            _ => table.metadata.index_block_compression,
        };
        let id = GlobalTableId::from((self.tree, table.id()));
        load_block(
            id,
            &table.path,
            &self.files,
            &table.cache,
            handle,
            kind,
            compression,
        )
    }
}
