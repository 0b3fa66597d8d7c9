//! `create` with `timeseries`: the collection of the buckets.

use banyan_document::is_true;
use banyan_document::time_series::{Granularity, TimeSeries, buckets_name};
use banyan_replication::time_series::OPTION;
use banyan_replication::views::is_time_series;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::validation::{ACTION, LEVEL, VALIDATOR};
use banyan_replication::write::views::Definitions;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::raw::CString;
use bson::{RawDocumentBuf, cstr, rawdoc};

use super::super::clustered::CLUSTERED;
use super::super::create_options;
use super::super::images::{IMAGES, RECORD_IMAGES};
use super::super::table::CommandResult;
use super::invalid;
use crate::context::CommandContext;
use crate::params::{self, Field};
use crate::views;

const PARSER: &str = "create.timeseries";

/// What may be said of how measurements lie in buckets.
const OPTIONS: &[&str] = &[
    "timeField",
    "metaField",
    "granularity",
    "bucketMaxSpanSeconds",
    "bucketRoundingSeconds",
];

/// Options of a collection that a time-series collection cannot have.
const REFUSED: &[&str] = &[
    "capped",
    VALIDATOR,
    LEVEL,
    ACTION,
    "viewOn",
    CLUSTERED,
    "autoIndexId",
    "idIndex",
    IMAGES,
    RECORD_IMAGES,
];

/// How measurements are to lie in buckets. `None`: no time-series collection is asked for.
pub fn parse(ctx: &CommandContext<'_>) -> Result<Option<TimeSeries>, CommandError> {
    let Some(field) = ctx.field(OPTION).filter(|field| !field.is_null()) else {
        return Ok(None);
    };
    let options = Options::parse(field)?;
    let namespace = ctx.namespace()?;
    if ctx.field("pipeline").is_some() && ctx.field("viewOn").is_none() {
        return Err(invalid("'pipeline' requires 'viewOn' to also be specified"));
    }
    let is_encrypted = ctx.field("encryptedFields");
    if is_encrypted.is_some_and(|field| !field.is_null()) {
        return Err(create_options::encrypted_elsewhere());
    }
    let fields = params::fields("create", ctx.body());
    let is_refused = |field: &Field<'_>| {
        let says_nothing = field.is_null() || field.name == "capped" && !is_true(field.value);
        !says_nothing && REFUSED.contains(&field.name)
    };
    let mut refused = fields.filter(is_refused);
    if let Some(field) = refused.next() {
        return Err(invalid(format!(
            "{namespace}: 'timeseries' is not allowed with '{}'",
            field.name
        )));
    }
    options.check(&namespace).map(Some)
}

/// Whether the field has the form that it has to have.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    Options::parse(field).map(drop)
}

/// As they are written.
struct Options<'a> {
    time_field: &'a str,
    meta_field: Option<&'a str>,
    granularity: Option<Granularity>,
    span_s: Option<i64>,
    rounding_s: Option<i64>,
}

impl<'a> Options<'a> {
    fn parse(field: Field<'a>) -> Result<Options<'a>, CommandError> {
        let (mut time_field, mut meta_field, mut granularity) = (None, None, None);
        let (mut span_s, mut rounding_s) = (None, None);
        for field in params::given(PARSER, field.document()?, OPTIONS) {
            let field = field?;
            match field.name {
                "timeField" => time_field = Some(field.str()?),
                "metaField" => meta_field = Some(field.str()?),
                "granularity" => granularity = Some(self::granularity(field)?),
                "bucketMaxSpanSeconds" => span_s = Some(seconds(field)?),
                _ => rounding_s = Some(seconds(field)?),
            }
        }
        Ok(Options {
            time_field: time_field.ok_or_else(|| params::missing_field(PARSER, "timeField"))?,
            meta_field,
            granularity,
            span_s,
            rounding_s,
        })
    }

    fn check(&self, namespace: &str) -> Result<TimeSeries, CommandError> {
        for (option, name) in [
            ("timeField", Some(self.time_field)),
            ("metaField", self.meta_field),
        ] {
            if name.is_some_and(|name| name.contains('.')) {
                return Err(invalid(format!(
                    "{namespace}: '{option}' must be a top-level field and not contain a '.'"
                )));
            }
            if name.is_some_and(|name| name.contains('\0')) {
                return Err(invalid(format!("'{option}' must not contain a null byte")));
            }
        }
        if self.meta_field == Some("_id") {
            return Err(invalid("'metaField' cannot be \"_id\""));
        }
        if self.meta_field == Some(self.time_field) {
            return Err(invalid("'metaField' cannot be the same as 'timeField'"));
        }
        let (granularity, span_s, rounding_s) = self.spans()?;
        Ok(TimeSeries {
            time_field: self.time_field.to_owned(),
            meta_field: self.meta_field.map(str::to_owned),
            granularity,
            span_s,
            rounding_s,
        })
    }

    fn spans(&self) -> Result<(Option<Granularity>, i64, i64), CommandError> {
        if let (None, Some(rounding_s)) = (self.granularity, self.rounding_s) {
            return match self.span_s {
                Some(span_s) if span_s == rounding_s => Ok((None, span_s, rounding_s)),
                Some(_) => Err(invalid(
                    "Timeseries 'bucketRoundingSeconds' needs to be equal to \
                     'bucketMaxSpanSeconds'",
                )),
                None => Err(invalid(
                    "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' need to be set \
                     alongside each other",
                )),
            };
        }
        let granularity = self.granularity.unwrap_or(Granularity::Seconds);
        let (span_s, rounding_s) = (granularity.span_s(), granularity.rounding_s());
        for (option, asked, own) in [
            ("bucketMaxSpanSeconds", self.span_s, span_s),
            ("bucketRoundingSeconds", self.rounding_s, rounding_s),
        ] {
            if asked.is_some_and(|asked| asked != own) {
                return Err(CommandError::new(
                    ErrorCode::Location(5510500),
                    format!(
                        "Timeseries '{option}' is not configurable to a value other than the \
                         default of {own} for the provided granularity"
                    ),
                ));
            }
        }
        Ok((Some(granularity), span_s, rounding_s))
    }
}

pub fn granularity(field: Field<'_>) -> Result<Granularity, CommandError> {
    let name = field.str()?;
    Granularity::parse(name).ok_or_else(|| {
        CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Enumeration value '{name}' for field '{}.{}' is not a valid value.",
                field.command, field.name
            ),
        )
    })
}

/// A year at most, as buckets are found by their beginnings.
const SECONDS_MAX: i64 = 31_536_000;

fn seconds(field: Field<'_>) -> Result<i64, CommandError> {
    let seconds = field.i64()?;
    let out_of_range = |bound: String| {
        Err(CommandError::new(
            ErrorCode::Location(51024),
            format!(
                "BSON field '{}' value must be {bound}, actual value '{seconds}'",
                field.name
            ),
        ))
    };
    match seconds {
        ..1 => out_of_range(">= 1".to_owned()),
        1..=SECONDS_MAX => Ok(seconds),
        _ => out_of_range(format!("<= {SECONDS_MAX}")),
    }
}

/// Makes the buckets of a collection. `collation` and `seconds` are of what lies in it.
pub async fn create(
    ctx: &CommandContext<'_>,
    namespace: &Namespace,
    series: &TimeSeries,
    collation: Option<RawDocumentBuf>,
    seconds: Option<i64>,
) -> CommandResult {
    if namespace.collection().starts_with("system.") {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid system namespace: {namespace}"),
        ));
    }
    let replica = &ctx.node.replica;
    let term = replica.writable_term()?;
    let buckets = Namespace::new(namespace.database(), &buckets_name(namespace.collection()));
    let definitions = Definitions::namespace(ctx.database());
    let namespaces = [namespace, &buckets, &definitions];
    let _locks = ctx.lock_exclusive(&namespaces).await?;
    let exists = |what: String| Err(CommandError::new(ErrorCode::NamespaceExists, what));
    let catalog = replica.store.catalog();
    if catalog.find(namespace).is_some() {
        return exists(format!("Collection {namespace} already exists."));
    }
    if is_time_series(replica, namespace) {
        return exists(format!(
            "A timeseries collection already exists. NS: {namespace}"
        ));
    }
    if views::is_view(replica, namespace)? {
        return exists(format!("A view already exists. NS: {namespace}"));
    }
    if catalog.find(&buckets).is_some() {
        return exists(format!("Bucket Collection already exists. NS: {buckets}"));
    }
    catalog_ops::refuse_other_case(replica, namespace)?;
    let mut options = rawdoc! { "validator": validator(series)? };
    if let Some(collation) = collation {
        options.append(cstr!("collation"), collation);
    }
    options.append(
        cstr!("clusteredIndex"),
        rawdoc! { "v": 2, "key": { "_id": 1 }, "name": catalog_ops::ID_INDEX, "unique": true },
    );
    if let Some(seconds) = seconds {
        options.append(cstr!("expireAfterSeconds"), seconds);
    }
    options.append(cstr!("timeseries"), series.to_document());
    let mut changes = Vec::new();
    // In MongoDB it is a view that is defined there: who lists the collections finds both.
    if catalog.find(&definitions).is_none() {
        let none = RawDocumentBuf::new();
        changes.push(catalog_ops::creation(replica, &definitions, none));
    }
    changes.push(catalog_ops::creation(replica, &buckets, options));
    catalog_ops::apply(replica, &changes, term).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// What a bucket has to be that is written as such by a user.
fn validator(series: &TimeSeries) -> Result<RawDocumentBuf, CommandError> {
    let time = CString::try_from(series.time_field.as_str())
        .map_err(|error| invalid(error.to_string()))?;
    let mut properties = RawDocumentBuf::new();
    properties.append(time, rawdoc! { "bsonType": "date" });
    let side = rawdoc! {
        "bsonType": "object",
        "required": [series.time_field.as_str()],
        "properties": properties,
    };
    Ok(rawdoc! {
        "$jsonSchema": {
            "bsonType": "object",
            "required": ["_id", "control", "data"],
            "properties": {
                "_id": { "bsonType": "objectId" },
                "control": {
                    "bsonType": "object",
                    "required": ["version", "min", "max"],
                    "properties": {
                        "version": { "bsonType": "number" },
                        "min": side.clone(),
                        "max": side,
                        "closed": { "bsonType": "bool" },
                    },
                },
                "data": { "bsonType": "object" },
                "meta": {},
            },
            "additionalProperties": false,
        },
    })
}
