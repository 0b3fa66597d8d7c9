//! Starting, stopping and killing the programs, and waiting for conditions: what the stories
//! (`stories/`) and the bench driver (`bench/`) stand on.
//!
//! The programs are those beside the running binary (`target/<profile>/mongod`, …); build them first
//! (`cargo build --workspace --bins`), as `scripts/test` does. A broken expectation panics: the
//! caller is a test.

mod certificates;
mod cluster;
mod process;
mod wait;

pub use certificates::{Certificates, for_hosts, named};
pub use cluster::{Cluster, ClusterShape};
pub use process::{
    Launch, Process, ReplicaSet, connect, free_port, initiate, program, repository, states,
};
pub use wait::{eventually, within};
