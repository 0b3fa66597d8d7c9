//! The data node's command line.

use banyan_process::{CommonFlags, MemberFlags};
use clap::Parser;

#[derive(Parser, Debug)]
#[command(
    name = "mongod",
    version,
    about = "Banyan's data node",
    disable_help_subcommand = true
)]
pub struct Flags {
    #[command(flatten)]
    pub common: CommonFlags,
    #[command(flatten)]
    pub member: MemberFlags,
    /// Be a shard of a cluster (default port 27018)
    #[arg(long, conflicts_with = "configsvr")]
    pub shardsvr: bool,
    /// Be a config server of a cluster (default port 27019)
    #[arg(long)]
    pub configsvr: bool,
}

impl Flags {
    pub fn port(&self) -> u16 {
        self.common
            .port
            .unwrap_or(match (self.shardsvr, self.configsvr) {
                (true, _) => 27018,
                (_, true) => 27019,
                _ => 27017,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_follows_the_role() {
        let port = |words: &[&str]| {
            Flags::try_parse_from(std::iter::once(&"mongod").chain(words))
                .unwrap()
                .port()
        };
        assert_eq!(port(&[]), 27017);
        assert_eq!(port(&["--shardsvr"]), 27018);
        assert_eq!(port(&["--configsvr"]), 27019);
        assert_eq!(port(&["--shardsvr", "--port", "3"]), 3);
        assert!(Flags::try_parse_from(["mongod", "--shardsvr", "--configsvr"]).is_err());
        assert!(Flags::try_parse_from(["mongod", "--prot", "1"]).is_err());
        assert!(Flags::try_parse_from(["mongod", "--oplogSize", "0"]).is_err());
    }
}
