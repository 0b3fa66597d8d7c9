//! Starting, stopping and killing the programs, and waiting for conditions.

mod cluster;
mod process;
mod wait;

pub use cluster::{Cluster, ClusterShape};
pub use process::{Launch, Process, ReplicaSet, free_port, program, repository};
pub use wait::{eventually, within};
