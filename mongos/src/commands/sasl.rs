//! `saslStart`, `saslContinue`, `authenticate`: a client proves who it is. The user comes from the
//! config servers.

use banyan_access::certificates::{self, Claim};
use banyan_access::check::Access;
use banyan_access::login;
use banyan_access::sasl::{self, Iterations, Sasl, Start};
use banyan_access::users::Fetched;
use banyan_security::UserName;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("saslStart", "begins to authenticate", run!(start)).access(Access::Anyone),
    CommandSpec::new("saslContinue", "goes on authenticating", run!(proceed))
        .access(Access::Anyone),
    CommandSpec::new(
        "authenticate",
        "logs in with the certificate of the connection",
        run!(authenticate),
    )
    .access(Access::Anyone),
    CommandSpec::new(
        "getnonce",
        "refused: MONGODB-CR is not spoken",
        run!(refuse),
    )
    .aliases(&["getNonce"])
    .access(Access::Anyone),
    CommandSpec::new("logout", "forgets who is logged in", run!(logout)).access(Access::LoggedIn),
];

/// The one user that a message is about.
async fn user(context: &Context<'_>, name: Option<UserName>) -> Result<Fetched, CommandError> {
    match name {
        Some(name) => context.router.users.fetch(&name).await.map(Fetched),
        None => Ok(Fetched::default()),
    }
}

fn sasl<'a>(context: &'a Context<'_>, users: &'a Fetched) -> Sasl<'a> {
    Sasl {
        access: &context.router.users.access,
        users,
        connection: context.connection,
        iterations: Iterations::default(),
    }
}

async fn begin(context: &Context<'_>, start: Start<'_>) -> CommandResult {
    let users = user(context, sasl::named(&start)).await?;
    sasl(context, &users).start(&start)
}

/// The reply to a login that failed waits, so that guessing takes long.
async fn slowed(context: &Context<'_>, result: CommandResult) -> CommandResult {
    if let Err(error) = &result
        && error.code == ErrorCode::AuthenticationFailed
    {
        let access = &context.router.users.access;
        access.slow_down(context.connection).await;
    }
    result
}

async fn start(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    let start = login::start(&request.body, &request.database)?;
    slowed(context, begin(context, start).await).await
}

async fn proceed(context: &Context<'_>) -> CommandResult {
    let (conversation, payload) = login::proceed(&context.request.body)?;
    let users = user(context, sasl::conversing(context.connection)).await?;
    let result = sasl(context, &users).proceed(conversation, payload);
    slowed(context, result).await
}

/// The login of whoever has shown a certificate in the handshake.
async fn by_certificate(context: &Context<'_>, claim: &Claim<'_>) -> CommandResult {
    let connection = context.connection;
    let users = user(context, certificates::named(connection, claim)).await?;
    certificates::log_in(&context.router.users.access, connection, claim, &users)
}

async fn authenticate(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    let claim = login::claim(&request.body, &request.database)?;
    slowed(context, by_certificate(context, &claim).await).await
}

/// The answer to the first message of a login that came within `hello`.
pub async fn speculative(context: &Context<'_>, body: &RawDocument) -> Option<RawDocumentBuf> {
    if let Some(claim) = login::speculative_claim(body) {
        return by_certificate(context, &claim).await.ok();
    }
    let start = login::speculative(body)?;
    begin(context, start).await.ok()
}

async fn refuse(_: &Context<'_>) -> CommandResult {
    Err(login::too_old())
}

async fn logout(context: &Context<'_>) -> CommandResult {
    login::leave(context.connection, &context.request.database);
    Ok(bson::rawdoc! { "ok": 1.0 })
}
