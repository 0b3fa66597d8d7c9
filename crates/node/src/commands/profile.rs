//! `profile`: which operations of a database are kept in its `system.profile`, and which ones count as
//! slow. The level and the filter are those of the database, the rest is the process's.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::names::check_database_name;
use crate::params::Field;
use crate::profiler::{BYTES_DEFAULT, Settings};

pub static SPEC: CommandSpec = CommandSpec::new("profile", Run::Inline(run))
    .access(Access::Checked(reads_and_writes::profile))
    .needs(Needs::Any)
    .fields(&["slowms", "sampleRate", "filter"])
    .lenient();

const NOTE: &str = "When a filter expression is set, slowms and sampleRate are not used for profiling and \
                    slow-query log lines.";

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let level = level(ctx)?;
    check_database_name(ctx.database())?;
    let (profiler, parameters) = (&ctx.node.profiler, &ctx.node.parameters);
    let before = profiler.settings(ctx.database());
    let slow_ms = i32::try_from(parameters.slow_ms()).unwrap_or(i32::MAX);
    let rate = profiler.sample_rate();
    let asked = Asked::parse(ctx)?;
    let mut settings = before.clone();
    // A level that there is not changes nothing, as in MongoDB.
    if (0..=2).contains(&level) {
        settings.level = level;
    }
    match asked.filter {
        Some(Filter::Unset) => settings.filter = None,
        Some(Filter::Set(filter)) => settings.filter = Some(filter),
        None => {}
    }
    if settings.level > 0 {
        profiler.create(ctx.database(), BYTES_DEFAULT, None);
    }
    if let Some(slow_ms) = asked.slow_ms {
        parameters.set("slowMS", RawBsonRef::Int64(slow_ms), false)?;
    }
    if let Some(rate) = asked.sample_rate {
        profiler.set_sample_rate(rate);
    }
    profiler.set(ctx.database(), settings.clone());
    let mut reply = rawdoc! { "was": before.level, "slowms": slow_ms, "sampleRate": rate };
    describe_filter(&mut reply, &before, &settings);
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// The filter that was, and what follows from one that was or is.
fn describe_filter(reply: &mut RawDocumentBuf, before: &Settings, now: &Settings) {
    if let Some(filter) = &before.filter {
        reply.append(cstr!("filter"), filter.to_document());
    }
    if before.filter.is_some() || now.filter.is_some() {
        reply.append(cstr!("note"), NOTE);
    }
}

/// A number, whatever stands behind its point.
fn level(ctx: &CommandContext<'_>) -> Result<i32, CommandError> {
    let missing = || {
        CommandError::new(
            ErrorCode::Location(40414),
            "BSON field 'profile.profile' is missing but a required field",
        )
    };
    let value = ctx.argument().ok_or_else(missing)?;
    if matches!(value, RawBsonRef::Null | RawBsonRef::Undefined) {
        return Err(missing());
    }
    let field = Field {
        command: "profile",
        name: "profile",
        value,
    };
    let level = number(field)?;
    Ok(i32::try_from(level as i64).unwrap_or(-1))
}

enum Filter {
    Unset,
    Set(Arc<banyan_query::Filter>),
}

/// What is to change.
struct Asked {
    slow_ms: Option<i64>,
    sample_rate: Option<f64>,
    filter: Option<Filter>,
}

impl Asked {
    fn parse(ctx: &CommandContext<'_>) -> Result<Asked, CommandError> {
        let given = |name| ctx.field(name).filter(|field| !field.is_null());
        let slow_ms = given("slowms").map(number).transpose()?;
        let sample_rate = given("sampleRate").map(number).transpose()?;
        if sample_rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            return Err(bad("'sampleRate' must be between 0.0 and 1.0 inclusive"));
        }
        let filter = match ctx.field("filter").map(|field| field.value) {
            None => None,
            Some(RawBsonRef::String("unset")) => Some(Filter::Unset),
            Some(RawBsonRef::Document(filter)) => {
                Some(Filter::Set(Arc::new(errors::parse_filter(filter)?)))
            }
            Some(_) => return Err(bad("Expected an object, or the string 'unset'.")),
        };
        Ok(Asked {
            // Anything below means that nothing is slow.
            slow_ms: slow_ms.map(|ms| (ms as i64).max(-1)),
            sample_rate,
            filter,
        })
    }
}

fn bad(why: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, why)
}

fn number(field: Field<'_>) -> Result<f64, CommandError> {
    match field.value {
        RawBsonRef::Int32(value) => Ok(f64::from(value)),
        RawBsonRef::Int64(value) => Ok(value as f64),
        RawBsonRef::Double(value) => Ok(value),
        RawBsonRef::Decimal128(value) => Ok(value.to_string().parse().unwrap_or(f64::NAN)),
        _ => Err(field.wrong_type("types '[long, int, decimal, double']")),
    }
}
