//! `validateDBMetadata`: which collections, indexes and views do not belong to a version of the stable
//! API.

use banyan_access::api_version;
use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_query::view;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::Field;
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("validateDBMetadata", Run::Future(run))
    .access(Access::Checked(reads_and_writes::validate_metadata))
    .needs(Needs::Data)
    .help("what of a database does not belong to a version of the stable API")
    .fields(&["db", "collection", "apiParameters"])
    .computes();

/// So many bytes of complaints are told at most.
const REPLY_BYTES_MAX: usize = 15 << 20;

const PARAMETERS: &str = "validateDBMetadata.apiParameters";

/// What is to be held against what.
struct Asked<'a> {
    database: Option<&'a str>,
    collection: Option<&'a str>,
    strict: bool,
}

impl<'a> Asked<'a> {
    fn parse(ctx: &CommandContext<'a>) -> Result<Asked<'a>, CommandError> {
        let text = |name| ctx.field(name).map(|field| field.str()).transpose();
        let (database, collection) = (text("db")?, text("collection")?);
        let parameters = ctx.required("apiParameters")?.document()?;
        Ok(Asked {
            database,
            collection,
            strict: Asked::strict(parameters)?,
        })
    }

    fn strict(parameters: &RawDocument) -> Result<bool, CommandError> {
        let (mut version, mut strict) = (None, false);
        for (name, value) in parameters.iter().flatten() {
            let field = Field {
                command: PARAMETERS,
                name: name.as_str(),
                value,
            };
            match field.name {
                "version" => version = Some(field.str()?),
                "strict" => strict = field.strict_bool()?,
                "deprecationErrors" => {
                    field.strict_bool()?;
                }
                name => {
                    return Err(CommandError::new(
                        ErrorCode::Location(40415),
                        format!("BSON field '{PARAMETERS}.{name}' is an unknown field."),
                    ));
                }
            }
        }
        match version {
            Some(_) => Ok(strict),
            None => Err(CommandError::new(
                ErrorCode::Location(40414),
                format!("BSON field '{PARAMETERS}.version' is missing but a required field"),
            )),
        }
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let asked = Asked::parse(ctx)?;
        ctx.compute(|| validate(ctx, &asked)).await
    })
}

/// What was found so far, while there is room for it in a reply.
#[derive(Default)]
struct Complaints {
    listed: RawArrayBuf,
    is_full: bool,
}

impl Complaints {
    fn add(&mut self, namespace: &str, error: &CommandError) {
        let complaint = rawdoc! {
            "ns": namespace,
            "code": error.code.code(),
            "codeName": &*error.code.name(),
            "errmsg": error.message.as_str(),
        };
        let bytes = self.listed.as_bytes().len() + complaint.as_bytes().len();
        match bytes > REPLY_BYTES_MAX {
            true => self.is_full = true,
            false => self.listed.push(complaint),
        }
    }
}

fn validate(ctx: &CommandContext<'_>, asked: &Asked<'_>) -> CommandResult {
    let mut complaints = Complaints::default();
    if asked.strict {
        let (catalog, snapshot) = ctx.node.replica.view();
        for database in catalog.databases() {
            ctx.check_interrupt()?;
            if asked.database.is_some_and(|name| name != &*database.name) {
                continue;
            }
            let is_asked = |name: &str| asked.collection.is_none_or(|asked| asked == name);
            for collection in database.collections() {
                let namespace = &collection.namespace;
                if !is_asked(namespace.collection()) {
                    continue;
                }
                for index in &collection.indexes {
                    if let Err(error) = api_version::check_index(&index.name, &index.spec) {
                        complaints.add(namespace.as_str(), &error);
                    }
                }
            }
            let definitions = views::definitions(&catalog, &snapshot, &database.name, ctx.slot())?;
            for definition in definitions {
                let Some(name) = view::name(&definition, &database.name) else {
                    continue;
                };
                if is_asked(name)
                    && let Ok(stages) = definition.get_array("pipeline")
                    && let Err(error) = api_version::check_view(stages)
                {
                    complaints.add(&format!("{}.{name}", database.name), &error);
                }
            }
        }
    }
    let mut reply: RawDocumentBuf = rawdoc! { "apiVersionErrors": complaints.listed };
    if complaints.is_full {
        reply.append(bson::cstr!("hasMoreErrors"), true);
    }
    reply.append(bson::cstr!("ok"), 1.0);
    Ok(reply)
}
