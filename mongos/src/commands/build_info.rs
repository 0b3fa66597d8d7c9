//! `buildInfo`.

use banyan_access::check::Access;
use banyan_wire::version::{COMPATIBLE_VERSION, COMPATIBLE_VERSION_ARRAY};
use bson::{RawArrayBuf, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("buildInfo", "what this program is", run!(run))
    .access(Access::Anyone)
    .aliases(&["buildinfo"]);

async fn run(_: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {
        "version": COMPATIBLE_VERSION,
        "gitVersion": concat!("banyan-", env!("CARGO_PKG_VERSION")),
        "modules": RawArrayBuf::new(),
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": RawArrayBuf::from_iter(COMPATIBLE_VERSION_ARRAY),
        "banyan": env!("CARGO_PKG_VERSION"),
        "bits": 64,
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": banyan_document::MAX_DOCUMENT_BYTES as i32,
        "storageEngines": RawArrayBuf::new(),
        "ok": 1.0,
    })
}
