//! What a server counts about itself, for `serverStatus`: cheap to add to, added up when asked.

mod counter;
mod latency;
mod usage;

pub use counter::{Counter, Sharded};
pub use latency::{Latencies, Latency, LatencySum, OperationClass, SparseLatency};
pub use usage::{Usage, usage};

/// `opcounters`: operations by kind.
#[derive(Default)]
pub struct OpCounters {
    /// Documents that an insert tried.
    pub insert: Counter,
    pub query: Counter,
    /// Statements that an update tried.
    pub update: Counter,
    /// Statements that a delete tried.
    pub delete: Counter,
    pub getmore: Counter,
    pub command: Counter,
}

/// How often a command was run, and how often that failed.
#[derive(Default)]
pub struct CommandCounts {
    pub total: Counter,
    pub failed: Counter,
    /// As the settings of its query have it.
    pub rejected: Counter,
}

/// What has become of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Well,
    Failed,
    Rejected,
}

impl CommandCounts {
    pub fn note(&self, ending: Ending) {
        self.total.add(1);
        self.failed.add(u64::from(ending == Ending::Failed));
        self.rejected.add(u64::from(ending == Ending::Rejected));
    }
}

/// Whether a command's query may be rejected.
pub fn may_be_rejected(command: &str) -> bool {
    matches!(command, "find" | "aggregate" | "distinct")
}

/// How a command is filed: by its name, as MongoDB does it.
pub fn class_of(command: &str) -> OperationClass {
    match command {
        "find" | "getMore" | "count" | "distinct" | "aggregate" => OperationClass::Read,
        "insert" | "update" | "delete" | "findAndModify" => OperationClass::Write,
        _ => OperationClass::Command,
    }
}
