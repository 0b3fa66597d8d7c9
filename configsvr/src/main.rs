//! The config server as a program of its own: what `mongod --configsvr` runs, without V8.

use std::sync::Arc;

use banyan_configsvr::primary;
use banyan_node::info::ClusterRole;
use banyan_node::program::Program;
use banyan_node::service::NodeService;
use banyan_process::{CommonFlags, MemberFlags};
use clap::Parser;

const PORT_DEFAULT: u16 = 27019;

#[derive(Parser, Debug)]
#[command(
    name = "configsvr",
    version,
    about = "Banyan's config server",
    disable_help_subcommand = true
)]
struct Flags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    member: MemberFlags,
    /// Accepted for scripts that give it; it is what this program is
    #[arg(long)]
    configsvr: bool,
}

fn main() {
    let parsed = banyan_process::options::parse::<Flags>();
    let flags = &parsed.flags;
    let program = Program {
        name: "configsvr",
        parsed: &parsed,
        common: &flags.common,
        member: &flags.member,
        role: ClusterRole::Config,
        port: flags.common.port.unwrap_or(PORT_DEFAULT),
        dbpath_default: "/data/configdb",
        without_effect: flags.member.without_effect(),
        commands: banyan_configsvr::commands(),
        set_up,
    };
    program.run();
}

fn set_up(service: &Arc<NodeService>) {
    primary::start(service);
}
