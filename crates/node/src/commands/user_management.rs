//! `createUser`, `updateUser`, `dropUser` and what else changes users.

use banyan_access::administration;
use banyan_access::check::Access;
use banyan_access::sasl::Iterations;
use banyan_security::scram::{Credential, Credentials, Mechanism, PasswordError};
use banyan_security::user::EXTERNAL;
use banyan_security::{
    Action, DefinitionError, Privileges, Restrictions, RoleName, UserDefinition, UserName,
};
use banyan_wire::tls::operating;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArray, RawBsonRef, Uuid, rawdoc};
use rand::RngCore;

use super::sasl::iterations;
use super::table::{CommandResult, CommandSpec, Needs, Run, boxed};
use crate::access::changes;
use crate::access::stored::{USERS, refused};
use crate::context::CommandContext;
use crate::forms;
use crate::params::Field;

pub static CREATE: CommandSpec =
    CommandSpec::new("createUser", Run::Future(|ctx| boxed(create(ctx))))
        .access(Access::Checked(administration::create_user))
        .help("makes a user of this database")
        .writes()
        .fields(FIELDS)
        .form(check_form);

pub static UPDATE: CommandSpec =
    CommandSpec::new("updateUser", Run::Future(|ctx| boxed(update(ctx))))
        .access(Access::Checked(administration::update_user))
        .help("changes a user of this database")
        .writes()
        .fields(FIELDS)
        .form(check_form);

pub static DROP: CommandSpec =
    CommandSpec::new("dropUser", Run::Future(|ctx| boxed(drop_one(ctx))))
        .access(Access::Checked(administration::drop_user))
        .help("removes a user of this database")
        .writes();

pub static DROP_ALL: CommandSpec = CommandSpec::new(
    "dropAllUsersFromDatabase",
    Run::Future(|ctx| boxed(drop_all(ctx))),
)
.access(Access::Checked(administration::drop_user))
.help("removes all users of this database")
.writes();

pub static GRANT_ROLES: CommandSpec =
    CommandSpec::new("grantRolesToUser", Run::Future(|ctx| boxed(grant(ctx))))
        .access(Access::Checked(administration::grant_to_user))
        .help("gives roles to a user")
        .writes()
        .fields(&["roles"])
        .form(check_form);

pub static REVOKE_ROLES: CommandSpec =
    CommandSpec::new("revokeRolesFromUser", Run::Future(|ctx| boxed(revoke(ctx))))
        .access(Access::Checked(administration::revoke_from_user))
        .help("takes roles from a user")
        .writes()
        .fields(&["roles"])
        .form(check_form);

pub static INVALIDATE_CACHE: CommandSpec =
    CommandSpec::new("invalidateUserCache", Run::Inline(invalidate))
        .access(Access::Cluster(Action::InvalidateUserCache))
        .help("has users and roles read anew")
        .needs(Needs::Any);

const FIELDS: &[&str] = &[
    "pwd",
    "customData",
    "roles",
    "digestPassword",
    "mechanisms",
    "authenticationRestrictions",
];

/// What a field of a command on users or roles has to be, whatever the others are.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "roles" | "privileges" | "mechanisms" | "authenticationRestrictions" => {
            forms::array(field)?;
            check_items(field)
        }
        _ if field.is_null() => Ok(()),
        "pwd" => field.str().map(drop),
        "customData" => field.document().map(drop),
        "digestPassword" => field.bool().map(drop),
        _ => Ok(()),
    }
}

fn check_items(field: Field<'_>) -> Result<(), CommandError> {
    let array = field.array()?;
    match field.name {
        // Which database those are of that name none says nothing of their form.
        "roles" => RoleName::parse_all(array, "admin")
            .map(drop)
            .map_err(refused),
        "authenticationRestrictions" => parse_restrictions(field).map(drop),
        "privileges" => Privileges::parse(array).map(drop).map_err(refused),
        _ => Ok(()),
    }
}

fn bad(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message)
}

/// A field that is as if it were not there if it is null.
fn given<'a>(ctx: &CommandContext<'a>, name: &'static str) -> Option<Field<'a>> {
    ctx.field(name).filter(|field| !field.is_null())
}

/// The user that the command's own field names.
fn named(ctx: &CommandContext<'_>) -> Result<UserName, CommandError> {
    let field = Field {
        command: ctx.spec.name,
        name: ctx.spec.name,
        value: ctx.argument().unwrap_or(RawBsonRef::Null),
    };
    Ok(UserName::new(field.str()?, ctx.database()))
}

/// The roles that the command gives or takes.
pub fn roles(ctx: &CommandContext<'_>, array: &RawArray) -> Result<Vec<RoleName>, CommandError> {
    RoleName::parse_all(array, ctx.database()).map_err(refused)
}

/// As [`roles`], where there has to be one.
pub fn some_roles(ctx: &CommandContext<'_>) -> Result<Vec<RoleName>, CommandError> {
    let roles = roles(ctx, ctx.required("roles")?.array()?)?;
    if roles.is_empty() {
        let command = ctx.spec.name;
        return Err(bad(format!(
            "{command} command requires a non-empty \"roles\" array"
        )));
    }
    Ok(roles)
}

pub fn restrictions(ctx: &CommandContext<'_>) -> Result<Option<Restrictions>, CommandError> {
    let field = ctx.field("authenticationRestrictions");
    field.map(parse_restrictions).transpose()
}

fn parse_restrictions(field: Field<'_>) -> Result<Restrictions, CommandError> {
    Restrictions::parse(field.array()?).map_err(|error| match error {
        DefinitionError::Unknown(path) => {
            let path = format!("{}.{path}", field.command);
            refused(DefinitionError::Unknown(path))
        }
        error => refused(error),
    })
}

/// A password and what is to be kept of it.
struct Secret {
    user: String,
    password: String,
    /// The client has digested it already.
    is_digest: bool,
    mechanisms: Vec<Mechanism>,
    iterations: Iterations,
}

impl Secret {
    fn of(
        ctx: &CommandContext<'_>,
        name: &UserName,
        mechanisms: Option<Vec<Mechanism>>,
    ) -> Result<Option<Secret>, CommandError> {
        let Some(field) = given(ctx, "pwd") else {
            return Ok(None);
        };
        let password = field.str()?.to_owned();
        if name.database == EXTERNAL {
            return Err(bad(
                "Cannot set the password for users defined on the '$external' database",
            ));
        }
        let digests = given(ctx, "digestPassword").map(|field| field.bool());
        let is_digest = !digests.transpose()?.unwrap_or(true);
        let mechanisms = mechanisms.unwrap_or_else(|| Mechanism::ALL.to_vec());
        if is_digest && mechanisms.contains(&Mechanism::Sha256) {
            return Err(bad("Use of SCRAM-SHA-256 requires undigested passwords"));
        }
        Ok(Some(Secret {
            user: name.user.clone(),
            password,
            is_digest,
            mechanisms,
            iterations: iterations(ctx),
        }))
    }

    /// Takes as long as the iterations ask for, where it holds up nobody.
    async fn derive(self, ctx: &CommandContext<'_>) -> Result<Credentials, CommandError> {
        let deriving = tokio::task::spawn_blocking(move || self.derive_here());
        let derived = tokio::select! {
            derived = deriving => derived,
            // The hashes go to their end; nobody waits for them.
            () = ctx.interrupt().raised() => {
                ctx.check_interrupt()?;
                return Err(CommandError::new(ErrorCode::Interrupted, "operation was interrupted"));
            }
        };
        derived
            .map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))?
            .map_err(|error| match error {
                PasswordError::Empty => bad("Password cannot be empty"),
                PasswordError::Forbidden => bad("Error preflighting normalization: the password \
                                                 has a character that SASLprep forbids"),
            })
    }

    fn derive_here(&self) -> Result<Credentials, PasswordError> {
        let mut credentials = Credentials::default();
        for mechanism in &self.mechanisms {
            let mut salt = vec![0; mechanism.salt_bytes()];
            rand::rng().fill_bytes(&mut salt);
            let iterations = self.iterations.of(*mechanism);
            let credential = match self.is_digest {
                true => Credential::digested(&self.password, salt, iterations)?,
                false => {
                    let password = &self.password;
                    Credential::new(*mechanism, &self.user, password, salt, iterations)?
                }
            };
            credentials.set(*mechanism, credential);
        }
        Ok(credentials)
    }
}

fn mechanisms(ctx: &CommandContext<'_>) -> Result<Option<Vec<Mechanism>>, CommandError> {
    let Some(field) = ctx.field("mechanisms") else {
        return Ok(None);
    };
    let mut mechanisms = Vec::new();
    for value in field.array()?.into_iter().flatten() {
        let name = value
            .as_str()
            .ok_or_else(|| field.wrong_type("an array of strings"))?;
        let mechanism = Mechanism::from_name(name)
            .ok_or_else(|| bad(format!("Unknown auth mechanism '{name}'")))?;
        mechanisms.push(mechanism);
    }
    match mechanisms.is_empty() {
        true => Err(bad("mechanisms field must not be empty")),
        false => Ok(Some(mechanisms)),
    }
}

async fn create(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let roles = roles(ctx, ctx.required("roles")?.array()?)?;
    if name.user.is_empty() {
        return Err(bad("User document needs 'user' field to be non-empty"));
    }
    if name.database == "local" {
        return Err(bad("Cannot create users in the local database"));
    }
    let is_external = name.database == EXTERNAL;
    if is_external && operating::names_cluster_member(&name.user) {
        return Err(bad(
            "Cannot create an x.509 user with a subjectname that would be recognized as an \
             internal cluster member",
        ));
    }
    let secret = Secret::of(ctx, &name, mechanisms(ctx)?)?;
    if secret.is_none() && !is_external {
        return Err(bad(
            "Must provide a 'pwd' field for all user documents, except those with '$external' as \
             the user's source db",
        ));
    }
    let custom_data = given(ctx, "customData").map(|field| field.document());
    let definition = UserDefinition {
        id: Uuid::from_bytes(*uuid::Uuid::new_v4().as_bytes()),
        credentials: match secret {
            Some(secret) => secret.derive(ctx).await?,
            None => Credentials::external(),
        },
        custom_data: custom_data.transpose()?.map(ToOwned::to_owned),
        restrictions: restrictions(ctx)?.unwrap_or_default(),
        name,
        roles,
    };
    let _turn = changes::begin(ctx).await?;
    changes::check_exist(&changes::stored(ctx), &definition.roles)?;
    let exists = || {
        let name = &definition.name;
        CommandError::new(
            ErrorCode::Location(51003),
            format!("User \"{name}\" already exists"),
        )
    };
    changes::insert(ctx, USERS, definition.to_document(), exists).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn update(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let mechanisms = mechanisms(ctx)?;
    let changed = [
        "pwd",
        "customData",
        "roles",
        "mechanisms",
        "authenticationRestrictions",
    ];
    if changed.iter().all(|field| ctx.field(field).is_none()) {
        return Err(bad(
            "Must specify at least one field to update in updateUser",
        ));
    }
    let secret = Secret::of(ctx, &name, mechanisms.clone())?;
    let credentials = match secret {
        Some(secret) => Some(secret.derive(ctx).await?),
        None => None,
    };
    let _turn = changes::begin(ctx).await?;
    let stored = changes::stored(ctx);
    let mut user = stored.user(&name)?.ok_or_else(|| {
        CommandError::new(ErrorCode::UserNotFound, format!("User {name} not found"))
    })?;
    match (credentials, mechanisms) {
        (Some(credentials), _) => user.credentials = credentials,
        (None, Some(mechanisms)) => user.credentials = subset(&user.credentials, &mechanisms)?,
        (None, None) => {}
    }
    if let Some(field) = given(ctx, "customData") {
        user.custom_data = Some(field.document()?.to_owned());
    }
    if let Some(field) = ctx.field("roles") {
        user.roles = roles(ctx, field.array()?)?;
        changes::check_exist(&stored, &user.roles)?;
    }
    if let Some(restrictions) = restrictions(ctx)? {
        user.restrictions = restrictions;
    }
    changes::replace(ctx, USERS, user.to_document()).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Without a password nothing can be added.
fn subset(known: &Credentials, mechanisms: &[Mechanism]) -> Result<Credentials, CommandError> {
    let mut kept = Credentials::default();
    for mechanism in mechanisms {
        let credential = known
            .get(*mechanism)
            .ok_or_else(|| bad("mechanisms field must be a subset of previously set mechanisms"))?;
        kept.set(*mechanism, credential.clone());
    }
    Ok(kept)
}

async fn drop_one(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let _turn = changes::begin(ctx).await?;
    let query = rawdoc! { "user": name.user.as_str(), "db": name.database.as_str() };
    if changes::remove(ctx, USERS, query).await? == 0 {
        return Err(CommandError::new(
            ErrorCode::UserNotFound,
            format!("User '{name}' not found"),
        ));
    }
    Ok(rawdoc! { "ok": 1.0 })
}

async fn drop_all(ctx: &CommandContext<'_>) -> CommandResult {
    let _turn = changes::begin(ctx).await?;
    let n = changes::remove(ctx, USERS, rawdoc! { "db": ctx.database() }).await?;
    Ok(rawdoc! { "n": n, "ok": 1.0 })
}

async fn grant(ctx: &CommandContext<'_>) -> CommandResult {
    let (name, roles) = (named(ctx)?, some_roles(ctx)?);
    let _turn = changes::begin(ctx).await?;
    let stored = changes::stored(ctx);
    let mut user = changes::user(&stored, &name)?;
    changes::check_exist(&stored, &roles)?;
    for role in roles {
        if !user.roles.contains(&role) {
            user.roles.push(role);
        }
    }
    changes::replace(ctx, USERS, user.to_document()).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn revoke(ctx: &CommandContext<'_>) -> CommandResult {
    let (name, roles) = (named(ctx)?, some_roles(ctx)?);
    let _turn = changes::begin(ctx).await?;
    let stored = changes::stored(ctx);
    let mut user = changes::user(&stored, &name)?;
    changes::check_exist(&stored, &roles)?;
    user.roles.retain(|role| !roles.contains(role));
    changes::replace(ctx, USERS, user.to_document()).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

fn invalidate(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node.access.forget_users();
    Ok(rawdoc! { "ok": 1.0 })
}
