//! The data node: a member of a set or a standalone, alone, as a shard, or as a config server.
//!
//! What every member does is in `banyan_node`; this program adds map-reduce, and the role that its
//! flags ask for. Started with [`map_reduce::HOST_ARGUMENT`] it is a script host instead.

mod flags;
mod javascript;
mod map_reduce;
mod shard;

use std::sync::Arc;

use banyan_configsvr::primary;
use banyan_node::commands::table::CommandSpec;
use banyan_node::info::ClusterRole;
use banyan_node::program::Program;
use banyan_node::service::NodeService;
use flags::Flags;
use shard::ShardRole;

fn main() {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == map_reduce::HOST_ARGUMENT)
    {
        banyan_script::host_main();
    }
    let parsed = banyan_process::options::parse::<Flags>();
    let flags = &parsed.flags;
    let role = match (flags.configsvr, flags.shardsvr) {
        (true, _) => ClusterRole::Config,
        (_, true) => ClusterRole::Shard,
        _ => ClusterRole::None,
    };
    let program = Program {
        name: "mongod",
        parsed: &parsed,
        common: &flags.common,
        member: &flags.member,
        role,
        port: flags.port(),
        dbpath_default: if flags.configsvr {
            "/data/configdb"
        } else {
            "/data/db"
        },
        without_effect: flags.member.without_effect(),
        commands: commands(role),
        set_up,
    };
    program.run();
}

fn commands(role: ClusterRole) -> Vec<&'static CommandSpec> {
    let mut commands: Vec<&'static CommandSpec> = map_reduce::COMMANDS.to_vec();
    if role == ClusterRole::Config {
        commands.extend(banyan_configsvr::commands());
    }
    if role == ClusterRole::Shard {
        commands.extend(shard::commands());
    }
    commands
}

fn set_up(service: &Arc<NodeService>) {
    if service.node.info.scripting {
        service.node.set_javascript(map_reduce::engine);
    }
    match service.node.info.role {
        ClusterRole::Config => drop(primary::start(service)),
        ClusterRole::Shard => drop(ShardRole::start(service)),
        ClusterRole::None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_access::check::Access;

    #[test]
    fn the_commands_of_every_role_say_what_they_need() {
        for role in [ClusterRole::None, ClusterRole::Shard, ClusterRole::Config] {
            for spec in commands(role) {
                let unnamed = matches!(spec.access, Access::Unnamed);
                assert!(!unnamed, "{} names no access", spec.name);
                if spec.name.starts_with('_') {
                    assert!(matches!(spec.access, Access::Member), "{}", spec.name);
                }
            }
        }
    }
}
