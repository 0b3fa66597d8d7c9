//! The stable API: what a client may use that asks to be held to a version of it.
//!
//! There is one version, "1". A client names it in `apiVersion`; with `apiStrict` it is refused
//! whatever a later server may do without. What belongs to it: MongoDB's manual, "Stable API"; where
//! the manual is silent, what a mongod 6.0 refuses.

use std::fmt;

use banyan_document::elements;
use banyan_wire::params;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawArray, RawBsonRef, RawDocument};

/// The parameter with which everybody has to name a version.
pub const REQUIRE_PARAMETER: &str = "requireApiVersion";

const VERSION: &str = "1";

/// The commands of version 1.
const COMMANDS: &[&str] = &[
    "abortTransaction",
    "aggregate",
    "authenticate",
    "bulkWrite",
    "collMod",
    "commitTransaction",
    "count",
    "create",
    "createIndexes",
    "delete",
    "drop",
    "dropDatabase",
    "dropIndexes",
    "endSessions",
    "explain",
    "find",
    "findAndModify",
    "getMore",
    "hello",
    "insert",
    "killCursors",
    "listCollections",
    "listDatabases",
    "listIndexes",
    "ping",
    "refreshSessions",
    "saslContinue",
    "saslStart",
    "testDeprecation",
    "update",
];

/// Those of them that a later version will not have.
const DEPRECATED: &[&str] = &["testDeprecation"];

/// Fields of commands of version 1 that do not belong to it: the command, what errors call it, and
/// the fields.
const FIELDS: &[(&str, &str, &[&str])] = &[
    (
        "find",
        "FindCommandRequest",
        &[
            "awaitData",
            "max",
            "min",
            "noCursorTimeout",
            "oplogReplay",
            "options",
            "readOnce",
            "returnKey",
            "showRecordId",
            "tailable",
        ],
    ),
    ("aggregate", "aggregate", &["explain"]),
    (
        "create",
        "create",
        &[
            "autoIndexId",
            "changeStreamPreAndPostImages",
            "flags",
            "indexOptionDefaults",
            "max",
            "size",
            "storageEngine",
            "temp",
        ],
    ),
];

/// Stages, and functions of `$setWindowFields`, that do not belong to version 1.
const STAGES: &[&str] = &[
    "$currentOp",
    "$fill",
    "$indexStats",
    "$listCatalog",
    "$listClusterCatalog",
    "$listLocalSessions",
    "$listSessions",
    "$planCacheStats",
    "$search",
    "$searchMeta",
];
const WINDOW_FUNCTIONS: &[&str] = &["$linearFill"];

/// Nested pipelines deeper than MongoDB's are refused anyhow.
const DEPTH_MAX: usize = 64;

/// What errors call the fields.
const PARSER: &str = "APIParametersFromClient";

/// What a request says of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiParameters {
    is_versioned: bool,
    strict: Option<bool>,
    deprecation_errors: Option<bool>,
}

impl ApiParameters {
    /// Reads what a request says, and refuses it if it is not what it says it keeps to. `command` is
    /// the command's own name; `required`: everybody has to name a version. Members and routers, who
    /// pass on what was checked before, are not asked.
    pub fn check(
        request: &Request,
        command: &'static str,
        required: bool,
    ) -> Result<ApiParameters, CommandError> {
        let (parameters, version) = ApiParameters::parse(&request.body)?;
        if required && version.is_none() {
            return Err(CommandError::new(
                ErrorCode::Location(498_870),
                "The apiVersion parameter is required, please configure your MongoClient's API \
                 version",
            ));
        }
        if version.is_none() {
            if parameters.strict.is_some() || parameters.deprecation_errors.is_some() {
                return Err(CommandError::new(
                    ErrorCode::Location(4_886_600),
                    "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
                ));
            }
            return Ok(parameters);
        }
        if let Some(other) = version.filter(|version| *version != VERSION) {
            return Err(CommandError::new(
                ErrorCode::APIVersionError,
                format!("Cannot accept API version {other}"),
            ));
        }
        // The old greeting is a command of its own here.
        let command = match command {
            "hello" if request.name != "hello" => "isMaster",
            command => command,
        };
        if parameters.strict == Some(true) {
            check_strict(request, command)?;
        }
        if parameters.deprecation_errors == Some(true) && DEPRECATED.contains(&command) {
            return Err(CommandError::new(
                ErrorCode::APIDeprecationError,
                format!(
                    "Provided apiDeprecationErrors:true, but the command {command} is deprecated \
                     in API Version {VERSION}"
                ),
            ));
        }
        Ok(parameters)
    }

    fn parse(body: &RawDocument) -> Result<(ApiParameters, Option<&str>), CommandError> {
        let mut parameters = ApiParameters::default();
        let mut version = None;
        // It is here that MongoDB notices that a command names a field twice.
        for field in params::once(PARSER, body) {
            let field = field?;
            if !field.name.starts_with("api") || field.is_null() {
                continue;
            }
            let flag = || match field.value {
                RawBsonRef::Boolean(flag) => Ok(Some(flag)),
                _ => Err(field.wrong_type("type 'bool'")),
            };
            match field.name {
                "apiVersion" => version = Some(field.str()?),
                "apiStrict" => parameters.strict = flag()?,
                "apiDeprecationErrors" => parameters.deprecation_errors = flag()?,
                _ => {}
            }
        }
        parameters.is_versioned = version.is_some();
        Ok((parameters, version))
    }

    /// What a request says that was checked before.
    pub fn of(body: &RawDocument) -> ApiParameters {
        ApiParameters::parse(body).map_or_else(|_| ApiParameters::default(), |(said, _)| said)
    }

    /// A cursor is continued with the parameters that it was opened with.
    pub fn check_continued(self, opened: ApiParameters) -> Result<(), CommandError> {
        if self == opened {
            return Ok(());
        }
        Err(CommandError::new(
            ErrorCode::APIMismatchError,
            format!(
                "API parameter mismatch: getMore used params {self}, the cursor-creating command \
                 used {opened}"
            ),
        ))
    }
}

impl fmt::Display for ApiParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        if self.is_versioned {
            fields.push(format!("apiVersion: \"{VERSION}\""));
        }
        if let Some(strict) = self.strict {
            fields.push(format!("apiStrict: {strict}"));
        }
        if let Some(errors) = self.deprecation_errors {
            fields.push(format!("apiDeprecationErrors: {errors}"));
        }
        match fields.is_empty() {
            true => f.write_str("{}"),
            false => write!(f, "{{ {} }}", fields.join(", ")),
        }
    }
}

/// Whether a command belongs to version 1, and whether it is deprecated there.
pub fn versions(command: &str) -> (&'static [&'static str], &'static [&'static str]) {
    let of = |names: &[&str]| -> &'static [&'static str] {
        match names.contains(&command) {
            true => &[VERSION],
            false => &[],
        }
    };
    (of(COMMANDS), of(DEPRECATED))
}

fn refused(text: String) -> CommandError {
    CommandError::new(ErrorCode::APIStrictError, text)
}

fn check_strict(request: &Request, command: &str) -> Result<(), CommandError> {
    if !COMMANDS.contains(&command) {
        return Err(refused(format!(
            "Provided apiStrict:true, but the command {command} is not in API Version {VERSION}. \
             Information on supported commands and migrations in API Version {VERSION} can be \
             found at https://dochub.mongodb.org/core/manual-versioned-api"
        )));
    }
    let fields = FIELDS.iter().find(|(name, _, _)| *name == command);
    if let Some((_, parser, names)) = fields {
        for element in elements(&request.body).skip(1) {
            if names.contains(&element.name()) {
                return Err(refused(format!(
                    "BSON field '{parser}.{}' is not allowed with apiStrict:true.",
                    element.name()
                )));
            }
        }
    }
    let collection = request.first_value().and_then(|value| value.as_str());
    match command {
        "insert" | "update" | "delete" | "findAndModify" if collection == Some("system.js") => {
            Err(refused(format!(
                "Provided apiStrict:true, but the command {command} attempts to write to system.js"
            )))
        }
        "aggregate" => match request.get("pipeline") {
            Some(RawBsonRef::Array(stages)) => check_stages(stages, 0),
            _ => Ok(()),
        },
        "create" => match request.get("pipeline") {
            Some(RawBsonRef::Array(stages)) => check_stages(stages, 0),
            _ => Ok(()),
        },
        "createIndexes" => check_indexes(request),
        _ => Ok(()),
    }
}

fn check_indexes(request: &Request) -> Result<(), CommandError> {
    let listed = match request.get("indexes") {
        Some(RawBsonRef::Array(indexes)) => Some(indexes),
        _ => None,
    };
    let specs = listed.into_iter().flatten().flatten();
    for spec in specs.filter_map(|spec| spec.as_document()) {
        let Some(RawBsonRef::Document(key)) = banyan_document::field(spec, "key") else {
            continue;
        };
        if elements(key).any(|field| field.value().as_str() == Some("text")) {
            let text = "text indexes cannot be created with apiStrict: true";
            return Err(refused(text.to_owned()));
        }
    }
    Ok(())
}

/// Whether an index that there is belongs to version 1.
pub fn check_index(name: &str, spec: &RawDocument) -> Result<(), CommandError> {
    let Some(RawBsonRef::Document(key)) = banyan_document::field(spec, "key") else {
        return Ok(());
    };
    let is_refused = |kind: &str| matches!(kind, "text" | "geoHaystack");
    match elements(key).any(|field| field.value().as_str().is_some_and(is_refused)) {
        true => Err(refused(format!(
            "The index with name {name} is not allowed in API version {VERSION}."
        ))),
        false => Ok(()),
    }
}

/// Whether the pipeline of a view that there is does.
pub fn check_view(stages: &RawArray) -> Result<(), CommandError> {
    check_stages(stages, 0)
}

fn check_stages(stages: &RawArray, depth: usize) -> Result<(), CommandError> {
    if depth > DEPTH_MAX {
        return Ok(());
    }
    let stages = stages.into_iter().flatten();
    for stage in stages.filter_map(|stage| stage.as_document()) {
        for element in elements(stage) {
            check_stage(element.name(), element.value(), depth)?;
        }
    }
    Ok(())
}

fn check_stage(name: &str, argument: RawBsonRef<'_>, depth: usize) -> Result<(), CommandError> {
    let not_allowed = |name: &str| {
        refused(format!(
            "{name} is not allowed with 'apiStrict: true' in API Version {VERSION}"
        ))
    };
    if STAGES.contains(&name) {
        return Err(not_allowed(name));
    }
    let RawBsonRef::Document(argument) = argument else {
        return Ok(());
    };
    match name {
        "$collStats" if elements(argument).any(|field| field.name() != "count") => Err(refused(
            format!("only the 'count' option to $collStats is supported in API Version {VERSION}"),
        )),
        "$lookup" | "$unionWith" => match banyan_document::field(argument, "pipeline") {
            Some(RawBsonRef::Array(stages)) => check_stages(stages, depth + 1),
            _ => Ok(()),
        },
        "$facet" => {
            for facet in elements(argument) {
                if let RawBsonRef::Array(stages) = facet.value() {
                    check_stages(stages, depth + 1)?;
                }
            }
            Ok(())
        }
        "$setWindowFields" => {
            let Some(RawBsonRef::Document(output)) = banyan_document::field(argument, "output")
            else {
                return Ok(());
            };
            for field in elements(output) {
                let RawBsonRef::Document(function) = field.value() else {
                    continue;
                };
                let mut names = elements(function).map(|one| one.name());
                if let Some(name) = names.find(|name| WINDOW_FUNCTIONS.contains(name)) {
                    return Err(not_allowed(name));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, rawdoc};

    fn code(name: &'static str, body: RawDocumentBuf) -> Option<i32> {
        let request = Request::command("shop", body);
        let checked = ApiParameters::check(&request, name, false);
        checked.err().map(|error| error.code.code())
    }

    #[test]
    fn who_asks_for_the_stable_api_is_held_to_it() {
        let find = |more: RawDocumentBuf| {
            let mut body = rawdoc! {"find": "items"};
            for (name, value) in more.iter().flatten() {
                body.append(name, value);
            }
            code("find", body)
        };
        assert_eq!(find(rawdoc! {}), None);
        assert_eq!(find(rawdoc! {"apiVersion": "1"}), None);
        assert_eq!(find(rawdoc! {"apiVersion": "2"}), Some(322));
        assert_eq!(find(rawdoc! {"apiVersion": 1}), Some(14));
        assert_eq!(find(rawdoc! {"apiStrict": 1}), Some(14));
        assert_eq!(find(rawdoc! {"apiStrict": true}), Some(4_886_600));
        assert_eq!(find(rawdoc! {"apiStrict": false}), Some(4_886_600));
        assert_eq!(find(rawdoc! {"apiVersion": bson::RawBson::Null}), None);
        assert_eq!(find(rawdoc! {"min": {}, "apiVersion": "1"}), None);
        let strict = rawdoc! {"min": {}, "apiVersion": "1", "apiStrict": true};
        assert_eq!(find(strict), Some(323));
        let strict = rawdoc! {"collStats": "items", "apiVersion": "1", "apiStrict": true};
        assert_eq!(code("collStats", strict), Some(323));
        let deprecated =
            rawdoc! {"testDeprecation": 1, "apiVersion": "1", "apiDeprecationErrors": true};
        assert_eq!(code("testDeprecation", deprecated), Some(324));
        let old = rawdoc! {"ismaster": 1, "apiVersion": "1", "apiStrict": true};
        assert_eq!(code("hello", old), Some(323));
    }

    #[test]
    fn stages_outside_the_stable_api_are_found_where_they_are() {
        let strict = |stage: RawDocumentBuf| {
            let body = rawdoc! {
                "aggregate": "items", "pipeline": [stage], "apiVersion": "1", "apiStrict": true,
            };
            code("aggregate", body)
        };
        assert_eq!(strict(rawdoc! {"$match": {}}), None);
        assert_eq!(strict(rawdoc! {"$indexStats": {}}), Some(323));
        assert_eq!(strict(rawdoc! {"$collStats": {"count": {}}}), None);
        assert_eq!(
            strict(rawdoc! {"$collStats": {"latencyStats": {}}}),
            Some(323)
        );
        let nested = rawdoc! {"$unionWith": {"coll": "a", "pipeline": [{"$indexStats": {}}]}};
        assert_eq!(strict(nested), Some(323));
        let window = rawdoc! {"$setWindowFields": {"output": {"a": {"$linearFill": "$a"}}}};
        assert_eq!(strict(window), Some(323));
    }

    #[test]
    fn a_cursor_is_continued_as_it_was_opened() {
        let versioned = ApiParameters {
            is_versioned: true,
            ..ApiParameters::default()
        };
        let strict = ApiParameters {
            strict: Some(true),
            ..versioned
        };
        assert!(versioned.check_continued(versioned).is_ok());
        let error = strict.check_continued(versioned).unwrap_err();
        assert_eq!(error.code.code(), 347);
        assert_eq!(
            error.message,
            "API parameter mismatch: getMore used params { apiVersion: \"1\", apiStrict: true }, \
             the cursor-creating command used { apiVersion: \"1\" }"
        );
        let nothing = ApiParameters::default();
        assert_eq!(nothing.to_string(), "{}");
    }

    #[test]
    fn no_field_is_named_twice() {
        let body = |names: &[&str]| {
            let mut body = rawdoc! {"find": "items"};
            for name in names {
                body.append(bson::raw::CString::try_from(*name).unwrap(), 1);
            }
            code("find", body)
        };
        assert_eq!(body(&["limit", "skip", "limits", "tixil", "", "a"]), None);
        assert_eq!(body(&["limit", "skip", "limit"]), Some(40413));
        assert_eq!(body(&["find"]), Some(40413));
        assert_eq!(body(&["", ""]), Some(40413));
        let many: Vec<String> = (0..200).map(|at| format!("f{at}")).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(body(&many), None);
        many.push("f7");
        assert_eq!(body(&many), Some(40413));
    }
}
