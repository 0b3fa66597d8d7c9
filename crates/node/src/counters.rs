//! Counts since the start, for `serverStatus`.

pub use banyan_process::figures::{CommandCounts, Counter, Latencies, OpCounters, Sharded};

/// What each thread counts. A command counts its own work ([`banyan_execution::work::Work`]), which is added
/// here once, when it ends.
#[derive(Default)]
pub struct Counters {
    pub operations: OpCounters,
    pub latencies: Latencies,
    // metrics.document
    pub returned: Counter,
    pub inserted: Counter,
    pub updated: Counter,
    pub deleted: Counter,
    // metrics.queryExecutor
    pub keys_examined: Counter,
    pub documents_examined: Counter,
    pub collection_scans: Counter,
    pub tailable_scans: Counter,
    // metrics.ttl
    pub ttl_passes: Counter,
    pub ttl_deleted: Counter,
    // metrics.operation
    pub sorts: Counter,
    // transactions
    pub retried_commands: Counter,
    pub retried_statements: Counter,
    pub user_errors: Counter,
    pub unknown_commands: Counter,
}
