//! What the process has used of the machine, as the kernel counts it.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// `extra_info` on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub user_time_us: i64,
    pub system_time_us: i64,
    pub maximum_resident_set_kb: i64,
    pub input_blocks: i64,
    pub output_blocks: i64,
    pub page_reclaims: i64,
    pub page_faults: i64,
    pub voluntary_context_switches: i64,
    pub involuntary_context_switches: i64,
}

/// `None` where the kernel does not tell.
pub fn usage() -> Option<Usage> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    Some(Usage {
        user_time_us: usage.user_time().num_microseconds(),
        system_time_us: usage.system_time().num_microseconds(),
        maximum_resident_set_kb: usage.max_rss(),
        input_blocks: usage.block_reads(),
        output_blocks: usage.block_writes(),
        page_reclaims: usage.minor_page_faults(),
        page_faults: usage.major_page_faults(),
        voluntary_context_switches: usage.voluntary_context_switches(),
        involuntary_context_switches: usage.involuntary_context_switches(),
    })
}
