//! `buildInfo`: which MongoDB this behaves like, and what it really is.

use banyan_access::check::Access;
use bson::{RawArrayBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::info;

pub static SPEC: CommandSpec = CommandSpec::new("buildInfo", Run::Inline(run))
    .access(Access::Anyone)
    .aliases(&["buildinfo"])
    .needs(Needs::Any)
    .lenient()
    .vital();

fn run(_: &CommandContext<'_>) -> CommandResult {
    let version_array: RawArrayBuf = info::COMPATIBLE_VERSION_ARRAY.into_iter().collect();
    Ok(rawdoc! {
        "version": info::COMPATIBLE_VERSION,
        "gitVersion": "unknown",
        "banyan": env!("CARGO_PKG_VERSION"),
        "modules": RawArrayBuf::new(),
        "allocator": "system",
        "javascriptEngine": "v8",
        "sysInfo": "deprecated",
        "versionArray": version_array,
        "openssl": { "running": "none", "compiled": "none" },
        "buildEnvironment": {
            "target_arch": std::env::consts::ARCH,
            "target_os": std::env::consts::OS,
        },
        "bits": 64,
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": 16_777_216,
        "storageEngines": ["banyan"],
        "ok": 1.0,
    })
}
