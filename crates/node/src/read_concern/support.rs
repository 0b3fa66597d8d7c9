//! Which commands take which read concern.

use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument, cstr, rawdoc};

use super::concern::{Level, ReadConcern, invalid};
use crate::commands::table::CommandSpec;
use crate::context::CommandContext;
use crate::errors;

/// What a command can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    /// Any level.
    All,
    /// Any but `snapshot`.
    Consistent,
    /// `local` and `available`.
    Weak,
    /// `local` only.
    Local,
    /// `local` only, and no time: it looks at no data.
    Nothing,
    /// A command among members, which knows what it does.
    Internal,
}

impl Support {
    fn of(spec: &CommandSpec) -> Support {
        match spec.name {
            "find" | "aggregate" | "distinct" => Support::All,
            // It goes on with what the first command was given.
            "getMore" => Support::All,
            "count" => Support::Consistent,
            "mapReduce" => Support::Weak,
            _ if spec.name.starts_with('_') => Support::Internal,
            "ping" | "hello" | "buildInfo" | "serverStatus" | "whatsmyuri" => Support::Nothing,
            _ => Support::Local,
        }
    }

    fn allows(self, level: Level) -> bool {
        match self {
            Support::All | Support::Internal => true,
            Support::Consistent => level != Level::Snapshot,
            Support::Weak => matches!(level, Level::Local | Level::Available),
            Support::Local | Support::Nothing => level == Level::Local,
        }
    }
}

pub(super) fn check_command(
    concern: &ReadConcern,
    document: &RawDocument,
    spec: &CommandSpec,
) -> Result<(), CommandError> {
    let support = Support::of(spec);
    let level = concern.level.unwrap_or(Level::Local);
    if !support.allows(level) {
        let reason = match (support, level) {
            (Support::Consistent, _) => "read concern snapshot not supported",
            _ => "read concern not supported",
        };
        return Err(invalid(format!(
            "Command {} does not support {} :: caused by :: {reason}",
            spec.name,
            shown(document)
        )));
    }
    if concern.after.is_some() && support == Support::Nothing {
        return Err(invalid("afterClusterTime is not allowed for this command"));
    }
    Ok(())
}

/// What a pipeline writes is no longer only a read.
pub fn check_output(ctx: &CommandContext<'_>, stage: &str) -> Result<(), CommandError> {
    let Some(document) = ctx.generic.read_concern else {
        return Ok(());
    };
    if ReadConcern::parse(document)?.level != Some(Level::Linearizable) {
        return Ok(());
    }
    Err(invalid(format!(
        "Command {} does not support {} :: caused by :: {stage} cannot be used with a \
         'linearizable' read concern level",
        ctx.spec.name,
        shown(document)
    )))
}

/// A read concern as messages show it.
fn shown(document: &RawDocument) -> String {
    let mut shown = RawDocument::to_owned(document);
    if document
        .get("provenance")
        .is_ok_and(|field| field.is_none())
    {
        shown.append(cstr!("provenance"), "clientSupplied");
    }
    let shown = rawdoc! { "readConcern": shown };
    errors::shown(RawBsonRef::Document(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{count, distinct, find};

    #[test]
    fn a_command_is_asked_for_what_it_can_do() {
        let allowed = |spec: &CommandSpec, level: &str| {
            let document = rawdoc! { "level": level };
            let concern = ReadConcern::parse(&document).unwrap();
            check_command(&concern, &document, spec).is_ok()
        };
        for level in ["local", "available", "majority", "linearizable", "snapshot"] {
            assert!(allowed(&find::SPEC, level) && allowed(&distinct::SPEC, level));
            assert_eq!(allowed(&count::SPEC, level), level != "snapshot");
            assert_eq!(
                allowed(&crate::commands::explain::SPEC, level),
                level == "local"
            );
        }
        let document = rawdoc! { "level": "snapshot" };
        let concern = ReadConcern::parse(&document).unwrap();
        let error = check_command(&concern, &document, &count::SPEC).unwrap_err();
        assert_eq!(
            error.message,
            "Command count does not support { readConcern: { level: \"snapshot\", provenance: \
             \"clientSupplied\" } } :: caused by :: read concern snapshot not supported"
        );
    }
}
