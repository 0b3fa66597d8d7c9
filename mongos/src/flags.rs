//! The router's command line.

use banyan_process::CommonFlags;
use clap::Parser;

/// The port that clients look for first.
pub const PORT_DEFAULT: u16 = 27017;

#[derive(Parser, Debug)]
#[command(
    name = "mongos",
    version,
    about = "Banyan's router",
    disable_help_subcommand = true
)]
pub struct Flags {
    #[command(flatten)]
    pub common: CommonFlags,
    /// The config servers: set/host:port,host:port or host:port,host:port
    #[arg(long, value_name = "HOSTS", required_unless_present = "config")]
    pub configdb: Option<String>,
    /// Take clients and members that do not prove who they are, while a cluster is being protected
    #[arg(long = "transitionToAuth")]
    pub transition_to_auth: bool,
    /// Take no JavaScript: neither map-reduces nor $where, $function and $accumulator
    #[arg(long)]
    pub noscripting: bool,
    /// Accepted for scripts that give it
    #[arg(long = "localThreshold", value_name = "MS")]
    pub local_threshold: Option<u32>,
}

impl Flags {
    /// The flags that were given and do nothing.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let given = self.local_threshold.is_some();
        given.then_some("--localThreshold").into_iter().collect()
    }
}
